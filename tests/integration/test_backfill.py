"""The backfill: rows that are there already get a counter and a revision, beside writers of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from anyio.from_thread import BlockingPortal
from sqlalchemy import event
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from baukit_sync import (
    BackfillProgress,
    BackfillReport,
    InvalidArgumentError,
    PrimaryRequiredError,
    add_sync_tables,
    sync_indexes,
)
from tests.support.threads import together
from tests.support.ways import WAYS, Admin, Database, product_database

NO_WAIT = timedelta()


class Base(DeclarativeBase):
    """A product in the middle of becoming syncable: revisions may still be missing."""


sa.Table("users", Base.metadata, sa.Column("id", sa.Uuid, primary_key=True))
add_sync_tables(Base.metadata, owner="users.id")


class Task(Base):
    """A table whose owner column has a name of its own, and whose key has two columns."""

    __tablename__ = "tasks"
    __table_args__ = (*sync_indexes("tasks", owner="user_id"),)

    list_id: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[UUID] = mapped_column(primary_key=True)
    owner_id: Mapped[UUID | None] = mapped_column("user_id")
    updated_at: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True))
    deleted_at: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True))
    revision: Mapped[int | None] = mapped_column(sa.BigInteger)


@pytest.fixture(params=WAYS)
def db(
    request: pytest.FixtureRequest, empty_database_url: sa.URL, portal: BlockingPortal
) -> Iterator[Database]:
    """A database with the product's tables, in each of the three ways."""
    with product_database(request.param, empty_database_url, portal, Base.metadata) as database:
        yield database


@pytest.fixture
def admin(empty_database_url: sa.URL) -> Admin:
    """A look from outside."""
    return Admin(empty_database_url)


class InterruptionError(Exception):
    """What stops a run."""


def new_user(admin: Admin) -> UUID:
    """Add a user without a counter."""
    user = uuid4()
    admin.sql("INSERT INTO users VALUES (:user)", user=user)
    return user


def add(admin: Admin, user: UUID | None, rows: int, revision: int | None = None) -> None:
    """Add rows as they were before."""
    admin.sql(
        "INSERT INTO tasks (list_id, id, user_id, deleted_at, revision)"
        " SELECT n % 3, gen_random_uuid(), :user, CASE WHEN n % 4 = 0 THEN now() END, :revision"
        " FROM generate_series(1, :rows) AS n",
        user=user,
        rows=rows,
        revision=revision,
    )


def backfill(db: Database, model: Any = Task, **options: Any) -> BackfillReport:
    """Run the backfill on the engine."""
    report: BackfillReport = db.on_engine("backfill_revisions", model, **{"lock_wait": NO_WAIT, **options})
    return report


def revisions(admin: Admin, user: UUID) -> list[int | None]:
    """Return the revisions of a user's rows, in order."""
    rows = admin.sql("SELECT revision FROM tasks WHERE user_id = :user ORDER BY revision", user=user)
    return [revision for (revision,) in rows]


def test_every_row_gets_a_revision_of_its_own(db: Database, admin: Admin) -> None:
    """Each owner's run from 1 to its counter, tombstones included; ``updated_at`` is set where it was not."""
    users = [new_user(admin) for _ in range(3)]
    for user, rows in zip(users, (1, 7, 12), strict=True):
        add(admin, user, rows)
    report = backfill(db, limit=5)

    assert (20, 3, True, 0) == (report.stamped, report.counters, report.complete, report.left)
    for user, rows in zip(users, (1, 7, 12), strict=True):
        assert list(range(1, rows + 1)) == revisions(admin, user)
        with db.begin() as unit:
            assert rows == unit.guard_pull_cursor(user, 0).through
    assert 0 == admin.scalar("SELECT count(*) FROM tasks WHERE updated_at IS NULL")


def test_a_counter_that_is_there_goes_on(db: Database, admin: Admin) -> None:
    """Clients that have its revisions already get the old rows as new ones."""
    user = new_user(admin)
    add(admin, user, 3)
    with db.begin() as unit:
        unit.ensure_owner(user)
        unit.next_revisions(user, 10)
    report = backfill(db)

    assert [11, 12, 13] == revisions(admin, user)
    assert 0 == report.counters


def test_rows_that_have_a_revision_keep_it(db: Database, admin: Admin) -> None:
    """A second run finds nothing to do."""
    user = new_user(admin)
    add(admin, user, 2)
    backfill(db)
    before = admin.sql("SELECT * FROM tasks ORDER BY id")
    report = backfill(db)

    assert (0, 0, True) == (report.stamped, report.batches, report.complete)
    assert before == admin.sql("SELECT * FROM tasks ORDER BY id")


def test_no_batch_is_larger_than_the_limit(db: Database, admin: Admin) -> None:
    """Small owners share a batch, a large one takes several; each is committed by itself."""
    for rows in (1, 2, 11, 3):
        add(admin, new_user(admin), rows)
    batches: list[BackfillProgress] = []
    report = backfill(db, limit=4, on_batch=batches.append)

    assert 17 == report.stamped == batches[-1].total == sum(batch.stamped for batch in batches)
    assert 4 == max(batch.stamped for batch in batches)
    assert report.batches == len(batches)


def test_rows_that_are_added_meanwhile_do_not_make_a_batch_larger(db: Database, admin: Admin) -> None:
    """Two owners share a batch, and both have got more rows since they were counted."""
    users = [new_user(admin) for _ in range(2)]
    for user in users:
        add(admin, user, 2)

    def add_more(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "UPDATE tasks" in statement and not added:
            added.append(statement)
            for user in users:
                add(admin, user, 3)

    added: list[str] = []
    batches: list[BackfillProgress] = []
    event.listen(db.sync_engine, "before_cursor_execute", add_more)
    report = backfill(db, limit=4, on_batch=batches.append)

    assert 4 == max(batch.stamped for batch in batches)
    assert report.complete


def test_a_busy_owner_is_not_forgotten_when_another_grows(db: Database, admin: Admin) -> None:
    """The second batch finds nobody busy, and whom the first one left is still tried again at the end."""
    busy, grows = new_user(admin), new_user(admin)
    for user in (busy, grows):
        admin.sql("INSERT INTO sync_revisions VALUES (:user)", user=user)
        add(admin, user, 2)
    with admin.engine.execution_options(isolation_level="READ COMMITTED").connect() as holder:
        holder.execute(
            sa.text("SELECT FROM sync_revisions WHERE owner_id = :user FOR UPDATE"), {"user": busy}
        )

        def add_more(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if "UPDATE tasks" in statement and not added:
                added.append(statement)
                add(admin, grows, 3)

        added: list[str] = []
        event.listen(db.sync_engine, "before_cursor_execute", add_more)
        report = backfill(db, limit=4, on_batch=lambda _: holder.rollback(), lock_wait=timedelta(seconds=5))

    assert report.complete
    assert 7 == report.stamped


def test_an_interrupted_run_goes_on_where_it_stopped(db: Database, admin: Admin) -> None:
    """What was committed stays."""
    user = new_user(admin)
    add(admin, user, 9)

    def stop(progress: BackfillProgress) -> None:
        if progress.total >= 4:
            raise InterruptionError

    with pytest.raises(InterruptionError):
        backfill(db, limit=2, on_batch=stop)
    stamped = [revision for revision in revisions(admin, user) if revision is not None]
    report = backfill(db, limit=2)

    assert [1, 2, 3, 4] == stamped
    assert 5 == report.stamped
    assert list(range(1, 10)) == revisions(admin, user)


def test_a_busy_owner_is_left_and_the_others_are_stamped(db: Database, admin: Admin) -> None:
    """Nothing waits without being told to."""
    busy, idle = new_user(admin), new_user(admin)
    for user in (busy, idle):
        add(admin, user, 2)
    with db.begin() as unit:
        unit.ensure_owner(busy)
    refused: list[Any] = []
    event.listen(db.sync_engine, "handle_error", refused.append)
    with db.another() as other, other.begin() as writer:
        writer.next_revision(busy)
        report = backfill(db)

    assert [] == [context for context in refused if "INSERT" in context.statement]
    assert (2, 2, False) == (report.stamped, report.left, report.complete)
    assert [1, 2] == revisions(admin, idle)
    assert [None, None] == revisions(admin, busy)


def test_a_busy_owner_is_waited_for_at_the_end(db: Database, admin: Admin) -> None:
    """As long as it may."""
    user = new_user(admin)
    add(admin, user, 2)
    with db.begin() as unit:
        unit.ensure_owner(user)
    with db.another() as other:

        def hold() -> None:
            with other.begin() as writer:
                writer.next_revision(user)
                ready.append(True)
                admin.wait_for_blocked()

        ready: list[bool] = []

        def run() -> BackfillReport:
            while not ready:
                pass
            return backfill(db, lock_wait=timedelta(seconds=10))

        _, report = together(hold, run)

    assert report.complete
    assert [2, 3] == revisions(admin, user)


def test_a_row_that_a_writer_holds_is_left(db: Database, admin: Admin) -> None:
    """A writer that changes its row before it asks for a revision is not deadlocked."""
    user = new_user(admin)
    add(admin, user, 3)
    with db.begin() as unit:
        unit.ensure_owner(user)
    with db.another() as other, other.begin() as writer:
        held = writer.scalar("SELECT id FROM tasks WHERE user_id = :user LIMIT 1 FOR UPDATE", user=user)
        report = backfill(db)
        writer.sql(
            "UPDATE tasks SET revision = :revision WHERE id = :id",
            id=held,
            revision=writer.next_revision(user),
        )

    assert (2, 1) == (report.stamped, report.left)
    assert [1, 2, 3] == revisions(admin, user)


def test_two_runs_at_once_share_the_work(db: Database, admin: Admin) -> None:
    """No row is stamped twice, and no revision is used twice."""
    users = [new_user(admin) for _ in range(4)]
    for user in users:
        add(admin, user, 30)
    first, second = together(lambda: backfill(db, limit=7), lambda: backfill(db, limit=7))
    third = backfill(db)

    assert 120 == first.stamped + second.stamped + third.stamped
    assert [list(range(1, 31))] * 4 == [revisions(admin, user) for user in users]


def test_rows_of_nobody_are_left_and_reported(db: Database, admin: Admin) -> None:
    """An owner who is not in the owner table cannot have a counter; a row without an owner is nobody's."""
    user, gone = new_user(admin), uuid4()
    for owner, rows in ((user, 1), (gone, 2), (None, 4)):
        add(admin, owner, rows)
    report = backfill(db)

    assert (1, 1, 6, False) == (report.stamped, report.orphaned_owners, report.left, report.complete)
    assert [1] == revisions(admin, user)


@pytest.mark.parametrize(("owner_type", "owners"), [(sa.BigInteger(), (1, 2)), (sa.Text(), ("a", "b"))])
def test_owners_may_be_numbers_and_text(
    empty_database_url: sa.URL, portal: BlockingPortal, owner_type: Any, owners: tuple[Any, ...]
) -> None:
    """The statements are the same, on every driver."""
    metadata = sa.MetaData()
    add_sync_tables(metadata, owner_type=owner_type)
    notes = sa.Table(
        "notes",
        metadata,
        sa.Column("id", sa.Uuid, primary_key=True, default=uuid4),
        sa.Column("owner_id", owner_type),
        sa.Column("updated_at", sa.DateTime(timezone=True)),
        sa.Column("revision", sa.BigInteger),
    )
    for way in WAYS:
        db = Database(way, empty_database_url, portal)
        engine = sa.create_engine(empty_database_url, poolclass=sa.NullPool)
        metadata.drop_all(engine)
        metadata.create_all(engine)
        with engine.begin() as connection:
            connection.execute(sa.insert(notes), [{"owner_id": owner} for owner in owners * 2])
        report = backfill(db, notes)
        db.dispose()

        assert (4, 2, True) == (report.stamped, report.counters, report.complete)


def test_a_read_only_server_gets_a_typed_error(db: Database, admin: Admin) -> None:
    """A standby cannot be backfilled."""
    add(admin, new_user(admin), 1)
    with (
        db.another(settings={"default_transaction_read_only": "on"}) as standby,
        pytest.raises(PrimaryRequiredError),
    ):
        backfill(standby)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (None, {}),
        ("tasks", {}),
        (Base.metadata.tables["users"], {}),
        (Task, {"limit": 0}),
        (Task, {"limit": 1.0}),
        (Task, {"lock_wait": 1}),
        (Task, {"pause": timedelta(hours=1)}),
    ],
)
def test_a_bad_argument_is_refused_before_any_io(db: Database, model: Any, options: dict[str, Any]) -> None:
    """Nothing is sent."""
    with db.statements() as sent, pytest.raises(InvalidArgumentError):
        backfill(db, model, **options)

    assert [] == sent


def test_a_report_goes_to_json_without_owners(db: Database, admin: Admin) -> None:
    """Numbers, names and times."""
    user = new_user(admin)
    add(admin, user, 1)
    told = backfill(db).to_dict()

    assert {
        "table": "tasks",
        "stamped": 1,
        "counters": 1,
        "left": 0,
        "complete": True,
    }.items() <= told.items()
    assert str(user) not in str(told)

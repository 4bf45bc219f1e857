"""The stamp gives revisions to what others write, and turns deletes into tombstones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from anyio.from_thread import BlockingPortal
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from baukit_sync import (
    SyncColumns,
    TombstoneTable,
    backfill_revisions,
    guard_pull_cursor,
    migrations,
    next_revision,
    pull_page,
    purge_tombstones,
    sync_indexes,
    track,
)
from tests.integration.triggers.conftest import DOCS, sign_up
from tests.support import ways
from tests.support.threads import together
from tests.support.ways import Admin, Database

LATER = timedelta(days=1)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


class Base(DeclarativeBase):
    """A product whose tables others write, too."""


class User(Base):
    """Whom rows are synced for."""

    __tablename__ = "users"

    id: Mapped[UUID] = mapped_column(primary_key=True)


class Note(SyncColumns, Base):
    """A row with an owner column."""

    __tablename__ = "notes"

    title: Mapped[str] = mapped_column(server_default="")


class TodoList(SyncColumns, Base):
    """A parent."""

    __tablename__ = "lists"


class Item(Base):
    """A child without an owner column, which goes with its list."""

    __tablename__ = "items"

    list_id: Mapped[UUID] = mapped_column(sa.ForeignKey("lists.id", ondelete="CASCADE"), primary_key=True)
    place: Mapped[int] = mapped_column(primary_key=True)
    updated_at: Mapped[datetime] = mapped_column(sa.DateTime(timezone=True))
    deleted_at: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True))
    revision: Mapped[int] = mapped_column(sa.BigInteger)

    __table_args__ = (*sync_indexes("items", owner="list_id"),)


class TrackedSession(Session):
    """A session whose flushes are stamped."""


track(TrackedSession)

VIA = [("lists.id", "owner_id")]
INSERT = sa.text("INSERT INTO notes (id, owner_id, title) VALUES (gen_random_uuid(), :me, :title)")


def stamp(url: sa.URL, *, guarded: bool) -> None:
    """Put the triggers on the product's tables, as a migration does."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        op = Operations(MigrationContext.configure(connection))
        migrations.create_revisions(op, owner="users.id")
        migrations.create_purge_horizons(op)
        migrations.create_stamp_trigger(op, "notes", deletes_by=["id"])
        migrations.create_stamp_trigger(op, "lists", deletes_by=["id"])
        migrations.create_stamp_trigger(
            op, "items", owner="list_id", via=VIA, deletes_by=["list_id", "place"]
        )
        if guarded:
            migrations.create_revisions_trigger(op)
            migrations.create_guard_trigger(op, "notes")
            migrations.create_guard_trigger(op, "lists")
            migrations.create_guard_trigger(op, "items", owner="list_id", via=VIA)


@pytest.fixture(params=ways.WAYS)
def db(
    request: pytest.FixtureRequest, empty_database_url: sa.URL, portal: BlockingPortal
) -> Iterator[Database]:
    """A database whose tables have both triggers, in each of the three ways."""
    with ways.product_database(request.param, empty_database_url, portal, Base.metadata) as database:
        stamp(empty_database_url, guarded=True)
        yield database


@pytest.fixture(params=["stamp", "stamp and guard"])
def engine(request: pytest.FixtureRequest, empty_database_url: sa.URL) -> Iterator[sa.Engine]:
    """An engine of such a database, with and without the guard."""
    engine = sa.create_engine(empty_database_url)
    Base.metadata.create_all(engine)
    stamp(empty_database_url, guarded="guard" in request.param)
    yield engine
    engine.dispose()


def counter(outside: Admin, owner: UUID) -> int:
    """Return the owner's counter."""
    return int(outside.scalar("SELECT last_revision FROM sync_revisions WHERE owner_id = :it", it=owner))


def notes(outside: Admin) -> list[tuple[str, int, bool]]:
    """Return each note's title and revision, and whether it is a tombstone."""
    found = outside.sql("SELECT title, revision, deleted_at IS NOT NULL FROM notes ORDER BY revision, title")
    return [tuple(row) for row in found]


def said(error: pytest.ExceptionInfo[Any], sqlstate: str) -> str:
    """Return what the database said, with this SQLSTATE."""
    cause: Any = error.value.orig if isinstance(error.value, DBAPIError) else error.value
    assert sqlstate == cause.sqlstate
    return str(getattr(cause, "diag", cause).message_primary)


def test_sql_without_revisions_is_stamped(db: Database, owner: UUID, outside: Admin) -> None:
    """An insert, an update, a soft delete and an undelete, in transactions of their own."""
    with db.begin() as unit:
        unit.sql("INSERT INTO notes (id, owner_id, title) VALUES (gen_random_uuid(), :me, 'a')", me=owner)
    inserted = notes(outside)
    with db.begin() as unit:
        unit.sql("UPDATE notes SET title = 'b'")
    updated = notes(outside)
    with db.begin() as unit:
        unit.sql("UPDATE notes SET deleted_at = now()")
    deleted = notes(outside)
    with db.begin() as unit:
        unit.sql("UPDATE notes SET deleted_at = NULL")

    assert [("a", 1, False)] == inserted
    assert [("b", 2, False)] == updated
    assert [("b", 3, True)] == deleted
    assert [("b", 4, False)] == notes(outside)
    assert 4 == counter(outside, owner)


def test_every_row_of_a_statement_has_its_own(db: Database, owner: UUID, outside: Admin) -> None:
    """In the rows' order, above what was there."""
    with db.begin() as unit:
        unit.sql(
            "INSERT INTO notes (id, owner_id, title)"
            " SELECT gen_random_uuid(), :me, lpad(n::text, 4, '0') FROM generate_series(1, 100) AS n",
            me=owner,
        )
    inserted = notes(outside)
    with db.begin() as unit:
        unit.sql("UPDATE notes SET title = title || '!'")

    assert list(range(1, 101)) == [revision for _, revision, _ in inserted]
    assert sorted(title for title, _, _ in inserted) == [title for title, _, _ in inserted]
    revisions = [revision for _, revision, _ in notes(outside)]
    assert revisions == sorted(set(revisions))
    assert revisions[0] > 100
    assert counter(outside, owner) >= revisions[-1]


def copy_in(connection: sa.Connection, owner: UUID) -> None:
    """Copy a row in."""
    driver: Any = connection.connection.dbapi_connection
    with driver.cursor().copy("COPY notes (id, owner_id, title) FROM STDIN") as stream:
        stream.write_row((uuid4(), owner, "new"))


UPSERT = (
    "INSERT INTO notes (id, owner_id, title) SELECT id, owner_id, 'new' FROM notes WHERE true"
    " ON CONFLICT (id) DO UPDATE SET title = excluded.title"
)
MERGE = (
    "MERGE INTO notes USING (VALUES ({0}::uuid, 'new'), (gen_random_uuid(), 'new')) AS given (id, title)"
    " ON notes.id = given.id WHEN MATCHED THEN UPDATE SET title = given.title"
    " WHEN NOT MATCHED THEN INSERT (id, owner_id, title) VALUES (given.id, {1}, given.title)"
)
WRITES: dict[str, tuple[Callable[[sa.Connection, UUID], object], list[str]]] = {
    "COPY": (copy_in, ["old", "new"]),
    "upsert that updates": (lambda connection, owner: connection.execute(sa.text(UPSERT)), ["new"]),
    "upsert that does nothing": (
        lambda connection, owner: connection.execute(
            sa.text(
                "INSERT INTO notes (id, owner_id, title) SELECT id, owner_id, 'lost' FROM notes"
                " ON CONFLICT DO NOTHING"
            )
        ),
        ["old"],
    ),
    "merge": (
        lambda connection, owner: connection.execute(
            sa.text(MERGE.format("(SELECT id FROM notes LIMIT 1)", ":me")), {"me": owner}
        ),
        ["new", "new"],
    ),
    "writable CTE": (
        lambda connection, owner: connection.execute(
            sa.text(
                "WITH changed AS (UPDATE notes SET title = 'new' RETURNING *)"
                " INSERT INTO notes (id, owner_id, title) SELECT gen_random_uuid(), owner_id, title"
                " FROM changed"
            )
        ),
        ["new", "new"],
    ),
    "driver's executemany": (
        lambda connection, owner: connection.execute(
            sa.text("INSERT INTO notes (id, owner_id, title) VALUES (:id, :me, 'new')"),
            [{"id": uuid4(), "me": owner} for _ in range(3)],
        ),
        ["old", "new", "new", "new"],
    ),
    "bulk_save_objects": (
        lambda connection, owner: Session(connection).bulk_save_objects([Note(owner_id=owner, title="new")]),
        ["old", "new"],
    ),
    "a revision set to NULL": (
        lambda connection, owner: connection.execute(
            sa.text("UPDATE notes SET title = 'new', revision = NULL")
        ),
        ["new"],
    ),
}


@pytest.mark.parametrize("write", WRITES)
def test_every_way_of_writing_is_stamped(write: str, engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """Each row has a revision above those before, within the counter, and no two the same."""
    body, titles = WRITES[write]
    with engine.begin() as connection:
        if write == "merge" and connection.dialect.server_version_info < (15,):  # type: ignore[operator]
            pytest.skip("PostgreSQL has MERGE from version 15 on")
        connection.execute(
            sa.text("INSERT INTO notes (id, owner_id, title) VALUES (gen_random_uuid(), :me, 'old')"),
            {"me": owner},
        )
    with engine.begin() as connection:
        body(connection, owner)

    found = notes(outside)
    assert titles == [title for title, _, _ in found]
    revisions = [revision for _, revision, _ in found]
    assert len(revisions) == len(set(revisions))
    assert all(revision > 1 for title, revision, _ in found if title == "new")
    assert counter(outside, owner) >= revisions[-1]


def test_updated_at_moves_unless_the_writer_moves_it(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """An insert without one gets the time, and so does an update that leaves it."""
    made = list_with_items(engine, owner, 1)
    times = [outside.scalar("SELECT updated_at FROM items")]
    for statement in (
        "UPDATE items SET updated_at = :at",
        "UPDATE items SET deleted_at = :at",
        "INSERT INTO items (list_id, place, updated_at) VALUES (:list, 2, :at)",
    ):
        outside.sql(statement, at=LONG_AGO, **({"list": made} if ":list" in statement else {}))
        times.append(outside.scalar("SELECT updated_at FROM items ORDER BY place DESC LIMIT 1"))
    now = outside.scalar("SELECT clock_timestamp()")

    assert [False, True, False, True] == [at == LONG_AGO for at in times]
    assert all(now - at < LATER for at in times if at != LONG_AGO)


def test_what_the_writer_has_stamped_is_left_alone(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """A revision of the writer's own stays, and none is allocated beside it."""
    with engine.begin() as connection:
        for statement in (
            "INSERT INTO notes (id, owner_id, revision) VALUES (gen_random_uuid(), :me, :revision)",
            "UPDATE notes SET title = 'b', revision = :revision WHERE owner_id = :me",
        ):
            connection.execute(
                sa.text(statement), {"me": owner, "revision": next_revision(connection, owner)}
            )

    assert [("b", 2, False)] == notes(outside)
    assert 2 == counter(outside, owner)


def test_a_tracked_session_stays_as_it_is(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """It stamps by itself, one revision for each row and flush."""
    with sessionmaker(engine, class_=TrackedSession).begin() as session:
        kept, gone = Note(owner_id=owner, title="a"), Note(owner_id=owner, title="b")
        session.add_all([kept, gone])
        session.flush()
        kept.title = "c"
        session.delete(gone)

    assert {("c", False), ("b", True)} == {(title, deleted) for title, _, deleted in notes(outside)}
    assert {3, 4} == {revision for _, revision, _ in notes(outside)}
    assert 4 == counter(outside, owner)


def test_both_ways_mix_in_a_transaction(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """A row never goes back: where the reserved block lies below its revision, another one is allocated."""
    with engine.begin() as connection:
        for title in "abcd":
            connection.execute(INSERT, {"me": owner, "title": title})
        # 5 to 7 are reserved.
        revision = next_revision(connection, owner)
        connection.execute(sa.text("UPDATE notes SET revision = :it WHERE title = 'a'"), {"it": revision})
        connection.execute(sa.text("UPDATE notes SET deleted_at = now() WHERE title = 'a'"))

    assert [("b", 2, False), ("c", 3, False), ("d", 4, False)] == notes(outside)[:3]
    title, last, deleted = notes(outside)[3]
    assert ("a", True) == (title, deleted)
    assert last > revision > 7
    assert counter(outside, owner) >= last


def test_a_savepoint_takes_its_revisions_back(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """What it had reserved is reserved no longer, and comes again; no two rows share one."""
    with engine.begin() as connection:
        connection.execute(INSERT, {"me": owner, "title": "a"})
        savepoint = connection.begin_nested()
        for title in "bcdefg":
            connection.execute(INSERT, {"me": owner, "title": title})
        savepoint.rollback()
        for title in "hij":
            connection.execute(INSERT, {"me": owner, "title": title})

    assert [("a", 1, False), ("h", 2, False), ("i", 3, False), ("j", 4, False)] == notes(outside)


def test_nothing_is_reserved_for_the_next_transaction(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """What a transaction did not use is a gap, also on the same connection, also after a rollback."""
    with engine.connect() as connection:
        for titles, end in (("ab", "commit"), ("cd", "rollback"), ("ef", "commit")):
            for title in titles:
                connection.execute(INSERT, {"me": owner, "title": title})
            getattr(connection, end)()
            outside.sql("UPDATE sync_revisions SET last_revision = last_revision + 100")

    assert [("a", 1), ("b", 2), ("e", 204), ("f", 205)] == [note[:2] for note in notes(outside)]


def test_many_rows_raise_the_counter_a_few_times(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """In blocks of 1, 2, 4 ... 1,000: ten of them, and one more for each further thousand."""
    raised = "SELECT n_tup_upd FROM pg_stat_xact_user_tables WHERE relname = 'sync_revisions'"
    with engine.begin() as connection:
        connection.execute(
            sa.text(
                "INSERT INTO notes (id, owner_id) SELECT gen_random_uuid(), :me FROM generate_series(1, 3000)"
            ),
            {"me": owner},
        )
        times = connection.scalar(sa.text(raised))

    assert 12 == times
    assert counter(outside, owner) - 3000 <= 999


def test_owners_take_turns_in_a_statement(engine: sa.Engine, outside: Admin) -> None:
    """Each has a block of its own."""
    owners = [sign_up(outside) for _ in range(5)]
    with engine.begin() as connection:
        connection.execute(
            sa.text(
                "INSERT INTO notes (id, owner_id) SELECT gen_random_uuid(), owner_id"
                " FROM generate_series(1, 100) AS n, sync_revisions ORDER BY n"
            )
        )

    for owner in owners:
        found = outside.sql("SELECT revision FROM notes WHERE owner_id = :me ORDER BY revision", me=owner)
        assert list(range(1, 101)) == [row.revision for row in found]


def test_more_owners_than_the_memory_holds_are_stamped(engine: sa.Engine, outside: Admin) -> None:
    """Those who do not fit get their revisions one by one."""
    owner, full = sign_up(outside), " 1:1-1-1" * 4_000
    with engine.begin() as connection:
        connection.execute(
            sa.text(
                "SELECT set_config('baukit_sync.reserved_' || n, :full, true)"
                " FROM generate_series(0, 255) AS n"
            ),
            {"full": full},
        )
        for _ in range(4):
            connection.execute(INSERT, {"me": owner, "title": ""})

    assert [1, 2, 3, 4] == [revision for _, revision, _ in notes(outside)]
    assert 4 == counter(outside, owner)


def test_an_owner_without_a_counter_is_refused(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """As a missing foreign key is."""
    stranger = uuid4()
    with engine.connect() as connection, pytest.raises(IntegrityError) as error:
        connection.execute(
            sa.text("INSERT INTO notes (id, owner_id) VALUES (gen_random_uuid(), :me)"), {"me": stranger}
        )

    assert "the owner of a row of notes has no counter" == said(error, "23503")
    assert str(stranger) not in str(error.value.orig)


def test_a_row_cannot_change_its_owner(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """The old owner's clients would keep it; a child may move between lists of one owner only."""
    another = sign_up(outside)
    with engine.begin() as connection:
        for me in (owner, owner, another):
            connection.execute(
                sa.text("INSERT INTO lists (id, owner_id) VALUES (gen_random_uuid(), :me)"), {"me": me}
            )
        mine, my_other = connection.scalars(
            sa.select(TodoList.id).where(TodoList.owner_id == owner).order_by(TodoList.revision)
        )
        theirs = connection.scalar(sa.select(TodoList.id).where(TodoList.owner_id == another))
        connection.execute(sa.text("INSERT INTO items (list_id, place) VALUES (:list, 1)"), {"list": mine})
    move = sa.text("UPDATE items SET list_id = :list")
    with engine.begin() as connection:
        connection.execute(move, {"list": my_other})
    with engine.connect() as connection, pytest.raises(IntegrityError) as moved:
        connection.execute(move, {"list": theirs})
    with engine.connect() as connection, pytest.raises(IntegrityError) as given:
        connection.execute(sa.text("UPDATE lists SET owner_id = :me"), {"me": another})

    assert "a row of items cannot move to another owner" == said(moved, "23514")
    assert "a row of lists cannot move to another owner" == said(given, "23514")
    assert [(4,)] == outside.sql("SELECT revision FROM items")


def test_a_child_has_its_parent_s_owner(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """Through the lists; a child without a parent has no owner."""
    with engine.begin() as connection:
        made = connection.scalar(
            sa.text("INSERT INTO lists (id, owner_id) VALUES (gen_random_uuid(), :me) RETURNING id"),
            {"me": owner},
        )
        connection.execute(
            sa.text("INSERT INTO items (list_id, place) SELECT :list, n FROM generate_series(1, 3) AS n"),
            {"list": made},
        )
    with engine.connect() as connection, pytest.raises(IntegrityError) as error:
        connection.execute(sa.text("INSERT INTO items (list_id, place) VALUES (gen_random_uuid(), 1)"))

    assert "the owner of a row of items has no counter" == said(error, "23503")
    assert [(2,), (3,), (4,)] == outside.sql("SELECT revision FROM items ORDER BY place")


def test_a_delete_becomes_a_tombstone(db: Database, owner: UUID, outside: Admin) -> None:
    """It says that it deleted no row; a second one changes nothing."""
    with db.begin() as unit:
        unit.sql("INSERT INTO notes (id, owner_id, title) VALUES (gen_random_uuid(), :me, 'a')", me=owner)
    with db.begin() as unit:
        returned = unit.sql("DELETE FROM notes RETURNING id")
    once = outside.sql("SELECT * FROM notes")
    with db.begin() as unit, pytest.raises(IntegrityError, match="no purge has covered"):
        unit.sql("DELETE FROM notes")

    assert [] == returned
    assert [("a", 2, True)] == notes(outside)
    assert once == outside.sql("SELECT * FROM notes")
    assert outside.scalar("SELECT updated_at >= deleted_at FROM notes")


def list_with_items(engine: sa.Engine, owner: UUID, places: int) -> UUID:
    """Commit a list and its items; return its id."""
    with engine.begin() as connection:
        made: UUID = connection.execute(
            sa.text("INSERT INTO lists (id, owner_id) VALUES (gen_random_uuid(), :me) RETURNING id"),
            {"me": owner},
        ).scalar_one()
        connection.execute(
            sa.text("INSERT INTO items (list_id, place) SELECT :list, n FROM generate_series(1, :n) AS n"),
            {"list": made, "n": places},
        )
    return made


def test_a_cascade_leaves_tombstones(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """A list's items go with it, each with a revision above the list's own; other lists' items stay."""
    gone, kept = (list_with_items(engine, owner, 2) for _ in range(2))
    outside.sql("DELETE FROM items WHERE place = 2 AND list_id = :it", it=gone)
    before = outside.sql("SELECT * FROM items WHERE list_id = :it AND place = 2", it=gone)
    with engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM lists WHERE id = :it"), {"it": gone})

    deleted = outside.sql("SELECT id, revision FROM lists WHERE deleted_at IS NOT NULL")
    assert [gone] == [row.id for row in deleted]
    items = outside.sql(
        "SELECT list_id, place, revision FROM items WHERE deleted_at IS NOT NULL ORDER BY place"
    )
    assert [(gone, 1), (gone, 2)] == [(row.list_id, row.place) for row in items]
    assert items[0].revision > deleted[0].revision
    assert before == outside.sql("SELECT * FROM items WHERE list_id = :it AND place = 2", it=gone)
    assert 2 == outside.scalar(
        "SELECT count(*) FROM items WHERE list_id = :it AND deleted_at IS NULL", it=kept
    )


def test_the_cascade_s_mark_ends_with_it(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """A foreign key's delete later in the transaction is not taken for one of the stamp's."""
    made = list_with_items(engine, owner, 1)
    with engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM lists WHERE id = :it"), {"it": made})
        mark = connection.scalar(sa.text("SELECT current_setting('baukit_sync.cascade', true)"))

    assert "" == mark


def has_guard(outside: Admin) -> bool:
    """Say whether the tables are guarded, too."""
    return bool(
        outside.scalar("SELECT EXISTS (SELECT FROM pg_trigger WHERE tgname = 'baukit_sync_guard_v1')")
    )


def test_without_deletes_by_a_delete_happens(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """Unless the guard refuses it."""
    outside.sql("INSERT INTO notes (id, owner_id) VALUES (gen_random_uuid(), :me)", me=owner)
    guarded = has_guard(outside)
    with engine.begin() as connection:
        migrations.create_stamp_trigger(Operations(MigrationContext.configure(connection)), "notes")
    if guarded:
        with pytest.raises(IntegrityError, match="no purge has covered"):
            outside.sql("DELETE FROM notes")
    else:
        outside.sql("DELETE FROM notes")

    assert int(guarded) == outside.scalar("SELECT count(*) FROM notes")


def test_a_delete_inside_another_trigger_happens(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """It is taken for a foreign key's, unless the guard refuses it."""
    outside.sql(INSERT.text, me=owner, title="")
    guarded = has_guard(outside)
    outside.sql(
        "CREATE FUNCTION clear() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN DELETE FROM notes; RETURN NULL; END'"
    )
    outside.sql("CREATE TRIGGER clear AFTER INSERT ON users FOR EACH ROW EXECUTE FUNCTION clear()")
    if guarded:
        with pytest.raises(IntegrityError, match="no purge has covered"):
            outside.sql("INSERT INTO users VALUES (gen_random_uuid())")
    else:
        outside.sql("INSERT INTO users VALUES (gen_random_uuid())")

    assert int(guarded) == outside.scalar("SELECT count(*) FROM notes WHERE deleted_at IS NULL")
    assert 0 == outside.scalar("SELECT count(*) FROM notes WHERE deleted_at IS NOT NULL")


def test_a_tree_s_delete_takes_the_branch(empty_database_url: sa.URL, outside: Admin) -> None:
    """Level by level; parent and child in one statement are PostgreSQL's 27000, and nothing happens."""
    engine = sa.create_engine(empty_database_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        op = Operations(MigrationContext.configure(connection))
        migrations.create_revisions(op)
        migrations.create_purge_horizons(op)
        op.create_table("folders", *migrations.columns(), sa.Column("parent_id", sa.Uuid()))
        op.create_foreign_key(None, "folders", "folders", ["parent_id"], ["id"], ondelete="CASCADE")
        migrations.create_stamp_trigger(op, "folders", deletes_by=["id"])
    owner, ids = uuid4(), [uuid4() for _ in range(4)]
    outside.sql("INSERT INTO sync_revisions VALUES (:me)", me=owner)
    for child, parent in zip(ids, [None, *ids[:2], None], strict=True):
        outside.sql(
            "INSERT INTO folders (id, owner_id, parent_id) VALUES (:id, :me, :parent)",
            id=child,
            me=owner,
            parent=parent,
        )
    with pytest.raises(OperationalError) as error:
        outside.sql("DELETE FROM folders")
    untouched = outside.scalar("SELECT count(*) FROM folders WHERE deleted_at IS NULL")
    outside.sql("DELETE FROM folders WHERE id = :root", root=ids[0])

    assert "27000" == error.value.orig.sqlstate  # type: ignore[union-attr]
    assert 4 == untouched
    deleted = outside.sql("SELECT id FROM folders WHERE deleted_at IS NOT NULL ORDER BY revision")
    assert ids[:3] == [row.id for row in deleted]


@pytest.mark.parametrize("first", ["owner", "counter"])
def test_an_owner_can_be_erased(first: str, engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """By a cascade from the owner, or by hand, counter first: the rows go, and no tombstone stays."""
    for table in ("notes", "lists"):
        outside.sql(f"ALTER TABLE {table} ADD FOREIGN KEY (owner_id) REFERENCES users ON DELETE CASCADE")
    outside.sql("ALTER TABLE sync_revisions DROP CONSTRAINT sync_revisions_owner_id_fkey")
    outside.sql("ALTER TABLE sync_revisions ADD FOREIGN KEY (owner_id) REFERENCES users ON DELETE CASCADE")
    another = sign_up(outside)
    for me in (owner, another):
        list_with_items(engine, me, 2)
        outside.sql("INSERT INTO notes (id, owner_id) VALUES (gen_random_uuid(), :me)", me=me)
    with engine.begin() as connection:
        if first == "counter":
            for table in ("sync_revisions", "notes", "lists"):
                connection.execute(sa.text(f"DELETE FROM {table} WHERE owner_id = :me"), {"me": owner})
        connection.execute(sa.text("DELETE FROM users WHERE id = :me"), {"me": owner})

    counts = [outside.scalar(f"SELECT count(*) FROM {table}") for table in ("notes", "lists", "items")]
    assert [1, 1, 2] == counts
    assert 0 == outside.scalar("SELECT count(*) FROM notes WHERE deleted_at IS NOT NULL")


def test_a_purge_deletes_tombstones(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """The trigger lets it; live rows stay."""
    list_with_items(engine, owner, 3)
    for _ in range(2):
        outside.sql("INSERT INTO notes (id, owner_id) VALUES (gen_random_uuid(), :me)", me=owner)
    outside.sql("DELETE FROM items WHERE place <> 2")
    outside.sql("DELETE FROM notes WHERE revision = (SELECT min(revision) FROM notes)")
    tables = [TombstoneTable.for_model(Item, owner_via=Item.list_id), TombstoneTable.for_model(Note)]
    report = purge_tombstones(engine, tables, datetime.now(UTC) + LATER, 100)

    assert (3, True) == (report.deleted, report.complete)
    counts = [outside.scalar(f"SELECT count(*) FROM {table}") for table in ("notes", "items")]
    assert [1, 1] == counts


def test_a_backfill_keeps_its_own_revisions(empty_database_url: sa.URL, outside: Admin) -> None:
    """Rows from before the triggers get one each, and no more are allocated."""
    engine = sa.create_engine(empty_database_url, poolclass=sa.NullPool)
    owner = uuid4()
    with engine.begin() as connection:
        op = Operations(MigrationContext.configure(connection))
        op.create_table(
            "notes", sa.Column("id", sa.Uuid(), primary_key=True), sa.Column("owner_id", sa.Uuid())
        )
        connection.execute(
            sa.text("INSERT INTO notes SELECT gen_random_uuid(), :me FROM generate_series(1, 5)"),
            {"me": owner},
        )
        migrations.create_revisions(op)
        migrations.create_purge_horizons(op)
        migrations.add_columns(op, "notes")
        migrations.create_indexes(op, "notes")
        migrations.create_stamp_trigger(op, "notes", deletes_by=["id"])
    backfill_revisions(engine, sa.Table("notes", sa.MetaData(), autoload_with=engine))

    assert [1, 2, 3, 4, 5] == [row.revision for row in outside.sql("SELECT revision FROM notes ORDER BY 1")]
    assert 5 == counter(outside, owner)


@pytest.mark.parametrize("owner_type", ["bigint", "text"])
def test_owners_may_be_numbers_or_text(owner_type: str, empty_database_url: sa.URL, outside: Admin) -> None:
    """Also ones with the characters that the memory uses."""
    types = {"bigint": sa.BigInteger(), "text": sa.Text()}
    owners: list[Any] = [1, -1, 2**62] if owner_type == "bigint" else ["a b", "7:1-2", ""]
    engine = sa.create_engine(empty_database_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        op = Operations(MigrationContext.configure(connection))
        migrations.create_revisions(op, owner_type=types[owner_type])
        migrations.create_purge_horizons(op, owner_type=types[owner_type])
        op.create_table("notes", *migrations.columns(types[owner_type]))
        migrations.create_revisions_trigger(op)
        migrations.create_guard_trigger(op, "notes")
        migrations.create_stamp_trigger(op, "notes", deletes_by=["id"])
        for me in owners:
            connection.execute(sa.text("INSERT INTO sync_revisions VALUES (:me)"), {"me": me})
        for _ in range(3):
            for me in owners:
                connection.execute(
                    sa.text("INSERT INTO notes (id, owner_id) VALUES (gen_random_uuid(), :me)"), {"me": me}
                )

    for me in owners:
        found = outside.sql("SELECT revision FROM notes WHERE owner_id = :me ORDER BY revision", me=me)
        assert [1, 2, 3] == [row.revision for row in found]


def test_partitions_are_stamped_by_their_own_names(empty_database_url: sa.URL, outside: Admin) -> None:
    """Inserts, updates and deletes, of the table and of each partition."""
    engine = sa.create_engine(empty_database_url, poolclass=sa.NullPool)
    owner = uuid4()
    with engine.begin() as connection:
        op = Operations(MigrationContext.configure(connection))
        migrations.create_revisions(op)
        migrations.create_purge_horizons(op)
        for statement in (
            DOCS,
            "CREATE TABLE docs_0 PARTITION OF docs FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
        ):
            connection.execute(sa.text(statement))
        migrations.create_revisions_trigger(op)
        migrations.create_guard_trigger(op, "docs")
        migrations.create_stamp_trigger(op, "docs", deletes_by=["owner_id", "id"])
    outside.sql("INSERT INTO sync_revisions VALUES (:me)", me=owner)
    for table in ("docs", "docs_0"):
        outside.sql(f"INSERT INTO {table} (id, owner_id) VALUES (gen_random_uuid(), :me)", me=owner)
    outside.sql("DELETE FROM docs WHERE revision = 1")
    outside.sql("UPDATE docs_0 SET updated_at = now() WHERE revision = 2")
    outside.sql("DELETE FROM docs_0 WHERE revision = 4")

    assert [(3, True), (5, True)] == [
        tuple(row) for row in outside.sql("SELECT revision, deleted_at IS NOT NULL FROM docs ORDER BY 1")
    ]


def test_a_writer_needs_the_counter(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """A role that may write notes only is refused; one that may raise counters, too, is not."""
    role = f"writer_{uuid4().hex[:8]}"
    outside.sql(f"CREATE ROLE {role}")
    outside.sql(f"GRANT INSERT, SELECT ON notes TO {role}")
    try:
        with engine.connect() as connection, pytest.raises(DBAPIError) as error:
            connection.execute(sa.text(f"SET LOCAL ROLE {role}"))
            connection.execute(INSERT, {"me": owner, "title": ""})
        outside.sql(f"GRANT SELECT, UPDATE ON sync_revisions TO {role}")
        with engine.begin() as connection:
            connection.execute(sa.text(f"SET LOCAL ROLE {role}"))
            connection.execute(INSERT, {"me": owner, "title": ""})
    finally:
        outside.sql(f"DROP OWNED BY {role}")
        outside.sql(f"DROP ROLE {role}")

    assert "permission denied for table sync_revisions" == said(error, "42501")
    assert 1 == len(notes(outside))


@pytest.mark.parametrize("path", ["''", "decoy"])
def test_the_search_path_of_a_session_does_not_matter(
    path: str, engine: sa.Engine, owner: UUID, outside: Admin
) -> None:
    """Not an empty one, nor one that leads to other tables of the same names."""
    outside.sql("CREATE SCHEMA decoy")
    for table in ("sync_revisions", "notes", "lists"):
        outside.sql(f"CREATE TABLE decoy.{table} (LIKE public.{table} INCLUDING ALL)")
    with engine.begin() as connection:
        connection.execute(sa.text(f"SET LOCAL search_path = {path}"))
        connection.execute(
            sa.text("INSERT INTO public.notes (id, owner_id) VALUES (gen_random_uuid(), :me)"), {"me": owner}
        )
        connection.execute(sa.text("DELETE FROM public.notes"))

    assert [("", 2, True)] == notes(outside)


def test_writers_of_an_owner_wait_for_each_other(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """Revision order is commit order; another owner's writers do not wait."""
    another, started = sign_up(outside), Event()

    def first() -> None:
        with engine.begin() as connection:
            connection.execute(INSERT, {"me": owner, "title": "first"})
            started.set()
            outside.wait_for_blocked()
            outside.sql(INSERT.text, me=another, title="another")

    def second() -> None:
        assert started.wait(10)
        with engine.begin() as connection:
            connection.execute(INSERT, {"me": owner, "title": "second"})

    together(first, second)

    assert [("another", 1, False), ("first", 1, False), ("second", 2, False)] == notes(outside)


def test_a_client_gets_what_others_write(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """A pull of models returns the rows, changes and tombstones of the writers that know no revision."""
    seen: list[list[tuple[str, bool]]] = []
    cursor = 0
    for statement in (
        "INSERT INTO notes (id, owner_id, title) SELECT gen_random_uuid(), owner_id, 'a' FROM sync_revisions",
        "UPDATE notes SET title = 'b'",
        "DELETE FROM notes",
    ):
        outside.sql(statement)
        with Session(engine) as session, session.begin():
            page = pull_page(session, guard_pull_cursor(session, owner, cursor), [Note], limit=10)
            seen.append([(change.row.title, change.deleted) for change in page.changes])
            cursor = page.next_cursor

    assert [[("a", False)], [("b", False)], [("b", True)]] == seen


def test_the_driver_s_error_names_the_trigger(engine: sa.Engine, owner: UUID) -> None:
    """Schema, table and constraint say where."""
    with engine.connect() as connection, pytest.raises(IntegrityError) as error:
        connection.execute(
            sa.text("INSERT INTO notes (id, owner_id) VALUES (gen_random_uuid(), gen_random_uuid())")
        )

    cause = error.value.orig
    assert isinstance(cause, psycopg.Error)
    assert ("public", "notes", "baukit_sync_stamp_v1") == (
        cause.diag.schema_name,
        cause.diag.table_name,
        cause.diag.constraint_name,
    )

"""Somebody else changes a row between its selection and its deletion, or while the batch runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from baukit_sync import ResyncRequiredError
from tests.integration.purge.models import BOOKS, FOLDERS, NOTES, PAGES
from tests.integration.purge.world import (
    EXPIRED,
    MODES,
    RECENT,
    Gate,
    before,
    horizons,
    locked_out,
    next_revision,
    purge,
    revisions,
    summary,
    write,
)
from tests.support.ways import Admin, Database

modes = pytest.mark.parametrize("mode", MODES, ids=["many", "one"])

LOCKING = "SKIP LOCKED"
"""What the first statement of a batch says."""

COUNTER = "SELECT FROM sync_revisions WHERE owner_id = :id"

CHANGES = {
    "revived": "UPDATE notes SET deleted_at = NULL, revision = 9 WHERE id = :id",
    "deleted again": f"UPDATE notes SET deleted_at = '{RECENT}', revision = 9 WHERE id = :id",
    "stamped again": "UPDATE notes SET revision = 9 WHERE id = :id",
    "moved": "UPDATE notes SET owner_id = :other WHERE id = :id",
    "gone": "DELETE FROM notes WHERE id = :id",
}
"""What happens to the middle one of three tombstones, in raw SQL that asks no counter."""

REVISIONS: dict[str, tuple[list[int], list[int]]] = {
    "revived": ([9], []),
    "deleted again": ([9], []),
    "stamped again": ([], []),
    "moved": ([], [2]),
    "gone": ([], []),
}
"""What the owner and the other owner have when a run has taken what it may, after the change."""

changes = pytest.mark.parametrize("change", CHANGES)


def change_middle(admin: Admin, change: str, note: UUID, other: UUID) -> None:
    """Commit a change, past the triggers of the test."""
    parameters = {"id": note} | ({"other": other} if change == "moved" else {})
    with admin.engine.connect() as connection:
        connection.execute(sa.text("SET session_replication_role = replica"))
        connection.execute(sa.text(CHANGES[change]), parameters)


@modes
@changes
def test_a_row_that_changes_after_the_scan_is_taken_as_it_is_then(
    db: Database, admin: Admin, owners: list[UUID], mode: int | None, change: str
) -> None:
    """What is no expired tombstone of the owner any more stays; the horizon is what is gone."""
    owner, other, _ = owners
    _, middle, _ = write(admin, owner, EXPIRED, EXPIRED, EXPIRED)
    with before(db, LOCKING, lambda: change_middle(admin, change, middle, other)) as met:
        purge(db, NOTES, owners_per_statement=mode)

    assert met
    assert REVISIONS[change] == (revisions(admin, owner), revisions(admin, other))
    assert {owner: 9 if change == "stamped again" else 3} == horizons(admin)


@changes
def test_a_row_that_changes_after_the_statements_snapshot_is_not_lost(
    db: Database, admin: Admin, owners: list[UUID], change: str, background: ThreadPoolExecutor
) -> None:
    """The statement sees the old version and must not act on it; a second run takes what may go."""
    owner, other, _ = owners
    _, middle, _ = write(admin, owner, EXPIRED, EXPIRED, EXPIRED)
    gate = Gate(admin)
    with gate.closed(background, lambda: purge(db, NOTES)) as running:
        change_middle(admin, change, middle, other)
    report = running.result(10)
    first = horizons(admin)
    again = purge(db, NOTES)

    left = REVISIONS[change] if change != "moved" else ([], [])
    stays_once = change == "stamped again"
    assert [("notes", 2, ["busy"] if stays_once else [])] == summary(report)
    assert {owner: 3} == first
    assert left == (revisions(admin, owner), revisions(admin, other))
    assert {owner: 9 if stays_once else 3} | ({other: 2} if change == "moved" else {}) == horizons(admin)
    assert again.complete


def test_a_row_that_somebody_locks_during_the_statement_is_skipped(
    db: Database, admin: Admin, owner: UUID, background: ThreadPoolExecutor
) -> None:
    """The run does not wait for it; its revision stays above the horizon."""
    _, last = write(admin, owner, EXPIRED, EXPIRED)
    gate = Gate(admin)
    with admin.engine.connect().execution_options(isolation_level="READ COMMITTED") as other:
        with gate.closed(background, lambda: purge(db, NOTES)) as running:
            other.execute(sa.text("SELECT FROM notes WHERE id = :id FOR KEY SHARE"), {"id": last})
        report = running.result(10)
        other.rollback()

    assert [("notes", 1, ["busy"])] == summary(report)
    assert [2] == revisions(admin, owner)
    assert {owner: 1} == horizons(admin)


@modes
def test_nobody_can_change_a_row_once_it_is_chosen(
    db: Database, admin: Admin, owner: UUID, mode: int | None, background: ThreadPoolExecutor
) -> None:
    """Neither a row nor its owner's counter, until the batch is committed."""
    write(admin, owner, EXPIRED, EXPIRED)
    gate = Gate(admin, when="FOR EACH ROW")
    with gate.closed(background, lambda: purge(db, NOTES, owners_per_statement=mode)) as running:
        row = locked_out(admin, "UPDATE notes SET deleted_at = NULL WHERE revision = 1")
        push = locked_out(admin, f"{COUNTER} FOR NO KEY UPDATE", id=owner)
        pull = locked_out(admin, f"{COUNTER} FOR KEY SHARE", id=owner)

    assert (True, True, True) == (row, push, pull)
    assert [("notes", 2, [])] == summary(running.result(10))


@modes
def test_a_pull_that_starts_during_a_batch_waits_and_sees_the_new_horizon(
    db: Database, admin: Admin, owner: UUID, mode: int | None, background: ThreadPoolExecutor
) -> None:
    """It never reads a page with rows missing under an old horizon."""
    write(admin, owner, EXPIRED, EXPIRED)
    gate = Gate(admin, when="FOR EACH ROW")

    def pull() -> int | None:
        with db.another() as other, other.begin() as unit:
            try:
                unit.guard_pull_cursor(owner, 1)
            except ResyncRequiredError:
                return 0
        return None

    with gate.closed(background, lambda: purge(db, NOTES, owners_per_statement=mode)):
        pulling = background.submit(pull)
        admin.wait_for_blocked(2)

    assert 0 == pulling.result(10)


@modes
def test_an_open_pull_keeps_its_tombstones(db: Database, admin: Admin, owner: UUID, mode: int | None) -> None:
    """Also if it began between the scan and the batch."""
    write(admin, owner, EXPIRED, EXPIRED)
    with db.another() as other, admin.engine.connect() as connection:
        pull = connection.execution_options(isolation_level="READ COMMITTED")

        def open_pull() -> None:
            pull.execute(sa.text(f"{COUNTER} FOR KEY SHARE"), {"id": owner})

        with before(other, LOCKING, open_pull) as met:
            report = purge(other, NOTES, owners_per_statement=mode)
        pull.rollback()

    assert met
    assert [("notes", 0, ["busy"])] == summary(report)
    assert ([1, 2], {}) == (revisions(admin, owner), horizons(admin))


@modes
@pytest.mark.parametrize("guard", ["guard_pull_cursor", "guard_push_cursor"])
def test_a_transaction_on_an_older_snapshot_fails_at_the_counter(
    db: Database, admin: Admin, owner: UUID, mode: int | None, guard: str
) -> None:
    """At REPEATABLE READ it would still see the old horizon, and trust it."""
    write(admin, owner, EXPIRED, EXPIRED)
    with db.begin(isolation="REPEATABLE READ") as unit:
        unit.scalar("SELECT count(*) FROM users")
        purge(db, NOTES, owners_per_statement=mode)
        with pytest.raises(sa.exc.DBAPIError) as caught:
            getattr(unit, guard)(owner, 1)
        unit.rollback()

    assert "40001" == getattr(caught.value.orig, "sqlstate", None)


@modes
def test_an_older_snapshot_fails_also_after_a_batch_with_a_blocked_row(
    db: Database, admin: Admin, owner: UUID, mode: int | None
) -> None:
    """The savepoints rewrite the counter as well."""
    _, blocked = write(admin, owner, EXPIRED, EXPIRED)
    admin.sql("CREATE TABLE extra.pins (note_id uuid REFERENCES notes)")
    admin.sql("INSERT INTO extra.pins VALUES (:id)", id=blocked)
    with db.begin(isolation="REPEATABLE READ") as unit:
        unit.scalar("SELECT count(*) FROM users")
        report = purge(db, NOTES, owners_per_statement=mode)
        with pytest.raises(sa.exc.DBAPIError) as caught:
            unit.guard_pull_cursor(owner, 1)
        unit.rollback()

    assert [("notes", 1, ["blocked"])] == summary(report)
    assert "40001" == getattr(caught.value.orig, "sqlstate", None)


def test_what_is_added_without_the_counter_waits_for_a_horizon_that_covers_it(
    db: Database, admin: Admin, owner: UUID
) -> None:
    """The batch of one owner has raised the horizon when an older tombstone of a greater revision appears."""
    write(admin, owner, EXPIRED, EXPIRED)

    def add() -> None:
        admin.sql(
            "INSERT INTO notes (id, owner_id, deleted_at, revision)"
            " VALUES (gen_random_uuid(), :owner, :instant, 1000)",
            owner=owner,
            instant=EXPIRED - timedelta(days=1),
        )

    with before(db, "DELETE FROM notes", add) as met:
        report = purge(db, NOTES, owners_per_statement=1)

    assert met
    assert 2 == report.deleted
    assert {owner: 2} == horizons(admin)
    assert [1000] == revisions(admin, owner)


@modes
def test_an_owner_who_is_erased_after_the_scan_leaves_no_horizon(
    db: Database, admin: Admin, owners: list[UUID], mode: int | None
) -> None:
    """Its tombstones are reported as orphaned, and the others go."""
    for owner in owners:
        write(admin, owner, EXPIRED)
    with before(db, LOCKING, lambda: admin.sql("DELETE FROM users WHERE id = :id", id=owners[1])) as met:
        report = purge(db, NOTES, owners_per_statement=mode)

    assert met
    assert [("notes", 2, ["orphaned"])] == summary(report)
    assert {owners[0]: 1, owners[2]: 1} == horizons(admin)


def add_book(admin: Admin, owner: UUID, *, deleted: bool) -> tuple[int, UUID]:
    """Commit a live shelf with a number of its own, and a book on it."""
    number: int = admin.scalar("SELECT count(*) + 1 FROM shelves")
    book = uuid4()
    admin.sql(
        "INSERT INTO shelves (id, owner_id, revision, region, number) VALUES (:id, :owner, :revision, 1, :n)",
        id=uuid4(),
        owner=owner,
        revision=next_revision(admin, owner),
        n=number,
    )
    admin.sql(
        "INSERT INTO books VALUES (:id, 1, :n, :instant, :revision)",
        id=book,
        n=number,
        instant=EXPIRED if deleted else None,
        revision=next_revision(admin, owner),
    )
    return number, book


def add_page(admin: Admin, book: UUID, owner: UUID) -> None:
    """Commit a tombstone of a page."""
    admin.sql(
        "INSERT INTO pages VALUES (:book, 1, :instant, :revision)",
        book=book,
        instant=EXPIRED,
        revision=next_revision(admin, owner),
    )


MOVES = {
    "shelf to another owner": (
        "UPDATE shelves SET owner_id = :other WHERE number = 1 AND CAST(:book AS uuid) IS NOT NULL"
    ),
    "book to another shelf": (
        "UPDATE books SET number = 2 WHERE id = :book AND CAST(:other AS uuid) IS NOT NULL"
    ),
}
"""Raw SQL that asks no counter."""


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("when", ["after the scan", "during the statement"])
def test_a_page_whose_parent_moves_raises_the_horizon_of_the_owner_it_then_has(
    db: Database, admin: Admin, owners: list[UUID], move: str, when: str, background: ThreadPoolExecutor
) -> None:
    """No owner's horizon rises for another's row, whichever hop of two has changed."""
    owner, other, _ = owners
    next_revision(admin, other, 50)
    _, book = add_book(admin, owner, deleted=False)
    add_book(admin, other, deleted=False)
    add_page(admin, book, owner)
    if when == "after the scan":
        late = False
        with before(db, LOCKING, lambda: admin.sql(MOVES[move], book=book, other=other)):
            purge(db, PAGES)
    else:
        gate = Gate(admin, table="pages")
        with gate.closed(background, lambda: purge(db, PAGES)) as running:
            # Whether the parents are locked by now is up to the planner.
            late = locked_out(admin, MOVES[move], book=book, other=other)
        running.result(10)
    purge(db, PAGES)

    assert 0 == admin.scalar("SELECT count(*) FROM pages")
    assert {owner if late else other: 3} == horizons(admin)


def test_a_parent_can_not_move_once_its_owner_is_locked(
    db: Database, admin: Admin, owner: UUID, background: ThreadPoolExecutor
) -> None:
    """Both hops are locked FOR SHARE until the batch is committed."""
    _, book = add_book(admin, owner, deleted=False)
    add_page(admin, book, owner)
    gate = Gate(admin, table="pages", when="FOR EACH ROW")
    with gate.closed(background, lambda: purge(db, PAGES)) as running:
        shelf = locked_out(admin, "UPDATE shelves SET owner_id = gen_random_uuid()")
        moved = locked_out(admin, "UPDATE books SET number = 2")

    assert (True, True) == (shelf, moved)
    assert [("pages", 1, [])] == summary(running.result(10))


@pytest.mark.parametrize("when", ["after the scan", "during the statement"])
def test_a_tombstone_that_gets_a_child_stays(
    db: Database, admin: Admin, owner: UUID, when: str, background: ThreadPoolExecutor
) -> None:
    """The foreign key finds a child that the statement's snapshot does not show."""
    _, book = add_book(admin, owner, deleted=True)
    if when == "after the scan":
        with before(db, LOCKING, lambda: add_page(admin, book, owner)):
            report = purge(db, BOOKS)
    else:
        gate = Gate(admin, table="books")
        with gate.closed(background, lambda: purge(db, BOOKS)) as running:
            admin.sql("INSERT INTO pages VALUES (:book, 1, NULL, 99)", book=book)
        report = running.result(10)

    assert [("books", 0, ["children"])] == summary(report)
    assert (1, 1) == (admin.scalar("SELECT count(*) FROM books"), admin.scalar("SELECT count(*) FROM pages"))
    assert {} == horizons(admin)


def test_a_tombstone_whose_child_is_not_committed_is_skipped(db: Database, admin: Admin, owner: UUID) -> None:
    """The child's foreign key holds it FOR KEY SHARE; the run does not wait for that."""
    _, book = add_book(admin, owner, deleted=True)
    with admin.engine.connect().execution_options(isolation_level="READ COMMITTED") as other:
        other.execute(sa.text("INSERT INTO pages VALUES (:book, 1, NULL, 99)"), {"book": book})
        report = purge(db, BOOKS)
        other.rollback()

    assert [("books", 0, ["busy"])] == summary(report)


@modes
def test_a_folder_that_gets_a_live_child_stays(
    db: Database, admin: Admin, owner: UUID, mode: int | None
) -> None:
    """A row of the same table is a child like any other."""
    parent, sibling, child = uuid4(), uuid4(), uuid4()
    insert = "INSERT INTO folders (id, owner_id, deleted_at, revision, parent_id) VALUES"
    for row, instant in ((parent, EXPIRED), (sibling, EXPIRED)):
        admin.sql(
            f"{insert} (:id, :owner, :instant, :revision, NULL)",
            id=row,
            owner=owner,
            instant=instant,
            revision=next_revision(admin, owner),
        )

    def add_child() -> None:
        admin.sql(f"{insert} (:id, :owner, NULL, 9, :parent)", id=child, owner=owner, parent=parent)

    with before(db, LOCKING, add_child) as met:
        report = purge(db, FOLDERS, owners_per_statement=mode)

    assert met
    assert [("folders", 1, ["children"])] == summary(report)
    assert {parent, child} == {row[0] for row in admin.sql("SELECT id FROM folders")}
    assert {owner: 2} == horizons(admin)

"""The purge: what is deleted, what the horizons become, and what a batch leaves alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects.postgresql import ARRAY

from baukit_sync import (
    BatchLimitExceededError,
    DeleteMismatchError,
    InvalidArgumentError,
    PrimaryRequiredError,
    PurgeBatch,
    PurgeReport,
    PurgeUnfinished,
    SelectorShapeError,
    TombstoneTable,
)
from tests.support.product import (
    CUTOFF,
    EXPIRED,
    ITEMS,
    LISTS,
    NOTES,
    RECENT,
    Item,
    Note,
    TodoList,
    write_note,
)
from tests.support.threads import together
from tests.support.ways import Admin, Database, Unit

SELECT_NOTES = (
    sa.select(Note.id, Note.owner_id, Note.revision)
    .where(Note.deleted_at < sa.bindparam("cutoff"))
    .order_by(Note.deleted_at, Note.id)
    .limit(sa.bindparam("limit"))
    .with_for_update(skip_locked=True)
)

SPECS = {
    "text": NOTES,
    "any": TombstoneTable(
        "notes",
        SELECT_NOTES,
        sa.delete(Note).where(Note.id == sa.any_(sa.bindparam("ids", type_=ARRAY(sa.Uuid)))),
    ),
    "expanding in": TombstoneTable(
        "notes", SELECT_NOTES, sa.delete(Note).where(Note.id.in_(sa.bindparam("ids", expanding=True)))
    ),
}


def write(db: Database, owner: UUID, *deleted_at: datetime | None) -> None:
    """Commit notes and tombstones, each with a revision of its own."""
    with db.begin() as unit:
        for instant in deleted_at:
            write_note(unit, owner, deleted_at=instant)


def purge_batch(db: Database, table: TombstoneTable = NOTES, limit: int = 10) -> PurgeBatch:
    """Commit one batch."""
    with db.begin() as unit:
        batch: PurgeBatch = unit.purge_tombstone_batch(table, CUTOFF, limit)
        return batch


def deleted(report: PurgeReport) -> dict[str, int]:
    """Return how many rows of each table are gone."""
    return {table.name: table.deleted for table in report.tables}


def notes(admin: Admin, owner: UUID) -> list[int]:
    """Return the revisions of an owner's notes, tombstones included, in order."""
    rows = admin.sql("SELECT revision FROM notes WHERE owner_id = :owner ORDER BY revision", owner=owner)
    return [revision for (revision,) in rows]


def horizons(admin: Admin) -> dict[UUID, int]:
    """Return every horizon."""
    rows = admin.sql("SELECT owner_id, horizon_revision FROM sync_purge_horizons")
    return {row.owner_id: row.horizon_revision for row in rows}


def add_list(
    unit: Unit, owner: UUID, *, deleted_at: datetime | None = None, items: int = 0
) -> tuple[UUID, list[UUID]]:
    """Insert a list, then its items, all with the same ``deleted_at``; return their ids."""
    parent, children = uuid4(), [uuid4() for _ in range(items)]
    row = {"id": parent, "owner_id": owner, "deleted_at": deleted_at, "revision": unit.next_revision(owner)}
    unit.sql(sa.insert(TodoList).values(row))
    for child in children:
        revision = unit.next_revision(owner)
        row = {"id": child, "list_id": parent, "deleted_at": deleted_at, "revision": revision}
        unit.sql(sa.insert(Item).values(row))
    return parent, children


@pytest.mark.parametrize("spec", sorted(SPECS))
def test_only_tombstones_older_than_the_cutoff_are_deleted(
    db: Database, admin: Admin, owner: UUID, spec: str
) -> None:
    """Live rows and recent tombstones stay, whether the spec is text or Core."""
    write(db, owner, EXPIRED, None, RECENT, EXPIRED)

    assert PurgeBatch(selected=2, deleted=2) == purge_batch(db, SPECS[spec])
    assert [2, 3] == notes(admin, owner)
    assert {owner: 4} == horizons(admin)


def test_the_cutoff_itself_is_not_expired(db: Database, admin: Admin, owner: UUID) -> None:
    """The boundary is exclusive, to the microsecond."""
    write(db, owner, CUTOFF, CUTOFF - timedelta(microseconds=1))

    assert PurgeBatch(selected=1, deleted=1) == purge_batch(db)
    assert [1] == notes(admin, owner)


def test_a_batch_deletes_at_most_its_limit(db: Database, admin: Admin, owner: UUID) -> None:
    """The horizon is the greatest revision that is gone, not the greatest that is expired."""
    write(db, owner, *[EXPIRED + timedelta(minutes=n) for n in range(5)])

    assert PurgeBatch(selected=2, deleted=2) == purge_batch(db, limit=2)
    assert [3, 4, 5] == notes(admin, owner)
    assert {owner: 2} == horizons(admin)


def test_nothing_expired_moves_no_horizon(db: Database, admin: Admin, owner: UUID) -> None:
    """An owner for whom nothing was purged has no horizon."""
    write(db, owner, None, RECENT)

    assert PurgeBatch(selected=0, deleted=0) == purge_batch(db)
    assert {} == horizons(admin)


def test_a_later_batch_of_lower_revisions_does_not_lower_the_horizon(
    db: Database, admin: Admin, owner: UUID
) -> None:
    """The tombstone with the lower revision may expire later."""
    write(db, owner, RECENT, EXPIRED)
    purge_batch(db)
    with db.begin() as unit:
        later = unit.purge_tombstone_batch(NOTES, RECENT + timedelta(days=1), 10)

    assert PurgeBatch(selected=1, deleted=1) == later
    assert {owner: 2} == horizons(admin)


def test_a_horizon_remembers_when_it_rose(db: Database, admin: Admin, owner: UUID) -> None:
    """``updated_at`` is the time of the batch that raised it."""
    write(db, owner, EXPIRED)
    purge_batch(db)
    admin.sql("UPDATE sync_purge_horizons SET updated_at = '2000-01-01'")
    write(db, owner, EXPIRED)
    purge_batch(db)

    assert admin.scalar("SELECT updated_at > now() - interval '1 hour' FROM sync_purge_horizons")


def test_each_owner_of_a_batch_gets_its_own_horizon(db: Database, admin: Admin, owners: list[UUID]) -> None:
    """An owner's horizon knows only the owner's own revisions."""
    a, b, c = owners
    write(db, a, EXPIRED)
    write(db, b, None, EXPIRED, EXPIRED, None)
    write(db, c, RECENT)

    assert PurgeBatch(selected=3, deleted=3) == purge_batch(db)
    assert {a: 1, b: 3} == horizons(admin)
    assert [[], [1, 4], [1]] == [notes(admin, owner) for owner in owners]


def test_the_purge_of_one_owner_leaves_the_pulls_of_another_alone(db: Database, owners: list[UUID]) -> None:
    """A horizon is per owner: an owner without a purge never has to resync."""
    write(db, owners[0], *[EXPIRED] * 5)
    write(db, owners[1], None, RECENT)
    purge_batch(db)
    with db.begin() as unit:
        assert 2 == unit.guard_pull_cursor(owners[1], 1).through


def test_a_selector_that_ignores_its_limit_deletes_nothing(db: Database, admin: Admin, owner: UUID) -> None:
    """The error names the table, what was selected, and the limit."""
    write(db, owner, EXPIRED, EXPIRED, EXPIRED)
    greedy = replace(NOTES, select=str(NOTES.select).replace("LIMIT :limit", "LIMIT :limit + 1"))
    with db.begin() as unit, pytest.raises(BatchLimitExceededError) as caught:
        unit.purge_tombstone_batch(greedy, CUTOFF, 2)

    assert ("notes", 3, 2) == caught.value.args
    assert [1, 2, 3] == notes(admin, owner)
    assert {} == horizons(admin)


@pytest.mark.parametrize(
    "columns",
    [
        "id, revision",
        "owner_id, revision",
        "id, owner_id",
        "id AS note_id, owner_id, revision",
        "NULL AS id, owner_id, revision",
        "id, NULL AS owner_id, revision",
        "id, owner_id, NULL AS revision",
        "id, owner_id, 0 AS revision",
        "id, owner_id, -1 AS revision",
        "id, owner_id, revision::text AS revision",
        "id, owner_id, revision::numeric AS revision",
        "id, owner_id, revision > 0 AS revision",
    ],
)
def test_a_selector_of_another_shape_deletes_nothing(
    db: Database, admin: Admin, owner: UUID, columns: str
) -> None:
    """Every row needs an id, an owner and a positive revision."""
    write(db, owner, EXPIRED)
    wrong = replace(NOTES, select=f"SELECT {columns} FROM notes WHERE deleted_at < :cutoff LIMIT :limit")
    with db.begin() as unit, pytest.raises(SelectorShapeError) as caught:
        unit.purge_tombstone_batch(wrong, CUTOFF, 10)

    assert "notes" == caught.value.table
    assert [1] == notes(admin, owner)


@pytest.mark.parametrize(
    ("delete", "deleted"),
    [
        ("DELETE FROM notes WHERE id = ANY(:ids) OR deleted_at IS NULL", 3),
        ("DELETE FROM notes WHERE id = ANY(:ids) AND revision < 2", 1),
        ("DELETE FROM notes WHERE id = ANY(:ids) AND false", 0),
    ],
    ids=["more", "fewer", "none"],
)
def test_a_deleter_that_deletes_other_rows_is_rolled_back(
    db: Database, admin: Admin, owner: UUID, delete: str, deleted: int
) -> None:
    """Neither the rows nor a horizon change."""
    write(db, owner, EXPIRED, EXPIRED, None)
    with pytest.raises(DeleteMismatchError) as caught:
        db.purge([replace(NOTES, delete=delete)], CUTOFF, 10)

    assert ("notes", 2, deleted) == caught.value.args
    assert [1, 2, 3] == notes(admin, owner)
    assert {} == horizons(admin)


def test_a_selector_that_returns_a_row_twice_is_refused(db: Database, admin: Admin, owner: UUID) -> None:
    """A join that multiplies rows would make the counts lie."""
    write(db, owner, EXPIRED)
    doubled = replace(
        NOTES,
        select="SELECT id, owner_id, revision FROM notes, generate_series(1, 2) WHERE deleted_at < :cutoff"
        " LIMIT :limit",
    )
    with pytest.raises(DeleteMismatchError):
        db.purge([doubled], CUTOFF, 10)

    assert [1] == notes(admin, owner)


def test_tombstones_of_an_owner_without_a_counter_stay(
    db: Database, admin: Admin, owners: list[UUID]
) -> None:
    """They stop nobody else."""
    orphan, other, _ = owners
    write(db, orphan, EXPIRED)
    write(db, other, EXPIRED)
    admin.sql("DELETE FROM sync_revisions WHERE owner_id = :owner", owner=orphan)

    assert PurgeBatch(selected=2, deleted=1) == purge_batch(db)
    assert PurgeBatch(selected=1, deleted=0) == purge_batch(db)
    assert [[1], []] == [notes(admin, orphan), notes(admin, other)]
    assert {other: 1} == horizons(admin)


def test_erasing_a_counter_erases_the_horizon_for_good(
    db: Database, admin: Admin, owners: list[UUID]
) -> None:
    """A purge after the erasure does not bring it back, and the other owner keeps its own."""
    erased, other, _ = owners
    write(db, erased, EXPIRED)
    write(db, other, EXPIRED)
    purge_batch(db)
    write(db, erased, EXPIRED)
    admin.sql("DELETE FROM sync_revisions WHERE owner_id = :owner", owner=erased)
    purge_batch(db)

    assert {other: 1} == horizons(admin)


def test_erasing_an_owner_erases_its_counter_and_horizon(db: Database, admin: Admin, owner: UUID) -> None:
    """The foreign keys cascade from the product's owner table."""
    write(db, owner, EXPIRED)
    purge_batch(db)
    admin.sql("DELETE FROM users WHERE id = :owner", owner=owner)
    with db.begin() as unit:
        assert unit.current_revision(owner) is None
        assert unit.purge_horizon(owner) is None


def test_an_owner_with_an_open_write_is_skipped_and_taken_later(
    db: Database, admin: Admin, owners: list[UUID]
) -> None:
    """A batch waits for no counter, and the busy owner does not stop the others."""
    busy, other, _ = owners
    write(db, busy, EXPIRED)
    write(db, other, EXPIRED)
    with db.begin() as writer:
        writer.next_revision(busy)
        during = purge_batch(db)
        seen = horizons(admin)
    afterwards = purge_batch(db)

    assert (PurgeBatch(selected=2, deleted=1), {other: 1}) == (during, seen)
    assert PurgeBatch(selected=1, deleted=1) == afterwards
    assert {busy: 1, other: 1} == horizons(admin)


def test_a_writer_waits_for_the_batch_that_purges_its_owner(
    db: Database, admin: Admin, owner: UUID, background: ThreadPoolExecutor
) -> None:
    """It goes on with the next number once the batch has committed."""
    write(db, owner, EXPIRED)

    def writer() -> int:
        with db.begin() as unit:
            return write_note(unit, owner)

    with db.begin() as purge:
        purge.purge_tombstone_batch(NOTES, CUTOFF, 10)
        waiting = background.submit(writer)
        admin.wait_for_blocked()

    assert 2 == waiting.result(10)


def test_a_row_that_somebody_has_locked_is_skipped(db: Database, admin: Admin, owner: UUID) -> None:
    """The horizon does not cover it before it is gone."""
    write(db, owner, EXPIRED, EXPIRED)
    with db.begin() as other:
        other.sql("SELECT FROM notes WHERE revision = 2 FOR UPDATE")
        during = purge_batch(db)
        seen = horizons(admin)
    afterwards = purge_batch(db)

    assert (PurgeBatch(selected=1, deleted=1), {owner: 1}) == (during, seen)
    assert PurgeBatch(selected=1, deleted=1) == afterwards
    assert {owner: 2} == horizons(admin)


def test_a_row_that_is_being_revived_is_not_purged(db: Database, admin: Admin, owner: UUID) -> None:
    """Neither while the transaction that revives it is open nor afterwards."""
    write(db, owner, EXPIRED)
    with db.begin() as writer:
        writer.sql("UPDATE notes SET deleted_at = NULL, revision = :next", next=writer.next_revision(owner))
        purge_batch(db)
    purge_batch(db)

    assert [2] == notes(admin, owner)


def test_a_row_that_a_batch_has_selected_can_not_be_revived(
    db: Database, admin: Admin, owner: UUID, background: ThreadPoolExecutor
) -> None:
    """Whoever wants to revive it waits, and finds no row."""
    write(db, owner, EXPIRED)

    def revive() -> int:
        with db.begin() as unit:
            return len(unit.sql("UPDATE notes SET deleted_at = NULL RETURNING id"))

    with db.begin() as purge:
        purge.purge_tombstone_batch(NOTES, CUTOFF, 10)
        waiting = background.submit(revive)
        admin.wait_for_blocked()

    assert 0 == waiting.result(10)
    assert [] == notes(admin, owner)


def test_a_batch_that_rolls_back_has_done_nothing(db: Database, admin: Admin, owner: UUID) -> None:
    """Rows and horizon change together or not at all."""
    write(db, owner, EXPIRED)
    with db.begin() as unit:
        unit.purge_tombstone_batch(NOTES, CUTOFF, 10)
        unit.rollback()

    assert [1] == notes(admin, owner)
    assert {} == horizons(admin)


def test_a_child_without_an_owner_column_counts_for_its_parents_owner(
    db: Database, admin: Admin, owners: list[UUID]
) -> None:
    """The selector joins the parent; the horizon is the parent's owner's."""
    a, b, _ = owners
    with db.begin() as unit:
        add_list(unit, a, items=1)
        _, (item, _) = add_list(unit, b, items=2)
        revision = unit.next_revision(b)
        tombstone = {"deleted_at": EXPIRED, "revision": revision}
        unit.sql(sa.update(Item).where(Item.id == item).values(tombstone))

    assert PurgeBatch(selected=1, deleted=1) == purge_batch(db, ITEMS)
    assert {b: 4} == horizons(admin)


def test_a_parent_goes_after_its_children(db: Database, admin: Admin, owner: UUID) -> None:
    """In one run, when the children's table comes first."""
    with db.begin() as unit:
        add_list(unit, owner, deleted_at=EXPIRED, items=3)
        add_list(unit, owner, deleted_at=EXPIRED)
    report = db.purge([ITEMS, LISTS], CUTOFF, 2)

    assert {"list_items": 3, "lists": 2} == deleted(report)
    assert {owner: 5} == horizons(admin)


def test_a_parent_whose_children_are_not_purged_stays(db: Database, admin: Admin, owner: UUID) -> None:
    """A recent tombstone among the items keeps its list, and only its list."""
    with db.begin() as unit:
        kept, _ = add_list(unit, owner, deleted_at=EXPIRED, items=1)
        add_list(unit, owner, deleted_at=EXPIRED, items=1)
        unit.sql(sa.update(Item).where(Item.list_id == kept).values(deleted_at=RECENT))
    report = db.purge([ITEMS, LISTS], CUTOFF, 10)

    assert {"list_items": 1, "lists": 1} == deleted(report)
    assert [(kept,)] == [tuple(row) for row in admin.sql("SELECT id FROM lists")]


@pytest.mark.parametrize(("tombstones", "batches"), [(0, 1), (3, 2), (4, 3), (5, 3)])
def test_a_drain_commits_one_transaction_for_each_batch(
    db: Database, admin: Admin, owner: UUID, tombstones: int, batches: int
) -> None:
    """It ends with the first batch that comes back short."""
    write(db, owner, *[EXPIRED] * tombstones)
    commits: list[Any] = []
    event.listen(db.sync_engine, "commit", commits.append)
    report = db.purge([NOTES], CUTOFF, 2)

    assert {"notes": tombstones} == deleted(report)
    # The first one has looked for row-level security.
    assert 1 + batches == len(commits)
    assert [] == notes(admin, owner)


def test_a_drain_ends_when_a_batch_deletes_nothing(db: Database, admin: Admin, owner: UUID) -> None:
    """It does not read the same locked batch again and again."""
    write(db, owner, EXPIRED, EXPIRED, EXPIRED)
    batches: list[Any] = []

    def stop_at_ten(connection: Any) -> None:
        batches.append(connection)
        assert len(batches) < 10

    with db.another() as other, other.begin() as writer:
        writer.next_revision(owner)
        event.listen(db.sync_engine, "commit", stop_at_ten)
        report = db.purge([NOTES], CUTOFF, 2)

    assert {"notes": 0} == deleted(report)
    # The first has looked for row-level security, the third for whom the rows belong to.
    assert 3 == len(batches)
    assert [1, 2, 3] == notes(admin, owner)


def test_a_drain_stops_at_the_first_error_and_keeps_what_was_committed(
    db: Database, admin: Admin, owner: UUID
) -> None:
    """Tables after the one that failed are not touched."""
    write(db, owner, EXPIRED, EXPIRED, EXPIRED)
    with db.begin() as unit:
        add_list(unit, owner, deleted_at=EXPIRED, items=1)
    failing = replace(ITEMS, delete="DELETE FROM list_items WHERE id = ANY(:ids) AND false")
    with pytest.raises(DeleteMismatchError):
        db.purge([NOTES, failing, LISTS], CUTOFF, 2)

    assert [] == notes(admin, owner)
    assert (1, 1) == (
        admin.scalar("SELECT count(*) FROM list_items"),
        admin.scalar("SELECT count(*) FROM lists"),
    )
    assert {owner: 3} == horizons(admin)


def test_a_drain_keeps_the_batches_before_the_one_that_failed(
    db: Database, admin: Admin, owner: UUID
) -> None:
    """An error in the third batch of a table leaves two batches purged."""
    write(db, owner, *[EXPIRED + timedelta(minutes=n) for n in range(6)])
    failing = replace(NOTES, delete="DELETE FROM notes WHERE id = ANY(:ids) AND revision < 6")
    with pytest.raises(DeleteMismatchError):
        db.purge([failing], CUTOFF, 2)

    assert [5, 6] == notes(admin, owner)
    assert {owner: 4} == horizons(admin)


def test_a_row_that_a_foreign_key_needs_is_reported_and_the_others_go(
    db: Database, admin: Admin, owner: UUID
) -> None:
    """A careless selector costs the row that it should have skipped, and nothing else."""
    with db.begin() as unit:
        parent, _ = add_list(unit, owner, deleted_at=EXPIRED, items=1)
        add_list(unit, owner, deleted_at=EXPIRED)
    careless = replace(LISTS, select=str(LISTS.select).replace("AND NOT EXISTS", "AND true OR NOT EXISTS"))
    report: PurgeReport = db.purge([careless], CUTOFF, 10)

    assert {"lists": 1} == deleted(report)
    assert ((parent,),) == report.tables[0].blocked_ids
    assert (PurgeUnfinished.BLOCKED,) == report.unfinished
    assert 0 == db.sync_engine.pool.checkedout()
    assert {owner: 3} == horizons(admin)


def test_a_database_error_stops_a_drain_as_it_was_raised(db: Database, admin: Admin, owner: UUID) -> None:
    """What the kit cannot answer is the product's to see; the connection goes back."""
    write(db, owner, EXPIRED)
    broken = replace(NOTES, delete="DELETE FROM notes WHERE id = ANY(:ids) AND 1 / (revision - 1) = 0")
    with pytest.raises(sa.exc.DBAPIError) as caught:
        db.purge([broken], CUTOFF, 10)

    assert "22012" == getattr(caught.value.orig, "sqlstate", None)
    assert 0 == db.sync_engine.pool.checkedout()
    assert {} == horizons(admin)


def test_a_run_without_tables_reports_none(db: Database) -> None:
    """There is nothing to do."""
    report: PurgeReport = db.purge([], CUTOFF, 10)

    assert () == report.tables
    assert report.complete


def test_two_drains_at_once_share_the_work(db: Database, admin: Admin, owners: list[UUID]) -> None:
    """No row is counted twice, and every horizon is the greatest revision that is gone."""
    for owner in owners:
        write(db, owner, *[EXPIRED] * 40)

    def drain() -> int:
        report: PurgeReport = db.purge([NOTES], CUTOFF, 3)
        return report.tables[0].deleted

    deleted = together(drain, drain)
    rest = drain()

    assert 120 == sum(deleted) + rest
    assert dict.fromkeys(owners, 40) == horizons(admin)


def test_a_drain_works_beside_writers_and_pulls(db: Database, admin: Admin, owners: list[UUID]) -> None:
    """Whatever was skipped meanwhile goes with a last run; nothing live is lost."""

    def write_many() -> None:
        for _ in range(10):
            for owner in owners:
                write(db, owner, EXPIRED, None)

    def pull_many() -> None:
        for _ in range(10):
            for owner in owners:
                with db.begin() as unit:
                    window = unit.guard_pull_cursor(owner, 0)
                    unit.sql("SELECT FROM notes WHERE revision <= :through", through=window.through)

    def drain_many() -> None:
        for _ in range(10):
            db.purge([NOTES], CUTOFF, 3)

    together(write_many, write_many, pull_many, drain_many)
    db.purge([NOTES], CUTOFF, 100)

    assert [list(range(2, 41, 2))] * 3 == [notes(admin, owner) for owner in owners]
    assert dict.fromkeys(owners, 39) == horizons(admin)


@pytest.mark.parametrize("isolation", ["AUTOCOMMIT", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_drain_is_read_committed_whatever_the_engine_is(
    db: Database, admin: Admin, owner: UUID, isolation: str
) -> None:
    """Each batch sees what the one before it waited for, and the engine's connections stay as they were."""
    write(db, owner, EXPIRED)
    only_read_committed = replace(
        NOTES,
        select="SELECT id, owner_id, revision FROM notes WHERE deleted_at < :cutoff"
        " AND current_setting('transaction_isolation') = 'read committed' LIMIT :limit",
    )
    with db.another(isolation_level=isolation) as other:
        report = other.purge([only_read_committed], CUTOFF, 10)
        with other.begin() as unit:
            afterwards = unit.scalar("SHOW transaction_isolation")

    assert {"notes": 1} == deleted(report)
    assert (isolation.lower() if isolation != "AUTOCOMMIT" else "read committed") == afterwards


def test_a_drain_of_a_read_only_server_gets_a_typed_error(db: Database) -> None:
    """A standby cannot purge."""
    with (
        db.another(settings={"default_transaction_read_only": "on"}) as standby,
        pytest.raises(PrimaryRequiredError),
    ):
        standby.purge([NOTES], CUTOFF, 10)


@pytest.mark.parametrize("cutoff", [CUTOFF.replace(tzinfo=None), CUTOFF.date(), CUTOFF.isoformat(), 0, None])
def test_a_cutoff_that_is_no_instant_is_refused_before_any_io(nowhere: Database, cutoff: Any) -> None:
    """A naive datetime means different instants to different drivers."""
    with nowhere.begin() as unit:
        with pytest.raises(InvalidArgumentError) as batch:
            unit.purge_tombstone_batch(NOTES, cutoff, 10)
        with pytest.raises(InvalidArgumentError) as drain:
            nowhere.purge([NOTES], cutoff, 10)

    assert ("cutoff", "cutoff") == (batch.value.argument, drain.value.argument)


@pytest.mark.parametrize("limit", [0, -1, True, 1.0, "1", None, 1_000_001])
def test_a_bad_limit_is_refused_before_any_io(nowhere: Database, limit: Any) -> None:
    """Only an integer from 1 to a million is a limit."""
    with nowhere.begin() as unit:
        with pytest.raises(InvalidArgumentError) as batch:
            unit.purge_tombstone_batch(NOTES, CUTOFF, limit)
        with pytest.raises(InvalidArgumentError) as drain:
            nowhere.purge([NOTES], CUTOFF, limit)

    assert ("limit", "limit") == (batch.value.argument, drain.value.argument)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("name", ""), ("name", None), ("select", None), ("select", b"SELECT"), ("delete", 1), ("delete", Note)],
)
def test_a_spec_of_something_else_is_refused(argument: str, value: Any) -> None:
    """A name is text, a statement text or executable."""
    with pytest.raises(InvalidArgumentError) as caught:
        replace(NOTES, **{argument: value})

    assert argument == caught.value.argument

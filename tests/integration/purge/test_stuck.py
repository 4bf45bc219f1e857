"""Whatever is stuck is skipped and reported, and the rest goes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID

import pytest
import sqlalchemy as sa

from baukit_sync import DeleteMismatchError
from tests.integration.purge.models import BOOKS, NOTES
from tests.integration.purge.world import (
    EXPIRED,
    MODES,
    each,
    horizons,
    purge,
    revisions,
    summary,
    write,
    write_many,
)
from tests.support.ways import Admin, Database

modes = pytest.mark.parametrize("mode", MODES, ids=["many", "one"])

FOREIGN_KEYS = {
    "no action": "",
    "restrict": "ON DELETE RESTRICT",
    "deferred": "DEFERRABLE INITIALLY DEFERRED",
}

WAITS = timedelta(seconds=30)
"""Longer than any test takes; a test that needs so long has failed."""


def refer(admin: Admin, *notes: UUID, key: str = "no action") -> None:
    """Let rows of a table that the metadata does not know refer to notes."""
    admin.sql(f"CREATE TABLE extra.pins (note_id uuid REFERENCES notes {FOREIGN_KEYS[key]})")
    for note in notes:
        admin.sql("INSERT INTO extra.pins VALUES (:id)", id=note)


def raise_for(admin: Admin, owner: UUID, sqlstate: str, times: int) -> None:
    """Let deletes of an owner's notes fail a given number of times."""
    # A sequence keeps its value when the transaction rolls back.
    admin.sql("CREATE SEQUENCE extra.failures")
    admin.sql(
        "CREATE FUNCTION extra.fail() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN"
        f" IF OLD.owner_id = '{owner}' AND nextval('extra.failures') <= {times} THEN"
        f" RAISE 'induced' USING ERRCODE = '{sqlstate}'; END IF; RETURN OLD; END$$"
    )
    admin.sql("CREATE TRIGGER failing BEFORE DELETE ON notes FOR EACH ROW EXECUTE FUNCTION extra.fail()")


@modes
def test_an_owner_with_an_open_pull_does_not_stop_the_others(
    db: Database, admin: Admin, owners: list[UUID], mode: int | None
) -> None:
    """It keeps its tombstones and its horizon; the run does not wait, and says that it is not complete."""
    for owner in owners:
        write(admin, owner, EXPIRED, EXPIRED)
    with db.another() as other, other.begin() as pull:
        pull.guard_pull_cursor(owners[1], 0)
        report = purge(db, NOTES, owners_per_statement=mode)

        assert 0 == admin.scalar("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    assert [("notes", 4, ["busy"])] == summary(report)
    assert (1, 2, EXPIRED) == (
        report.tables[0].busy_owners,
        report.tables[0].expired_left,
        report.tables[0].oldest_left,
    )
    assert [[], [1, 2], []] == [revisions(admin, owner) for owner in owners]
    assert {owners[0]: 2, owners[2]: 2} == horizons(admin)


@modes
def test_a_busy_owner_is_purged_when_its_pull_ends_in_time(
    db: Database, admin: Admin, owners: list[UUID], mode: int | None, background: ThreadPoolExecutor
) -> None:
    """With ``busy_wait`` the run waits behind the pull."""
    for owner in owners:
        write_many(admin, owner, 25)
    with db.another() as other, other.begin() as pull:
        pull.guard_pull_cursor(owners[1], 0)
        running = background.submit(
            lambda: purge(db, NOTES, limit=10, owners_per_statement=mode, busy_wait=WAITS)
        )
        admin.wait_for_blocked()
        during = horizons(admin)
    report = running.result(30)

    assert {owners[0]: 25, owners[2]: 25} == during
    assert [("notes", 75, [])] == summary(report)
    assert dict.fromkeys(owners, 25) == horizons(admin)


@modes
def test_the_wait_for_a_busy_owner_ends(db: Database, admin: Admin, owner: UUID, mode: int | None) -> None:
    """The database's lock timeout ends it; the owner is reported."""
    write(admin, owner, EXPIRED)
    with db.another() as other, other.begin() as pull, db.statements() as sent:
        pull.guard_pull_cursor(owner, 0)
        wait = timedelta(milliseconds=50)
        report = purge(db, NOTES, owners_per_statement=mode, busy_wait=wait)

    assert [("notes", 0, ["busy"])] == summary(report)
    assert 1 == sum(statement.startswith("SELECT set_config") for statement in sent)
    assert [1] == revisions(admin, owner)


@modes
def test_an_owner_without_a_counter_is_reported_and_stops_nobody(
    db: Database, admin: Admin, owners: list[UUID], mode: int | None
) -> None:
    """Its tombstones stay, and a wait for the busy does not wait for it."""
    for owner in owners:
        write(admin, owner, EXPIRED, EXPIRED)
    admin.sql("DELETE FROM sync_revisions WHERE owner_id = :id", id=owners[0])
    report = purge(db, NOTES, limit=3, owners_per_statement=mode, busy_wait=WAITS)

    assert [("notes", 4, ["orphaned"])] == summary(report)
    assert (2, 0, 2) == (
        report.tables[0].orphaned_rows,
        report.tables[0].busy_owners,
        report.tables[0].expired_left,
    )
    assert [1, 2] == revisions(admin, owners[0])
    assert {owners[1]: 2, owners[2]: 2} == horizons(admin)


@modes
@pytest.mark.parametrize("key", FOREIGN_KEYS)
def test_a_row_that_an_unknown_foreign_key_needs_stops_nobody(
    db: Database, admin: Admin, owners: list[UUID], mode: int | None, key: str
) -> None:
    """All others go, its id is reported, and the next run does the same again, and ends."""
    blocked = write(admin, owners[0], EXPIRED, EXPIRED, EXPIRED)[1:2]
    blocked += write(admin, owners[1], EXPIRED)
    write(admin, owners[2], EXPIRED, None)
    refer(admin, *blocked, key=key)
    report = purge(db, NOTES, owners_per_statement=mode)
    again = purge(db, NOTES, owners_per_statement=mode)

    assert [("notes", 3, ["blocked"])] == summary(report)
    assert [("notes", 0, ["blocked"])] == summary(again)
    assert ({(note,) for note in blocked}, 2) == (
        set(report.tables[0].blocked_ids),
        report.tables[0].expired_left,
    )
    assert [[2], [1], [2]] == [revisions(admin, owner) for owner in owners]
    assert {owners[0]: 3, owners[2]: 1} == horizons(admin)


@modes
def test_a_trigger_that_keeps_a_row_moves_no_horizon(
    db: Database, admin: Admin, owner: UUID, mode: int | None
) -> None:
    """Where the rows go one by one, it is counted how many did."""
    kept, blocked = write(admin, owner, EXPIRED, EXPIRED)
    refer(admin, blocked)
    admin.sql(
        "CREATE FUNCTION extra.keep() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN"
        f" IF OLD.id = '{kept}' THEN RETURN NULL; END IF; RETURN OLD; END$$"
    )
    admin.sql("CREATE TRIGGER keeping BEFORE DELETE ON notes FOR EACH ROW EXECUTE FUNCTION extra.keep()")
    with pytest.raises(DeleteMismatchError):
        purge(db, NOTES, owners_per_statement=mode)

    assert [1, 2] == revisions(admin, owner)
    assert {} == horizons(admin)


@modes
@pytest.mark.parametrize("limit", [1, 3, 10])
def test_blocked_rows_between_the_others_cost_no_batch_of_theirs(
    db: Database, admin: Admin, owner: UUID, mode: int | None, limit: int
) -> None:
    """One run deletes all that can go, however many rows one owner has."""
    write_many(admin, owner, 25)
    ids = [row[0] for row in admin.sql("SELECT id FROM notes ORDER BY revision")]
    refer(admin, ids[0], ids[1], ids[2], ids[7], ids[24])
    report = purge(db, NOTES, limit=limit, owners_per_statement=mode)

    assert [("notes", 20, ["blocked"])] == summary(report)
    assert (5, 5) == (report.tables[0].blocked_rows, report.tables[0].expired_left)
    assert [1, 2, 3, 8, 25] == revisions(admin, owner)
    assert {owner: 24} == horizons(admin)


@modes
def test_a_run_in_which_every_row_is_blocked_ends(
    db: Database, admin: Admin, owner: UUID, mode: int | None
) -> None:
    """It deletes nothing, and moves no horizon."""
    write_many(admin, owner, 7)
    admin.sql("CREATE TABLE extra.pins AS SELECT id FROM notes")
    admin.sql("ALTER TABLE extra.pins ADD FOREIGN KEY (id) REFERENCES notes")
    report = purge(db, NOTES, limit=2, owners_per_statement=mode)

    assert [("notes", 0, ["blocked"])] == summary(report)
    assert 7 == report.tables[0].blocked_rows
    assert {} == horizons(admin)


@modes
@pytest.mark.parametrize("sqlstate", ["40P01", "55P03", "40001"])
def test_a_lost_lock_costs_one_retry(
    db: Database, admin: Admin, owner: UUID, mode: int | None, sqlstate: str
) -> None:
    """The batch is done again, and the run is complete."""
    write(admin, owner, EXPIRED, EXPIRED)
    raise_for(admin, owner, sqlstate, times=1)
    report = purge(db, NOTES, owners_per_statement=mode)

    assert [("notes", 2, [])] == summary(report)
    assert {owner: 2} == horizons(admin)


@modes
@pytest.mark.parametrize("sqlstate", ["40P01", "55P03"])
def test_an_owner_who_loses_its_locks_again_and_again_stops_nobody(
    db: Database, admin: Admin, owners: list[UUID], mode: int | None, sqlstate: str
) -> None:
    """It is tried twice, and reported as busy; batches of one row show whose failed."""
    for owner in owners:
        write(admin, owner, EXPIRED)
    raise_for(admin, owners[1], sqlstate, times=1000)
    report = purge(db, NOTES, limit=1, owners_per_statement=mode)

    assert [("notes", 2, ["busy"])] == summary(report)
    assert 3 == admin.scalar("SELECT nextval('extra.failures')")
    assert {owners[0]: 1, owners[2]: 1} == horizons(admin)


@modes
@pytest.mark.parametrize("nth", range(1, 9))
def test_a_run_goes_on_when_its_backend_is_terminated(
    db: Database, admin: Admin, owners: list[UUID], mode: int | None, nth: int
) -> None:
    """Whichever statement finds the connection gone, it is sent again on another one."""
    for owner in owners:
        write(admin, owner, EXPIRED, EXPIRED)
    refer(admin, *write(admin, owners[2], EXPIRED))
    admin.sql("DELETE FROM sync_revisions WHERE owner_id = :id", id=owners[0])
    seen: list[str] = []

    def kill_at_nth(statement: str) -> None:
        seen.append(statement)
        if len(seen) == nth:
            admin.disconnect_others()

    with each(db, kill_at_nth):
        report = purge(db, NOTES, limit=3, owners_per_statement=mode)

    assert len(seen) > nth
    assert [("notes", 4, {"orphaned", "blocked"})] == [
        (name, deleted, set(why)) for name, deleted, why in summary(report)
    ]


@modes
def test_an_owner_whose_statement_loses_the_connection_costs_only_itself(
    db: Database, admin: Admin, owners: list[UUID], mode: int | None
) -> None:
    """The others go, and it is reported as out of reach."""
    for owner in owners:
        write(admin, owner, EXPIRED, EXPIRED)
    admin.sql(
        "CREATE FUNCTION extra.kill() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN"
        f" IF OLD.owner_id = '{owners[1]}' THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;"
        " RETURN OLD; END$$"
    )
    admin.sql("CREATE TRIGGER killing BEFORE DELETE ON notes FOR EACH ROW EXECUTE FUNCTION extra.kill()")
    report = purge(db, NOTES, owners_per_statement=mode)

    assert [("notes", 4, ["unreachable"])] == summary(report)
    assert 2 == report.tables[0].expired_left
    assert [[], [1, 2], []] == [revisions(admin, owner) for owner in owners]
    assert {owners[0]: 2, owners[2]: 2} == horizons(admin)


@modes
def test_a_run_that_stops_at_its_most_rows_says_what_is_left(
    db: Database, admin: Admin, owners: list[UUID], mode: int | None
) -> None:
    """Also of the owner that it stopped in: its oldest row is one that is still there."""
    for owner in owners[:2]:
        write_many(admin, owner, 10)
    report = purge(db, NOTES, limit=4, max_rows=14, owners_per_statement=mode)

    assert [("notes", 14, ["max_rows"])] == summary(report)
    assert 6 == report.tables[0].expired_left
    assert admin.scalar("SELECT min(deleted_at) FROM notes") == report.tables[0].oldest_left


def test_rows_that_lead_to_no_owner_are_reported(db: Database, admin: Admin) -> None:
    """A foreign key without a value, or with one of two, has no parent; the scan of owners passes it by."""
    for region in (None, 1):
        admin.sql("INSERT INTO books VALUES (gen_random_uuid(), :n, NULL, :at, 1)", n=region, at=EXPIRED)
    admin.sql("INSERT INTO books VALUES (gen_random_uuid(), NULL, NULL, NULL, 1)")
    report = purge(db, BOOKS)
    dry = purge(db, BOOKS, dry_run=True)

    assert [("books", 0, ["orphaned"])] == summary(report) == summary(dry)
    assert (2, 2, EXPIRED) == (
        report.tables[0].orphaned_rows,
        report.tables[0].expired_left,
        report.tables[0].oldest_left,
    )


@modes
def test_a_freed_owner_is_purged_whole_with_a_limit_above_the_reports_bound(
    db: Database, admin: Admin, owner: UUID, mode: int | None
) -> None:
    """What was counted of a busy owner up to a bound is not all that it has."""
    write_many(admin, owner, 25_000)
    pull = admin.engine.connect().execution_options(isolation_level="READ COMMITTED")
    pull.execute(sa.text("SELECT FROM sync_revisions FOR KEY SHARE"))
    looks: list[str] = []

    def free_after_the_look(statement: str) -> None:
        if "FILTER (WHERE" in statement:
            looks.append(statement)
        elif looks and pull.in_transaction():
            pull.rollback()

    with each(db, free_after_the_look):
        report = purge(db, NOTES, limit=11_000, owners_per_statement=mode, busy_wait=WAITS)
    pull.close()

    assert [("notes", 25_000, [])] == summary(report)
    assert 0 == admin.scalar("SELECT count(*) FROM notes")

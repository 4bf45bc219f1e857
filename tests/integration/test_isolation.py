"""Callers at REPEATABLE READ and SERIALIZABLE: SQLSTATE 40001 instead of a wrong answer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy.exc import DBAPIError

from baukit_sync import PullWindow
from tests.support.product import CALLS, CUTOFF, EXPIRED, NOTES, User, write_note
from tests.support.ways import Admin, Database, Unit

pytestmark = pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])

SERIALIZATION_FAILURE = "40001"


def write(db: Database, owner: UUID, *, live: int = 0, expired: int = 0) -> None:
    """Commit notes, each with a revision of its own: first the live ones, then expired tombstones."""
    with db.begin() as unit:
        for deleted_at in [None] * live + [EXPIRED] * expired:
            write_note(unit, owner, deleted_at=deleted_at)


def take_snapshot(unit: Unit) -> None:
    """Read anything: from here on the transaction sees the database as it is now."""
    unit.scalar("SELECT count(*) FROM users")


def sqlstate(call: Callable[[], Any]) -> str | None:
    """Return the SQLSTATE of the database error that a call must raise, as SQLAlchemy raised it."""
    with pytest.raises(DBAPIError) as caught:
        call()
    state: str | None = getattr(caught.value.orig, "sqlstate", None)
    return state


def pulled(unit: Unit, window: PullWindow) -> list[int]:
    """Return the revisions of the notes in a window, in order."""
    rows = unit.sql(
        "SELECT revision FROM notes WHERE owner_id = :owner AND revision > :after AND revision <= :through"
        " ORDER BY revision",
        owner=window.owner_id,
        after=window.after,
        through=window.through,
    )
    return [revision for (revision,) in rows]


def test_every_function_works_alone(db: Database, owner: UUID, isolation: str) -> None:
    """Without a concurrent writer there is nothing to serialise."""
    with db.begin(isolation=isolation) as unit:
        for call in CALLS.values():
            call(unit, owner)

        assert 10 + 2 + 2 + 1 == unit.current_revision(owner)


@pytest.mark.parametrize(
    "function",
    ["next_revision", "next_revisions", "allocate_revisions", "current_revision_for_update"],
)
def test_an_allocation_after_another_has_committed_fails_with_40001(
    db: Database, owner: UUID, isolation: str, function: str
) -> None:
    """The transaction's snapshot is older than the counter; the kit neither retries nor wraps."""
    with db.begin(isolation=isolation) as unit:
        take_snapshot(unit)
        write(db, owner, live=1)

        assert SERIALIZATION_FAILURE == sqlstate(lambda: CALLS[function](unit, owner))
        unit.rollback()


def test_an_allocation_that_waited_for_another_fails_with_40001(
    db: Database, admin: Admin, owner: UUID, isolation: str, background: ThreadPoolExecutor
) -> None:
    """Two first statements that meet: one commits, the other is told to start again."""

    def second() -> str | None:
        with db.begin(isolation=isolation) as unit:
            state = sqlstate(lambda: unit.next_revision(owner))
            unit.rollback()
            return state

    with db.begin(isolation=isolation) as unit:
        unit.next_revision(owner)
        waiting = background.submit(second)
        admin.wait_for_blocked()

    assert SERIALIZATION_FAILURE == waiting.result(10)


def test_the_whole_transaction_run_again_succeeds(db: Database, owner: UUID, isolation: str) -> None:
    """After a rollback the same session allocates from a new snapshot."""
    with db.begin(isolation=isolation) as unit:
        take_snapshot(unit)
        write(db, owner, live=1)
        sqlstate(lambda: unit.next_revision(owner))
        unit.rollback()

        assert 2 == unit.next_revision(owner)


def test_a_counter_created_after_the_snapshot_fails_with_40001(
    db: Database, owner: UUID, isolation: str
) -> None:
    """``ensure_owner`` does not report a counter that its transaction cannot see."""
    newcomer = uuid4()
    with db.begin() as unit:
        unit.add(User(id=newcomer))
    with db.begin(isolation=isolation) as unit:
        take_snapshot(unit)
        with db.begin() as other:
            other.ensure_owner(newcomer)

        assert SERIALIZATION_FAILURE == sqlstate(lambda: unit.ensure_owner(newcomer))
        unit.rollback()


def test_a_guarded_pull_reads_one_snapshot(db: Database, owner: UUID, isolation: str) -> None:
    """What commits after the guard is not in the window, and a purge is kept out."""
    write(db, owner, expired=2)
    with db.begin(isolation=isolation) as pull:
        window = pull.guard_pull_cursor(owner, 1)
        write(db, owner, live=1)
        with db.begin() as purge:
            batch = purge.purge_tombstone_batch(NOTES, CUTOFF, 10)
        rows = pulled(pull, window)

    assert (1, 2) == (window.after, window.through)
    assert 0 == batch.deleted
    assert [2] == rows


def test_a_pull_whose_snapshot_is_older_than_a_purge_loses_no_tombstone(
    db: Database, owner: UUID, isolation: str
) -> None:
    """It either returns every tombstone that it passed the check for, or is told to start again."""
    write(db, owner, expired=3)

    def pull(unit: Unit) -> list[int] | str | None:
        try:
            return pulled(unit, unit.guard_pull_cursor(owner, 1))
        except DBAPIError as error:
            unit.rollback()
            return getattr(error.orig, "sqlstate", None)

    with db.begin(isolation=isolation) as unit:
        take_snapshot(unit)
        db.purge([NOTES], CUTOFF, 10)

        assert pull(unit) in ([2, 3], SERIALIZATION_FAILURE)


def test_a_pull_that_waited_for_a_purge_loses_no_tombstone(
    db: Database, admin: Admin, owner: UUID, isolation: str, background: ThreadPoolExecutor
) -> None:
    """Its snapshot is from before the wait: it does not trust the horizon in it."""
    write(db, owner, expired=3)

    def pull() -> str | None:
        with db.begin(isolation=isolation) as unit:
            state = sqlstate(lambda: unit.guard_pull_cursor(owner, 1))
            unit.rollback()
            return state

    with db.begin() as purge:
        purge.purge_tombstone_batch(NOTES, CUTOFF, 10)
        waiting = background.submit(pull)
        admin.wait_for_blocked()

    assert SERIALIZATION_FAILURE == waiting.result(10)


def test_a_push_whose_snapshot_is_older_than_a_purge_fails_with_40001(
    db: Database, owner: UUID, isolation: str
) -> None:
    """Its snapshot still shows the old horizon, and passing would bring purged rows back."""
    write(db, owner, expired=3)
    with db.begin(isolation=isolation) as push:
        take_snapshot(push)
        db.purge([NOTES], CUTOFF, 10)

        assert SERIALIZATION_FAILURE == sqlstate(lambda: push.guard_push_cursor(owner, 1))
        push.rollback()


def test_a_push_whose_snapshot_is_older_than_a_fence_fails_with_40001(
    db: Database, owner: UUID, isolation: str
) -> None:
    """The same after ``fence_restore``."""
    write(db, owner, live=3)
    with db.begin(isolation=isolation) as push:
        take_snapshot(push)
        with db.begin() as operator:
            operator.fence_restore(gap=10)

        assert SERIALIZATION_FAILURE == sqlstate(lambda: push.guard_push_cursor(owner, 1))
        push.rollback()


def test_a_batch_whose_snapshot_is_older_than_a_revival_deletes_nothing(
    db: Database, owner: UUID, isolation: str
) -> None:
    """The row that is a tombstone in the batch's snapshot is alive."""
    write(db, owner, expired=1)
    with db.begin(isolation=isolation) as purge:
        take_snapshot(purge)
        with db.begin() as writer:
            revision = writer.next_revision(owner)
            writer.sql("UPDATE notes SET deleted_at = NULL, revision = :revision", revision=revision)

        assert SERIALIZATION_FAILURE == sqlstate(lambda: purge.purge_tombstone_batch(NOTES, CUTOFF, 10))
        purge.rollback()


def test_a_batch_purges_what_its_snapshot_shows(
    db: Database, admin: Admin, owners: list[UUID], isolation: str
) -> None:
    """A caller may purge at a higher isolation level; the horizon is the greatest revision that is gone."""
    write(db, owners[0], expired=2)
    write(db, owners[1], live=1)
    with db.begin(isolation=isolation) as purge:
        batch = purge.purge_tombstone_batch(NOTES, CUTOFF, 10)
        write(db, owners[1], expired=1)

    assert 2 == batch.deleted
    assert [(owners[0], 2)] == [
        tuple(row) for row in admin.sql("SELECT owner_id, horizon_revision FROM sync_purge_horizons")
    ]

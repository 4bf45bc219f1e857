"""Guards: cursors and horizons, the pull's window, and who waits for whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from baukit_sync import (
    CursorAheadError,
    InvalidArgumentError,
    InvalidCursorError,
    NegativeCursorError,
    PullWindow,
    ResyncRequiredError,
)
from tests.support.product import CUTOFF, EXPIRED, NOTES, Note, TodoList, User, write_note
from tests.support.threads import together
from tests.support.ways import Admin, Database, Unit


def write(db: Database, owner: UUID, *, live: int = 0, expired: int = 0) -> None:
    """Commit notes, each with a revision of its own: first the live ones, then expired tombstones."""
    with db.begin() as unit:
        for deleted_at in [None] * live + [EXPIRED] * expired:
            write_note(unit, owner, deleted_at=deleted_at)


def write_list(unit: Unit, owner: UUID) -> int:
    """Insert a list and return its revision."""
    revision: int = unit.next_revision(owner)
    unit.sql(sa.insert(TodoList).values(id=uuid4(), owner_id=owner, revision=revision))
    return revision


def bounds(window: PullWindow) -> tuple[int, int]:
    """Return where a window starts, exclusive, and ends, inclusive."""
    return window.after, window.through


def pulled(unit: Unit, model: type[Note | TodoList], window: PullWindow) -> list[int]:
    """Return the revisions of a table's rows in a window, in order."""
    rows: Sequence[Any] = unit.sql(
        sa.select(model.revision)
        .where(model.owner_id == window.owner_id)
        .where(model.revision > window.after, model.revision <= window.through)
        .order_by(model.revision)
    )
    return [revision for (revision,) in rows]


@pytest.fixture
def horizon(db: Database, owner: UUID) -> int:
    """The purge horizon of an owner whose counter is at 5: three tombstones purged, two live notes above."""
    write(db, owner, expired=3)
    write(db, owner, live=2)
    db.purge([NOTES], CUTOFF, 100)
    return 3


def test_a_window_runs_from_the_cursor_to_the_counter(db: Database, owner: UUID) -> None:
    """``after`` is the cursor, ``through`` the last revision."""
    write(db, owner, live=5)
    with db.begin() as unit:
        assert (2, 5) == bounds(unit.guard_pull_cursor(owner, 2))


def test_a_cursor_at_the_counter_gets_an_empty_window(db: Database, owner: UUID) -> None:
    """A client that has everything is served nothing, not refused."""
    write(db, owner, live=5)
    with db.begin() as unit:
        assert (5, 5) == bounds(unit.guard_pull_cursor(owner, 5))


@pytest.mark.parametrize("cursor", [0, 3, 4, 5])
def test_zero_and_every_cursor_from_the_horizon_on_are_served(
    db: Database, owner: UUID, horizon: int, cursor: int
) -> None:
    """A cursor at the horizon has seen the purged tombstones; 0 has nothing to lose."""
    with db.begin() as unit:
        assert (cursor, 5) == bounds(unit.guard_pull_cursor(owner, cursor))
        unit.guard_push_cursor(owner, cursor)


@pytest.mark.parametrize("guard", ["guard_pull_cursor", "guard_push_cursor"])
@pytest.mark.parametrize("cursor", [1, 2])
def test_a_cursor_below_the_horizon_must_resync(
    db: Database, owner: UUID, horizon: int, cursor: int, guard: str
) -> None:
    """The error carries the horizon, and the transaction is not aborted."""
    with db.begin() as unit:
        with pytest.raises(ResyncRequiredError) as caught:
            getattr(unit, guard)(owner, cursor)

        assert horizon == caught.value.horizon_revision
        assert 5 == unit.current_revision(owner)


def test_the_pull_that_answers_a_resync_is_served_from_then_on(
    db: Database, owner: UUID, horizon: int
) -> None:
    """A client told to resync does not loop: from 0 it gets every live row and a cursor that is accepted."""
    with db.begin() as unit:
        window = unit.guard_pull_cursor(owner, 0)
        rows = pulled(unit, Note, window)
    with db.begin() as unit:
        following = unit.guard_pull_cursor(owner, window.through)

    assert [4, 5] == rows
    assert (5, 5) == bounds(following)


@pytest.mark.parametrize("guard", ["guard_pull_cursor", "guard_push_cursor"])
def test_a_cursor_ahead_of_the_counter_is_refused(db: Database, owner: UUID, guard: str) -> None:
    """It was issued by another database, or to another owner."""
    write(db, owner, live=5)
    with db.begin() as unit, pytest.raises(CursorAheadError) as caught:
        getattr(unit, guard)(owner, 6)

    assert 5 == caught.value.current_revision


def test_a_cursor_ahead_of_the_counter_gets_an_empty_window_on_request(db: Database, owner: UUID) -> None:
    """The next cursor does not go back to the counter."""
    write(db, owner, live=5)
    with db.begin() as unit:
        assert (9, 9) == bounds(unit.guard_pull_cursor(owner, 9, allow_ahead=True))


def test_allow_ahead_does_not_serve_a_cursor_below_the_horizon(
    db: Database, owner: UUID, horizon: int
) -> None:
    """It waives one check only."""
    with db.begin() as unit, pytest.raises(ResyncRequiredError):
        unit.guard_pull_cursor(owner, 1, allow_ahead=True)


def test_an_unknown_owner_stands_at_zero(db: Database) -> None:
    """Cursor 0 gets an empty window, and no counter is created."""
    stranger = uuid4()
    with db.begin() as unit:
        unit.guard_push_cursor(stranger, 0)

        assert (0, 0) == bounds(unit.guard_pull_cursor(stranger, 0))
        assert unit.current_revision(stranger) is None


@pytest.mark.parametrize("guard", ["guard_pull_cursor", "guard_push_cursor"])
def test_a_cursor_of_an_unknown_owner_is_ahead(db: Database, guard: str) -> None:
    """A cursor kept from before an erasure is never answered with silence."""
    with db.begin() as unit, pytest.raises(CursorAheadError) as caught:
        getattr(unit, guard)(uuid4(), 1)

    assert 0 == caught.value.current_revision


@pytest.mark.parametrize("guard", ["guard_pull_cursor", "guard_push_cursor"])
@pytest.mark.parametrize(
    "cursor", ["", "x", "-1", "1", "1e3", 1.5, 1.0, True, False, None, b"1", 2**53, 2**63]
)
def test_a_malformed_cursor_is_refused_before_any_io(nowhere: Database, cursor: Any, guard: str) -> None:
    """Nothing but an integer up to the greatest safe one is a cursor."""
    with nowhere.begin() as unit, pytest.raises(InvalidCursorError):
        getattr(unit, guard)(uuid4(), cursor)


@pytest.mark.parametrize("guard", ["guard_pull_cursor", "guard_push_cursor"])
def test_a_negative_cursor_is_refused_before_any_io(nowhere: Database, guard: str) -> None:
    """It does not mean the beginning."""
    with nowhere.begin() as unit, pytest.raises(NegativeCursorError):
        getattr(unit, guard)(uuid4(), -1)


@pytest.mark.parametrize("gap", [0, -1, True, 1.0, "1", None, 10**12 + 1])
def test_a_bad_gap_is_refused_before_any_io(nowhere: Database, gap: Any) -> None:
    """Only an integer from 1 to a million million is a gap."""
    with nowhere.begin() as unit, pytest.raises(InvalidArgumentError) as caught:
        unit.fence_restore(gap=gap)

    assert "gap" == caught.value.argument


def test_a_pull_over_two_tables_loses_nothing_that_commits_in_between(db: Database, owner: UUID) -> None:
    """A writer puts one row into the table that was read already and one into the table that comes next."""
    write(db, owner, live=1)
    with db.begin() as pull:
        window = pull.guard_pull_cursor(owner, 0)
        first = pulled(pull, Note, window)
        with db.begin() as writer:
            write_note(writer, owner)
            write_list(writer, owner)
        first += pulled(pull, TodoList, window)
    with db.begin() as pull:
        window = pull.guard_pull_cursor(owner, window.through)
        second = pulled(pull, Note, window) + pulled(pull, TodoList, window)

    assert ([1], [2, 3]) == (first, second)


def test_clients_that_pull_while_others_write_miss_nothing(db: Database, owner: UUID) -> None:
    """Whatever window a pull gets, it is full: the windows add up to 1..n."""
    done = Event()

    def write_many() -> list[int]:
        for _ in range(25):
            with db.begin() as unit:
                write_note(unit, owner)
                write_list(unit, owner)
        return []

    def write_all() -> list[int]:
        together(*[write_many] * 4)
        done.set()
        return []

    def pull_all() -> list[int]:
        received: list[int] = []
        last_round = False
        while not last_round:
            last_round = done.is_set()
            with db.begin() as unit:
                window = unit.guard_pull_cursor(owner, len(received))
                received += sorted(pulled(unit, Note, window) + pulled(unit, TodoList, window))
        return received

    _, received = together(write_all, pull_all)

    assert list(range(1, 201)) == received


def test_an_open_pull_does_not_block_a_writer(db: Database, owner: UUID) -> None:
    """The guard's lock lets ``next_revision`` through."""
    with db.begin() as pull:
        pull.guard_pull_cursor(owner, 0)
        with db.begin() as writer:
            writer.sql("SET LOCAL lock_timeout = '500ms'")

            assert 1 == write_note(writer, owner)


def test_an_open_write_does_not_block_a_pull(db: Database, owner: UUID) -> None:
    """The window ends below what is not committed yet."""
    with db.begin() as writer:
        write_note(writer, owner)
        with db.begin() as pull:
            pull.sql("SET LOCAL lock_timeout = '500ms'")

            assert 0 == pull.guard_pull_cursor(owner, 0).through


def test_pulls_of_one_owner_do_not_wait_for_each_other(db: Database, owner: UUID) -> None:
    """They share the lock."""
    with db.begin() as first:
        first.guard_pull_cursor(owner, 0)
        with db.begin() as second:
            second.sql("SET LOCAL lock_timeout = '500ms'")

            assert 0 == second.guard_pull_cursor(owner, 0).through


def test_nobody_waits_for_the_purge_of_another_owner(db: Database, owners: list[UUID]) -> None:
    """Neither a writer nor a pull nor a push of an owner that the batch has not touched."""
    purged, other, _ = owners
    write(db, purged, expired=1)
    with db.begin() as purge:
        batch = purge.purge_tombstone_batch(NOTES, CUTOFF, 10)
        with db.begin() as unit:
            unit.sql("SET LOCAL lock_timeout = '500ms'")
            unit.guard_pull_cursor(other, 0)
            unit.guard_push_cursor(other, 0)
            write_note(unit, other)

    assert 1 == batch.deleted


def test_an_open_pull_keeps_the_purge_of_its_owner_out(db: Database, owners: list[UUID]) -> None:
    """The purge skips the owner, takes another's tombstones, and this owner's once the pull has ended."""
    pulling, other, _ = owners
    write(db, pulling, expired=2)
    write(db, other, expired=1)
    with db.begin() as pull:
        window = pull.guard_pull_cursor(pulling, 1)
        with db.begin() as purge:
            during = purge.purge_tombstone_batch(NOTES, CUTOFF, 10)
        rows = pulled(pull, Note, window)
    with db.begin() as purge:
        afterwards = purge.purge_tombstone_batch(NOTES, CUTOFF, 10)

    assert (3, 1) == (during.selected, during.deleted)
    assert [2] == rows
    assert (2, 2) == (afterwards.selected, afterwards.deleted)


@pytest.mark.parametrize("guard", ["guard_pull_cursor", "guard_push_cursor"])
def test_a_guard_that_had_to_wait_for_a_purge_sees_the_new_horizon(
    db: Database, admin: Admin, owner: UUID, background: ThreadPoolExecutor, guard: str
) -> None:
    """The horizon is read after the wait, so the cursor that the purge has overtaken is refused."""
    write(db, owner, expired=3)

    def guarded() -> None:
        with db.begin() as unit:
            getattr(unit, guard)(owner, 1)

    with db.begin() as purge:
        purge.purge_tombstone_batch(NOTES, CUTOFF, 10)
        waiting = background.submit(guarded)
        admin.wait_for_blocked()

    error = waiting.exception(10)
    assert isinstance(error, ResyncRequiredError)
    assert 3 == error.horizon_revision


@pytest.mark.parametrize("guard", ["guard_pull_cursor", "guard_push_cursor"])
def test_a_guard_that_had_to_wait_for_a_purge_sees_a_horizon_rise(
    db: Database, admin: Admin, owner: UUID, background: ThreadPoolExecutor, guard: str
) -> None:
    """As above, for an owner that had a horizon before."""
    write(db, owner, expired=1)
    db.purge([NOTES], CUTOFF, 10)
    write(db, owner, expired=2)

    def guarded() -> None:
        with db.begin() as unit:
            getattr(unit, guard)(owner, 2)

    with db.begin() as purge:
        purge.purge_tombstone_batch(NOTES, CUTOFF, 10)
        waiting = background.submit(guarded)
        admin.wait_for_blocked()

    error = waiting.exception(10)
    assert isinstance(error, ResyncRequiredError)
    assert 3 == error.horizon_revision


def test_a_guard_goes_on_when_the_purge_it_waited_for_rolls_back(
    db: Database, admin: Admin, owner: UUID, background: ThreadPoolExecutor
) -> None:
    """The tombstone that was not purged after all is pulled."""
    write(db, owner, expired=2)

    def pull() -> list[int]:
        with db.begin() as unit:
            return pulled(unit, Note, unit.guard_pull_cursor(owner, 1))

    with db.begin() as purge:
        purge.purge_tombstone_batch(NOTES, CUTOFF, 10)
        waiting = background.submit(pull)
        admin.wait_for_blocked()
        purge.rollback()

    assert [2] == waiting.result(10)


def test_a_refused_push_leaves_nothing_behind(db: Database, admin: Admin, owner: UUID, horizon: int) -> None:
    """The rows that a stale client would bring back are not written."""

    def push() -> None:
        with db.begin() as unit:
            unit.guard_push_cursor(owner, 2)
            write_note(unit, owner)

    with pytest.raises(ResyncRequiredError):
        push()

    assert 5 == admin.scalar("SELECT last_revision FROM sync_revisions WHERE owner_id = :id", id=owner)
    assert 2 == admin.scalar("SELECT count(*) FROM notes")


def test_two_pushes_of_one_owner_do_not_deadlock(
    db: Database, admin: Admin, owner: UUID, background: ThreadPoolExecutor
) -> None:
    """The second waits at its guard, so neither holds a lock that the other needs to allocate."""

    def push() -> int:
        with db.begin() as unit:
            unit.guard_push_cursor(owner, 0)
            return write_note(unit, owner)

    with db.begin() as unit:
        unit.guard_push_cursor(owner, 0)
        second = background.submit(push)
        admin.wait_for_blocked()
        first = write_note(unit, owner)

    assert (1, 2) == (first, second.result(10))


def test_an_open_push_lets_pulls_through_and_keeps_the_purge_out(db: Database, owner: UUID) -> None:
    """Between its guard and its end a push counts as a writer."""
    write(db, owner, expired=1)
    with db.begin() as push:
        push.guard_push_cursor(owner, 1)
        with db.begin() as unit:
            unit.sql("SET LOCAL lock_timeout = '500ms'")
            window = unit.guard_pull_cursor(owner, 0)
        with db.begin() as unit:
            batch = unit.purge_tombstone_batch(NOTES, CUTOFF, 10)

    assert 1 == window.through
    assert (1, 0) == (batch.selected, batch.deleted)


def test_there_is_no_horizon_before_the_first_purge(db: Database, owner: UUID) -> None:
    """Not 0: nothing was ever purged."""
    write(db, owner, live=1)
    with db.begin() as unit:
        assert unit.purge_horizon(owner) is None
        assert unit.purge_horizon(uuid4()) is None


def test_the_horizon_can_be_read_while_the_counter_is_locked(db: Database, owner: UUID, horizon: int) -> None:
    """``purge_horizon`` locks nothing and waits for nothing."""
    with db.begin() as writer:
        writer.next_revision(owner)
        with db.begin() as unit:
            unit.sql("SET LOCAL lock_timeout = '500ms'")

            assert horizon == unit.purge_horizon(owner)


def test_after_a_restore_every_old_cursor_must_resync(db: Database, owner: UUID, horizon: int) -> None:
    """Cursors below and above the restored counter alike, up to the gap; then the client is served again."""
    with db.begin() as unit:
        unit.fence_restore(gap=1000)
    refused = []
    for cursor in (1, horizon, 5, 6, 500, 1004):
        with db.begin() as unit, pytest.raises(ResyncRequiredError) as caught:
            unit.guard_pull_cursor(owner, cursor)
        refused.append(caught.value.horizon_revision)
    with db.begin() as unit:
        window = unit.guard_pull_cursor(owner, 0)
        rows = pulled(unit, Note, window)
    with db.begin() as unit:
        following = unit.guard_pull_cursor(owner, window.through)

    assert [1005] * 6 == refused
    assert ([4, 5], 1005) == (rows, window.through)
    assert (1005, 1005) == bounds(following)


def test_a_fence_counts_the_owners_and_raises_each_counter(
    db: Database, admin: Admin, owners: list[UUID]
) -> None:
    """Owners with and without revisions, with and without a horizon."""
    write(db, owners[0], expired=3)
    write(db, owners[1], live=2)
    db.purge([NOTES], CUTOFF, 10)
    with db.begin() as unit:
        unit.add(User(id=uuid4()))
        fenced = unit.fence_restore(gap=10)

    rows = admin.sql(
        "SELECT owner_id, last_revision, horizon_revision FROM sync_revisions"
        " LEFT JOIN sync_purge_horizons USING (owner_id) ORDER BY owner_id"
    )
    assert 3 == fenced
    assert [(owners[0], 13, 13), (owners[1], 12, 12), (owners[2], 10, 10)] == [tuple(row) for row in rows]


def test_a_fence_never_lowers_a_horizon(db: Database, admin: Admin, owner: UUID, horizon: int) -> None:
    """A horizon that stands above its counter, in a database that was mended by hand, stays."""
    admin.sql("UPDATE sync_purge_horizons SET horizon_revision = 90")
    with db.begin() as unit:
        unit.fence_restore(gap=10)

        assert 90 == unit.purge_horizon(owner)


def test_a_fence_of_a_database_without_owners_counts_none(db: Database) -> None:
    """There is nothing to fence."""
    with db.begin() as unit:
        assert 0 == unit.fence_restore(gap=10)


def test_a_fence_does_not_deadlock_with_writers_of_several_owners(
    db: Database, admin: Admin, owners: list[UUID]
) -> None:
    """Both lock the counters in owner order."""

    def write_many(order: Callable[[list[UUID]], Any]) -> None:
        for _ in range(15):
            with db.begin() as unit:
                unit.allocate_revisions(dict.fromkeys(order(owners), 1))

    def fence_many() -> None:
        for _ in range(15):
            with db.begin() as unit:
                unit.fence_restore(gap=1000)

    together(partial(write_many, list), partial(write_many, reversed), fence_many, fence_many)

    counters = admin.sql("SELECT last_revision FROM sync_revisions")
    assert [(30 * 1000 + 30,)] * 3 == [tuple(row) for row in counters]


def test_a_fence_locks_the_counters_in_owner_order_whatever_their_place(
    db: Database, admin: Admin, backwards: list[UUID], background: ThreadPoolExecutor
) -> None:
    """A writer takes the counters in key order while the fence finds them in the opposite physical order."""
    low, high = backwards

    def write_to_both() -> None:
        with db.begin() as unit:
            unit.allocate_revisions({high: 1, low: 1})

    def fence() -> None:
        with db.begin() as unit:
            unit.sql("SET LOCAL enable_indexscan = off")
            unit.fence_restore(gap=10)

    with db.begin() as holds_high:
        holds_high.next_revision(high)
        with db.begin() as holds_low:
            holds_low.next_revision(low)
            ended = [background.submit(write_to_both), background.submit(fence)]
            admin.wait_for_blocked(2)
    for waiting in ended:
        waiting.result(10)

    counters = admin.sql("SELECT last_revision FROM sync_revisions")
    assert [(12,), (12,)] == [tuple(row) for row in counters]

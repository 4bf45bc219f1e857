"""The guard of several owners: an answer for each, in two statements, and who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from anyio.from_thread import BlockingPortal

from baukit_sync import (
    CursorAheadError,
    InvalidArgumentError,
    InvalidCursorError,
    NegativeCursorError,
    PrimaryRequiredError,
    PullWindow,
    ResyncRequiredError,
    SyncError,
    UnsafeTransactionError,
)
from tests.support.product import CUTOFF, EXPIRED, NOTES, Note, User, write_note
from tests.support.threads import together
from tests.support.ways import WAYS, Admin, Database

OWNER_IDS: dict[str, list[Any]] = {
    "uuid": [uuid4(), UUID(int=0), UUID(int=2**128 - 1)],
    "bigint": [7, -(2**63), 2**63 - 1],
    "text": ["b", "", "{o'brien}"],
}


def write(db: Database, owner: UUID, *, live: int = 0, expired: int = 0) -> None:
    """Commit expired tombstones, then live notes, each with a revision of its own."""
    with db.begin() as unit:
        for deleted_at in [EXPIRED] * expired + [None] * live:
            write_note(unit, owner, deleted_at=deleted_at)


def add_owners(db: Database, count: int) -> list[UUID]:
    """Commit users with counters at 1, and return their ids."""
    users = [User(id=uuid4()) for _ in range(count)]
    ids = [user.id for user in users]
    with db.begin() as unit:
        unit.add(*users)
        for owner in ids:
            unit.ensure_owner(owner)
        unit.allocate_revisions(dict.fromkeys(ids, 1))
    return ids


def test_each_owner_gets_the_answer_of_a_single_guard(db: Database, owners: list[UUID]) -> None:
    """A stale, an ahead, an unknown and a fine cursor do not spoil each other."""
    stale, fine, ahead = owners
    write(db, stale, expired=3, live=1)
    db.purge([NOTES], CUTOFF, 10)
    for owner in (fine, ahead):
        write(db, owner, live=2)
    fresh, unknown = uuid4(), uuid4()
    cursors = {stale: 2, fine: 1, ahead: 3, fresh: 0, unknown: 4}
    with db.begin() as unit:
        answers = unit.guard_pull_cursors(cursors)

    facts = {
        owner: answer if isinstance(answer, PullWindow) else (type(answer), answer.args)
        for owner, answer in answers.items()
    }
    assert {
        stale: (ResyncRequiredError, (3,)),
        fine: PullWindow(fine, after=1, through=2),
        ahead: (CursorAheadError, (2,)),
        fresh: PullWindow(fresh, after=0, through=0, rebuild=0),
        unknown: (CursorAheadError, (0,)),
    } == facts
    assert list(cursors) == list(answers)


@pytest.mark.parametrize("cursor", [0, 1, 3, 4, 5, 6])
def test_an_answer_does_not_depend_on_how_many_are_asked_for(
    db: Database, owners: list[UUID], cursor: int
) -> None:
    """Around the horizon and the counter, alone or among others."""
    write(db, owners[0], expired=3, live=2)
    db.purge([NOTES], CUTOFF, 10)
    with db.begin() as unit:
        answers = unit.guard_pull_cursors({owners[1]: 0, owners[0]: cursor, owners[2]: 0})
    try:
        with db.begin() as unit:
            alone = unit.guard_pull_cursor(owners[0], cursor)
    except SyncError as error:
        alone = error

    assert repr(alone) == repr(answers[owners[0]])


def test_a_rebuild_counts_for_its_owner_only(db: Database, owners: list[UUID]) -> None:
    """A client that started from 0 goes on below the horizon; the others resync."""
    for owner in owners[:2]:
        write(db, owner, expired=3, live=2)
    db.purge([NOTES], CUTOFF, 10)
    with db.begin() as unit:
        answers = unit.guard_pull_cursors(dict.fromkeys(owners, 0))
        page = unit.pull_page(answers.values(), [Note], limit=1)
        cursors = {owners[0]: 1, owners[1]: 1}
        following = unit.guard_pull_cursors(cursors, rebuilds={owners[0]: page.rebuilds[owners[0]]})

    assert PullWindow(owners[0], after=1, through=5, rebuild=5) == following[owners[0]]
    assert isinstance(following[owners[1]], ResyncRequiredError)


def test_nobody_gets_nothing(nowhere: Database) -> None:
    """There is nothing to ask the database for."""
    with nowhere.begin() as unit:
        assert {} == unit.guard_pull_cursors({})


@pytest.mark.parametrize("count", [1, 2, 50])
def test_any_number_of_owners_takes_two_statements(db: Database, count: int) -> None:
    """One locks the counters, one reads the horizons."""
    owners = add_owners(db, count)
    with db.begin() as unit, db.statements() as sent:
        answers = unit.guard_pull_cursors(dict.fromkeys(owners, 1))

    assert {owner: PullWindow(owner, 1, 1) for owner in owners} == answers
    assert 2 == len(sent)


def test_any_number_of_owners_has_one_place_in_the_cache(db: Database) -> None:
    """The statements' shape does not depend on how many there are."""
    owners = add_owners(db, 30)
    sizes = set()
    with db.begin() as unit:
        for count in range(1, 31):
            unit.guard_pull_cursors(dict.fromkeys(owners[:count], 1))
            sizes.add(len(db.sync_engine._compiled_cache))

    assert 1 == len(sizes)


@pytest.mark.parametrize(
    ("cursor", "error"),
    [
        (-1, NegativeCursorError),
        (True, InvalidCursorError),
        (1.0, InvalidCursorError),
        ("1", InvalidCursorError),
        (None, InvalidCursorError),
        (2**53, InvalidCursorError),
    ],
)
def test_one_bad_cursor_is_refused_before_any_io(
    nowhere: Database, cursor: Any, error: type[SyncError]
) -> None:
    """It is a broken request, not an owner that has to resync."""
    with nowhere.begin() as unit, pytest.raises(error):
        unit.guard_pull_cursors({uuid4(): 0, uuid4(): cursor, uuid4(): 5})


@pytest.mark.parametrize("owner", [None, True, 1.5, 2**63, "\x00", b"x"])
def test_one_bad_owner_is_refused_before_any_io(nowhere: Database, owner: Any) -> None:
    """No owner column can hold it."""
    with nowhere.begin() as unit, pytest.raises(InvalidArgumentError) as caught:
        unit.guard_pull_cursors({uuid4(): 0, owner: 0})

    assert "owner_id" == caught.value.argument


@pytest.mark.parametrize("rebuild", [4, -1, True, "9", 2**53])
def test_one_bad_rebuild_is_refused_before_any_io(nowhere: Database, rebuild: Any) -> None:
    """It is an integer from its cursor on."""
    owner = uuid4()
    with nowhere.begin() as unit, pytest.raises(InvalidArgumentError) as caught:
        unit.guard_pull_cursors({owner: 5}, rebuilds={owner: rebuild})

    assert "rebuild" == caught.value.argument


def test_autocommit_is_refused_before_anything_is_sent(db: Database, owners: list[UUID]) -> None:
    """The locks would be gone before the rows are read."""
    with (
        db.begin(isolation="AUTOCOMMIT") as unit,
        db.statements() as sent,
        pytest.raises(UnsafeTransactionError),
    ):
        unit.guard_pull_cursors(dict.fromkeys(owners, 0))

    assert [] == sent


def test_a_read_only_transaction_is_refused(db: Database, owners: list[UUID]) -> None:
    """The counters cannot be locked, so nothing may be read."""
    with db.begin() as unit:
        unit.sql("SET TRANSACTION READ ONLY")
        with pytest.raises(PrimaryRequiredError):
            unit.guard_pull_cursors(dict.fromkeys(owners, 0))
        unit.rollback()


def test_an_open_pull_of_several_owners_keeps_the_purge_of_each_out(db: Database, owners: list[UUID]) -> None:
    """Until the pull's transaction ends; writers go on."""
    for owner in owners:
        write(db, owner, expired=1)
    with db.begin() as pull:
        pull.guard_pull_cursors(dict.fromkeys(owners[:2], 1))
        with db.begin() as unit:
            batch = unit.purge_tombstone_batch(NOTES, CUTOFF, 10)
        with db.begin() as unit:
            unit.sql("SET LOCAL lock_timeout = '500ms'")
            unit.allocate_revisions(dict.fromkeys(owners, 1))

    assert (3, 1) == (batch.selected, batch.deleted)


def test_a_guard_that_had_to_wait_for_a_purge_sees_its_horizon(
    db: Database, admin: Admin, owners: list[UUID], background: ThreadPoolExecutor
) -> None:
    """The horizons are read after the locks were granted."""
    for owner in owners:
        write(db, owner, expired=3)

    def guarded() -> Any:
        with db.begin() as unit:
            return unit.guard_pull_cursors(dict.fromkeys(owners, 1))

    with db.begin() as purge:
        purge.purge_tombstone_batch(NOTES, CUTOFF, 10)
        waiting = background.submit(guarded)
        admin.wait_for_blocked()

    assert [ResyncRequiredError(3).args] * 3 == [answer.args for answer in waiting.result(10).values()]


def test_counters_are_locked_in_owner_order_whatever_their_place(
    db: Database, admin: Admin, background: ThreadPoolExecutor
) -> None:
    """Who erases both owners in key order never meets a pull that holds one and waits for the other."""
    high, low = sorted([uuid4(), uuid4()], reverse=True)
    with db.begin() as unit:
        for owner in (high, low):
            unit.add(User(id=owner))
            unit.ensure_owner(owner)

    def guard() -> None:
        with db.begin() as unit:
            unit.sql("SET LOCAL enable_indexscan = off")
            unit.sql("SET LOCAL enable_bitmapscan = off")
            unit.guard_pull_cursors({high: 0, low: 0})

    lock = "SELECT FROM sync_revisions WHERE owner_id = :owner FOR UPDATE"
    with db.begin() as eraser:
        eraser.sql(lock, owner=low)
        waiting = background.submit(guard)
        admin.wait_for_blocked()
        eraser.sql(f"{lock} NOWAIT", owner=high)
    waiting.result(10)


def test_pulls_in_any_order_do_not_deadlock_with_writers_and_a_purge(
    db: Database, owners: list[UUID]
) -> None:
    """Two devices ask for the same owners the other way round while others write, push and purge."""
    for owner in owners:
        write(db, owner, expired=40)

    def pull(order: list[UUID]) -> int:
        rows = 0
        for _ in range(20):
            with db.begin() as unit:
                answers = unit.guard_pull_cursors(dict.fromkeys(order, 0))
                rows += len(unit.pull_page(answers.values(), [Note], limit=10).changes)
        return rows

    def write_many(order: list[UUID]) -> int:
        for _ in range(20):
            with db.begin() as unit:
                unit.allocate_revisions(dict.fromkeys(order, 1))
        return 20

    def purge() -> int:
        for _ in range(20):
            with db.begin() as unit:
                unit.purge_tombstone_batch(NOTES, CUTOFF, 3)
        return 20

    backwards = owners[::-1]
    together(
        *(partial(pull, order) for order in (owners, backwards)),
        *(partial(write_many, order) for order in (owners, backwards)),
        purge,
    )

    with db.begin() as unit:
        assert [80, 80, 80] == [unit.current_revision(owner) for owner in owners]


@pytest.fixture(params=sorted(OWNER_IDS))
def kind(request: pytest.FixtureRequest) -> str:
    """The name of an owner type."""
    return str(request.param)


@pytest.fixture(params=WAYS)
def typed(
    request: pytest.FixtureRequest, kind: str, database_url: sa.URL, portal: BlockingPortal
) -> Iterator[Database]:
    """The test's database, with the kit's tables for owners of that type."""
    settings = {"search_path": f"owners_{kind}"}
    database = Database(request.param, database_url, portal, settings=settings)
    yield database
    database.dispose()


def test_owner_ids_are_uuids_integers_or_text(typed: Database, kind: str) -> None:
    """The answers are found under the ids that were given."""
    first, second, third = OWNER_IDS[kind]
    with typed.begin() as unit:
        for owner in (first, second):
            unit.ensure_owner(owner)
        unit.next_revisions(first, 5)
        unit.next_revisions(second, 2**40)
        unit.sql(
            "INSERT INTO sync_purge_horizons (owner_id, horizon_revision) VALUES (:owner, :horizon)",
            owner=second,
            horizon=2**35,
        )
        answers = unit.guard_pull_cursors({second: 2**34, third: 0, first: 4})

    assert PullWindow(first, 4, 5) == answers[first]
    assert 2**35 == answers[second].horizon_revision
    assert PullWindow(third, 0, 0, 0) == answers[third]

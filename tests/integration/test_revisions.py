"""Counters: revisions without gaps or duplicates, in the order of commits."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from baukit_sync import (
    InvalidArgumentError,
    PrimaryRequiredError,
    UnknownOwnerError,
    UnsafeTransactionError,
)
from tests.support.product import (
    ALLOCATIONS,
    ALWAYS_FLUSH,
    CALLS,
    EXPIRED,
    READERS,
    Note,
    User,
    write_note,
)
from tests.support.threads import together
from tests.support.ways import HANDLES, Admin, Database, Unit

WRITERS = 8
ROUNDS = 12


def revisions_in_notes(admin: Admin, owner: UUID) -> list[int]:
    """Return the revisions of an owner's notes, in order."""
    rows = admin.sql("SELECT revision FROM notes WHERE owner_id = :owner ORDER BY revision", owner=owner)
    return [revision for (revision,) in rows]


def counter(admin: Admin, owner: UUID) -> int | None:
    """Return an owner's committed counter."""
    return admin.scalar("SELECT last_revision FROM sync_revisions WHERE owner_id = :owner", owner=owner)


def test_concurrent_writers_of_an_owner_leave_no_gap_and_no_duplicate(
    db: Database, admin: Admin, owner: UUID
) -> None:
    """Eight writers of one owner, each with many transactions, get 1..n."""

    def write_many() -> None:
        for _ in range(ROUNDS):
            with db.begin() as unit:
                write_note(unit, owner)

    together(*[write_many] * WRITERS)

    assert list(range(1, WRITERS * ROUNDS + 1)) == revisions_in_notes(admin, owner)


def test_a_revision_is_visible_only_when_every_lower_one_is(db: Database, admin: Admin, owner: UUID) -> None:
    """Whoever looks while eight writers commit sees the revisions 1..n, whatever n is at that moment."""
    done = Event()

    def write_many() -> None:
        for _ in range(ROUNDS):
            with db.begin() as unit:
                write_note(unit, owner)

    def write_all() -> list[tuple[int, int]]:
        together(*[write_many] * WRITERS)
        done.set()
        return []

    def watch() -> list[tuple[int, int]]:
        with admin.engine.connect() as connection:
            seen = []
            while not done.is_set():
                row = connection.execute(sa.text("SELECT count(*), max(revision) FROM notes")).one()
                seen.append((row[0], row[1] or 0))
            return seen

    _, seen = together(write_all, watch)

    assert len({count for count, _ in seen}) > 2
    assert [(count, count) for count, _ in seen] == seen


def test_a_second_writer_of_an_owner_waits_for_the_first_to_commit(
    db: Database, admin: Admin, owner: UUID, background: ThreadPoolExecutor
) -> None:
    """The number that is handed out next depends on how the transaction before it ends."""

    def second_writer() -> int:
        with db.begin() as unit:
            return write_note(unit, owner)

    with db.begin() as unit:
        first = write_note(unit, owner)
        second = background.submit(second_writer)
        admin.wait_for_blocked()

    assert (1, 2) == (first, second.result(10))


def test_a_writer_gets_the_number_that_a_rollback_gave_back(
    db: Database, admin: Admin, owner: UUID, background: ThreadPoolExecutor
) -> None:
    """A rolled-back transaction consumes nothing, also when another writer was waiting for it."""

    def second_writer() -> int:
        with db.begin() as unit:
            return write_note(unit, owner)

    with db.begin() as unit:
        write_note(unit, owner)
        second = background.submit(second_writer)
        admin.wait_for_blocked()
        unit.rollback()

    assert 1 == second.result(10)
    assert [1] == revisions_in_notes(admin, owner)


def test_a_savepoint_rollback_gives_the_number_back(db: Database, admin: Admin, owner: UUID) -> None:
    """After a rollback to a savepoint the same number is handed out for another row."""
    with db.begin() as unit:
        write_note(unit, owner)
        with unit.savepoint() as savepoint:
            write_note(unit, owner)
            db.call(savepoint.rollback)
        again = write_note(unit, owner)

    assert 2 == again
    assert [1, 2] == revisions_in_notes(admin, owner)


def test_another_writer_may_get_the_number_that_a_savepoint_gave_back(
    db: Database, admin: Admin, owner: UUID
) -> None:
    """A savepoint rollback releases the counter too, and the first writer goes on above the second."""
    with db.begin() as first:
        with first.savepoint() as savepoint:
            write_note(first, owner)
            db.call(savepoint.rollback)
        with db.begin() as second:
            write_note(second, owner)
        write_note(first, owner)

    assert [1, 2] == revisions_in_notes(admin, owner)


def test_a_released_savepoint_keeps_its_number(db: Database, admin: Admin, owner: UUID) -> None:
    """Releasing a savepoint is no rollback."""
    with db.begin() as unit:
        with unit.savepoint():
            write_note(unit, owner)
        write_note(unit, owner)

    assert [1, 2] == revisions_in_notes(admin, owner)


def test_writers_of_other_owners_do_not_wait(db: Database, owners: list[UUID]) -> None:
    """While one owner's counter is locked, another owner's is not."""
    with db.begin() as first:
        write_note(first, owners[0])
        with db.begin() as second:
            second.sql("SET LOCAL lock_timeout = '500ms'")

            assert 1 == write_note(second, owners[1])


@pytest.mark.parametrize("function", sorted(ALLOCATIONS))
def test_an_unknown_owner_is_an_error_and_the_transaction_goes_on(
    db: Database, admin: Admin, owner: UUID, function: str
) -> None:
    """No counter is made on the way, and the transaction is not aborted."""
    stranger = uuid4()
    with db.begin() as unit:
        with pytest.raises(UnknownOwnerError):
            CALLS[function](unit, stranger)
        write_note(unit, owner)

    assert 1 == counter(admin, owner)
    assert counter(admin, stranger) is None


def test_an_unknown_owner_among_several_raises_no_counter(
    db: Database, admin: Admin, owners: list[UUID]
) -> None:
    """``allocate_revisions`` serves all its owners or none, also when the caller goes on and commits."""
    with db.begin() as unit, pytest.raises(UnknownOwnerError):
        unit.allocate_revisions({owners[0]: 1, uuid4(): 1, owners[1]: 1})

    assert [0, 0] == [counter(admin, owner) for owner in owners[:2]]


def test_next_revisions_hands_out_one_contiguous_block(db: Database, admin: Admin, owner: UUID) -> None:
    """The block starts right above the counter and moves it to the block's end."""
    with db.begin() as unit:
        unit.next_revision(owner)
        block = unit.next_revisions(owner, 5)

    assert range(2, 7) == block
    assert 6 == counter(admin, owner)


def test_revisions_beyond_32_bits_are_exact(db: Database, admin: Admin, owner: UUID) -> None:
    """No driver narrows a revision to 32 bits or to a float."""
    admin.sql("UPDATE sync_revisions SET last_revision = 1700000000000001")
    with db.begin() as unit:
        block = unit.next_revisions(owner, 2**31 + 1)
        (other,) = unit.allocate_revisions({owner: 2**31 + 1}).values()

    assert range(1700000000000002, 1700002147483651) == block
    assert range(1700002147483651, 1700004294967300) == other


def test_allocate_revisions_gives_each_owner_its_own_block(
    db: Database, admin: Admin, owners: list[UUID]
) -> None:
    """Every block is as long as asked for and starts above that owner's counter."""
    a, b, c = owners
    with db.begin() as unit:
        unit.next_revisions(b, 10)
        blocks = unit.allocate_revisions({c: 1, b: 2, a: 3})

    assert {c: range(1, 2), b: range(11, 13), a: range(1, 4)} == blocks
    assert [3, 12, 1] == [counter(admin, owner) for owner in owners]


def test_allocate_revisions_for_nobody_sends_nothing(nowhere: Database) -> None:
    """An empty mapping costs no round trip."""
    with nowhere.begin() as unit:
        assert {} == unit.allocate_revisions({})


def test_writers_of_the_same_owners_never_deadlock(db: Database, admin: Admin, owners: list[UUID]) -> None:
    """Eight writers that name three owners in different orders leave no gap in any of them."""

    def write_many(turn: int) -> None:
        order = owners[turn % 3 :] + owners[: turn % 3]
        if turn % 2:
            order.reverse()
        for _ in range(ROUNDS):
            with db.begin() as unit:
                blocks = unit.allocate_revisions(dict.fromkeys(order, 2))
                notes = [
                    {"id": uuid4(), "owner_id": owner, "title": "", "revision": revision}
                    for owner, block in blocks.items()
                    for revision in block
                ]
                unit.sql(sa.insert(Note).values(notes))

    together(*[partial(write_many, turn) for turn in range(WRITERS)])

    expected = list(range(1, 2 * WRITERS * ROUNDS + 1))
    assert [expected] * 3 == [revisions_in_notes(admin, owner) for owner in owners]


def test_counters_are_locked_in_owner_order_whatever_the_plan(
    db: Database, admin: Admin, backwards: list[UUID], background: ThreadPoolExecutor
) -> None:
    """One writer finds the counters in key order, the other in the opposite physical order.

    Both counters are held until both writers wait. Without an order of its own the statement would let each
    writer take one counter and wait for the other's.
    """
    low, high = backwards

    def write(*settings: str) -> dict[UUID, range]:
        with db.begin() as unit:
            for setting in settings:
                unit.sql(f"SET LOCAL {setting} = off")
            return unit.allocate_revisions({low: 1, high: 1})

    with db.begin() as holds_high:
        holds_high.next_revision(high)
        with db.begin() as holds_low:
            holds_low.next_revision(low)
            by_key = background.submit(write, "enable_seqscan", "enable_bitmapscan")
            by_place = background.submit(write, "enable_indexscan", "enable_bitmapscan")
            admin.wait_for_blocked(2)

    blocks = [by_key.result(10), by_place.result(10)]
    assert [2, 3] == sorted(block[low][0] for block in blocks)
    assert [2, 3] == sorted(block[high][0] for block in blocks)


def test_ensure_owner_creates_a_counter_at_zero_once(db: Database, admin: Admin) -> None:
    """A second call changes nothing."""
    owner = uuid4()
    with db.begin() as unit:
        unit.add(User(id=owner))
        unit.ensure_owner(owner)
        unit.ensure_owner(owner)

    assert 0 == counter(admin, owner)


def test_ensure_owner_never_resets_a_counter(db: Database, admin: Admin, owner: UUID) -> None:
    """A counter that has handed out revisions keeps its value."""
    with db.begin() as unit:
        unit.next_revisions(owner, 7)
    with db.begin() as unit:
        unit.ensure_owner(owner)

    assert 7 == counter(admin, owner)


def test_ensure_owner_writes_the_pending_user_first(db: Database, admin: Admin) -> None:
    """A user added to the session is there for the counter's foreign key, without a flush by the caller."""
    owner = uuid4()
    with db.begin() as unit:
        unit.add(User(id=owner))
        unit.ensure_owner(owner)

    assert 0 == counter(admin, owner)


def test_concurrent_first_writes_of_an_owner_all_succeed(db: Database, admin: Admin) -> None:
    """Requests that meet at an owner's first write do not fail, and share one counter."""
    owners = [uuid4() for _ in range(ROUNDS)]
    with db.begin() as unit:
        unit.add(*[User(id=owner) for owner in owners])

    def write_to_all() -> None:
        for owner in owners:
            with db.begin() as unit:
                unit.ensure_owner(owner)
                unit.next_revision(owner)

    together(*[write_to_all] * WRITERS)

    assert [WRITERS] * ROUNDS == [counter(admin, owner) for owner in owners]


def test_ensure_owner_creates_the_counter_that_a_rollback_left_uncreated(
    db: Database, admin: Admin, background: ThreadPoolExecutor
) -> None:
    """It waits for whoever is creating the counter, and does it itself when that fails."""
    owner = uuid4()
    with db.begin() as unit:
        unit.add(User(id=owner))

    def second() -> int:
        with db.begin() as unit:
            unit.ensure_owner(owner)
            return unit.next_revision(owner)

    with db.begin() as unit:
        unit.ensure_owner(owner)
        waiting = background.submit(second)
        admin.wait_for_blocked()
        unit.rollback()

    assert 1 == waiting.result(10)


def test_current_revision_is_the_last_one_handed_out(db: Database, owner: UUID) -> None:
    """It is 0 before the first, and includes what the transaction itself has allocated."""
    with db.begin() as unit:
        before = unit.current_revision(owner)
        unit.next_revisions(owner, 3)

        assert (0, 3) == (before, unit.current_revision(owner))


@pytest.mark.parametrize("function", ["current_revision", "current_revision_for_update"])
def test_reading_an_unknown_owner_gives_none(db: Database, function: str) -> None:
    """An owner without a counter is no error for a reader."""
    with db.begin() as unit:
        assert CALLS[function](unit, uuid4()) is None


def test_current_revision_does_not_wait_for_a_writer(db: Database, owner: UUID) -> None:
    """It locks nothing and shows what is committed."""
    with db.begin() as writer:
        write_note(writer, owner)
        with db.begin() as reader:
            reader.sql("SET LOCAL lock_timeout = '500ms'")

            assert 0 == reader.current_revision(owner)


def test_current_revision_for_update_keeps_another_allocation_out(
    db: Database, admin: Admin, owner: UUID, background: ThreadPoolExecutor
) -> None:
    """What was read stays true until the transaction ends."""

    def other_writer() -> int:
        with db.begin() as unit:
            return unit.next_revision(owner)

    with db.begin() as unit:
        read = unit.current_revision_for_update(owner)
        other = background.submit(other_writer)
        admin.wait_for_blocked()
        mine = unit.next_revision(owner)

    assert (0, 1, 2) == (read, mine, other.result(10))


def test_current_revision_for_update_waits_for_a_writer(
    db: Database, admin: Admin, owner: UUID, background: ThreadPoolExecutor
) -> None:
    """It shows the counter as the writer left it."""

    def reader() -> int | None:
        with db.begin() as unit:
            return unit.current_revision_for_update(owner)

    with db.begin() as unit:
        unit.next_revisions(owner, 4)
        read = background.submit(reader)
        admin.wait_for_blocked()

    assert 4 == read.result(10)


def test_current_revision_for_update_excludes_itself(
    db: Database, admin: Admin, owner: UUID, background: ThreadPoolExecutor
) -> None:
    """Two that read in order to write go one after the other, and do not deadlock when they write."""

    def read_and_write() -> tuple[int, int]:
        with db.begin() as unit:
            return unit.current_revision_for_update(owner), unit.next_revision(owner)

    with db.begin() as unit:
        unit.current_revision_for_update(owner)
        other = background.submit(read_and_write)
        admin.wait_for_blocked()
        unit.next_revision(owner)

    assert (1, 2) == other.result(10)


def test_current_revision_for_update_lets_pulls_go_on(db: Database, owner: UUID) -> None:
    """An owner's pulls do not wait for a writer that has only read the counter."""
    with db.begin() as writer:
        writer.current_revision_for_update(owner)
        with db.begin() as pull:
            pull.sql("SET LOCAL lock_timeout = '500ms'")

            assert 0 == pull.guard_pull_cursor(owner, 0).through


def test_current_revision_for_update_of_an_unknown_owner_locks_nothing(db: Database) -> None:
    """Nobody who creates that owner waits."""
    owner = uuid4()
    with db.begin() as unit:
        unit.add(User(id=owner))
    with db.begin() as reader:
        reader.current_revision_for_update(owner)
        with db.begin() as writer:
            writer.sql("SET LOCAL lock_timeout = '500ms'")
            writer.ensure_owner(owner)

            assert 1 == writer.next_revision(owner)


@pytest.mark.parametrize("function", sorted(ALLOCATIONS))
def test_an_allocation_leaves_pending_objects_pending(db: Database, owner: UUID, function: str) -> None:
    """The revision may be for an object that cannot be written without it."""
    with db.begin() as unit:
        note = Note(owner_id=owner)
        unit.add(note)
        CALLS[function](unit, owner)

        assert note in unit.session.new
        note.revision = 1


@pytest.mark.parametrize("function", sorted(set(CALLS) - ALLOCATIONS))
def test_every_other_function_writes_pending_objects_first(db: Database, owner: UUID, function: str) -> None:
    """They see the database as an ORM query would."""
    with db.begin() as unit:
        user = User(id=uuid4())
        unit.add(user)
        CALLS[function](unit, owner)

        assert user not in unit.session.new


@pytest.mark.parametrize("function", sorted(set(CALLS) - ALWAYS_FLUSH))
def test_no_other_function_writes_pending_objects_without_autoflush(
    db: Database, owner: UUID, function: str
) -> None:
    """A caller who has switched autoflush off decides when the session is flushed."""
    with db.begin() as unit:
        user = User(id=uuid4())
        unit.add(user)
        with unit.session.no_autoflush:
            CALLS[function](unit, owner)

        assert user in unit.session.new


@pytest.mark.parametrize("count", [0, -1, True, 1.0, "1", None, 2**53])
@pytest.mark.parametrize("function", ["next_revisions", "allocate_revisions"])
def test_a_bad_count_is_refused_before_any_io(nowhere: Database, function: str, count: Any) -> None:
    """Only an integer from 1 to the greatest safe one is a count."""
    owner = uuid4()
    calls = {
        "next_revisions": lambda unit: unit.next_revisions(owner, count),
        "allocate_revisions": lambda unit: unit.allocate_revisions({uuid4(): 1, owner: count}),
    }
    with nowhere.begin() as unit, pytest.raises(InvalidArgumentError) as caught:
        calls[function](unit)

    assert "count" == caught.value.argument


AUTOCOMMIT = "AUTOCOMMIT"


@contextmanager
def autocommit(db: Database, route: str, handle: str) -> Iterator[tuple[Unit, list[str]]]:
    """Open a unit in AUTOCOMMIT, asked for in one of several ways, and see what it sends."""
    options = {
        "create_engine": {"isolation_level": AUTOCOMMIT},
        "execution_options of create_engine": {"execution_options": {"isolation_level": AUTOCOMMIT}},
        "connect_args": {"connect_args": {"autocommit": True}},
    }
    isolation = AUTOCOMMIT if route == "execution_options of the engine" else None
    with (
        db.another(**options.get(route, {})) as other,
        other.begin(isolation=isolation, handle=handle) as unit,
    ):
        if route == "execution_options of the connection":
            if handle == "connection":
                db.call(unit.session.execution_options, isolation_level=AUTOCOMMIT)
            else:
                db.call(unit.session.connection, execution_options={"isolation_level": AUTOCOMMIT})
        with other.statements() as sent:
            yield unit, sent


ROUTES_TO_AUTOCOMMIT = [
    "create_engine",
    "execution_options of create_engine",
    "execution_options of the engine",
    "execution_options of the connection",
]


def refused(unit: Unit, owner: UUID) -> list[str]:
    """Return the functions that refuse this unit as unsafe."""
    names = []
    for name, call in sorted(CALLS.items()):
        try:
            call(unit, owner)
        except UnsafeTransactionError:
            names.append(name)
    return names


@pytest.mark.parametrize("handle", HANDLES)
@pytest.mark.parametrize("route", ROUTES_TO_AUTOCOMMIT)
def test_every_function_refuses_autocommit(db: Database, owner: UUID, route: str, handle: str) -> None:
    """A lock would be gone before the row is written, so no statement is sent."""
    with autocommit(db, route, handle) as (unit, sent):
        assert sorted(CALLS) == refused(unit, owner)
        assert [] == sent


@pytest.mark.parametrize("db", ["blocking-psycopg", "async-psycopg"], indirect=True)
@pytest.mark.parametrize("handle", HANDLES)
def test_every_function_refuses_the_autocommit_of_the_driver(db: Database, owner: UUID, handle: str) -> None:
    """SQLAlchemy does not know of an AUTOCOMMIT that psycopg was asked for; the kit does."""
    with autocommit(db, "connect_args", handle) as (unit, sent):
        assert sorted(CALLS) == refused(unit, owner)
        assert [] == sent


@pytest.mark.parametrize("function", sorted(CALLS))
def test_autocommit_is_refused_before_pending_objects_are_written(
    db: Database, admin: Admin, owner: UUID, function: str
) -> None:
    """A flush in AUTOCOMMIT would commit half of the caller's work."""
    with db.begin(isolation=AUTOCOMMIT) as unit:
        unit.add(User(id=uuid4()))
        with pytest.raises(UnsafeTransactionError):
            CALLS[function](unit, owner)
        unit.session.expunge_all()

    assert 3 == admin.scalar("SELECT count(*) FROM users")


@pytest.mark.parametrize("handle", HANDLES)
def test_every_function_works_on_every_handle(db: Database, owner: UUID, handle: str) -> None:
    """A product may use the ORM or Core."""
    with db.begin(handle=handle) as unit:
        for call in CALLS.values():
            call(unit, owner)

        assert 10 + 2 + 2 + 1 == unit.current_revision(owner)


def write_a_note_and_a_tombstone(db: Database, owner: UUID) -> None:
    """Give every function something to lock."""
    with db.begin() as unit:
        write_note(unit, owner)
        write_note(unit, owner, deleted_at=EXPIRED)


@pytest.mark.parametrize("function", sorted(set(CALLS) - READERS))
def test_a_read_only_transaction_gets_a_typed_error(db: Database, owner: UUID, function: str) -> None:
    """Whatever locks a counter needs the primary; there is no unlocked way round."""
    write_a_note_and_a_tombstone(db, owner)
    with db.begin() as unit:
        unit.sql("SET TRANSACTION READ ONLY")
        with pytest.raises(PrimaryRequiredError):
            CALLS[function](unit, owner)
        unit.rollback()


@pytest.mark.parametrize("function", sorted(set(CALLS) - READERS))
def test_a_read_only_server_gets_a_typed_error(db: Database, owner: UUID, function: str) -> None:
    """As on a standby, where transactions are read-only by default."""
    write_a_note_and_a_tombstone(db, owner)
    with db.another(settings={"default_transaction_read_only": "on"}) as standby, standby.begin() as unit:
        with pytest.raises(PrimaryRequiredError):
            CALLS[function](unit, owner)
        unit.rollback()


@pytest.mark.parametrize("function", sorted(READERS))
def test_readers_work_in_a_read_only_transaction(db: Database, owner: UUID, function: str) -> None:
    """They lock nothing."""
    write_a_note_and_a_tombstone(db, owner)
    with db.begin() as unit:
        expected = CALLS[function](unit, owner)
    with db.begin() as unit:
        unit.sql("SET TRANSACTION READ ONLY")

        assert expected == CALLS[function](unit, owner)

"""What a call costs: the documented number of statements, and one place for each in every cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.support.product import CUTOFF, EXPIRED, NOTES, User, write_note
from tests.support.ways import Admin, Database, Unit

STATEMENTS: dict[str, tuple[int, Callable[[Unit, UUID], Any]]] = {
    "next_revision": (1, lambda unit, owner: unit.next_revision(owner)),
    "next_revisions": (1, lambda unit, owner: unit.next_revisions(owner, 100)),
    "allocate_revisions": (1, lambda unit, owner: unit.allocate_revisions({owner: 100})),
    "ensure_owner": (1, lambda unit, owner: unit.ensure_owner(owner)),
    "current_revision": (1, lambda unit, owner: unit.current_revision(owner)),
    "current_revision_for_update": (1, lambda unit, owner: unit.current_revision_for_update(owner)),
    "guard_pull_cursor": (2, lambda unit, owner: unit.guard_pull_cursor(owner, 0)),
    "guard_push_cursor": (2, lambda unit, owner: unit.guard_push_cursor(owner, 0)),
    "purge_horizon": (1, lambda unit, owner: unit.purge_horizon(owner)),
    "fence_restore": (1, lambda unit, owner: unit.fence_restore(gap=1)),
    "a batch": (4, lambda unit, owner: unit.purge_tombstone_batch(NOTES, CUTOFF, 10)),
}


def add_owners(db: Database, count: int) -> list[UUID]:
    """Commit users with counters and return their ids."""
    users = [User(id=uuid4()) for _ in range(count)]
    ids = [user.id for user in users]
    with db.begin() as unit:
        unit.add(*users)
        for owner in ids:
            unit.ensure_owner(owner)
    return ids


@pytest.mark.parametrize("name", list(STATEMENTS))
def test_a_call_sends_as_many_statements_as_documented(db: Database, owner: UUID, name: str) -> None:
    """Each is a round trip while others wait for the counter."""
    count, call = STATEMENTS[name]
    with db.begin() as unit:
        for _ in range(3):
            write_note(unit, owner, deleted_at=EXPIRED)
        with db.statements() as sent:
            call(unit, owner)

    assert count == len(sent)


@pytest.mark.parametrize("count", [1, 2, 30])
def test_any_number_of_owners_takes_one_statement(db: Database, count: int) -> None:
    """``allocate_revisions`` does not grow with the owners."""
    owners = add_owners(db, count)
    with db.begin() as unit, db.statements() as sent:
        unit.allocate_revisions(dict.fromkeys(owners, 1))

    assert 1 == len(sent)


def test_a_batch_of_any_size_takes_four_statements(db: Database) -> None:
    """Neither the rows nor their owners add one."""
    owners = add_owners(db, 20)
    with db.begin() as unit:
        for owner in owners:
            write_note(unit, owner, deleted_at=EXPIRED)
        with db.statements() as sent:
            batch = unit.purge_tombstone_batch(NOTES, CUTOFF, 100)

    assert 20 == batch.deleted
    assert 4 == len(sent)


def test_a_batch_that_finds_nothing_takes_one_statement(db: Database) -> None:
    """The selector's."""
    with db.begin() as unit, db.statements() as sent:
        unit.purge_tombstone_batch(NOTES, CUTOFF, 100)

    assert 1 == len(sent)


def test_a_thousand_calls_with_other_values_compile_nothing_new(db: Database) -> None:
    """Statements have a fixed shape: no value and no number of values makes another one."""
    owners = add_owners(db, 10)

    def call_all(turn: int) -> None:
        some = owners[: turn % len(owners) + 1]
        with db.begin() as unit:
            for owner in some[-2:]:
                unit.ensure_owner(owner)
                write_note(unit, owner, deleted_at=EXPIRED)
                unit.guard_push_cursor(owner, 0)
                unit.current_revision(owner)
            unit.next_revisions(some[0], turn + 1)
            unit.allocate_revisions(dict.fromkeys(some, turn + 1))
            unit.guard_pull_cursor(some[0], unit.current_revision_for_update(some[0]))
            unit.purge_horizon(some[0])
            unit.fence_restore(gap=turn + 1)
            unit.purge_tombstone_batch(NOTES, CUTOFF, 10 + turn)

    cache: Any = db.sync_engine._compiled_cache
    for turn in range(2):
        call_all(turn)
    compiled = len(cache)
    for turn in range(2, 72):
        call_all(turn)

    assert compiled == len(cache)


def test_the_driver_keeps_one_prepared_statement_for_each_shape(db: Database, owner: UUID) -> None:
    """The text that reaches the server does not depend on the values."""
    owners = add_owners(db, 6)

    def texts(turn: int) -> set[str]:
        with db.begin() as unit, db.statements() as sent:
            unit.allocate_revisions({owners[turn]: turn + 1})
            unit.allocate_revisions(dict.fromkeys(owners[: turn + 2], turn + 1))
            unit.guard_pull_cursor(owners[turn], 0)
            for other in owners[: turn + 1]:
                write_note(unit, other, deleted_at=EXPIRED)
            unit.purge_tombstone_batch(NOTES, CUTOFF, 100)
            return set(sent)

    first = texts(0)

    assert [first] * 4 == [texts(turn) for turn in range(1, 5)]


def test_counters_leave_room_on_their_pages(admin: Admin) -> None:
    """In every schema: raising a counter then writes no index entry, and the table does not bloat."""
    rows = admin.sql("SELECT reloptions FROM pg_class WHERE relname = 'sync_revisions'")

    assert [["fillfactor=50"]] * 4 == [row.reloptions for row in rows]

"""The whole contract against a model of it: random interleavings of writers, pulls, purges and fences."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy.orm import SessionTransaction

from baukit_sync import CursorAheadError, PullWindow, ResyncRequiredError
from tests.support.product import CUTOFF, EXPIRED, NOTES, Note, User, delete_rows
from tests.support.ways import Database, Unit

WRITERS = st.integers(0, 1)
OWNERS = st.integers(0, 1)


@dataclass(frozen=True)
class Row:
    """A note as the model knows it."""

    owner: UUID
    revision: int
    deleted_at: datetime | None = None

    @property
    def columns(self) -> dict[str, Any]:
        """What the database has of it."""
        return {"owner_id": self.owner, "revision": self.revision, "deleted_at": self.deleted_at}


@dataclass
class Changes:
    """What a writer has done and not committed. Its counters are the locks that it holds."""

    rows: dict[UUID, Row] = field(default_factory=dict)
    counters: dict[UUID, int] = field(default_factory=dict)

    def copy(self) -> Changes:
        """Return what a savepoint goes back to."""
        return Changes(dict(self.rows), dict(self.counters))


@dataclass
class Writer:
    """A session, its savepoints, and what each of them goes back to."""

    unit: Unit
    changes: Changes = field(default_factory=Changes)
    savepoints: list[tuple[SessionTransaction, Changes]] = field(default_factory=list)


@dataclass
class Client:
    """Somebody who pulls: the cursor, and the live rows with the revisions they came with."""

    cursor: int = 0
    rows: dict[UUID, int] = field(default_factory=dict)
    pull: tuple[Unit, PullWindow] | None = None


class Contract(RuleBasedStateMachine):
    """Two owners, two writers, a client for each owner, and an operator who purges and fences."""

    def __init__(self, db: Database) -> None:
        """Empty the database and create the owners."""
        super().__init__()
        delete_rows(db.sync_engine)
        self.db = db
        self.units = ExitStack()
        self.owners = [UUID(int=1), UUID(int=2)]
        with db.begin() as unit:
            unit.add(*[User(id=owner) for owner in self.owners])
            for owner in self.owners:
                unit.ensure_owner(owner)
        self.serial = itertools.count(1)
        self.rows: dict[UUID, Row] = {}
        self.counters = dict.fromkeys(self.owners, 0)
        self.horizons: dict[UUID, int] = {}
        self.writers = [Writer(self.begin()) for _ in range(2)]
        self.clients = {owner: Client() for owner in self.owners}

    def begin(self) -> Unit:
        """Open a unit of work that stays open from step to step."""
        return self.units.enter_context(self.db.begin())

    def new_id(self) -> UUID:
        """Return an id that is the same when the steps are run again."""
        return UUID(int=next(self.serial))

    def writers_of(self, owner: UUID) -> list[Writer]:
        """Return the writer that has the owner's counter, if there is one."""
        return [writer for writer in self.writers if owner in writer.changes.counters]

    def can_write(self, writer: Writer, owner: UUID) -> bool:
        """Say whether a writer would not wait for the other one."""
        return self.writers_of(owner) in ([], [writer])

    def allocate(self, writer: Writer, owner: UUID, count: int = 1) -> int:
        """Allocate, and return the last revision."""
        before = writer.changes.counters.get(owner, self.counters[owner])
        expected = range(before + 1, before + count + 1)

        assert expected == writer.unit.next_revisions(owner, count)
        writer.changes.counters[owner] = expected[-1]
        return expected[-1]

    @rule(number=WRITERS, index=OWNERS, dead=st.booleans(), count=st.integers(1, 3))
    def insert(self, number: int, index: int, dead: bool, count: int) -> None:
        """Write a live row, or a tombstone that has expired already, with the last of some revisions."""
        writer, owner = self.writers[number], self.owners[index]
        if self.can_write(writer, owner):
            revision = self.allocate(writer, owner, count)
            row_id, row = self.new_id(), Row(owner, revision, EXPIRED if dead else None)
            writer.unit.sql(sa.insert(Note).values(id=row_id, **row.columns))
            writer.changes.rows[row_id] = row

    @rule(index=OWNERS, dead=st.booleans())
    def insert_and_commit(self, index: int, dead: bool) -> None:
        """Write such a row in a transaction of its own."""
        owner = self.owners[index]
        if not self.writers_of(owner):
            with self.db.begin() as unit:
                writer = Writer(unit)
                row_id, row = (
                    self.new_id(),
                    Row(owner, self.allocate(writer, owner), EXPIRED if dead else None),
                )
                unit.sql(sa.insert(Note).values(id=row_id, **row.columns))
            self.rows[row_id] = row
            self.counters |= writer.changes.counters

    @rule(number=WRITERS, index=st.integers(0, 20))
    def delete_or_revive(self, number: int, index: int) -> None:
        """Turn a row that the writer sees into a tombstone, or a tombstone into a live row."""
        writer = self.writers[number]
        visible = self.rows | writer.changes.rows
        candidates = sorted(row_id for row_id, row in visible.items() if self.can_write(writer, row.owner))
        if candidates:
            row_id = candidates[index % len(candidates)]
            before = visible[row_id]
            row = Row(
                before.owner, self.allocate(writer, before.owner), None if before.deleted_at else EXPIRED
            )
            writer.unit.sql(sa.update(Note).where(Note.id == row_id).values(row.columns))
            writer.changes.rows[row_id] = row

    @rule(
        number=WRITERS,
        what=st.sampled_from(
            ["savepoint", "release", "roll back to savepoint", *["commit"] * 4, "roll back"]
        ),
    )
    def control(self, number: int, what: str) -> None:
        """Begin or end a savepoint, or end the transaction: a rollback frees the counters."""
        writer = self.writers[number]
        match what:
            case "savepoint":
                writer.savepoints.append((writer.unit.session.begin_nested(), writer.changes.copy()))
            case "release" if writer.savepoints:
                writer.savepoints.pop()[0].commit()
            case "roll back to savepoint" if writer.savepoints:
                savepoint, writer.changes = writer.savepoints.pop()
                savepoint.rollback()
            case "commit":
                writer.unit.commit()
                self.rows |= writer.changes.rows
                self.counters |= writer.changes.counters
                writer.changes, writer.savepoints = Changes(), []
            case "roll back":
                writer.unit.rollback()
                writer.changes, writer.savepoints = Changes(), []

    @precondition(lambda self: any(row.deleted_at for row in self.rows.values()))
    @rule(limit=st.integers(1, 4))
    def purge(self, limit: int) -> None:
        """Purge a batch: it skips owners that write or pull, and waits for nobody."""
        locked_rows = {row_id for writer in self.writers for row_id in writer.changes.rows}
        expired = {row_id for row_id, row in self.rows.items() if row.deleted_at is not None}
        selected = sorted(expired - locked_rows)[:limit]
        free = {
            owner
            for owner in self.owners
            if not any(self.writers_of(owner)) and self.clients[owner].pull is None
        }
        purged = [row_id for row_id in selected if self.rows[row_id].owner in free]
        with self.db.begin() as unit:
            batch = unit.purge_tombstone_batch(NOTES, CUTOFF, limit)

        assert (len(selected), len(purged)) == (batch.selected, batch.deleted)
        for row_id in purged:
            row = self.rows.pop(row_id)
            self.horizons[row.owner] = max(row.revision, self.horizons.get(row.owner, 0))

    @precondition(lambda self: not any(writer.changes.counters for writer in self.writers))
    @rule(gap=st.integers(1, 5))
    def fence(self, gap: int) -> None:
        """Fence every cursor, as after a restore."""
        with self.db.begin() as unit:
            assert len(self.owners) == unit.fence_restore(gap=gap)
        self.counters = {owner: counter + gap for owner, counter in self.counters.items()}
        self.horizons = dict(self.counters)

    @rule(index=OWNERS, ahead=st.integers(-8, 2))
    def check_any_cursor(self, index: int, ahead: int) -> None:
        """Ask for a window from somewhere around the counter."""
        owner = self.owners[index]
        with self.db.begin() as unit:
            self.guard(unit, owner, max(0, self.counters[owner] + ahead))

    @rule(index=OWNERS)
    def pull(self, index: int) -> None:
        """Start a client's pull, or finish the one that is open."""
        owner = self.owners[index]
        client = self.clients[owner]
        if client.pull is None:
            self.start_pull(owner, client)
        else:
            self.finish_pull(owner, client, *client.pull)

    def start_pull(self, owner: UUID, client: Client) -> None:
        """Take a client's window, and leave the pull open; a client that must resync starts over."""
        unit = self.begin()
        window = self.guard(unit, owner, client.cursor)
        if window is None:
            client.cursor, client.rows = 0, {}
            unit.rollback()
        else:
            client.pull = unit, window

    def finish_pull(self, owner: UUID, client: Client, unit: Unit, window: PullWindow) -> None:
        """Read the window's rows as they are now, and apply them."""
        client.pull = None
        rows = unit.sql(
            sa.select(Note.id, Note.revision, Note.deleted_at)
            .where(Note.owner_id == owner)
            .where(Note.revision > window.after, Note.revision <= window.through)
        )
        unit.commit()

        assert {
            row_id: row
            for row_id, row in self.rows.items()
            if row.owner == owner and window.after < row.revision <= window.through
        } == {row.id: Row(owner, row.revision, row.deleted_at) for row in rows}
        for row in rows:
            client.rows.pop(row.id, None)
            if row.deleted_at is None:
                client.rows[row.id] = row.revision
        client.cursor = window.through

    def guard(self, unit: Unit, owner: UUID, cursor: int) -> PullWindow | None:
        """Call the guard, which must answer by the rule; return its window if there is one."""
        counter, horizon = self.counters[owner], self.horizons.get(owner, 0)
        if 0 < cursor < horizon:
            with pytest.raises(ResyncRequiredError) as stale:
                unit.guard_pull_cursor(owner, cursor)
            assert horizon == stale.value.horizon_revision
            return None
        if cursor > counter:
            with pytest.raises(CursorAheadError) as ahead:
                unit.guard_pull_cursor(owner, cursor)
            assert counter == ahead.value.current_revision
            return None
        window: PullWindow = unit.guard_pull_cursor(owner, cursor)
        assert (owner, cursor, counter) == (window.owner_id, window.after, window.through)
        return window

    @invariant()
    def clients_have_what_their_cursors_say(self) -> None:
        """A client that needs no resync has every live row up to its cursor, and no row that was purged."""
        for owner, client in self.clients.items():
            if client.cursor >= self.horizons.get(owner, 0):
                live = {
                    row_id: row.revision
                    for row_id, row in self.rows.items()
                    if row.owner == owner and row.revision <= client.cursor and row.deleted_at is None
                }
                assert live.items() <= client.rows.items()
                assert client.rows.keys() <= self.rows.keys()

    def teardown(self) -> None:
        """Roll back what is open; what is left in the database is what the model has."""
        for writer in self.writers:
            writer.unit.rollback()
        self.units.close()
        with self.db.begin() as unit:
            counters = unit.sql("SELECT owner_id, last_revision FROM sync_revisions")
            horizons = unit.sql("SELECT owner_id, horizon_revision FROM sync_purge_horizons")
            rows = unit.sql(sa.select(Note.id, Note.owner_id, Note.revision, Note.deleted_at))

        assert self.counters == {row.owner_id: row.last_revision for row in counters}
        assert self.horizons == {row.owner_id: row.horizon_revision for row in horizons}
        assert self.rows == {row.id: Row(row.owner_id, row.revision, row.deleted_at) for row in rows}


@pytest.mark.parametrize("db", ["blocking-psycopg"], indirect=True)
def test_every_interleaving_keeps_the_contract(db: Database) -> None:
    """Revisions, windows, horizons and what clients end up with are those of the model."""
    run_state_machine_as_test(
        lambda: Contract(db),
        # Shrinking takes minutes where each step is I/O, and the steps are printed anyway.
        settings=settings(
            max_examples=80,
            stateful_step_count=60,
            deadline=None,
            phases=set(Phase) - {Phase.shrink, Phase.explain},
        ),
    )

"""A witness of the story, independent of the product.

It reads the tables with SQL of its own, and keeps its own account of what was pushed and purged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from threading import Lock
from time import perf_counter
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import Engine

from baukit_sync import FixedUtcSlot, PurgeReport
from baukit_sync.demo import product
from baukit_sync.demo.api import Answer, Api
from baukit_sync.demo.messages import Pull, Push, Pushed
from baukit_sync.wire import ResyncRequired

_ROWS = sa.text(
    "SELECT 'lists' AS table, id, owner_id, NULL AS parent_id, title, stamp, deleted_at, revision FROM lists"
    " UNION ALL SELECT 'items', id, owner_id, list_id, title, stamp, deleted_at, revision FROM items"
    " UNION ALL SELECT 'attachments', a.id, i.owner_id, a.item_id, a.title, a.stamp, a.deleted_at, a.revision"
    " FROM attachments AS a JOIN items AS i ON i.id = a.item_id"
)
_COUNTERS = sa.text("SELECT owner_id, last_revision FROM sync_revisions")
_HORIZONS = sa.text("SELECT owner_id, horizon_revision FROM sync_purge_horizons")


class ViolationError(Exception):
    """An invariant does not hold.

    Attributes:
        invariants: Each one that does not, as a sentence.
    """

    def __init__(self, invariants: Collection[str]) -> None:
        super().__init__(*invariants)
        self.invariants = tuple(invariants)


def expect(invariant: str, *, holds: bool) -> None:
    """Stop the story when an invariant does not hold.

    Raises:
        ViolationError: It does not.
    """
    if not holds:
        raise ViolationError([invariant])


AnswerT = TypeVar("AnswerT")


def served(answer: AnswerT | ResyncRequired) -> AnswerT:
    """Return an answer that must not be a refusal.

    Raises:
        ViolationError: It is one.
    """
    if isinstance(answer, ResyncRequired):
        raise ViolationError(["a cursor at or above the horizon is served"])
    return answer


class ServerRow(NamedTuple):
    """A row as PostgreSQL has it."""

    table: str
    id: UUID
    owner_id: UUID
    parent_id: UUID | None
    title: str
    stamp: int
    deleted_at: datetime | None
    revision: int


class Purge(NamedTuple):
    """What a purge did, as the witness saw it.

    Attributes:
        report: What the purge says itself.
        removed: How many rows are gone.
        kept: How many tombstones were too young for it.
        seconds: How long it took.
    """

    report: PurgeReport
    removed: int
    kept: int
    seconds: float

    @property
    def table(self) -> list[dict[str, Any]]:
        """The report as a table."""
        return [{"table": table.name, "removed": table.deleted} for table in self.report.tables]


class Witness:
    """Sees every push and every purge.

    Attributes:
        handed_out: Per owner, the revisions that pushes were given.
        newest: Per row, the greatest stamp that was ever pushed for it.
        purged: Per owner, the greatest revision that a purge has removed.
    """

    def __init__(self, engine: Engine) -> None:
        self.handed_out: dict[UUID, list[int]] = defaultdict(list)
        self.newest: dict[UUID, int] = defaultdict(int)
        self.purged: dict[UUID, int] = defaultdict(int)
        self._engine = engine
        self._lock = Lock()

    def rows(self) -> dict[UUID, ServerRow]:
        """Read all rows of all owners, tombstones too."""
        return {row.id: ServerRow._make(row) for row in self._read(_ROWS)}

    def counters(self) -> dict[UUID, int]:
        """Read all counters."""
        return {row.owner_id: row.last_revision for row in self._read(_COUNTERS)}

    def horizons(self) -> dict[UUID, int]:
        """Read all horizons."""
        return {row.owner_id: row.horizon_revision for row in self._read(_HORIZONS)}

    def _read(self, statement: sa.TextClause) -> Sequence[sa.Row[Any]]:
        with self._engine.connect() as connection:
            return connection.execute(statement).all()

    def push(self, owner_id: UUID, request: Push, pushed: Pushed) -> None:
        """Note what a push sent and what it was given."""
        answered = pushed.applied.keys() | set(pushed.ignored)
        expect("a push answers for every change", holds={change.id for change in request.changes} <= answered)
        with self._lock:
            self.handed_out[owner_id] += pushed.applied.values()
            for change in request.changes:
                self.newest[change.id] = max(self.newest[change.id], change.stamp)

    def purge(self, slot: FixedUtcSlot, *, busy: Collection[UUID] = ()) -> Purge:
        """Run the product's purge between two looks at the tables, while nobody writes.

        Args:
            slot: The purge's slot.
            busy: The owners that it has to leave alone.

        Raises:
            ViolationError: It removed something else than the expired tombstones of the other owners.
        """
        before = self.rows()
        began = perf_counter()
        report = product.purge(self._engine, slot)
        seconds = perf_counter() - began
        after = self.rows()
        cutoff = slot.starts_at - product.RETENTION
        tombstones = {row.id: row for row in before.values() if row.deleted_at and row.owner_id not in busy}
        expired = {id_ for id_, row in tombstones.items() if row.deleted_at and row.deleted_at < cutoff}
        gone = before.keys() - after.keys()
        expect("a purge removes expired tombstones and nothing else", holds=gone <= expired)
        expect("a purge leaves no expired tombstone of an owner that it can lock", holds=expired <= gone)
        removed = sum(table.deleted for table in report.tables)
        expect("a purge reports what it removed", holds=removed == len(gone))
        for id_ in gone:
            owner_id, revision = before[id_].owner_id, before[id_].revision
            self.purged[owner_id] = max(self.purged[owner_id], revision)
        return Purge(report, removed, len(tombstones) - removed, seconds)


class WatchedApi(Api):
    """The product's endpoints, with the witness beside them."""

    def __init__(
        self,
        engine: Engine,
        now: Callable[[], datetime],
        witness: Witness,
        checkpoint: Callable[[], None],
    ) -> None:
        super().__init__(engine, now)
        self._witness = witness
        self._checkpoint = checkpoint

    def pull(self, owner_id: UUID, request: Pull) -> Answer:
        """Pull, unless the story is to end."""
        self._checkpoint()
        return super().pull(owner_id, request)

    def push(self, owner_id: UUID, body: str) -> Answer:
        """Push, unless the story is to end, and let the witness see it."""
        self._checkpoint()
        answer = super().push(owner_id, body)
        if answer.status == 200:
            pushed = Pushed.model_validate_json(answer.body)
            self._witness.push(owner_id, Push.model_validate_json(body), pushed)
        return answer

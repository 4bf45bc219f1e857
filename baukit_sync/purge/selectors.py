"""The drain of a caller-owned spec: the product's selector and deleter, batch by batch."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from baukit_sync.purge.batch import Tombstone, remove, select_batch
from baukit_sync.purge.isolate import remove_what_may_go
from baukit_sync.purge.report import PurgedTable, PurgeUnfinished, Tally
from baukit_sync.purge.run import CHECK_AT_ONCE, REFERENCED, PurgeRun
from baukit_sync.purge.table import TombstoneTable
from baukit_sync.schema import counters
from baukit_sync.transaction import set_lock_timeout, sqlstate

_HAVE_COUNTERS = sa.select(counters.c.owner_id).where(
    counters.c.owner_id == sa.func.any(sa.bindparam("owners"))
)
_WAIT = (
    sa.select(counters.c.owner_id).where(counters.c.owner_id == sa.bindparam("owner_id")).with_for_update()
)


@dataclass(slots=True)
class _Batch:
    """What one batch did.

    Attributes:
        tombstones: What the selector returned.
        gone: What was deleted.
        blocked: What a foreign key still needs.
        skipped: What belongs to owners that could not be locked.
    """

    tombstones: list[Tombstone]
    gone: list[Tombstone] = field(default_factory=list[Tombstone])
    blocked: list[Tombstone] = field(default_factory=list[Tombstone])
    skipped: list[Tombstone] = field(default_factory=list[Tombstone])


class SelectorDrain:
    """Purges one table with the product's own statements."""

    def __init__(self, run: PurgeRun, table: TombstoneTable) -> None:
        """Prepare."""
        self._run = run
        self._table = table
        self._tally = Tally(table.name)
        self._isolate = False

    def drain(self, busy_wait: timedelta | None) -> PurgedTable:
        """Purge until a batch comes back short or deletes nothing, then once more what was busy."""
        deadline = time.monotonic() + (busy_wait.total_seconds() if busy_wait is not None else 0)
        batch = self._drain()
        for owner_id in self._owned(batch) if busy_wait is not None else ():
            seconds = min(deadline - time.monotonic(), self._run.seconds_left())
            if seconds <= 0 or self._run.over() is not None:
                break
            waited = self._attempt(functools.partial(self._batch, owner_id, seconds), times=1)
            if not isinstance(waited, PurgeUnfinished):
                self._run.count(self._tally, len(waited.gone))
                batch = self._drain()
        return self._report(batch)

    def count(self) -> PurgedTable:
        """Count what the first batch of a run would delete."""
        with self._run.transaction() as connection:
            tombstones, locked = select_batch(
                connection.execute, self._table, self._run.cutoff, self._run.limit
            )
            connection.rollback()
        self._tally.deleted = sum(tombstone.owner_id in locked for tombstone in tombstones)
        self._tally.left = None
        if len(tombstones) == self._run.limit:
            self._tally.reasons[PurgeUnfinished.LEFT] = None
        return self._tally.report()

    def _drain(self) -> _Batch:
        while True:
            if (over := self._run.over()) is not None:
                self._tally.reasons[over] = None
                return _Batch([])
            room = self._run.room
            batch = self._attempt(self._batch)
            if isinstance(batch, PurgeUnfinished):
                self._tally.reasons[batch] = None
                return _Batch([])
            self._run.count(self._tally, len(batch.gone))
            self._tally.blocked.update(((tombstone.id,), None) for tombstone in batch.blocked)
            if len(batch.tombstones) < room or not batch.gone:
                return batch

    def _attempt(self, work: Callable[[], _Batch], *, times: int = 2) -> _Batch | PurgeUnfinished:
        try:
            return self._run.attempt(work, times=times)
        except IntegrityError as error:
            if sqlstate(error) not in REFERENCED:
                raise
        self._isolate = True
        return self._run.attempt(work, times=times)

    def _batch(self, owner_id: Any = None, seconds: float = 0) -> _Batch:
        """Commit a batch; wait for an owner first, if one is given."""
        run, table = self._run, self._table
        with run.transaction() as connection:
            if owner_id is not None:
                set_lock_timeout(connection, seconds)
                connection.execute(_WAIT, {"owner_id": owner_id})
            tombstones, locked = select_batch(connection.execute, table, run.cutoff, run.room)
            batch = _Batch(tombstones)
            may_go = [tombstone for tombstone in tombstones if tombstone.owner_id in locked]
            batch.skipped = [tombstone for tombstone in tombstones if tombstone.owner_id not in locked]
            if self._isolate:
                connection.execute(CHECK_AT_ONCE)
                delete = functools.partial(remove, connection.execute, table)
                batch.gone, batch.blocked = remove_what_may_go(connection, may_go, delete)
            else:
                remove(connection.execute, table, may_go)
                batch.gone = may_go
            return batch

    def _owned(self, batch: _Batch) -> set[Any]:
        """Find those owners of skipped tombstones that have a counter."""
        owners = list({tombstone.owner_id for tombstone in batch.skipped})
        if not owners:
            return set()
        rows = self._run.attempt(functools.partial(self._run.execute, _HAVE_COUNTERS, {"owners": owners}))
        # Nobody may be called an orphan for want of an answer.
        return set(owners) if isinstance(rows, PurgeUnfinished) else {row[0] for row in rows}

    def _report(self, batch: _Batch) -> PurgedTable:
        tally = self._tally
        tally.busy.update(busy := self._owned(batch))
        tally.orphaned = sum(tombstone.owner_id not in busy for tombstone in batch.skipped)
        tally.left = None if tally.reasons else len(batch.skipped) + len(tally.blocked)
        if tally.busy:
            tally.reasons[PurgeUnfinished.BUSY] = None
        if tally.orphaned:
            tally.reasons[PurgeUnfinished.ORPHANED] = None
        if tally.blocked:
            tally.reasons[PurgeUnfinished.BLOCKED] = None
        if len(batch.tombstones) == self._run.limit:
            # All of them are stuck, and more may be behind.
            tally.reasons[PurgeUnfinished.LEFT] = None
        return tally.report()

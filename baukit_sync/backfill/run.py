"""The run: owner by owner, each batch in a transaction of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, Table
from sqlalchemy.exc import DBAPIError

from baukit_sync.backfill.report import BackfillProgress, BackfillReport
from baukit_sync.backfill.statements import OWNERS_PAGE, Statements, columns_of
from baukit_sync.errors import InvalidArgumentError
from baukit_sync.transaction import (
    LOCK_NOT_AVAILABLE,
    check_integer,
    execute,
    rest,
    set_lock_timeout,
    sqlstate,
)

logger = logging.getLogger("baukit_sync.backfill")

MAX_BATCH = 100_000

_LONGEST = timedelta(minutes=10)
_NO_OWNER = "23503"


def backfill_revisions(
    engine: Engine,
    model: type[Any] | Table,
    *,
    limit: int = 1_000,
    lock_wait: timedelta = timedelta(seconds=5),
    pause: timedelta | None = None,
    on_batch: Callable[[BackfillProgress], object] | None = None,
) -> BackfillReport:
    """Give every row whose revision is NULL a counter and a revision of its own, owner by owner.

    Safe beside writers, old and new: a row that somebody stamps meanwhile keeps what it got. Tombstones are
    stamped too. Build the indexes first, or each page reads the table; run it again until the report is
    complete.

    Args:
        engine: Where to connect; each batch is a READ COMMITTED transaction, whatever the engine's default.
        model: The mapped class or ``Table``. Its owner column is filled; rows without an owner are left.
        limit: The most rows of one batch, 1..100,000. An owner's writers wait for one batch at most.
        lock_wait: How long to wait, at the end, for each owner whose writers were busy.
        pause: How long to rest after each batch.
        on_batch: Called after each batch that was committed.

    Returns:
        What was stamped, and what is left.

    Raises:
        InvalidArgumentError: The model lacks a column, or an argument is out of range; nothing was sent.
        PrimaryRequiredError: The server is a standby, or read-only.

    Locks the counters of a batch FOR NO KEY UPDATE, then its rows, until the batch is committed; pulls go on.
    It skips counters and rows that others have locked. Commits once per batch. Source: contract section 3.
    """
    check_integer("limit", limit, least=1, most=MAX_BATCH)
    for argument, span in (("lock_wait", lock_wait), ("pause", pause)):
        if span is not None and not (isinstance(span, timedelta) and timedelta() <= span <= _LONGEST):
            raise InvalidArgumentError(argument, f"a timedelta from 0 to {_LONGEST.total_seconds():.0f} s")
    statements = Statements(*columns_of(model))
    started = datetime.now(UTC)
    with engine.connect().execution_options(isolation_level="READ COMMITTED") as connection:
        run = _Run(connection, statements, limit, pause, on_batch)
        run.stamp_all(lock_wait)
        left = run.left()
    report = BackfillReport(
        table=statements.table.fullname,
        stamped=run.stamped,
        counters=run.counters,
        batches=run.batches,
        orphaned_owners=len(run.orphans),
        left=left,
        started=started,
        finished=datetime.now(UTC),
    )
    logger.info("backfilled %s", report.table, extra={"backfill": report.to_dict()})
    return report


class _Run:
    """One run: its connection and its counts."""

    def __init__(
        self,
        connection: Connection,
        statements: Statements,
        limit: int,
        pause: timedelta | None,
        on_batch: Callable[[BackfillProgress], object] | None,
    ) -> None:
        self.stamped = self.counters = self.batches = 0
        self.orphans: set[Any] = set()
        self._connection = connection
        self._statements = statements
        self._limit = limit
        self._pause = 0 if pause is None else pause.total_seconds()
        self._on_batch = on_batch

    def stamp_all(self, lock_wait: timedelta) -> None:
        """Stamp every owner's rows; those that were busy once more at the end."""
        busy: list[Any] = []
        for page in self._pages():
            self._ensure_counters([owner for owner, _ in page])
            for pack in _packs(page, self._limit):
                busy += self._stamp([owner for owner in pack if owner not in self.orphans])
        for owner in busy:
            self._stamp([owner], wait=lock_wait)

    def left(self) -> int:
        """Count the rows without a revision, up to a bound."""
        with self._connection.begin():
            left: int = execute(self._connection, self._statements.left).scalar_one()
        return left

    def _pages(self) -> Iterator[list[tuple[Any, int]]]:
        """Read the owners of rows without a revision, with how many there are, up to ``limit``."""
        statement, bounds = self._statements.first_owners, {"limit": self._limit}
        while True:
            with self._connection.begin():
                rows = execute(self._connection, statement, bounds).all()
            if rows:
                yield [(row.owner_id, row.unstamped) for row in rows]
            if len(rows) < OWNERS_PAGE:
                return
            statement, bounds = (
                self._statements.next_owners,
                {"limit": self._limit, "after": rows[-1].owner_id},
            )

    def _ensure_counters(self, owners: Sequence[Any]) -> None:
        """Create the counters that are missing; where one cannot be, or not now, find out whose."""
        try:
            with self._connection.begin():
                set_lock_timeout(self._connection, 0.1)
                added = execute(self._connection, self._statements.ensure, {"owners": list(owners)}).all()
            self.counters += len(added)
        except DBAPIError as error:
            if sqlstate(error) not in {_NO_OWNER, LOCK_NOT_AVAILABLE}:
                raise
            if len(owners) == 1:
                if sqlstate(error) == _NO_OWNER:
                    self.orphans.update(owners)
                return
            middle = len(owners) // 2
            self._ensure_counters(owners[:middle])
            self._ensure_counters(owners[middle:])

    def _stamp(self, owners: Sequence[Any], wait: timedelta | None = None) -> list[Any]:
        """Stamp the rows of some owners, batch by batch; return those whose counter is locked."""
        deadline = time.monotonic() + (wait.total_seconds() if wait is not None else 0)
        busy: list[Any] = []
        while owners:
            with self._connection.begin():
                locked = self._lock(owners, None if wait is None else deadline - time.monotonic())
                busy += [owner for owner in owners if owner not in locked]
                bounds = {"owners": list(locked), "limit": self._limit}
                stamped = sum(
                    row.stamped for row in execute(self._connection, self._statements.stamp, bounds)
                )
            if stamped:
                self.stamped += stamped
                self.batches += 1
                if self._on_batch is not None:
                    self._on_batch(BackfillProgress(stamped, self.stamped))
                if self._pause:
                    with self._connection.begin():
                        rest(self._connection, self._pause)
            if stamped < self._limit:
                break
            owners = list(locked)
        return busy

    def _lock(self, owners: Sequence[Any], seconds: float | None) -> list[Any]:
        """Lock counters in the order of owners; wait for them, if at all, no longer than so many seconds."""
        if seconds is None:
            return list(execute(self._connection, self._statements.lock, {"owners": list(owners)}).scalars())
        set_lock_timeout(self._connection, seconds)
        try:
            with self._connection.begin_nested():
                return list(
                    execute(self._connection, self._statements.wait, {"owners": list(owners)}).scalars()
                )
        except DBAPIError as error:
            if sqlstate(error) != LOCK_NOT_AVAILABLE:
                raise
            return []


def _packs(page: Sequence[tuple[Any, int]], limit: int) -> Iterator[list[Any]]:
    """Put owners together until they have about ``limit`` rows."""
    pack: list[Any] = []
    room = limit
    for owner, unstamped in page:
        if pack and unstamped > room:
            yield pack
            pack, room = [], limit
        pack.append(owner)
        room -= unstamped
    yield pack

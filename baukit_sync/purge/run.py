"""One run of a purge: its connection, its transactions, and its limits."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, Executable
from sqlalchemy.exc import DBAPIError

from baukit_sync.errors import PrimaryRequiredError
from baukit_sync.purge.report import PurgeProgress, PurgeUnfinished, Tally
from baukit_sync.transaction import LOCK_NOT_AVAILABLE, READ_ONLY, rest, sqlstate

logger = logging.getLogger("baukit_sync.purge")

T = TypeVar("T")

REFERENCED = frozenset({"23503", "23001"})
"""A foreign key still needs a row: NO ACTION, and since PostgreSQL 18 RESTRICT."""

_LOCK_LOST = frozenset({"40001", "40P01", LOCK_NOT_AVAILABLE})

_DEFAULT_ISOLATION = sa.select(sa.func.current_setting("default_transaction_isolation"))


CHECK_AT_ONCE = sa.text("SET CONSTRAINTS ALL IMMEDIATE")
"""A deferred foreign key would be checked at the commit, where no savepoint is left."""


class PurgeRun:
    """What all tables of one run share."""

    def __init__(
        self,
        engine: Engine,
        cutoff: datetime,
        limit: int,
        *,
        time_budget: timedelta | None = None,
        max_rows: int | None = None,
        pause: timedelta | None = None,
        on_batch: Callable[[PurgeProgress], object] | None = None,
    ) -> None:
        """Start the clock; connects with the first statement.

        Args:
            engine: Where to connect.
            cutoff: Tombstones from before it are expired.
            limit: The most rows of one statement.
            time_budget: After this much time no batch is begun.
            max_rows: After this many rows no batch is begun.
            pause: How long to rest after each batch that was committed.
            on_batch: Called after it.
        """
        self.cutoff = cutoff
        self.limit = limit
        self._engine = engine
        self._deadline = None if time_budget is None else time.monotonic() + time_budget.total_seconds()
        self._max_rows = max_rows
        self._pause = 0 if pause is None else pause.total_seconds()
        self._on_batch = on_batch
        self._deleted = 0
        self._connection: Connection | None = None
        self._one_statement_is_safe = False

    @property
    def room(self) -> int:
        """How many rows the next statement may delete."""
        return self.limit if self._max_rows is None else min(self.limit, self._max_rows - self._deleted)

    def over(self) -> PurgeUnfinished | None:
        """Tell why no further batch may begin, if it may not."""
        if self._max_rows is not None and self._deleted >= self._max_rows:
            return PurgeUnfinished.MAX_ROWS
        if self.seconds_left() <= 0:
            return PurgeUnfinished.TIME_BUDGET
        return None

    def seconds_left(self) -> float:
        """Return how much of the time budget is left."""
        return float("inf") if self._deadline is None else self._deadline - time.monotonic()

    def count(self, tally: Tally, deleted: int) -> None:
        """Count what a committed batch has deleted."""
        if deleted:
            tally.deleted += deleted
            tally.batches += 1
            self._deleted += deleted
            if self._on_batch is not None:
                self._on_batch(PurgeProgress(tally.name, deleted, self._deleted))
            if self._pause:
                with self.transaction() as connection:
                    rest(connection, self._pause)

    def close(self) -> None:
        """Give the connection back."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def execute(self, statement: Executable, parameters: dict[str, Any]) -> Sequence[Any]:
        """Run one statement in a transaction of its own: one round trip, if READ COMMITTED is the default."""
        if not self._one_statement_is_safe:
            with self.transaction() as connection:
                return connection.execute(statement, parameters).all()
        connection = self._connected()
        connection.execution_options(isolation_level="AUTOCOMMIT")
        rows = connection.execute(statement, parameters).all()
        connection.commit()
        return rows

    def learn_isolation(self, connection: Connection) -> None:
        """Find out whether a statement that is a transaction by itself is READ COMMITTED."""
        self._one_statement_is_safe = connection.scalar(_DEFAULT_ISOLATION) == "read committed"

    @contextmanager
    def transaction(self) -> Generator[Connection]:
        """Open a READ COMMITTED transaction, and commit it."""
        connection = self._connected()
        connection.execution_options(isolation_level="READ COMMITTED")
        with connection.begin():
            yield connection

    def attempt(
        self, work: Callable[[], T], *, times: int = 2, or_raise: bool = False
    ) -> T | PurgeUnfinished:
        """Do a batch; once more if it lost a lock or the connection.

        Args:
            work: Runs in a transaction of its own.
            times: How often to try.
            or_raise: Raise the last error instead of returning why.

        Returns:
            What ``work`` returned, or why it failed.

        Raises:
            PrimaryRequiredError: The server is a standby, or read-only.
        """
        for left in reversed(range(times)):
            try:
                return work()
            except DBAPIError as error:
                state = sqlstate(error) or ""
                self._recover(error)
                if state == READ_ONLY:
                    raise PrimaryRequiredError from error
                is_lost = error.connection_invalidated or (state[:2] in {"08", "57"} and state != "57014")
                if (state not in _LOCK_LOST and not is_lost) or (or_raise and not left):
                    raise
                if not left:
                    # The driver's text may name rows.
                    logger.warning("a batch failed with SQLSTATE %s and is skipped", state or "unknown")
                    return PurgeUnfinished.UNREACHABLE if is_lost else PurgeUnfinished.BUSY
        raise AssertionError

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._engine.connect()
        return self._connection

    def _recover(self, error: DBAPIError) -> None:
        """End a failed transaction; leave a lost connection."""
        if self._connection is not None:
            if error.connection_invalidated:
                self.close()
            else:
                self._connection.rollback()

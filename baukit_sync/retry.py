"""Re-run a whole unit of work that the database refused for a reason that passes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from baukit_sync.errors import InvalidArgumentError
from baukit_sync.transaction import check_integer, sqlstate

R = TypeVar("R")
S = TypeVar("S", bound=Session)

SERIALIZATION_FAILURE, DEADLOCK_DETECTED = "40001", "40P01"

_SERVER_WENT_AWAY = ("08", "57P01", "57P02", "57P03")


class Backoff:
    """When to run again, and after how long: the decisions that the blocking and the async loop share."""

    def __init__(self, attempts: int, first_delay: timedelta, max_delay: timedelta) -> None:
        """Check the arguments of :func:`retry_transaction`."""
        check_integer("attempts", attempts, least=1, most=100)
        for argument, delay in (("first_delay", first_delay), ("max_delay", max_delay)):
            if not isinstance(delay, timedelta) or delay < timedelta(0):
                raise InvalidArgumentError(argument, "a timedelta >= 0")
        self._attempts = attempts
        self._first = first_delay.total_seconds()
        self._most = max_delay.total_seconds()

    def seconds(self, attempt: int, error: DBAPIError, *, committing: bool) -> float | None:
        """Return how long to wait after a failed attempt, counted from 1; ``None`` means give up."""
        if attempt >= self._attempts or not _passes(error, committing=committing):
            return None
        # Random from zero on: rivals that failed together must not come back together.
        return random.uniform(0, min(self._most, self._first * 2.0 ** (attempt - 1)))  # noqa: S311


def _passes(error: DBAPIError, *, committing: bool) -> bool:
    state = sqlstate(error)
    if state in {SERIALIZATION_FAILURE, DEADLOCK_DETECTED}:
        return True
    # A COMMIT whose answer was lost may have been carried out: running again could do the work twice.
    lost = error.connection_invalidated or (state is not None and state.startswith(_SERVER_WENT_AWAY))
    return lost and not committing


def check_factory(factory: object, *, engine: type, maker: type, connection: type) -> None:
    """Refuse anything but an engine or a session factory that opens transactions of its own.

    Raises:
        InvalidArgumentError: ``factory`` is something else, or is bound to a connection.
    """
    options: Any = getattr(factory, "kw", {})
    binds: list[Any] = [options.get("bind"), *(options.get("binds") or {}).values()]
    if not isinstance(factory, engine | maker) or any(isinstance(bind, connection) for bind in binds):
        raise InvalidArgumentError(
            "factory", "an engine, or a session factory that is not bound to a connection"
        )


def retry_transaction(
    factory: sessionmaker[S] | Engine,
    work: Callable[[S], R] | Callable[[Connection], R],
    *,
    attempts: int = 5,
    first_delay: timedelta = timedelta(milliseconds=20),
    max_delay: timedelta = timedelta(seconds=1),
) -> R:
    """Run a unit of work in a transaction of its own, and run all of it again when the database says so.

    Runs again after a serialization failure (40001), a deadlock (40P01) or a lost connection, each time in a
    new transaction. A connection that is lost while COMMIT is under way is not retried, since the commit may
    have happened: make such work replay-safe.

    Args:
        factory: A ``sessionmaker`` or an ``Engine``; never a connection, whose transaction is yours.
        work: Gets the session or connection, in a transaction; must hold the whole unit of work, reads too,
            and be fit to run several times.
        attempts: The most runs, 1..100.
        first_delay: The longest wait before the second run; it doubles with each run. The wait itself is
            random between 0 and that.
        max_delay: The longest wait before any run.

    Returns:
        What the run that was committed returned.

    Raises:
        InvalidArgumentError: ``factory`` cannot open transactions of its own, or a bound is out of range.
        sqlalchemy.exc.DBAPIError: The last run failed, or failed for another reason.

    Commits once, and rolls back each failed run. Sleeps between runs, without a connection.
    """
    check_factory(factory, engine=Engine, maker=sessionmaker, connection=Connection)
    backoff = Backoff(attempts, first_delay, max_delay)
    attempt = 0
    while True:
        attempt += 1
        committing = False
        try:
            with _open(factory) as unit:
                unit.begin()
                result: R = work(unit)
                if not isinstance(unit, Connection):
                    # Not left to COMMIT: a connection that is lost here has committed nothing.
                    unit.flush()
                committing = True
                unit.commit()
                return result
        except DBAPIError as error:
            seconds = backoff.seconds(attempt, error, committing=committing)
            if seconds is None:
                raise
        time.sleep(seconds)


def _open(factory: sessionmaker[Any] | Engine) -> Any:
    return factory.connect() if isinstance(factory, Engine) else factory()

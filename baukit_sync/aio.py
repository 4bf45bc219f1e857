"""The database functions for ``AsyncSession``, ``AsyncConnection`` and ``AsyncEngine``.

Each is the blocking function itself, run by SQLAlchemy on the async driver: same arguments, results, errors,
locks and statements. Needs the extra ``asyncio`` (``asyncpg`` includes it).
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar, cast

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
)
from sqlalchemy.orm import Session

from baukit_sync import backfill, pages, pull, purge, revisions, writes
from baukit_sync.retry import Backoff, check_factory
from baukit_sync.transaction import SessionLike

__all__ = [
    "AsyncSessionLike",
    "allocate_revisions",
    "backfill_revisions",
    "current_revision",
    "current_revision_for_update",
    "ensure_owner",
    "fence_restore",
    "guard_pull_cursor",
    "guard_pull_cursors",
    "guard_push_cursor",
    "next_revision",
    "next_revisions",
    "pull_page",
    "purge_horizon",
    "purge_tombstone_batch",
    "purge_tombstones",
    "retry_transaction",
    "soft_delete_where",
    "undelete_where",
    "update_where",
]

AsyncSessionLike: TypeAlias = AsyncSession | async_scoped_session[AsyncSession] | AsyncConnection
"""What an async product has open: an ORM session or a Core connection."""

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=AsyncSession)


def _on_session(
    blocking: Callable[Concatenate[SessionLike, P], R],
) -> Callable[Concatenate[AsyncSessionLike, P], Coroutine[Any, Any, R]]:
    """Lift a function that works in the caller's transaction."""

    async def lifted(session: AsyncSessionLike, /, *args: P.args, **kwargs: P.kwargs) -> R:
        def body(inner: SessionLike) -> R:
            return blocking(inner, *args, **kwargs)

        opened = session() if isinstance(session, async_scoped_session) else session
        return await opened.run_sync(body)

    return _signed(lifted, blocking, AsyncSessionLike)


def _on_engine(
    blocking: Callable[Concatenate[Engine, P], R],
) -> Callable[Concatenate[AsyncEngine, P], Coroutine[Any, Any, R]]:
    """Lift a function that opens its own transactions."""

    async def lifted(engine: AsyncEngine, /, *args: P.args, **kwargs: P.kwargs) -> R:
        def body(session: Session) -> R:
            return blocking(cast("Engine", session.get_bind()), *args, **kwargs)

        # The session connects to nothing; it is SQLAlchemy's public way into its greenlet.
        async with AsyncSession(engine) as session:
            return await session.run_sync(body)

    return _signed(lifted, blocking, AsyncEngine)


F = TypeVar("F", bound=Callable[..., Any])


def _signed(lifted: F, blocking: Callable[..., Any], first: object) -> F:
    """Show the lifted function as the blocking one with another first parameter, also to ``inspect``."""
    functools.update_wrapper(lifted, blocking)
    signature = inspect.signature(blocking)
    session, *others = signature.parameters.values()
    parameters = [session.replace(annotation=first, kind=inspect.Parameter.POSITIONAL_ONLY), *others]
    lifted.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    lifted.__annotations__ = {**blocking.__annotations__, session.name: first}
    lifted.__module__ = __name__
    return lifted


allocate_revisions = _on_session(revisions.allocate_revisions)
backfill_revisions = _on_engine(backfill.backfill_revisions)
current_revision = _on_session(revisions.current_revision)
current_revision_for_update = _on_session(revisions.current_revision_for_update)
ensure_owner = _on_session(revisions.ensure_owner)
fence_restore = _on_session(pull.fence_restore)
guard_pull_cursor = _on_session(pull.guard_pull_cursor)
guard_pull_cursors = _on_session(pull.guard_pull_cursors)
guard_push_cursor = _on_session(pull.guard_push_cursor)
next_revision = _on_session(revisions.next_revision)
next_revisions = _on_session(revisions.next_revisions)
pull_page = _on_session(pages.pull_page)
purge_horizon = _on_session(pull.purge_horizon)
purge_tombstone_batch = _on_session(purge.purge_tombstone_batch)
purge_tombstones = _on_engine(purge.purge_tombstones)
soft_delete_where = _on_session(writes.soft_delete_where)
undelete_where = _on_session(writes.undelete_where)
update_where = _on_session(writes.update_where)


async def retry_transaction(
    factory: async_sessionmaker[S] | AsyncEngine,
    work: Callable[[S], Coroutine[Any, Any, R]] | Callable[[AsyncConnection], Coroutine[Any, Any, R]],
    *,
    attempts: int = 5,
    first_delay: timedelta = timedelta(milliseconds=20),
    max_delay: timedelta = timedelta(seconds=1),
) -> R:
    """Run an async unit of work as :func:`baukit_sync.retry_transaction` does; it sleeps on the event loop.

    Args:
        factory: An ``async_sessionmaker`` or an ``AsyncEngine``.
        work: A coroutine function that gets the session or connection, in a transaction.
        attempts: The most runs, 1..100.
        first_delay: The longest wait before the second run; it doubles with each run.
        max_delay: The longest wait before any run.

    Returns:
        What the run that was committed returned.

    Raises:
        InvalidArgumentError: ``factory`` cannot open transactions of its own, or a bound is out of range.
        sqlalchemy.exc.DBAPIError: The last run failed, or failed for another reason.
    """
    check_factory(factory, engine=AsyncEngine, maker=async_sessionmaker, connection=AsyncConnection)
    backoff = Backoff(attempts, first_delay, max_delay)
    attempt = 0
    while True:
        attempt += 1
        committing = False
        opened: Any = factory.connect() if isinstance(factory, AsyncEngine) else factory()
        try:
            async with opened as unit:
                await unit.begin()
                result: R = await work(unit)
                if isinstance(unit, AsyncSession):
                    await unit.flush()
                committing = True
                await unit.commit()
                return result
        except DBAPIError as error:
            seconds = backoff.seconds(attempt, error, committing=committing)
            if seconds is None:
                raise
        await asyncio.sleep(seconds)

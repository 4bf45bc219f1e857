"""The database functions for ``AsyncSession``, ``AsyncConnection`` and ``AsyncEngine``.

Each is the blocking function itself, run by SQLAlchemy on the async driver: same arguments, results, errors,
locks and statements. Needs the extra ``asyncio`` (``asyncpg`` includes it).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar, cast

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session

from baukit_sync import pull, purge, revisions
from baukit_sync.transaction import SessionLike

__all__ = [
    "AsyncSessionLike",
    "allocate_revisions",
    "current_revision",
    "current_revision_for_update",
    "ensure_owner",
    "fence_restore",
    "guard_pull_cursor",
    "guard_push_cursor",
    "next_revision",
    "next_revisions",
    "purge_horizon",
    "purge_tombstone_batch",
    "purge_tombstones",
]

AsyncSessionLike: TypeAlias = AsyncSession | async_scoped_session[AsyncSession] | AsyncConnection
"""What an async product has open: an ORM session or a Core connection."""

P = ParamSpec("P")
R = TypeVar("R")


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
    lifted.__module__ = __name__
    return lifted


allocate_revisions = _on_session(revisions.allocate_revisions)
current_revision = _on_session(revisions.current_revision)
current_revision_for_update = _on_session(revisions.current_revision_for_update)
ensure_owner = _on_session(revisions.ensure_owner)
fence_restore = _on_session(pull.fence_restore)
guard_pull_cursor = _on_session(pull.guard_pull_cursor)
guard_push_cursor = _on_session(pull.guard_push_cursor)
next_revision = _on_session(revisions.next_revision)
next_revisions = _on_session(revisions.next_revisions)
purge_horizon = _on_session(pull.purge_horizon)
purge_tombstone_batch = _on_session(purge.purge_tombstone_batch)
purge_tombstones = _on_engine(purge.purge_tombstones)

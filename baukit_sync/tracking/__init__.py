"""ORM: stamp what a flush writes, turn deletes into tombstones, refuse what cannot be stamped.

``track`` works on any mapped class with the columns ``owner_id``, ``revision`` and ``deleted_at``, whether it
uses the mixin or not. Nothing is remembered from one flush to the next, so a rollback, also to a savepoint,
cannot leave a wrong revision behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias
from weakref import WeakSet

from sqlalchemy import event
from sqlalchemy.orm import Session, UOWTransaction, scoped_session, sessionmaker

from baukit_sync.errors import InvalidArgumentError
from baukit_sync.tracking.outcome import PLAN, forget_revision, refuse_escaped
from baukit_sync.tracking.plan import Plan
from baukit_sync.tracking.statements import STAMPED_BY_HAND, refuse_unstamped

__all__ = ["STAMPED_BY_HAND", "SessionFactory", "track"]

SessionFactory: TypeAlias = sessionmaker[Any] | scoped_session[Any] | type[Session] | Any
"""What :func:`track` takes; ``Any`` stands for the async factories, which need an extra."""


_tracked: WeakSet[type[object]] = WeakSet()


def track(factory: SessionFactory) -> None:
    """Make every flush of a factory's sessions stamp what it writes.

    New and really changed objects get a revision each, parents before children, and a new ``updated_at``;
    one that you assign is kept. ``session.delete()``, its ORM cascades and removed orphans become tombstones.
    Call it once, where the factory is made; a second call changes nothing.

    Refused with a :class:`~baukit_sync.errors.TrackingError`, before anything is sent: an INSERT, UPDATE or
    DELETE statement on a syncable table through ``session.execute`` or ``Query``, a changed owner, a revision
    assigned by hand, a hard delete. SQLAlchemy has no hook for ``session.bulk_*`` and
    ``session.connection().execute``: those are not seen.

    Args:
        factory: A ``sessionmaker``, ``scoped_session`` or ``Session`` class, or their async counterparts.
            Sessions of other factories are not affected, unless it is ``Session`` or ``AsyncSession`` itself.

    Raises:
        InvalidArgumentError: ``factory`` is something else.

    A flush locks the counters of the owners it writes for FOR NO KEY UPDATE, in owner order, until the
    transaction ends, and raises :class:`~baukit_sync.errors.UnknownOwnerError` when one has no counter.
    Commits nothing. Source: contract section 3.
    """
    session_class = _session_class(factory)
    # event.contains() would take a class for one that was at the same address before it.
    if _tracked.isdisjoint(session_class.__mro__):
        _tracked.add(session_class)
        event.listen(session_class, "before_flush", _stamp)
        event.listen(session_class, "after_flush", refuse_escaped)
        event.listen(session_class, "do_orm_execute", refuse_unstamped)
        event.listen(session_class, "pending_to_transient", forget_revision)
        event.listen(session_class, "persistent_to_transient", forget_revision)


def _session_class(factory: Any) -> type[Session]:
    """Find the class whose events a factory's sessions fire; async factories are told by their attributes."""
    maker = getattr(factory, "session_factory", factory)
    session_class = getattr(maker, "class_", maker)
    inner = getattr(session_class, "sync_session_class", None)
    if isinstance(session_class, type) and inner is not None:
        session_class = getattr(maker, "kw", {}).get("sync_session_class", inner)
        if maker is not session_class and hasattr(maker, "configure") and session_class is inner:
            session_class = type(inner.__name__, (inner,), {})
            maker.configure(sync_session_class=session_class)
    if not isinstance(session_class, type) or not issubclass(session_class, Session):
        raise InvalidArgumentError("factory", "a session factory or a session class")
    return session_class


def _stamp(session: Session, context: UOWTransaction, instances: Sequence[Any] | None) -> None:
    if PLAN not in context.attributes:
        plan = context.attributes[PLAN] = Plan.of(session, instances)
        plan.carry_out()

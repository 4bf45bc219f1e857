"""Guards: what a pull or a push calls first in its transaction.

A guard locks the owner's counter, then reads the horizon in a second statement. When the lock had to wait for
a purge, one joined statement would still show the horizon from before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from baukit_sync.errors import CursorAheadError, ResyncRequiredError
from baukit_sync.horizon import FULL_RESYNC_CURSOR, MAX_REVISION, check_cursor, check_pull_cursor
from baukit_sync.schema import counters, horizons, raise_only
from baukit_sync.transaction import (
    OwnerId,
    OwnerT,
    SessionLike,
    check_integer,
    check_owner_id,
    execute,
    flush,
)

_COUNTER = sa.select(counters.c.last_revision).where(counters.c.owner_id == sa.bindparam("owner"))

_COUNTER_FOR_KEY_SHARE = _COUNTER.with_for_update(read=True, key_share=True)

# A push allocates anyway; a share lock first would let two pushes deadlock when both upgrade it.
_COUNTER_FOR_NO_KEY_UPDATE = _COUNTER.with_for_update(key_share=True)

_HORIZON = sa.select(horizons.c.horizon_revision).where(horizons.c.owner_id == sa.bindparam("owner"))

_OWNERS = sa.bindparam("owners", type_=sa.types.NullType())

_COUNTERS_FOR_KEY_SHARE = (
    sa.select(counters.c.owner_id, counters.c.last_revision)
    .where(counters.c.owner_id == sa.func.any(_OWNERS))
    .order_by(counters.c.owner_id)
    .with_for_update(read=True, key_share=True)
)

_HORIZONS = sa.select(horizons.c.owner_id, horizons.c.horizon_revision).where(
    horizons.c.owner_id == sa.func.any(_OWNERS)
)

MAX_FENCE_GAP = 1_000_000_000_000


@dataclass(frozen=True, slots=True)
class PullWindow:
    """The revisions one pull covers: ``after < revision <= through``, in every table.

    Read no row beyond ``through``: a writer that commits between two of the pull's statements stands above it
    and comes whole with the next pull.

    Attributes:
        owner_id: Whose rows to read.
        after: The client's cursor; exclusive.
        through: The owner's counter when the guard locked it; inclusive, the greatest next cursor.
        rebuild: Where the counter stood when the client started from 0; ``None`` once it has passed it.
    """

    owner_id: OwnerId
    after: int
    through: int
    rebuild: int | None = None


def guard_pull_cursor(
    session: SessionLike,
    owner_id: OwnerId,
    cursor: int,
    *,
    through: int | None = None,
    rebuild: int | None = None,
    allow_ahead: bool = False,
) -> PullWindow:
    """Check a pull's cursor and keep the owner's purge out until the pull's transaction ends.

    Call it first in the transaction, then read in the same transaction. Pending ORM objects are flushed
    first, as for an ORM query. READ COMMITTED is enough; under REPEATABLE READ and SERIALIZABLE the whole
    pull sees one snapshot.

    Args:
        session: The session or connection whose transaction reads the rows.
        owner_id: The owner, in the type of its column. An owner without a counter stands at revision 0.
        cursor: The last revision the client has applied; 0 to get everything.
        through: The bound of an earlier window, >= ``cursor``: a client that pages up to it finishes, however
            fast others write. ``None`` for the counter.
        rebuild: What the client got with its last page, when it started from 0 and is not through yet. Its
            cursors may be below the horizon: nothing that was purged before it started can have reached it.
            So not the cursor but this bound is held against the horizon.
        allow_ahead: Serve a cursor above the counter with an empty window instead of refusing it. The client
            then misses every change until the counter has passed its cursor.

    Returns:
        The window to read.

    Raises:
        InvalidCursorError: ``cursor`` is not an integer, or is above 9,007,199,254,740,991. Nothing was sent.
        NegativeCursorError: ``cursor`` is below 0. Nothing was sent.
        ResyncRequiredError: ``0 < cursor <`` the owner's horizon, or ``rebuild`` is below it.
        CursorAheadError: ``cursor``, ``through`` or ``rebuild`` is above the owner's counter.
        UnsafeTransactionError: The connection is in AUTOCOMMIT; nothing was sent.
        PrimaryRequiredError: The transaction is read-only or runs on a standby.
        InvalidArgumentError: ``owner_id`` is not a UUID, an int or a str, or ``through`` or ``rebuild`` is
            not an integer >= ``cursor``.

    Locks the owner's counter FOR KEY SHARE until the transaction ends: writers and other pulls go on, a purge
    skips the owner. Waits for a purge batch of this owner that is under way. Commits nothing. Source:
    contract section 4.
    """
    check_cursor(cursor)
    for argument, bound in (("through", through), ("rebuild", rebuild)):
        if bound is not None:
            check_integer(argument, bound, least=cursor, most=MAX_REVISION)
    claimed = _claimed(cursor, rebuild)
    current = _guard(session, owner_id, claimed, _COUNTER_FOR_KEY_SHARE, allow_ahead=allow_ahead)
    if through is not None and through > current and not allow_ahead:
        raise CursorAheadError(current)
    return _window(owner_id, cursor, max(cursor, current) if through is None else through, rebuild)


def _claimed(cursor: int, rebuild: int | None) -> int:
    """Return what is held against the horizon."""
    return cursor if cursor == FULL_RESYNC_CURSOR or rebuild is None else rebuild


def _window(owner_id: OwnerId, cursor: int, through: int, rebuild: int | None) -> PullWindow:
    if cursor == FULL_RESYNC_CURSOR:
        rebuild = through
    elif rebuild == cursor:
        rebuild = None
    return PullWindow(owner_id, after=cursor, through=through, rebuild=rebuild)


def guard_pull_cursors(
    session: SessionLike,
    cursors: Mapping[OwnerT, int],
    *,
    rebuilds: Mapping[OwnerT, int] | None = None,
) -> dict[OwnerT, PullWindow | ResyncRequiredError | CursorAheadError]:
    """Do as :func:`guard_pull_cursor` for several owners at once: a person's own rows and shared workspaces.

    A stale cursor does not spoil the others: its owner's answer is the error that a single guard would have
    raised. Hand the windows among the answers to ``pull_page``, and let the client rebuild the other owners.

    Args:
        session: The session or connection whose transaction reads the rows.
        cursors: Each owner's cursor. All owner ids are of one type.
        rebuilds: For owners whose client started from 0 and is not through: what it got with its last page.

    Returns:
        Each owner's window, or its ``ResyncRequiredError`` or ``CursorAheadError``; empty when ``cursors``
        is.

    Raises:
        InvalidCursorError: A cursor is not an integer, or is above 9,007,199,254,740,991. Nothing was sent.
        NegativeCursorError: A cursor is below 0. Nothing was sent.
        UnsafeTransactionError: The connection is in AUTOCOMMIT; nothing was sent.
        PrimaryRequiredError: The transaction is read-only or runs on a standby.
        InvalidArgumentError: An owner id is not a UUID, an int or a str, or a rebuild's bound is not an
            integer >= its cursor.

    Locks the owners' counters FOR KEY SHARE, in owner order, until the transaction ends. Sends two
    statements. Commits nothing. Source: contract section 4.
    """
    rebuilds = rebuilds or {}
    for owner_id, cursor in cursors.items():
        check_owner_id(owner_id)
        check_cursor(cursor)
        if owner_id in rebuilds:
            check_integer("rebuild", rebuilds[owner_id], least=cursor, most=MAX_REVISION)
    if not cursors:
        return {}
    flush(session)
    owners = {"owners": list(cursors)}
    counted: Sequence[Any] = execute(session, _COUNTERS_FOR_KEY_SHARE, owners).all()
    current: dict[OwnerT, int] = dict(counted)
    purged: Sequence[Any] = execute(session, _HORIZONS, owners).all()
    horizon: dict[OwnerT, int] = dict(purged)
    answers: dict[OwnerT, PullWindow | ResyncRequiredError | CursorAheadError] = {}
    for owner_id, cursor in cursors.items():
        rebuild = rebuilds.get(owner_id)
        try:
            through = _check(_claimed(cursor, rebuild), current.get(owner_id, 0), horizon.get(owner_id))
        except (ResyncRequiredError, CursorAheadError) as error:
            answers[owner_id] = error
        else:
            answers[owner_id] = _window(owner_id, cursor, through, rebuild)
    return answers


def guard_push_cursor(session: SessionLike, owner_id: OwnerId, base_cursor: int) -> None:
    """Refuse a push from a client that has missed a purge: it would bring purged rows back.

    Call it first in the push's transaction, before anything is applied.

    Args:
        session: The session or connection whose transaction will write.
        owner_id: The owner, in the type of its column. An owner without a counter stands at revision 0.
        base_cursor: The cursor that the client's edits are based on; 0 when it has never pulled.

    Raises:
        InvalidCursorError: ``base_cursor`` is not an integer, or is above 9,007,199,254,740,991. Nothing was
            sent.
        NegativeCursorError: ``base_cursor`` is below 0. Nothing was sent.
        ResyncRequiredError: ``0 < base_cursor <`` the owner's horizon.
        CursorAheadError: ``base_cursor`` is above the owner's counter.
        UnsafeTransactionError: The connection is in AUTOCOMMIT; nothing was sent.
        PrimaryRequiredError: The transaction is read-only or runs on a standby.
        InvalidArgumentError: ``owner_id`` is not a UUID, an int or a str.

    Locks the owner's counter FOR NO KEY UPDATE until the transaction ends: the owner's other writers wait,
    its pulls go on, its purge skips the owner. Under REPEATABLE READ and SERIALIZABLE a write or purge since
    the transaction's snapshot surfaces as SQLSTATE 40001. Commits nothing. Source: contract section 4.
    """
    _guard(session, owner_id, base_cursor, _COUNTER_FOR_NO_KEY_UPDATE, allow_ahead=False)


def _guard(
    session: SessionLike, owner_id: OwnerId, cursor: int, lock: sa.Select[Any], *, allow_ahead: bool
) -> int:
    check_owner_id(owner_id)
    check_cursor(cursor)
    flush(session)
    owner = {"owner": owner_id}
    current: int = execute(session, lock, owner).scalar() or 0
    return _check(cursor, current, execute(session, _HORIZON, owner).scalar(), allow_ahead=allow_ahead)


def _check(cursor: int, current: int, horizon: int | None, *, allow_ahead: bool = False) -> int:
    check_pull_cursor(cursor, horizon)
    if cursor > current and not allow_ahead:
        raise CursorAheadError(current)
    return current


def purge_horizon(session: SessionLike, owner_id: OwnerId) -> int | None:
    """Read the owner's purge horizon: the greatest revision of any tombstone purged for it.

    Args:
        session: A session or connection; pending ORM objects are flushed first.
        owner_id: The owner, in the type of its column.

    Returns:
        The horizon; ``None`` when nothing was ever purged for the owner.

    Raises:
        UnsafeTransactionError: The connection is in AUTOCOMMIT; nothing was sent.
        InvalidArgumentError: ``owner_id`` is not a UUID, an int or a str.

    Locks nothing, so a purge may raise it at once: a pull needs :func:`guard_pull_cursor`. Commits nothing.
    Source: contract section 4.
    """
    check_owner_id(owner_id)
    flush(session)
    horizon: int | None = execute(session, _HORIZON, {"owner": owner_id}).scalar()
    return horizon


def _fence_restore() -> sa.Select[Any]:
    """Build the statement that raises every counter and fences every cursor issued before."""
    locked = (
        sa.select(counters.c.owner_id)
        .order_by(counters.c.owner_id)
        .with_for_update(key_share=True)
        .cte("locked")
        .prefix_with("MATERIALIZED")
    )
    raised = (
        sa.update(counters)
        .where(counters.c.owner_id == locked.c.owner_id)
        .values(last_revision=counters.c.last_revision + sa.bindparam("gap"))
        .returning(counters.c.owner_id, counters.c.last_revision)
        .cte("raised")
    )
    fence = postgresql.insert(horizons).from_select(
        ["owner_id", "horizon_revision"], sa.select(raised.c.owner_id, raised.c.last_revision)
    )
    fenced = raise_only(fence).cte("fenced")
    return sa.select(sa.func.count()).select_from(raised).add_cte(fenced)


_FENCE_RESTORE = _fence_restore()


def fence_restore(session: SessionLike, *, gap: int) -> int:
    """Make every cursor issued before a restore from backup rebuild from 0.

    A restored database has forgotten its last revisions, and clients hold cursors that it would hand out
    again. Run this once after the restore, before any client comes back: every counter goes up by ``gap``,
    and every horizon to its counter.

    Args:
        session: The session or connection whose transaction does it.
        gap: More revisions than any owner can have lost, 1..1,000,000,000,000.

    Returns:
        How many owners were fenced: all that have a counter.

    Raises:
        UnsafeTransactionError: The connection is in AUTOCOMMIT; nothing was sent.
        PrimaryRequiredError: The transaction is read-only or runs on a standby.
        InvalidArgumentError: ``gap`` is out of range.

    Locks every counter FOR NO KEY UPDATE, in owner order, until the transaction ends: every writer waits.
    Commits nothing. Source: contract section 4.
    """
    check_integer("gap", gap, least=1, most=MAX_FENCE_GAP)
    flush(session)
    owners: int = execute(session, _FENCE_RESTORE, {"gap": gap}).scalar_one()
    return owners

"""Counters: one per owner, raised inside the transaction that writes the rows.

The counter's row lock lasts until that transaction ends, so one owner's writers queue, and the order of
revisions is the order of commits. Other owners are not touched, and a rollback gives the numbers back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from baukit_sync.errors import UnknownOwnerError
from baukit_sync.horizon import MAX_REVISION
from baukit_sync.schema import counters
from baukit_sync.transaction import (
    OwnerId,
    OwnerT,
    SessionLike,
    check_integer,
    check_owner_id,
    execute,
    flush,
)

_ALLOCATE = (
    sa.update(counters)
    .where(counters.c.owner_id == sa.bindparam("owner"))
    .values(last_revision=counters.c.last_revision + sa.bindparam("count"))
    .returning(counters.c.last_revision, sa.func.clock_timestamp())
)

_ENSURE = (
    postgresql.insert(counters)
    .values(owner_id=sa.bindparam("owner"))
    .on_conflict_do_nothing(index_elements=[counters.c.owner_id])
)

_CURRENT = sa.select(counters.c.last_revision).where(counters.c.owner_id == sa.bindparam("owner"))

_CURRENT_FOR_NO_KEY_UPDATE = _CURRENT.with_for_update(key_share=True)


def _allocate_many() -> sa.UpdateBase:
    """Build the statement that serves several owners, or none when one of them has no counter.

    The first use of ``:owners`` gives the array its type, also where the driver leaves it to the server.
    """
    owners = sa.bindparam("owners", type_=sa.types.NullType())
    counts = sa.bindparam("counts", type_=postgresql.ARRAY(sa.BigInteger))
    locked = (
        sa.select(counters.c.owner_id)
        .where(counters.c.owner_id == sa.func.any(owners))
        .order_by(counters.c.owner_id)
        .with_for_update(key_share=True)
        .cte("locked")
        .prefix_with("MATERIALIZED")
    )
    wanted = (
        sa.func.unnest(owners, counts)
        .table_valued(sa.column("owner_id"), sa.column("count"))
        .render_derived(name="wanted")
    )
    return (
        sa.update(counters)
        .where(counters.c.owner_id == locked.c.owner_id)
        .where(wanted.c.owner_id == locked.c.owner_id)
        .where(
            sa.select(sa.func.count()).select_from(locked).scalar_subquery() == sa.func.cardinality(owners)
        )
        .values(last_revision=counters.c.last_revision + wanted.c.count)
        .returning(counters.c.owner_id, counters.c.last_revision, sa.func.clock_timestamp())
    )


_ALLOCATE_MANY = _allocate_many()


def next_revision(session: SessionLike, owner_id: OwnerId) -> int:
    """Allocate the owner's next revision; stamp it on the row that this transaction writes.

    Call it late: from here to the end of the transaction the owner's other writers wait. Pending ORM objects
    are not flushed, since they are usually what the revision is for.

    Args:
        session: The session or connection whose transaction writes the row.
        owner_id: The owner, in the type of its column.

    Returns:
        A positive integer, one above the owner's previous revision. A rollback, also to a savepoint, takes it
        back, and the next caller gets the same number.

    Raises:
        UnknownOwnerError: The owner has no counter. The transaction stays usable.
        UnsafeTransactionError: The connection is in AUTOCOMMIT; nothing was sent.
        PrimaryRequiredError: The transaction is read-only or runs on a standby.
        InvalidArgumentError: ``owner_id`` is not a UUID, an int or a str.

    Locks the owner's counter FOR NO KEY UPDATE until the transaction ends. Commits nothing. Under REPEATABLE
    READ and SERIALIZABLE a concurrent allocation surfaces as SQLSTATE 40001: re-run the whole transaction.
    Source: contract section 3.
    """
    return next_revisions(session, owner_id, 1)[0]


def next_revisions(session: SessionLike, owner_id: OwnerId, count: int) -> range:
    """Allocate a block of consecutive revisions for one owner; otherwise as :func:`next_revision`.

    Args:
        session: The session or connection whose transaction writes the rows.
        owner_id: The owner, in the type of its column.
        count: How many, >= 1.

    Returns:
        The block as a range of ``count`` positive integers.

    Raises:
        UnknownOwnerError: The owner has no counter. The transaction stays usable.
        UnsafeTransactionError: The connection is in AUTOCOMMIT; nothing was sent.
        PrimaryRequiredError: The transaction is read-only or runs on a standby.
        InvalidArgumentError: ``count`` is not an integer >= 1, or ``owner_id`` not a UUID, an int or a str.
    """
    check_owner_id(owner_id)
    check_integer("count", count, least=1, most=MAX_REVISION)
    last: int | None = execute(session, _ALLOCATE, {"owner": owner_id, "count": count}).scalar()
    if last is None:
        raise UnknownOwnerError
    return range(last - count + 1, last + 1)


def allocate_revisions(session: SessionLike, counts: Mapping[OwnerT, int]) -> dict[OwnerT, range]:
    """Allocate blocks for several owners in one statement; otherwise as :func:`next_revisions`.

    The counters are locked in the order of their owner ids, so that two transactions which write for the same
    owners wait for each other instead of deadlocking.

    Args:
        session: The session or connection whose transaction writes the rows.
        counts: How many revisions each owner needs, >= 1. All owner ids are of one type.

    Returns:
        Each owner's block; empty when ``counts`` is.

    Raises:
        UnknownOwnerError: An owner has no counter. No counter was raised; the transaction stays usable.
        UnsafeTransactionError: The connection is in AUTOCOMMIT; nothing was sent.
        PrimaryRequiredError: The transaction is read-only or runs on a standby.
        InvalidArgumentError: A count is not an integer >= 1, or an owner id is not a UUID, an int or a str.
    """
    return allocate_at(session, counts)[0] if counts else {}


def allocate_at(session: SessionLike, counts: Mapping[OwnerT, int]) -> tuple[dict[OwnerT, range], datetime]:
    """Do as :func:`allocate_revisions` for at least one owner; also return the server's time then."""
    for owner_id, count in counts.items():
        check_owner_id(owner_id)
        check_integer("count", count, least=1, most=MAX_REVISION)
    if len(counts) == 1:
        # Half the time of the statement for many.
        ((owner_id, count),) = counts.items()
        row: Any = execute(session, _ALLOCATE, {"owner": owner_id, "count": count}).one_or_none()
        if row is None:
            raise UnknownOwnerError
        return {owner_id: range(row[0] - count + 1, row[0] + 1)}, row[1]
    parameters: dict[str, Any] = {"owners": list(counts), "counts": list(counts.values())}
    rows: Sequence[Any] = execute(session, _ALLOCATE_MANY, parameters).all()
    if len(rows) != len(counts):
        raise UnknownOwnerError
    lasts: dict[OwnerT, int] = {owner_id: last for owner_id, last, _ in rows}
    blocks = {
        owner_id: range(lasts[owner_id] - count + 1, lasts[owner_id] + 1)
        for owner_id, count in counts.items()
    }
    return blocks, rows[0][2]


def ensure_owner(session: SessionLike, owner_id: OwnerId) -> None:
    """Create the owner's counter at 0 unless it exists; never reset one.

    Pending ORM objects are flushed first, as for an ORM query, so that a new user row is there for the
    counter's foreign key.

    Args:
        session: The session or connection whose transaction creates the owner.
        owner_id: The owner, in the type of its column.

    Raises:
        UnsafeTransactionError: The connection is in AUTOCOMMIT; nothing was sent.
        PrimaryRequiredError: The transaction is read-only or runs on a standby.
        InvalidArgumentError: ``owner_id`` is not a UUID, an int or a str.

    Waits for a transaction that is creating or holds the same counter. Commits nothing. Source: contract
    section 3.
    """
    check_owner_id(owner_id)
    flush(session)
    execute(session, _ENSURE, {"owner": owner_id})


def current_revision(session: SessionLike, owner_id: OwnerId) -> int | None:
    """Read the owner's counter: how far a pull could go.

    Args:
        session: A session or connection; pending ORM objects are flushed first.
        owner_id: The owner, in the type of its column.

    Returns:
        The last revision, committed or this transaction's own; 0 before the first; ``None`` without a
        counter.

    Raises:
        UnsafeTransactionError: The connection is in AUTOCOMMIT; nothing was sent.
        InvalidArgumentError: ``owner_id`` is not a UUID, an int or a str.

    Locks nothing. Commits nothing. Source: contract section 3.
    """
    return _current(session, owner_id, _CURRENT)


def current_revision_for_update(session: SessionLike, owner_id: OwnerId) -> int | None:
    """Read the owner's counter and keep every other allocation out until the transaction ends.

    For writes that depend on what they read. The owner's pulls go on; its purge skips the owner.

    Args:
        session: The session or connection whose transaction will write.
        owner_id: The owner, in the type of its column.

    Returns:
        As :func:`current_revision`; ``None``, with nothing locked, without a counter.

    Raises:
        UnsafeTransactionError: The connection is in AUTOCOMMIT; nothing was sent.
        PrimaryRequiredError: The transaction is read-only or runs on a standby.
        InvalidArgumentError: ``owner_id`` is not a UUID, an int or a str.

    Locks the owner's counter FOR NO KEY UPDATE until the transaction ends. Commits nothing. Source: contract
    section 3.
    """
    return _current(session, owner_id, _CURRENT_FOR_NO_KEY_UPDATE)


def _current(session: SessionLike, owner_id: OwnerId, statement: sa.Select[Any]) -> int | None:
    check_owner_id(owner_id)
    flush(session)
    revision: int | None = execute(session, statement, {"owner": owner_id}).scalar()
    return revision

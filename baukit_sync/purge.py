"""The purge: delete expired tombstones and raise their owners' horizons, in one transaction.

A batch never waits for a counter. It skips an owner that is writing, pulling or being purged elsewhere, and
the next batch or the next run takes that owner's tombstones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, Executable, RowMapping
from sqlalchemy.dialects import postgresql

from baukit_sync.errors import (
    BatchLimitExceededError,
    DeleteMismatchError,
    InvalidArgumentError,
    SelectorShapeError,
)
from baukit_sync.schema import counters, horizons, raise_only
from baukit_sync.transaction import SessionLike, check_aware, check_integer, execute, flush

MAX_BATCH_LIMIT = 1_000_000

# FOR UPDATE and nothing weaker: only it conflicts with the FOR KEY SHARE of an open pull.
_LOCK_OWNERS = (
    sa.select(counters.c.owner_id)
    .where(counters.c.owner_id == sa.func.any(sa.bindparam("owners")))
    .order_by(counters.c.owner_id)
    .with_for_update(skip_locked=True)
)


def _raise_horizons() -> postgresql.Insert:
    """Build the statement that raises the horizons of owners whose counters are locked.

    It rewrites the counters with their own values: a transaction that works on an older snapshot, at
    REPEATABLE READ or SERIALIZABLE, then fails with 40001 at the counter instead of trusting an old horizon.
    The first use of ``:owners`` gives the array its type, also where the driver leaves it to the server.
    """
    owners = sa.bindparam("owners", type_=sa.types.NullType())
    revisions = sa.bindparam("revisions", type_=postgresql.ARRAY(sa.BigInteger))
    touched = (
        sa.update(counters)
        .where(counters.c.owner_id == sa.func.any(owners))
        .values(last_revision=counters.c.last_revision)
        .returning(counters.c.owner_id)
        .cte("touched")
    )
    purged = (
        sa.func.unnest(owners, revisions)
        .table_valued(sa.column("owner_id"), sa.column("revision"))
        .render_derived(name="purged")
    )
    greatest = sa.select(touched.c.owner_id, purged.c.revision).where(purged.c.owner_id == touched.c.owner_id)
    return raise_only(postgresql.insert(horizons).from_select(["owner_id", "horizon_revision"], greatest))


_RAISE_HORIZONS = _raise_horizons()


@dataclass(frozen=True, slots=True)
class TombstoneTable:
    """How one table's tombstones are found and deleted, in the product's own SQL.

    ::

        TombstoneTable(
            "notes",
            "SELECT id, owner_id, revision FROM notes WHERE deleted_at < :cutoff"
            " ORDER BY deleted_at, id LIMIT :limit FOR UPDATE SKIP LOCKED",
            "DELETE FROM notes WHERE id = ANY(:ids)",
        )

    Attributes:
        name: What reports and errors call the table.
        select: Binds ``cutoff`` (a timestamptz) and ``limit``; returns ``id``, ``owner_id`` and ``revision``
            of tombstones with ``deleted_at < cutoff``, locked FOR UPDATE SKIP LOCKED. A parent's selector
            skips rows that still have children; a child without an owner column joins its parent and locks
            ``OF`` the child.
        delete: Binds ``ids``, a list of what ``select`` returned as ``id``; deletes exactly those rows.

    Raises:
        InvalidArgumentError: ``name`` is not text, or a statement is neither text nor an executable.
    """

    name: str
    select: str | Executable
    delete: str | Executable

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidArgumentError("name", "a table's name")
        for field, statement in (("select", self.select), ("delete", self.delete)):
            if not isinstance(statement, str | Executable):
                raise InvalidArgumentError(field, "SQL text or an executable statement")


@dataclass(frozen=True, slots=True)
class PurgeBatch:
    """What one batch did.

    Attributes:
        selected: How many expired tombstones the selector returned and locked.
        deleted: How many of them were deleted. The others belong to owners that are busy or have no counter.
    """

    selected: int
    deleted: int


@dataclass(frozen=True, slots=True)
class PurgedTable:
    """What a run deleted from one table.

    Attributes:
        name: The spec's name.
        deleted: How many rows.
    """

    name: str
    deleted: int


@dataclass(frozen=True, slots=True)
class PurgeReport:
    """What a run deleted.

    Attributes:
        tables: One entry for each spec, in the order given.
    """

    tables: tuple[PurgedTable, ...]


def purge_tombstone_batch(
    session: SessionLike, table: TombstoneTable, cutoff: datetime, limit: int
) -> PurgeBatch:
    """Delete at most ``limit`` expired tombstones and raise the horizons of their owners.

    Each horizon rises to the greatest revision deleted for that owner; one that is higher stays. Roll back
    when this raises.

    Args:
        session: The session or connection whose transaction deletes; READ COMMITTED is enough.
        table: Which tombstones, and how to delete them.
        cutoff: Tombstones with ``deleted_at`` before this instant are expired. Take it from a slot, not from
            the wall clock, so that a retry purges what the first attempt would have.
        limit: The most rows to delete, 1..1,000,000.

    Returns:
        How many rows were selected and how many of them deleted.

    Raises:
        BatchLimitExceededError: The selector returned more than ``limit`` rows; nothing was deleted.
        SelectorShapeError: The selector's rows lack an ``id``, ``owner_id`` or positive ``revision``; nothing
            was deleted.
        DeleteMismatchError: The deleter removed another number of rows than it got ids.
        UnsafeTransactionError: The connection is in AUTOCOMMIT; nothing was sent.
        PrimaryRequiredError: The transaction is read-only or runs on a standby.
        InvalidArgumentError: ``cutoff`` is naive, or ``limit`` is out of range.

    Locks the selected rows and their owners' counters FOR UPDATE until the transaction ends; waits for
    neither a counter nor, with SKIP LOCKED in the selector, a row. Commits nothing. Source: contract section
    5.
    """
    check_aware("cutoff", cutoff)
    check_integer("limit", limit, least=1, most=MAX_BATCH_LIMIT)
    flush(session)
    rows = execute(session, _executable(table.select), {"cutoff": cutoff, "limit": limit}).mappings().all()
    if len(rows) > limit:
        raise BatchLimitExceededError(table.name, len(rows), limit)
    if not rows:
        return PurgeBatch(selected=0, deleted=0)
    tombstones = [_tombstone(table, row) for row in rows]
    owners = list({owner_id for _, owner_id, _ in tombstones})
    locked = set(execute(session, _LOCK_OWNERS, {"owners": owners}).scalars())
    purged = [tombstone for tombstone in tombstones if tombstone[1] in locked]
    if not purged:
        return PurgeBatch(selected=len(rows), deleted=0)
    ids = [row_id for row_id, _, _ in purged]
    deleted = execute(session, _executable(table.delete), {"ids": ids}).rowcount
    if deleted != len(ids):
        raise DeleteMismatchError(table.name, len(ids), deleted)
    greatest: dict[Any, int] = {}
    for _, owner_id, revision in purged:
        greatest[owner_id] = max(revision, greatest.get(owner_id, 0))
    execute(session, _RAISE_HORIZONS, {"owners": list(greatest), "revisions": list(greatest.values())})
    return PurgeBatch(selected=len(rows), deleted=deleted)


def purge_tombstones(
    engine: Engine, tables: Sequence[TombstoneTable], cutoff: datetime, limit: int
) -> PurgeReport:
    """Delete the expired tombstones of several tables, batch by batch, each in a transaction of its own.

    A table is done when a batch selects fewer than ``limit`` rows or deletes nothing. The first error stops
    the run; batches that were committed stay.

    Args:
        engine: Where to connect; each batch is a READ COMMITTED transaction, whatever the engine's default.
        tables: The specs in purge order: children before their parents.
        cutoff: As for :func:`purge_tombstone_batch`.
        limit: The most rows of one batch, 1..1,000,000.

    Returns:
        How many rows were deleted from each table.

    Raises:
        PurgeError: As for :func:`purge_tombstone_batch`.
        PrimaryRequiredError: The server is a standby.
        InvalidArgumentError: ``cutoff`` is naive, or ``limit`` is out of range.

    Holds the locks of :func:`purge_tombstone_batch` for one batch at a time. Commits once per batch.
    Source: contract section 5.
    """
    check_aware("cutoff", cutoff)
    check_integer("limit", limit, least=1, most=MAX_BATCH_LIMIT)
    with engine.connect().execution_options(isolation_level="READ COMMITTED") as connection:
        return PurgeReport(
            tuple(PurgedTable(table.name, _drain(connection, table, cutoff, limit)) for table in tables)
        )


def _drain(connection: Connection, table: TombstoneTable, cutoff: datetime, limit: int) -> int:
    deleted = 0
    while True:
        with connection.begin():
            batch = purge_tombstone_batch(connection, table, cutoff, limit)
        deleted += batch.deleted
        if batch.selected < limit or batch.deleted == 0:
            return deleted


def _executable(statement: str | Executable) -> Executable:
    return sa.text(statement) if isinstance(statement, str) else statement


def _tombstone(table: TombstoneTable, row: RowMapping) -> tuple[Any, Any, int]:
    try:
        row_id, owner_id, revision = row["id"], row["owner_id"], row["revision"]
    except KeyError:
        raise SelectorShapeError(table.name) from None
    if row_id is None or owner_id is None or type(revision) is not int or revision < 1:
        raise SelectorShapeError(table.name)
    return row_id, owner_id, revision

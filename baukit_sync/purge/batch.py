"""The purge: delete expired tombstones and raise their owners' horizons, in one transaction.

A batch never waits for a counter. It skips an owner that is writing, pulling or being purged elsewhere, and
the next batch or the next run takes that owner's tombstones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Executable, RowMapping
from sqlalchemy.dialects import postgresql

from baukit_sync.errors import BatchLimitExceededError, DeleteMismatchError, SelectorShapeError
from baukit_sync.purge.keys import names
from baukit_sync.purge.scans import SCAN_PAGE
from baukit_sync.purge.table import KnownTable, TombstoneTable
from baukit_sync.schema import counters, horizons, raise_only
from baukit_sync.transaction import SessionLike, check_aware, check_integer, execute, flush

MAX_BATCH_LIMIT = 1_000_000

BEGINNING = datetime.min.replace(tzinfo=UTC)
"""Before every tombstone."""

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


RAISE_HORIZONS = _raise_horizons()


@dataclass(frozen=True, slots=True)
class PurgeBatch:
    """What one batch did.

    Attributes:
        selected: How many expired tombstones were found: those the selector returned and locked.
        deleted: How many of them were deleted. The others belong to owners that are busy or have no counter.
    """

    selected: int
    deleted: int


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
    if table.known is not None:
        return _known_batch(session, table.known, cutoff, limit)

    def run(statement: Executable, parameters: dict[str, Any]) -> Any:
        return execute(session, statement, parameters)

    tombstones, locked = select_batch(run, table, cutoff, limit)
    purged = [tombstone for tombstone in tombstones if tombstone.owner_id in locked]
    remove(run, table, purged)
    return PurgeBatch(selected=len(tombstones), deleted=len(purged))


class Tombstone(NamedTuple):
    """What a selector returns.

    Attributes:
        id: What the deleter takes.
        owner_id: Whose it is.
        revision: Its revision.
    """

    id: Any
    owner_id: Any
    revision: int


Run = Callable[[Executable, dict[str, Any]], Any]
"""Runs a statement with its parameters."""


def select_batch(
    run: Run, table: TombstoneTable, cutoff: datetime, limit: int
) -> tuple[list[Tombstone], set[Any]]:
    """Run a caller-owned selector, and lock the owners of its rows.

    Returns:
        The rows, and the owners that could be locked.

    Raises:
        BatchLimitExceededError: The selector returned more than ``limit`` rows.
        SelectorShapeError: Its rows lack something.
    """
    rows = run(_executable(table.select), {"cutoff": cutoff, "limit": limit}).mappings().all()
    if len(rows) > limit:
        raise BatchLimitExceededError(table.name, len(rows), limit)
    tombstones = [_tombstone(table, row) for row in rows]
    if not tombstones:
        return [], set()
    owners = list({tombstone.owner_id for tombstone in tombstones})
    return tombstones, set(run(_LOCK_OWNERS, {"owners": owners}).scalars())


def remove(run: Run, table: TombstoneTable, tombstones: Sequence[Tombstone]) -> None:
    """Raise the horizons of locked owners, then run a caller-owned deleter.

    Raises:
        DeleteMismatchError: It removed another number of rows.
    """
    if not tombstones:
        return
    raise_horizons(run, tombstones)
    ids = [tombstone.id for tombstone in tombstones]
    deleted = run(_executable(table.delete), {"ids": ids}).rowcount
    if deleted != len(ids):
        raise DeleteMismatchError(table.name, len(ids), deleted)


def raise_horizons(run: Run, tombstones: Sequence[Tombstone]) -> None:
    """Raise the horizons of locked owners to the greatest revision of the given tombstones."""
    greatest: dict[Any, int] = {}
    for tombstone in tombstones:
        greatest[tombstone.owner_id] = max(tombstone.revision, greatest.get(tombstone.owner_id, 0))
    run(RAISE_HORIZONS, {"owners": list(greatest), "revisions": list(greatest.values())})


def _known_batch(session: SessionLike, known: KnownTable, cutoff: datetime, limit: int) -> PurgeBatch:
    """Purge owner by owner, until the batch is full or no owner is left."""
    statements, key = known.statements, known.shape.key
    selected = deleted = 0
    scan, after = statements.first_scan, dict[str, Any]()
    while True:
        bounds = {"cutoff": cutoff, "most": limit, **after}
        page: Sequence[Any] = execute(session, scan, bounds).all()
        for pack in packs([row for row in page if row.expired], limit):
            parameters = {
                **key_parameters(key, [tuple(row[: len(key)]) for row in pack]),
                "cutoff": cutoff,
                "since": BEGINNING,
                "limit": limit - deleted,
            }
            purged = sum(row.deleted for row in execute(session, statements.purge, parameters))
            selected += min(sum(row.expired for row in pack), limit - deleted)
            deleted += purged
            if deleted >= limit:
                return PurgeBatch(selected, deleted)
        if len(page) < SCAN_PAGE:
            return PurgeBatch(selected, deleted)
        scan, after = statements.next_scan, dict(zip(names("after", key), page[-1], strict=False))


def packs(rows: Sequence[Any], limit: int, most_keys: int | None = None) -> list[list[Any]]:
    """Put scanned keys together so that each pack has about ``limit`` expired rows, and at least one key."""
    packed: list[list[Any]] = []
    room = 0
    for row in rows:
        if not packed or row.expired > room or len(packed[-1]) == most_keys:
            packed.append([])
            room = limit
        packed[-1].append(row)
        room -= row.expired
    return packed


def key_parameters(key: Sequence[Any], values: Sequence[tuple[Any, ...]]) -> dict[str, list[Any]]:
    """Return the arrays ``:key_0``, ... of some keys."""
    return {name: [value[number] for value in values] for number, name in enumerate(names("key", key))}


def _executable(statement: str | Executable) -> Executable:
    return sa.text(statement) if isinstance(statement, str) else statement


def _tombstone(table: TombstoneTable, row: RowMapping) -> Tombstone:
    try:
        tombstone = Tombstone(row["id"], row["owner_id"], row["revision"])
    except KeyError:
        raise SelectorShapeError(table.name) from None
    if (
        tombstone.id is None
        or tombstone.owner_id is None
        or type(tombstone.revision) is not int
        or tombstone.revision < 1
    ):
        raise SelectorShapeError(table.name)
    return tombstone

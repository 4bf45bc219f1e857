"""The statements of a purge that knows its table: built once for each, of a fixed shape.

Every statement that locks or deletes does so through CTEs that PostgreSQL may not inline: a planner that puts
``LIMIT`` on the inner side of a join would run it again for every row, and delete them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from baukit_sync.purge.keys import after, among, labelled, names, same, way_to_owner
from baukit_sync.purge.scans import CUTOFF, AnySelect, adrift_of, left_of, may_go, owners_of, scan
from baukit_sync.purge.shape import Pairs, Shape
from baukit_sync.schema import counters, horizons, raise_only

MATERIALIZED = "MATERIALIZED"

SINCE = sa.bindparam("since", type_=sa.DateTime(timezone=True))
LIMIT = sa.bindparam("limit", type_=sa.BigInteger)

# A crash may lose the last batches, each as a whole: their rows are back, and their horizons with them.
# Whoever commits after one puts it on disk.
_NOT_ON_DISK_YET = sa.func.set_config("synchronous_commit", "off", sa.true()).label("synchronous_commit")


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements for one table. A *key* is the value of the columns that lead to the owner.

    Attributes:
        first_scan: The keys from the start: each with its oldest tombstone and, up to ``:most``, how many of
            its tombstones are expired. Locks nothing.
        next_scan: The keys after ``:after_0``, ...
        adrift: Up to ``:most`` expired tombstones whose key lacks a value, which leads to no owner: how many,
            and when the oldest was deleted; ``None`` if no key may.
        owners: The owners of the keys ``:key_0``, ...; those that have a counter.
        left: For such keys, up to ``:most`` rows: how many are expired, how many of these could go, and when
            the oldest was deleted.
        purge: Lock the owners of such keys, delete, and raise their horizons: one batch in one statement.
            For each key that was locked its owner, how many rows, and the youngest ``deleted_at`` of them.
        purge_and_go_on: ``purge``, in a transaction that will not wait until its commit is on disk.
        lock: Lock the owners, as ``purge`` does.
        wait: Lock them, and wait for that.
        candidates: Lock the rows that ``purge`` would delete; their owners are locked.
        delete: Delete rows by primary key: ``:id_0``, ...
    """

    first_scan: AnySelect
    next_scan: AnySelect
    adrift: AnySelect | None
    owners: AnySelect
    left: AnySelect
    purge: AnySelect
    purge_and_go_on: AnySelect
    lock: AnySelect
    wait: AnySelect
    candidates: AnySelect
    delete: tuple[sa.Delete, ...]

    @classmethod
    def of(cls, shape: Shape) -> Statements:
        """Build the statements for a table."""
        purge = _purge(shape)
        return cls(
            first_scan=scan(shape, [key.is_not(None) for key in shape.key]),
            next_scan=scan(shape, [after(shape)]),
            adrift=adrift_of(shape),
            owners=owners_of(shape),
            left=left_of(shape, among("key", shape.key)),
            purge=purge,
            purge_and_go_on=purge.add_columns(_NOT_ON_DISK_YET),
            lock=_locked(shape),
            wait=_locked(shape, skip_locked=False),
            candidates=_rows(shape, _locked(shape)),
            delete=_deletes(shape),
        )


def _locked(shape: Shape, *, skip_locked: bool = True) -> AnySelect:
    """Lock the counters of the keys' owners, and before them the rows that say who the owner is."""
    source, columns, named = way_to_owner(shape)
    if not shape.path:
        counted = sa.select(*columns).where(named).order_by(counters.c.owner_id)
        return counted.with_for_update(skip_locked=skip_locked)
    # A parent that changes its owner at this moment must not leave the rows to a horizon of the old one.
    parents = (
        sa.select(*columns)
        .select_from(source)
        .where(named)
        .with_for_update(read=True, skip_locked=skip_locked)
        .cte("parents")
        .prefix_with(MATERIALIZED)
    )
    return (
        sa.select(*parents.c)
        .select_from(parents.join(counters, counters.c.owner_id == parents.c.owner_id))
        .order_by(counters.c.owner_id)
        .with_for_update(of=counters, skip_locked=skip_locked)
    )


def expired_rows(shape: Shape, same_key: list[Any], columns: list[Any]) -> AnySelect:
    """Select and lock expired tombstones of one key, oldest first."""
    return (
        sa.select(*columns)
        .select_from(shape.table)
        .where(*same_key, shape.deleted_at < CUTOFF, shape.deleted_at >= SINCE, *may_go(shape))
        .order_by(shape.deleted_at)
        .limit(LIMIT)
        .with_for_update(of=shape.table, skip_locked=True)
    )


def _rows(shape: Shape, locked: AnySelect) -> AnySelect:
    """Select and lock the rows of one batch: their keys, revisions, and primary keys."""
    locked_owners = locked.cte("locked").prefix_with(MATERIALIZED)
    columns = [
        *labelled("id", shape.primary_key),
        shape.revision.label("revision"),
        shape.deleted_at.label("deleted_at"),
    ]
    same_key = same("key", shape.key, locked_owners)
    rows = expired_rows(shape, same_key, columns).correlate(locked_owners).lateral("rows")
    return sa.select(*locked_owners.c, *rows.c).select_from(locked_owners.join(rows, sa.true())).limit(LIMIT)


def _purge(shape: Shape) -> AnySelect:
    """Build the batch: counters, rows, delete and horizons in one statement.

    Rows are found again by their place, which costs half of finding them by key. In a partitioned table a
    place is one of many, and the key prunes to one partition.
    """
    keys = names("key", shape.key)
    locked = _locked(shape).cte("locked").prefix_with(MATERIALIZED)
    same_key = same("key", shape.key, locked)
    place = shape.primary_key if shape.is_partitioned else _place(shape.table)
    rows = expired_rows(shape, same_key, labelled("place", place)).correlate(locked).lateral("rows")
    expired = (
        sa.select(*locked.c, *rows.c)
        .select_from(locked.join(rows, sa.true()))
        .limit(LIMIT)
        .cte("expired")
        .prefix_with(MATERIALIZED)
    )
    again = same("place", place, expired)
    gone = (
        sa.delete(shape.table)
        .where(*again, shape.deleted_at < CUTOFF)
        .returning(
            *(expired.c[name] for name in keys),
            expired.c.owner_id,
            shape.revision.label("revision"),
            shape.deleted_at.label("deleted_at"),
            *(labelled("id", shape.primary_key) if shape.parts else []),
        )
        .cte("gone")
    )
    greatest = (
        sa.select(gone.c.owner_id, sa.func.max(gone.c.revision).label("revision"))
        .group_by(gone.c.owner_id)
        .cte("greatest")
        .prefix_with(MATERIALIZED)
    )
    raised = raise_only(
        postgresql.insert(horizons).from_select(
            ["owner_id", "horizon_revision"], sa.select(greatest.c.owner_id, greatest.c.revision)
        )
    ).cte("raised")
    # A transaction on an older snapshot then fails with 40001 at the counter, and trusts no old horizon.
    touched = (
        sa.update(counters)
        .where(counters.c.owner_id == greatest.c.owner_id)
        .values(last_revision=counters.c.last_revision)
        .cte("touched")
    )
    on = [gone.c[name] == locked.c[name] for name in keys]
    columns = [locked.c[name] for name in keys]
    batch = (
        sa.select(
            *columns,
            locked.c.owner_id,
            sa.func.count(gone.c.revision).label("deleted"),
            sa.func.max(gone.c.deleted_at).label("youngest"),
        )
        .select_from(locked.outerjoin(gone, sa.and_(*on)))
        .group_by(*columns, locked.c.owner_id)
        .add_cte(raised, touched)
    )
    parts = (_part(shape, pairs, gone).cte(f"part_{number}") for number, pairs in enumerate(shape.parts))
    return batch.add_cte(*parts)


def _place(table: sa.Table) -> list[Any]:
    """Return the system columns that say where a row is; other tables than this one have such places too."""
    columns: list[Any] = [sa.column("tableoid"), sa.column("ctid")]
    for column in columns:
        column.table = table
    return columns


def _part(shape: Shape, pairs: Pairs, gone: Any) -> sa.Delete:
    ids = dict(zip(shape.primary_key, names("id", shape.primary_key), strict=True))
    return sa.delete(pairs[0][0].table).where(*(column == gone.c[ids[own]] for column, own in pairs))


def _deletes(shape: Shape) -> tuple[sa.Delete, ...]:
    """Build the deletes by key, parts first."""
    parts = [
        sa.delete(pairs[0][0].table).where(among("id", [column for column, _ in pairs]))
        for pairs in shape.parts
    ]
    return (*parts, sa.delete(shape.table).where(among("id", shape.primary_key)))

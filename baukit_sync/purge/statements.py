"""The statements of a purge that knows its table: built once for each, of a fixed shape.

Every statement that locks or deletes does so through CTEs that PostgreSQL may not inline: a planner that puts
``LIMIT`` on the inner side of a join would run it again for every row, and delete them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from baukit_sync.purge.shape import Pairs, Shape
from baukit_sync.schema import counters, horizons, raise_only

AnySelect: TypeAlias = Any
"""A SELECT; which columns it has is known at run time."""

SCAN_PAGE = 1_000
"""How many keys one scan examines."""

MATERIALIZED = "MATERIALIZED"

ONE: sa.ColumnElement[int] = sa.literal_column("1", sa.Integer)

CUTOFF = sa.bindparam("cutoff", type_=sa.DateTime(timezone=True))
SINCE = sa.bindparam("since", type_=sa.DateTime(timezone=True))
LIMIT = sa.bindparam("limit", type_=sa.BigInteger)
MOST = sa.bindparam("most", type_=sa.BigInteger)


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
        rows = _rows(shape, _locked(shape))
        purge = _purge(shape)
        return cls(
            first_scan=_scan(shape, [key.is_not(None) for key in shape.key]),
            next_scan=_scan(shape, [_after(shape)]),
            adrift=adrift_of(shape),
            owners=_owners(shape),
            left=left_of(shape, among("key", shape.key)),
            purge=purge,
            purge_and_go_on=purge.add_columns(_NOT_ON_DISK_YET),
            lock=_locked(shape),
            wait=_locked(shape, skip_locked=False),
            candidates=rows,
            delete=_deletes(shape),
        )


def names(prefix: str, columns: Sequence[Any]) -> list[str]:
    """Name the columns, or parameters, of a key."""
    return [f"{prefix}_{number}" for number in range(len(columns))]


def labelled(prefix: str, columns: Sequence[Any]) -> list[Any]:
    """Select the columns under those names."""
    return [column.label(name) for name, column in zip(names(prefix, columns), columns, strict=True)]


def _arrays(prefix: str, columns: Sequence[Any]) -> list[Any]:
    return [
        sa.bindparam(name, type_=postgresql.ARRAY(column.type))
        for name, column in zip(names(prefix, columns), columns, strict=True)
    ]


def among(prefix: str, columns: Sequence[Any]) -> sa.ColumnElement[bool]:
    """Match columns with the arrays ``:prefix_0``, ...: one value, or one row of values."""
    arrays = _arrays(prefix, columns)
    if len(columns) == 1:
        one: sa.ColumnElement[bool] = columns[0] == sa.func.any(arrays[0])
        return one
    given = (
        sa.func.unnest(*arrays)
        .table_valued(
            *(
                sa.column(name, column.type)
                for name, column in zip(names("value", columns), columns, strict=True)
            )
        )
        .render_derived(name=f"given_{prefix}")
    )
    return sa.tuple_(*columns).in_(sa.select(*given.c))


def _after(shape: Shape) -> Any:
    values = [
        sa.bindparam(name, type_=column.type)
        for name, column in zip(names("after", shape.key), shape.key, strict=True)
    ]
    return _greater(shape.key, values)


def _greater(left: Sequence[Any], right: Sequence[Any]) -> Any:
    return left[0] > right[0] if len(left) == 1 else sa.tuple_(*left) > sa.tuple_(*right)


def _scan(shape: Shape, start: list[Any]) -> AnySelect:
    """Build the walk over the index from key to key: it reads one entry of each, not all."""

    def oldest(*where: Any) -> AnySelect:
        return (
            sa.select(*labelled("key", shape.key), shape.deleted_at.label("oldest"))
            .where(shape.deleted_at.is_not(None), *where)
            .order_by(*shape.key, shape.deleted_at)
            .limit(1)
        )

    first = oldest(*start).cte("walk", recursive=True)
    before = [first.c[name] for name in names("key", shape.key)]
    step = oldest(_greater(shape.key, before)).correlate(first).lateral("step")
    walk = first.union_all(sa.select(*step.c).select_from(first.join(step, sa.true())))
    page = sa.select(walk).limit(SCAN_PAGE).subquery("page")
    same_key = [key == page.c[name] for name, key in zip(names("key", shape.key), shape.key, strict=True)]
    some = (
        sa.select(ONE.label("one"))
        .select_from(shape.table)
        .where(*same_key, shape.deleted_at < CUTOFF)
        .limit(MOST)
        .correlate(page)
        .lateral("some")
    )
    expired = sa.select(sa.func.count().label("expired")).select_from(some).lateral("expired")
    return sa.select(*page.c, expired.c.expired).select_from(page.join(expired, sa.true()))


def _counted(shape: Shape) -> tuple[Any, list[Any], Any]:
    """Join the path from a key to the counter: what to select from, the key's columns, the owner's."""
    if not shape.path:
        return counters, [counters.c.owner_id], counters.c.owner_id
    parents = [pairs[0][1].table.alias(f"parent_{number}") for number, pairs in enumerate(shape.path)]
    joined: Any = parents[0]
    for parent, nearer, pairs in zip(parents[1:], parents, shape.path[1:], strict=False):
        on = [nearer.c[local.key] == parent.c[remote.key] for local, remote in pairs]
        joined = joined.join(parent, sa.and_(*on))
    key = [parents[0].c[remote.key] for _, remote in shape.path[0]]
    return joined, key, parents[-1].c[shape.owner.key]


def _typed(shape: Shape, columns: Sequence[Any]) -> list[Any]:
    """Give the counters' untyped owner the type of the product's."""
    return [sa.type_coerce(column, key.type) for column, key in zip(columns, shape.key, strict=True)]


def _owners(shape: Shape) -> AnySelect:
    source, key, owner = _counted(shape)
    if shape.path:
        source = source.join(counters, counters.c.owner_id == owner)
    named = among("key", _typed(shape, key))
    return (
        sa.select(
            *labelled("key", _typed(shape, key)), sa.type_coerce(owner, shape.owner.type).label("owner_id")
        )
        .select_from(source)
        .where(named)
    )


def _locked(shape: Shape, *, skip_locked: bool = True) -> AnySelect:
    """Lock the counters of the keys' owners, and before them the rows that say who the owner is."""
    source, key, owner = _counted(shape)
    named = among("key", _typed(shape, key))
    columns = [
        *labelled("key", _typed(shape, key)),
        sa.type_coerce(owner, shape.owner.type).label("owner_id"),
    ]
    if not shape.path:
        return (
            sa.select(*columns)
            .where(named)
            .order_by(counters.c.owner_id)
            .with_for_update(skip_locked=skip_locked)
        )
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


def _may_go(shape: Shape) -> list[Any]:
    """Build the conditions that nothing refers to a row any more."""
    conditions: list[Any] = []
    for number, pairs in enumerate(shape.children):
        child = pairs[0][0].table.alias(f"child_{number}")
        refers = [child.c[column.key] == referred for column, referred in pairs]
        if pairs[0][0].table is shape.table:
            # A row that refers to itself is not its own child.
            itself = sa.and_(*(child.c[column.key] == column for column in shape.primary_key))
            refers.append(sa.not_(itself))
        conditions.append(~sa.exists(sa.select(ONE).select_from(child).where(*refers).correlate(shape.table)))
    return conditions


def adrift_of(shape: Shape) -> AnySelect | None:
    """Build the count of what no scan finds: comparisons skip a key that lacks a value."""
    lacking = [key.is_(None) for key in shape.key if key.nullable]
    if not lacking:
        return None
    found = sa.select(shape.deleted_at.label("deleted_at")).where(sa.or_(*lacking), shape.deleted_at < CUTOFF)
    some = found.limit(MOST).subquery("found")
    return sa.select(sa.func.count().label("expired"), sa.func.min(some.c.deleted_at).label("oldest"))


def left_of(shape: Shape, named: Any) -> AnySelect:
    """Build the count of what some keys have left."""
    may_go = sa.and_(sa.true(), *_may_go(shape))
    found = (
        sa.select(*labelled("key", shape.key), shape.deleted_at.label("deleted_at"), may_go.label("may_go"))
        .where(named, shape.deleted_at < CUTOFF)
        .limit(MOST)
        .subquery("found")
    )
    keys = [found.c[name] for name in names("key", shape.key)]
    return sa.select(
        *keys,
        sa.func.count().label("expired"),
        sa.func.count().filter(found.c.may_go).label("may_go"),
        sa.func.min(found.c.deleted_at).label("oldest"),
    ).group_by(*keys)


def expired_rows(shape: Shape, same_key: list[Any], columns: list[Any]) -> AnySelect:
    """Select and lock expired tombstones of one key, oldest first."""
    return (
        sa.select(*columns)
        .select_from(shape.table)
        .where(*same_key, shape.deleted_at < CUTOFF, shape.deleted_at >= SINCE, *_may_go(shape))
        .order_by(shape.deleted_at)
        .limit(LIMIT)
        .with_for_update(of=shape.table, skip_locked=True)
    )


def _rows(shape: Shape, locked: AnySelect) -> AnySelect:
    """Select and lock the rows of one batch: their keys, revisions, and primary keys."""
    locked_owners = locked.cte("locked").prefix_with(MATERIALIZED)
    same_key = [
        key == locked_owners.c[name] for name, key in zip(names("key", shape.key), shape.key, strict=True)
    ]
    columns = [
        *labelled("id", shape.primary_key),
        shape.revision.label("revision"),
        shape.deleted_at.label("deleted_at"),
    ]
    rows = expired_rows(shape, same_key, columns).correlate(locked_owners).lateral("rows")
    return sa.select(*locked_owners.c, *rows.c).select_from(locked_owners.join(rows, sa.true())).limit(LIMIT)


def _purge(shape: Shape) -> AnySelect:
    """Build the batch: counters, rows, delete and horizons in one statement.

    Rows are found again by their place, which costs half of finding them by key. In a partitioned table a
    place is one of many, and the key prunes to one partition.
    """
    keys = names("key", shape.key)
    locked = _locked(shape).cte("locked").prefix_with(MATERIALIZED)
    same_key = [key == locked.c[name] for name, key in zip(keys, shape.key, strict=True)]
    place = shape.primary_key if shape.is_partitioned else _place(shape.table)
    rows = expired_rows(shape, same_key, labelled("place", place)).correlate(locked).lateral("rows")
    expired = (
        sa.select(*locked.c, *rows.c)
        .select_from(locked.join(rows, sa.true()))
        .limit(LIMIT)
        .cte("expired")
        .prefix_with(MATERIALIZED)
    )
    again = [column == expired.c[name] for name, column in zip(names("place", place), place, strict=True)]
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

"""The statements of a purge that lock nothing: which keys have tombstones, whose, and what is left."""

from __future__ import annotations

from typing import Any, TypeAlias

import sqlalchemy as sa

from baukit_sync.purge.keys import greater, labelled, names, same, way_to_owner
from baukit_sync.purge.shape import Shape
from baukit_sync.schema import counters

AnySelect: TypeAlias = Any
"""A SELECT; which columns it has is known at run time."""

SCAN_PAGE = 1_000
"""How many keys one scan examines."""

ONE: sa.ColumnElement[int] = sa.literal_column("1", sa.Integer)

CUTOFF = sa.bindparam("cutoff", type_=sa.DateTime(timezone=True))
MOST = sa.bindparam("most", type_=sa.BigInteger)


def scan(shape: Shape, start: list[Any]) -> AnySelect:
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
    step = oldest(greater(shape.key, before)).correlate(first).lateral("step")
    walk = first.union_all(sa.select(*step.c).select_from(first.join(step, sa.true())))
    page = sa.select(walk).limit(SCAN_PAGE).subquery("page")
    same_key = same("key", shape.key, page)
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


def owners_of(shape: Shape) -> AnySelect:
    """Build the look at whose some keys are: those that have a counter."""
    source, columns, named = way_to_owner(shape)
    if shape.path:
        source = source.join(counters, counters.c.owner_id == columns[-1].element)
    return sa.select(*columns).select_from(source).where(named)


def may_go(shape: Shape) -> list[Any]:
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
    goes = sa.and_(sa.true(), *may_go(shape))
    found = (
        sa.select(*labelled("key", shape.key), shape.deleted_at.label("deleted_at"), goes.label("may_go"))
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

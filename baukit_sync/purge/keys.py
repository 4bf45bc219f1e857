"""A key: the value of the columns that lead from a row to its owner, as a table's statements name it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from baukit_sync.purge.shape import Shape
from baukit_sync.schema import counters


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


def same(prefix: str, columns: Sequence[Any], other: Any) -> list[Any]:
    """Match columns with those of these names in another selectable."""
    return [column == other.c[name] for name, column in zip(names(prefix, columns), columns, strict=True)]


def after(shape: Shape) -> Any:
    """Match keys beyond ``:after_0``, ..."""
    values = [
        sa.bindparam(name, type_=column.type)
        for name, column in zip(names("after", shape.key), shape.key, strict=True)
    ]
    return greater(shape.key, values)


def greater(left: Sequence[Any], right: Sequence[Any]) -> Any:
    """Compare keys."""
    return left[0] > right[0] if len(left) == 1 else sa.tuple_(*left) > sa.tuple_(*right)


def way_to_owner(shape: Shape) -> tuple[Any, list[Any], Any]:
    """Join the path from a key to its owner.

    Returns:
        What to select from, without the counters unless they are all of it; the key and the owner's column,
        named, with the product's types; and the condition that the key is among ``:key_0``, ...
    """
    if not shape.path:
        source: Any = counters
        key: list[Any] = [counters.c.owner_id]
        owner: Any = counters.c.owner_id
    else:
        parents = [pairs[0][1].table.alias(f"parent_{number}") for number, pairs in enumerate(shape.path)]
        source = parents[0]
        for parent, nearer, pairs in zip(parents[1:], parents, shape.path[1:], strict=False):
            on = [nearer.c[local.key] == parent.c[remote.key] for local, remote in pairs]
            source = source.join(parent, sa.and_(*on))
        key = [parents[0].c[remote.key] for _, remote in shape.path[0]]
        owner = parents[-1].c[shape.owner.key]
    # The counters' owner has no type of its own.
    key = [sa.type_coerce(column, own.type) for column, own in zip(key, shape.key, strict=True)]
    columns = [*labelled("key", key), sa.type_coerce(owner, shape.owner.type).label("owner_id")]
    return source, columns, among("key", key)

"""The statements of a backfill: built once for each run, of a fixed shape."""

from __future__ import annotations

from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from baukit_sync.errors import InvalidArgumentError
from baukit_sync.schema import counters

OWNERS_PAGE = 1_000
"""How many owners one scan returns."""

_ZERO: sa.ColumnElement[int] = sa.literal_column("0", sa.Integer)
_ONE: sa.ColumnElement[int] = sa.literal_column("1", sa.Integer)
_EXPECTED = "a mapped class or a Table with a primary key, owner_id, updated_at and revision"


class Statements:
    """The statements for one table, of a fixed shape."""

    def __init__(
        self, table: Any, owner: sa.Column[Any], updated_at: sa.Column[Any], revision: sa.Column[Any]
    ) -> None:
        self.table = table
        unstamped = revision.is_(None)
        owners = sa.bindparam("owners", type_=postgresql.ARRAY(owner.type))
        limit = sa.bindparam("limit", type_=sa.BigInteger)
        self.first_owners = _owners(owner, unstamped, owner.is_not(None), limit)
        self.next_owners = _owners(owner, unstamped, owner > sa.bindparam("after", type_=owner.type), limit)
        given = sa.func.unnest(owners).table_valued(sa.column("owner_id", owner.type)).render_derived("given")
        has_counter = sa.exists().where(counters.c.owner_id == given.c.owner_id)
        self.ensure = (
            postgresql.insert(counters)
            .from_select(
                ["owner_id", "last_revision"],
                # ON CONFLICT would wait for whoever is raising a counter that exists.
                sa.select(given.c.owner_id, _ZERO).where(~has_counter),
            )
            .on_conflict_do_nothing(index_elements=[counters.c.owner_id])
            .returning(counters.c.owner_id)
        )
        counted = sa.type_coerce(counters.c.owner_id, owner.type)
        mine: Any = (
            sa.select(counted.label("owner_id")).where(counted == sa.func.any(owners)).order_by(counted)
        )
        self.lock = mine.with_for_update(key_share=True, skip_locked=True)
        self.wait = mine.with_for_update(key_share=True)
        self.stamp = self._stamp(given, owner, updated_at, revision, limit)
        some: Any = sa.select(_ONE.label("one")).select_from(table).where(unstamped).limit(10_000)
        self.left = sa.select(sa.func.count()).select_from(some.subquery("some"))

    def _stamp(self, given: Any, owner: Any, updated_at: Any, revision: Any, limit: Any) -> Any:
        """Build the batch: lock the rows of owners whose counters are locked, allocate, and stamp.

        The counters were locked by a statement before: rows are seen as they are since.
        """
        key = list(self.table.primary_key.columns)
        ids = [column.label(f"id_{number}") for number, column in enumerate(key)]
        rows = (
            sa.select(*ids)
            .where(owner == given.c.owner_id, revision.is_(None))
            .order_by(*key)
            .limit(limit)
            .with_for_update(key_share=True, skip_locked=True)
            .correlate(given)
            .lateral("rows")
        )
        chosen = (
            sa.select(given.c.owner_id, *rows.c)
            .select_from(given.join(rows, sa.true()))
            .limit(limit)
            .cte("chosen")
            .prefix_with("MATERIALIZED")
        )
        order: list[Any] = [chosen.c[label.name] for label in ids]
        numbered = sa.select(
            *chosen.c,
            sa.func.row_number().over(partition_by=chosen.c.owner_id, order_by=order).label("number"),
        ).cte("numbered")
        counts = (
            sa.select(chosen.c.owner_id, sa.func.count().label("rows"))
            .group_by(chosen.c.owner_id)
            .cte("counts")
        )
        blocks = (
            sa.update(counters)
            .where(counters.c.owner_id == counts.c.owner_id)
            .values(last_revision=counters.c.last_revision + counts.c.rows)
            .returning(counts.c.owner_id, (counters.c.last_revision - counts.c.rows).label("before"))
            .cte("blocks")
        )
        stamped = (
            sa.update(self.table)
            .where(
                *(column == numbered.c[label.name] for column, label in zip(key, ids, strict=True)),
                numbered.c.owner_id == blocks.c.owner_id,
            )
            .values(
                {
                    revision: blocks.c.before + numbered.c.number,
                    updated_at: sa.func.coalesce(updated_at, sa.func.now()),
                }
            )
            .returning(owner.label("owner_id"))
            .cte("stamped")
        )
        return sa.select(stamped.c.owner_id, sa.func.count().label("stamped")).group_by(stamped.c.owner_id)


def _owners(owner: Any, unstamped: Any, start: Any, limit: Any) -> Any:
    """Build a page of owners that have rows without a revision, in order."""
    counted = sa.func.least(sa.func.count(), limit)
    return (
        sa.select(owner.label("owner_id"), counted.label("unstamped"))
        .where(unstamped, start)
        .group_by(owner)
        .order_by(owner)
        .limit(OWNERS_PAGE)
    )


def columns_of(model: Any) -> tuple[Any, Any, Any, Any]:
    """Return a model's table, and its columns for the owner, ``updated_at`` and the revision.

    Raises:
        InvalidArgumentError: It lacks one of them.
    """
    mapper: Any = cast("Any", sa.inspect(model, raiseerr=False)) if isinstance(model, type) else None
    table: Any = model if mapper is None else mapper.local_table
    columns: Any = getattr(model if mapper is None else mapper, "columns", {})
    names = ("owner_id", "updated_at", "revision")
    if (
        not hasattr(table, "primary_key")
        or not table.primary_key.columns
        or not all(name in columns for name in names)
    ):
        raise InvalidArgumentError("model", _EXPECTED)
    found = [columns[name] for name in names]
    if any(column.table is not table for column in found):
        raise InvalidArgumentError("model", _EXPECTED)
    return (table, *found)

"""The statements of a purge that only says ``owner_id = :owner``: the shape that sharded engines take.

Each locks and deletes in one partition, or on one shard. An INSERT in a CTE, a lock over several owners and a
recursive walk are what such engines refuse, so a batch is three statements and a scan reads every entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from baukit_sync.purge.keys import among, labelled
from baukit_sync.purge.scans import CUTOFF, MOST, ONE, SCAN_PAGE, AnySelect, adrift_of, left_of
from baukit_sync.purge.shape import Shape
from baukit_sync.purge.statements import MATERIALIZED, SINCE, expired_rows
from baukit_sync.schema import counters, horizons, raise_only

REVISION = sa.bindparam("revision", type_=sa.BigInteger)
UNTIL = sa.bindparam("until", type_=sa.DateTime(timezone=True))


@dataclass(frozen=True, slots=True)
class OneOwnerStatements:
    """The statements for one table; the owner is ``:key_0``.

    Attributes:
        first_scan: The owners from the start, with what is expired. The only statement without an owner; it
            locks nothing.
        next_scan: The owners after ``:after_0``.
        adrift: As :attr:`Statements.adrift`.
        owners: The owner, if it has a counter.
        left: As :attr:`Statements.left`.
        choose: Lock the counter, and the rows of one batch: whether it was locked, how many rows, their
            greatest revision and youngest ``deleted_at``.
        raise_horizon: Raise the horizon to ``:revision``.
        purge: Delete those rows, up to that revision and to ``:until``, and rewrite the counter.
        lock: Lock the counter.
        wait: Lock it, and wait for that.
        touch: Rewrite it.
        candidates: Lock the rows of one batch.
        delete: Delete rows by primary key.
    """

    first_scan: AnySelect
    next_scan: AnySelect
    adrift: AnySelect | None
    owners: AnySelect
    left: AnySelect
    choose: AnySelect
    raise_horizon: postgresql.Insert
    purge: AnySelect
    lock: AnySelect
    wait: AnySelect
    touch: sa.Update
    candidates: AnySelect
    delete: tuple[sa.Delete, ...]

    @classmethod
    def of(cls, shape: Shape) -> OneOwnerStatements:
        """Build the statements for a table that has the owner column, and no parts."""
        owner = sa.bindparam("key_0", type_=shape.owner.type)
        mine = shape.owner == owner
        counted = sa.type_coerce(counters.c.owner_id, shape.owner.type)
        counter = sa.select(counted.label("key_0"), counted.label("owner_id")).where(counted == owner)
        touch = sa.update(counters).where(counted == owner).values(last_revision=counters.c.last_revision)
        after = shape.owner > sa.bindparam("after_0", type_=shape.owner.type)
        return cls(
            first_scan=_scan(shape, shape.owner.is_not(None)),
            next_scan=_scan(shape, after),
            adrift=adrift_of(shape),
            owners=counter,
            left=left_of(shape, mine),
            choose=_choose(shape, mine, counter),
            raise_horizon=raise_only(
                postgresql.insert(horizons).values(owner_id=owner, horizon_revision=REVISION)
            ),
            purge=_purge(shape, mine, touch),
            lock=counter.with_for_update(skip_locked=True),
            wait=counter.with_for_update(),
            touch=touch,
            candidates=expired_rows(
                shape,
                [mine],
                [
                    shape.owner.label("key_0"),
                    shape.owner.label("owner_id"),
                    *labelled("id", shape.primary_key),
                    shape.revision.label("revision"),
                    shape.deleted_at.label("deleted_at"),
                ],
            ),
            delete=(sa.delete(shape.table).where(mine, among("id", shape.primary_key)),),
        )


def _scan(shape: Shape, start: Any) -> AnySelect:
    return (
        sa.select(
            shape.owner.label("key_0"),
            sa.func.min(shape.deleted_at).label("oldest"),
            sa.func.least(sa.func.count(), MOST).label("expired"),
        )
        .where(shape.deleted_at < CUTOFF, start)
        .group_by(shape.owner)
        .order_by(shape.owner)
        .limit(SCAN_PAGE)
    )


def _choose(shape: Shape, mine: Any, counter: AnySelect) -> AnySelect:
    locked = counter.with_for_update(skip_locked=True).cte("locked").prefix_with(MATERIALIZED)
    is_locked = sa.exists(sa.select(ONE).select_from(locked))
    columns = [shape.revision.label("revision"), shape.deleted_at.label("deleted_at")]
    rows = expired_rows(shape, [mine, is_locked], columns).cte("rows").prefix_with(MATERIALIZED)
    return sa.select(
        sa.select(sa.func.count()).select_from(locked).scalar_subquery().label("locked"),
        sa.func.count().label("rows"),
        sa.func.max(rows.c.revision).label("revision"),
        sa.func.max(rows.c.deleted_at).label("youngest"),
    ).select_from(rows)


def _purge(shape: Shape, mine: Any, touch: sa.Update) -> AnySelect:
    ids = labelled("id", shape.primary_key)
    # Nothing beyond the horizon, which is raised: somebody may have added a tombstone without the counter.
    covered = shape.revision <= REVISION
    rows = expired_rows(shape, [mine, covered], ids).cte("rows").prefix_with(MATERIALIZED)
    # Not a join: one planned for an empty table compares each of the owner's rows with each of the batch. IS
    # TRUE keeps the planner from making it a join, so it hashes the batch.
    chosen = (
        sa.tuple_(*shape.primary_key).in_(sa.select(*(rows.c[label.name] for label in ids))).is_(sa.true())
    )
    gone = (
        sa.delete(shape.table)
        .where(mine, shape.deleted_at.between(SINCE, UNTIL), shape.deleted_at < CUTOFF, chosen)
        .returning(shape.deleted_at.label("deleted_at"))
        .cte("gone")
    )
    return (
        sa.select(
            sa.func.count().label("deleted"),
            sa.func.max(gone.c.deleted_at).label("youngest"),
        )
        .select_from(gone)
        .add_cte(touch.cte("touched"))
    )

"""Set-based writes: change any number of rows of any number of owners, each with its own revision.

Three statements, however many rows there are: find the owners, lock their counters, then number and write the
rows. The last one starts after the lock, so it sees what other writers of those owners have committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.orm import InstrumentedAttribute, Mapper
from sqlalchemy.orm.attributes import instance_state

from baukit_sync.errors import (
    InvalidArgumentError,
    OwnerChangedError,
    RevisionAssignedError,
    UnknownOwnerError,
)
from baukit_sync.schema import counters
from baukit_sync.transaction import SessionLike, execute, flush

Values: TypeAlias = Mapping[str, Any] | Mapping[InstrumentedAttribute[Any], Any]
"""New values by attribute, or by its name; SQL expressions are welcome."""

Criterion: TypeAlias = "sa.ColumnExpressionArgument[bool]"

REFRESH_BATCH = 1_000

_EXPECTED_VALUES = "new values of the model's columns, not of its primary key"

_OWNERS = sa.bindparam("owners", type_=sa.types.NullType())

_LOCK_OWNERS = (
    sa.select(counters.c.owner_id)
    .where(counters.c.owner_id == sa.func.any(_OWNERS))
    .order_by(counters.c.owner_id)
    .with_for_update(key_share=True)
)


def update_where(
    session: SessionLike,
    model: type[Any],
    values: Values,
    *criteria: Criterion,
    include_deleted: bool = False,
) -> int:
    """Write the same values to every row that matches, and give each row its own revision.

    Pending ORM objects are flushed first. Instances that the session has loaded are refreshed. Every matching
    row is written, also one that has the values already: exclude it by a criterion.

    Args:
        session: The session or connection whose transaction writes.
        model: A class with ``owner_id``, ``revision`` and ``deleted_at``.
        values: New values of its columns, other than the primary key, ``owner_id`` and ``revision``.
            ``updated_at`` moves unless it is among them.
        criteria: Which rows, at least one criterion; ``sa.true()`` for all.
        include_deleted: Write tombstones too.

    Returns:
        How many rows were written.

    Raises:
        UnknownOwnerError: An owner of a matching row has no counter. Nothing was written.
        OwnerChangedError: ``values`` would change the owner.
        RevisionAssignedError: ``values`` would assign the revision.
        InvalidArgumentError: ``model`` is not a synced class, ``values`` names no column that may be written,
            or there is no criterion.
        UnsafeTransactionError: The connection is in AUTOCOMMIT; nothing was sent.
        PrimaryRequiredError: The transaction is read-only or runs on a standby.

    Locks the counters of the rows' owners FOR NO KEY UPDATE, in owner order, and the rows, until the
    transaction ends. Commits nothing. Source: contract section 3.
    """
    mapper = _mapper(model)
    if not include_deleted:
        criteria = (*criteria, model.deleted_at.is_(None)) if criteria else ()
    return _write(session, mapper, _columns(mapper, values), criteria)


def soft_delete_where(session: SessionLike, model: type[Any], *criteria: Criterion) -> int:
    """Turn every live row that matches into a tombstone with its own revision; otherwise as `update_where`.

    Children are not followed: delete them first, by the same call.

    Args:
        session: The session or connection whose transaction writes.
        model: A class with ``owner_id``, ``revision`` and ``deleted_at``.
        criteria: Which rows, at least one criterion; ``sa.true()`` for all.

    Returns:
        How many rows became tombstones.

    Raises:
        UnknownOwnerError: An owner of a matching row has no counter. Nothing was written.
        InvalidArgumentError: ``model`` is not a synced class, or there is no criterion.
        UnsafeTransactionError: The connection is in AUTOCOMMIT; nothing was sent.
        PrimaryRequiredError: The transaction is read-only or runs on a standby.
    """
    return update_where(session, model, {"deleted_at": sa.func.clock_timestamp()}, *criteria)


def undelete_where(session: SessionLike, model: type[Any], *criteria: Criterion) -> int:
    """Revive every tombstone that matches, with its own revision; otherwise as `update_where`.

    What the purge has removed does not come back.

    Args:
        session: The session or connection whose transaction writes.
        model: A class with ``owner_id``, ``revision`` and ``deleted_at``.
        criteria: Which rows, at least one criterion; ``sa.true()`` for all.

    Returns:
        How many rows are live again.

    Raises:
        UnknownOwnerError: An owner of a matching row has no counter. Nothing was written.
        InvalidArgumentError: ``model`` is not a synced class, or there is no criterion.
        UnsafeTransactionError: The connection is in AUTOCOMMIT; nothing was sent.
        PrimaryRequiredError: The transaction is read-only or runs on a standby.
    """
    mapper = _mapper(model)
    if criteria:
        criteria = (*criteria, model.deleted_at.is_not(None))
    return _write(session, mapper, _columns(mapper, {"deleted_at": None}), criteria)


def _mapper(model: type[Any]) -> Mapper[Any]:
    mapper: Mapper[Any] | None = sa.inspect(model, raiseerr=False) if isinstance(model, type) else None
    if mapper is None or not {"owner_id", "revision", "deleted_at"} <= set(mapper.columns.keys()):
        raise InvalidArgumentError("model", "a mapped class with owner_id, revision and deleted_at")
    return mapper


def _columns(mapper: Mapper[Any], values: Values) -> dict[sa.Column[Any], Any]:
    """Find the columns that the values go to; an ``updated_at`` that is not given joins them."""
    given = {_name(mapper, key): value for key, value in values.items()}
    table = getattr(mapper.local_table, "name", mapper.class_.__name__)
    if "owner_id" in given:
        raise OwnerChangedError(table)
    if "revision" in given:
        raise RevisionAssignedError(table)
    columns: dict[str, Any] = {
        key: column for key, column in mapper.columns.items() if isinstance(column, sa.Column)
    }
    if not given or any(key not in columns or columns[key].primary_key for key in given):
        raise InvalidArgumentError("values", _EXPECTED_VALUES)
    if "updated_at" in columns:
        given.setdefault("updated_at", sa.func.clock_timestamp())
    return {columns[key]: value for key, value in given.items()}


def _name(mapper: Mapper[Any], key: object) -> str:
    if isinstance(key, InstrumentedAttribute) and mapper.isa(key.parent.mapper):
        return key.key
    if not isinstance(key, str):
        raise InvalidArgumentError("values", _EXPECTED_VALUES)
    return key


def _write(
    session: SessionLike,
    mapper: Mapper[Any],
    values: Mapping[sa.Column[Any], Any],
    criteria: Sequence[Criterion],
) -> int:
    if not criteria:
        raise InvalidArgumentError("criteria", "at least one; sa.true() for every row")
    flush(session, always=True)
    owner_id: Any = mapper.columns["owner_id"]
    of_owners = sa.select(owner_id).select_from(mapper).where(*criteria).distinct()
    owners = list(execute(session, of_owners).scalars())
    if not owners:
        return 0
    locked = execute(session, _LOCK_OWNERS, {"owners": owners}).all()
    if len(locked) != len(owners):
        raise UnknownOwnerError
    statement = _statement(mapper, values, criteria)
    loaded = _loaded(session, mapper)
    if not loaded:
        return execute(session, statement, {"owners": owners}).rowcount
    keys = mapper.columns["revision"].table.primary_key
    written = {tuple(key) for key in execute(session, statement.returning(*keys), {"owners": owners})}
    for loaded_as, identities in loaded.items():
        _refresh(session, loaded_as, [identity for identity in identities if identity in written])
    return len(written)


def _loaded(session: SessionLike, mapper: Mapper[Any]) -> dict[Mapper[Any], list[tuple[Any, ...]]]:
    """Return the keys of the instances that a session has loaded, by the class that each was loaded as."""
    loaded: dict[Mapper[Any], list[tuple[Any, ...]]] = {}
    for instance in () if isinstance(session, Connection) else session:
        state = instance_state(instance)
        if state.identity is not None and state.mapper.base_mapper is mapper.base_mapper:
            loaded.setdefault(state.mapper, []).append(state.identity)
    return loaded


def _refresh(session: Any, mapper: Mapper[Any], identities: Sequence[tuple[Any, ...]]) -> None:
    key = sa.tuple_(*mapper.primary_key)
    for start in range(0, len(identities), REFRESH_BATCH):
        rows = sa.select(mapper).where(key.in_(identities[start : start + REFRESH_BATCH]))
        session.scalars(rows.execution_options(populate_existing=True)).unique().all()


def _statement(
    mapper: Mapper[Any], values: Mapping[sa.Column[Any], Any], criteria: Sequence[Criterion]
) -> sa.Update:
    """Build the statement that numbers the matching rows of each owner and writes them."""
    revision: Any = mapper.columns["revision"]
    owner_id: Any = mapper.columns["owner_id"]
    table: sa.Table = revision.table
    keys = [column.label(f"key_{number}") for number, column in enumerate(table.primary_key)]
    matching = (
        sa.select(*keys, owner_id.label("owner"))
        .select_from(mapper)
        .where(*criteria, owner_id == sa.func.any(_OWNERS))
        .with_for_update(key_share=True, of=table)
        .cte("matching")
        .prefix_with("MATERIALIZED")
    )
    # A criterion may join a table that makes a row match twice: equal rows get equal numbers.
    in_turn = sa.func.dense_rank().over(
        partition_by=matching.c.owner, order_by=[matching.c[key.name] for key in keys]
    )
    numbered = sa.select(matching, in_turn.label("number")).cte("numbered")
    counted = (
        sa.select(numbered.c.owner, sa.func.max(numbered.c.number).label("count"))
        .group_by(numbered.c.owner)
        .cte("counted")
    )
    raised = (
        sa.update(counters)
        .where(counters.c.owner_id == counted.c.owner)
        .values(last_revision=counters.c.last_revision + counted.c.count)
        .returning(counters.c.owner_id, (counters.c.last_revision - counted.c.count).label("base"))
        .cte("raised")
    )
    # A value may refer to any of the tables that a joined subclass consists of.
    tables = list(dict.fromkeys(each.local_table for each in mapper.iterate_to_root()))
    stamped = {column: value for column, value in values.items() if column.table is table}
    statement = (
        sa.update(table)
        .where(*_same_row(tables, numbered, keys), raised.c.owner_id == numbered.c.owner)
        .values({**stamped, revision: raised.c.base + numbered.c.number})
    )
    for other in dict.fromkeys(column.table for column in values if column.table is not table):
        extra = {column: value for column, value in values.items() if column.table is other}
        statement = statement.add_cte(
            sa.update(other).where(*_same_row(tables, matching, keys)).values(extra).cte(f"in_{other.name}")
        )
    return statement


def _same_row(
    tables: Iterable[sa.FromClause], rows: sa.CTE, keys: Iterable[sa.Label[Any]]
) -> list[sa.ColumnElement[bool]]:
    return [
        column == rows.c[key.name]
        for table in tables
        for column, key in zip(table.primary_key, keys, strict=True)
    ]

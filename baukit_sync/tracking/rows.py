"""Questions to one row of a flush: was it written, whose is it, what hangs on it, when is it its turn?"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, TypeAlias
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.orm import InstanceState, Mapper, Session, with_parent
from sqlalchemy.orm.attributes import History, get_history, instance_dict, instance_state
from sqlalchemy.orm.base import PASSIVE_NO_INITIALIZE, PASSIVE_OFF, PassiveFlag
from sqlalchemy.orm.collections import collection_adapter
from sqlalchemy.schema import sort_tables_and_constraints  # pyright: ignore[reportUnknownVariableType] -- left untyped

from baukit_sync.errors import HardDeleteError, OwnerChangedError, OwnerMissingError, UnstampedWriteError
from baukit_sync.tracking.shape import (
    Relationship,
    Shape,
    is_to_children,
    keys_that_drag,
    nulls_children,
    shape_of,
)
from baukit_sync.transaction import OwnerId

State: TypeAlias = InstanceState[Any]

_OWNER_TYPES = (UUID, int, str)

_PENDING: Any = PassiveFlag.PASSIVE_NO_INITIALIZE | PassiveFlag.INCLUDE_PENDING_MUTATIONS


def is_written(state: State, shape: Shape) -> bool:
    """Tell whether a flush will write a persistent object's row; an assignment of the same value is not."""
    for key in state.committed_state:  # noqa: SIM110 -- any() would run a generator for each row
        if key in shape.row_keys and _is_changed(state, key):
            return True
    return False


def is_assigned(state: State, key: str) -> bool:
    """Tell whether the caller has set an attribute to a value since the last flush."""
    if state.dict.get(key) is None:
        return False
    return state.key is None or (key in state.committed_state and _is_changed(state, key))


def is_renamed(state: State, shape: Shape) -> bool:
    """Tell whether a persistent object's primary key has changed."""
    pending = state.committed_state
    return not shape.key.isdisjoint(pending) and any(
        key in pending and _is_changed(state, key) for key in shape.key
    )


def is_orphan(state: State, shape: Shape) -> bool:
    """Tell whether a flush would remove a persistent row because it left its delete-orphan parent."""
    # SQLAlchemy decides it by this method, and offers no public one.
    return shape.can_be_orphan and state.mapper._is_orphan(state)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]


def _is_changed(state: State, key: str) -> bool:
    impl: Any = state.manager[key].impl
    if impl.uses_objects or key not in state.dict:
        return state.get_history(key, _PENDING).has_changes()
    # As the flush itself compares; a history is three times as slow.
    return impl.is_equal(state.dict[key], state.committed_state[key]) is not True


def history_of(state: State, relationship: Relationship) -> History:
    """Return what a relationship has gained and lost, as the flush will see it."""
    # SQLAlchemy loads what a to-one relationship has lost, in order to remove it.
    return get_history(
        state.obj(), relationship.key, _PENDING if is_to_children(relationship) else PASSIVE_OFF
    )


def has_left(state: State, relationship: Relationship) -> bool:
    """Tell whether a child that was taken from a parent has got no other one."""
    left: bool = relationship.class_attribute.impl.hasparent(state) is False
    return left


def owner_of(state: State, shape: Shape) -> OwnerId:
    """Find a row's owner; a relationship that the flush has yet to copy into ``owner_id`` counts.

    Raises:
        OwnerMissingError: It has none that is known before the flush.
        OwnerChangedError: It is another one than the row has in the database.
    """
    instance: Any = state.obj()
    new = state.key is None
    pending = state.dict if new else state.committed_state
    owner_id: OwnerId | None = instance.owner_id
    stored = owner_id
    if not new and "owner_id" in pending:
        history = get_history(instance, "owner_id", PASSIVE_NO_INITIALIZE)
        stored = (history.unchanged or history.deleted or (_stored_owner(state),))[0]
    for relationship in shape.to_owner:
        if relationship.key in pending:
            related = state.dict.get(relationship.key)
            # An orphan becomes a tombstone, and keeps its parent.
            if new or related is not None or not is_orphan(state, shape):
                owner_id = _key_of(related, relationship)
    # It may be an SQL expression, which cannot be compared.
    is_known = isinstance(owner_id, (UUID, int, str))
    if not new and owner_id is not stored and not (is_known and owner_id == stored):
        raise OwnerChangedError(shape.table)
    if owner_id is None or not is_known:
        raise OwnerMissingError(shape.table)
    return owner_id


def _key_of(owner: Any, relationship: Relationship) -> OwnerId | None:
    """Return what the flush will copy from a related owner, or from a parent of the same owner."""
    for local, remote in relationship.local_remote_pairs or ():
        if owner is not None and relationship.parent.get_property_by_column(local).key == "owner_id":
            state = instance_state(owner)
            key = relationship.mapper.get_property_by_column(remote).key
            if key == "owner_id" and shape_of(state.mapper).tracked and state.key is None:
                return owner_of(state, shape_of(state.mapper))
            owner_id: OwnerId | None = getattr(owner, key)
            return owner_id
    return None


def _stored_owner(state: State) -> OwnerId | None:
    """Read a row's owner from the database, when it was assigned before it was ever loaded."""
    mapper, session = state.mapper, state.session
    if session is None or state.identity is None:
        return None
    same_row = (column == value for column, value in zip(mapper.primary_key, state.identity, strict=True))
    owner_id: OwnerId | None = session.scalar(
        sa.select(mapper.column_attrs["owner_id"].columns[0]).where(*same_row)
    )
    return owner_id


def children_of(session: Session, parent: Any, relationship: Relationship) -> list[Any]:
    """Return a parent's children along a relationship, also when it does not load them by itself."""
    related = instance_dict(parent).get(relationship.key)
    if related is not None:
        return list(collection_adapter(related)) if relationship.uselist else [related]
    state = instance_state(parent)
    keys = [relationship.parent.get_property_by_column(column).key for column in relationship.local_columns]
    if not state.persistent or any(getattr(parent, key) is None for key in keys):
        return []
    along = with_parent(parent, relationship.class_attribute)
    return list(session.scalars(sa.select(relationship.mapper).where(along)))


def refuse_dragged(session: Session, state: State, shape: Shape) -> None:
    """Refuse to remove a row that is not synced while the database would write synced rows with it.

    Raises:
        HardDeleteError: It would remove some.
        UnstampedWriteError: It would take a foreign key from some that SQLAlchemy does not know of.
    """
    stamped = [prop.remote_side for prop in shape.related if nulls_children(prop)]
    for key in (key for table in state.mapper.tables for key in keys_that_drag(table)):
        removes = key.ondelete is not None and key.ondelete.upper() == "CASCADE"
        if not removes and set(key.columns) in stamped:
            continue
        referring = [
            element.parent == getattr(state.obj(), state.mapper.get_property_by_column(element.column).key)
            for element in key.elements
        ]
        if session.scalar(sa.select(sa.exists().where(*referring))):
            raise HardDeleteError(key.table.name) if removes else UnstampedWriteError(key.table.name)


def parents_first(states: Iterable[State]) -> list[State]:
    """Order rows as they are stamped: parents before children, new before old, then as added or by key."""
    families: dict[Mapper[Any], list[State]] = {}
    for state in states:
        families.setdefault(state.mapper.base_mapper, []).append(state)
    position = _table_positions(frozenset(base.local_table for base in families))
    in_turn: list[State] = []
    for base in sorted(families, key=lambda base: position.get(base.local_table, len(position))):
        rows = sorted(families[base], key=_turn)
        if any(shape_of(mapper).to_self for mapper in base.self_and_descendants):
            rows.sort(key=_depth)
        in_turn += rows
    return in_turn


def _turn(state: State) -> tuple[Any, ...]:
    """Rank a row within its table: new before old, then as added or by key."""
    if state.key is None:
        return False, state.insert_order
    keys = state.key[1]
    # Comparing UUIDs runs Python code, and their integers sort alike; some keys cannot be compared at all.
    if len(keys) == 1 and type(keys[0]) is UUID:
        return True, keys[0].int
    return True, *(key if isinstance(key, int | str) else str(key) for key in keys)


@functools.lru_cache(maxsize=256)
def _table_positions(tables: frozenset[Any]) -> dict[Any, int]:
    if len(tables) < 2:
        return {}
    known: list[Any] = [table for table in tables if isinstance(table, sa.Table)]
    # SQLAlchemy leaves it untyped.
    in_order: list[tuple[Any, Any]] = sort_tables_and_constraints(known)  # type: ignore[no-untyped-call]
    return {table: position for position, (table, _) in enumerate(in_order) if table is not None}


def _depth(state: State) -> int:
    """Count the loaded ancestors of a row within its own table."""
    depth, seen = 0, {state}
    while True:
        shape = shape_of(state.mapper)
        parents = (state.dict.get(relationship.key) for relationship in shape.to_self)
        parent = next((instance_state(parent) for parent in parents if parent is not None), None)
        if parent is None or parent in seen:
            return depth
        depth, state = depth + 1, parent
        seen.add(state)

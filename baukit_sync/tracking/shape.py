"""What tracking needs to know of mapped classes and their tables."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

import sqlalchemy as sa
from sqlalchemy.orm import Mapper, RelationshipDirection, RelationshipProperty

# SQLAlchemy has no public way to find all mapped classes.
from sqlalchemy.orm.mapper import _all_registries  # pyright: ignore[reportPrivateUsage]

Relationship: TypeAlias = RelationshipProperty[Any]

_SYNC_COLUMNS = {"revision", "deleted_at"}


@dataclass(frozen=True, slots=True)
class Shape:
    """What tracking needs to know of a mapped class; worked out once for each.

    Attributes:
        table: The table's name, for errors.
        tracked: It has ``owner_id``, ``revision`` and ``deleted_at``: flushes stamp it.
        syncable: Its table has ``revision`` and ``deleted_at``: it is stamped by hand, unless tracked.
        has_updated_at: It has ``updated_at``.
        can_be_orphan: Some relationship to it has the delete-orphan cascade.
        key: The attributes of the primary key.
        row_keys: The attributes whose change writes the row, or its links in a many-to-many relationship.
        to_owner: The relationships that set ``owner_id``.
        to_self: The relationships to a parent of the same table.
        to_children: The relationships whose change writes, or removes, a child's row.
        to_children_keys: The attributes of those, and of the many-to-many ones through a syncable table.
        through_synced: The many-to-many relationships whose links are rows of a syncable table.
        related: All relationships that write something.
    """

    table: str
    tracked: bool
    syncable: bool
    has_updated_at: bool
    can_be_orphan: bool
    key: frozenset[str]
    row_keys: frozenset[str]
    to_owner: tuple[Relationship, ...]
    to_self: tuple[Relationship, ...]
    to_children: tuple[Relationship, ...]
    to_children_keys: frozenset[str]
    through_synced: tuple[Relationship, ...]
    related: tuple[Relationship, ...]


@functools.cache
def shape_of(mapper: Mapper[Any]) -> Shape:
    """Return the shape of a mapped class."""
    columns = {prop.key for prop in mapper.column_attrs if isinstance(prop.columns[0], sa.Column)}
    tracked = columns >= _SYNC_COLUMNS | {"owner_id"}
    owner_columns: set[Any] = set(mapper.column_attrs["owner_id"].columns) if tracked else set()
    related = tuple(prop for prop in mapper.relationships if not prop.viewonly)
    to_children = tuple(prop for prop in related if is_to_children(prop) or prop.cascade.delete_orphan)
    through_synced = tuple(prop for prop in related if _has_sync_columns(prop.secondary))
    to_one = [prop for prop in related if prop.direction is RelationshipDirection.MANYTOONE]
    return Shape(
        table=getattr(mapper.local_table, "name", mapper.class_.__name__),
        tracked=tracked,
        syncable=columns >= _SYNC_COLUMNS or any(map(_has_sync_columns, mapper.tables)),
        has_updated_at="updated_at" in columns,
        can_be_orphan=any(_has_owning_parents(parent) for parent in mapper.iterate_to_root()),
        key=frozenset(mapper.get_property_by_column(column).key for column in mapper.primary_key),
        row_keys=frozenset(columns.union(prop.key for prop in related if not is_to_children(prop))),
        to_owner=tuple(prop for prop in to_one if owner_columns & prop.local_columns),
        to_self=tuple(prop for prop in to_one if prop.mapper.base_mapper is mapper.base_mapper),
        to_children=to_children,
        to_children_keys=frozenset(prop.key for prop in (*to_children, *through_synced)),
        through_synced=through_synced,
        related=related,
    )


def _has_owning_parents(mapper: Mapper[Any]) -> bool:
    # As with Mapper._is_orphan, SQLAlchemy offers nothing public.
    return bool(mapper._delete_orphans)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]


def is_to_children(relationship: Relationship) -> bool:
    """Tell whether it is the other side that has the foreign key."""
    return relationship.direction is RelationshipDirection.ONETOMANY


def nulls_children(relationship: Relationship) -> bool:
    """Tell whether SQLAlchemy nulls the children's foreign key when the parent's row goes."""
    keeps = relationship.cascade.delete or relationship.passive_deletes == "all"
    return is_to_children(relationship) and not keeps


def leads_to_synced(relationship: Relationship) -> bool:
    """Tell whether some of the related objects are of syncable classes."""
    return any(shape_of(mapper).syncable for mapper in relationship.mapper.self_and_descendants)


def sets_owner(relationship: Relationship) -> bool:
    """Tell whether a relationship to children sets their ``owner_id``."""
    pairs = relationship.local_remote_pairs or ()
    return any(relationship.mapper.get_property_by_column(remote).key == "owner_id" for _, remote in pairs)


def syncable_tables() -> set[str]:
    """Name every table, with its schema, that holds rows of a syncable class, or links of one."""
    mappers = (mapper for registry in _all_registries() for mapper in registry.mappers)
    return {name for mapper in mappers for name in _tables_of(mapper)}


@functools.cache
def _tables_of(mapper: Mapper[Any]) -> frozenset[str]:
    def tables() -> Iterator[Any]:
        shape = shape_of(mapper)
        yield from mapper.tables if shape.syncable else ()
        for prop in shape.related:
            if shape.syncable or shape_of(prop.mapper).syncable:
                yield prop.secondary

    return frozenset(table.fullname for table in tables() if isinstance(table, sa.Table))


def unaliased(table: Any) -> Any:
    """Return what an alias stands for."""
    while hasattr(table, "element"):
        table = table.element
    return table


def is_syncable(table: Any) -> bool:
    """Tell whether a table, by whatever object, holds rows or links of syncable classes."""
    named = isinstance(table, sa.TableClause)
    return _has_sync_columns(table) or (named and table.fullname in syncable_tables())


def _has_sync_columns(table: object) -> bool:
    return _is_table(table) and set(table.c.keys()) >= _SYNC_COLUMNS


def _is_table(table: object) -> TypeGuard[sa.Table]:
    return isinstance(table, sa.Table)


def keys_that_drag(table: Any) -> list[sa.ForeignKeyConstraint]:
    """Return the foreign keys by which the database writes to rows of syncable tables when a row here goes.

    Those to the owner are left out: with an owner go its counter and its clients.
    """
    if not isinstance(table, sa.Table):
        return []
    keys = (key for other in table.metadata.tables.values() for key in other.foreign_key_constraints)
    return [
        key
        for key in keys
        if key.referred_table.key == table.key
        and (key.ondelete or "").upper() in {"CASCADE", "SET NULL", "SET DEFAULT"}
        and key.column_keys != ["owner_id"]
        and is_syncable(key.table)
    ]

"""Which tables to examine, from a product's models or from the database itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import DeclarativeBase, DeclarativeBaseNoMeta, Mapper, class_mapper
from sqlalchemy.orm.exc import UnmappedClassError

from baukit_sync.errors import InvalidArgumentError

_REQUIRED = {"revision", "deleted_at"}
_ROLES = ("id", "owner_id", "updated_at", "deleted_at", "revision")

Target: TypeAlias = "sa.MetaData | type[Any] | sa.Table | Sequence[type[Any] | sa.Table]"
"""A MetaData, a declarative base, a mapped class, a Table, or a list of classes and Tables."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A table that the product says it syncs.

    Attributes:
        name: Its name.
        schema: Its schema; ``None`` for the one that an unqualified name finds.
        names: What the database calls the columns that the kit knows by other names.
    """

    name: str
    schema: str | None
    names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Targets:
    """What to examine.

    Attributes:
        tables: The synced tables; ``None`` for every table of the database that has the five columns.
        mappers: The mapped classes.
        kit_schema: The schema of the kit's tables in the MetaData; ``None`` when it does not say.
    """

    tables: tuple[Wanted, ...] | None
    mappers: tuple[Mapper[Any], ...]
    kit_schema: str | None


def targets_of(target: Target | None) -> Targets:
    """Read a target.

    From a MetaData or a base come the tables that have ``revision`` and ``deleted_at``; a class or Table that
    is named is taken as synced whatever it has.

    Raises:
        InvalidArgumentError: The target is something else.
    """
    if target is None:
        return Targets(None, (), None)
    tables: dict[sa.Table, Mapping[str, str]] = {}
    mappers: dict[Mapper[Any], None] = {}
    parts = list(cast("Iterable[Any]", target)) if isinstance(target, list | tuple | set) else [target]
    for part in parts:
        if isinstance(part, sa.MetaData):
            tables |= _synced(part)
        elif isinstance(part, sa.Table):
            tables[cast("sa.Table", part)] = _names(cast("sa.Table", part))
        elif isinstance(part, type) and (found := _base(part)):
            tables |= _synced(found.metadata)
            mapped = dict.fromkeys(found.registry.mappers)
            mappers |= mapped
            tables |= dict(
                _mapped(mapper) for mapper in mapped if set(mapper.column_attrs.keys()) >= _REQUIRED
            )
        else:
            mapper = _mapper(part)
            tables |= [_mapped(mapper)]
            mappers[mapper] = None
    kit = {(table.name, table.schema) for each in tables for table in each.metadata.tables.values()}
    schemas = {schema for name, schema in kit if name == "sync_revisions"}
    return Targets(
        tables=tuple(Wanted(table.name, table.schema, names) for table, names in tables.items()),
        mappers=tuple(mappers),
        kit_schema=schemas.pop() if len(schemas) == 1 else None,
    )


def _base(part: type[Any]) -> type[DeclarativeBase] | None:
    is_base = issubclass(part, DeclarativeBase | DeclarativeBaseNoMeta) or hasattr(part, "registry")
    return cast("type[DeclarativeBase]", part) if is_base and not hasattr(part, "__mapper__") else None


def _mapper(part: object) -> Mapper[Any]:
    try:
        return class_mapper(cast("type[Any]", part))
    except (UnmappedClassError, ArgumentError):
        raise InvalidArgumentError(
            "target", "a MetaData, a declarative base, mapped classes or Tables"
        ) from None


def _synced(metadata: sa.MetaData) -> dict[sa.Table, Mapping[str, str]]:
    return {table: _names(table) for table in metadata.tables.values() if set(table.c.keys()) >= _REQUIRED}


def _names(table: sa.Table) -> Mapping[str, str]:
    return {role: str(table.c[role].name) for role in _ROLES if role in table.c}


def _mapped(mapper: Mapper[Any]) -> tuple[sa.Table, Mapping[str, str]]:
    """Return the table of a class that has its revision, of a subclass often the parent's, and its names."""
    columns = {role: mapper.column_attrs[role].columns[0] for role in _ROLES if role in mapper.column_attrs}
    table = columns["revision"].table if "revision" in columns else mapper.local_table
    names = {role: str(column.name) for role, column in columns.items() if column.table is table}
    return cast("sa.Table", table), names

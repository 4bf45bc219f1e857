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
    tables: dict[sa.Table, None] = {}
    mappers: dict[Mapper[Any], None] = {}
    parts = list(cast("Iterable[Any]", target)) if isinstance(target, list | tuple | set) else [target]
    for part in parts:
        if isinstance(part, sa.MetaData):
            tables |= dict.fromkeys(_synced(part))
        elif isinstance(part, sa.Table):
            tables[part] = None
        elif isinstance(part, type) and (found := _base(part)):
            tables |= dict.fromkeys(_synced(found.metadata))
            mappers |= dict.fromkeys(found.registry.mappers)
        else:
            mapper = _mapper(part)
            tables[_table(mapper)] = None
            mappers[mapper] = None
    kit = {table.metadata.tables.get(key) for table in tables for key in table.metadata.tables}
    schemas = {table.schema for table in kit if table is not None and table.name == "sync_revisions"}
    return Targets(
        tables=tuple(Wanted(table.name, table.schema, _names(table)) for table in tables),
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


def _synced(metadata: sa.MetaData) -> list[sa.Table]:
    return [table for table in metadata.tables.values() if {"revision", "deleted_at"} <= set(table.c.keys())]


def _table(mapper: Mapper[Any]) -> sa.Table:
    """Return the table of a class that has its revision: of an inherited class often the parent's."""
    tables = cast("list[sa.Table]", [table for table in mapper.tables if isinstance(table, sa.Table)])
    return next((table for table in tables if "revision" in table.c), tables[0])


def _names(table: sa.Table) -> dict[str, str]:
    return {role: str(table.c[role].name) if role in table.c else role for role in _ROLES}

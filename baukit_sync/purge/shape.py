"""What the purge needs to know of a product's table, worked out from a mapped class or a ``Table``."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, TypeAlias, cast

import sqlalchemy as sa
from sqlalchemy.orm import Mapper, RelationshipDirection, RelationshipProperty

from baukit_sync.errors import InvalidArgumentError, MissingIndexWarning, UnsafeForeignKeyError

Pairs: TypeAlias = tuple[tuple[sa.Column[Any], sa.Column[Any]], ...]
"""Columns of a referring table, each with the column it refers to."""

_REWRITES = frozenset({"CASCADE", "SET NULL", "SET DEFAULT"})

_EXPECTED_MODEL = "a Table or a mapped class, not a subclass, with a primary key, deleted_at and revision"
_EXPECTED_VIA = "foreign key columns or many-to-one relationships that lead to a table with owner_id"
_EXPECTED_CHILDREN = "tables, mapped classes, foreign key columns or one-to-many relationships of children"


@dataclass(frozen=True, slots=True)
class Shape:
    """A table with tombstones.

    Attributes:
        table: The table.
        primary_key: Its key.
        deleted_at: When a row became a tombstone.
        revision: The revision of that write.
        key: The columns that lead to the owner: ``owner_id`` itself, or the foreign key to a parent.
        path: The joins from the key to the table that has the owner; empty if it is the table itself.
        owner: The owner column, at the end of the path.
        children: What refers to a row, and must be gone before it.
        parts: The tables of joined subclasses, whose rows go with the row; those that the database leaves.
        is_tree: Rows refer to rows of the same table.
    """

    table: sa.Table
    primary_key: tuple[sa.Column[Any], ...]
    deleted_at: sa.Column[Any]
    revision: sa.Column[Any]
    key: tuple[sa.Column[Any], ...]
    path: tuple[Pairs, ...]
    owner: sa.Column[Any]
    children: tuple[Pairs, ...]
    parts: tuple[Pairs, ...]
    is_tree: bool

    @property
    def is_partitioned(self) -> bool:
        """Whether the table's metadata says that it is partitioned."""
        return bool(self.table.dialect_options["postgresql"]["partition_by"])


def shape_of(model: Any, owner_via: Any, children: Iterable[Any]) -> Shape:
    """Work out a table's shape; the arguments are those of ``TombstoneTable.for_model``.

    Raises:
        InvalidArgumentError: Something cannot be purged.
        UnsafeForeignKeyError: A foreign key would change synced rows.
    """
    table, mapper = _table(model, "model", _EXPECTED_MODEL)
    if mapper is not None and mapper.inherits is not None and not mapper.concrete:
        raise InvalidArgumentError("model", _EXPECTED_MODEL)
    primary_key = tuple(table.primary_key.columns)
    deleted_at, revision = (_column(table, mapper, name) for name in ("deleted_at", "revision"))
    if not primary_key or deleted_at is None or revision is None:
        raise InvalidArgumentError("model", _EXPECTED_MODEL)
    path, owner = _owner(table, mapper, owner_via)
    key = tuple(local for local, _ in path[0]) if path else (owner,)
    parts = dict(_parts(mapper)) if mapper is not None else {}
    refers = tuple(_children(table, parts, children))
    own = {table, *(pairs[0][0].table for pairs in parts.values())}
    shape = Shape(
        table=table,
        primary_key=primary_key,
        deleted_at=deleted_at,
        revision=revision,
        key=key,
        path=path,
        owner=owner,
        children=refers,
        parts=tuple(pairs for constraint, pairs in parts.items() if _action(constraint) != "CASCADE"),
        is_tree=any(pairs[0][0].table in own for pairs in refers),
    )
    if not _has_index(shape):
        names = ", ".join(column.name for column in (*key, deleted_at))
        message = f"{table.name} needs an index on ({names}) WHERE deleted_at IS NOT NULL: see sync_indexes"
        warnings.warn(message, MissingIndexWarning, stacklevel=3)
    return shape


def _table(model: Any, argument: str, expected: str) -> tuple[sa.Table, Mapper[Any] | None]:
    mapper: Any = cast("Any", sa.inspect(model, raiseerr=False)) if isinstance(model, type) else None
    table: Any = model if mapper is None else mapper.local_table
    if not _is(table, sa.Table):
        raise InvalidArgumentError(argument, expected)
    return table, mapper


def _is(thing: object, kind: type[Any] | UnionType) -> bool:
    """Check a type without narrowing: what is known of a generic class only by ``isinstance`` is unknown."""
    return isinstance(thing, kind)


def _column(table: sa.Table, mapper: Mapper[Any] | None, name: str) -> sa.Column[Any] | None:
    """Find a column by its attribute, or by its own name."""
    found = table.columns.get(name) if mapper is None else mapper.columns.get(name)
    return found if isinstance(found, sa.Column) and found.table is table else None


def _owner(
    table: sa.Table, mapper: Mapper[Any] | None, owner_via: Any
) -> tuple[tuple[Pairs, ...], sa.Column[Any]]:
    path: list[Pairs] = []
    steps: Sequence[Any] = (
        () if owner_via is None else owner_via if _is(owner_via, Sequence) else (owner_via,)
    )
    for step in steps:
        pairs, mapper = _reference(step, table, RelationshipDirection.MANYTOONE, "owner_via", _EXPECTED_VIA)
        path.append(pairs)
        table = pairs[0][1].table
    owner = _column(table, mapper, "owner_id")
    if owner is None:
        raise InvalidArgumentError("owner_via", _EXPECTED_VIA)
    return tuple(path), owner


def _reference(
    step: Any, table: sa.Table, direction: RelationshipDirection, argument: str, expected: str
) -> tuple[Pairs, Mapper[Any] | None]:
    """Return the columns of a relationship or foreign key, the referring ones first.

    Args:
        step: The relationship's attribute, or a column of the foreign key.
        table: The table at the near end.
        direction: What the relationship is, seen from the near end.
        argument: Whose value it is, for the error.
        expected: What the argument takes, for the error.
    """
    prop: Any = getattr(step, "property", None)
    if _is(prop, RelationshipProperty):
        near = [(local, remote) for local, remote in prop.local_remote_pairs or ()]
        is_near = all(local.table is table for local, _ in near)
        if prop.direction is direction and prop.secondary is None and is_near:
            turned = direction is RelationshipDirection.ONETOMANY
            pairs: Any = tuple((remote, local) if turned else (local, remote) for local, remote in near)
            return pairs, prop.mapper
    else:
        column: Any = step if _is(step, sa.Column) else next(iter(getattr(prop, "columns", ())), None)
        constraints = {key.constraint for key in getattr(column, "foreign_keys", ())}
        if len(constraints) == 1:
            (constraint,) = constraints
            if isinstance(constraint, sa.ForeignKeyConstraint):
                pairs = _pairs(constraint)
                near_table = pairs[0][0 if direction is RelationshipDirection.MANYTOONE else 1].table
                if near_table is table:
                    return pairs, None
    raise InvalidArgumentError(argument, expected)


def _children(
    table: sa.Table, parts: dict[sa.ForeignKeyConstraint, Pairs], children: Iterable[Any]
) -> Iterator[Pairs]:
    """Find what refers to the table or its parts: foreign keys of its metadata, and what was named."""
    # A part has the key of its row.
    keys: dict[Any, Any] = {column: column for column in table.columns}
    for pairs in parts.values():
        keys.update(pairs)
    named: list[sa.Table] = []
    seen: set[frozenset[Any]] = set()
    for child in children:
        if _is(child, sa.Table | type):
            named.append(_table(child, "children", _EXPECTED_CHILDREN)[0])
        else:
            near = RelationshipDirection.ONETOMANY
            pairs, _ = _reference(child, table, near, "children", _EXPECTED_CHILDREN)
            seen.add(frozenset(pairs))
            yield pairs
    for referring in dict.fromkeys((*named, *table.metadata.tables.values())):
        keys_to_row = [
            constraint
            for constraint in referring.foreign_key_constraints
            if constraint not in parts and all(column in keys for _, column in _pairs(constraint))
        ]
        if referring in named and not keys_to_row:
            raise InvalidArgumentError("children", _EXPECTED_CHILDREN)
        for constraint in keys_to_row:
            _refuse_unsafe(table, constraint)
            pairs = tuple((column, keys[referred]) for column, referred in _pairs(constraint))
            if frozenset(pairs) not in seen and _action(constraint) not in _REWRITES:
                yield pairs


def _refuse_unsafe(table: sa.Table, constraint: sa.ForeignKeyConstraint) -> None:
    referring, action = constraint.table, _action(constraint)
    if action in _REWRITES and {"deleted_at", "revision"} <= set(referring.columns.keys()):
        raise UnsafeForeignKeyError(table.name, referring.name, action)


def _parts(mapper: Mapper[Any]) -> Iterator[tuple[sa.ForeignKeyConstraint, Pairs]]:
    """Find the tables of joined subclasses: their foreign key, and their key with the row's own."""
    local: Any = mapper.local_table
    primary_key = local.primary_key.columns
    for each in mapper.self_and_descendants:
        parent: Any = each.inherits
        part: Any = each.local_table
        if each is mapper or each.concrete or part is parent.local_table:
            continue
        for constraint in part.foreign_key_constraints:
            columns = [column for column, _ in _pairs(constraint)]
            own_key = list(part.primary_key.columns)
            if constraint.referred_table is parent.local_table and columns == own_key:
                yield constraint, tuple(zip(own_key, primary_key, strict=True))


def _pairs(constraint: sa.ForeignKeyConstraint) -> Pairs:
    return tuple((element.parent, element.column) for element in constraint.elements)


def _action(constraint: sa.ForeignKeyConstraint) -> str:
    return (constraint.ondelete or "NO ACTION").upper()


def _has_index(shape: Shape) -> bool:
    wanted = [*shape.key, shape.deleted_at]
    return any(list(index.columns)[: len(wanted)] == wanted for index in shape.table.indexes)

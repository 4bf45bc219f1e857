"""How one table's tombstones are found and deleted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy import Executable
from sqlalchemy.orm import InstrumentedAttribute

from baukit_sync.errors import InvalidArgumentError
from baukit_sync.purge.one_owner import OneOwnerStatements
from baukit_sync.purge.shape import Shape, shape_of
from baukit_sync.purge.statements import Statements

Reference: TypeAlias = "InstrumentedAttribute[Any] | sa.ColumnElement[Any]"
"""A relationship, or a column of a foreign key."""


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table that the kit knows, with the statements that purge it.

    Attributes:
        shape: The table.
        statements: For many owners at once.
        one_owner: For one at a time; ``None`` if a row's owner, or a part of it, is in another table.
    """

    shape: Shape
    statements: Statements
    one_owner: OneOwnerStatements | None


@dataclass(frozen=True, slots=True)
class TombstoneTable:
    """How one table's tombstones are found and deleted: from a model, or in the product's own SQL.

    ::

        TombstoneTable.for_model(Note)

        TombstoneTable(
            "notes",
            "SELECT id, owner_id, revision FROM notes WHERE deleted_at < :cutoff"
            " ORDER BY deleted_at, id LIMIT :limit FOR UPDATE SKIP LOCKED",
            "DELETE FROM notes WHERE id = ANY(:ids)",
        )

    Attributes:
        name: What reports and errors call the table.
        select: Binds ``cutoff`` (a timestamptz) and ``limit``; returns ``id``, ``owner_id`` and ``revision``
            of tombstones with ``deleted_at < cutoff``, locked FOR UPDATE SKIP LOCKED. A parent's selector
            skips rows that still have children; a child without an owner column joins its parent and locks
            ``OF`` the child.
        delete: Binds ``ids``, a list of what ``select`` returned as ``id``; deletes exactly those rows.
        known: What ``for_model`` has worked out; ``select`` and ``delete`` are then its scan and its batch.

    Raises:
        InvalidArgumentError: ``name`` is not text, or a statement is neither text nor an executable.
    """

    name: str
    select: str | Executable
    delete: str | Executable
    known: KnownTable | None = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidArgumentError("name", "a table's name")
        for argument, statement in (("select", self.select), ("delete", self.delete)):
            if not isinstance(statement, str | Executable):
                raise InvalidArgumentError(argument, "SQL text or an executable statement")

    @classmethod
    def for_model(
        cls,
        model: type[Any] | sa.Table,
        *,
        owner_via: Reference | Sequence[Reference] | None = None,
        children: Iterable[Reference | type[Any] | sa.Table] = (),
    ) -> TombstoneTable:
        """Work out how to purge a mapped class or a ``Table``.

        Such a table is purged owner by owner, which is faster, and which no busy owner stops. A row goes when
        nothing refers to it any more: the foreign keys of the whole MetaData are looked at, so call this when
        all models are imported. The tables of joined subclasses go with it.

        ::

            TombstoneTable.for_model(Item, owner_via=Item.list)             # the owner is the list's
            TombstoneTable.for_model(Part, owner_via=(Part.item, Item.list))
            TombstoneTable.for_model(notes, children=[attachments.c.note_id])

        Args:
            model: The class or table; it has a primary key, ``deleted_at``, ``revision`` and, without
                ``owner_via``, ``owner_id``. Any schema; composite keys; partitioned tables.
            owner_via: For a table without an owner column, what leads to the one that has it: many-to-one
                relationships, or columns of foreign keys.
            children: What else refers to a row and must be gone first: tables, classes, one-to-many
                relationships, or columns of foreign keys of another MetaData.

        Raises:
            InvalidArgumentError: A column is missing, or an argument leads nowhere.
            UnsafeForeignKeyError: With a row the database would delete or change rows of a synced table: ON
                DELETE CASCADE, SET NULL or SET DEFAULT.

        Warns:
            MissingIndexWarning: The table lacks the index of :func:`baukit_sync.sync_indexes`.
        """
        shape = shape_of(model, owner_via, children)
        statements = Statements.of(shape)
        one_owner = None if shape.path or shape.parts else OneOwnerStatements.of(shape)
        table = cls(shape.table.fullname, statements.first_scan, statements.purge)
        object.__setattr__(table, "known", KnownTable(shape, statements, one_owner))
        return table

"""The kit's two tables, the five columns of a syncable table, and its two indexes.

``add_sync_tables`` joins the tables to a product's own ``MetaData``, so that autogenerate sees them.
Every name is wrapped in ``conv``: a naming convention leaves it alone.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple, TypeAlias, cast
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Mapped, MappedAsDataclass, Mapper, mapped_column
from sqlalchemy.schema import ExecutableDDLElement, conv
from sqlalchemy.sql.compiler import DDLCompiler
from sqlalchemy.types import TypeEngine

from baukit_sync.errors import InvalidArgumentError

_Key: TypeAlias = "str | sa.ColumnElement[Any]"

_metadata, _untyped = sa.MetaData(), sa.types.NullType()

counters = sa.Table(
    "sync_revisions", _metadata, sa.Column("owner_id", _untyped), sa.Column("last_revision", _untyped)
)
"""For statements: untyped, so that one statement serves uuid, bigint and text owners on every driver."""

# Tables, not lightweight ones: schema_translate_map passes those by.
horizons = sa.Table(
    "sync_purge_horizons",
    _metadata,
    sa.Column("owner_id", _untyped),
    sa.Column("horizon_revision", _untyped),
    sa.Column("updated_at", _untyped),
)
"""For statements, like :data:`counters`."""


def raise_only(insert: postgresql.Insert) -> postgresql.Insert:
    """Let an insert into :data:`horizons` raise the horizons that exist, and never lower one."""
    raised = insert.excluded
    return insert.on_conflict_do_update(
        index_elements=[horizons.c.owner_id],
        set_={"horizon_revision": raised.horizon_revision, "updated_at": raised.updated_at},
        where=horizons.c.horizon_revision < raised.horizon_revision,
    )


COUNTER_FILLFACTOR = 50
"""Half of each page stays free, so that raising a counter is a HOT update: no index entry, no bloat."""


class _LowFillfactor(ExecutableDDLElement):
    """The counters' fillfactor, set after ``CREATE TABLE``: SQLAlchemy 2.0 takes no storage parameters."""


@compiles(_LowFillfactor)
def _set_low_fillfactor(element: _LowFillfactor, compiler: DDLCompiler, **_: Any) -> str:
    # sa.DDL would escape the percent signs of a name twice.
    table = compiler.preparer.format_table(cast("sa.Table", element.target))
    return f"ALTER TABLE {table} SET (fillfactor = {COUNTER_FILLFACTOR})"


class SyncTables(NamedTuple):
    """What :func:`add_sync_tables` returns."""

    revisions: sa.Table
    purge_horizons: sa.Table


def add_sync_tables(
    metadata: sa.MetaData,
    *,
    owner: str | None = None,
    owner_type: TypeEngine[Any] | type[TypeEngine[Any]] | None = None,
    ondelete: str | None = "CASCADE",
    schema: str | None = None,
) -> SyncTables:
    """Add ``sync_revisions`` and ``sync_purge_horizons`` to a product's MetaData.

    Call it once, beside the product's models; the arguments are those of ``migrations.create_revisions``.

    Args:
        metadata: The MetaData that Alembic compares and ``create_all`` creates.
        owner: The column the owners live in, such as ``"users.id"``; ``None`` for no foreign key.
        owner_type: The owner column's type: ``Uuid()`` (the default), ``BigInteger()`` or ``Text()``.
        ondelete: What deleting an owner does to its counter and horizon; ``None`` refuses the delete.
        schema: The database schema; ``None`` for the default one. The kit's functions find the tables as they
            find any unqualified name: by ``search_path`` or ``schema_translate_map``.

    Returns:
        The two tables.

    Raises:
        InvalidArgumentError: ``ondelete`` is another action than CASCADE, RESTRICT or NO ACTION.
    """
    if ondelete not in {None, "CASCADE", "RESTRICT", "NO ACTION"}:
        raise InvalidArgumentError("ondelete", "CASCADE, RESTRICT, NO ACTION or None: a key has no null")
    of_owner = sa.Uuid() if owner_type is None else owner_type
    to_owner = (
        [sa.ForeignKey(owner, name=conv("sync_revisions_owner_id_fkey"), ondelete=ondelete)] if owner else []
    )
    revisions = sa.Table(
        "sync_revisions",
        metadata,
        sa.Column("owner_id", of_owner, *to_owner, autoincrement=False),
        sa.Column("last_revision", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.PrimaryKeyConstraint("owner_id", name=conv("sync_revisions_pkey")),
        sa.CheckConstraint("last_revision >= 0", name=conv("sync_revisions_last_revision_check")),
        schema=schema,
    )
    event.listen(revisions, "after_create", _LowFillfactor().execute_if(dialect="postgresql"))
    purge_horizons = sa.Table(
        "sync_purge_horizons",
        metadata,
        sa.Column("owner_id", of_owner, autoincrement=False),
        sa.Column("horizon_revision", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.PrimaryKeyConstraint("owner_id", name=conv("sync_purge_horizons_pkey")),
        sa.ForeignKeyConstraint(
            ["owner_id"],
            [revisions.c.owner_id],
            name=conv("sync_purge_horizons_owner_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.CheckConstraint("horizon_revision > 0", name=conv("sync_purge_horizons_horizon_revision_check")),
        schema=schema,
    )
    return SyncTables(revisions, purge_horizons)


def sync_columns(owner_type: TypeEngine[Any] | type[TypeEngine[Any]] | None = None) -> list[sa.Column[Any]]:
    """Return the five columns of a syncable table, for a ``Table`` or an imperative mapping.

    Args:
        owner_type: The owner column's type: ``Uuid()`` (the default), ``BigInteger()`` or ``Text()``.
    """
    return [
        sa.Column("id", sa.Uuid, primary_key=True, default=uuid4),
        sa.Column("owner_id", sa.Uuid() if owner_type is None else owner_type, nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.Column("deleted_at", sa.DateTime(timezone=True)),
        sa.Column("revision", sa.BigInteger, nullable=False),
    ]


def sync_indexes(table: str, *, owner: str = "owner_id") -> list[sa.Index]:
    """Return the indexes that pulls and purges need, for a ``Table``'s arguments.

    Args:
        table: The table's name; the indexes are ``<table>_sync_idx`` and ``<table>_tombstone_idx``.
        owner: The column that leads to the owner: the parent's key in a child without ``owner_id``.

    Raises:
        InvalidArgumentError: An index name would be longer than PostgreSQL's 63 bytes.
    """
    return _indexes(index_names(table), owner, "revision", "deleted_at")


def live_unique_index(name: str, *columns: str) -> sa.Index:
    """Return an index that lets columns be unique among the rows that are not deleted, for a ``Table``.

    Args:
        name: The index's name, which no naming convention changes.
        columns: The natural key; begin it with the owner's column.
    """
    live = sa.text("deleted_at IS NULL")
    return sa.Index(conv(name), *columns, unique=True, postgresql_where=live)


def _indexes(names: IndexNames, owner: _Key, revision: _Key, deleted_at: _Key) -> list[sa.Index]:
    tombstones = sa.text("deleted_at IS NOT NULL")
    return [
        sa.Index(conv(names.sync), owner, revision),
        sa.Index(conv(names.tombstone), owner, deleted_at, postgresql_where=tombstones),
    ]


class IndexNames(NamedTuple):
    """The names of a syncable table's indexes."""

    sync: str
    tombstone: str


def index_names(table: str) -> IndexNames:
    """Return the names of a syncable table's indexes.

    Raises:
        InvalidArgumentError: A name would be longer than PostgreSQL's 63 bytes, and be cut to another's.
    """
    names = IndexNames(f"{table}_sync_idx", f"{table}_tombstone_idx")
    if len(names.tombstone.encode()) > 63:
        raise InvalidArgumentError("table", f"at most {63 - len('_tombstone_idx')} bytes long")
    return names


class SyncColumns:
    """The five columns and two indexes of a syncable table, as a declarative mixin.

    ::

        class Note(SyncColumns, Base):
            __tablename__ = "notes"
            title: Mapped[str]

    Redeclare ``owner_id`` in your class for another owner type or a foreign key. With ``MappedAsDataclass``
    use :class:`SyncDataclassColumns`.

    Attributes:
        id: The primary key, made by the client, so that a row can be written offline.
        owner_id: Whose pulls return the row.
        updated_at: When the row was last written; an input of the product's conflict rule.
        deleted_at: Set on a tombstone. A row is marked, never removed, until the purge.
        revision: What ``next_revision`` gave for the write that left the row as it is.
    """

    id: Mapped[UUID] = mapped_column(sa.Uuid, primary_key=True, default=uuid4, sort_order=-5)
    owner_id: Mapped[UUID] = mapped_column(sa.Uuid, sort_order=-4)
    updated_at: Mapped[datetime] = mapped_column(
        sa.DateTime(timezone=True), server_default=sa.func.now(), sort_order=-3
    )
    deleted_at: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True), sort_order=-2)
    revision: Mapped[int] = mapped_column(sa.BigInteger, sort_order=-1)


class SyncDataclassColumns(MappedAsDataclass, kw_only=True):
    """:class:`SyncColumns` for classes mapped as dataclasses; every field is keyword-only."""

    id: Mapped[UUID] = mapped_column(sa.Uuid, primary_key=True, default_factory=uuid4, sort_order=-5)
    owner_id: Mapped[UUID] = mapped_column(sa.Uuid, sort_order=-4)
    updated_at: Mapped[datetime] = mapped_column(
        sa.DateTime(timezone=True), server_default=sa.func.now(), init=False, sort_order=-3
    )
    deleted_at: Mapped[datetime | None] = mapped_column(
        sa.DateTime(timezone=True), default=None, sort_order=-2
    )
    revision: Mapped[int] = mapped_column(sa.BigInteger, default=None, sort_order=-1)


@event.listens_for(SyncColumns, "instrument_class", propagate=True)
@event.listens_for(SyncDataclassColumns, "instrument_class", propagate=True)
def _add_sync_indexes(mapper: Mapper[Any], _class: type) -> None:
    """Give the mapped table its indexes, whichever way it was mapped; a subclass's own table has none."""
    table, column = mapper.local_table, mapper.local_table.c
    if not isinstance(table, sa.Table) or not {"owner_id", "deleted_at", "revision"} <= set(column.keys()):
        return
    names = index_names(table.name)
    if names.sync not in {index.name for index in table.indexes}:
        _indexes(names, column["owner_id"], column["revision"], column["deleted_at"])

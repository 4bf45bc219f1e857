"""What a product's Alembic revision imports.

::

    from alembic import op
    from baukit_sync import migrations as sync

    def upgrade() -> None:
        sync.create_revisions(op, owner="users.id")
        sync.create_purge_horizons(op)
        op.create_table("notes", *sync.columns(), sa.Column("title", sa.Text))
        sync.create_indexes(op, "notes")

    def downgrade() -> None:
        op.drop_table("notes")
        sync.drop_purge_horizons(op)
        sync.drop_revisions(op)

Every function runs the statements that its namesake in :mod:`baukit_sync.ddl` or
:mod:`baukit_sync.triggers` returns, online or with
``--sql``, in the migration's own transaction. None reads the database; running one twice is harmless. The
kit ships no revisions, so your history keeps one head.

Beside the models, call :func:`baukit_sync.add_sync_tables` with the same arguments: autogenerate then finds
nothing to do.

``schema`` is the database schema; without it PostgreSQL finds the tables by ``search_path``. A
``schema_translate_map`` does not reach these statements. Where a table is busy, ``SET LOCAL lock_timeout``
first: behind DDL that waits for its lock, everyone else waits too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from baukit_sync import ddl, triggers

KIT_TABLES = frozenset({"sync_revisions", "sync_purge_horizons"})
"""The tables that the kit's migrations create."""

IncludeObject: TypeAlias = Callable[[Any, "str | None", str, bool, Any], bool]
"""Alembic's ``include_object``."""

IncludeName: TypeAlias = Callable[["str | None", str, Any], bool]
"""Alembic's ``include_name``."""


class Operations(Protocol):
    """What is used of ``alembic.op``, or of an ``alembic.operations.Operations``."""

    def execute(self, sqltext: sa.TextClause, /) -> None:
        """Run a statement, or write it to the script."""

    def get_context(self) -> Any:
        """Return the ``MigrationContext``."""


def create_revisions(
    op: Operations,
    *,
    owner: str | None = None,
    owner_type: TypeEngine[Any] | type[TypeEngine[Any]] | None = None,
    ondelete: str | None = "CASCADE",
    schema: str | None = None,
) -> None:
    """Create ``sync_revisions``, which holds each owner's counter.

    Locks the owner table against writers, not readers, until the migration ends.

    Args:
        op: ``alembic.op``.
        owner: The column that the owners live in: ``"users.id"`` or ``"schema.users.id"``; ``None`` for no
            foreign key.
        owner_type: That column's type: ``Uuid()`` (the default), ``BigInteger()`` or ``Text()``.
        ondelete: What deleting an owner does to its counter, and so to its horizon: ``"CASCADE"`` deletes
            them; ``"RESTRICT"``, ``"NO ACTION"`` and ``None`` refuse.
        schema: The schema of ``sync_revisions``.

    Raises:
        InvalidArgumentError: A name, the type or the action cannot be used.
    """
    _run(op, ddl.create_revisions(owner=owner, owner_type=owner_type, ondelete=ondelete, schema=schema))


def drop_revisions(op: Operations, *, schema: str | None = None) -> None:
    """Drop ``sync_revisions`` and every counter; first drop ``sync_purge_horizons``, or PostgreSQL refuses.

    Clients keep their cursors, which counters that start again from 0 would mistake for their own.

    Locks the table and the owner table against everybody until the migration ends.

    Raises:
        InvalidArgumentError: The schema's name cannot be used.
    """
    _run(op, ddl.drop_revisions(schema=schema))


def create_purge_horizons(
    op: Operations,
    *,
    owner_type: TypeEngine[Any] | type[TypeEngine[Any]] | None = None,
    schema: str | None = None,
) -> None:
    """Create ``sync_purge_horizons``; PostgreSQL refuses unless ``sync_revisions`` exists.

    Deleting a counter deletes its horizon. Locks ``sync_revisions`` against writers, not readers, until the
    migration ends.

    Args:
        op: ``alembic.op``.
        owner_type: The owner column's type, as in :func:`create_revisions`.
        schema: The schema of both tables.

    Raises:
        InvalidArgumentError: The schema's name or the type cannot be used.
    """
    _run(op, ddl.create_purge_horizons(owner_type=owner_type, schema=schema))


def drop_purge_horizons(op: Operations, *, schema: str | None = None) -> None:
    """Drop ``sync_purge_horizons`` and every horizon.

    What a purge has removed is forgotten: cursors from before it are served, and miss deletions.

    Locks the table and ``sync_revisions`` against everybody until the migration ends.

    Raises:
        InvalidArgumentError: The schema's name cannot be used.
    """
    _run(op, ddl.drop_purge_horizons(schema=schema))


def columns(owner_type: TypeEngine[Any] | type[TypeEngine[Any]] | None = None) -> list[sa.Column[Any]]:
    """Return the five columns of a syncable table, for ``op.create_table``.

    Args:
        owner_type: The owner column's type: ``Uuid()`` (the default), ``BigInteger()`` or ``Text()``.

    Returns:
        ``id``, ``owner_id``, ``updated_at``, ``deleted_at`` and ``revision``.
    """
    return [
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("owner_id", sa.Uuid if owner_type is None else owner_type, nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.Column("deleted_at", sa.DateTime(timezone=True)),
        sa.Column("revision", sa.BigInteger, nullable=False),
    ]


def create_indexes(op: Operations, table: str, *, owner: str = "owner_id", schema: str | None = None) -> None:
    """Create ``<table>_sync_idx`` for the pulls and ``<table>_tombstone_idx`` for the purge.

    Locks the table against writers, not readers, until the migration ends; a build reads the whole table.
    For a table that is large and busy there is :func:`create_indexes_concurrently`.

    Args:
        op: ``alembic.op``.
        table: The table's name, of at most 49 bytes.
        owner: The column that leads to the owner: the parent's key in a child without ``owner_id``.
        schema: The table's schema.

    Raises:
        InvalidArgumentError: A name is empty or too long.
    """
    _run(op, ddl.create_indexes(table, owner=owner, schema=schema))


def create_indexes_concurrently(
    op: Operations, table: str, *, owner: str = "owner_id", schema: str | None = None
) -> None:
    """Create the indexes of :func:`create_indexes` while others write; commits what the migration did so far.

    Runs outside a transaction: give it a revision of its own, and set ``transaction_per_migration``. Each
    statement waits for the transactions that are open when it starts. A build that fails leaves an invalid
    index: run it again. A second run drops what exists and builds it anew.

    Args:
        op: ``alembic.op``.
        table: The table's name, of at most 49 bytes.
        owner: The column that leads to the owner, as in :func:`create_indexes`.
        schema: The table's schema.

    Raises:
        InvalidArgumentError: A name is empty or too long.
    """
    statements = ddl.create_indexes_concurrently(table, owner=owner, schema=schema)
    with op.get_context().autocommit_block():
        _run(op, statements)


def drop_indexes(op: Operations, table: str, *, schema: str | None = None) -> None:
    """Drop ``<table>_sync_idx`` and ``<table>_tombstone_idx``.

    Locks the table against everybody until the migration ends.

    Raises:
        InvalidArgumentError: A name is empty or too long.
    """
    _run(op, ddl.drop_indexes(table, schema=schema))


def drop_indexes_concurrently(op: Operations, table: str, *, schema: str | None = None) -> None:
    """Drop the indexes of :func:`drop_indexes` while others write; commits what the migration did so far.

    Runs outside a transaction, as :func:`create_indexes_concurrently` does. Each statement waits for the
    transactions that are open when it starts. Running it again drops what is left.

    Raises:
        InvalidArgumentError: A name is empty or too long.
    """
    statements = ddl.drop_indexes_concurrently(table, schema=schema)
    with op.get_context().autocommit_block():
        _run(op, statements)


def add_columns(
    op: Operations,
    table: str,
    *,
    owner: str = "owner_id",
    owner_type: TypeEngine[Any] | type[TypeEngine[Any]] | None = None,
    schema: str | None = None,
) -> None:
    """Add the owner's column, ``updated_at``, ``deleted_at`` and ``revision`` to a table that has rows.

    No row is read or written: the owner's column and the revision are nullable, and ``updated_at`` gets the
    time of the migration, for all rows there are, from the catalog. Columns that exist are left as they are.
    Then build the indexes, deploy code that stamps, call :func:`baukit_sync.backfill_revisions`, and at last
    :func:`require_columns`.

    Locks the table against everybody until the migration ends: give it a revision of its own.

    Args:
        op: ``alembic.op``.
        table: The table's name.
        owner: The owner's column.
        owner_type: Its type: ``Uuid()`` (the default), ``BigInteger()`` or ``Text()``.
        schema: The table's schema.

    Raises:
        InvalidArgumentError: A name or the type cannot be used.
    """
    _run(op, ddl.add_columns(table, owner=owner, owner_type=owner_type, schema=schema))


def drop_columns(op: Operations, table: str, *, schema: str | None = None) -> None:
    """Undo :func:`add_columns`; the owner's column stays, since it may have been there before.

    Locks the table against everybody until the migration ends.

    Raises:
        InvalidArgumentError: A name cannot be used.
    """
    _run(op, ddl.drop_columns(table, schema=schema))


def require_columns(
    op: Operations, table: str, *, owner: str = "owner_id", schema: str | None = None
) -> None:
    """Make the owner's column, ``updated_at`` and ``revision`` NOT NULL; commits what was done so far.

    Reads the whole table once, while others read and write, and locks it against everybody for a moment
    before and after. A row without a revision makes it fail, and leaves a check that new rows have to pass:
    backfill, and run it again.

    Args:
        op: ``alembic.op``.
        table: The table's name, of at most 49 bytes.
        owner: The owner's column.
        schema: The table's schema.

    Raises:
        InvalidArgumentError: A name cannot be used.
    """
    statements = ddl.require_columns(table, owner=owner, schema=schema)
    with op.get_context().autocommit_block():
        _run(op, statements)


def release_columns(
    op: Operations, table: str, *, owner: str = "owner_id", schema: str | None = None
) -> None:
    """Undo :func:`require_columns`; locks the table against everybody until the migration ends.

    Raises:
        InvalidArgumentError: A name cannot be used.
    """
    _run(op, ddl.release_columns(table, owner=owner, schema=schema))


def create_live_unique_index(
    op: Operations, name: str, table: str, columns: Sequence[str], *, schema: str | None = None
) -> None:
    """Let some columns be unique among the rows that are not deleted.

    A plain unique constraint also counts tombstones: whoever deletes "inbox" could not create it again.
    Beside the models it is :func:`baukit_sync.live_unique_index`.

    Locks the table against writers, not readers, until the migration ends; a build reads the whole table.

    Args:
        op: ``alembic.op``.
        name: The index's name.
        table: The table's name.
        columns: The natural key; begin it with the owner's column.
        schema: The table's schema.

    Raises:
        InvalidArgumentError: A name cannot be used.
    """
    _run(op, ddl.create_live_unique_index(name, table, columns, schema=schema))


def create_live_unique_index_concurrently(
    op: Operations, name: str, table: str, columns: Sequence[str], *, schema: str | None = None
) -> None:
    """Create the index of :func:`create_live_unique_index` as :func:`create_indexes_concurrently` does.

    Raises:
        InvalidArgumentError: A name cannot be used.
    """
    statements = ddl.create_live_unique_index_concurrently(name, table, columns, schema=schema)
    with op.get_context().autocommit_block():
        _run(op, statements)


def drop_live_unique_index(op: Operations, name: str, *, schema: str | None = None) -> None:
    """Drop the index; locks its table against everybody until the migration ends.

    Raises:
        InvalidArgumentError: A name cannot be used.
    """
    _run(op, ddl.drop_live_unique_index(name, schema=schema))


def create_revisions_trigger(op: Operations, *, schema: str | None = None) -> None:
    """Let the transaction remember which revisions it allocated: the guards of this schema need that.

    A trigger on ``sync_revisions`` notes, when a counter is raised, its value before the transaction and now,
    in settings that end with the transaction and that a savepoint takes back. They hold about 100,000 owners;
    of more, a guard refuses the rows.

    Locks ``sync_revisions`` against writers, not readers, until the migration ends.

    Args:
        op: ``alembic.op``.
        schema: The schema of ``sync_revisions``.

    Raises:
        InvalidArgumentError: The schema's name cannot be used.
    """
    _run(op, triggers.create_revisions_trigger(schema=schema))


def drop_revisions_trigger(op: Operations, *, schema: str | None = None) -> None:
    """Drop it; first drop the guards, which refuse every write without it.

    Locks ``sync_revisions`` against everybody until the migration ends.

    Raises:
        InvalidArgumentError: The schema's name cannot be used.
    """
    _run(op, triggers.drop_revisions_trigger(schema=schema))


def create_guard_trigger(
    op: Operations,
    table: str,
    *,
    owner: str = "owner_id",
    via: Sequence[tuple[str, str]] = (),
    schema: str | None = None,
    revisions_schema: str | None = None,
) -> None:
    """Let the database refuse writes to a table that its clients would not learn of, whoever makes them.

    Refused, with SQLSTATE 23514 and the trigger's name as the constraint:

    - an insert or update whose revision was not allocated for the row's owner in this transaction, or is
      below the row's last one;
    - an update that moves a row to another owner;
    - the delete of a row that is not a tombstone at or below its owner's horizon, unless the owner has no
      counter, or is being deleted;
    - ``TRUNCATE``.

    The kit's own writes, purge and backfill pass. It guards against accidents, not against a role that
    disables triggers or writes the kit's settings. Needs :func:`create_revisions_trigger`. Stamp the rows
    that exist first: see :func:`baukit_sync.backfill_revisions`. Not on Citus, which has no triggers on
    distributed tables.

    Locks the table against writers, not readers, until the migration ends.

    Args:
        op: ``alembic.op``.
        table: The table's name, of at most 49 bytes. Partitioned tables are guarded with their partitions.
        owner: The column that leads to the owner: the parent's key in a child without ``owner_id``.
        via: The way from there to the owner, for such a child: for each parent its key and the column that
            leads on. ``owner="list_id", via=[("lists.id", "owner_id")]``
        schema: The table's schema.
        revisions_schema: The schema of ``sync_revisions``, if it is another.

    Raises:
        InvalidArgumentError: A name cannot be used.
    """
    statements = triggers.create_guard_trigger(
        table, owner=owner, via=via, schema=schema, revisions_schema=revisions_schema
    )
    _run(op, statements)


def drop_guard_trigger(op: Operations, table: str, *, schema: str | None = None) -> None:
    """Drop the guard; locks the table against everybody until the migration ends.

    Raises:
        InvalidArgumentError: A name cannot be used.
    """
    _run(op, triggers.drop_guard_trigger(table, schema=schema))


def create_stamp_trigger(
    op: Operations,
    table: str,
    *,
    owner: str = "owner_id",
    via: Sequence[tuple[str, str]] = (),
    deletes_by: Sequence[str] = (),
    schema: str | None = None,
    revisions_schema: str | None = None,
) -> None:
    """Let the database stamp what is written to a table by those who cannot: other languages, SQL by hand.

    An insert without a revision, and an update that leaves it as it is or sets it to NULL, get one of their
    owner's, and a new ``updated_at`` unless the writer sets it. What the writer has stamped is left alone, so
    tracked sessions work as before. Refused are an update that moves a row to another owner (23514) and a
    write for an owner without a counter (23503).

    With ``deletes_by``, a DELETE of a live row becomes a tombstone, and so do the rows that a foreign key
    with ON DELETE CASCADE would delete with it, in tables that have this trigger. The statement counts no
    rows then. Purges, erased owners and deletes by a foreign key happen as ever.

    A writer's role needs UPDATE on ``sync_revisions``. Revisions are allocated one by one, and in growing
    blocks when a transaction writes more: up to 999 of them may stay unused. Each waits for the counter, as
    :func:`baukit_sync.next_revision` does.

    Locks the table against writers, not readers, until the migration ends.

    Args:
        op: ``alembic.op``.
        table: The table's name, of at most 49 bytes.
        owner: As in :func:`create_guard_trigger`.
        via: As there.
        deletes_by: The columns of the primary key, to turn a DELETE into a tombstone.
        schema: The table's schema.
        revisions_schema: The schema of ``sync_revisions``, if it is another.

    Raises:
        InvalidArgumentError: A name cannot be used.
    """
    statements = triggers.create_stamp_trigger(
        table,
        owner=owner,
        via=via,
        deletes_by=deletes_by,
        schema=schema,
        revisions_schema=revisions_schema,
    )
    _run(op, statements)


def drop_stamp_trigger(op: Operations, table: str, *, schema: str | None = None) -> None:
    """Drop it; locks the table against everybody until the migration ends.

    Raises:
        InvalidArgumentError: A name cannot be used.
    """
    _run(op, triggers.drop_stamp_trigger(table, schema=schema))


def include_object(mine: IncludeObject | None = None) -> IncludeObject:
    """Keep autogenerate from dropping the kit's tables, for a product that does not add them to its MetaData.

    ::

        context.configure(..., include_object=sync.include_object(mine))

    Tables that the MetaData has are compared as ever.

    Args:
        mine: The product's own filter, which is asked about everything else.
    """

    def include(thing: Any, name: str | None, kind: str, reflected: bool, compare_to: Any) -> bool:  # noqa: FBT001
        if kind == "table" and reflected and compare_to is None and name in KIT_TABLES:
            return False
        return mine is None or mine(thing, name, kind, reflected, compare_to)

    return include


def include_name(mine: IncludeName | None = None) -> IncludeName:
    """Keep autogenerate from reading the kit's tables, which :func:`include_object` lets it read and ignore.

    Not beside :func:`baukit_sync.add_sync_tables`: what is not read would be created again.

    Args:
        mine: The product's own filter, which is asked about everything else.
    """

    def include(name: str | None, kind: str, parents: Any) -> bool:
        if kind == "table" and name in KIT_TABLES:
            return False
        return mine is None or mine(name, kind, parents)

    return include


def rename_user_id_to_owner_id(op: Operations, *, schema: str | None = None) -> None:
    """Bring ``sync_revisions`` from its old shape, with ``user_id``, to the present one.

    Renames the column and the foreign key ``sync_revisions_user_id_fkey``, which keeps its delete action; a
    foreign key of another name keeps that too. Adds the check that counters are not negative and the free
    space that :func:`create_revisions` leaves in each page. What is so already stays so.

    Locks the table against everybody until the migration ends; the check reads one row per owner.

    Raises:
        InvalidArgumentError: The schema's name cannot be used.
    """
    _run(op, ddl.rename_user_id(schema=schema))


def rename_owner_id_to_user_id(op: Operations, *, schema: str | None = None) -> None:
    """Undo :func:`rename_user_id_to_owner_id`; locks the table as it does.

    Raises:
        InvalidArgumentError: The schema's name cannot be used.
    """
    _run(op, ddl.rename_owner_id(schema=schema))


def _run(op: Operations, statements: list[str]) -> None:
    for statement in statements:
        # An unescaped colon would start a bind parameter.
        op.execute(sa.text(statement.replace(":", "\\:")))

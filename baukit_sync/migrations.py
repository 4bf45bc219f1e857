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

Every function runs the statements that its namesake in :mod:`baukit_sync.ddl` returns, online or with
``--sql``, in the migration's own transaction. None reads the database; running one twice is harmless. The
kit ships no revisions, so your history keeps one head.

Beside the models, call :func:`baukit_sync.add_sync_tables` with the same arguments: autogenerate then finds
nothing to do.

``schema`` is the database schema; without it PostgreSQL finds the tables by ``search_path``. A
``schema_translate_map`` does not reach these statements. Where a table is busy, ``SET LOCAL lock_timeout``
first: behind DDL that waits for its lock, everyone else waits too.
"""

from __future__ import annotations

from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from baukit_sync import ddl


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

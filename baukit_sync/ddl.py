"""The kit's DDL: pure functions that return PostgreSQL statements as text.

:mod:`baukit_sync.migrations` runs them for Alembic, and says which locks they take. For another tool, print
them: see :func:`script`.

A published function never changes what it emits, so an old migration does today what it did when it was
written. A new shape of the schema gets a new function.

No function reads the database and no statement has parameters. A second run is harmless: what exists is left
as it is, whatever its definition. The product's names are always quoted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import CompileError
from sqlalchemy.types import TypeEngine, to_instance

from baukit_sync.errors import InvalidArgumentError
from baukit_sync.names import column_of, dollar_quoted
from baukit_sync.names import in_schema as _in
from baukit_sync.names import quoted as _name

_Type: TypeAlias = "TypeEngine[Any] | type[TypeEngine[Any]]"

# A driver's own paramstyle would double every percent sign in a name. SQLAlchemy leaves the call untyped.
_dialect: sa.Dialect = postgresql.dialect(paramstyle="named")  # type: ignore[no-untyped-call]


def script(statements: Iterable[str]) -> str:
    """Join statements into a script, each ended by a semicolon and a line break."""
    return "".join(f"{statement};\n" for statement in statements)


def create_revisions(
    *,
    owner: str | None = None,
    owner_type: _Type | None = None,
    ondelete: str | None = "CASCADE",
    schema: str | None = None,
) -> list[str]:
    """Create ``sync_revisions``: see :func:`baukit_sync.migrations.create_revisions`."""
    return [
        f"""\
CREATE TABLE IF NOT EXISTS {_in(schema)}sync_revisions (
    owner_id {_type(owner_type)}
        CONSTRAINT sync_revisions_pkey PRIMARY KEY{_references(owner, ondelete)},
    last_revision BIGINT NOT NULL DEFAULT 0
        CONSTRAINT sync_revisions_last_revision_check CHECK (last_revision >= 0)
) WITH (fillfactor = 50)"""
    ]


def drop_revisions(*, schema: str | None = None) -> list[str]:
    """Drop ``sync_revisions``: see :func:`baukit_sync.migrations.drop_revisions`."""
    return [f"DROP TABLE IF EXISTS {_in(schema)}sync_revisions"]


def create_purge_horizons(*, owner_type: _Type | None = None, schema: str | None = None) -> list[str]:
    """Create ``sync_purge_horizons``: see :func:`baukit_sync.migrations.create_purge_horizons`."""
    return [
        f"""\
CREATE TABLE IF NOT EXISTS {_in(schema)}sync_purge_horizons (
    owner_id {_type(owner_type)}
        CONSTRAINT sync_purge_horizons_pkey PRIMARY KEY
        CONSTRAINT sync_purge_horizons_owner_id_fkey
            REFERENCES {_in(schema)}sync_revisions (owner_id) ON DELETE CASCADE,
    horizon_revision BIGINT NOT NULL
        CONSTRAINT sync_purge_horizons_horizon_revision_check CHECK (horizon_revision > 0),
    updated_at TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT now()
)"""
    ]


def drop_purge_horizons(*, schema: str | None = None) -> list[str]:
    """Drop ``sync_purge_horizons``: see :func:`baukit_sync.migrations.drop_purge_horizons`."""
    return [f"DROP TABLE IF EXISTS {_in(schema)}sync_purge_horizons"]


def create_indexes(table: str, *, owner: str = "owner_id", schema: str | None = None) -> list[str]:
    """Create a synced table's two indexes: see :func:`baukit_sync.migrations.create_indexes`."""
    sync, tombstone = _indexes(table)
    on, key = f"{_in(schema)}{_name('table', table)}", _name("owner", owner)
    return [
        f"CREATE INDEX IF NOT EXISTS {sync} ON {on} ({key}, revision)",
        f"CREATE INDEX IF NOT EXISTS {tombstone} ON {on} ({key}, deleted_at) WHERE deleted_at IS NOT NULL",
    ]


def create_indexes_concurrently(
    table: str, *, owner: str = "owner_id", schema: str | None = None
) -> list[str]:
    """Create them beside writers: see :func:`baukit_sync.migrations.create_indexes_concurrently`."""
    sync, tombstone = _indexes(table)
    on, key = f"{_in(schema)}{_name('table', table)}", _name("owner", owner)
    # A build that failed has left an invalid index, which IF NOT EXISTS would take for a good one.
    return [
        f"DROP INDEX CONCURRENTLY IF EXISTS {_in(schema)}{sync}",
        f"CREATE INDEX CONCURRENTLY {sync} ON {on} ({key}, revision)",
        f"DROP INDEX CONCURRENTLY IF EXISTS {_in(schema)}{tombstone}",
        f"CREATE INDEX CONCURRENTLY {tombstone} ON {on} ({key}, deleted_at) WHERE deleted_at IS NOT NULL",
    ]


def drop_indexes(table: str, *, schema: str | None = None) -> list[str]:
    """Drop a synced table's two indexes: see :func:`baukit_sync.migrations.drop_indexes`."""
    return [f"DROP INDEX IF EXISTS {_in(schema)}{index}" for index in _indexes(table)]


def drop_indexes_concurrently(table: str, *, schema: str | None = None) -> list[str]:
    """Drop them beside writers: see :func:`baukit_sync.migrations.drop_indexes_concurrently`."""
    return [f"DROP INDEX CONCURRENTLY IF EXISTS {_in(schema)}{index}" for index in _indexes(table)]


def add_columns(
    table: str, *, owner: str = "owner_id", owner_type: _Type | None = None, schema: str | None = None
) -> list[str]:
    """Add the columns of a synced table, nullable: see :func:`baukit_sync.migrations.add_columns`."""
    alter, key = f"ALTER TABLE {_in(schema)}{_name('table', table)}", _name("owner", owner)
    return [
        f"""\
{alter}
    ADD COLUMN IF NOT EXISTS {key} {_type(owner_type)},
    ADD COLUMN IF NOT EXISTS updated_at TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT now(),
    ADD COLUMN IF NOT EXISTS deleted_at TIMESTAMP WITH TIME ZONE,
    ADD COLUMN IF NOT EXISTS revision BIGINT"""
    ]


def drop_columns(table: str, *, schema: str | None = None) -> list[str]:
    """Drop them, but not the owner's: see :func:`baukit_sync.migrations.drop_columns`."""
    return [
        f"""\
ALTER TABLE {_in(schema)}{_name("table", table)}
    DROP COLUMN IF EXISTS revision,
    DROP COLUMN IF EXISTS deleted_at,
    DROP COLUMN IF EXISTS updated_at"""
    ]


def require_columns(table: str, *, owner: str = "owner_id", schema: str | None = None) -> list[str]:
    """Make the columns NOT NULL beside writers: see :func:`baukit_sync.migrations.require_columns`."""
    _name("table", table, longest=63 - len("_sync_required"))
    alter, key = f"ALTER TABLE {_in(schema)}{_name('table', table)}", _name("owner", owner)
    check = _name("table", f"{table}_sync_required")
    columns = (key, "updated_at", "revision")
    present = " AND ".join(f"{column} IS NOT NULL" for column in columns)
    not_null = ", ".join(f"ALTER COLUMN {column} SET NOT NULL" for column in columns)
    return [
        f"{alter} DROP CONSTRAINT IF EXISTS {check}",
        f"{alter} ADD CONSTRAINT {check} CHECK ({present}) NOT VALID",
        f"{alter} VALIDATE CONSTRAINT {check}",
        # PostgreSQL reads no row here: the check has proved it.
        f"{alter} {not_null}",
        f"{alter} DROP CONSTRAINT {check}",
    ]


def release_columns(table: str, *, owner: str = "owner_id", schema: str | None = None) -> list[str]:
    """Make them nullable again: see :func:`baukit_sync.migrations.release_columns`."""
    alter = f"ALTER TABLE {_in(schema)}{_name('table', table)}"
    columns = (_name("owner", owner), "updated_at", "revision")
    return [f"{alter} {', '.join(f'ALTER COLUMN {column} DROP NOT NULL' for column in columns)}"]


def create_live_unique_index(
    name: str, table: str, columns: Sequence[str], *, schema: str | None = None
) -> list[str]:
    """Let live rows be unique: see :func:`baukit_sync.migrations.create_live_unique_index`."""
    on = f"{_in(schema)}{_name('table', table)} ({_columns(columns)})"
    return [f"CREATE UNIQUE INDEX IF NOT EXISTS {_name('name', name)} ON {on} WHERE deleted_at IS NULL"]


def create_live_unique_index_concurrently(
    name: str, table: str, columns: Sequence[str], *, schema: str | None = None
) -> list[str]:
    """Build it beside writers: see :func:`baukit_sync.migrations.create_live_unique_index_concurrently`."""
    on = f"{_in(schema)}{_name('table', table)} ({_columns(columns)})"
    index = _name("name", name)
    return [
        f"DROP INDEX CONCURRENTLY IF EXISTS {_in(schema)}{index}",
        f"CREATE UNIQUE INDEX CONCURRENTLY {index} ON {on} WHERE deleted_at IS NULL",
    ]


def drop_live_unique_index(name: str, *, schema: str | None = None) -> list[str]:
    """Drop it: see :func:`baukit_sync.migrations.drop_live_unique_index`."""
    return [f"DROP INDEX IF EXISTS {_in(schema)}{_name('name', name)}"]


def rename_user_id(*, schema: str | None = None) -> list[str]:
    """Upgrade the old shape: see :func:`baukit_sync.migrations.rename_user_id_to_owner_id`."""
    alter = f"ALTER TABLE {_in(schema)}sync_revisions"
    check = "sync_revisions_last_revision_check CHECK (last_revision >= 0)"
    return [
        _unless("undefined_column", f"{alter} RENAME COLUMN user_id TO owner_id"),
        *_rename_constraints(alter, "user_id", "owner_id"),
        _unless("duplicate_object", f"{alter} ADD CONSTRAINT {check}"),
        f"{alter} SET (fillfactor = 50)",
    ]


def rename_owner_id(*, schema: str | None = None) -> list[str]:
    """Restore the old shape: see :func:`baukit_sync.migrations.rename_owner_id_to_user_id`."""
    alter = f"ALTER TABLE {_in(schema)}sync_revisions"
    return [
        f"{alter} RESET (fillfactor)",
        f"{alter} DROP CONSTRAINT IF EXISTS sync_revisions_last_revision_check",
        *_rename_constraints(alter, "owner_id", "user_id"),
        _unless("undefined_column", f"{alter} RENAME COLUMN owner_id TO user_id"),
    ]


def _rename_constraints(alter: str, old: str, new: str) -> list[str]:
    # Since PostgreSQL 18 NOT NULL is a constraint with a name, too.
    names = [
        (f"sync_revisions_{old}_{kind}", f"sync_revisions_{new}_{kind}") for kind in ("fkey", "not_null")
    ]
    return [_unless("undefined_object", f"{alter} RENAME CONSTRAINT {was} TO {now}") for was, now in names]


def _unless(condition: str, statement: str) -> str:
    """Run a statement that has no ``IF EXISTS``, unless PostgreSQL's error says that there is no need."""
    body = f"BEGIN {statement}; EXCEPTION WHEN {condition} THEN NULL; END"
    return f"DO {dollar_quoted(f' {body} ')}"


def _columns(columns: Sequence[str]) -> str:
    if isinstance(columns, str) or not columns:
        raise InvalidArgumentError("columns", "the names of one or more columns")
    return ", ".join(_name("columns", column) for column in columns)


def _indexes(table: str) -> list[str]:
    _name("table", table, longest=63 - len("_tombstone_idx"))
    return [_name("table", f"{table}_{purpose}_idx") for purpose in ("sync", "tombstone")]


def _references(owner: object, ondelete: object) -> str:
    """Return the foreign key's clause."""
    if ondelete not in {None, "CASCADE", "RESTRICT", "NO ACTION"}:
        raise InvalidArgumentError("ondelete", "CASCADE, RESTRICT, NO ACTION or None: a key has no null")
    if owner is None:
        return ""
    table, column = column_of("owner", owner)
    clause = f"REFERENCES {table} ({column})"
    action = f" ON DELETE {ondelete}" if ondelete else ""
    return f"\n        CONSTRAINT sync_revisions_owner_id_fkey {clause}{action}"


def _type(owner_type: _Type | None) -> str:
    try:
        return to_instance(sa.Uuid if owner_type is None else owner_type).compile(dialect=_dialect)
    except (AttributeError, CompileError):
        expected = "a type that PostgreSQL has, such as Uuid(), BigInteger() or Text()"
        raise InvalidArgumentError("owner_type", expected) from None

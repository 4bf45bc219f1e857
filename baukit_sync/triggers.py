"""The kit's triggers: pure functions that return PostgreSQL statements as text, like :mod:`baukit_sync.ddl`.

The functions in PL/pgSQL are in ``sql/``, one in each file. A published file never changes: another shape
gets another version, in its name and in the names of its triggers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files

from baukit_sync.errors import InvalidArgumentError
from baukit_sync.names import column_of, dollar_quoted, in_schema, quoted

ALLOCATED, GUARD, STAMP = "allocated_v1", "guard_v1", "stamp_v1"
"""The newest version of each function; :func:`fingerprint` and the comments say which is installed."""

_SOURCES = {
    name: (files("baukit_sync") / "sql" / f"{name}.sql").read_text() for name in (ALLOCATED, GUARD, STAMP)
}


def create_revisions_trigger(*, schema: str | None = None) -> list[str]:
    """Let guards see allocations: see :func:`baukit_sync.migrations.create_revisions_trigger`."""
    revisions = f"{in_schema(schema)}sync_revisions"
    function = f"{in_schema(schema)}sync_revisions_allocated_v1"
    return [
        *_function(function, ALLOCATED, {}),
        f"""\
CREATE OR REPLACE TRIGGER baukit_sync_allocated_v1 BEFORE UPDATE ON {revisions}
    FOR EACH ROW WHEN (NEW.last_revision > OLD.last_revision) EXECUTE FUNCTION {function}()""",
    ]


def drop_revisions_trigger(*, schema: str | None = None) -> list[str]:
    """Drop it: see :func:`baukit_sync.migrations.drop_revisions_trigger`."""
    return [
        f"DROP TRIGGER IF EXISTS baukit_sync_allocated_v1 ON {in_schema(schema)}sync_revisions",
        f"DROP FUNCTION IF EXISTS {in_schema(schema)}sync_revisions_allocated_v1()",
    ]


def create_guard_trigger(
    table: str,
    *,
    owner: str = "owner_id",
    via: Sequence[tuple[str, str]] = (),
    schema: str | None = None,
    revisions_schema: str | None = None,
) -> list[str]:
    """Refuse what clients would miss: see :func:`baukit_sync.migrations.create_guard_trigger`."""
    on, function = _names(table, "guard_v1", schema)
    names = _kit(schema if revisions_schema is None else revisions_schema) | _owner(owner, via)
    trigger = "CREATE OR REPLACE TRIGGER baukit_sync_guard_v1"
    row = f"{trigger}_delete AFTER DELETE ON {on} FOR EACH ROW EXECUTE FUNCTION {function}()"
    statement = (
        f"{trigger}_delete AFTER DELETE ON {on} REFERENCING OLD TABLE AS deleted_rows"
        f" FOR EACH STATEMENT EXECUTE FUNCTION {function}()"
    )
    return [
        *_function(function, GUARD, names),
        f"{trigger} AFTER INSERT OR UPDATE ON {on} FOR EACH ROW EXECUTE FUNCTION {function}()",
        f"{trigger}_truncate BEFORE TRUNCATE ON {on} FOR EACH STATEMENT EXECUTE FUNCTION {function}()",
        # What is deleted from a partition by its own name passes a statement's trigger of the whole table.
        "DO "
        + dollar_quoted(f"""
BEGIN
    IF {_literal(on)}::regclass IN (SELECT partrelid FROM pg_catalog.pg_partitioned_table) THEN
        {row};
    ELSE
        {statement};
    END IF;
END
"""),
    ]


def drop_guard_trigger(table: str, *, schema: str | None = None) -> list[str]:
    """Drop it: see :func:`baukit_sync.migrations.drop_guard_trigger`."""
    on, function = _names(table, "guard_v1", schema)
    return [
        *(
            f"DROP TRIGGER IF EXISTS baukit_sync_guard_v1{event} ON {on}"
            for event in ("", "_delete", "_truncate")
        ),
        f"DROP FUNCTION IF EXISTS {function}()",
    ]


def create_stamp_trigger(
    table: str,
    *,
    owner: str = "owner_id",
    via: Sequence[tuple[str, str]] = (),
    deletes_by: Sequence[str] = (),
    schema: str | None = None,
    revisions_schema: str | None = None,
) -> list[str]:
    """Stamp what others write: see :func:`baukit_sync.migrations.create_stamp_trigger`."""
    on, function = _names(table, "stamp_v1", schema)
    if isinstance(deletes_by, str):
        raise InvalidArgumentError("deletes_by", "the names of the primary key's columns")
    columns = [quoted("deletes_by", column) for column in deletes_by]
    same_row = " AND ".join(f"mine.{column} = OLD.{column}" for column in columns) or "FALSE"
    names = _kit(schema if revisions_schema is None else revisions_schema) | _owner(owner, via)
    trigger = "CREATE OR REPLACE TRIGGER baukit_sync_stamp_v1"
    run = f"EXECUTE FUNCTION {function}()"
    return [
        *_function(function, STAMP, names | {"table": on, "same_row": same_row}),
        f"{trigger} BEFORE INSERT OR UPDATE ON {on} FOR EACH ROW {run}",
        f"{trigger}_delete BEFORE DELETE ON {on} FOR EACH ROW WHEN (OLD.deleted_at IS NULL) {run}"
        if deletes_by
        else f"DROP TRIGGER IF EXISTS baukit_sync_stamp_v1_delete ON {on}",
    ]


def drop_stamp_trigger(table: str, *, schema: str | None = None) -> list[str]:
    """Drop it: see :func:`baukit_sync.migrations.drop_stamp_trigger`."""
    on, function = _names(table, "stamp_v1", schema)
    return [
        *(f"DROP TRIGGER IF EXISTS baukit_sync_stamp_v1{event} ON {on}" for event in ("", "_delete")),
        f"DROP FUNCTION IF EXISTS {function}()",
    ]


def fingerprint(body: str) -> str:
    """Return the hash of a function's body, as ``pg_proc.prosrc`` has it and the comment says it."""
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def _function(function: str, version: str, names: dict[str, str]) -> list[str]:
    head, body, _ = _SOURCES[version].split("$function$")
    body = body.format(**names)
    return [
        f"{head.format(function=function)}{dollar_quoted(body)}",
        f"COMMENT ON FUNCTION {function}() IS 'baukit-sync {version} {fingerprint(body)}'",
    ]


def _names(table: str, version: str, schema: str | None) -> tuple[str, str]:
    quoted("table", table, longest=63 - len(f"_sync_{version}"))
    at = in_schema(schema)
    return f"{at}{quoted('table', table)}", f"{at}{quoted('table', f'{table}_sync_{version}')}"


def _kit(schema: str | None) -> dict[str, str]:
    revisions = f"{in_schema(schema)}sync_revisions"
    return {
        "revisions": revisions,
        "revisions_literal": _literal(revisions),
        "horizons": f"{in_schema(schema)}sync_purge_horizons",
    }


def _owner(owner: str, via: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return how a row's owner is found: by its own column, or through its parents."""
    key = quoted("owner", owner)
    parents = [(*column_of("via", path), quoted("via", column)) for path, column in via]

    def owner_of(row: str) -> str:
        found = f"{row}.{key}"
        for number, (table, parent_key, column) in enumerate(parents):
            p = f"parent_{number}"
            found = f"(SELECT {p}.{column} FROM {table} AS {p} WHERE {p}.{parent_key} = {found})"
        return found

    return {
        "key": key,
        "owner_of_new": owner_of("NEW"),
        "owner_of_old": owner_of("OLD"),
        "owner_of_deleted": owner_of("deleted_rows"),
    }


def _literal(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"

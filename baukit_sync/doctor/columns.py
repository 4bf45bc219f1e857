"""Checks of a synced table's columns and constraints: nothing here reads rows, except for a NULL."""

from __future__ import annotations

from typing import Any

from baukit_sync.doctor.catalog import Column, Index, quoted
from baukit_sync.doctor.examination import Examination
from baukit_sync.doctor.kit import Kit
from baukit_sync.doctor.synced import SyncedTable

_TIMESTAMPTZ = "timestamp with time zone"


def examine_columns(exam: Examination, table: SyncedTable, kit: Kit) -> None:
    """Check that the columns are there, with the types and constraints that the kit relies on."""
    _owner(exam, table, kit)
    _revision(exam, table)
    _deleted_at(exam, table)
    if updated_at := table.column("updated_at"):
        _timestamp(exam, table, updated_at)
        _not_null(exam, table, updated_at, "A conflict rule that compares it treats NULL as neither.")
    if not table.relation.primary_key:
        exam.error(
            "primary_key_missing",
            table.relation.label,
            "A client cannot tell two rows apart, and the purge cannot name what it deletes.",
            f"ALTER TABLE {table.relation.label} ADD PRIMARY KEY (id);",
        )
    for index in table.relation.indexes:
        _unique(exam, table, index)


def _missing(exam: Examination, table: SyncedTable, role: str, definition: str, why: str) -> None:
    name = table.names.get(role, role)
    exam.error(
        "column_missing",
        table.relation.at(name),
        why,
        f"ALTER TABLE {table.relation.label} ADD COLUMN {quoted(name)} {definition};",
    )


def _owner(exam: Examination, table: SyncedTable, kit: Kit) -> None:
    if table.key is None:
        exam.error(
            "owner_missing",
            table.relation.label,
            "It has neither an owner column nor a foreign key to a table that has one: no pull can tell "
            "whose rows these are.",
            f"ALTER TABLE {table.relation.label} ADD COLUMN owner_id {kit.owner_type or 'uuid'};"
            " -- fill it in, then SET NOT NULL",
        )
        return
    column = table.relation.columns[table.key]
    if kit.owner_type and table.owner_type != kit.owner_type:
        exam.error(
            "owner_type",
            table.relation.at(table.key),
            f"The owner is {table.owner_type} here and {kit.owner_type} in sync_revisions: statements that "
            "compare them fail, or use no index.",
            f"ALTER TABLE {table.relation.label} ALTER COLUMN {quoted(table.key)} TYPE {kit.owner_type}"
            f" USING {quoted(table.key)}::text::{kit.owner_type};",
        )
    _not_null(exam, table, column, "A row without an owner reaches no client, and is never purged.")


def _revision(exam: Examination, table: SyncedTable) -> None:
    column = table.column("revision")
    if column is None:
        why = "Pulls order and select by it: no row reaches a client."
        _missing(exam, table, "revision", "bigint", why)
        return
    if column.type != "bigint":
        exam.error(
            "column_type",
            table.relation.at(column.name),
            f"It is {column.type}; a counter is bigint, and its values do not fit, or compare otherwise.",
            f"ALTER TABLE {table.relation.label} ALTER COLUMN {quoted(column.name)} TYPE bigint"
            f" USING {quoted(column.name)}::bigint;",
        )
    if column.default is not None:
        drop = "DROP IDENTITY" if column.default == "identity" else "DROP DEFAULT"
        exam.error(
            "revision_default",
            table.relation.at(column.name),
            "A default hides the writer that forgot to allocate: its rows get a revision that no counter "
            "handed out, and clients miss them.",
            f"ALTER TABLE {table.relation.label} ALTER COLUMN {quoted(column.name)} {drop};",
        )
    if not (column.nullable and _has_null(exam, table, column)):
        _not_null(exam, table, column, "A row that is written without a revision reaches no client.")


def _has_null(exam: Examination, table: SyncedTable, column: Column) -> bool:
    found: list[Any] = []

    def look() -> None:
        name = table.name("revision")
        found.extend(exam.rows(f"SELECT 1 FROM {table.relation.source} WHERE {name} IS NULL LIMIT 1"))

    if table.relation.readable:
        exam.attempt(table.relation.label, "look for rows without a revision", look)
    if found:
        exam.error(
            "revision_null",
            table.relation.at(column.name),
            "There are rows without a revision: no pull returns them.",
            "Stamp the rows that were there before: see how-to/make-a-table-syncable, then "
            f"ALTER TABLE {table.relation.label} ALTER COLUMN {quoted(column.name)} SET NOT NULL;",
        )
    return bool(found)


def _deleted_at(exam: Examination, table: SyncedTable) -> None:
    column = table.column("deleted_at")
    if column is None:
        why = "A deletion leaves no tombstone, so no client learns of it."
        _missing(exam, table, "deleted_at", _TIMESTAMPTZ, why)
        return
    _timestamp(exam, table, column)
    if not column.nullable:
        exam.error(
            "column_not_null",
            table.relation.at(column.name),
            "A row that is not deleted has NULL here: with NOT NULL every row is a tombstone, and is purged.",
            f"ALTER TABLE {table.relation.label} ALTER COLUMN {quoted(column.name)} DROP NOT NULL;",
        )


def _timestamp(exam: Examination, table: SyncedTable, column: Column) -> None:
    if column.type == _TIMESTAMPTZ:
        return
    change = f"ALTER TABLE {table.relation.label} ALTER COLUMN {quoted(column.name)} TYPE {_TIMESTAMPTZ}"
    if column.type.startswith("timestamp") and column.type.endswith("without time zone"):
        exam.error(
            "timestamp_without_time_zone",
            table.relation.at(column.name),
            "Each session and driver reads it in its own time zone: tombstones are purged hours too early or "
            "too late.",
            f"{change} USING {quoted(column.name)} AT TIME ZONE 'UTC'; -- if UTC is what was written",
        )
    elif not column.type.startswith("timestamp"):
        exam.error(
            "column_type",
            table.relation.at(column.name),
            f"It is {column.type}, and the kit compares it with instants.",
            f"{change} USING {quoted(column.name)}::{_TIMESTAMPTZ};",
        )


def _not_null(exam: Examination, table: SyncedTable, column: Column, why: str) -> None:
    if column.nullable:
        exam.warning(
            "column_nullable",
            table.relation.at(column.name),
            why,
            f"ALTER TABLE {table.relation.label} ALTER COLUMN {quoted(column.name)} SET NOT NULL;",
        )


def _unique(exam: Examination, table: SyncedTable, index: Index) -> None:
    columns, key = set(index.columns), set(table.relation.primary_key)
    deleted_at = table.names.get("deleted_at", "deleted_at")
    # A key that holds the primary key, or the revision, cannot meet a tombstone; a referenced one cannot be
    # partial.
    harmless = columns >= key or table.names.get("revision", "revision") in columns or index.is_referenced
    if not index.unique or harmless or None in columns or deleted_at in (index.predicate or ""):
        return
    names = ", ".join(quoted(name) for name in index.columns if name)
    old = f"{quoted(table.relation.schema)}.{quoted(index.name)}"
    drop = (
        f"ALTER TABLE {table.relation.label} DROP CONSTRAINT {quoted(index.name)};"
        if index.is_constraint
        else f"DROP INDEX {old};"
    )
    where = f" AND {index.predicate}" if index.predicate else ""
    exam.warning(
        "unique_counts_tombstones",
        old,
        "A deleted row still holds its key, so that the user cannot create the same thing again.",
        f"CREATE UNIQUE INDEX ON {table.relation.label} ({names})"
        f" WHERE {quoted(deleted_at)} IS NULL{where}; {drop}",
    )

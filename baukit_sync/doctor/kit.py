"""The kit's own tables: are they there, can the kit see them, and are they what its statements rely on?"""

from __future__ import annotations

import re
from dataclasses import dataclass

from baukit_sync import ddl
from baukit_sync.doctor import catalog
from baukit_sync.doctor.catalog import Relation, quoted
from baukit_sync.doctor.examination import Examination
from baukit_sync.schema import COUNTER_FILLFACTOR

_CREATED_BY = (
    "from baukit_sync import migrations as sync\n"
    "sync.create_revisions(op, owner='users.id')  # your owner column and its type\n"
    "sync.create_purge_horizons(op)"
)


@dataclass(frozen=True, slots=True)
class Kit:
    """The kit's tables as they were found."""

    revisions: Relation | None
    horizons: Relation | None

    @property
    def owner_type(self) -> str | None:
        """The type of the counters' owner ids."""
        return _type(self.revisions, "owner_id")

    @property
    def usable(self) -> bool:
        """Whether rows can be compared with counters and horizons."""
        tables = ((self.revisions, "last_revision"), (self.horizons, "horizon_revision"))
        return all(
            table is not None
            and table.readable
            and not table.rows_hidden
            and "owner_id" in table.columns
            and column in table.columns
            and table.columns[column].is_comparable
            for table, column in tables
        )


def _type(table: Relation | None, column: str) -> str | None:
    found = table.columns.get(column) if table else None
    return found.type if found else None


def examine_kit(exam: Examination, translated: str | None, declared: str | None) -> Kit:
    """Find the kit's tables and check them.

    Args:
        exam: The examination.
        translated: The schema that ``schema_translate_map`` gives to unqualified names.
        declared: The schema that the MetaData gives the kit's tables.
    """
    revisions = catalog.find(exam, "sync_revisions", translated)
    if revisions is None and declared and (found := catalog.find(exam, "sync_revisions", declared)):
        revisions = found
        _hidden(exam, found)
    schema = revisions.schema if revisions else translated
    horizons = catalog.find(exam, "sync_purge_horizons", schema)
    kit = Kit(revisions, horizons)
    _shadowed(exam, translated)
    for name, table in (("sync_revisions", revisions), ("sync_purge_horizons", horizons)):
        if table is None:
            exam.error("kit_table_missing", name, "Every call of the kit that needs it fails.", _CREATED_BY)
    if revisions is not None:
        _check_revisions(exam, revisions)
    if horizons is not None:
        _check_horizons(exam, horizons, kit)
    for table in (revisions, horizons):
        if table is not None and not table.readable:
            exam.permission_denied(table.label, "compare rows with counters")
        if table is not None and table.rows_hidden:
            exam.rows_hidden(table.label)
    return kit


def _hidden(exam: Examination, table: Relation) -> None:
    exam.error(
        "kit_table_hidden",
        table.label,
        "The kit names its tables without a schema, and neither search_path nor schema_translate_map of this "
        "connection leads there: every call fails.",
        f"engine = engine.execution_options(schema_translate_map={{None: {table.schema!r}}})  "
        "# or search_path in connect_args",
    )


def _shadowed(exam: Examination, translated: str | None) -> None:
    visible = catalog.schemas_with(exam, "sync_revisions", visible=True)
    if translated is None and len(visible) > 1:
        exam.warning(
            "kit_table_shadowed",
            f"{quoted(visible[0])}.sync_revisions",
            f"search_path also leads to {', '.join(visible[1:])}: a connection with another path would count "
            "on other counters, and hand out revisions twice.",
            f"ALTER TABLE {quoted(visible[-1])}.sync_revisions RENAME TO sync_revisions_unused; "
            "-- the one that nobody uses, or take its schema out of search_path",
        )


def _check_revisions(exam: Examination, table: Relation) -> None:
    if "user_id" in table.columns and "owner_id" not in table.columns:
        exam.error(
            "kit_old_shape",
            table.at("user_id"),
            "This is the table of an older version: the kit's statements name owner_id, and fail.",
            ddl.script(ddl.rename_user_id(schema=table.schema)),
        )
        return
    _check_columns(exam, table, {"owner_id": None, "last_revision": "bigint"})
    _check_default(exam, table, "last_revision", "0")
    _check_primary_key(exam, table)
    _check_check(
        exam, table, "last_revision", ">= 0", "a counter below 0 hands out revisions no pull returns"
    )
    for key in table.foreign_keys:
        if key.columns == ("owner_id",) and key.on_delete in {"SET NULL", "SET DEFAULT"}:
            _wrong_action(exam, table, key.name)
    if f"fillfactor={COUNTER_FILLFACTOR}" not in table.options and not _has_room(table):
        exam.info(
            "kit_fillfactor",
            table.label,
            "Full pages leave no room for HOT updates: each write adds an index entry, and the table bloats.",
            f"ALTER TABLE {table.label} SET (fillfactor = {COUNTER_FILLFACTOR});",
        )
    for index in table.indexes:
        if "last_revision" in index.columns:
            exam.warning(
                "kit_counter_index",
                f"{quoted(table.schema)}.{quoted(index.name)}",
                "An index on the counter turns every HOT update into one that writes all indexes.",
                f"DROP INDEX {quoted(table.schema)}.{quoted(index.name)};",
            )


def _has_room(table: Relation) -> bool:
    found = next((re.fullmatch(r"fillfactor=(\d+)", option) for option in table.options), None)
    return found is not None and int(found[1]) < COUNTER_FILLFACTOR


def _check_horizons(exam: Examination, table: Relation, kit: Kit) -> None:
    columns = {"horizon_revision": "bigint", "updated_at": "timestamp with time zone"}
    _check_columns(exam, table, {"owner_id": kit.owner_type, **columns})
    _check_default(exam, table, "updated_at", "now()")
    _check_primary_key(exam, table)
    _check_check(exam, table, "horizon_revision", "> 0", "a horizon of 0 or less protects no cursor")
    if kit.revisions is None:
        return
    to_counter = [key for key in table.foreign_keys if key.target == kit.revisions.oid]
    if not any(key.on_delete == "CASCADE" and key.columns == ("owner_id",) for key in to_counter):
        drop = "".join(f"ALTER TABLE {table.label} DROP CONSTRAINT {quoted(k.name)};\n" for k in to_counter)
        exam.error(
            "kit_foreign_key",
            table.at("owner_id"),
            "Without a key to sync_revisions that cascades, a horizon outlives its erased counter, or "
            "erasure fails.",
            f"{drop}ALTER TABLE {table.label} ADD CONSTRAINT sync_purge_horizons_owner_id_fkey"
            f" FOREIGN KEY (owner_id) REFERENCES {kit.revisions.label} (owner_id) ON DELETE CASCADE;",
        )


def _wrong_action(exam: Examination, table: Relation, key: str) -> None:
    exam.error(
        "kit_foreign_key",
        table.at("owner_id"),
        "The action of this foreign key would change a counter's owner: erasing an owner fails, or gives its "
        "counter to another.",
        f"ALTER TABLE {table.label} DROP CONSTRAINT {quoted(key)};"
        " -- then add it again with ON DELETE CASCADE",
    )


def _check_columns(exam: Examination, table: Relation, types: dict[str, str | None]) -> None:
    for name, expected in types.items():
        column = table.columns.get(name)
        if column is None:
            exam.error(
                "kit_column_missing",
                table.at(name),
                "The kit's statements name it, and fail.",
                f"ALTER TABLE {table.label} ADD COLUMN {name} {expected or 'uuid'} NOT NULL;"
                " -- with a DEFAULT while the table has rows",
            )
            continue
        if expected and column.type != expected:
            exam.error(
                "kit_column_type",
                table.at(name),
                f"It is {column.type}, and the kit relies on {expected}.",
                f"ALTER TABLE {table.label} ALTER COLUMN {name} TYPE {expected} USING {name}::{expected};",
            )
        if column.nullable and name not in table.primary_key:
            exam.error(
                "kit_column_nullable",
                table.at(name),
                "A NULL here makes every comparison unknown: allocations return nothing, stale cursors pass.",
                f"ALTER TABLE {table.label} ALTER COLUMN {name} SET NOT NULL;",
            )


def _check_default(exam: Examination, table: Relation, name: str, default: str) -> None:
    column = table.columns.get(name)
    if column is not None and column.default is None:
        exam.error(
            "kit_default_missing",
            table.at(name),
            "The kit inserts rows without it, and fails.",
            f"ALTER TABLE {table.label} ALTER COLUMN {name} SET DEFAULT {default};",
        )


def _check_primary_key(exam: Examination, table: Relation) -> None:
    if "owner_id" in table.columns and table.primary_key != ("owner_id",):
        exam.error(
            "kit_primary_key",
            table.at("owner_id"),
            "Two rows of one owner hand out the same revisions, and ON CONFLICT (owner_id) fails.",
            f"ALTER TABLE {table.label} ADD CONSTRAINT {table.name}_pkey PRIMARY KEY (owner_id);",
        )


def _check_check(exam: Examination, table: Relation, column: str, condition: str, why: str) -> None:
    # By definition, not by name: a naming convention may have given it another.
    if column in table.columns and not any(
        re.search(rf"\b{column} {condition}[^0-9]", check) for check in table.checks
    ):
        exam.warning(
            "kit_check_missing",
            table.at(column),
            f"Nothing refuses a wrong value, and {why}.",
            f"ALTER TABLE {table.label} ADD CONSTRAINT {table.name}_{column}_check"
            f" CHECK ({column} {condition});",
        )

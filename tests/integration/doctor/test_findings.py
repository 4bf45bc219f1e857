"""Every finding: a database with exactly that fault yields exactly that finding, and its fix removes it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import pytest
import sqlalchemy as sa

from baukit_sync import ddl, triggers
from baukit_sync.doctor import Finding, Severity, examine
from tests.support.product import Base
from tests.support.ways import Admin

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


@dataclass(frozen=True)
class Fault:
    """What breaks a healthy product, and what the doctor says."""

    code: str
    severity: Severity
    where: str
    sql: str
    fixable: bool = True
    retention: timedelta | None = None


KIT = [
    Fault("kit_table_missing", ERROR, "sync_purge_horizons", "DROP TABLE sync_purge_horizons", fixable=False),
    Fault(
        "kit_old_shape",
        ERROR,
        "public.sync_revisions.user_id",
        "ALTER TABLE sync_revisions RENAME COLUMN owner_id TO user_id",
    ),
    Fault(
        "kit_column_missing",
        ERROR,
        "public.sync_purge_horizons.updated_at",
        "ALTER TABLE sync_purge_horizons DROP COLUMN updated_at",
        fixable=False,
    ),
    Fault(
        "kit_column_type",
        ERROR,
        "public.sync_revisions.last_revision",
        "ALTER TABLE sync_revisions ALTER last_revision TYPE integer",
    ),
    Fault(
        "kit_column_type",
        ERROR,
        "public.sync_purge_horizons.updated_at",
        "ALTER TABLE sync_purge_horizons ALTER updated_at TYPE timestamp",
    ),
    Fault(
        "kit_column_nullable",
        ERROR,
        "public.sync_revisions.last_revision",
        "ALTER TABLE sync_revisions ALTER last_revision DROP NOT NULL",
    ),
    Fault(
        "kit_default_missing",
        ERROR,
        "public.sync_revisions.last_revision",
        "ALTER TABLE sync_revisions ALTER last_revision DROP DEFAULT",
    ),
    Fault(
        "kit_default_missing",
        ERROR,
        "public.sync_purge_horizons.updated_at",
        "ALTER TABLE sync_purge_horizons ALTER updated_at DROP DEFAULT",
    ),
    Fault(
        "kit_check_missing",
        WARNING,
        "public.sync_revisions.last_revision",
        "ALTER TABLE sync_revisions DROP CONSTRAINT sync_revisions_last_revision_check",
    ),
    Fault(
        "kit_check_missing",
        WARNING,
        "public.sync_purge_horizons.horizon_revision",
        "ALTER TABLE sync_purge_horizons DROP CONSTRAINT sync_purge_horizons_horizon_revision_check",
    ),
    Fault(
        "kit_primary_key",
        ERROR,
        "public.sync_purge_horizons.owner_id",
        "ALTER TABLE sync_purge_horizons DROP CONSTRAINT sync_purge_horizons_pkey;"
        "ALTER TABLE sync_purge_horizons ALTER owner_id SET NOT NULL",
    ),
    Fault(
        "kit_foreign_key",
        ERROR,
        "public.sync_purge_horizons.owner_id",
        "ALTER TABLE sync_purge_horizons DROP CONSTRAINT sync_purge_horizons_owner_id_fkey",
    ),
    Fault(
        "kit_foreign_key",
        ERROR,
        "public.sync_purge_horizons.owner_id",
        "ALTER TABLE sync_purge_horizons DROP CONSTRAINT sync_purge_horizons_owner_id_fkey;"
        "ALTER TABLE sync_purge_horizons ADD CONSTRAINT k FOREIGN KEY (owner_id) REFERENCES sync_revisions",
    ),
    Fault(
        "kit_foreign_key",
        ERROR,
        "public.sync_revisions.owner_id",
        "ALTER TABLE sync_revisions DROP CONSTRAINT sync_revisions_owner_id_fkey;"
        "ALTER TABLE sync_revisions ADD CONSTRAINT k FOREIGN KEY (owner_id) REFERENCES users"
        " ON DELETE SET NULL",
    ),
    Fault("kit_fillfactor", INFO, "public.sync_revisions", "ALTER TABLE sync_revisions RESET (fillfactor)"),
    Fault(
        "kit_counter_index",
        WARNING,
        "public.slow",
        "CREATE INDEX slow ON sync_revisions (last_revision)",
    ),
    Fault(
        "horizon_above_counter",
        ERROR,
        "public.sync_purge_horizons.horizon_revision",
        "INSERT INTO sync_purge_horizons SELECT owner_id, last_revision + 1 FROM sync_revisions",
    ),
]

COLUMNS = [
    Fault(
        "column_missing",
        ERROR,
        "public.notes.deleted_at",
        "ALTER TABLE notes DROP COLUMN deleted_at CASCADE;",
        fixable=False,
    ),
    Fault(
        "column_missing",
        ERROR,
        "public.notes.revision",
        "ALTER TABLE notes DROP COLUMN revision CASCADE;",
        fixable=False,
    ),
    Fault(
        "column_type",
        ERROR,
        "public.notes.revision",
        "ALTER TABLE notes ALTER revision TYPE integer",
    ),
    Fault(
        "column_type",
        ERROR,
        "public.notes.revision",
        "ALTER TABLE notes ALTER revision TYPE text",
    ),
    Fault(
        "column_type",
        ERROR,
        "public.notes.deleted_at",
        "DROP INDEX notes_tombstone_idx; ALTER TABLE notes ALTER deleted_at TYPE text;"
        "CREATE INDEX notes_tombstone_idx ON notes (owner_id, deleted_at) WHERE deleted_at IS NOT NULL",
    ),
    Fault(
        "column_type",
        ERROR,
        "public.lists.updated_at",
        "ALTER TABLE lists ALTER updated_at TYPE date",
    ),
    Fault(
        "timestamp_without_time_zone",
        ERROR,
        "public.notes.deleted_at",
        "ALTER TABLE notes ALTER deleted_at TYPE timestamp",
    ),
    Fault(
        "timestamp_without_time_zone",
        ERROR,
        "public.lists.updated_at",
        "ALTER TABLE lists ALTER updated_at TYPE timestamp(3)",
    ),
    Fault(
        "column_nullable", WARNING, "public.notes.owner_id", "ALTER TABLE notes ALTER owner_id DROP NOT NULL"
    ),
    Fault(
        "column_nullable", WARNING, "public.notes.revision", "ALTER TABLE notes ALTER revision DROP NOT NULL"
    ),
    Fault(
        "column_nullable",
        WARNING,
        "public.list_items.list_id",
        "ALTER TABLE list_items ALTER list_id DROP NOT NULL",
    ),
    Fault(
        "column_not_null",
        ERROR,
        "public.notes.deleted_at",
        "UPDATE notes SET deleted_at = now(); ALTER TABLE notes ALTER deleted_at SET NOT NULL",
    ),
    Fault(
        "revision_default", ERROR, "public.notes.revision", "ALTER TABLE notes ALTER revision SET DEFAULT 0"
    ),
    Fault(
        "revision_default",
        ERROR,
        "public.notes.revision",
        "ALTER TABLE notes ALTER revision ADD GENERATED BY DEFAULT AS IDENTITY",
    ),
    Fault("primary_key_missing", ERROR, "public.notes", "ALTER TABLE notes DROP CONSTRAINT notes_pkey"),
    Fault(
        "unique_counts_tombstones",
        WARNING,
        "public.title_key",
        "UPDATE notes SET title = id::text;"
        "ALTER TABLE notes ADD CONSTRAINT title_key UNIQUE (owner_id, title)",
    ),
    Fault(
        "unique_counts_tombstones",
        WARNING,
        "public.title_key",
        "CREATE UNIQUE INDEX title_key ON notes (owner_id, title) WHERE title <> ''",
    ),
    Fault(
        "owner_missing",
        ERROR,
        "public.list_items",
        "ALTER TABLE list_items DROP COLUMN list_id CASCADE",
        fixable=False,
    ),
    Fault("table_missing", ERROR, "list_items", "DROP TABLE list_items", fixable=False),
]

INDEXES = [
    Fault("index_missing", ERROR, "public.notes", "DROP INDEX notes_sync_idx"),
    Fault("index_missing", WARNING, "public.notes", "DROP INDEX notes_tombstone_idx"),
    Fault("index_missing", ERROR, "public.list_items", "DROP INDEX list_items_sync_idx"),
    Fault(
        "index_missing",
        ERROR,
        "public.notes",
        "DROP INDEX notes_sync_idx; CREATE INDEX a ON notes (owner_id); CREATE INDEX b ON notes (revision)",
    ),
    Fault(
        "index_unused",
        WARNING,
        "public.notes",
        "DROP INDEX notes_sync_idx;"
        "CREATE INDEX notes_part_idx ON notes (owner_id, revision) WHERE deleted_at IS NULL",
    ),
    Fault(
        "index_invalid",
        ERROR,
        "public.notes_sync_idx",
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'notes_sync_idx'::regclass",
    ),
]

KEYS = [
    Fault(
        "foreign_key_deletes_rows",
        ERROR,
        "public.list_items.k",
        "ALTER TABLE list_items DROP CONSTRAINT list_items_list_id_fkey,"
        " ADD CONSTRAINT k FOREIGN KEY (list_id) REFERENCES lists ON DELETE CASCADE",
    ),
    Fault(
        "foreign_key_rewrites_rows",
        ERROR,
        "public.notes.k",
        "CREATE TABLE folders (id int PRIMARY KEY); ALTER TABLE notes ADD folder_id int"
        " CONSTRAINT k REFERENCES folders ON DELETE SET NULL",
    ),
    Fault(
        "foreign_key_rewrites_rows",
        ERROR,
        "public.notes.k",
        "ALTER TABLE notes ADD editor uuid CONSTRAINT k REFERENCES users ON DELETE SET DEFAULT",
    ),
    Fault(
        "foreign_key_rewrites_rows",
        ERROR,
        "public.notes.k",
        "ALTER TABLE notes DROP CONSTRAINT notes_owner_id_fkey,"
        " ADD CONSTRAINT k FOREIGN KEY (owner_id) REFERENCES users ON DELETE SET NULL",
    ),
    Fault(
        "trigger_drops_writes",
        INFO,
        "public.notes.silent",
        "CREATE FUNCTION silent() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        "CREATE TRIGGER silent BEFORE UPDATE ON notes FOR EACH ROW EXECUTE FUNCTION silent()",
        fixable=False,
    ),
    Fault(
        "rewrite_rule",
        WARNING,
        "public.notes.keep",
        "CREATE RULE keep AS ON DELETE TO notes DO INSTEAD NOTHING",
    ),
]

ROWS = [
    Fault(
        "counter_missing",
        ERROR,
        "public.notes",
        "DELETE FROM list_items; DELETE FROM lists; DELETE FROM sync_revisions",
    ),
    Fault(
        "parent_missing",
        ERROR,
        "public.list_items.list_id",
        "SET session_replication_role = replica; DELETE FROM lists",
    ),
    Fault(
        "revision_above_counter",
        ERROR,
        "public.notes.revision",
        "UPDATE notes SET revision = 100",
    ),
    Fault(
        "revision_above_counter",
        ERROR,
        "public.list_items.revision",
        "UPDATE list_items SET revision = 100 WHERE deleted_at IS NULL",
    ),
    Fault("revision_invalid", ERROR, "public.notes.revision", "UPDATE notes SET revision = 0", fixable=False),
    Fault(
        "revision_null",
        ERROR,
        "public.notes.revision",
        "ALTER TABLE notes ALTER revision DROP NOT NULL; UPDATE notes SET revision = NULL",
        fixable=False,
    ),
    Fault(
        "revision_shared",
        INFO,
        "public.list_items.revision",
        "UPDATE list_items SET revision = 1",
        fixable=False,
    ),
    Fault(
        "tombstones_overdue",
        WARNING,
        "public.list_items",
        "UPDATE list_items SET deleted_at = now() - interval '40 days' WHERE deleted_at IS NOT NULL",
        fixable=False,
        retention=timedelta(days=39),
    ),
]

SETTINGS = [
    Fault(
        "read_only",
        ERROR,
        "default_transaction_read_only",
        "ALTER DATABASE {database} SET default_transaction_read_only = on",
        fixable=False,
    ),
    Fault(
        "isolation_level",
        INFO,
        "transaction_isolation",
        "ALTER DATABASE {database} SET default_transaction_isolation = 'repeatable read'",
        fixable=False,
    ),
    Fault(
        "synchronous_commit",
        INFO,
        "synchronous_commit",
        "ALTER DATABASE {database} SET synchronous_commit = off",
    ),
    Fault(
        "idle_transactions",
        INFO,
        "idle_in_transaction_session_timeout",
        "ALTER DATABASE {database} SET idle_in_transaction_session_timeout = 0",
    ),
    Fault("lock_waits", INFO, "lock_timeout", "ALTER DATABASE {database} SET lock_timeout = 0"),
    Fault(
        "kit_table_shadowed",
        WARNING,
        "other.sync_revisions",
        "CREATE SCHEMA other; CREATE TABLE other.sync_revisions (LIKE sync_revisions INCLUDING ALL)"
        " WITH (fillfactor = 50);"
        " CREATE TABLE other.sync_purge_horizons (LIKE sync_purge_horizons INCLUDING ALL,"
        " CONSTRAINT k FOREIGN KEY (owner_id) REFERENCES other.sync_revisions ON DELETE CASCADE);"
        " INSERT INTO other.sync_revisions SELECT * FROM sync_revisions;"
        "ALTER DATABASE {database} SET search_path = other, public",
    ),
    Fault(
        "kit_table_hidden",
        ERROR,
        "kit.sync_revisions",
        "CREATE SCHEMA kit; ALTER TABLE sync_revisions SET SCHEMA kit;"
        " ALTER TABLE sync_purge_horizons SET SCHEMA kit",
        fixable=False,
    ),
]

GUARDED = ddl.script([*triggers.create_revisions_trigger(), *triggers.create_guard_trigger("notes")])

TRIGGERS = [
    Fault(
        "trigger_missing",
        ERROR,
        "public.notes",
        f"{GUARDED} DROP TRIGGER baukit_sync_guard_v1_delete ON notes",
        fixable=False,
    ),
    Fault(
        "trigger_missing",
        ERROR,
        "public.sync_revisions",
        f"{GUARDED} DROP TRIGGER baukit_sync_allocated_v1 ON sync_revisions",
        fixable=False,
    ),
    Fault(
        "trigger_disabled",
        WARNING,
        "public.notes.baukit_sync_guard_v1",
        f"{GUARDED} ALTER TABLE notes DISABLE TRIGGER baukit_sync_guard_v1",
    ),
    Fault(
        "trigger_disabled",
        WARNING,
        "public.sync_revisions.baukit_sync_allocated_v1",
        f"{GUARDED} ALTER TABLE sync_revisions ENABLE REPLICA TRIGGER baukit_sync_allocated_v1",
    ),
    Fault(
        "trigger_changed",
        WARNING,
        "public.notes.guard",
        f"{GUARDED} CREATE OR REPLACE FUNCTION notes_sync_guard_v1() RETURNS trigger LANGUAGE plpgsql"
        " AS 'BEGIN RETURN NULL; END'",
        fixable=False,
    ),
    Fault(
        "trigger_outdated",
        WARNING,
        "public.notes.guard",
        f"{GUARDED} DO $$ BEGIN EXECUTE (SELECT format('COMMENT ON FUNCTION %s() IS %L', oid::regproc,"
        " replace(obj_description(oid, 'pg_proc'), 'guard_v1', 'guard_v0')) FROM pg_proc"
        " WHERE proname = 'notes_sync_guard_v1'); END $$ -- as an older FUNCTION",
        fixable=False,
    ),
]

FAULTS = [*KIT, *COLUMNS, *INDEXES, *KEYS, *ROWS, *SETTINGS, *TRIGGERS]


def break_it(outside: Admin, fault: Fault) -> None:
    """Do what the fault says, each statement in a transaction of its own, on one connection."""
    database = str(outside.engine.url.database)
    with outside.engine.connect() as connection:
        driver = connection.connection.driver_connection
        for statement in _statements(fault.sql.replace("{database}", database)):
            driver.execute(statement)


def _statements(script: str) -> list[str]:
    if "FUNCTION" in script:
        return [script]
    return [part for part in script.split(";") if part.strip()]


def found(findings: list[Finding]) -> list[tuple[str, Severity, str]]:
    """Return what identifies the findings."""
    return [(finding.code, finding.severity, finding.where) for finding in findings]


def product(fault: Fault) -> sa.MetaData:
    """Return the product's MetaData, with the kit's tables where the fault has put them."""
    if fault.code != "kit_table_hidden":
        return Base.metadata
    moved = sa.MetaData()
    for table in Base.metadata.tables.values():
        table.to_metadata(moved, schema="kit" if table.name.startswith("sync_") else None)
    return moved


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{n}-{fault.code}" for n, fault in enumerate(FAULTS)])
def test_a_fault_is_the_only_finding(fault: Fault, engine: sa.Engine, me: UUID, outside: Admin) -> None:
    """The finding has its code, severity and place, and there is no other; its SQL removes it."""
    break_it(outside, fault)
    target = product(fault)

    findings = examine(engine, target, retention=fault.retention)

    assert [(fault.code, fault.severity, fault.where)] == found(findings)
    if fault.fixable:
        with outside.engine.connect() as connection:
            driver = connection.connection.driver_connection
            driver.execute(findings[0].fix)
        assert [] == examine(engine, target, retention=fault.retention)


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{n}-{fault.code}" for n, fault in enumerate(FAULTS)])
def test_no_finding_has_row_data(fault: Fault, engine: sa.Engine, me: UUID, outside: Admin) -> None:
    """No owner id and no key is in any text."""
    ids = [
        str(row[0])
        for table in ("notes", "lists", "list_items", "users")
        for row in outside.sql(f"SELECT id FROM {table}")
    ]
    break_it(outside, fault)

    texts = [str(finding.to_dict()) for finding in examine(engine, product(fault), retention=fault.retention)]

    assert texts
    assert [] == [text for text in texts if any(row_id in text for row_id in ids)]

"""Is this database fit to sync? Findings with a code, a severity, a place, a reason and a fix.

:func:`examine` reads PostgreSQL's catalogs, asks its planner, and probes the rows. It fits a readiness check
and a product's CI; ``baukit-sync doctor`` is the same on the command line.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import Connection, Engine

from baukit_sync.doctor import catalog
from baukit_sync.doctor.columns import examine_columns
from baukit_sync.doctor.examination import Examination
from baukit_sync.doctor.findings import Finding, Severity
from baukit_sync.doctor.indexes import examine_indexes
from baukit_sync.doctor.keys import examine_keys, examine_relationships, examine_triggers
from baukit_sync.doctor.kit import Kit, examine_kit
from baukit_sync.doctor.rows import examine_horizons, examine_rows
from baukit_sync.doctor.server import autocommit, examine_server
from baukit_sync.doctor.synced import SyncedTable, synced_table
from baukit_sync.doctor.targets import Target, Targets, Wanted, targets_of
from baukit_sync.doctor.triggers import State, TriggerState, examine_kit_triggers, trigger_states
from baukit_sync.errors import UnsafeTransactionError
from baukit_sync.transaction import check_integer

__all__ = ["Finding", "Severity", "State", "Target", "TriggerState", "examine", "trigger_states"]

_FIVE = ["id", "owner_id", "updated_at", "deleted_at", "revision"]


def examine(
    engine: Engine | Connection,
    target: Target | None = None,
    *,
    retention: timedelta | None = None,
    check_limit: timedelta = timedelta(seconds=5),
    time_limit: timedelta = timedelta(seconds=60),
    most_owners: int = 10_000,
) -> list[Finding]:
    """Examine a database: the kit's tables, the synced ones, their rows, and this connection's settings.

    Everything happens in one read-only transaction, or in a savepoint of the caller's, which is rolled back.
    Async code calls it through ``run_sync``: ``await connection.run_sync(examine, Base)``.

    Args:
        engine: Where to connect, as the role that writes or purges; or a connection.
        target: What the product syncs: a ``MetaData`` or a declarative base, of which every table with
            ``revision`` and ``deleted_at`` is examined, or a list of classes and ``Table`` objects. Without
            it: every table of the database that has the five columns.
        retention: How old a tombstone may be: the purge's retention and its interval, and some slack. Without
            it no tombstone is overdue.
        check_limit: How long one check may take; what is not finished by then is a finding.
        time_limit: How long all of them may take together.
        most_owners: How many owners of each table to compare with their counters, 1..1,000,000,000.

    Returns:
        The findings, the worst first; empty when there is nothing to say. None holds an owner id, a key or
        row data.

    Raises:
        InvalidArgumentError: ``target`` is something else, or ``most_owners`` is out of range.
        UnsafeTransactionError: A connection was given that is in AUTOCOMMIT; give the engine.
        sqlalchemy.exc.DBAPIError: There is no connection, or it broke.

    Takes the locks of a SELECT. Commits nothing.
    """
    check_integer("most_owners", most_owners, least=1, most=1_000_000_000)
    targets = targets_of(target)

    def on(connection: Connection, *, was_autocommit: bool) -> list[Finding]:
        deadline = time.monotonic() + time_limit.total_seconds()
        exam = Examination(connection, check_limit, deadline, most_owners, retention)
        if was_autocommit:
            autocommit(exam)
        _examine(exam, targets)
        return sorted(exam.findings, key=lambda finding: (finding.severity.rank, finding.where, finding.code))

    if isinstance(engine, Connection):
        if _is_autocommit(engine):
            raise UnsafeTransactionError
        return on(engine, was_autocommit=False)
    with engine.connect() as connection:
        was_autocommit = _is_autocommit(connection)
        if was_autocommit:
            connection.execution_options(isolation_level="READ COMMITTED")
        return on(connection, was_autocommit=was_autocommit)


def _is_autocommit(connection: Connection) -> bool:
    return bool(getattr(connection.connection.dbapi_connection, "autocommit", False))


def _examine(exam: Examination, targets: Targets) -> None:
    connection = exam.connection
    transaction = connection.begin_nested() if connection.in_transaction() else connection.begin()
    try:
        ((isolation,),) = exam.rows("SELECT current_setting('transaction_isolation')")
        exam.setting("transaction_read_only", "on")
        exam.attempt("settings", "read the settings", lambda: examine_server(exam, isolation))
        _examine_tables(exam, targets)
        examine_relationships(exam, targets.mappers)
    finally:
        if transaction.is_active:
            transaction.rollback()


def _examine_tables(exam: Examination, targets: Targets) -> None:
    translated: dict[str | None, str | None] = (
        exam.connection.get_execution_options().get("schema_translate_map") or {}
    )
    declared = translated.get(targets.kit_schema, targets.kit_schema)
    kits: list[Kit] = []
    exam.attempt(
        "sync_revisions",
        "read the catalogs",
        lambda: kits.append(examine_kit(exam, translated.get(None), declared)),
    )
    if not kits:
        return
    (kit,) = kits
    exam.attempt("sync_purge_horizons", "compare horizons with counters", lambda: examine_horizons(exam, kit))
    wanted: list[Wanted] = []
    if targets.tables is None:
        exam.attempt("pg_class", "find the synced tables", lambda: wanted.extend(_discovered(exam, kit)))
    else:
        for table in targets.tables:
            schema = translated.get(table.schema, table.schema)
            wanted.append(Wanted(table.name, schema, table.names))
    for table in wanted:
        _examine_table(exam, table, kit)


def _discovered(exam: Examination, kit: Kit) -> list[Wanted]:
    """Find every table with the five columns, except in schemas that have counters of their own."""
    others = set(catalog.schemas_with(exam, "sync_revisions"))
    others -= {kit.revisions.schema} if kit.revisions else set()
    tables = catalog.with_all_columns(exam, _FIVE)
    return [Wanted(name, schema, {}) for schema, name in tables if schema not in others]


def _examine_table(exam: Examination, wanted: Wanted, kit: Kit) -> None:
    where = f"{wanted.schema}.{wanted.name}" if wanted.schema else wanted.name
    found: list[SyncedTable] = []

    def read() -> None:
        relation = catalog.find(exam, wanted.name, wanted.schema)
        if relation is not None:
            found.append(synced_table(exam, relation, wanted.names))
            return
        exam.error(
            "table_missing",
            where,
            "The models have this table, and the database, or this connection's search_path, has not.",
            "alembic upgrade head",
        )

    if not exam.attempt(where, "read the catalogs", read) or not found:
        return
    (table,) = found
    if table.relation.rows_hidden:
        exam.rows_hidden(table.relation.label)
    if not table.can_be_read:
        exam.permission_denied(table.relation.label, "look at the rows")
    checks: list[tuple[str, Callable[[], None]]] = [
        ("check the columns", lambda: examine_columns(exam, table, kit)),
        ("check the foreign keys", lambda: examine_keys(exam, table)),
        ("check the triggers", lambda: examine_triggers(exam, table)),
        ("check the kit's triggers", lambda: examine_kit_triggers(exam, table, kit)),
    ]
    for purpose, check in checks:
        exam.attempt(table.relation.label, purpose, check)
    # What a policy leaves of the rows, or adds to a plan, proves nothing.
    if table.can_be_read and not table.is_hidden:
        examine_indexes(exam, table)
        examine_rows(exam, table, kit)

"""Checks of the server's and the connection's settings."""

from __future__ import annotations

from typing import Any

from baukit_sync.doctor.examination import Examination

_SETTINGS = """
SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only'),
    current_setting('synchronous_commit'), current_setting('idle_in_transaction_session_timeout'),
    current_setting('lock_timeout'), current_database()::text, pg_backend_pid()"""


def autocommit(exam: Examination) -> None:
    """Report an engine whose statements each commit by themselves."""
    exam.error(
        "autocommit",
        "isolation_level",
        "In AUTOCOMMIT a counter's lock is gone before the row is written: the kit refuses every call.",
        'engine = engine.execution_options(isolation_level="READ COMMITTED")',
    )


def examine_server(exam: Examination, isolation: str) -> None:
    """Check settings under which writes fail, wait without end, or can be lost.

    Args:
        exam: The examination.
        isolation: The isolation level of the product's transactions.
    """
    ((standby, read_only, synchronous, idle, lock, database, pid),) = exam.rows(_SETTINGS)
    name = f'"{database}"'
    if standby:
        exam.error(
            "standby",
            "pg_is_in_recovery()",
            "This server is a standby: pulls and writes lock a counter, and fail with PrimaryRequiredError.",
            "Point the engine at the primary: target_session_attrs=read-write in the URL.",
        )
    elif read_only == "on":
        exam.error(
            "read_only",
            "default_transaction_read_only",
            "In a read-only transaction pulls and writes, which lock a counter, fail.",
            f"ALTER DATABASE {name} SET default_transaction_read_only = off;",
        )
    if isolation in {"repeatable read", "serializable"}:
        exam.info(
            "isolation_level",
            "transaction_isolation",
            f"At {isolation} two writers of one owner do not queue: one fails with SQLSTATE 40001. The kit "
            "needs READ COMMITTED only.",
            "retry_transaction(Session, work)  # or isolation_level='READ COMMITTED'",
        )
    if synchronous == "off":
        exam.info(
            "synchronous_commit",
            "synchronous_commit",
            "A crash can lose commits that clients have seen: their cursors are then ahead of the counter, "
            "and its next revisions are others'.",
            f"ALTER DATABASE {name} SET synchronous_commit = on;",
        )
    if idle == "0":
        exam.info(
            "idle_transactions",
            "idle_in_transaction_session_timeout",
            "A client that hangs in a transaction keeps its owner's counter locked, and its purge out, "
            "without end.",
            f"ALTER DATABASE {name} SET idle_in_transaction_session_timeout = '60s';",
        )
    if lock == "0":
        exam.info(
            "lock_waits",
            "lock_timeout",
            "A writer waits without end for another of the same owner, and holds a pooled connection.",
            f"ALTER DATABASE {name} SET lock_timeout = '10s';",
        )
    _pooler(exam, pid)


def _pooler(exam: Examination, pid: int) -> None:
    """Report prepared statements of psycopg behind a pooler, which shows by its made-up process id."""
    driver: Any = exam.connection.connection.driver_connection
    info = getattr(driver, "info", None)
    if getattr(info, "backend_pid", pid) != pid and getattr(driver, "prepare_threshold", None) is not None:
        exam.warning(
            "pooler_prepared_statements",
            "prepare_threshold",
            "A pooler stands between here and PostgreSQL. In transaction mode a prepared statement may be on "
            "another connection when it is used again.",
            'create_engine(url, connect_args={"prepare_threshold": None})',
        )

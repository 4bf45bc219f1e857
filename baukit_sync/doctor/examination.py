"""One examination: its connection, its limits, and what it has found so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from baukit_sync.doctor.findings import Finding, Severity
from baukit_sync.transaction import sqlstate

_QUERY_CANCELED, _INSUFFICIENT_PRIVILEGE = "57014", "42501"


@dataclass(slots=True)
class Examination:
    """What the checks share.

    Attributes:
        connection: In a read-only transaction.
        check_limit: How long one check may take.
        deadline: When, by ``time.monotonic()``, the last check must have ended.
        most_owners: How many owners of a table are looked at.
        retention: How old a tombstone may be; ``None`` for any age.
        findings: What was found.
    """

    connection: Connection
    check_limit: timedelta
    deadline: float
    most_owners: int
    retention: timedelta | None
    findings: list[Finding] = field(default_factory=list[Finding])

    def error(self, code: str, where: str, why: str, fix: str) -> None:
        """Note that changes are lost or calls fail."""
        self.findings.append(Finding(code, Severity.ERROR, where, why, fix))

    def warning(self, code: str, where: str, why: str, fix: str) -> None:
        """Note that changes can be lost, or that something is slow or blind."""
        self.findings.append(Finding(code, Severity.WARNING, where, why, fix))

    def info(self, code: str, where: str, why: str, fix: str) -> None:
        """Note what is worth knowing."""
        self.findings.append(Finding(code, Severity.INFO, where, why, fix))

    def rows(self, statement: str, **parameters: Any) -> Sequence[Any]:
        """Run a query. Its parameters are untyped, so that every driver leaves their types to the server."""
        untyped = [sa.bindparam(name, type_=sa.types.NullType()) for name in parameters]
        return self.connection.execute(sa.text(statement).bindparams(*untyped), parameters).all()

    def setting(self, name: str, value: str) -> None:
        """Set a PostgreSQL setting until the innermost savepoint, or the transaction, is rolled back."""
        self.rows("SELECT set_config(:name, :value, true)", name=name, value=value)

    def attempt(self, where: str, purpose: str, check: Callable[[], object]) -> bool:
        """Run a check in a savepoint and within its time; one that cannot run is a finding too.

        Args:
            where: What is looked at.
            purpose: What for, in words that follow "could not".
            check: Reports what it finds.

        Returns:
            Whether the check ran to its end.

        Raises:
            DBAPIError: The connection broke.
        """
        left = min(self.check_limit.total_seconds(), self.deadline - time.monotonic())
        if left <= 0:
            self._timed_out(where, purpose)
            return False
        savepoint = self.connection.begin_nested()
        try:
            # It also bounds the wait for a lock. 0 would mean no limit.
            self.setting("statement_timeout", str(max(1, int(left * 1000))))
            check()
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            self._failed(where, purpose, sqlstate(error))
            return False
        finally:
            if savepoint.is_active:
                savepoint.rollback()
        return True

    def _timed_out(self, where: str, purpose: str) -> None:
        self.info(
            "check_timed_out",
            where,
            f"The time was over before the doctor could {purpose}: what it would have found is unknown.",
            "Run it when the database is less busy, or with larger limits: "
            "examine(..., check_limit=timedelta(seconds=60), time_limit=timedelta(minutes=10))",
        )

    def _failed(self, where: str, purpose: str, state: str | None) -> None:
        if state == _QUERY_CANCELED:
            self._timed_out(where, purpose)
        elif state == _INSUFFICIENT_PRIVILEGE:
            self.permission_denied(where, purpose)
        else:
            self.warning(
                "check_failed",
                where,
                f"PostgreSQL answered {state or 'an error'} when the doctor tried to {purpose}.",
                "Fix the other findings of this table, then run the doctor again.",
            )

    def rows_hidden(self, where: str) -> None:
        """Note that row-level security applies to the role."""
        self.warning(
            "rows_hidden",
            where,
            "Row-level security hides rows from this role: a purge that runs as it deletes nothing, and says "
            "that all is done.",
            "ALTER ROLE purger BYPASSRLS; -- the role of the purge, and run the doctor as it",
        )

    def permission_denied(self, where: str, purpose: str) -> None:
        """Note that the role may not do what a check needs."""
        self.warning(
            "permission_denied",
            where,
            f"The role may not read what the doctor needs to {purpose}.",
            f"GRANT SELECT ON {where} TO CURRENT_USER; -- as its owner, and name the role; "
            "GRANT USAGE ON SCHEMA too",
        )

"""The caller's transaction: what every database function checks before it sends anything.

Nothing here begins, commits or rolls back.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import Connection, CursorResult, Executable
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session

from baukit_sync.errors import InvalidArgumentError, PrimaryRequiredError, UnsafeTransactionError

OwnerId: TypeAlias = UUID | int | str
"""Whom a row is synced for, in the Python type of the owner column."""

OwnerT = TypeVar("OwnerT", bound=OwnerId)
"""One of the owner types: a ``dict[UUID, int]`` is no ``Mapping[OwnerId, int]``, since keys are invariant."""

SessionLike: TypeAlias = Session | scoped_session[Session] | Connection
"""What a product has open: an ORM session or a Core connection."""

READ_ONLY = "25006"
"""SQLSTATE: the transaction is read-only, or the server a standby."""

LOCK_NOT_AVAILABLE = "55P03"
"""SQLSTATE: ``lock_timeout`` ran out."""

_LOCK_TIMEOUT = sa.select(sa.func.set_config("lock_timeout", sa.bindparam("timeout"), sa.true()))
_SLEEP = sa.select(sa.func.pg_sleep(sa.bindparam("seconds", type_=sa.Double)))


def check_owner_id(owner_id: OwnerId) -> None:
    """Refuse what no owner column can hold.

    Raises:
        InvalidArgumentError: Not a UUID, a 64-bit int or a str that PostgreSQL can store.
    """
    match owner_id:
        case bool():
            valid = False
        case int():
            valid = -(2**63) <= owner_id < 2**63
        case str():
            valid = "\x00" not in owner_id and not any("\ud800" <= c <= "\udfff" for c in owner_id)
        case _:
            valid = isinstance(owner_id, UUID)
    if not valid:
        raise InvalidArgumentError("owner_id", "a UUID, a 64-bit int or a str without NUL")


def check_integer(argument: str, value: int, *, least: int, most: int) -> None:
    """Refuse anything but an integer in ``least..most``; a bool is not one.

    Raises:
        InvalidArgumentError: ``value`` is something else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidArgumentError(argument, f"an integer in {least}..{most}")


def check_aware(argument: str, value: datetime) -> None:
    """Refuse a naive datetime: two drivers would read it as two different instants.

    Raises:
        InvalidArgumentError: ``value`` is not a datetime with a UTC offset.
    """
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidArgumentError(argument, "a timezone-aware datetime")


def flush(session: SessionLike, *, always: bool = False) -> None:
    """Write out what the session has pending, as an ORM query would; a connection has nothing pending.

    Args:
        session: The session or connection.
        always: Do so also when the session's autoflush is off.

    Raises:
        UnsafeTransactionError: The connection is in AUTOCOMMIT; nothing was sent.
    """
    if not isinstance(session, Connection) and (always or session.autoflush):
        _safe_connection(session)
        session.flush()


def execute(
    session: SessionLike, statement: Executable, parameters: Mapping[str, Any] | None = None
) -> CursorResult[Any]:
    """Run a statement on the caller's own connection, inside the transaction it has open.

    Raises:
        UnsafeTransactionError: The connection is in AUTOCOMMIT; nothing was sent.
        PrimaryRequiredError: The transaction is read-only or runs on a standby; it is aborted.
    """
    connection = _safe_connection(session)
    try:
        return connection.execute(statement, parameters)
    except DBAPIError as error:
        if sqlstate(error) == READ_ONLY:
            raise PrimaryRequiredError from error
        raise


def _safe_connection(session: SessionLike) -> Connection:
    connection = session if isinstance(session, Connection) else session.connection()
    # The driver's own flag: it knows of AUTOCOMMIT however it was asked for, and reading it costs no I/O.
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise UnsafeTransactionError
    return connection


def set_lock_timeout(connection: Connection, seconds: float) -> None:
    """Let a transaction of the kit's own wait so long for each lock."""
    connection.execute(_LOCK_TIMEOUT, {"timeout": f"{max(1, int(seconds * 1000))}ms"})


def rest(connection: Connection, seconds: float) -> None:
    """Sleep in the server: here it would stop an event loop."""
    connection.execute(_SLEEP, {"seconds": seconds})


def sqlstate(error: DBAPIError) -> str | None:
    """Return the SQLSTATE of a database error, whichever driver raised it."""
    return getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)

"""Find the rows that a foreign key still needs, so that the others can go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from baukit_sync.purge.run import REFERENCED
from baukit_sync.transaction import sqlstate

R = TypeVar("R")


def remove_what_may_go(
    connection: Connection, rows: Sequence[R], remove: Callable[[Sequence[R]], None]
) -> tuple[list[R], list[R]]:
    """Remove rows by halves, each in a savepoint, down to the single row that cannot go.

    Args:
        connection: In a transaction, with immediate constraints.
        rows: The rows, locked.
        remove: Removes some of them, and raises their horizons.

    Returns:
        The rows that are gone, and those that a foreign key needs.
    """
    if not rows:
        return [], []
    try:
        with connection.begin_nested():
            remove(rows)
    except IntegrityError as error:
        if sqlstate(error) not in REFERENCED:
            raise
    else:
        return list(rows), []
    if len(rows) == 1:
        return [], list(rows)
    middle = len(rows) // 2
    gone, blocked = remove_what_may_go(connection, rows[:middle], remove)
    more_gone, more_blocked = remove_what_may_go(connection, rows[middle:], remove)
    return gone + more_gone, blocked + more_blocked

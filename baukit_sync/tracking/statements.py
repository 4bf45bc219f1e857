"""Statements that a tracked session refuses: they would write rows without a revision of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import ORMExecuteState
from sqlalchemy.sql.dml import UpdateBase
from sqlalchemy.sql.visitors import iterate

from baukit_sync.errors import HardDeleteError, TrackingError, UnstampedWriteError
from baukit_sync.tracking.shape import is_syncable, keys_that_drag, syncable_tables, unaliased

STAMPED_BY_HAND = "baukit_sync_stamped_by_hand"
"""The execution option with which a statement vouches for the revisions it writes."""

_COMMENT = re.compile(r"/\*.*?\*/|--[^\n]*", re.DOTALL)
_NAME = r'(?:"[^"]+"|\w+)'
_DML = re.compile(
    r"\b(?:insert\s+into|update|delete\s+from|merge\s+into|truncate(?:\s+table)?|copy)\b\s*(?:only\b)?[\s(]*"
    rf"(?P<tables>{_NAME}(?:[\s)]*[.,]\s*(?:only\b)?[\s(]*{_NAME})*)",
    re.IGNORECASE,
)


def refuse_unstamped(state: ORMExecuteState) -> None:
    """Refuse DML on a syncable table, also inside a CTE. Listens to ``do_orm_execute``.

    Raises:
        HardDeleteError: The statement deletes rows of a syncable table, or rows that take such with them.
        UnstampedWriteError: It inserts or updates rows of one, or is text that does.
    """
    if state.is_column_load or state.is_relationship_load:
        return
    for refusal in _refusals(state.statement):
        if not state.execution_options.get(STAMPED_BY_HAND):
            raise refusal


def _refusals(statement: Any) -> Iterator[TrackingError]:
    for part in iterate(statement):
        if isinstance(part, UpdateBase):
            table = unaliased(part.table)
            if is_syncable(table):
                yield HardDeleteError(table.name) if part.is_delete else UnstampedWriteError(table.name)
            elif part.is_delete:
                yield from (HardDeleteError(str(key.table.name)) for key in keys_that_drag(table))
        elif isinstance(part, sa.TextClause):
            yield from (UnstampedWriteError(name) for name in sorted(_written_by(part.text)))


def _written_by(text: str) -> set[str]:
    """Name the syncable tables that text writes to; it can only be compared by their names."""
    found = [match["tables"] for match in _DML.finditer(_COMMENT.sub(" ", text))]
    names = {name.strip('"').lower() for tables in found for name in re.findall(_NAME, tables)}
    return names & {table.rpartition(".")[2].lower() for table in syncable_tables()} if names else set()

"""What a backfill tells about itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """What ``on_batch`` is called with after each committed batch.

    Attributes:
        stamped: How many rows the batch gave a revision.
        total: How many the run has, so far.
    """

    stamped: int
    total: int


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """What a run did.

    Attributes:
        table: The table's name.
        stamped: How many rows got a revision.
        counters: How many owners got a counter.
        batches: How many transactions stamped something.
        orphaned_owners: How many owners cannot have a counter: their foreign key's row is missing.
        left: Rows that still have no revision, counted up to 10,000: of busy owners and orphans, without an
            owner, or added by code that does not stamp.
        started: When the run started, by this machine's clock, in UTC.
        finished: When it ended.
    """

    table: str
    stamped: int
    counters: int
    batches: int
    orphaned_owners: int
    left: int
    started: datetime
    finished: datetime

    @property
    def complete(self) -> bool:
        """Whether every row had a revision when the run ended."""
        return not self.left

    def to_dict(self) -> dict[str, Any]:
        """Return numbers, names and ISO 8601 text, fit for JSON; no owner or row."""
        return {
            "table": self.table,
            "stamped": self.stamped,
            "counters": self.counters,
            "batches": self.batches,
            "orphanedOwners": self.orphaned_owners,
            "left": self.left,
            "complete": self.complete,
            "started": self.started.isoformat(),
            "finished": self.finished.isoformat(),
        }

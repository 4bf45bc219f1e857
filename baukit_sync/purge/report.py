"""What a purge tells about itself: the report of a run, and the counts it is made from."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

PROBE_LIMIT = 10_000
"""How far the report counts what is left: one more owner, orphan or row is not worth the time."""


class PurgeUnfinished(StrEnum):
    """Why a run is not complete."""

    BUSY = "busy"
    """Owners were writing, pulling or being purged elsewhere."""

    ORPHANED = "orphaned"
    """Owners have no counter: their tombstones stay until ``ensure_owner``."""

    BLOCKED = "blocked"
    """A foreign key that the spec does not know of still needs a row."""

    CHILDREN = "children"
    """Rows still have children that are live, or not yet expired."""

    UNREACHABLE = "unreachable"
    """The statements for some owners failed with a lost connection or shard."""

    TIME_BUDGET = "time_budget"
    """The time was up."""

    MAX_ROWS = "max_rows"
    """As many rows were deleted as the run was allowed to."""

    LEFT = "left"
    """The selector of a caller-owned spec still finds rows."""


@dataclass(frozen=True, slots=True)
class PurgeProgress:
    """What ``on_batch`` is called with after each committed batch.

    Attributes:
        table: The spec's name.
        deleted: How many rows the batch deleted.
        total: How many the run has deleted so far, in all tables.
    """

    table: str
    deleted: int
    total: int


@dataclass(frozen=True, slots=True)
class PurgedTable:
    """What a run did to one table.

    Attributes:
        name: The spec's name.
        deleted: How many rows; in a dry run, how many would be.
        batches: How many batches deleted something.
        busy_owners: How many owners had expired tombstones that somebody's lock kept.
        orphaned_rows: Expired tombstones of owners without a counter, or without a parent.
        blocked_ids: Primary keys of tombstones that a foreign key still needs, each a tuple. For you, not for
            logs: ``to_dict`` and ``repr`` leave them out.
        expired_left: Expired tombstones that are still there, for whatever reason. Counted up to
            10,000 for each owner; ``None`` if the spec's SQL cannot tell, or nobody answered.
        oldest_left: The earliest ``deleted_at`` among those that were counted.
        unfinished: Why some are left; empty if none is.
    """

    name: str
    deleted: int
    batches: int = 0
    busy_owners: int = 0
    orphaned_rows: int = 0
    blocked_ids: tuple[tuple[Any, ...], ...] = field(default=(), repr=False)
    expired_left: int | None = 0
    oldest_left: datetime | None = None
    unfinished: tuple[PurgeUnfinished, ...] = ()

    @property
    def blocked_rows(self) -> int:
        """How many tombstones a foreign key still needs."""
        return len(self.blocked_ids)

    @property
    def complete(self) -> bool:
        """Whether nothing that is expired is left."""
        return not self.unfinished

    def to_dict(self) -> dict[str, Any]:
        """Return numbers, names and ISO 8601 text, fit for JSON; no owner or row."""
        return {
            "name": self.name,
            "deleted": self.deleted,
            "batches": self.batches,
            "busyOwners": self.busy_owners,
            "orphanedRows": self.orphaned_rows,
            "blockedRows": self.blocked_rows,
            "expiredLeft": self.expired_left,
            "oldestLeft": self.oldest_left.isoformat() if self.oldest_left else None,
            "complete": self.complete,
            "unfinished": [reason.value for reason in self.unfinished],
        }


@dataclass(frozen=True, slots=True)
class PurgeReport:
    """What a run did.

    Attributes:
        tables: One entry for each spec, in the order given.
        cutoff: Tombstones from before it were expired.
        started: When the run started, by this machine's clock, in UTC.
        finished: When it ended.
        dry_run: Nothing was deleted; the counts say what would have been.
    """

    tables: tuple[PurgedTable, ...]
    cutoff: datetime
    started: datetime
    finished: datetime
    dry_run: bool = False

    @property
    def deleted(self) -> int:
        """How many rows, of all tables."""
        return sum(table.deleted for table in self.tables)

    @property
    def complete(self) -> bool:
        """Whether nothing that is expired is left in any table."""
        return all(table.complete for table in self.tables)

    @property
    def unfinished(self) -> tuple[PurgeUnfinished, ...]:
        """Why the run is not complete; empty if it is."""
        return tuple(dict.fromkeys(reason for table in self.tables for reason in table.unfinished))

    def to_dict(self) -> dict[str, Any]:
        """Return numbers, names and ISO 8601 text, fit for JSON; no owner or row."""
        return {
            "cutoff": self.cutoff.isoformat(),
            "started": self.started.isoformat(),
            "finished": self.finished.isoformat(),
            "dryRun": self.dry_run,
            "deleted": self.deleted,
            "complete": self.complete,
            "unfinished": [reason.value for reason in self.unfinished],
            "tables": [table.to_dict() for table in self.tables],
        }


@dataclass(slots=True)
class Tally:
    """The counts of one table while it is purged.

    Attributes:
        name: The spec's name.
        deleted: Rows deleted so far.
        batches: Batches that deleted something.
        busy: Owners that kept rows.
        orphaned: Rows without a counter.
        blocked: Keys of rows that a foreign key needs, in the order found.
        left: Rows still there.
        oldest: The earliest ``deleted_at`` among them.
        reasons: Why.
    """

    name: str
    deleted: int = 0
    batches: int = 0
    busy: set[Hashable] = field(default_factory=set[Hashable])
    orphaned: int = 0
    blocked: dict[tuple[Any, ...], None] = field(default_factory=dict[tuple[Any, ...], None])
    left: int | None = 0
    oldest: datetime | None = None
    reasons: dict[PurgeUnfinished, None] = field(default_factory=dict[PurgeUnfinished, None])

    def found_left(self, rows: int, oldest: datetime | None) -> None:
        """Count rows that are still there."""
        if self.left is not None:
            self.left += rows
        if oldest is not None and (self.oldest is None or oldest < self.oldest):
            self.oldest = oldest

    def report(self) -> PurgedTable:
        """Freeze the counts."""
        return PurgedTable(
            name=self.name,
            deleted=self.deleted,
            batches=self.batches,
            busy_owners=len(self.busy),
            orphaned_rows=self.orphaned,
            blocked_ids=tuple(self.blocked),
            expired_left=self.left,
            oldest_left=self.oldest,
            unfinished=tuple(self.reasons),
        )

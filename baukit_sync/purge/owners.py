"""The drain of a table that the kit knows: owner by owner, and past whatever is stuck."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Executable
from sqlalchemy.exc import IntegrityError

from baukit_sync.errors import InvalidArgumentError
from baukit_sync.purge.batch import BEGINNING, packs
from baukit_sync.purge.batches import Batches, Isolated, Key, ManyOwners, OneOwner, Purged
from baukit_sync.purge.keys import names
from baukit_sync.purge.report import PROBE_LIMIT, PurgedTable, PurgeUnfinished, Tally
from baukit_sync.purge.run import REFERENCED, PurgeRun
from baukit_sync.purge.scans import SCAN_PAGE
from baukit_sync.purge.table import KnownTable
from baukit_sync.transaction import set_lock_timeout, sqlstate

_NO_BOUND = 2**62


class Found(NamedTuple):
    """A key that a scan found.

    Attributes:
        key: The values that lead to the owner.
        oldest: Its oldest tombstone's ``deleted_at``.
        expired: How many of its tombstones are expired, up to the scan's bound.
    """

    key: Key
    oldest: datetime
    expired: int


class Left(NamedTuple):
    """What a key still has.

    Attributes:
        key: The key.
        expired: How many expired tombstones, up to a bound.
        may_go: How many of them nothing that the spec knows of refers to.
        oldest: The earliest ``deleted_at`` among them.
    """

    key: Key
    expired: int
    may_go: int
    oldest: datetime


class OwnerDrain:
    """Purges one table, key by key."""

    def __init__(self, run: PurgeRun, name: str, known: KnownTable, owners_per_statement: int | None) -> None:
        """Prepare.

        Raises:
            InvalidArgumentError: The table cannot be purged one owner at a time.
        """
        self._run = run
        self._tally = Tally(name)
        self._width = len(known.shape.key)
        self._most = max(run.limit, PROBE_LIMIT)
        self._is_tree = known.shape.is_tree
        self._busy: dict[Key, Found] = {}
        self._batches: Batches
        if owners_per_statement != 1:
            self._batches = ManyOwners(run, known.statements, owners_per_statement)
        elif known.one_owner is not None:
            self._batches = OneOwner(run, known.one_owner)
        else:
            expected = "more than 1 where the owner, or a part of a row, is in another table"
            raise InvalidArgumentError("owners_per_statement", expected)
        self._isolated = Isolated(run, known.shape, self._batches)

    def drain(self, busy_wait: timedelta | None) -> PurgedTable:
        """Purge the table, then once more what was busy."""
        for page in self._pages():
            packed = packs(page, self._run.limit, self._batches.most_keys)
            self._settle([found for pack in packed for found in self._purge(pack)])
        if busy_wait is not None and self._run.over() is None:
            self._purge_busy(busy_wait)
        for left in self._look(list(self._busy.values())):
            self._record(left)
        self._orphaned(self._adrift())
        self._tally.blocked.update(dict.fromkeys(self._isolated.blocked))
        if self._tally.blocked:
            self._tally.reasons[PurgeUnfinished.BLOCKED] = None
        return self._tally.report()

    def count(self) -> PurgedTable:
        """Count what a run would delete."""
        for page in self._pages():
            owned = self._owners_of([found.key for found in page])
            self._orphaned([found for found in page if found.key not in owned])
            for left in self._look([found for found in page if found.key in owned], most=_NO_BOUND):
                self._tally.deleted += left.may_go
                self._record(left._replace(expired=left.expired - left.may_go, may_go=0))
        self._orphaned(self._adrift())
        return self._tally.report()

    def _pages(self) -> Iterator[list[Found]]:
        """Scan key by key; a run that is over scans one page more, to say what is left."""
        statement, after = self._batches.statements.first_scan, dict[str, Any]()
        while True:
            over = self._run.over()
            bounds = {"cutoff": self._run.cutoff, "most": self._most, **after}
            read = self._ask(statement, bounds)
            if read is None:
                return
            page = [Found(tuple(row[: self._width]), row.oldest, row.expired) for row in read]
            yield [found for found in page if found.expired]
            if len(page) < SCAN_PAGE:
                return
            if over is not None:
                self._tally.reasons[over] = None
                return
            statement = self._batches.statements.next_scan
            after = dict(zip(names("after", page[-1].key), page[-1].key, strict=True))

    def _purge(self, pack: Sequence[Found]) -> list[Found]:
        """Purge some keys, batch by batch; return those that seem to have something left."""
        keys = [found.key for found in pack]
        left = {found.key: found.expired for found in pack}
        is_capped = any(found.expired >= self._most for found in pack)
        seen = set[Key]()
        since = BEGINNING
        while self._run.over() is None:
            room, blocked = self._run.room, len(self._isolated.blocked)
            purged = self._batch(keys, since, room)
            if isinstance(purged, PurgeUnfinished):
                return self._failed(pack, purged)
            deleted = sum(each.deleted for each in purged)
            for each in purged:
                seen.add(each.key)
                left[each.key] -= each.deleted
            self._run.count(self._tally, deleted)
            is_more = is_capped or any(left[key] > 0 for key in seen)
            # A row that cannot go takes the place of one that could.
            examined = deleted + len(self._isolated.blocked) - blocked
            if not (examined and is_more and (examined == room or self._is_tree)):
                break
            if len(keys) == 1 and not self._is_tree:
                # Past the entries of what is gone, which a vacuum has yet to take from the index.
                since = purged[0].youngest or since
        remaining = [
            found if found.expired >= self._most else found._replace(expired=left[found.key])
            for found in pack
            if left[found.key] > 0 or found.expired >= self._most
        ]
        if (over := self._run.over()) is not None:
            self._leave([found for found in remaining if found.key not in seen], over)
            begun = self._look([found for found in remaining if found.key in seen])
            self._leave([Found(left.key, left.oldest, left.expired) for left in begun], over)
            return []
        missed = [found.key for found in remaining if found.key not in seen]
        owned = self._owners_of(missed)
        orphans = [found for found in remaining if found.key in missed and found.key not in owned]
        self._orphaned(orphans)
        return [found for found in remaining if found not in orphans]

    def _batch(self, keys: Sequence[Key], since: datetime, room: int) -> list[Purged] | PurgeUnfinished:
        """Commit a batch; if a foreign key stands in its way, one without the rows that it needs."""
        isolated = functools.partial(self._isolated.purge, keys, since, room)
        try:
            if not set(keys).isdisjoint(self._isolated.blocked.values()):
                return self._run.attempt(isolated)
            return self._run.attempt(functools.partial(self._batches.purge, keys, since, room))
        except IntegrityError as error:
            if sqlstate(error) not in REFERENCED:
                raise
            return self._run.attempt(isolated)

    def _failed(self, pack: Sequence[Found], why: PurgeUnfinished) -> list[Found]:
        """Leave a pack whose batch failed twice; one owner out of reach must not cost the others."""
        if why is not PurgeUnfinished.UNREACHABLE:
            return list(pack)
        if len(pack) > 1:
            return [found for each in pack for found in self._purge([each])]
        self._leave(pack, why)
        return []

    def _purge_busy(self, busy_wait: timedelta) -> None:
        """Purge what was busy once more: first without waiting, then, as long as allowed, with."""
        deadline = time.monotonic() + busy_wait.total_seconds()
        busy, self._busy = list(self._busy.values()), {}
        packed = packs(busy, self._run.limit, self._batches.most_keys)
        self._settle([found for pack in packed for found in self._purge(pack)])
        for found in list(self._busy.values()):
            seconds = min(deadline - time.monotonic(), self._run.seconds_left())
            if seconds <= 0 or self._run.over() is not None:
                return
            waited = functools.partial(self._wait_for, found.key, seconds)
            try:
                purged = self._run.attempt(waited, times=1)
            except IntegrityError as error:
                if sqlstate(error) not in REFERENCED:
                    raise
                purged = []
            if not isinstance(purged, PurgeUnfinished):
                self._run.count(self._tally, sum(each.deleted for each in purged))
                del self._busy[found.key]
                self._settle(self._purge([found._replace(expired=self._most)]))

    def _wait_for(self, key: Key, seconds: float) -> list[Purged]:
        """Purge a batch of one key, and wait so long for its owner."""
        with self._run.transaction() as connection:
            set_lock_timeout(connection, seconds)
            connection.execute(self._batches.statements.wait, self._batches.keys([key]))
            return self._batches.purge_on(connection, [key], BEGINNING, self._run.room)

    def _settle(self, remaining: Sequence[Found]) -> None:
        """Tell the keys that are busy from those that wait for children, or on a foreign key."""
        for left in self._look(remaining):
            if left.may_go > self._blocked(left.key) and len(self._busy) < PROBE_LIMIT:
                self._busy[left.key] = Found(left.key, left.oldest, left.may_go)
            else:
                self._record(left)

    def _ask(self, statement: Executable, parameters: dict[str, Any]) -> Sequence[Any] | None:
        """Run a statement that locks nothing; without an answer the report has no count."""
        rows = self._run.attempt(functools.partial(self._run.execute, statement, parameters))
        if isinstance(rows, PurgeUnfinished):
            self._tally.reasons[rows], self._tally.left = None, None
            return None
        return rows

    def _look(self, remaining: Sequence[Found], most: int | None = None) -> Iterator[Left]:
        """Count what some keys still have, as many at once as stay within the bound."""
        bounds = {"cutoff": self._run.cutoff, "most": most or self._most}
        for pack in packs(remaining, most or self._most, self._batches.most_keys):
            named = self._batches.keys([found.key for found in pack])
            for row in self._ask(self._batches.statements.left, {**bounds, **named}) or ():
                yield Left(tuple(row[: self._width]), row.expired, row.may_go, row.oldest)

    def _owners_of(self, keys: Sequence[Key]) -> dict[Key, Any]:
        """Find the owners of some keys; an owner without a counter is left out."""
        step = self._batches.most_keys or SCAN_PAGE
        owners: dict[Key, Any] = {}
        for start in range(0, len(keys), step):
            named = self._batches.keys(keys[start : start + step])
            rows = self._ask(self._batches.statements.owners, named)
            if rows is None:
                # Nobody may be called an orphan for want of an answer.
                owners.update(dict.fromkeys(keys[start : start + step]))
            else:
                owners.update((tuple(row[: self._width]), row.owner_id) for row in rows)
        return owners

    def _record(self, left: Left) -> None:
        """Report what a key has left, and why."""
        blocked = self._blocked(left.key)
        self._tally.found_left(left.expired, left.oldest if left.expired else None)
        if left.expired > left.may_go:
            self._tally.reasons[PurgeUnfinished.CHILDREN] = None
        if left.may_go > blocked:
            self._tally.reasons[PurgeUnfinished.BUSY] = None
            self._tally.busy.update(self._owners_of([left.key]).values())

    def _blocked(self, key: Key) -> int:
        return sum(each == key for each in self._isolated.blocked.values())

    def _adrift(self) -> list[Found]:
        """Find what belongs to nobody, since its key lacks a value."""
        statement = self._batches.statements.adrift
        bounds = {"cutoff": self._run.cutoff, "most": self._most}
        rows = (self._ask(statement, bounds) or ()) if statement is not None else ()
        return [Found((), row.oldest, row.expired) for row in rows if row.expired]

    def _orphaned(self, orphans: Sequence[Found]) -> None:
        self._tally.orphaned += sum(found.expired for found in orphans)
        self._leave(orphans, PurgeUnfinished.ORPHANED)

    def _leave(self, remaining: Sequence[Found], why: PurgeUnfinished) -> None:
        for found in remaining:
            self._tally.reasons[why] = None
            self._tally.found_left(found.expired, found.oldest)

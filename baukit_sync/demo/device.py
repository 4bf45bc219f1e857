"""A device of the notes product: it writes offline, and syncs when it can.

It keeps what the server said apart from what it has not pushed yet. The server decides every conflict, so the
device has no merge rule: what it shows is the one laid over the other.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID, uuid4

from baukit_sync import HybridLogicalClock
from baukit_sync.demo.api import Answer, Api
from baukit_sync.demo.messages import Change, Page, Pull, PulledChange, Push, Pushed, TableName
from baukit_sync.horizon import FULL_RESYNC_CURSOR, RESYNC_REQUIRED_STATUS
from baukit_sync.wire import ResyncRequired


class ProtocolError(Exception):
    """The server's answer cannot be right; nothing of it was applied."""


class Position(NamedTuple):
    """How far a device has come. Both numbers are from the last page, and go out with the next request."""

    cursor: int
    rebuild: int | None = None


class Device:
    """One client of one owner. It does one thing after the other: it never pulls while it pushes.

    Attributes:
        confirmed: The owner's live rows, as the server last told them.
        outbox: The newest pending change of each row, in the order they were made.
        clock: The device's hybrid logical clock; a real device saves its ``snapshot()`` with its rows.
    """

    def __init__(
        self, name: str, owner_id: UUID, api: Api, physical_clock: Callable[[], int], *, page: int = 500
    ) -> None:
        self.name = name
        self.owner_id = owner_id
        self.confirmed: dict[UUID, PulledChange] = {}
        self.outbox: dict[UUID, Change] = {}
        self.clock = HybridLogicalClock.open(name, physical_clock)
        self._api = api
        self._page = page
        self._position = Position(FULL_RESYNC_CURSOR)

    @property
    def cursor(self) -> int:
        """The last revision that was applied."""
        return self._position.cursor

    @property
    def rows(self) -> dict[UUID, Change]:
        """What the user sees: the server's rows under the pending changes."""
        return {id_: row for id_, row in {**self.confirmed, **self.outbox}.items() if not row.deleted}

    def add(self, table: TableName, title: str, parent_id: UUID | None = None) -> UUID:
        """Write a new row, offline, and return the id that it will have everywhere."""
        change = Change(table=table, id=uuid4(), parent_id=parent_id, title=title, stamp=self.clock.now())
        self.outbox[change.id] = change
        return change.id

    def edit(self, row_id: UUID, title: str) -> None:
        """Change a row's title, offline."""
        self._write(row_id, title=title)

    def delete(self, row_id: UUID) -> None:
        """Delete a row, offline. The server deletes what is below it."""
        self._write(row_id, deleted=True)

    def _write(self, row_id: UUID, **update: str | bool) -> None:
        row = self.outbox.pop(row_id, None) or self.confirmed[row_id]
        fields = {**row.model_dump(exclude={"revision"}), **update, "stamp": self.clock.now()}
        self.outbox[row_id] = Change.model_validate(fields)

    def push_request(self) -> Push:
        """Return what the next push sends: all pending changes, on top of the cursor."""
        return Push(base_cursor=self.cursor, changes=list(self.outbox.values()))

    def push(self) -> Pushed | ResyncRequired:
        """Send the pending changes; refused, they stay pending."""
        request = self.push_request()
        answer = self._api.push(self.owner_id, request.model_dump_json())
        if resync := _resync(answer):
            return resync
        pushed = Pushed.model_validate_json(_body(answer))
        for change in request.changes:
            if revision := pushed.applied.get(change.id):
                _confirm(PulledChange(**change.model_dump(), revision=revision), self.confirmed)
            # A change that was made while the push was under way has taken the place, and waits.
            if self.outbox.get(change.id) == change:
                del self.outbox[change.id]
        return pushed

    def pull(self) -> list[Page] | ResyncRequired:
        """Get everything above the cursor, page by page, and apply each page."""
        pages: list[Page] = []
        while not pages or pages[-1].has_more:
            through = pages[-1].through if pages else None
            page = self._ask(self._position, through)
            if isinstance(page, ResyncRequired):
                return page
            self.apply(page, through)
            pages.append(page)
        return pages

    def apply(self, page: Page, through: int | None = None) -> None:
        """Take over a page and move the cursor; on disk that is one transaction.

        Args:
            page: The page.
            through: Where the pull ends, if the page is not its first.
        """
        self._position = self._receive(page, self._position, through, self.confirmed)

    def rebuild(self) -> list[UUID]:
        """Replace everything known from the server by what it has now; keep what is pending.

        Returns:
            The pending edits that were given up: their rows were deleted, and the tombstones are gone.
        """
        position, through, has_more = Position(FULL_RESYNC_CURSOR), None, True
        rows: dict[UUID, PulledChange] = {}
        seen: set[UUID] = set()
        while has_more:
            page = self._ask(position, through)
            if isinstance(page, ResyncRequired):
                raise ProtocolError("a rebuild is served to its end")
            position = self._receive(page, position, through, rows)
            seen.update(change.id for change in page.changes)
            through, has_more = page.through, page.has_more
        given_up = [id_ for id_ in self.outbox if id_ in self.confirmed and id_ not in seen]
        for id_ in given_up:
            del self.outbox[id_]
        self.confirmed, self._position = rows, position
        return given_up

    def sync(self) -> None:
        """Push and pull; when the server says so, rebuild once and do it again."""
        for _ in range(2):
            pushed = self.push() if self.outbox else None
            pulled = self.pull()
            if not isinstance(pushed, ResyncRequired) and not isinstance(pulled, ResyncRequired):
                return
            self.rebuild()
        raise ProtocolError("the server asks for a rebuild right after one")

    def _ask(self, position: Position, through: int | None) -> Page | ResyncRequired:
        request = Pull(cursor=position.cursor, rebuild=position.rebuild, through=through, limit=self._page)
        answer = self._api.pull(self.owner_id, request)
        return _resync(answer) or Page.model_validate_json(_body(answer))

    def _receive(
        self, page: Page, position: Position, through: int | None, rows: dict[UUID, PulledChange]
    ) -> Position:
        _check(page, position.cursor, through)
        # Merging the whole page at once takes one of the millisecond's 1,000 counters, not one for each row.
        self.clock.observe_many(change.stamp for change in page.changes)
        for change in page.changes:
            _confirm(change, rows)
        return Position(page.next_cursor, page.rebuild)


def _confirm(change: PulledChange, rows: dict[UUID, PulledChange]) -> None:
    if change.deleted:
        rows.pop(change.id, None)
    else:
        rows[change.id] = change


def _resync(answer: Answer) -> ResyncRequired | None:
    if answer.status != RESYNC_REQUIRED_STATUS:
        return None
    return ResyncRequired.model_validate_json(answer.body)


def _body(answer: Answer) -> str:
    if answer.status != 200:
        raise ProtocolError(f"the server answered {answer.status}: {answer.body}")
    return answer.body


def _check(page: Page, cursor: int, through: int | None) -> None:
    """Refuse a page that could make the device skip a revision."""
    revisions = [cursor, *(change.revision for change in page.changes)]
    if any(a >= b for a, b in pairwise(revisions)):
        raise ProtocolError("a page must rise from the cursor, one revision at a time")
    if not revisions[-1] <= page.next_cursor <= page.through or page.through != (through or page.through):
        raise ProtocolError("a page must stay within the window that its pull began with")
    if page.has_more and page.next_cursor <= cursor:
        raise ProtocolError("a page that announces another must move the cursor")

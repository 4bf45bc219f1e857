"""The public API as type checkers see it: checked by mypy and pyright, never run.

A line that ends with ``# type: ignore`` must be an error: mypy complains of an ignore that is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, assert_type
from uuid import UUID

import sqlalchemy as sa
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, Session, mapped_column, scoped_session
from sqlalchemy.orm import sessionmaker as blocking_sessionmaker

import baukit_sync as sync
from baukit_sync import SyncColumns, SyncDataclassColumns, TombstoneTable, aio
from baukit_sync.wire import ClockState, Cursor, PullResponse, ResyncRequired, Revision, error_response


class Base(DeclarativeBase):
    """A product's base."""


class Note(SyncColumns, Base):
    """A product's model."""

    __tablename__ = "notes"
    title: Mapped[str]


class DataclassBase(MappedAsDataclass, DeclarativeBase):
    """A base whose classes are dataclasses."""


class Card(SyncDataclassColumns, DataclassBase, kw_only=True):
    """A model that is a dataclass."""

    __tablename__ = "cards"
    title: Mapped[str] = mapped_column(default="")


class NoteChange(BaseModel):
    """A product's change."""

    revision: Revision
    cursor: Cursor


NOTES = TombstoneTable("notes", "SELECT ...", sa.delete(Note))
TombstoneTable("notes", sa.select(Note.id, Note.owner_id, Note.revision), "DELETE ...")
TombstoneTable("notes", b"SELECT ...", "DELETE ...")  # type: ignore[arg-type]
CUTOFF = datetime(2026, 1, 1, tzinfo=UTC)


def models(note: Note, owner: UUID) -> None:
    """The mixins' attributes have the types of their columns."""
    assert_type(note.id, UUID)
    assert_type(note.owner_id, UUID)
    assert_type(note.updated_at, datetime)
    assert_type(note.deleted_at, datetime | None)
    assert_type(note.revision, int)
    card = Card(owner_id=owner)
    assert_type(Card(owner_id=owner, id=owner, revision=1, deleted_at=None, title="milk"), Card)
    assert_type(card.id, UUID)
    assert_type(card.deleted_at, datetime | None)
    Card()  # type: ignore[call-arg]


def revisions(session: Session, owner: UUID) -> None:
    """Counters."""
    assert_type(sync.next_revision(session, owner), int)
    assert_type(sync.next_revisions(session, owner, 3), range)
    assert_type(sync.current_revision(session, owner), int | None)
    assert_type(sync.current_revision_for_update(session, owner), int | None)
    sync.ensure_owner(session, owner)
    sync.next_revision(session, b"owner")  # type: ignore[arg-type]
    sync.next_revision(session, None)  # type: ignore[arg-type]
    sync.next_revisions(session, owner, "3")  # type: ignore[arg-type]
    sync.next_revision("session", owner)  # type: ignore[arg-type]


def several_owners(
    session: Session, by_uuid: dict[UUID, int], by_number: Mapping[int, int], by_name: dict[str, int]
) -> None:
    """A mapping's keys come back in the type that they went in."""
    assert_type(sync.allocate_revisions(session, by_uuid), dict[UUID, range])
    assert_type(sync.allocate_revisions(session, by_number), dict[int, range])
    assert_type(sync.allocate_revisions(session, by_name), dict[str, range])
    answers = sync.guard_pull_cursors(session, by_uuid, rebuilds=by_uuid)
    assert_type(answers, dict[UUID, sync.PullWindow | sync.ResyncRequiredError | sync.CursorAheadError])
    sync.allocate_revisions(session, {b"owner": 1})  # type: ignore[type-var]


def owner_ids(session: Session, number: int, name: str) -> None:
    """UUIDs are not the only owners."""
    assert_type(sync.next_revision(session, number), int)
    assert_type(sync.next_revision(session, name), int)


def handles(
    session: Session,
    scoped: scoped_session[Session],
    connection: sa.Connection,
    engine: sa.Engine,
    owner: UUID,
) -> None:
    """Whatever a product has open, and nothing that is not open."""
    sync.next_revision(scoped, owner)
    sync.next_revision(connection, owner)
    sync.next_revision(engine, owner)  # type: ignore[arg-type]
    assert_type(sync.purge_tombstones(engine, [NOTES], CUTOFF, 100), sync.PurgeReport)
    sync.purge_tombstones(session, [NOTES], CUTOFF, 100)  # type: ignore[arg-type]


def pulls(session: Session, owner: UUID, cursor: int) -> None:
    """Guards, windows and pages."""
    window = sync.guard_pull_cursor(session, owner, cursor, allow_ahead=True)
    assert_type(window, sync.PullWindow)
    assert_type((window.after, window.through), tuple[int, int])
    sync.guard_push_cursor(session, owner, cursor)
    assert_type(sync.purge_horizon(session, owner), int | None)
    assert_type(sync.fence_restore(session, gap=1_000), int)
    assert_type(sync.parse_cursor("7"), int)
    sync.check_pull_cursor(cursor, None)
    page = sync.pull_page(session, window, [Note], limit=500)
    assert_type(page, sync.PullPage)
    assert_type(page.next_cursor, int)
    assert_type(page.changes, tuple[sync.Change, ...])
    sync.guard_pull_cursor(session, owner, "7")  # type: ignore[arg-type]
    sync.guard_pull_cursor(session, owner, cursor, True)  # type: ignore[call-arg]
    window.through = 8  # type: ignore[misc]


def purges(session: Session, engine: sa.Engine) -> None:
    """Batches and reports."""
    batch = sync.purge_tombstone_batch(session, NOTES, CUTOFF, 100)
    assert_type((batch.selected, batch.deleted), tuple[int, int])
    report = sync.purge_tombstones(engine, (NOTES,), CUTOFF, 100)
    assert_type([(table.name, table.deleted) for table in report.tables], list[tuple[str, int]])
    sync.purge_tombstone_batch(session, NOTES, "yesterday", 100)  # type: ignore[arg-type]
    known = sync.TombstoneTable.for_model(Note, owner_via=Note.owner_id, children=[Note.__table__.c.owner_id])
    assert_type(known, sync.TombstoneTable)
    sync.TombstoneTable.for_model("notes")  # type: ignore[arg-type]
    bounded = sync.purge_tombstones(
        engine, [known], CUTOFF, 100, busy_wait=timedelta(seconds=1), max_rows=5, on_batch=print
    )
    assert_type(bounded.unfinished, tuple[sync.PurgeUnfinished, ...])
    assert_type(bounded.tables[0].expired_left, int | None)
    sync.purge_tombstones(engine, [known], CUTOFF, 100, time_budget=5)  # type: ignore[arg-type]


def backfills(engine: sa.Engine) -> None:
    """Rows that are there already."""
    report = sync.backfill_revisions(engine, Note, limit=100)
    assert_type(report, sync.BackfillReport)
    assert_type(report.complete, bool)
    sync.backfill_revisions(engine, "notes")  # type: ignore[arg-type]


def writes(session: Session, connection: sa.Connection) -> None:
    """Set-based writes."""
    assert_type(sync.update_where(session, Note, {"title": "x"}, Note.title == "y"), int)
    assert_type(sync.update_where(session, Note, {Note.title: "x"}, Note.title == "y"), int)
    assert_type(sync.soft_delete_where(connection, Note, Note.title == "y"), int)
    assert_type(sync.undelete_where(session, Note, sa.true()), int)


class ProductSession(Session):
    """A session class of a product's own."""


def retries(engine: sa.Engine, sessions: blocking_sessionmaker[ProductSession], owner: UUID) -> None:
    """The unit of work gets what the factory makes; its result comes back."""

    def on_session(session: ProductSession) -> str:
        return str(sync.next_revision(session, owner))

    def on_connection(connection: sa.Connection) -> int:
        return sync.next_revision(connection, owner)

    assert_type(sync.retry_transaction(sessions, on_session, attempts=3), str)
    assert_type(sync.retry_transaction(engine, on_connection, first_delay=timedelta(seconds=1)), int)


async def async_twins(
    session: AsyncSession,
    scoped: async_scoped_session[AsyncSession],
    connection: AsyncConnection,
    engine: AsyncEngine,
    sessions: async_sessionmaker[AsyncSession],
    owner: UUID,
    by_uuid: dict[UUID, int],
) -> None:
    """The same arguments and results, awaited."""
    assert_type(await aio.next_revision(session, owner), int)
    assert_type(await aio.next_revision(scoped, owner), int)
    assert_type(await aio.next_revision(connection, owner), int)
    assert_type(await aio.next_revisions(session, owner, count=3), range)
    assert_type(await aio.allocate_revisions(session, by_uuid), dict[UUID, range])
    await aio.ensure_owner(session, owner)
    assert_type(await aio.current_revision(session, owner), int | None)
    assert_type(await aio.current_revision_for_update(session, owner), int | None)
    window = await aio.guard_pull_cursor(session, owner, 0, allow_ahead=False)
    assert_type(window, sync.PullWindow)
    assert_type(await aio.pull_page(session, window, [Note], limit=10), sync.PullPage)
    await aio.guard_push_cursor(session, owner, 0)
    assert_type(await aio.purge_horizon(session, owner), int | None)
    assert_type(await aio.fence_restore(session, gap=1), int)
    assert_type(await aio.purge_tombstone_batch(session, NOTES, CUTOFF, 10), sync.PurgeBatch)
    assert_type(await aio.purge_tombstones(engine, [NOTES], CUTOFF, limit=10), sync.PurgeReport)
    assert_type(await aio.update_where(session, Note, {"title": "x"}, Note.title == "y"), int)
    assert_type(await aio.retry_transaction(sessions, lambda opened: aio.next_revision(opened, owner)), int)
    await aio.next_revision(session, b"owner")  # type: ignore[arg-type]
    await aio.next_revision(engine, owner)  # type: ignore[arg-type]
    await aio.guard_pull_cursor(session, owner, 0, no_such=True)  # type: ignore[call-arg]


async def sessions_do_not_mix(blocking: Session, session: AsyncSession, owner: UUID) -> None:
    """A blocking session in an async call, and the other way round, are found before anything runs."""
    await aio.next_revision(blocking, owner)  # type: ignore[arg-type]
    sync.next_revision(session, owner)  # type: ignore[arg-type]


def clocks(state: sync.HybridLogicalClockState | None) -> None:
    """The clock and its wire form."""
    clock = sync.HybridLogicalClock.open("device", lambda: 0, state)
    assert_type(clock, sync.HybridLogicalClock)
    assert_type(clock.now(), int)
    assert_type(clock.observe_many([1, 2]), int)
    assert_type(ClockState.of(clock.snapshot()).to_state(), sync.HybridLogicalClockState)


def slots(now: datetime) -> None:
    """Slots."""
    slot = sync.FixedUtcInterval(timedelta(hours=1)).slot_at(now)
    assert_type(slot, sync.FixedUtcSlot)
    assert_type((slot.starts_at, slot.identifier), tuple[datetime, str])
    sync.FixedUtcInterval(3600)  # type: ignore[arg-type]


def wire(change: NoteChange, error: sync.SyncError) -> None:
    """Bodies and responses."""
    response = PullResponse[NoteChange](changes=[change], next_cursor=1, has_more=False)
    assert_type(response.changes, list[NoteChange])
    assert_type(response.next_cursor, int)
    assert_type(ResyncRequired.at(7).code, Literal["resync_required"])
    assert_type(error_response(error), tuple[int, dict[str, Any]])


def errors(error: sync.PullCursorError) -> int:
    """A match on the error finds its facts with their types."""
    match error:
        case sync.ResyncRequiredError(horizon_revision=horizon):
            return assert_type(horizon, int)
        case sync.CursorAheadError(current_revision=current):
            return assert_type(current, int)
        case _:
            assert_type(error.code, str)
            return 0


def tables(metadata: sa.MetaData) -> None:
    """The kit's tables in a product's metadata."""
    tables = sync.add_sync_tables(metadata, owner="users.id", owner_type=sa.BigInteger())
    assert_type(tables.revisions, sa.Table)
    columns: Sequence[sa.Column[Any]] = sync.sync_columns(sa.Text())
    sa.Table("notes", metadata, *columns, *sync.sync_indexes("notes"))

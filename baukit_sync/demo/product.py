"""The server of the notes product: a push, a pull and a purge.

This is what a product writes itself; each function works in a transaction that its caller has opened.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from baukit_sync import (
    FixedUtcSlot,
    HybridLogicalClock,
    PullWindow,
    PurgeReport,
    ensure_owner,
    guard_pull_cursor,
    guard_push_cursor,
    next_revisions,
    pull_page,
    purge_tombstones,
)
from baukit_sync.demo.messages import Change, Page, Pull, PulledChange, Push, Pushed
from baukit_sync.demo.models import SOURCES, TABLES, TOMBSTONES, Attachment, Item, Row, TodoList, User

RETENTION = timedelta(days=30)
"""How long a device may stay away without having to rebuild."""

MAX_DRIFT = timedelta(minutes=10)
"""How far ahead a device's clock may be; without a bound, one clock set to 2099 wins every conflict."""


def sign_up(session: Session) -> UUID:
    """Create a user, and the counter that makes the user an owner of rows."""
    user = User(id=uuid4())
    session.add(user)
    ensure_owner(session, user.id)
    return user.id


def push(session: Session, owner_id: UUID, request: Push, *, now: datetime) -> Pushed:
    """Apply the changes that win, each under a revision of its own.

    A push that is sent again, because its answer was lost, finds nothing left to do.

    Raises:
        ClockDriftError: A stamp is further ahead than :data:`MAX_DRIFT`.
        ResyncRequiredError: The device has missed a purge. It must rebuild before it pushes.
    """
    server = HybridLogicalClock.open("server", lambda: _milliseconds(now), max_drift_ms=_MAX_DRIFT_MS)
    server.observe_many(change.stamp for change in request.changes)
    guard_push_cursor(session, owner_id, request.base_cursor)
    # The guard keeps this owner's other writers out until the commit: what is read from here on stays true.
    with session.no_autoflush:
        written = _apply(session, owner_id, request.changes, now)
    if written:
        revisions = next_revisions(session, owner_id, len(written))
        for row, revision in zip(written.values(), revisions, strict=True):
            row.revision = revision
        session.add_all(written.values())
    return Pushed(
        applied={row.id: row.revision for row in written.values()},
        ignored=[change.id for change in request.changes if change.id not in written],
    )


def _apply(session: Session, owner_id: UUID, changes: Sequence[Change], now: datetime) -> dict[UUID, Row]:
    """Write what wins, parents first. Below a deleted row everything is deleted, also what comes later."""
    written: dict[UUID, Row] = {}
    parents: dict[UUID, Row] = {}
    for model in TABLES:
        deleted = [id_ for id_, row in parents.items() if id_ in written and row.deleted_at]
        rows = _mentioned(session, owner_id, model, changes, below=deleted)
        for change in changes:
            if change.table == model.__tablename__ and _wins(change, rows.get(change.id), parents):
                row = rows.get(change.id) or _new(model, change.id, owner_id)
                rows[row.id] = written[row.id] = _write(row, change, now)
        for row in rows.values():
            parent = parents.get(row.parent_id) if row.parent_id else None
            if parent and parent.deleted_at and not row.deleted_at:
                row.deleted_at = row.updated_at = now
                row.stamp = max(row.stamp, parent.stamp)
                written[row.id] = row
        parents = rows
    return written


def _mentioned(
    session: Session, owner_id: UUID, model: type[Row], changes: Sequence[Change], *, below: Collection[UUID]
) -> dict[UUID, Row]:
    """Load the owner's rows that a push mentions, and the children of the rows that it has deleted."""
    ids = {id_ for change in changes for id_ in (change.id, change.parent_id) if id_}
    wanted: sa.ColumnElement[bool] = model.id.in_(ids)
    if model.parent_id is not None and below:
        wanted |= model.parent_id.in_(below)
    return {row.id: row for row in session.scalars(_owned(model, owner_id).where(wanted))}


def _owned(model: type[Row], owner_id: Any) -> sa.Select[Any]:
    """Select the owner's rows of a table; an attachment finds its owner through its item."""
    if issubclass(model, Attachment):
        return sa.select(model).join(Item, Item.id == model.parent_id).where(Item.owner_id == owner_id)
    return sa.select(model).where(model.owner_id == owner_id)


def _wins(change: Change, row: Row | None, parents: dict[UUID, Row]) -> bool:
    """Decide a conflict: the greater stamp wins; at the same stamp a delete does.

    Below a row that was purged, or that is another owner's, nothing is written.
    """
    if change.parent_id and change.parent_id not in parents:
        return False
    if row is None:
        return not change.deleted
    return change.stamp > row.stamp or (change.stamp == row.stamp and change.deleted and not row.deleted_at)


def _new(model: type[Row], row_id: UUID, owner_id: UUID) -> Row:
    return model(id=row_id) if issubclass(model, Attachment) else model(id=row_id, owner_id=owner_id)


def _write(row: Row, change: Change, now: datetime) -> Row:
    """Copy a change into its row. The server's clock says when it was deleted: the purge goes by that."""
    row.title, row.stamp, row.updated_at = change.title, change.stamp, now
    row.deleted_at = now if change.deleted else None
    if not isinstance(row, TodoList) and change.parent_id:
        row.parent_id = change.parent_id
    return row


def pull(session: Session, owner_id: UUID, request: Pull) -> Page:
    """Answer one page of a pull.

    Raises:
        ResyncRequiredError: The device has missed a purge. It must rebuild from cursor 0.
    """
    window = guard_pull_cursor(
        session, owner_id, request.cursor, through=request.through, rebuild=request.rebuild
    )
    return read_page(session, window, request.limit)


def read_page(session: Session, window: PullWindow, limit: int) -> Page:
    """Read the first ``limit`` changes of a window: the rows of all tables, in revision order."""
    page = pull_page(session, window, SOURCES, limit=limit)
    return Page(
        changes=[
            PulledChange(
                table=change.row.__tablename__,
                id=change.row.id,
                parent_id=change.row.parent_id,
                title=change.row.title,
                stamp=change.row.stamp,
                deleted=change.deleted,
                revision=change.revision,
            )
            for change in page.changes
        ],
        next_cursor=page.next_cursor,
        has_more=page.has_more,
        rebuild=page.rebuild,
        through=window.through,
    )


def purge(engine: Engine, slot: FixedUtcSlot) -> PurgeReport:
    """Purge what was deleted long enough before the slot; a retry of the slot's job does just the same."""
    return purge_tombstones(engine, TOMBSTONES, slot.starts_at - RETENTION, limit=500)


def _milliseconds(instant: datetime) -> int:
    return int(instant.timestamp() * 1000)


_MAX_DRIFT_MS = MAX_DRIFT // timedelta(milliseconds=1)

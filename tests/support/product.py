"""A small product: users with notes, and lists whose items get their owner through the list."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from baukit_sync import SyncColumns, TombstoneTable, add_sync_tables, sync_indexes

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
CUTOFF = NOW - timedelta(days=30)
EXPIRED = CUTOFF - timedelta(days=1)
RECENT = CUTOFF + timedelta(days=1)


class Base(DeclarativeBase):
    """The product's models."""


class User(Base):
    """Whom rows are synced for."""

    __tablename__ = "users"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)


class Note(SyncColumns, Base):
    """A row with an owner column."""

    __tablename__ = "notes"

    owner_id: Mapped[UUID] = mapped_column(sa.ForeignKey("users.id"))
    title: Mapped[str] = mapped_column(default="")


class TodoList(SyncColumns, Base):
    """A parent."""

    __tablename__ = "lists"

    owner_id: Mapped[UUID] = mapped_column(sa.ForeignKey("users.id"))


class Item(Base):
    """A child without an owner column."""

    __tablename__ = "list_items"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    list_id: Mapped[UUID] = mapped_column(sa.ForeignKey("lists.id"))
    deleted_at: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True))
    revision: Mapped[int] = mapped_column(sa.BigInteger)

    __table_args__ = (*sync_indexes("list_items", owner="list_id"),)


add_sync_tables(Base.metadata, owner="users.id")

NOTES = TombstoneTable(
    "notes",
    "SELECT id, owner_id, revision FROM notes WHERE deleted_at < :cutoff"
    " ORDER BY deleted_at, id LIMIT :limit FOR UPDATE SKIP LOCKED",
    "DELETE FROM notes WHERE id = ANY(:ids)",
)

ITEMS = TombstoneTable(
    "list_items",
    "SELECT item.id, list.owner_id, item.revision FROM list_items AS item JOIN lists AS list"
    " ON list.id = item.list_id WHERE item.deleted_at < :cutoff"
    " ORDER BY item.deleted_at, item.id LIMIT :limit FOR UPDATE OF item SKIP LOCKED",
    "DELETE FROM list_items WHERE id = ANY(:ids)",
)

LISTS = TombstoneTable(
    "lists",
    "SELECT id, owner_id, revision FROM lists WHERE deleted_at < :cutoff"
    " AND NOT EXISTS (SELECT FROM list_items WHERE list_items.list_id = lists.id)"
    " ORDER BY deleted_at, id LIMIT :limit FOR UPDATE SKIP LOCKED",
    "DELETE FROM lists WHERE id = ANY(:ids)",
)

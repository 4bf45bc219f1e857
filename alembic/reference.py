"""The models of the reference chain: a product with one synced table and a child that has no owner column."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from baukit_sync import SyncColumns, add_sync_tables, sync_indexes


class Base(DeclarativeBase):
    """What the chain's last revision must equal."""


class User(Base):
    """Whom rows are synced for."""

    __tablename__ = "users"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)


class TodoList(SyncColumns, Base):
    """A synced table; two live lists of one owner never share a name, and a tombstone keeps none."""

    __tablename__ = "lists"
    __table_args__ = (
        sa.Index(
            "lists_name_key", "owner_id", "name", unique=True, postgresql_where=sa.text("deleted_at IS NULL")
        ),
    )

    name: Mapped[str] = mapped_column(sa.Text)


class Item(Base):
    """A child, synced for the owner of its list."""

    __tablename__ = "list_items"
    __table_args__ = (*sync_indexes("list_items", owner="list_id"),)

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    list_id: Mapped[UUID] = mapped_column(sa.ForeignKey("lists.id"))
    deleted_at: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True))
    revision: Mapped[int] = mapped_column(sa.BigInteger)


add_sync_tables(Base.metadata, owner="users.id")

"""The notes product's tables: lists, their items, and the items' attachments.

A list and an item carry their owner; an attachment has no owner column and belongs to whoever owns its item.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from baukit_sync import PullSource, SyncColumns, TombstoneTable, add_sync_tables, sync_indexes
from baukit_sync import migrations as sync

if TYPE_CHECKING:
    from alembic.operations import Operations


class Base(DeclarativeBase):
    """The product's models."""


class User(Base):
    """Whom rows are synced for."""

    __tablename__ = "users"

    id: Mapped[UUID] = mapped_column(primary_key=True)


class Titled:
    """What a user writes, and when: ``stamp`` is the device's hybrid logical clock at the edit."""

    title: Mapped[str] = mapped_column(sa.Text)
    stamp: Mapped[int] = mapped_column(sa.BigInteger)


class TodoList(SyncColumns, Titled, Base):
    """A list of items."""

    __tablename__ = "lists"

    owner_id: Mapped[UUID] = mapped_column(sa.ForeignKey("users.id"))
    parent_id: ClassVar[None] = None


class Item(SyncColumns, Titled, Base):
    """An entry of a list."""

    __tablename__ = "items"

    owner_id: Mapped[UUID] = mapped_column(sa.ForeignKey("users.id"))
    parent_id: Mapped[UUID] = mapped_column("list_id", sa.ForeignKey("lists.id"), index=True)
    # Unused, but it tells the unit of work to insert lists before their items.
    parent: Mapped[TodoList] = relationship()


class Attachment(Titled, Base):
    """A file of an item. The columns are those of a syncable table, without the owner."""

    __tablename__ = "attachments"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    parent_id: Mapped[UUID] = mapped_column("item_id", sa.ForeignKey("items.id"))
    updated_at: Mapped[datetime] = mapped_column(sa.DateTime(timezone=True), server_default=sa.func.now())
    deleted_at: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True))
    revision: Mapped[int] = mapped_column(sa.BigInteger)
    parent: Mapped[Item] = relationship()

    __table_args__ = (*sync_indexes("attachments", owner="item_id"),)


add_sync_tables(Base.metadata, owner="users.id")

Row: TypeAlias = TodoList | Item | Attachment

TABLES: tuple[type[Row], ...] = (TodoList, Item, Attachment)
"""Parents before children."""


SOURCES = (
    TodoList,
    Item,
    PullSource(
        "attachments",
        sa.select(Attachment).join(Attachment.parent),
        owner_id=Item.owner_id,
        revision=Attachment.revision,
        deleted_at=Attachment.deleted_at,
    ),
)
"""What a pull reads."""

TOMBSTONES = (
    TombstoneTable.for_model(Attachment, owner_via=Attachment.parent),
    TombstoneTable.for_model(Item),
    TombstoneTable.for_model(TodoList),
)
"""Children before parents: the foreign keys have no ON DELETE, so that no purge takes a live child along."""


def upgrade(op: Operations) -> None:
    """Create the schema, as the product's Alembic revision would."""
    op.create_table("users", sa.Column("id", sa.Uuid, primary_key=True))
    sync.create_revisions(op, owner="users.id")
    sync.create_purge_horizons(op)
    op.create_table(
        "lists",
        *sync.columns(),
        *_titled(),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"]),
    )
    op.create_table(
        "items",
        *sync.columns(),
        *_titled(),
        sa.Column("list_id", sa.Uuid, nullable=False, index=True),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"]),
        sa.ForeignKeyConstraint(["list_id"], ["lists.id"]),
    )
    op.create_table(
        "attachments",
        *(column for column in sync.columns() if column.name != "owner_id"),
        *_titled(),
        sa.Column("item_id", sa.Uuid, nullable=False),
        sa.ForeignKeyConstraint(["item_id"], ["items.id"]),
    )
    sync.create_indexes(op, "lists")
    sync.create_indexes(op, "items")
    sync.create_indexes(op, "attachments", owner="item_id")


def _titled() -> list[sa.Column[Any]]:
    return [sa.Column("title", sa.Text, nullable=False), sa.Column("stamp", sa.BigInteger, nullable=False)]

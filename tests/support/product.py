"""A small product: users with notes, and lists whose items get their owner through the list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from baukit_sync import PullWindow, SyncColumns, TombstoneTable, add_sync_tables, sync_columns, sync_indexes
from tests.support.ways import Unit

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

OWNER_TYPES = {"uuid": sa.Uuid(), "bigint": sa.BigInteger(), "text": sa.Text()}
"""Each has a database schema ``owners_<name>`` with the kit's tables and a table of documents."""

typed_metadata = sa.MetaData()
for _name, _type in OWNER_TYPES.items():
    add_sync_tables(typed_metadata, owner_type=_type, schema=f"owners_{_name}")
    sa.Table(
        "documents",
        typed_metadata,
        *sync_columns(_type),
        *sync_indexes("documents"),
        schema=f"owners_{_name}",
    )

CALLS: Mapping[str, Callable[[Unit, Any], Any]] = {
    "allocate_revisions": lambda unit, owner: unit.allocate_revisions({owner: 2}),
    "current_revision": lambda unit, owner: unit.current_revision(owner),
    "current_revision_for_update": lambda unit, owner: unit.current_revision_for_update(owner),
    "ensure_owner": lambda unit, owner: unit.ensure_owner(owner),
    "fence_restore": lambda unit, _owner: unit.fence_restore(gap=10),
    "guard_pull_cursor": lambda unit, owner: unit.guard_pull_cursor(owner, 0),
    "guard_pull_cursors": lambda unit, owner: unit.guard_pull_cursors({owner: 0}),
    "guard_push_cursor": lambda unit, owner: unit.guard_push_cursor(owner, 0),
    "next_revision": lambda unit, owner: unit.next_revision(owner),
    "next_revisions": lambda unit, owner: unit.next_revisions(owner, 2),
    "pull_page": lambda unit, owner: unit.pull_page(
        PullWindow(owner, 0, 10), [Note], limit=10, mappings=True
    ),
    "purge_horizon": lambda unit, owner: unit.purge_horizon(owner),
    "purge_tombstone_batch": lambda unit, _owner: unit.purge_tombstone_batch(NOTES, CUTOFF, 10),
    "soft_delete_where": lambda unit, owner: unit.soft_delete_where(Note, Note.owner_id == owner),
    "undelete_where": lambda unit, owner: unit.undelete_where(Note, Note.owner_id == owner),
    "update_where": lambda unit, owner: unit.update_where(Note, {"title": "x"}, Note.owner_id == owner),
}
"""One valid call of each function that works in the caller's transaction."""

READERS = {"current_revision", "pull_page", "purge_horizon"}
"""Those that lock nothing."""

ALLOCATIONS = {"allocate_revisions", "next_revision", "next_revisions"}
"""Those that leave pending objects alone."""

ALWAYS_FLUSH = {"pull_page", "soft_delete_where", "undelete_where", "update_where"}
"""Those that flush whatever the session's autoflush says."""


def create_tables(engine: sa.Engine) -> None:
    """Create the product's tables and the schemas of :data:`OWNER_TYPES`."""
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        for name in OWNER_TYPES:
            connection.execute(sa.schema.CreateSchema(f"owners_{name}"))
    typed_metadata.create_all(engine)


def delete_rows(engine: sa.Engine) -> None:
    """Empty every table that :func:`create_tables` makes."""
    with engine.begin() as connection:
        for table in reversed([*Base.metadata.sorted_tables, *typed_metadata.sorted_tables]):
            connection.execute(table.delete())


def write_note(unit: Unit, owner_id: UUID, *, deleted_at: datetime | None = None) -> int:
    """Insert a note, or a tombstone, and return its revision."""
    revision: int = unit.next_revision(owner_id)
    unit.sql(sa.insert(Note).values(id=uuid4(), owner_id=owner_id, deleted_at=deleted_at, revision=revision))
    return revision

"""Tables of every shape that the purge knows: own owners, owners of parents, trees, parts of rows."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from baukit_sync import SyncColumns, TombstoneTable, add_sync_tables, sync_indexes


class Base(DeclarativeBase):
    """This folder's models."""


class User(Base):
    """Whom rows are synced for."""

    __tablename__ = "users"

    id: Mapped[UUID] = mapped_column(primary_key=True)


class Note(SyncColumns, Base):
    """A row that nothing refers to."""

    __tablename__ = "notes"
    __table_args__ = (*sync_indexes("notes"),)


class Folder(SyncColumns, Base):
    """A row that refers to rows of its own table."""

    __tablename__ = "folders"
    __table_args__ = (*sync_indexes("folders"),)

    parent_id: Mapped[UUID | None] = mapped_column(sa.ForeignKey("folders.id"), index=True)


class Animal(SyncColumns, Base):
    """A row that may have a part in another table."""

    __tablename__ = "animals"
    __table_args__ = (*sync_indexes("animals"),)

    kind: Mapped[str]
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "animal"}  # noqa: RUF012


class Dog(Animal):
    """Such a part."""

    __tablename__ = "dogs"

    id: Mapped[UUID] = mapped_column(sa.ForeignKey("animals.id"), primary_key=True)
    __mapper_args__ = {"polymorphic_identity": "dog"}  # noqa: RUF012


class Shelf(SyncColumns, Base):
    """A parent with a second key of two columns."""

    __tablename__ = "shelves"
    __table_args__ = (sa.UniqueConstraint("region", "number"), *sync_indexes("shelves"))

    region: Mapped[int]
    number: Mapped[int]


class Book(Base):
    """A child whose foreign key has two columns; none of them need have a value."""

    __tablename__ = "books"
    __table_args__ = (
        sa.ForeignKeyConstraint(["region", "number"], ["shelves.region", "shelves.number"]),
        sa.Index("books_tombstone_idx", "region", "number", "deleted_at"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    region: Mapped[int | None]
    number: Mapped[int | None]
    deleted_at: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True))
    revision: Mapped[int] = mapped_column(sa.BigInteger)


class Page(Base):
    """A child's child, with a primary key of two columns."""

    __tablename__ = "pages"
    __table_args__ = (*sync_indexes("pages", owner="book_id"),)

    book_id: Mapped[UUID] = mapped_column(sa.ForeignKey("books.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    deleted_at: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True))
    revision: Mapped[int] = mapped_column(sa.BigInteger)


add_sync_tables(Base.metadata, owner="users.id")


def _table(model: type[Base]) -> sa.Table:
    return Base.metadata.tables[model.__tablename__]


NOTES = TombstoneTable.for_model(Note)
FOLDERS = TombstoneTable.for_model(Folder)
ANIMALS = TombstoneTable.for_model(Animal)
SHELVES = TombstoneTable.for_model(Shelf)
BOOKS = TombstoneTable.for_model(Book, owner_via=_table(Book).c.region)
PAGES = TombstoneTable.for_model(Page, owner_via=(_table(Page).c.book_id, _table(Book).c.region))

EVERY = (NOTES, FOLDERS, ANIMALS, PAGES, BOOKS, SHELVES)
"""In purge order."""

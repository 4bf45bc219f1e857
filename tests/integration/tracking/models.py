"""A product with one class for each way in which SQLAlchemy can write a row."""

from __future__ import annotations

import dataclasses
import enum
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.associationproxy import AssociationProxy, association_proxy
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.ext.mutable import MutableDict
from sqlalchemy.orm import (
    DeclarativeBase,
    DynamicMapped,
    Mapped,
    MappedAsDataclass,
    WriteOnlyMapped,
    attribute_keyed_dict,
    composite,
    configure_mappers,
    declared_attr,
    mapped_column,
    registry,
    relationship,
)

from baukit_sync import SyncColumns, SyncDataclassColumns, add_sync_tables, sync_columns

OWNED = "all, delete-orphan"


class Base(DeclarativeBase):
    """The product's models."""


class User(Base):
    """An owner."""

    __tablename__ = "users"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    notes: Mapped[list[Note]] = relationship(back_populates="owner")
    drafts: Mapped[list[Draft]] = relationship()


class Owned(SyncColumns):
    """The sync columns, with a foreign key to the owner."""

    owner_id: Mapped[UUID] = mapped_column(sa.ForeignKey("users.id"), sort_order=-4)


class Draft(Owned, Base):
    """Its owner has a collection of it, and it knows nothing of that."""

    __tablename__ = "drafts"

    text: Mapped[str] = mapped_column(default="")


class Tag(Base):
    """What a note is linked with; not synced."""

    __tablename__ = "tags"

    name: Mapped[str] = mapped_column(primary_key=True)
    notes: Mapped[list[Note]] = relationship(secondary="note_tags", back_populates="tags")


sa.Table(
    "note_tags",
    Base.metadata,
    sa.Column("note_id", sa.ForeignKey("notes.id"), primary_key=True),
    sa.Column("tag_name", sa.ForeignKey("tags.name"), primary_key=True),
)

sa.Table(
    "note_places",
    Base.metadata,
    sa.Column("note_id", sa.ForeignKey("notes.id")),
    sa.Column("place", sa.ForeignKey("places.id")),
)


class Place(Owned, Base):
    """What a note is linked with; synced, and without a way back."""

    __tablename__ = "places"


@dataclasses.dataclass(frozen=True)
class Point:
    """Two columns in one value."""

    x: int
    y: int


class Project(Base):
    """A parent that is not synced, whose notes know only its id."""

    __tablename__ = "projects"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    notes: Mapped[list[Note]] = relationship()


class Note(Owned, Base):
    """A row with columns of every kind."""

    __tablename__ = "notes"

    title: Mapped[str] = mapped_column(default="untitled")
    body: Mapped[dict[str, Any]] = mapped_column(MutableDict.as_mutable(JSONB), default=dict)
    raw: Mapped[list[Any]] = mapped_column(JSONB, default=list)
    edits: Mapped[int] = mapped_column(default=0, onupdate=sa.text("edits + 1"))
    long: Mapped[str] = mapped_column(default="", deferred=True)
    project_id: Mapped[UUID | None] = mapped_column(sa.ForeignKey("projects.id"))
    x: Mapped[int] = mapped_column(default=0)
    y: Mapped[int] = mapped_column(default=0)
    at: Mapped[Point] = composite("x", "y")
    owner: Mapped[User] = relationship(back_populates="notes")
    tags: Mapped[list[Tag]] = relationship(secondary="note_tags", back_populates="notes")
    tag_names: AssociationProxy[list[str]] = association_proxy(
        "tags", "name", creator=lambda name: Tag(name=name)
    )
    places: Mapped[set[Place]] = relationship(secondary="note_places")
    cover: Mapped[Cover | None] = relationship(back_populates="note", cascade=OWNED)
    icon: Mapped[Icon | None] = relationship(cascade=OWNED, single_parent=True, back_populates="note")
    icon_id: Mapped[UUID | None] = mapped_column(sa.ForeignKey("icons.id"))

    @hybrid_property
    def shout(self) -> str:
        """Return the title in capitals."""
        return self.title.upper()

    @shout.inplace.setter
    def _shout(self, value: str) -> None:
        self.title = value.lower()


class Cover(Owned, Base):
    """One to one: the child has the foreign key."""

    __tablename__ = "covers"

    note_id: Mapped[UUID] = mapped_column(sa.ForeignKey("notes.id"))
    note: Mapped[Note] = relationship(back_populates="cover")


class Icon(Owned, Base):
    """One to one: the parent has the foreign key, and owns the child."""

    __tablename__ = "icons"

    note: Mapped[Note | None] = relationship(back_populates="icon")


class TodoList(Owned, Base):
    """A parent with children of every kind."""

    __tablename__ = "lists"

    title: Mapped[str] = mapped_column(default="")
    items: Mapped[list[Item]] = relationship(back_populates="parent", cascade=OWNED)
    remarks: Mapped[list[Remark]] = relationship(cascade=OWNED)
    labels: Mapped[dict[str, Label]] = relationship(
        cascade=OWNED, back_populates="parent", collection_class=attribute_keyed_dict("name")
    )
    stickers: Mapped[set[Sticker]] = relationship(cascade=OWNED)
    archived: Mapped[list[Archived]] = relationship(cascade="all, delete", passive_deletes=True)
    visits: DynamicMapped[Visit] = relationship(cascade=OWNED, passive_deletes=True)
    lines: WriteOnlyMapped[Line] = relationship(cascade=OWNED, passive_deletes=True)
    loose: Mapped[list[Loose]] = relationship(back_populates="parent")
    links: Mapped[list[Link]] = relationship(cascade=OWNED, back_populates="parent")
    counts: Mapped[list[Count]] = relationship(cascade=OWNED)
    scraps: Mapped[list[Scrap]] = relationship(cascade=OWNED, back_populates="parent")


class InList(Owned):
    """The columns of a list's child."""

    text: Mapped[str] = mapped_column(default="")

    @declared_attr
    def list_id(cls) -> Mapped[UUID]:  # noqa: N805
        """Return the column of the list's id."""
        return mapped_column(sa.ForeignKey("lists.id"))


class Item(InList, Base):
    """A child with children of its own."""

    __tablename__ = "items"

    parent: Mapped[TodoList] = relationship(back_populates="items")
    steps: Mapped[list[Step]] = relationship(cascade=OWNED, back_populates="item")


class Step(Owned, Base):
    """A grandchild."""

    __tablename__ = "steps"

    item_id: Mapped[UUID] = mapped_column(sa.ForeignKey("items.id"))
    item: Mapped[Item] = relationship(back_populates="steps")


class Remark(InList, Base):
    """A child without a way back."""

    __tablename__ = "remarks"


class Label(InList, Base):
    """A child in a dict."""

    __tablename__ = "labels"

    name: Mapped[str]
    parent: Mapped[TodoList] = relationship(back_populates="labels")


class Sticker(InList, Base):
    """A child in a set."""

    __tablename__ = "stickers"


class Archived(InList, Base):
    """A child that a delete does not load."""

    __tablename__ = "archived"

    list_id: Mapped[UUID] = mapped_column(sa.ForeignKey("lists.id", ondelete="CASCADE"))


class Visit(InList, Base):
    """A child in a dynamic collection."""

    __tablename__ = "visits"


class Line(InList, Base):
    """A child in a write-only collection."""

    __tablename__ = "lines"


class Loose(InList, Base):
    """A child that can do without a list."""

    __tablename__ = "loose"

    list_id: Mapped[UUID | None] = mapped_column(sa.ForeignKey("lists.id"))
    parent: Mapped[TodoList | None] = relationship(back_populates="loose")


class Count(Base):
    """A child without an owner column."""

    __tablename__ = "counts"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    list_id: Mapped[UUID] = mapped_column(sa.ForeignKey("lists.id"))
    deleted_at: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True))
    revision: Mapped[int] = mapped_column(sa.BigInteger)
    number: Mapped[int] = mapped_column(default=0)


class Scrap(Base):
    """A child that is not synced."""

    __tablename__ = "scraps"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    list_id: Mapped[UUID] = mapped_column(sa.ForeignKey("lists.id"))
    parent: Mapped[TodoList] = relationship(back_populates="scraps")


class LinkKind(enum.Enum):
    """Part of a key, in an order that only PostgreSQL knows."""

    FIRST = "first"
    SECOND = "second"


class Link(Base):
    """An association object with a composite key."""

    __tablename__ = "links"

    list_id: Mapped[UUID] = mapped_column(sa.ForeignKey("lists.id"), primary_key=True)
    kind: Mapped[LinkKind] = mapped_column(primary_key=True)
    owner_id: Mapped[UUID] = mapped_column(sa.ForeignKey("users.id"))
    updated_at: Mapped[datetime] = mapped_column(sa.DateTime(timezone=True), server_default=sa.func.now())
    deleted_at: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True))
    revision: Mapped[int] = mapped_column(sa.BigInteger)
    weight: Mapped[int] = mapped_column(default=0)
    parent: Mapped[TodoList] = relationship(back_populates="links")


class Folder(Owned, Base):
    """A tree."""

    __tablename__ = "folders"

    name: Mapped[str] = mapped_column(default="")
    parent_id: Mapped[UUID | None] = mapped_column(sa.ForeignKey("folders.id"))
    parent: Mapped[Folder | None] = relationship(back_populates="children", remote_side="Folder.id")
    children: Mapped[list[Folder]] = relationship(back_populates="parent", cascade=OWNED)


class Room(Base):
    """A parent that is not synced, with rows that the database writes when it goes."""

    __tablename__ = "rooms"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    chairs: Mapped[list[Chair]] = relationship(cascade="all, delete", passive_deletes=True)


class Chair(Owned, Base):
    """A row that the database removes with its room."""

    __tablename__ = "chairs"

    room_id: Mapped[UUID] = mapped_column(sa.ForeignKey("rooms.id", ondelete="CASCADE"))


class Lamp(Owned, Base):
    """A row that loses its room in the database; no relationship tells of it."""

    __tablename__ = "lamps"

    room_id: Mapped[UUID | None] = mapped_column(sa.ForeignKey("rooms.id", ondelete="SET NULL"))


class Team(Owned, Base):
    """One side of a link that is itself a synced row; it also has favourites of two kinds."""

    __tablename__ = "teams"

    captain_id: Mapped[UUID | None] = mapped_column(sa.ForeignKey("members.id"))
    captain: Mapped[Member | None] = relationship(post_update=True, foreign_keys=captain_id)
    members: Mapped[list[Member]] = relationship(secondary="memberships")
    photos: Mapped[list[Photo]] = relationship(secondary="team_photos", cascade=OWNED, single_parent=True)


class Member(Owned, Base):
    """The other side."""

    __tablename__ = "members"


class Membership(Base):
    """The link."""

    __tablename__ = "memberships"

    team_id: Mapped[UUID] = mapped_column(sa.ForeignKey("teams.id"), primary_key=True)
    member_id: Mapped[UUID] = mapped_column(sa.ForeignKey("members.id"), primary_key=True)
    owner_id: Mapped[UUID] = mapped_column(sa.ForeignKey("users.id"))
    deleted_at: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True))
    revision: Mapped[int] = mapped_column(sa.BigInteger)


class Photo(Owned, Base):
    """What a many-to-many relationship owns."""

    __tablename__ = "photos"


sa.Table(
    "team_photos",
    Base.metadata,
    sa.Column("team_id", sa.ForeignKey("teams.id")),
    sa.Column("photo_id", sa.ForeignKey("photos.id")),
)


class Sheet(Base):
    """A row whose key starts with its owner."""

    __tablename__ = "sheets"

    owner_id: Mapped[UUID] = mapped_column(sa.ForeignKey("users.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    deleted_at: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True))
    updated_at: Mapped[datetime] = mapped_column(sa.DateTime(timezone=True), server_default=sa.func.now())
    revision: Mapped[int] = mapped_column(sa.BigInteger)
    text: Mapped[str] = mapped_column(default="")
    cells: Mapped[list[Cell]] = relationship(cascade=OWNED, back_populates="sheet")


class Cell(Base):
    """A child that gets its owner with its parent's key."""

    __tablename__ = "cells"
    __table_args__ = (
        sa.ForeignKeyConstraint(["owner_id", "sheet_number"], ["sheets.owner_id", "sheets.number"]),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    owner_id: Mapped[UUID]
    sheet_number: Mapped[int]
    deleted_at: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True))
    updated_at: Mapped[datetime] = mapped_column(sa.DateTime(timezone=True), server_default=sa.func.now())
    revision: Mapped[int] = mapped_column(sa.BigInteger)
    sheet: Mapped[Sheet] = relationship(back_populates="cells")


class Document(Owned, Base):
    """The base of a joined and of a single-table subclass."""

    __tablename__ = "documents"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "document"}  # noqa: RUF012

    kind: Mapped[str]
    title: Mapped[str] = mapped_column(default="")
    pages: Mapped[list[Page]] = relationship(cascade=OWNED, back_populates="document")


class Letter(Document):
    """A joined subclass: a row in two tables."""

    __tablename__ = "letters"
    __mapper_args__ = {"polymorphic_identity": "letter"}  # noqa: RUF012

    id: Mapped[UUID] = mapped_column(sa.ForeignKey("documents.id"), primary_key=True)
    to: Mapped[str] = mapped_column(default="")


class Memo(Document):
    """A single-table subclass."""

    __mapper_args__ = {"polymorphic_identity": "memo"}  # noqa: RUF012

    priority: Mapped[int | None]


class Fax(Document):
    """A concrete subclass: a row in a table of its own."""

    __tablename__ = "faxes"
    __mapper_args__ = {"concrete": True, "polymorphic_identity": "fax"}  # noqa: RUF012

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    owner_id: Mapped[UUID] = mapped_column(sa.ForeignKey("users.id"))
    updated_at: Mapped[datetime] = mapped_column(sa.DateTime(timezone=True), server_default=sa.func.now())
    deleted_at: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True))
    revision: Mapped[int] = mapped_column(sa.BigInteger)
    title: Mapped[str] = mapped_column(default="")


class Excerpt(Base):
    """Some columns of the notes, and none of the sync columns."""

    __table__ = Note.__table__
    __mapper_args__ = {"include_properties": ["id", "title"]}  # noqa: RUF012


class Renamed(Base):
    """A row whose sync columns have other names in Python."""

    __tablename__ = "renamed"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    user_id: Mapped[UUID] = mapped_column("owner_id")
    version: Mapped[int] = mapped_column("revision", sa.BigInteger)
    gone_at: Mapped[datetime | None] = mapped_column("deleted_at", sa.DateTime(timezone=True))
    text: Mapped[str] = mapped_column(default="")


class Page(Owned, Base):
    """A child of any document."""

    __tablename__ = "pages"

    document_id: Mapped[UUID] = mapped_column(sa.ForeignKey("documents.id"))
    document: Mapped[Document] = relationship(back_populates="pages")


class DataBase(MappedAsDataclass, Base):
    """The product's models that are dataclasses."""

    __abstract__ = True


class Card(SyncDataclassColumns, DataBase, kw_only=True):
    """A dataclass."""

    __tablename__ = "cards"

    owner_id: Mapped[UUID] = mapped_column(sa.ForeignKey("users.id"), default=None)
    owner: Mapped[User] = relationship(init=False)
    text: Mapped[str] = mapped_column(default="")


plain = registry(metadata=Base.metadata)


class Plain:
    """A class that is mapped imperatively, and has no mixin."""

    def __init__(self, **values: Any) -> None:
        """Set attributes."""
        for name, value in values.items():
            setattr(self, name, value)


plain.map_imperatively(
    Plain, sa.Table("plains", Base.metadata, *sync_columns(), sa.Column("text", sa.Text, server_default=""))
)

sa.Table("logs", Base.metadata, sa.Column("line", sa.Text))

add_sync_tables(Base.metadata, owner="users.id")
configure_mappers()

SYNCED = sorted(
    (table for table in Base.metadata.tables.values() if {"revision", "deleted_at"} <= set(table.c.keys())),
    key=lambda table: table.name,
)
"""The tables with sync columns, by name."""

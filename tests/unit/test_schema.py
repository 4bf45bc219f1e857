"""The kit's tables, and a product's columns and indexes: names, types, and every way to map a class."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column, registry
from sqlalchemy.schema import CreateIndex, CreateTable

from baukit_sync import (
    InvalidArgumentError,
    SyncColumns,
    SyncDataclassColumns,
    add_sync_tables,
    sync_columns,
    sync_indexes,
)

CONVENTION = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

COLUMNS = [
    ("id", "UUID", False),
    ("owner_id", "UUID", False),
    ("updated_at", "TIMESTAMP WITH TIME ZONE", False),
    ("deleted_at", "TIMESTAMP WITH TIME ZONE", True),
    ("revision", "BIGINT", False),
]


def ddl(element: Any) -> str:
    """Return a statement as PostgreSQL gets it, with single spaces."""
    return " ".join(str(element.compile(dialect=postgresql.dialect())).split())


def columns(table: Any) -> list[tuple[str, str, bool]]:
    """Return each column's name and type, and whether it may be null."""
    dialect = postgresql.dialect()
    return [(column.name, column.type.compile(dialect), bool(column.nullable)) for column in table.columns]


def indexes(table: Any) -> list[str]:
    """Return the statements that create a table's indexes."""
    return sorted(ddl(CreateIndex(index)) for index in table.indexes)


def sync_index_statements(table: str, owner: str = "owner_id") -> list[str]:
    """Return what the two indexes of a syncable table must be."""
    return [
        f"CREATE INDEX {table}_sync_idx ON {table} ({owner}, revision)",
        f"CREATE INDEX {table}_tombstone_idx ON {table} ({owner}, deleted_at) WHERE deleted_at IS NOT NULL",
    ]


def polymorphic(identity: str, **options: str) -> dict[str, str]:
    """Return the mapper arguments of a class in a hierarchy."""
    return {"polymorphic_identity": identity} | {
        f"polymorphic_{name}": value for name, value in options.items()
    }


@pytest.fixture
def base() -> Any:
    """A declarative base of its own, with a naming convention that would rename everything."""

    class Base(DeclarativeBase):
        metadata = sa.MetaData(naming_convention=CONVENTION)

    return Base


@pytest.fixture
def dataclass_base() -> Any:
    """A declarative base whose classes are dataclasses."""

    class Base(MappedAsDataclass, DeclarativeBase):
        pass

    return Base


@pytest.fixture
def note(base: Any) -> Any:
    """A class with the mixin."""

    class Note(SyncColumns, base):
        __tablename__ = "notes"
        title: Mapped[str]

    return Note


@pytest.fixture
def card(dataclass_base: Any) -> Any:
    """A dataclass with the mixin."""

    class Card(SyncDataclassColumns, dataclass_base):
        __tablename__ = "cards"
        title: Mapped[str]

    return Card


def test_the_mixin_gives_a_class_its_five_columns_first(note: Any) -> None:
    """In the order of the contract, with the product's own behind them."""
    assert [*COLUMNS, ("title", "VARCHAR", False)] == columns(note.__table__)
    assert ["id"] == [column.name for column in note.__table__.primary_key]


def test_the_mixin_for_dataclasses_gives_the_same_columns(card: Any) -> None:
    """Both mixins make the same table."""
    assert [*COLUMNS, ("title", "VARCHAR", False)] == columns(card.__table__)


def test_the_columns_of_a_table_are_those_of_the_mixin() -> None:
    """For products that map imperatively, or not at all."""
    assert COLUMNS == columns(sa.Table("notes", sa.MetaData(), *sync_columns()))


def test_the_mixin_gives_a_class_its_two_indexes(note: Any) -> None:
    """One for pulls and one for the purge, whatever the naming convention says."""
    assert sync_index_statements("notes") == indexes(note.__table__)


def test_the_mixin_for_dataclasses_gives_the_same_indexes(card: Any) -> None:
    """They are added wherever a class is mapped."""
    assert sync_index_statements("cards") == indexes(card.__table__)


def test_the_indexes_of_a_table_are_those_of_the_mixin() -> None:
    """Also under a naming convention."""
    metadata = sa.MetaData(naming_convention=CONVENTION)
    table = sa.Table("notes", metadata, *sync_columns(), *sync_indexes("notes"))

    assert sync_index_statements("notes") == indexes(table)


def test_a_child_is_indexed_by_the_column_that_leads_to_its_owner() -> None:
    """It has no ``owner_id``."""
    child = sa.Table(
        "items",
        sa.MetaData(),
        sa.Column("list_id", sa.Uuid),
        sa.Column("deleted_at", sa.DateTime(timezone=True)),
        sa.Column("revision", sa.BigInteger),
        *sync_indexes("items", owner="list_id"),
    )

    assert sync_index_statements("items", "list_id") == indexes(child)


def test_a_dataclass_takes_its_fields_by_keyword(card: Any) -> None:
    """The id is made when none is given, and the revision may come later."""
    owner, made = uuid4(), uuid4()
    one = card(title="milk", owner_id=owner)
    other = card(title="bread", owner_id=owner, id=made, revision=7)

    assert ("milk", owner, None, None) == (one.title, one.owner_id, one.deleted_at, one.revision)
    assert isinstance(one.id, UUID)
    assert (made, 7) == (other.id, other.revision)


def test_a_class_may_redeclare_its_owner(base: Any) -> None:
    """With another type and a foreign key; the indexes follow."""

    class Account(base):
        __tablename__ = "accounts"
        id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True)

    class Note(SyncColumns, base):
        __tablename__ = "notes"
        owner_id: Mapped[int] = mapped_column(sa.ForeignKey("accounts.id"))  # type: ignore[assignment]

    assert ("owner_id", "BIGINT", False) in columns(Note.__table__)
    assert ["accounts.id"] == [key.target_fullname for key in Note.__table__.foreign_keys]
    assert sync_index_statements("notes") == indexes(Note.__table__)


def test_a_class_keeps_its_own_table_arguments(base: Any) -> None:
    """The mixin's indexes come on top."""

    class Note(SyncColumns, base):
        __tablename__ = "notes"
        title: Mapped[str]
        __table_args__ = (sa.Index("notes_title_idx", "title"), {"schema": "product"})

    assert {"notes_sync_idx", "notes_tombstone_idx", "notes_title_idx"} == {
        index.name for index in Note.__table__.indexes
    }
    assert "ON product.notes (owner_id, revision)" in " ".join(indexes(Note.__table__))


def test_a_class_that_names_the_indexes_itself_has_each_once(base: Any) -> None:
    """A product that moved from ``sync_indexes`` to the mixin does not get them twice."""

    class Note(SyncColumns, base):
        __tablename__ = "notes"
        __table_args__ = (*sync_indexes("notes"),)

    assert sync_index_statements("notes") == indexes(Note.__table__)


def test_joined_inheritance_indexes_the_table_with_the_columns(base: Any) -> None:
    """A subclass's own table has neither the columns nor the indexes."""

    class Document(SyncColumns, base):
        __tablename__ = "documents"
        kind: Mapped[str]
        __mapper_args__ = polymorphic("document", on="kind")

    class Letter(Document):
        __tablename__ = "letters"
        id: Mapped[UUID] = mapped_column(sa.ForeignKey("documents.id"), primary_key=True)
        __mapper_args__ = polymorphic("letter")

    assert sync_index_statements("documents") == indexes(Document.__table__)
    assert [] == indexes(Letter.__table__)
    assert ["id"] == [column.name for column in Letter.__table__.columns]


def test_single_table_inheritance_indexes_the_table_once(base: Any) -> None:
    """Every subclass is mapped to the same table."""

    class Document(SyncColumns, base):
        __tablename__ = "documents"
        kind: Mapped[str]
        __mapper_args__ = polymorphic("document", on="kind")

    class Letter(Document):
        __mapper_args__ = polymorphic("letter")

    class Memo(Document):
        text: Mapped[str | None]
        __mapper_args__ = polymorphic("memo")

    assert Document.__table__ is Letter.__table__ is Memo.__table__
    assert sync_index_statements("documents") == indexes(Document.__table__)


def test_an_abstract_class_passes_the_columns_on(base: Any) -> None:
    """A product may have a base for its syncable classes."""

    class Syncable(SyncColumns, base):
        __abstract__ = True

    class Note(Syncable):
        __tablename__ = "notes"

    class Photo(Syncable):
        __tablename__ = "photos"

    assert COLUMNS == columns(Note.__table__) == columns(Photo.__table__)
    assert sync_index_statements("notes") == indexes(Note.__table__)
    assert sync_index_statements("photos") == indexes(Photo.__table__)


def test_a_class_may_be_mapped_imperatively() -> None:
    """With a table that has the columns and the indexes already."""

    class Plain:
        deleted_at: datetime | None

    mappers = registry()
    table = sa.Table("plains", mappers.metadata, *sync_columns(), *sync_indexes("plains"))
    mappers.map_imperatively(Plain, table)

    assert Plain().deleted_at is None
    assert sync_index_statements("plains") == indexes(table)


@pytest.mark.parametrize("kind", ["sync", "tombstone"])
def test_a_table_name_of_49_bytes_is_the_longest(kind: str) -> None:
    """PostgreSQL would cut a longer index name, perhaps to another's."""
    longest = "t" * (63 - len("_tombstone_idx"))
    names = {str(index.name) for index in sync_indexes(longest)}

    assert f"{longest}_{kind}_idx" in names
    assert 63 == max(map(len, names))
    with pytest.raises(InvalidArgumentError) as caught:
        sync_indexes(longest + "t")
    assert "table" == caught.value.argument


def test_a_table_names_length_is_counted_in_bytes() -> None:
    """As PostgreSQL does."""
    with pytest.raises(InvalidArgumentError):
        sync_indexes("ä" * 25)


def test_a_class_with_too_long_a_table_name_is_refused(base: Any) -> None:
    """When it is mapped, not when the migration runs."""
    with pytest.raises(InvalidArgumentError):

        class Note(SyncColumns, base):
            __tablename__ = "t" * 50


KIT_TABLES = [
    (
        "CREATE TABLE {schema}sync_revisions ( owner_id {owner_type} NOT NULL,"
        " last_revision BIGINT DEFAULT 0 NOT NULL,"
        " CONSTRAINT sync_revisions_pkey PRIMARY KEY (owner_id),"
        " CONSTRAINT sync_revisions_last_revision_check CHECK (last_revision >= 0){foreign_key} )"
    ),
    (
        "CREATE TABLE {schema}sync_purge_horizons ( owner_id {owner_type} NOT NULL,"
        " horizon_revision BIGINT NOT NULL,"
        " updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,"
        " CONSTRAINT sync_purge_horizons_pkey PRIMARY KEY (owner_id),"
        " CONSTRAINT sync_purge_horizons_owner_id_fkey FOREIGN KEY(owner_id)"
        " REFERENCES {schema}sync_revisions (owner_id) ON DELETE CASCADE,"
        " CONSTRAINT sync_purge_horizons_horizon_revision_check CHECK (horizon_revision > 0) )"
    ),
]


def kit_tables(*, owner_type: str = "UUID", schema: str = "", foreign_key: str = "") -> list[str]:
    """Return the statements that create the kit's tables."""
    return [text.format(owner_type=owner_type, schema=schema, foreign_key=foreign_key) for text in KIT_TABLES]


@pytest.mark.parametrize(
    ("owner_type", "name"),
    [(None, "UUID"), (sa.Uuid(), "UUID"), (sa.BigInteger(), "BIGINT"), (sa.Text(), "TEXT")],
)
def test_the_kits_tables_have_owners_of_the_products_type(owner_type: Any, name: str) -> None:
    """UUID unless it says otherwise; an integer is no SERIAL."""
    tables = add_sync_tables(sa.MetaData(), owner_type=owner_type)

    assert kit_tables(owner_type=name) == [ddl(CreateTable(table)) for table in tables]


def test_the_kits_names_survive_a_naming_convention() -> None:
    """The migrations and the code rely on them."""
    tables = add_sync_tables(sa.MetaData(naming_convention=CONVENTION))

    assert kit_tables() == [ddl(CreateTable(table)) for table in tables]


def test_the_kits_tables_may_live_in_a_schema() -> None:
    """Both, and the foreign key between them."""
    tables = add_sync_tables(sa.MetaData(), schema="sync")

    assert kit_tables(schema="sync.") == [ddl(CreateTable(table)) for table in tables]


def test_the_kits_tables_follow_the_schema_of_the_metadata() -> None:
    """Unless the call names another."""
    tables = add_sync_tables(sa.MetaData(schema="product"))

    assert kit_tables(schema="product.") == [ddl(CreateTable(table)) for table in tables]


@pytest.mark.parametrize(
    ("ondelete", "action"),
    [("CASCADE", " ON DELETE CASCADE"), ("RESTRICT", " ON DELETE RESTRICT"), (None, "")],
)
def test_counters_refer_to_the_products_owners(ondelete: str | None, action: str) -> None:
    """Deleting an owner does what the product says to its counter."""
    metadata = sa.MetaData(naming_convention=CONVENTION)
    sa.Table("users", metadata, sa.Column("id", sa.Uuid, primary_key=True))
    revisions, _ = add_sync_tables(metadata, owner="users.id", ondelete=ondelete)
    foreign_key = (
        f"CONSTRAINT sync_revisions_owner_id_fkey FOREIGN KEY(owner_id) REFERENCES users (id){action}"
    )

    assert foreign_key in ddl(CreateTable(revisions))


def test_erasing_an_owner_cascades_unless_told_otherwise() -> None:
    """Erasure leaves no counter behind."""
    metadata = sa.MetaData()
    sa.Table("users", metadata, sa.Column("id", sa.Uuid, primary_key=True))
    revisions, _ = add_sync_tables(metadata, owner="users.id")

    assert "REFERENCES users (id) ON DELETE CASCADE" in ddl(CreateTable(revisions))


def test_the_kits_tables_are_added_to_the_products_metadata() -> None:
    """So that autogenerate knows them, and creates the counters first."""
    metadata = sa.MetaData()
    tables = add_sync_tables(metadata)

    assert list(tables) == metadata.sorted_tables
    assert ["sync_revisions", "sync_purge_horizons"] == [table.name for table in metadata.sorted_tables]

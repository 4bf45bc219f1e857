"""``TombstoneTable.for_model`` before any database: what it takes, and what it refuses."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, registry, relationship

from baukit_sync import (
    InvalidArgumentError,
    MissingIndexWarning,
    SyncColumns,
    TombstoneTable,
    UnsafeForeignKeyError,
    sync_columns,
    sync_indexes,
)

KEY = sa.ForeignKey("parents.id")


def parents(**columns: Any) -> sa.Table:
    """Return a synced table in a MetaData of its own."""
    return sa.Table("parents", sa.MetaData(), *sync_columns(), *sync_indexes("parents"), **columns)


def child_of(
    parent: sa.Table, *, synced: bool, ondelete: str | None = None, name: str = "children"
) -> sa.Table:
    """Add a table whose foreign key refers to the parent."""
    key = sa.Column("parent_id", sa.Uuid, sa.ForeignKey("parents.id", ondelete=ondelete))
    own = sync_columns() if synced else [sa.Column("id", sa.Uuid, primary_key=True)]
    return sa.Table(name, parent.metadata, *own, key, *(sync_indexes(name) if synced else ()))


def purge_of(table: TombstoneTable) -> str:
    """Return the batch's SQL."""
    statement: Any = table.delete
    return str(statement.compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("ondelete", ["CASCADE", "SET NULL", "set default"])
def test_a_foreign_key_that_would_change_synced_rows_is_refused(ondelete: str) -> None:
    """No client would hear of it."""
    table = parents()
    child_of(table, synced=True, ondelete=ondelete)
    with pytest.raises(UnsafeForeignKeyError) as caught:
        TombstoneTable.for_model(table)

    assert ("parents", "children", ondelete.upper()) == caught.value.args


def test_a_tree_that_cascades_is_refused() -> None:
    """A live leaf would go with its expired root."""
    table = sa.Table(
        "folders",
        sa.MetaData(),
        *sync_columns(),
        sa.Column("parent_id", sa.Uuid, sa.ForeignKey("folders.id", ondelete="CASCADE")),
        *sync_indexes("folders"),
    )
    with pytest.raises(UnsafeForeignKeyError):
        TombstoneTable.for_model(table)


def test_rows_that_are_not_synced_may_go_along() -> None:
    """The product says so with its ON DELETE; nothing is checked then."""
    table = parents()
    child_of(table, synced=False, ondelete="CASCADE")

    assert "children" not in purge_of(TombstoneTable.for_model(table))


@pytest.mark.parametrize("synced", [True, False])
def test_children_are_found_by_their_foreign_keys(synced: bool) -> None:
    """Whatever refers to a row must be gone first."""
    table = parents()
    child_of(table, synced=synced)

    assert "FROM children AS child_0" in purge_of(TombstoneTable.for_model(table))


def test_children_of_another_metadata_are_named() -> None:
    """By a table, or by the column of its foreign key, once."""
    table = parents()
    metadata = sa.MetaData()
    other = sa.Table(
        "others",
        metadata,
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("parent_id", sa.ForeignKey(table.c.id)),
    )
    for children in ([other], [other.c.parent_id], [other, other.c.parent_id]):
        assert 1 == purge_of(TombstoneTable.for_model(table, children=children)).count("FROM others")


@pytest.mark.parametrize("missing", ["id", "owner_id", "deleted_at", "revision"])
def test_a_table_without_a_column_is_refused(missing: str) -> None:
    """It cannot be purged."""
    columns = [column for column in sync_columns() if column.name != missing]
    with pytest.raises(InvalidArgumentError):
        TombstoneTable.for_model(sa.Table("notes", sa.MetaData(), *columns))


@pytest.mark.parametrize("model", [None, "notes", int, object(), sa.select(sa.literal(1)).subquery()])
def test_what_is_no_table_is_refused(model: Any) -> None:
    """A name is not enough, nor is a query."""
    with pytest.raises(InvalidArgumentError):
        TombstoneTable.for_model(model)


def test_a_table_without_the_tombstone_index_is_warned_of() -> None:
    """The purge would read the whole table."""
    with pytest.warns(MissingIndexWarning, match="owner_id, deleted_at"):
        TombstoneTable.for_model(sa.Table("notes", sa.MetaData(), *sync_columns()))


def test_a_table_with_its_indexes_is_not_warned_of() -> None:
    """The mixin's and the helper's indexes are what the purge needs."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TombstoneTable.for_model(parents())


def test_a_subclass_is_refused_and_its_base_takes_it_along() -> None:
    """A row in two tables is one row."""

    class Base(DeclarativeBase): ...

    class Shape(SyncColumns, Base):
        __tablename__ = "shapes"

    class Circle(Shape):
        __tablename__ = "circles"
        id: Mapped[Any] = mapped_column(sa.ForeignKey("shapes.id"), primary_key=True)

    with pytest.raises(InvalidArgumentError):
        TombstoneTable.for_model(Circle)

    assert "DELETE FROM circles" in purge_of(TombstoneTable.for_model(Shape))


def test_what_refers_to_a_subclass_keeps_its_row() -> None:
    """The subclass's key is the row's."""
    mapped = registry()

    @mapped.mapped
    class Shape(SyncColumns):
        __tablename__ = "shapes"

    @mapped.mapped
    class Circle(Shape):
        __tablename__ = "circles"
        id = sa.Column(sa.ForeignKey("shapes.id"), primary_key=True)

    sa.Table(
        "labels",
        mapped.metadata,
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("circle_id", sa.ForeignKey("circles.id")),
    )

    assert "child_0.circle_id = shapes.id" in purge_of(TombstoneTable.for_model(Shape))
    assert Circle is not None


def test_an_owner_is_found_through_columns_and_relationships_alike() -> None:
    """Both lead the same way."""

    class Base(DeclarativeBase): ...

    class Parent(SyncColumns, Base):
        __tablename__ = "parents"

    class Child(Base):
        __tablename__ = "children"
        __table_args__ = (*sync_indexes("children", owner="parent_id"),)
        id: Mapped[int] = mapped_column(primary_key=True)
        parent_id: Mapped[Any] = mapped_column(sa.ForeignKey("parents.id"))
        deleted_at: Mapped[Any] = mapped_column(sa.DateTime(timezone=True))
        revision: Mapped[int]
        parent: Mapped[Parent] = relationship()

    ways = (Child.parent, Child.parent_id, Child.__table__.c.parent_id, [Child.parent])

    assert 1 == len({purge_of(TombstoneTable.for_model(Child, owner_via=way)) for way in ways})


@pytest.mark.parametrize("via", ["parent", 1, sa.column("parent_id"), KEY])
def test_an_owner_that_leads_nowhere_is_refused(via: Any) -> None:
    """A name, a column of no table, and a key of no column say nothing."""
    table = parents()
    child = child_of(table, synced=True)
    with pytest.raises(InvalidArgumentError):
        TombstoneTable.for_model(child, owner_via=via)


def test_a_child_that_does_not_refer_to_the_table_is_refused() -> None:
    """It would keep nothing."""
    table = parents()
    stranger = sa.Table("strangers", table.metadata, sa.Column("id", sa.Uuid, primary_key=True))
    with pytest.raises(InvalidArgumentError):
        TombstoneTable.for_model(table, children=[stranger])
    with pytest.raises(InvalidArgumentError):
        TombstoneTable.for_model(table, children=[stranger.c.id])


def test_a_columns_name_may_differ_from_its_attribute() -> None:
    """The mapping decides."""

    class Base(DeclarativeBase): ...

    class Note(Base):
        __tablename__ = "notes"
        id: Mapped[int] = mapped_column(primary_key=True)
        owner_id: Mapped[int] = mapped_column("who", sa.BigInteger)
        deleted_at: Mapped[Any] = mapped_column("gone", sa.DateTime(timezone=True))
        revision: Mapped[int] = mapped_column("rev")
        __table_args__ = (sa.Index("notes_tombstone_idx", "who", "gone"),)

    assert "notes.rev" in purge_of(TombstoneTable.for_model(Note))


def test_the_batch_never_inlines_what_it_locks() -> None:
    """A planner that ran the LIMIT again for each row would delete them all."""
    sql = purge_of(TombstoneTable.for_model(parents()))

    assert "locked AS MATERIALIZED" in sql
    assert "expired AS MATERIALIZED" in sql
    assert 2 == sql.count("LIMIT")
    assert 2 == sql.count("SKIP LOCKED")
    assert " IN (SELECT" not in sql

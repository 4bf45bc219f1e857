"""Pages: one order over several tables, where a page ends, and what a client has at the end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    ORMExecuteState,
    Session,
    contains_eager,
    joinedload,
    load_only,
    mapped_column,
    relationship,
    selectinload,
    with_loader_criteria,
)

import baukit_sync
from baukit_sync import (
    CursorAheadError,
    InvalidArgumentError,
    PullPage,
    PullSource,
    PullWindow,
    ResyncRequiredError,
    SyncColumns,
    UnsafeTransactionError,
    pull_page,
    sync_indexes,
)
from tests.support.product import CUTOFF, EXPIRED, NOTES, NOW, Item, Note, TodoList, delete_rows, write_note
from tests.support.ways import Database, Unit

ITEMS = PullSource(
    "items",
    sa.select(Item).join(TodoList, TodoList.id == Item.list_id),
    owner_id=TodoList.owner_id,
    revision=Item.revision,
    deleted_at=Item.deleted_at,
)

FILTERED = PullSource(
    "loud",
    sa.select(Note).where(Note.title == sa.func.upper(Note.title), Note.title != ""),
    owner_id=Note.owner_id,
    revision=Note.revision,
    deleted_at=Note.deleted_at,
)


class Base(DeclarativeBase):
    """Models in shapes that the product does not have."""


class Animal(SyncColumns, Base):
    """The base of an inheritance."""

    __tablename__ = "animals"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "animal"}  # noqa: RUF012

    kind: Mapped[str]
    name: Mapped[str] = mapped_column(default="")


class Dog(Animal):
    """A subclass with a table of its own."""

    __tablename__ = "dogs"
    __mapper_args__ = {"polymorphic_identity": "dog"}  # noqa: RUF012

    id: Mapped[UUID] = mapped_column(sa.ForeignKey("animals.id"), primary_key=True)
    bark: Mapped[str] = mapped_column(default="woof")


class Cat(Animal):
    """A subclass in the base's table."""

    __mapper_args__ = {"polymorphic_identity": "cat"}  # noqa: RUF012

    lives: Mapped[int | None] = mapped_column(default=9)


class Reading(Base):
    """A row with a composite key and columns under other names than its attributes'."""

    __tablename__ = "readings"

    owner_id: Mapped[UUID] = mapped_column("whose", primary_key=True)
    sensor: Mapped[str] = mapped_column(primary_key=True)
    revision: Mapped[int] = mapped_column("rev", sa.BigInteger)
    deleted_at: Mapped[datetime | None] = mapped_column("gone", sa.DateTime(timezone=True))

    __table_args__ = (sa.Index("readings_sync_idx", "whose", "rev"),)


class Entry(SyncColumns, Base):
    """A row of a large table."""

    __tablename__ = "entries"


class Folder(SyncColumns, Base):
    """A row whose files are loaded with it."""

    __tablename__ = "folders"

    title: Mapped[str] = mapped_column(default="")
    files: Mapped[list[File]] = relationship(lazy="joined", order_by="File.revision")


class File(Base):
    """A child without an owner column."""

    __tablename__ = "files"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    folder_id: Mapped[UUID] = mapped_column(sa.ForeignKey("folders.id"))
    deleted_at: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True))
    revision: Mapped[int] = mapped_column(sa.BigInteger)

    __table_args__ = (*sync_indexes("files", owner="folder_id"),)


FILES = PullSource(
    "files",
    sa.select(File).join(Folder, Folder.id == File.folder_id),
    owner_id=Folder.owner_id,
    revision=File.revision,
    deleted_at=File.deleted_at,
)


@pytest.fixture(scope="module")
def shaped_tables(product_database_url: sa.URL) -> Iterator[sa.Engine]:
    """The tables of this file's models."""
    engine = sa.create_engine(product_database_url, poolclass=sa.NullPool)
    Base.metadata.create_all(engine)
    yield engine
    Base.metadata.drop_all(engine)


@pytest.fixture
def shapes(shaped_tables: sa.Engine, database_url: sa.URL) -> Iterator[None]:
    """The tables of this file's models, empty."""
    yield
    with shaped_tables.begin() as connection:
        for table in reversed(Base.metadata.sorted_tables):
            connection.execute(table.delete())


def write(unit: Unit, model: Any, owner: UUID, *, revision: int | None = None, **values: Any) -> int:
    """Insert a row with the next revision, or another, and return the revision."""
    if revision is None:
        revision = unit.next_revision(owner)
    unit.sql(sa.insert(model).values({"id": uuid4(), "owner_id": owner, "revision": revision, **values}))
    return revision


def write_item(unit: Unit, owner: UUID, list_id: UUID, **values: Any) -> int:
    """Insert an item with the next revision of the list's owner."""
    revision: int = unit.next_revision(owner)
    unit.sql(sa.insert(Item).values(id=uuid4(), list_id=list_id, revision=revision, **values))
    return revision


def write_notes(db: Database, owner: UUID, revisions: Sequence[int]) -> None:
    """Commit notes with these revisions; the counter is at the last."""
    with db.begin() as unit:
        unit.next_revisions(owner, max(revisions))
        for revision in revisions:
            write(unit, Note, owner, revision=revision)


def pull(
    unit: Unit, owner: UUID, cursor: int, sources: Sequence[Any], limit: int = 100, **options: Any
) -> PullPage:
    """Guard and read a page."""
    page: PullPage = unit.pull_page(unit.guard_pull_cursor(owner, cursor), sources, limit=limit, **options)
    return page


def seen(page: PullPage) -> list[tuple[str, int]]:
    """Return the source and revision of each change."""
    return [(change.source, change.revision) for change in page.changes]


def revisions(page: PullPage) -> list[int]:
    """Return the revision of each change."""
    return [change.revision for change in page.changes]


@contextmanager
def before_each_statement(db: Database, act: Callable[[], object]) -> Iterator[None]:
    """Do something on another connection before each statement of this database's engine."""

    def listener(*_: Any) -> None:
        act()

    event.listen(db.sync_engine, "before_cursor_execute", listener)
    try:
        yield
    finally:
        event.remove(db.sync_engine, "before_cursor_execute", listener)


@pytest.fixture
def rival(database_url: sa.URL) -> Iterator[sa.Engine]:
    """Connections of someone else."""
    engine = sa.create_engine(database_url)
    yield engine
    engine.dispose()


def unit_of(connection: sa.Connection) -> Unit:
    """Wrap a rival's connection."""
    return Unit(connection, lambda function, *args, **kwargs: function(*args, **kwargs), baukit_sync)


def test_a_page_has_the_rows_of_all_sources_in_one_order(db: Database, owner: UUID) -> None:
    """Tombstones included, whatever the order of the sources."""
    with db.begin() as unit:
        list_id = uuid4()
        write_note(unit, owner)
        unit.sql(sa.insert(TodoList).values(id=list_id, owner_id=owner, revision=unit.next_revision(owner)))
        write_item(unit, owner, list_id)
        write_note(unit, owner, deleted_at=NOW)
        write_item(unit, owner, list_id, deleted_at=NOW)
        page = pull(unit, owner, 0, [ITEMS, TodoList, Note])

    assert [("notes", 1), ("lists", 2), ("items", 3), ("notes", 4), ("items", 5)] == seen(page)
    assert [False, False, False, True, True] == [change.deleted for change in page.changes]
    assert {owner} == {change.owner_id for change in page.changes}
    assert [Note, TodoList, Item, Note, Item] == [type(change.row) for change in page.changes]
    assert (5, False) == (page.next_cursor, page.has_more)


def test_a_page_has_no_row_of_another_owner(db: Database, owners: list[UUID]) -> None:
    """Also not through a child's parent."""
    with db.begin() as unit:
        for owner in owners:
            list_id = uuid4()
            write(unit, TodoList, owner, id=list_id)
            write_item(unit, owner, list_id)
        page = pull(unit, owners[1], 0, [TodoList, ITEMS])
        mine = unit.scalar(sa.select(TodoList.id).where(TodoList.owner_id == owners[1]))

        assert [("lists", 1), ("items", 2)] == seen(page)
        assert [mine, mine] == [page.changes[0].row.id, page.changes[1].row.list_id]


def test_a_page_starts_above_the_cursor(db: Database, owner: UUID) -> None:
    """What the client has is not sent again."""
    write_notes(db, owner, range(1, 6))
    with db.begin() as unit:
        assert [4, 5] == revisions(pull(unit, owner, 3, [Note]))


def test_a_page_ends_at_through(db: Database, owner: UUID) -> None:
    """A row above the window is not read, although it is committed."""
    write_notes(db, owner, range(1, 6))
    with db.begin() as unit:
        page = unit.pull_page(PullWindow(owner, 0, 3), [Note], limit=100)

    assert ([1, 2, 3], 3, False) == (revisions(page), page.next_cursor, page.has_more)


def test_a_limit_counts_the_rows_of_all_sources(db: Database, owner: UUID) -> None:
    """Not each table's."""
    with db.begin() as unit:
        for _ in range(4):
            write(unit, Note, owner)
            write(unit, TodoList, owner)
        page = pull(unit, owner, 0, [Note, TodoList], limit=5)

    assert [1, 2, 3, 4, 5] == revisions(page)
    assert (5, True) == (page.next_cursor, page.has_more)


@pytest.mark.parametrize(
    ("stored", "limit", "pages"),
    [
        ([1, 2, 3, 4, 5], 1, [[1], [2], [3], [4], [5]]),
        ([1, 2, 3, 4, 5], 2, [[1, 2], [3, 4], [5]]),
        ([1, 2, 3, 4], 2, [[1, 2], [3, 4]]),
        ([1, 2, 3], 3, [[1, 2, 3]]),
        ([1, 2, 2, 3], 2, [[1], [2, 2], [3]]),
        ([1, 2, 2, 3], 3, [[1, 2, 2], [3]]),
        ([2, 2, 2, 2, 5], 2, [[2, 2, 2, 2], [5]]),
        ([2, 2, 2, 2], 2, [[2, 2, 2, 2]]),
        ([1, 4, 4, 4], 1, [[1], [4, 4, 4]]),
        ([3, 9, 9, 20], 2, [[3], [9, 9], [20]]),
    ],
)
@pytest.mark.parametrize("sources", [1, 2])
def test_a_page_ends_between_two_revisions(
    db: Database, owner: UUID, stored: list[int], limit: int, pages: list[list[int]], sources: int
) -> None:
    """Only rows of one revision exceed the limit; ``has_more`` is true exactly when a row is left."""
    with db.begin() as unit:
        unit.next_revisions(owner, 30)
        for number, revision in enumerate(stored):
            write(unit, (Note, TodoList)[number % sources], owner, revision=revision)
    got: list[list[int]] = []
    more, cursor = True, 0
    while more:
        with db.begin() as unit:
            page = pull(unit, owner, cursor, [Note, TodoList][:sources], limit)
        got.append(revisions(page))
        more, cursor = page.has_more, page.next_cursor

    assert pages == got
    assert 30 == cursor


def test_rows_that_share_a_revision_come_together_from_all_sources(db: Database, owner: UUID) -> None:
    """Also from a source that the limit would have cut off."""
    with db.begin() as unit:
        unit.next_revisions(owner, 2)
        for model in (Note, Note, Note, TodoList):
            write(unit, model, owner, revision=1)
        write(unit, Note, owner, revision=2)
        for sources in ([Note, TodoList], [TodoList, Note]):
            page = pull(unit, owner, 0, sources, limit=1)

            assert ["lists", "notes", "notes", "notes"] == sorted(change.source for change in page.changes)
            assert (1, True) == (page.next_cursor, page.has_more)


@pytest.mark.parametrize("last", [3, 4])
def test_the_next_cursor_stays_below_the_first_row_left_out(db: Database, owner: UUID, last: int) -> None:
    """And at or above the last row sent."""
    write_notes(db, owner, [1, last, 10])
    with db.begin() as unit:
        page = pull(unit, owner, 0, [Note], limit=2)

    assert [1, last] == revisions(page)
    assert last <= page.next_cursor < 10


def test_a_filter_that_hides_every_row_moves_the_cursor_on(db: Database, owner: UUID) -> None:
    """An empty page is the last one, and the next pull starts at ``through``."""
    write_notes(db, owner, range(1, 6))
    starred = replace(
        FILTERED,
        name="starred",
        select=sa.select(Note).where(Note.title == "starred"),
    )
    with db.begin() as unit:
        page = pull(unit, owner, 0, [starred], limit=2)

    assert ((), 5, False) == (page.changes, page.next_cursor, page.has_more)


def test_a_limit_counts_the_rows_that_a_filter_lets_through(db: Database, owner: UUID) -> None:
    """A page is as long as its limit, however many hidden rows lie between."""
    with db.begin() as unit:
        for title in ("A", "b", "b", "C", "d", "E", "f"):
            write(unit, Note, owner, title=title)
        page = pull(unit, owner, 0, [FILTERED], limit=2)
        following = pull(unit, owner, page.next_cursor, [FILTERED], limit=2)

        assert ["A", "C"] == [change.row.title for change in page.changes]
        assert ["E"] == [change.row.title for change in following.changes]
        assert (True, False, 7) == (page.has_more, following.has_more, following.next_cursor)


@pytest.mark.parametrize("mappings", [False, True])
def test_a_hook_that_hides_deleted_rows_can_tell_a_pull(db: Database, owner: UUID, mappings: bool) -> None:
    """Its tombstones reach the client; other queries of the session do not see them."""

    def hide_deleted(state: ORMExecuteState) -> None:
        if state.is_select and not state.execution_options.get("sync_pull"):
            live = with_loader_criteria(
                SyncColumns, lambda cls: cls.deleted_at.is_(None), include_aliases=True
            )
            state.statement = state.statement.options(live)

    with db.begin() as unit:
        write_note(unit, owner)
        write_note(unit, owner, deleted_at=EXPIRED)
    with db.begin() as unit:
        session = getattr(unit.session, "sync_session", unit.session)
        event.listen(session, "do_orm_execute", hide_deleted)
        window = unit.guard_pull_cursor(owner, 0)
        page = unit.pull_page(window, [Note], limit=10, mappings=mappings)
        seen = unit.sql(sa.select(Note.revision))

    assert [False, True] == [change.deleted for change in page.changes]
    assert [(1,)] == seen


def test_one_class_may_be_in_two_sources(db: Database, owner: UUID) -> None:
    """Two views of it come in one order, each under its name."""
    quiet = replace(FILTERED, name="quiet", select=sa.select(Note).where(Note.title == "b"))
    with db.begin() as unit:
        for title in ("A", "b", "C", "b"):
            write(unit, Note, owner, title=title)
        page = pull(unit, owner, 0, [quiet, FILTERED], limit=3)

        assert [("loud", 1), ("quiet", 2), ("loud", 3)] == seen(page)
        assert ["A", "b", "C"] == [change.row.title for change in page.changes]


def test_a_child_may_take_its_revision_from_its_parent(db: Database, owner: UUID) -> None:
    """Rows that travel with another row share its revision, so they come together."""
    with_list = replace(ITEMS, name="with_list", revision=TodoList.revision, deleted_at=TodoList.deleted_at)
    with db.begin() as unit:
        for _ in range(2):
            list_id = uuid4()
            write(unit, TodoList, owner, id=list_id, deleted_at=NOW)
            for revision in (901, 902, 903):
                unit.sql(sa.insert(Item).values(id=uuid4(), list_id=list_id, revision=revision))
        page = pull(unit, owner, 0, [with_list], limit=2)

        assert [1, 1, 1] == revisions(page)
        assert {True} == {change.deleted for change in page.changes}
        assert {901, 902, 903} == {change.row.revision for change in page.changes}
        assert page.has_more


def test_an_empty_window_sends_nothing(db: Database, owner: UUID) -> None:
    """A client that is up to date costs its guard and no more."""
    with db.begin() as unit:
        window = unit.guard_pull_cursor(owner, 0)
        with db.statements() as sent:
            page = unit.pull_page(window, [Note, TodoList], limit=10)

    assert [] == sent
    assert ((), 0, False) == (page.changes, page.next_cursor, page.has_more)


@pytest.mark.parametrize(
    ("sources", "expected"), [([TodoList], 1), ([Note], 2), ([TodoList, Note, ITEMS], 2)]
)
@pytest.mark.parametrize("limit", [2, 10])
def test_only_sources_that_have_rows_are_read(
    db: Database, owner: UUID, sources: list[Any], expected: int, limit: int
) -> None:
    """One statement finds the end of the page, and one reads each source that has rows in it."""
    write_notes(db, owner, [1, 2, 3])
    with db.begin() as unit:
        window = unit.guard_pull_cursor(owner, 0)
        with db.statements() as sent:
            unit.pull_page(window, sources, limit=limit)

    assert expected == len(sent)


def test_a_source_whose_rows_come_after_the_page_is_not_read(db: Database, owner: UUID) -> None:
    """It has rows in the window, not in the page."""
    with db.begin() as unit:
        for model in (Note, Note, TodoList):
            write(unit, model, owner)
        window = unit.guard_pull_cursor(owner, 0)
        with db.statements() as sent:
            page = unit.pull_page(window, [Note, TodoList], limit=2)

    assert ([1, 2], 2) == (revisions(page), len(sent))


def test_what_commits_between_the_statements_of_a_pull_comes_with_the_next(
    db: Database, owner: UUID, rival: sa.Engine
) -> None:
    """A writer of two tables between two statements loses no row to the cursor."""
    with db.begin() as unit:
        write(unit, Note, owner)
        write(unit, TodoList, owner)

    def commit_to_both() -> None:
        with rival.begin() as connection:
            write(unit_of(connection), Note, owner)
            write(unit_of(connection), TodoList, owner)

    with db.begin() as unit:
        window = unit.guard_pull_cursor(owner, 0)
        with before_each_statement(db, commit_to_both):
            first = unit.pull_page(window, [TodoList, Note], limit=100)
    with db.begin() as unit:
        second = pull(unit, owner, first.next_cursor, [TodoList, Note])

    assert ([1, 2], 2) == (revisions(first), first.next_cursor)
    assert [3, 4, 5, 6, 7, 8] == revisions(second)


def test_a_row_that_is_written_during_a_pull_comes_with_the_next(
    db: Database, owner: UUID, rival: sa.Engine
) -> None:
    """It leaves the page when it moves beyond ``through``; the cursor does not pass it."""
    write_notes(db, owner, [1, 2])

    def rewrite_first() -> None:
        with rival.begin() as connection:
            revision = unit_of(connection).next_revision(owner)
            connection.execute(sa.update(Note).where(Note.revision.in_([1, 3])).values(revision=revision))

    with db.begin() as unit:
        window = unit.guard_pull_cursor(owner, 0)
        with before_each_statement(db, rewrite_first):
            first = unit.pull_page(window, [Note], limit=100)
    with db.begin() as unit:
        second = pull(unit, owner, first.next_cursor, [Note])

    assert ([2], 2) == (revisions(first), first.next_cursor)
    assert [4] == revisions(second)


def test_a_fixed_bound_ends_a_pull_that_others_write_into(db: Database, owner: UUID) -> None:
    """With ``through`` of the first window ``has_more`` turns false, whatever is written meanwhile."""
    write_notes(db, owner, range(1, 8))
    cursor, through, got, pages = 0, None, [], 0
    while pages < 50:
        with db.begin() as unit:
            window = unit.guard_pull_cursor(owner, cursor, through=through)
            page = unit.pull_page(window, [Note], limit=2)
        with db.begin() as unit:
            for _ in range(3):
                write(unit, Note, owner)
        got += revisions(page)
        cursor, through, pages = page.next_cursor, window.through, pages + 1
        if not page.has_more:
            break

    assert ([1, 2, 3, 4, 5, 6, 7], 7, 4) == (got, cursor, pages)


def test_a_bound_above_the_counter_is_refused(db: Database, owner: UUID) -> None:
    """It comes from another database, like a cursor that is ahead."""
    write_notes(db, owner, [1, 2])
    with db.begin() as unit, pytest.raises(CursorAheadError) as caught:
        unit.guard_pull_cursor(owner, 1, through=3)

    assert 2 == caught.value.current_revision


@pytest.mark.parametrize("through", [4, -1, True, 1.5, "9", 2**53])
def test_a_bound_that_means_nothing_is_refused_before_any_io(nowhere: Database, through: Any) -> None:
    """It is an integer from the cursor on."""
    with nowhere.begin() as unit, pytest.raises(InvalidArgumentError) as caught:
        unit.guard_pull_cursor(uuid4(), 5, through=through)

    assert "through" == caught.value.argument


def test_a_loaded_instance_is_refreshed(db: Database, owner: UUID, rival: sa.Engine) -> None:
    """The page does not hand out what the session read before someone else's commit."""
    write_notes(db, owner, [1])
    with db.begin() as unit:
        ((loaded,),) = unit.sql(sa.select(Note))
        with rival.begin() as connection:
            revision = unit_of(connection).next_revision(owner)
            connection.execute(sa.update(Note).values(title="new", revision=revision, deleted_at=NOW))
        page = pull(unit, owner, 1, [Note])

        assert loaded is page.changes[0].row
        assert ("new", 2, NOW) == (loaded.title, loaded.revision, loaded.deleted_at)
        assert (2, True) == (page.changes[0].revision, page.changes[0].deleted)


@pytest.mark.parametrize("autoflush", [True, False])
def test_pending_changes_are_flushed_first(db: Database, owner: UUID, autoflush: bool) -> None:
    """Also without autoflush: refreshing a changed instance would undo the change."""
    write_notes(db, owner, [1])
    with db.begin() as unit:
        ((note,),) = unit.sql(sa.select(Note))
        unit.session.autoflush = autoflush
        note.title = "changed"
        page = pull(unit, owner, 0, [Note])

        assert ["changed"] == [change.row.title for change in page.changes]
    with db.begin() as unit:
        assert "changed" == unit.scalar(sa.select(Note.title))


def test_rows_are_usable_after_the_call(db: Database, shapes: None, owner: UUID) -> None:
    """No attribute of an instance needs I/O, which would cost a blocking session, and fail an async one."""
    with db.begin() as unit:
        unit.add(
            Folder(owner_id=owner, revision=1, title="a"),
            Dog(owner_id=owner, revision=2, bark="wuff"),
            Cat(owner_id=owner, revision=3, lives=7),
        )
        unit.next_revisions(owner, 3)
    with db.begin() as unit:
        page = pull(unit, owner, 0, [Folder, Animal])
        with db.statements() as sent:
            folder, dog, cat = (change.row for change in page.changes)
            read = (folder.title, folder.updated_at is None, folder.files, dog.bark, dog.name, cat.lives)

    assert [] == sent
    assert ("a", False, [], "wuff", "", 7) == read


def test_a_base_class_brings_rows_of_its_subclasses(db: Database, shapes: None, owner: UUID) -> None:
    """Each as an instance of its own class, under the name of the class that was asked for."""
    with db.begin() as unit:
        unit.next_revisions(owner, 3)
        unit.add(*(made(owner_id=owner, revision=n) for n, made in enumerate((Dog, Animal, Cat), 1)))
        unit.flush()
        page = pull(unit, owner, 0, [Animal], limit=2)

    assert [("animals", 1), ("animals", 2)] == seen(page)
    assert [Dog, Animal] == [type(change.row) for change in page.changes]


@pytest.mark.parametrize(("model", "expected"), [(Dog, ("dogs", 2)), (Cat, ("animals", 3))])
@pytest.mark.parametrize("mappings", [False, True])
def test_a_subclass_brings_its_own_rows_only(
    db: Database, shapes: None, owner: UUID, model: type[Animal], expected: tuple[str, int], mappings: bool
) -> None:
    """Whether it has a table of its own or shares its base's."""
    with db.begin() as unit:
        unit.next_revisions(owner, 4)
        unit.add(
            Animal(owner_id=owner, revision=1),
            Dog(owner_id=owner, revision=2),
            Cat(owner_id=owner, revision=3),
            Animal(owner_id=owner, revision=4),
        )
        unit.flush()
        page = pull(unit, owner, 0, [model], limit=1, mappings=mappings)

    assert ([expected], 4, False) == (seen(page), page.next_cursor, page.has_more)


def test_a_composite_key_and_renamed_columns_are_fine(db: Database, shapes: None, owner: UUID) -> None:
    """A source needs the attributes, not the columns' names, and no ``id``."""
    with db.begin() as unit:
        unit.next_revisions(owner, 3)
        for revision, sensor in enumerate("abc", 1):
            unit.add(Reading(owner_id=owner, sensor=sensor, revision=revision, deleted_at=NOW))
        unit.flush()
        page = pull(unit, owner, 0, [Reading], limit=2)
        rows = pull(unit, owner, 2, [Reading], mappings=True)

        assert ["a", "b"] == [change.row.sensor for change in page.changes]
        assert [True, True] == [change.deleted for change in page.changes]
        assert [{"whose": owner, "sensor": "c", "rev": 3, "gone": NOW}] == [each.row for each in rows.changes]


@pytest.mark.parametrize("mappings", [False, True])
def test_a_class_that_loads_its_children_with_a_join_comes_once(
    db: Database, shapes: None, owner: UUID, mappings: bool
) -> None:
    """The join that loads them changes neither a page's end nor its revisions nor a mapping's columns."""
    with db.begin() as unit:
        unit.next_revisions(owner, 5)
        for revision in (1, 2, 3):
            files = [File(revision=10 * revision), File(revision=10 * revision + 1)]
            unit.add(Folder(owner_id=owner, revision=revision, files=files))
        unit.flush()
        page = pull(unit, owner, 0, [Folder], limit=2, mappings=mappings)
        rows = [change.row for change in page.changes]
        got = [sorted(row) if mappings else [file.revision for file in row.files] for row in rows]

    columns = ["deleted_at", "id", "owner_id", "revision", "title", "updated_at"]
    assert [1, 2] == revisions(page)
    assert [False, False] == [change.deleted for change in page.changes]
    assert ([columns, columns] if mappings else [[10, 11], [20, 21]]) == got


@pytest.mark.parametrize(
    "select",
    [
        sa.select(Folder).options(joinedload(Folder.files)),
        sa.select(Folder).options(selectinload(Folder.files)),
        sa.select(Folder).options(load_only(Folder.title)),
        sa.select(Folder).outerjoin(Folder.files).options(contains_eager(Folder.files)),
        sa.select(Folder).outerjoin(Folder.files).distinct(),
    ],
    ids=["joinedload", "selectinload", "load_only", "contains_eager", "distinct"],
)
def test_a_source_keeps_its_loader_options(
    db: Database, shapes: None, owner: UUID, select: sa.Select[Any]
) -> None:
    """They change what is loaded, not which rows come."""
    source = PullSource(
        "folders",
        select,
        owner_id=Folder.owner_id,
        revision=Folder.revision,
        deleted_at=Folder.deleted_at,
    )
    with db.begin() as unit:
        unit.next_revisions(owner, 2)
        for revision in (1, 2):
            files = [File(revision=10 * revision), File(revision=10 * revision + 1)]
            unit.add(Folder(owner_id=owner, revision=revision, title=str(revision), files=files))
    with db.begin() as unit:
        window = unit.guard_pull_cursor(owner, 0)
        with db.statements() as sent:
            page = unit.pull_page(window, [source], limit=10)

        assert ["1", "2"] == [change.row.title for change in page.changes]
        assert [1, 2] == revisions(page)
        assert len(sent) <= 3


def test_a_source_may_name_columns_instead_of_attributes(db: Database, shapes: None, owner: UUID) -> None:
    """Then they are selected beside the class, which still comes once, with the children it loads."""
    columns = Folder.__table__.c
    source = PullSource(
        "folders",
        sa.select(Folder),
        owner_id=columns.owner_id,
        revision=columns.revision,
        deleted_at=columns.deleted_at,
    )
    with db.begin() as unit:
        unit.next_revisions(owner, 2)
        for revision in (1, 2):
            files = [File(revision=10 * revision), File(revision=10 * revision + 1)]
            unit.add(Folder(owner_id=owner, revision=revision, files=files, deleted_at=NOW))
    with db.begin() as unit:
        page = pull(unit, owner, 0, [source])
        files = [[file.revision for file in change.row.files] for change in page.changes]

    assert [(1, True), (2, True)] == [(change.revision, change.deleted) for change in page.changes]
    assert [[10, 11], [20, 21]] == files


def test_a_connection_gets_mappings(db: Database, owner: UUID) -> None:
    """A Core connection has no instances to give."""
    with db.begin(handle="connection") as unit:
        write(unit, Note, owner, title="milk", updated_at=NOW)
        page = pull(unit, owner, 0, [Note])
        (note_id,) = unit.sql(sa.select(Note.id))

    (change,) = page.changes
    assert ("notes", owner, 1, False) == (change.source, change.owner_id, change.revision, change.deleted)
    assert {
        "id": note_id[0],
        "owner_id": owner,
        "updated_at": NOW,
        "deleted_at": None,
        "revision": 1,
        "title": "milk",
    } == change.row


def test_a_session_gets_mappings_on_request(db: Database, owner: UUID) -> None:
    """Plain dicts, and nothing joins the session."""
    write_notes(db, owner, [1])
    with db.begin() as unit:
        page = pull(unit, owner, 0, [Note], mappings=True)
        loaded = list(unit.session)

    assert [dict] == [type(change.row) for change in page.changes]
    assert [] == loaded


@pytest.mark.parametrize("handle", ["session", "connection"])
def test_a_select_of_columns_gives_mappings(db: Database, owner: UUID, handle: str) -> None:
    """Of those columns, under the names that the select gives them."""
    source = replace(FILTERED, select=sa.select(Note.title, sa.func.length(Note.title).label("size")))
    with db.begin(handle=handle) as unit:
        write(unit, Note, owner, title="milk", deleted_at=NOW)
        page = pull(unit, owner, 0, [source])

    assert [({"title": "milk", "size": 4}, 1, True)] == [
        (change.row, change.revision, change.deleted) for change in page.changes
    ]


def test_several_windows_share_one_limit(db: Database, owners: list[UUID]) -> None:
    """They are read one after the other; each owner gets a next cursor of its own."""
    for owner in owners:
        write_notes(db, owner, [1, 2, 3])
    first, second, third = owners
    cursors = dict.fromkeys(owners, 0)
    pages = []
    for _ in range(3):
        with db.begin() as unit:
            answers = unit.guard_pull_cursors(cursors)
            page = unit.pull_page([answers[owner] for owner in owners], [Note], limit=4)
        cursors = dict(page.next_cursors)
        pages.append(page)

    got = [[(change.owner_id, change.revision) for change in page.changes] for page in pages]
    assert [(first, 1), (first, 2), (first, 3), (second, 1)] == got[0]
    assert [(second, 2), (second, 3), (third, 1), (third, 2)] == got[1]
    assert [(third, 3)] == got[2]
    assert [{first: 3, second: 1, third: 0}, {first: 3, second: 3, third: 2}] == [
        dict(page.next_cursors) for page in pages[:2]
    ]
    assert [True, True, False] == [page.has_more for page in pages]


def test_windows_without_rows_do_not_make_a_page_say_that_it_has_more(
    db: Database, owners: list[UUID]
) -> None:
    """A page that is full at the end of one window looks whether the others hold a row."""
    write_notes(db, owners[0], [1, 2])
    with db.begin() as unit:
        unit.next_revisions(owners[1], 5)
        answers = unit.guard_pull_cursors(dict.fromkeys(owners, 0))
        page = unit.pull_page(answers.values(), [Note], limit=2)

    assert ([1, 2], False) == (revisions(page), page.has_more)
    assert {owners[0]: 2, owners[1]: 5, owners[2]: 0} == dict(page.next_cursors)


def test_a_full_page_does_not_read_into_the_next_window(db: Database, owners: list[UUID]) -> None:
    """It looks, and leaves that owner's cursor where it is."""
    for owner in owners[:2]:
        write_notes(db, owner, [1, 2])
    with db.begin() as unit:
        answers = unit.guard_pull_cursors(dict.fromkeys(owners, 0))
        with db.statements() as sent:
            page = unit.pull_page(list(answers.values()), [Note], limit=2)

    assert ([1, 2], True, 3) == (revisions(page), page.has_more, len(sent))
    assert {owners[0]: 2, owners[1]: 0, owners[2]: 0} == dict(page.next_cursors)


def test_no_window_is_an_empty_page(db: Database) -> None:
    """When every owner has to rebuild there is nothing to read."""
    with db.begin() as unit, db.statements() as sent:
        page = unit.pull_page([], [Note], limit=10)

    assert [] == sent
    assert ((), {}, False) == (page.changes, dict(page.next_cursors), page.has_more)


def test_a_page_of_several_windows_has_no_single_next_cursor(db: Database, owners: list[UUID]) -> None:
    """Which owner's would it be?"""
    with db.begin() as unit:
        answers = unit.guard_pull_cursors(dict.fromkeys(owners, 0))
        page = unit.pull_page(list(answers.values()), [Note], limit=2)

    with pytest.raises(ValueError, match="unpack"):
        page.next_cursor  # noqa: B018


WINDOW = PullWindow(uuid4(), 0, 10)


@pytest.mark.parametrize("limit", [0, -1, 100_001, True, 1.5, "10", None])
def test_a_limit_out_of_range_is_refused_before_any_io(nowhere: Database, limit: Any) -> None:
    """1..100,000."""
    with nowhere.begin() as unit, pytest.raises(InvalidArgumentError) as caught:
        unit.pull_page(WINDOW, [Note], limit=limit)

    assert "limit" == caught.value.argument


@pytest.mark.parametrize(
    "sources",
    [
        [],
        Note,
        None,
        "notes",
        ["notes"],
        [Note, object],
        [Item],
        [Note.__table__],
        [Note(revision=1)],
        [[Note]],
        [sa.select(Note)],
        [sa.orm.aliased(Note)],
    ],
    ids=[
        "none",
        "a class alone",
        "None",
        "text",
        "text in a list",
        "a class that is not mapped",
        "a class without an owner",
        "a table",
        "an instance",
        "a list in a list",
        "a select",
        "an alias",
    ],
)
def test_sources_that_are_none_are_refused_before_any_io(nowhere: Database, sources: Any) -> None:
    """A source is a class with the columns of a synced row, or a named select."""
    with nowhere.begin() as unit, pytest.raises(InvalidArgumentError) as caught:
        unit.pull_page(WINDOW, sources, limit=10)

    assert "sources" == caught.value.argument


@pytest.mark.parametrize(
    "window",
    [None, 5, [None], [WINDOW, ResyncRequiredError(3)], (uuid4(), 0, 10), [WINDOW, WINDOW]],
    ids=["None", "5", "[None]", "answer", "tuple", "twice"],
)
def test_windows_that_are_none_are_refused_before_any_io(nowhere: Database, window: Any) -> None:
    """Also an answer of ``guard_pull_cursors`` that is an error, and two windows of one owner."""
    with nowhere.begin() as unit, pytest.raises(InvalidArgumentError) as caught:
        unit.pull_page(window, [Note], limit=10)

    assert "window" == caught.value.argument


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", None),
        ("select", "SELECT * FROM notes"),
        ("select", sa.text("SELECT * FROM notes")),
        ("select", sa.union(sa.select(Note), sa.select(Note))),
        ("select", sa.select(Note).order_by(Note.title)),
        ("select", sa.select(Note).limit(10)),
        ("select", sa.select(Note).offset(10)),
        ("select", sa.select(Note).fetch(10)),
        ("owner_id", "owner_id"),
        ("revision", "revision"),
        ("deleted_at", None),
    ],
)
def test_a_source_that_would_lose_rows_cannot_be_made(field: str, value: Any) -> None:
    """An order of its own or a limit would cut rows out of a page; a column's name is not a column."""
    with pytest.raises(InvalidArgumentError) as caught:
        replace(FILTERED, **{field: value})

    assert field == caught.value.argument


def test_autocommit_is_refused_before_anything_is_sent(db: Database, owner: UUID) -> None:
    """Pending objects are not written either."""
    with db.begin(isolation="AUTOCOMMIT") as unit:
        unit.add(Note(owner_id=owner, revision=1))
        with db.statements() as sent, pytest.raises(UnsafeTransactionError):
            unit.pull_page(PullWindow(owner, 0, 10), [Note], limit=10)
        unit.rollback()

    assert [] == sent


@pytest.mark.parametrize("mappings", [False, True])
def test_a_thousand_pulls_leave_one_entry_for_each_statement(
    db: Database, owner: UUID, mappings: bool
) -> None:
    """The statements' shapes depend on the sources alone, not on cursors, bounds or limits."""
    write_notes(db, owner, range(1, 21))
    sources = [Note, ITEMS, FILTERED]
    sizes = set()
    with db.begin() as unit:
        for number in range(1_000):
            after = number % 20
            window = PullWindow(owner, after, after + 1 + number % 7)
            unit.pull_page(window, list(sources), limit=1 + number % 50, mappings=mappings)
            if number >= 20:
                sizes.add(len(db.sync_engine._compiled_cache))

    assert 1 == len(sizes)


def test_a_rebuild_lasts_until_the_cursor_has_passed_its_bound(db: Database, owner: UUID) -> None:
    """A client that started from 0 gets what it sends along; a client that did not gets nothing."""
    write_notes(db, owner, range(1, 6))
    with db.begin() as unit:
        first = pull(unit, owner, 0, [Note], limit=2)
        incremental = pull(unit, owner, 2, [Note], limit=2)
    with db.begin() as unit:
        write(unit, Note, owner)
        window = unit.guard_pull_cursor(owner, first.next_cursor, rebuild=first.rebuild)
        second = unit.pull_page(window, [Note], limit=2)
        window = unit.guard_pull_cursor(owner, second.next_cursor, rebuild=second.rebuild)
        third = unit.pull_page(window, [Note], limit=2)

    assert [5, 5, None] == [page.rebuild for page in (first, second, third)]
    assert incremental.rebuild is None


def test_a_rebuild_goes_on_across_a_purge(db: Database, owner: UUID) -> None:
    """Tombstones that were purged before it reached them do not send it back to the start."""
    with db.begin() as unit:
        for deleted_at in (None, None, EXPIRED, EXPIRED, None):
            write_note(unit, owner, deleted_at=deleted_at)
    with db.begin() as unit:
        first = pull(unit, owner, 0, [Note], limit=1)
    db.purge([NOTES], CUTOFF, 10)
    with db.begin() as unit:
        with pytest.raises(ResyncRequiredError):
            unit.guard_pull_cursor(owner, first.next_cursor)
        window = unit.guard_pull_cursor(owner, first.next_cursor, rebuild=first.rebuild)
        second = unit.pull_page(window, [Note], limit=10)

    assert ([1], [2, 5]) == (revisions(first), revisions(second))


class Server:
    """Writers of one owner's notes, lists and items, and what the tables hold."""

    def __init__(self, engine: sa.Engine, owner: UUID) -> None:
        """Write through another engine than the pulls'."""
        self.engine, self.owner = engine, owner
        self.serial = 0

    def carry_out(self, actions: Sequence[tuple[str, int]]) -> None:
        """Write in one transaction."""
        with self.engine.begin() as connection:
            for name, number in actions:
                getattr(self, name)(unit_of(connection), number)

    def insert(self, unit: Unit, number: int) -> None:
        """Insert a list, a note or an item."""
        lists = unit.sql(sa.select(TodoList.id))
        if not lists or number % 3 == 0:
            write(unit, TodoList, self.owner)
        elif number % 3 == 1:
            write(unit, Note, self.owner)
        else:
            write_item(unit, self.owner, lists[number % len(lists)][0])

    def tie(self, unit: Unit, number: int) -> None:
        """Insert several notes and lists with one revision."""
        revision = unit.next_revision(self.owner)
        for each in range(2 + number % 9):
            write(unit, (Note, TodoList)[each % 2], self.owner, revision=revision)

    def update(self, unit: Unit, number: int) -> None:
        """Write a row again."""
        self._change(unit, number, {})

    def delete(self, unit: Unit, number: int) -> None:
        """Turn a row into a tombstone, long ago."""
        self._change(unit, number, {"deleted_at": EXPIRED})

    def purge(self, unit: Unit, number: int) -> None:
        """Purge notes."""
        unit.purge_tombstone_batch(NOTES, CUTOFF, 1 + number)

    def _change(self, unit: Unit, number: int, values: dict[str, Any]) -> None:
        rows = [
            (model, row_id)
            for model in (Note, TodoList, Item)
            for (row_id,) in unit.sql(sa.select(model.id).order_by(model.revision, model.id))
        ]
        if rows:
            model, row_id = rows[number % len(rows)]
            revision = unit.next_revision(self.owner)
            unit.sql(sa.update(model).where(model.id == row_id).values(revision=revision, **values))

    def state(self) -> dict[UUID, tuple[int, bool]]:
        """Return the revision of each row, and whether it is a tombstone."""
        with self.engine.connect() as connection:
            return {
                row_id: (revision, deleted_at is not None)
                for model in (Note, TodoList, Item)
                for row_id, revision, deleted_at in connection.execute(
                    sa.select(model.id, model.revision, model.deleted_at)
                )
            }


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["insert", "insert", "tie", "update", "delete"]), st.integers(0, 20)),
    max_size=4,
)


@pytest.fixture
def fresh(database_url: sa.URL) -> Callable[[], None]:
    """Empties the tables for another example."""
    return partial(delete_rows, sa.create_engine(database_url, poolclass=sa.NullPool))


def new_owner(engine: sa.Engine) -> UUID:
    """Commit a user with a counter."""
    owner = uuid4()
    with engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO users (id) VALUES (:id)"), {"id": owner})
        unit_of(connection).ensure_owner(owner)
    return owner


def page_on(
    db: Database,
    server: Server,
    limit: int,
    script: Iterator[list[tuple[str, int]]],
    *,
    fixed: bool,
    mappings: bool,
    handle: str,
) -> tuple[dict[UUID, tuple[int, bool]], PullWindow, dict[UUID, tuple[int, bool]]]:
    """Pull until no more is there, while the script's writes commit before each statement and page.

    Returns:
        What the client has, the last window, and the server's rows when its counter stood at ``through``.
    """
    client: dict[UUID, tuple[int, bool]] = {}
    cursor, through, rebuild = 0, None, None
    while True:
        with db.begin(handle=handle) as unit:
            # The guard's lock lets writers through, so nothing is written between it and this look.
            window = unit.guard_pull_cursor(server.owner, cursor, through=through, rebuild=rebuild)
            if through is None or not fixed:
                there = server.state()
            with before_each_statement(db, lambda: server.carry_out(next(script, []))):
                page = unit.pull_page(window, [Note, ITEMS, TodoList], limit=limit, mappings=mappings)
            for change in page.changes:
                row = change.row["id"] if isinstance(change.row, dict) else change.row.id
                client[row] = (change.revision, change.deleted)
        assert revisions(page) == sorted(revisions(page))
        assert all(cursor < revision <= page.next_cursor for revision in revisions(page))
        cursor, through, rebuild = page.next_cursor, window.through if fixed else None, page.rebuild
        if not page.has_more:
            return client, window, there
        server.carry_out(next(script, []))


@pytest.mark.parametrize("fixed", [True, False], ids=["fixed", "moving"])
def test_a_client_that_pages_while_others_write_has_the_servers_state(
    db: Database, rival: sa.Engine, fresh: Callable[[], None], fixed: bool
) -> None:
    """At ``through`` it has every row that was not written since, and none that was not there."""

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        limit=st.integers(1, 7),
        before=st.lists(ACTIONS, min_size=1, max_size=8),
        during=st.lists(ACTIONS, max_size=25),
        mappings=st.booleans(),
        handle=st.sampled_from(["session", "connection"]),
    )
    def check(
        limit: int,
        before: list[list[tuple[str, int]]],
        during: list[list[tuple[str, int]]],
        mappings: bool,
        handle: str,
    ) -> None:
        fresh()
        server = Server(rival, new_owner(rival))
        for actions in before:
            server.carry_out(actions)
        client, window, there = page_on(
            db, server, limit, iter(during), fixed=fixed, mappings=mappings, handle=handle
        )
        now = server.state()

        untouched = {row: state for row, state in there.items() if now[row] == state}
        assert untouched == {row: state for row, state in client.items() if row in untouched}
        assert all(revision <= window.through for revision, _ in client.values())
        assert client.keys() <= there.keys()

        quiet, _, _ = page_on(db, server, limit, iter([]), fixed=fixed, mappings=mappings, handle=handle)
        assert now == quiet

    check()


def test_a_rebuild_ends_while_others_write_and_purge(
    db: Database, rival: sa.Engine, fresh: Callable[[], None]
) -> None:
    """It never resyncs for what was purged before it started, and agrees with the server in the end."""

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        limit=st.integers(1, 5),
        before=st.lists(ACTIONS, min_size=2, max_size=8),
        purges=st.lists(st.lists(st.tuples(st.just("purge"), st.integers(0, 5)), max_size=1), max_size=20),
    )
    def check(limit: int, before: list[list[tuple[str, int]]], purges: list[list[tuple[str, int]]]) -> None:
        fresh()
        server = Server(rival, new_owner(rival))
        for actions in before:
            server.carry_out(actions)
        client, _, there = page_on(
            db, server, limit, iter(purges), fixed=True, mappings=True, handle="connection"
        )
        now = server.state()

        assert now == {row: state for row, state in client.items() if row in now}
        assert client.keys() <= there.keys()
        assert all(deleted for row, (_, deleted) in client.items() if row not in now)

    check()


LARGE = """
INSERT INTO entries (id, owner_id, revision)
SELECT gen_random_uuid(), lpad(to_hex(1 + n % 5), 32, '0')::uuid, 1 + n / 5 FROM generate_series(0, 99999) n;

INSERT INTO folders (id, owner_id, revision, title)
SELECT lpad(to_hex(n), 32, '0')::uuid, lpad(to_hex(1 + n % 500), 32, '0')::uuid, 1 + n / 500, ''
FROM generate_series(0, 9999) n;

INSERT INTO files (id, folder_id, revision)
SELECT gen_random_uuid(), lpad(to_hex(n % 10000), 32, '0')::uuid, 20 + n / 500
FROM generate_series(0, 99999) n
"""


@pytest.fixture(scope="module")
def large(shaped_tables: sa.Engine) -> Iterator[UUID]:
    """An owner with 20,000 of 100,000 entries, and 200 of 100,000 files in 20 folders."""
    with shaped_tables.begin() as connection:
        for insert in LARGE.split(";"):
            connection.execute(sa.text(insert))
    with shaped_tables.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("VACUUM ANALYZE entries, folders, files"))
    yield UUID(int=1)
    with shaped_tables.begin() as connection:
        connection.execute(sa.text("TRUNCATE entries, folders, files"))


def planned(connection: sa.Connection, statement: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the nodes of the plan that a prepared statement has for these parameters."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))
    for number, name in enumerate(names, 1):
        statement = statement.replace(f"%({name})s", f"${number}")
    values = ", ".join(f"'{parameters[name]}'" for name in names)
    connection.exec_driver_sql(f"PREPARE pull AS {statement}")
    ((explained,),) = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) EXECUTE pull({values})")
    connection.exec_driver_sql("DEALLOCATE pull")
    waiting, nodes = [explained[0]["Plan"]], []
    while waiting:
        nodes.append(waiting.pop())
        waiting += nodes[-1].get("Plans", [])
    return nodes


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("mappings", [False, True])
@pytest.mark.parametrize(
    ("source", "index", "key"),
    [(Entry, "entries_sync_idx", "owner_id"), (FILES, "files_sync_idx", "folder_id")],
    ids=["class", "child"],
)
def test_every_statement_is_a_range_scan(
    database_url: sa.URL, large: UUID, source: Any, index: str, key: str, mappings: bool, mode: str
) -> None:
    """Both columns of the index bound it, whichever plan PostgreSQL keeps for a prepared statement."""
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    sent: list[tuple[str, dict[str, Any]]] = []

    def record(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        sent.append((statement, parameters))

    window = PullWindow(large, after=50, through=20_000)
    with Session(engine) as session:
        event.listen(engine, "before_cursor_execute", record)
        page = pull_page(session, window, [source], limit=100, mappings=mappings)
        event.remove(engine, "before_cursor_execute", record)
        session.execute(sa.text(f"SET plan_cache_mode = {mode}"))
        plans = [planned(session.connection(), *each) for each in sent]

    assert (100, 2) == (len(page.changes), len(plans))
    for plan in plans:
        assert "Seq Scan" not in {node["Node Type"] for node in plan}
        (bounds,) = (node["Index Cond"] for node in plan if index == node.get("Index Name"))
        assert all(bound in bounds for bound in (f"({key} =", "(revision >", "(revision <="))

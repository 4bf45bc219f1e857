"""Set-based writes: a revision of its own for every row, whatever others do meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from threading import Event
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, column_property, mapped_column, relationship, sessionmaker

import baukit_sync
from baukit_sync import (
    InvalidArgumentError,
    OwnerChangedError,
    PrimaryRequiredError,
    RevisionAssignedError,
    SyncColumns,
    UnknownOwnerError,
    UnsafeTransactionError,
    aio,
    track,
)
from tests.support.product import CUTOFF, EXPIRED, NOTES, NOW, Item, Note, TodoList, User, write_note
from tests.support.threads import together
from tests.support.ways import Admin, Database, Unit


class Base(DeclarativeBase):
    """Models in shapes that the product does not have."""


class Animal(SyncColumns, Base):
    """The base of an inheritance."""

    __tablename__ = "pets"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "animal"}  # noqa: RUF012

    kind: Mapped[str]
    name: Mapped[str] = mapped_column(default="")
    length: Mapped[int] = column_property(sa.func.length(name))


class Dog(Animal):
    """A subclass with a table of its own."""

    __tablename__ = "pet_dogs"
    __mapper_args__ = {"polymorphic_identity": "dog"}  # noqa: RUF012

    id: Mapped[UUID] = mapped_column(sa.ForeignKey("pets.id"), primary_key=True)
    bark: Mapped[str] = mapped_column(default="woof")


class Cat(Animal):
    """A subclass in the base's table."""

    __mapper_args__ = {"polymorphic_identity": "cat"}  # noqa: RUF012

    lives: Mapped[int | None]


class Reading(Base):
    """A row with a composite key, columns under other names, no ``updated_at``, and children."""

    __tablename__ = "meter_readings"

    owner_id: Mapped[UUID] = mapped_column("whose", primary_key=True)
    sensor: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[int] = mapped_column("val", default=0)
    revision: Mapped[int] = mapped_column("rev", sa.BigInteger)
    deleted_at: Mapped[datetime | None] = mapped_column("gone", sa.DateTime(timezone=True))
    marks: Mapped[list[Mark]] = relationship(lazy="joined")


class Mark(Base):
    """What is loaded with a reading."""

    __tablename__ = "meter_marks"
    __table_args__ = (
        sa.ForeignKeyConstraint(["whose", "sensor"], ["meter_readings.whose", "meter_readings.sensor"]),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    whose: Mapped[UUID]
    sensor: Mapped[str]


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


@pytest.fixture
def rival(database_url: sa.URL) -> Iterator[sa.Engine]:
    """Connections of someone else."""
    engine = sa.create_engine(database_url)
    yield engine
    engine.dispose()


def unit_of(connection: sa.Connection) -> Unit:
    """Wrap a rival's connection."""
    return Unit(connection, lambda function, *args, **kwargs: function(*args, **kwargs), baukit_sync)


def write_notes(db: Database, owner: UUID, titles: str, **values: Any) -> None:
    """Commit a note for each letter."""
    with db.begin() as unit:
        add_notes(unit, owner, titles, **values)


def add_notes(unit: Unit, owner: UUID, titles: str, **values: Any) -> None:
    """Insert a note for each letter."""
    for title in titles:
        revision = unit.next_revision(owner)
        unit.sql(sa.insert(Note).values(id=uuid4(), owner_id=owner, revision=revision, title=title, **values))


def notes(unit: Unit | Admin, owner: UUID) -> dict[int, str]:
    """Return the title of each of the owner's notes by its revision."""
    rows: Sequence[Any] = unit.sql(
        "SELECT revision, title FROM notes WHERE owner_id = :owner ORDER BY 1", owner=owner
    )

    assert len(rows) == len({revision for revision, _ in rows})
    return dict(rows)


def counter(unit: Unit | Admin, owner: UUID) -> int:
    """Return the owner's counter."""
    last: int = unit.scalar("SELECT last_revision FROM sync_revisions WHERE owner_id = :owner", owner=owner)
    return last


@contextmanager
def before_statement(db: Database, number: int, act: Callable[[], object]) -> Iterator[None]:
    """Do something on another connection before the given statement, counted from 1."""
    sent = 0

    def listener(*_: Any) -> None:
        nonlocal sent
        sent += 1
        if sent == number:
            act()

    event.listen(db.sync_engine, "before_cursor_execute", listener)
    try:
        yield
    finally:
        event.remove(db.sync_engine, "before_cursor_execute", listener)
    assert number <= sent


def test_every_row_gets_its_own_revision(db: Database, admin: Admin, owners: list[UUID]) -> None:
    """For each owner they follow its counter without a gap, above the rows' earlier ones."""
    for owner, titles in zip(owners, ("aab", "a", "bbb"), strict=True):
        write_notes(db, owner, titles)
    with db.begin() as unit:
        written = unit.update_where(Note, {"title": "z"}, Note.title == "a")

    assert 3 == written
    assert [{3: "b", 4: "z", 5: "z"}, {2: "z"}, {1: "b", 2: "b", 3: "b"}] == [
        notes(admin, owner) for owner in owners
    ]
    assert [5, 2, 3] == [counter(admin, owner) for owner in owners]


def test_updated_at_moves_unless_it_is_given(db: Database, admin: Admin, owner: UUID) -> None:
    """The product's conflict rule sees the write."""
    write_notes(db, owner, "ab", updated_at=NOW)
    with db.begin() as unit:
        unit.update_where(Note, {"title": "c"}, Note.title == "a")
        unit.update_where(Note, {"title": "d", "updated_at": EXPIRED}, Note.title == "b")

    assert admin.scalar("SELECT updated_at > now() - interval '1 minute' FROM notes WHERE title = 'c'")
    assert EXPIRED == admin.scalar("SELECT updated_at FROM notes WHERE title = 'd'")


def test_deleting_makes_tombstones_with_revisions_of_their_own(
    db: Database, admin: Admin, owners: list[UUID]
) -> None:
    """A client that has the rows learns that they are gone."""
    for owner in owners[:2]:
        write_notes(db, owner, "ab")
    with db.begin() as unit:
        deleted = unit.soft_delete_where(Note, Note.title == "a")

    rows = admin.sql(
        "SELECT title, revision, deleted_at > now() - interval '1 minute' FROM notes ORDER BY 1, 2"
    )
    assert 2 == deleted
    assert [("a", 3, True), ("a", 3, True), ("b", 2, None), ("b", 2, None)] == [tuple(row) for row in rows]


def test_undeleting_revives_tombstones_with_revisions_of_their_own(
    db: Database, admin: Admin, owner: UUID
) -> None:
    """Live rows are not touched."""
    write_notes(db, owner, "a")
    write_notes(db, owner, "ab", deleted_at=NOW)
    with db.begin() as unit:
        revived = unit.undelete_where(Note, Note.title == "a")

    rows = admin.sql("SELECT title, revision, deleted_at FROM notes ORDER BY revision")
    assert 1 == revived
    assert [("a", 1, None), ("b", 3, NOW), ("a", 4, None)] == [tuple(row) for row in rows]


@pytest.mark.parametrize(
    ("include_deleted", "expected"), [(False, {2: "b", 3: "z"}), (True, {3: "z", 4: "z"})]
)
def test_tombstones_are_left_alone_unless_asked_for(
    db: Database, admin: Admin, owner: UUID, include_deleted: bool, expected: dict[int, str]
) -> None:
    """A write into a tombstone would be invisible."""
    write_notes(db, owner, "a")
    write_notes(db, owner, "b", deleted_at=NOW)
    with db.begin() as unit:
        written = unit.update_where(Note, {"title": "z"}, sa.true(), include_deleted=include_deleted)

    assert expected == notes(admin, owner)
    assert (list(expected.values()).count("z"), 1) == (
        written,
        admin.scalar("SELECT count(*) FROM notes WHERE deleted_at IS NOT NULL"),
    )


def test_a_tombstone_is_not_deleted_once_more(db: Database, admin: Admin, owner: UUID) -> None:
    """Its clients know, and the purge waits for its age."""
    write_notes(db, owner, "a", deleted_at=EXPIRED)
    with db.begin() as unit:
        assert 0 == unit.soft_delete_where(Note, sa.true())

    assert EXPIRED == admin.scalar("SELECT deleted_at FROM notes")
    assert 1 == counter(admin, owner)


def test_no_matching_row_moves_no_counter(db: Database, admin: Admin, owner: UUID) -> None:
    """And locks none: only the owners of matching rows are touched."""
    write_notes(db, owner, "a")
    with db.begin() as unit:
        with db.statements() as sent:
            assert 0 == unit.update_where(Note, {"title": "z"}, Note.title == "b")
        with db.begin() as other:
            other.sql("SET LOCAL lock_timeout = '500ms'")
            other.next_revision(owner)
            other.rollback()

    assert 1 == len(sent)
    assert ({1: "a"}, 1) == (notes(admin, owner), counter(admin, owner))


def test_an_owner_without_a_counter_stops_all_of_it(db: Database, admin: Admin, owner: UUID) -> None:
    """Nothing is written, for no owner, and the transaction stays usable."""
    stranger = uuid4()
    write_notes(db, owner, "a")
    with db.begin() as unit:
        unit.add(User(id=stranger))
        unit.flush()
        unit.sql(sa.insert(Note).values(id=uuid4(), owner_id=stranger, revision=1, title="a"))
    with db.begin() as unit:
        with pytest.raises(UnknownOwnerError):
            unit.update_where(Note, {"title": "z"}, sa.true())
        unit.next_revision(owner)

    assert ({1: "a"}, 2) == (notes(admin, owner), counter(admin, owner))


def test_values_may_be_sql_and_keys_attributes(db: Database, admin: Admin, owner: UUID) -> None:
    """An expression sees the row as it was."""
    write_notes(db, owner, "ab")
    with db.begin() as unit:
        unit.update_where(Note, {Note.title: Note.title + "-" + sa.cast(Note.revision, sa.Text)}, sa.true())

    assert ["a-1", "b-2"] == sorted(notes(admin, owner).values())


def test_criteria_may_join_another_table(db: Database, admin: Admin, owners: list[UUID]) -> None:
    """A row that matches twice is written once, and leaves no gap."""
    write_notes(db, owners[0], "ab")
    write_notes(db, owners[1], "a")
    with db.begin() as unit:
        for _ in range(3):
            unit.sql(
                sa.insert(TodoList).values(
                    id=uuid4(), owner_id=owners[0], revision=unit.next_revision(owners[0])
                )
            )
        written = unit.update_where(Note, {"title": "z"}, TodoList.owner_id == Note.owner_id)

    assert 2 == written
    assert ({6: "z", 7: "z"}, 7) == (notes(admin, owners[0]), counter(admin, owners[0]))
    assert {1: "a"} == notes(admin, owners[1])


def test_criteria_may_be_a_subquery(db: Database, admin: Admin, owner: UUID) -> None:
    """Such as: the notes of owners who have a list."""
    write_notes(db, owner, "ab")
    with db.begin() as unit:
        some_list = sa.exists().where(TodoList.owner_id == Note.owner_id)
        assert 0 == unit.update_where(Note, {"title": "z"}, some_list)
        assert 2 == unit.update_where(Note, {"title": "z"}, ~some_list)


@pytest.mark.parametrize("rows", [1, 500])
def test_the_number_of_statements_does_not_grow_with_the_rows(
    db: Database, owners: list[UUID], rows: int
) -> None:
    """Find the owners, lock their counters, write."""
    with db.begin() as unit:
        for owner in owners:
            unit.sql(
                "INSERT INTO notes (id, owner_id, revision, title)"
                " SELECT gen_random_uuid(), :owner, n, 'a' FROM generate_series(1, :rows) n",
                owner=owner,
                rows=rows,
            )
        unit.allocate_revisions(dict.fromkeys(owners, rows))
        with db.statements() as sent:
            assert 3 * rows == unit.update_where(Note, {"title": "z"}, sa.true())

    assert 3 == len(sent)


def test_ten_thousand_rows_take_one_call(db: Database, admin: Admin, owner: UUID) -> None:
    """Their revisions are the counter's next ten thousand."""
    with db.begin() as unit:
        unit.sql(
            "INSERT INTO notes (id, owner_id, revision, title)"
            " SELECT gen_random_uuid(), :owner, n, 'a' FROM generate_series(1, 10000) n",
            owner=owner,
        )
        unit.next_revisions(owner, 10_000)
        assert 10_000 == unit.soft_delete_where(Note, Note.owner_id == owner)

    facts = "SELECT count(DISTINCT revision), min(revision), max(revision) FROM notes"
    assert [(10_000, 10_001, 20_000)] == [tuple(row) for row in admin.sql(facts)]
    assert 20_000 == counter(admin, owner)


def test_two_hundred_calls_leave_one_place_in_the_cache_for_each_statement(db: Database, owner: UUID) -> None:
    """Values and criteria are parameters, also where a loaded instance is refreshed."""
    write_notes(db, owner, "abcdefghij")
    sizes = set()
    with db.begin() as unit:
        loaded = unit.sql(sa.select(Note))
        for number in range(200):
            unit.update_where(Note, {"title": str(number)}, Note.revision > number)
            if number:
                sizes.add(len(db.sync_engine._compiled_cache))

    assert 10 == len(loaded)
    assert 1 == len(sizes)


def test_a_session_with_loaded_instances_sees_the_new_rows(db: Database, owner: UUID) -> None:
    """Without a statement when they are read: an async session could not send it."""
    write_notes(db, owner, "ab")
    with db.begin() as unit:
        loaded = {note.title: note for (note,) in unit.sql(sa.select(Note))}
        unit.update_where(Note, {"title": "z"}, Note.title == "a")
        unit.soft_delete_where(Note, Note.title == "b")
        with db.statements() as sent:
            got = [
                (note.title, note.revision, note.deleted_at is not None, note.updated_at is not None)
                for note in (loaded["a"], loaded["b"])
            ]

    assert [("z", 3, False, True), ("b", 4, True, True)] == got
    assert [] == sent


def test_more_than_a_thousand_loaded_instances_are_refreshed(db: Database, owner: UUID) -> None:
    """A thousand at a time; those that were not written are not read again."""
    with db.begin() as unit:
        unit.sql(
            "INSERT INTO notes (id, owner_id, revision, title) SELECT gen_random_uuid(), :owner, n,"
            " CASE WHEN n > 1900 THEN 'b' ELSE 'a' END FROM generate_series(1, 2500) n",
            owner=owner,
        )
        unit.next_revisions(owner, 2_500)
    with db.begin() as unit:
        loaded = [note for (note,) in unit.sql(sa.select(Note))]
        with db.statements() as sent:
            assert 1_900 == unit.update_where(Note, {"title": "z"}, Note.title == "a")
        titles = [note.title for note in loaded]
        stamped = {note.revision for note in loaded if note.title == "z"}

    assert (1_900, 600) == (titles.count("z"), titles.count("b"))
    assert set(range(2_501, 4_401)) == stamped
    assert 5 == len(sent)


@pytest.mark.parametrize("autoflush", [True, False])
def test_pending_changes_are_flushed_first(db: Database, admin: Admin, owner: UUID, autoflush: bool) -> None:
    """Criteria see them, and the refresh does not undo them."""
    write_notes(db, owner, "ab")
    with db.begin() as unit:
        unit.session.autoflush = autoflush
        loaded = {note.title: note for (note,) in unit.sql(sa.select(Note))}
        loaded["a"].title = "c"
        unit.add(Note(owner_id=owner, revision=unit.next_revision(owner), title="c"))
        assert 2 == unit.update_where(Note, {"title": Note.title + "!"}, Note.title == "c")
        assert "c!" == loaded["a"].title

    assert {2: "b", 4: "c!", 5: "c!"} == notes(admin, owner)


def test_a_connection_writes_too(db: Database, admin: Admin, owner: UUID) -> None:
    """A Core product has no session."""
    write_notes(db, owner, "ab")
    with db.begin(handle="connection") as unit:
        assert 1 == unit.update_where(Note, {"title": "z"}, Note.title == "a")

    assert {2: "b", 3: "z"} == notes(admin, owner)


def test_a_tracked_session_lets_them_pass(db: Database, admin: Admin, owner: UUID) -> None:
    """They stamp what they write, so there is nothing to refuse."""
    write_notes(db, owner, "ab")
    factory: Any = async_sessionmaker if db.is_async else sessionmaker
    sessions = factory(db.engine)
    track(sessions)
    unit = Unit(sessions(), db.call, aio if db.is_async else baukit_sync)
    unit.update_where(Note, {"title": "z"}, Note.title == "a")
    unit.soft_delete_where(Note, Note.title == "b")
    unit.commit()
    db.call(unit.session.close)

    assert {3: "z", 4: "b"} == notes(admin, owner)


def test_a_rollback_takes_everything_back(db: Database, admin: Admin, owner: UUID) -> None:
    """Rows and counters, also to a savepoint."""
    write_notes(db, owner, "ab")
    with db.begin() as unit:
        with unit.savepoint() as savepoint:
            unit.soft_delete_where(Note, sa.true())
            db.call(savepoint.rollback)
        unit.update_where(Note, {"title": "z"}, Note.title == "a")

    assert ({2: "b", 3: "z"}, 3) == (notes(admin, owner), counter(admin, owner))


def test_a_subclass_writes_its_own_rows_only(db: Database, shapes: None, owner: UUID) -> None:
    """Whether it has a table of its own or shares its base's."""
    with db.begin() as unit:
        unit.next_revisions(owner, 3)
        unit.add(*(made(owner_id=owner, revision=n) for n, made in enumerate((Animal, Dog, Cat), 1)))
        unit.flush()
        unit.update_where(Cat, {"name": "Tom", "lives": 7}, sa.true())
        unit.update_where(Dog, {"name": "Rex", "bark": "wuff"}, sa.true())
        unit.flush()
        rows = unit.sql(
            "SELECT kind, revision, name, lives, bark FROM pets LEFT JOIN pet_dogs USING (id) ORDER BY kind"
        )

    assert [("animal", 1, "", None, None), ("cat", 4, "Tom", 7, None), ("dog", 5, "Rex", None, "wuff")] == [
        tuple(row) for row in rows
    ]


def test_a_base_class_writes_the_rows_of_its_subclasses(db: Database, shapes: None, owner: UUID) -> None:
    """And refreshes their instances, with the columns of their own."""
    with db.begin() as unit:
        unit.next_revisions(owner, 3)
        animals = [made(owner_id=owner, revision=n) for n, made in enumerate((Animal, Dog, Cat), 1)]
        unit.add(*animals)
        unit.flush()
        unit.update_where(Animal, {"name": "x"}, sa.true())
        with db.statements() as sent:
            got = [(animal.name, animal.revision > 3) for animal in animals]
            own = (animals[1].bark, animals[2].lives)

    assert [("x", True)] * 3 == got
    assert ("woof", None) == own
    assert [] == sent


def test_a_value_may_refer_to_the_other_table_of_a_joined_subclass(
    db: Database, shapes: None, owner: UUID
) -> None:
    """In both directions, and to the same row: not to some other one."""
    with db.begin() as unit:
        unit.next_revisions(owner, 3)
        for n, name in enumerate("abc", 1):
            unit.add(Dog(owner_id=owner, revision=n, name=name, bark=f"{name}-wuff"))
        unit.flush()
        written = unit.update_where(Dog, {"name": Dog.bark, "bark": Dog.name}, Dog.bark != "c-wuff")
        rows = unit.sql("SELECT name, bark, revision FROM pets JOIN pet_dogs USING (id) ORDER BY name")

    assert 2 == written
    assert [("a-wuff", "a"), ("b-wuff", "b"), ("c", "c-wuff")] == [(name, bark) for name, bark, _ in rows]
    assert {3, 4, 5} == {revision for _, _, revision in rows}


def test_a_composite_key_and_renamed_columns_are_fine(
    db: Database, admin: Admin, shapes: None, owners: list[UUID]
) -> None:
    """The loaded instances, whose children come by a join, are refreshed as well."""
    with db.begin() as unit:
        unit.allocate_revisions(dict.fromkeys(owners, 2))
        loaded = [
            Reading(owner_id=owner, sensor=sensor, revision=revision, marks=[Mark(), Mark()])
            for owner in owners
            for revision, sensor in enumerate("ab", 1)
        ]
        unit.add(*loaded)
        written = unit.update_where(Reading, {Reading.value: 5}, Reading.sensor == "a")
        unit.soft_delete_where(Reading, Reading.sensor == "a", Reading.owner_id == owners[0])
        got = sorted((each.sensor, each.value, each.revision, len(each.marks)) for each in loaded)

    assert 3 == written
    assert [("a", 5, 3, 2)] * 2 + [("a", 5, 4, 2)] + [("b", 0, 2, 2)] * 3 == got
    assert [4, 3, 3] == [counter(admin, owner) for owner in owners]


def test_writers_of_the_same_owners_in_any_order_do_not_deadlock(
    db: Database, admin: Admin, owners: list[UUID]
) -> None:
    """Many rounds; every revision is handed out once, and every write counts."""
    for owner in owners:
        write_notes(db, owner, "abcd")

    def update(titles: list[str]) -> int:
        written = 0
        for _ in range(25):
            with db.begin() as unit:
                written += unit.update_where(Note, {"title": Note.title}, Note.title.in_(titles))
        return written

    def delete_and_revive() -> int:
        written = 0
        for _ in range(12):
            with db.begin() as unit:
                written += unit.soft_delete_where(Note, Note.title == "d")
            with db.begin() as unit:
                written += unit.undelete_where(Note, Note.title == "d")
        return written

    def allocate(order: list[UUID]) -> int:
        for _ in range(25):
            with db.begin() as unit:
                unit.allocate_revisions(dict.fromkeys(order, 1))
        return 25 * len(order)

    written = together(
        partial(update, ["a", "b"]),
        partial(update, ["b", "a"]),
        partial(update, ["a", "c", "d"]),
        delete_and_revive,
        partial(allocate, owners[::-1]),
    )

    assert 12 + sum(written) == sum(counter(admin, owner) for owner in owners)
    assert [4, 4, 4] == [len(notes(admin, owner)) for owner in owners]


def test_counters_are_locked_in_owner_order_whatever_their_place(
    db: Database, admin: Admin, background: ThreadPoolExecutor
) -> None:
    """Who locks both in key order never meets a writer that holds one and waits for the other."""
    high, low = sorted([uuid4(), uuid4()], reverse=True)
    with db.begin() as unit:
        for owner in (high, low):
            unit.add(User(id=owner))
            unit.ensure_owner(owner)
            add_notes(unit, owner, "a")

    def update() -> int:
        with db.begin() as unit:
            unit.sql("SET LOCAL enable_indexscan = off")
            unit.sql("SET LOCAL enable_bitmapscan = off")
            written: int = unit.update_where(Note, {"title": "z"}, sa.true())
            return written

    lock = "SELECT FROM sync_revisions WHERE owner_id = :owner FOR UPDATE"
    with db.begin() as other:
        other.sql(lock, owner=low)
        waiting = background.submit(update)
        admin.wait_for_blocked()
        other.sql(f"{lock} NOWAIT", owner=high)

    assert 2 == waiting.result(10)


def test_what_commits_between_the_search_and_the_locks_counts(
    db: Database, admin: Admin, owner: UUID, rival: sa.Engine
) -> None:
    """A row that no longer matches is left alone, and one that matches now is written."""
    write_notes(db, owner, "aab")

    def rewrite() -> None:
        with rival.begin() as connection:
            unit = unit_of(connection)
            for title, to in ((1, "c"), (3, "a")):
                revision = unit.next_revision(owner)
                connection.execute(
                    sa.update(Note).where(Note.revision == title).values(title=to, revision=revision)
                )
            add_notes(unit, owner, "a")

    with db.begin() as unit, before_statement(db, 2, rewrite):
        written = unit.update_where(Note, {"title": "z"}, Note.title == "a")

    assert 3 == written
    assert ({4: "c", 7: "z", 8: "z", 9: "z"}, 9) == (notes(admin, owner), counter(admin, owner))


def test_a_row_of_an_owner_that_was_not_there_yet_is_left_alone(
    db: Database, admin: Admin, owners: list[UUID], rival: sa.Engine
) -> None:
    """Its counter is not locked; it counts as written after this."""
    write_notes(db, owners[0], "a")

    def add_another() -> None:
        with rival.begin() as connection:
            add_notes(unit_of(connection), owners[1], "a")

    with db.begin() as unit, before_statement(db, 2, add_another):
        written = unit.update_where(Note, {"title": "z"}, Note.title == "a")

    assert 1 == written
    assert [{2: "z"}, {1: "a"}] == [notes(admin, owner) for owner in owners[:2]]


@pytest.mark.parametrize("orm", [True, False])
def test_an_open_writer_is_waited_for_and_its_write_is_not_lost(
    db: Database, admin: Admin, owner: UUID, background: ThreadPoolExecutor, orm: bool
) -> None:
    """The rows are numbered after its commit, so no revision comes twice."""
    write_notes(db, owner, "aab")

    def delete() -> int:
        with db.begin() as unit:
            deleted: int = unit.soft_delete_where(Note, Note.title == "a")
            return deleted

    with db.begin() as writer:
        revision = writer.next_revision(owner)
        if orm:
            ((note,),) = writer.sql(sa.select(Note).where(Note.revision == 1))
            note.title, note.revision = "c", revision
            writer.flush()
        else:
            writer.sql(sa.update(Note).where(Note.revision == 1).values(title="c", revision=revision))
        waiting = background.submit(delete)
        admin.wait_for_blocked()

    assert 1 == waiting.result(10)
    assert {3: "b", 4: "c", 5: "a"} == notes(admin, owner)


def test_a_row_that_an_open_writer_adds_is_written_too(
    db: Database, admin: Admin, owner: UUID, background: ThreadPoolExecutor
) -> None:
    """The counter is waited for before any row is looked at."""
    write_notes(db, owner, "a")

    def delete() -> int:
        with db.begin() as unit:
            deleted: int = unit.soft_delete_where(Note, Note.title == "a")
            return deleted

    with db.begin() as writer:
        add_notes(writer, owner, "a")
        waiting = background.submit(delete)
        admin.wait_for_blocked()

    assert 2 == waiting.result(10)
    assert {3: "a", 4: "a"} == notes(admin, owner)


def test_a_row_that_is_locked_without_its_counter_is_read_again(
    db: Database, admin: Admin, owner: UUID, background: ThreadPoolExecutor
) -> None:
    """Its criteria hold for what the other transaction has committed, and no revision is spent on it."""
    write_notes(db, owner, "aab")

    def update() -> int:
        with db.begin() as unit:
            written: int = unit.update_where(Note, {"title": Note.title + "!"}, Note.title == "a")
            return written

    with db.begin() as other:
        other.sql(sa.update(Note).where(Note.revision == 1).values(title="c"))
        waiting = background.submit(update)
        admin.wait_for_blocked()

    assert 1 == waiting.result(10)
    assert ({1: "c", 3: "b", 4: "a!"}, 4) == (notes(admin, owner), counter(admin, owner))


def test_the_purge_skips_what_is_being_revived(db: Database, admin: Admin, owner: UUID) -> None:
    """It waits for nothing, and finds a live row afterwards."""
    write_notes(db, owner, "a", deleted_at=EXPIRED)
    with db.begin() as unit:
        assert 1 == unit.undelete_where(Note, sa.true())
        with db.begin() as purge:
            purge.sql("SET LOCAL lock_timeout = '500ms'")
            during = purge.purge_tombstone_batch(NOTES, CUTOFF, 10)
    with db.begin() as purge:
        after = purge.purge_tombstone_batch(NOTES, CUTOFF, 10)

    assert (0, 0) == (during.deleted, after.deleted)
    assert {2: "a"} == notes(admin, owner)


def test_what_the_purge_has_deleted_is_not_revived(
    db: Database, admin: Admin, owner: UUID, background: ThreadPoolExecutor
) -> None:
    """The reviver waits for the batch, then finds nothing and spends no revision."""
    write_notes(db, owner, "a", deleted_at=EXPIRED)

    def undelete() -> int:
        with db.begin() as unit:
            revived: int = unit.undelete_where(Note, sa.true())
            return revived

    with db.begin() as purge:
        assert 1 == purge.purge_tombstone_batch(NOTES, CUTOFF, 10).deleted
        waiting = background.submit(undelete)
        admin.wait_for_blocked()

    assert 0 == waiting.result(10)
    assert ({}, 1) == (notes(admin, owner), counter(admin, owner))


def test_a_purge_that_holds_the_rows_gives_way_to_who_holds_the_counter(
    db: Database, admin: Admin, owner: UUID, rival: sa.Engine, background: ThreadPoolExecutor
) -> None:
    """Between a purge's two locks nobody waits for ever, and the row that is revived stays."""
    write_notes(db, owner, "a", deleted_at=EXPIRED)
    selected, revived = Event(), Event()

    def pause(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "sync_revisions" in statement:
            selected.set()
            assert revived.wait(10)

    def purge() -> Any:
        event.listen(rival, "before_cursor_execute", pause)
        with rival.begin() as connection:
            return unit_of(connection).purge_tombstone_batch(NOTES, CUTOFF, 10)

    def undelete() -> int:
        with db.begin() as unit:
            written: int = unit.undelete_where(Note, sa.true())
            return written

    purging = background.submit(purge)
    assert selected.wait(10)
    waiting = background.submit(undelete)
    admin.wait_for_blocked()
    revived.set()

    batch = purging.result(10)
    assert (1, 0) == (batch.selected, batch.deleted)
    assert 1 == waiting.result(10)
    assert {2: "a"} == notes(admin, owner)


def test_a_reviver_and_a_purge_never_lose_a_row_between_them(
    db: Database, admin: Admin, owners: list[UUID]
) -> None:
    """Many rounds: every row is live with a fresh revision, or was purged below the horizon."""
    for owner in owners:
        write_notes(db, owner, "a" * 60, deleted_at=EXPIRED)

    def purge() -> int:
        deleted = 0
        for _ in range(30):
            with db.begin() as unit:
                deleted += unit.purge_tombstone_batch(NOTES, CUTOFF, 3).deleted
        return deleted

    def undelete() -> int:
        revived = 0
        for number in range(30):
            with db.begin() as unit:
                between = Note.revision.between(2 * number, 2 * number + 1)
                revived += unit.undelete_where(Note, between)
        return revived

    purged, revived = together(purge, undelete)
    live = admin.scalar("SELECT count(*) FROM notes WHERE deleted_at IS NULL AND revision > 60")

    assert revived == live
    assert 180 - purged == admin.scalar("SELECT count(*) FROM notes")


REFUSED: dict[str, tuple[type[Exception], Any, tuple[Any, ...]]] = {
    "owner": (OwnerChangedError, {"owner_id": uuid4()}, (sa.true(),)),
    "owner as attribute": (OwnerChangedError, {Note.owner_id: uuid4()}, (sa.true(),)),
    "revision": (RevisionAssignedError, {"revision": 5}, (sa.true(),)),
    "key": (InvalidArgumentError, {"id": uuid4()}, (sa.true(),)),
    "nothing": (InvalidArgumentError, {}, (sa.true(),)),
    "unknown": (InvalidArgumentError, {"colour": "red"}, (sa.true(),)),
    "another class": (InvalidArgumentError, {TodoList.updated_at: NOW}, (sa.true(),)),
    "number": (InvalidArgumentError, {1: "x"}, (sa.true(),)),
    "no criterion": (InvalidArgumentError, {"title": "x"}, ()),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_values_that_may_not_be_written_are_refused_before_any_io(nowhere: Database, case: str) -> None:
    """Nor is every row written because a criterion was forgotten."""
    error, values, criteria = REFUSED[case]
    with nowhere.begin() as unit, pytest.raises(error):
        unit.update_where(Note, values, *criteria)


def test_a_computed_attribute_cannot_be_written(nowhere: Database) -> None:
    """It has no column."""
    with nowhere.begin() as unit, pytest.raises(InvalidArgumentError):
        unit.update_where(Animal, {"length": 3}, sa.true())


@pytest.mark.parametrize("model", [Item, User, Note.__table__, "notes", None, object])
@pytest.mark.parametrize("function", ["update_where", "soft_delete_where", "undelete_where"])
def test_a_model_without_the_columns_is_refused_before_any_io(
    nowhere: Database, model: Any, function: str
) -> None:
    """A child without an owner column gets its revisions by hand."""
    arguments = [{"deleted_at": NOW}] if function == "update_where" else []
    with nowhere.begin() as unit, pytest.raises(InvalidArgumentError) as caught:
        getattr(unit, function)(model, *arguments, sa.true())

    assert "model" == caught.value.argument


@pytest.mark.parametrize("function", ["soft_delete_where", "undelete_where"])
def test_a_forgotten_criterion_deletes_and_revives_nothing(nowhere: Database, function: str) -> None:
    """All rows is ``sa.true()``."""
    with nowhere.begin() as unit, pytest.raises(InvalidArgumentError) as caught:
        getattr(unit, function)(Note)

    assert "criteria" == caught.value.argument


def test_autocommit_is_refused_before_anything_is_sent(db: Database, owner: UUID) -> None:
    """Pending objects are not written either."""
    with db.begin(isolation="AUTOCOMMIT") as unit:
        unit.add(Note(owner_id=owner, revision=1))
        with db.statements() as sent, pytest.raises(UnsafeTransactionError):
            unit.soft_delete_where(Note, sa.true())
        unit.rollback()

    assert [] == sent


def test_a_read_only_transaction_is_refused(db: Database, owner: UUID) -> None:
    """The counters cannot be locked."""
    write_notes(db, owner, "a")
    with db.begin() as unit:
        unit.sql("SET TRANSACTION READ ONLY")
        with pytest.raises(PrimaryRequiredError):
            unit.soft_delete_where(Note, sa.true())
        unit.rollback()


def test_a_push_from_behind_a_set_based_delete_is_pulled(db: Database, owner: UUID) -> None:
    """What is written in one call comes to the client like any other row, in pages."""
    write_notes(db, owner, "aaaab")
    with db.begin() as unit:
        write_note(unit, owner)
        unit.soft_delete_where(Note, Note.title == "a")
        window = unit.guard_pull_cursor(owner, 6)
        page = unit.pull_page(window, [Note], limit=3)

    assert [(7, True), (8, True), (9, True)] == [(change.revision, change.deleted) for change in page.changes]
    assert page.has_more

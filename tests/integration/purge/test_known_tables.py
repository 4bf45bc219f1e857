"""Tables from ``for_model``: what is deleted, what stays, and what the report says of both."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from anyio.from_thread import BlockingPortal
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from baukit_sync import (
    InvalidArgumentError,
    PrimaryRequiredError,
    PurgeBatch,
    PurgeProgress,
    PurgeReport,
    PurgeUnfinished,
    SyncColumns,
    TombstoneTable,
    add_sync_tables,
    sync_indexes,
)
from tests.support.product import CUTOFF, EXPIRED, RECENT
from tests.support.ways import WAYS, Admin, Database, Unit, product_database


class Base(DeclarativeBase):
    """A product with every shape that a purge knows."""


add_sync_tables(Base.metadata)


class Folder(SyncColumns, Base):
    """A tree."""

    __tablename__ = "folders"

    parent_id: Mapped[UUID | None] = mapped_column(sa.ForeignKey("folders.id"))


class Page(SyncColumns, Base):
    """A parent, in a schema of its own whose name needs quotes."""

    __tablename__ = "Pages 1"
    __table_args__ = {"schema": "Our Own"}  # noqa: RUF012 -- SQLAlchemy's way


class Line(Base):
    """A child without an owner column."""

    __tablename__ = "lines"
    __table_args__ = (*sync_indexes("lines", owner="page_id"),)

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    page_id: Mapped[UUID | None] = mapped_column(sa.ForeignKey("Our Own.Pages 1.id"))
    deleted_at: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True))
    revision: Mapped[int] = mapped_column(sa.BigInteger)
    page: Mapped[Page | None] = relationship()


class Word(Base):
    """A grandchild: its owner is two tables away."""

    __tablename__ = "words"
    __table_args__ = (*sync_indexes("words", owner="line_id"),)

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    line_id: Mapped[UUID] = mapped_column(sa.ForeignKey("lines.id"))
    deleted_at: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True))
    revision: Mapped[int] = mapped_column(sa.BigInteger)
    line: Mapped[Line] = relationship()


class Cell(Base):
    """A composite key."""

    __tablename__ = "cells"
    __table_args__ = (*sync_indexes("cells"),)

    owner_id: Mapped[UUID] = mapped_column(primary_key=True)
    row: Mapped[int] = mapped_column(primary_key=True)
    column: Mapped[str] = mapped_column(primary_key=True)
    deleted_at: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True))
    revision: Mapped[int] = mapped_column(sa.BigInteger)


class Shape(SyncColumns, Base):
    """The base of joined subclasses."""

    __tablename__ = "shapes"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "shape"}  # noqa: RUF012

    kind: Mapped[str]


class Circle(Shape):
    """A joined subclass."""

    __tablename__ = "circles"
    __mapper_args__ = {"polymorphic_identity": "circle"}  # noqa: RUF012

    id: Mapped[UUID] = mapped_column(sa.ForeignKey("shapes.id"), primary_key=True)
    radius: Mapped[int]


class Disc(Circle):
    """A joined subclass of a joined subclass, which the database removes by itself."""

    __tablename__ = "discs"
    __mapper_args__ = {"polymorphic_identity": "disc"}  # noqa: RUF012

    id: Mapped[UUID] = mapped_column(sa.ForeignKey("circles.id", ondelete="CASCADE"), primary_key=True)


FOLDERS = TombstoneTable.for_model(Folder)
PAGES = TombstoneTable.for_model(Page)
LINES = TombstoneTable.for_model(Line, owner_via=Line.page)
WORDS = TombstoneTable.for_model(Word, owner_via=(Word.line, Line.page))
CELLS = TombstoneTable.for_model(Cell)
SHAPES = TombstoneTable.for_model(Shape)
CHILDREN_FIRST = [WORDS, LINES, PAGES, CELLS, SHAPES, FOLDERS]


@pytest.fixture(params=WAYS)
def db(
    request: pytest.FixtureRequest, empty_database_url: sa.URL, portal: BlockingPortal
) -> Iterator[Database]:
    """A database with the product's tables, in each of the three ways."""
    with product_database(request.param, empty_database_url, portal, Base.metadata) as database:
        yield database


@pytest.fixture
def admin(empty_database_url: sa.URL) -> Admin:
    """A look from outside."""
    return Admin(empty_database_url)


@pytest.fixture
def owner(db: Database) -> UUID:
    """An owner with a counter."""
    return new_owner(db)


def new_owner(db: Database) -> UUID:
    """Create a counter."""
    owner = uuid4()
    with db.begin() as unit:
        unit.ensure_owner(owner)
    return owner


def add(unit: Unit, owner: UUID, model: Any, /, *deleted_at: datetime | None, **values: Any) -> list[UUID]:
    """Insert rows, each with a revision of its own; return their ids."""
    ids = [uuid4() for _ in deleted_at]
    for row_id, instant in zip(ids, deleted_at, strict=True):
        own = {"owner_id": owner} if "owner_id" in model.__table__.c else {}
        key = (
            {"id": row_id} if "id" in model.__table__.c else {"row": unit.next_revision(owner), "column": "a"}
        )
        row = {**own, **key, "deleted_at": instant, "revision": unit.next_revision(owner), **values}
        unit.sql(sa.insert(model.__table__).values(row))
    return ids


def write(db: Database, owner: UUID, *deleted_at: datetime | None) -> None:
    """Commit folders."""
    with db.begin() as unit:
        add(unit, owner, Folder, *deleted_at)


def purge(db: Database, *tables: TombstoneTable, limit: int = 10, **options: Any) -> PurgeReport:
    """Run a purge, of the folders by default."""
    report: PurgeReport = db.purge(tables or (FOLDERS,), CUTOFF, limit, **options)
    return report


def horizons(admin: Admin) -> dict[UUID, int]:
    """Return every horizon."""
    rows = admin.sql("SELECT owner_id, horizon_revision FROM sync_purge_horizons")
    return {row.owner_id: row.horizon_revision for row in rows}


def count(admin: Admin, table: str) -> int:
    """Count a table's rows."""
    number: int = admin.scalar(f"SELECT count(*) FROM {table}")
    return number


def test_only_expired_tombstones_go_and_the_horizon_is_their_greatest_revision(
    db: Database, admin: Admin, owner: UUID
) -> None:
    """Live rows and recent tombstones stay."""
    write(db, owner, EXPIRED, None, EXPIRED, RECENT)
    report = purge(db)

    assert 2 == report.deleted
    assert report.complete
    assert {owner: 3} == horizons(admin)
    assert [(2,), (4,)] == admin.sql("SELECT revision FROM folders ORDER BY revision")


def test_every_shape_of_table_is_purged_in_one_run(db: Database, admin: Admin, owner: UUID) -> None:
    """Parents, children and grandchildren, composite keys, subclasses, and a schema of its own."""
    with db.begin() as unit:
        page, live_page = add(unit, owner, Page, EXPIRED, None)
        line, _ = add(unit, owner, Line, EXPIRED, EXPIRED, page_id=page)
        add(unit, owner, Line, None, EXPIRED, page_id=live_page)
        add(unit, owner, Word, EXPIRED, EXPIRED, line_id=line)
        add(unit, owner, Cell, EXPIRED, None, EXPIRED)
        circle, shape = add(unit, owner, Shape, EXPIRED, EXPIRED, kind="circle")
        (live_shape,) = add(unit, owner, Shape, None, kind="circle")
        for each in (circle, live_shape):
            unit.sql(sa.insert(Circle.__table__).values(id=each, radius=1))
            unit.sql(sa.insert(Disc.__table__).values(id=each))
    report = purge(db, *CHILDREN_FIRST, limit=2)

    assert shape != circle
    assert {"words": 2, "lines": 3, "Our Own.Pages 1": 1, "cells": 2, "shapes": 2, "folders": 0} == {
        table.name: table.deleted for table in report.tables
    }
    assert report.complete
    assert [1, 1, 1, 1, 1] == [
        count(admin, table) for table in ('"Our Own"."Pages 1"', "lines", "cells", "circles", "discs")
    ]
    assert {owner: admin.scalar("SELECT max(revision) - 1 FROM shapes")} == horizons(admin)


def test_a_parent_waits_for_its_children_and_says_so(db: Database, admin: Admin, owner: UUID) -> None:
    """A live child, or one that is not yet expired, keeps its parent."""
    with db.begin() as unit:
        (page,) = add(unit, owner, Page, EXPIRED)
        add(unit, owner, Line, RECENT, page_id=page)
    report = purge(db, LINES, PAGES)

    assert 0 == report.deleted
    assert (PurgeUnfinished.CHILDREN,) == report.unfinished
    assert (0, 1) == tuple(table.expired_left for table in report.tables)
    assert EXPIRED == report.tables[1].oldest_left
    assert {} == horizons(admin)


def test_a_tree_goes_from_its_leaves_up(db: Database, admin: Admin, owner: UUID) -> None:
    """One run takes every level; a branch with a live leaf stays."""
    with db.begin() as unit:
        (root,) = add(unit, owner, Folder, EXPIRED)
        for parent in [root, root]:
            for _ in range(4):
                (parent,) = add(unit, owner, Folder, EXPIRED, parent_id=parent)  # noqa: PLW2901
        (kept,) = add(unit, owner, Folder, EXPIRED)
        add(unit, owner, Folder, None, parent_id=kept)
        itself = uuid4()
        add(unit, owner, Folder, EXPIRED, id=itself, parent_id=itself)
    report = purge(db, limit=3)

    assert 10 == report.deleted
    assert (PurgeUnfinished.CHILDREN,) == report.unfinished
    assert 2 == count(admin, "folders")


def test_one_batch_in_the_callers_transaction_takes_several_owners(db: Database, admin: Admin) -> None:
    """It deletes at most its limit, and nothing is committed for the caller."""
    owners = sorted(new_owner(db) for _ in range(3))
    for owner in owners:
        write(db, owner, EXPIRED - timedelta(days=1), EXPIRED)
    with db.begin() as unit:
        first: PurgeBatch = unit.purge_tombstone_batch(FOLDERS, CUTOFF, 3)
        unit.rollback()
    with db.begin() as unit:
        again: PurgeBatch = unit.purge_tombstone_batch(FOLDERS, CUTOFF, 3)

    assert PurgeBatch(selected=3, deleted=3) == first == again
    assert {owners[0]: 2, owners[1]: 1} == horizons(admin)
    with db.begin() as unit:
        assert PurgeBatch(selected=3, deleted=3) == unit.purge_tombstone_batch(FOLDERS, CUTOFF, 10)
        assert PurgeBatch(selected=0, deleted=0) == unit.purge_tombstone_batch(FOLDERS, CUTOFF, 10)


@pytest.mark.parametrize("owners_per_statement", [None, 1, 2])
def test_no_statement_deletes_more_than_the_limit(
    db: Database, admin: Admin, owners_per_statement: int | None
) -> None:
    """Large owners take several batches, small ones share one."""
    owners = [new_owner(db) for _ in range(4)]
    for owner, tombstones in zip(owners, (1, 7, 2, 3), strict=True):
        write(db, owner, *[EXPIRED] * tombstones)
    batches: list[PurgeProgress] = []
    report = purge(db, limit=3, owners_per_statement=owners_per_statement, on_batch=batches.append)

    assert 13 == report.deleted == batches[-1].total == sum(batch.deleted for batch in batches)
    assert 3 == max(batch.deleted for batch in batches)
    assert len(batches) == report.tables[0].batches
    assert report.complete
    assert dict(zip(owners, (1, 7, 2, 3), strict=True)) == horizons(admin)


@pytest.mark.parametrize("owners_per_statement", [None, 1])
def test_busy_and_orphaned_owners_are_told_apart(
    db: Database, admin: Admin, owner: UUID, owners_per_statement: int | None
) -> None:
    """The others are purged in the same run, and the report says what is left."""
    busy, orphan = new_owner(db), uuid4()
    write(db, owner, EXPIRED, EXPIRED)
    write(db, busy, EXPIRED, EXPIRED, EXPIRED)
    with db.begin() as unit:
        values = {"id": uuid4(), "owner_id": orphan, "revision": 1, "deleted_at": EXPIRED - timedelta(days=1)}
        unit.sql(sa.insert(Folder.__table__).values(values))
    with db.another() as other, other.begin() as pull:
        pull.guard_pull_cursor(busy, 0)
        report = purge(db, owners_per_statement=owners_per_statement)

    (folders,) = report.tables
    assert (2, 1, 1, 4) == (
        folders.deleted,
        folders.busy_owners,
        folders.orphaned_rows,
        folders.expired_left,
    )
    assert EXPIRED - timedelta(days=1) == folders.oldest_left
    assert {PurgeUnfinished.BUSY, PurgeUnfinished.ORPHANED} == set(report.unfinished)
    assert {owner: 2} == horizons(admin)


def test_a_child_without_a_parent_is_orphaned(db: Database, owner: UUID) -> None:
    """Nobody knows whose it is."""
    with db.begin() as unit:
        add(unit, owner, Line, EXPIRED)
    report = purge(db, LINES)

    assert (0, 1, 1) == (report.deleted, report.tables[0].orphaned_rows, report.tables[0].expired_left)
    assert (PurgeUnfinished.ORPHANED,) == report.unfinished


@pytest.mark.parametrize("limit", [2, 3, 10])
def test_a_run_ends_at_its_most_rows(db: Database, admin: Admin, limit: int) -> None:
    """Not one more; what is left is reported."""
    for _ in range(3):
        write(db, new_owner(db), EXPIRED, EXPIRED, EXPIRED)
    report = purge(db, limit=limit, max_rows=5)

    assert 5 == report.deleted
    assert 4 == count(admin, "folders") == report.tables[0].expired_left
    assert (PurgeUnfinished.MAX_ROWS,) == report.unfinished


def test_a_run_that_has_just_deleted_everything_is_complete(db: Database, owner: UUID) -> None:
    """Its bound was reached, and nothing is left."""
    write(db, owner, EXPIRED, EXPIRED)

    assert purge(db, max_rows=2).complete


def test_a_run_without_time_deletes_nothing_and_says_what_is_left(db: Database, owner: UUID) -> None:
    """Its budget is looked at before each batch."""
    write(db, owner, EXPIRED, EXPIRED)
    report = purge(db, time_budget=timedelta())

    assert (0, 2) == (report.deleted, report.tables[0].expired_left)
    assert (PurgeUnfinished.TIME_BUDGET,) == report.unfinished


def test_a_dry_run_counts_and_deletes_nothing(db: Database, admin: Admin, owner: UUID) -> None:
    """It takes no lock either: a busy owner counts."""
    write(db, owner, EXPIRED, EXPIRED, None)
    with db.another() as other, other.begin() as writer:
        writer.next_revision(owner)
        report = purge(db, dry_run=True)

    assert (2, True) == (report.deleted, report.dry_run)
    assert 3 == count(admin, "folders")
    assert {} == horizons(admin)


def test_a_report_holds_no_owner_and_no_row(db: Database, owner: UUID) -> None:
    """Neither its text, nor what goes to JSON."""
    write(db, owner, EXPIRED)
    with db.another() as other, other.begin() as writer:
        writer.next_revision(owner)
        report = purge(db)

    assert str(owner) not in repr(report)
    assert str(owner) not in repr(report.to_dict())
    assert {
        "name": "folders",
        "deleted": 0,
        "batches": 0,
        "busyOwners": 1,
        "orphanedRows": 0,
        "blockedRows": 0,
        "expiredLeft": 1,
        "oldestLeft": EXPIRED.isoformat(),
        "complete": False,
        "unfinished": ["busy"],
    } == report.to_dict()["tables"][0]


def test_a_read_only_server_gets_a_typed_error(db: Database, owner: UUID) -> None:
    """A standby cannot purge."""
    write(db, owner, EXPIRED)
    with (
        db.another(settings={"default_transaction_read_only": "on"}) as standby,
        pytest.raises(PrimaryRequiredError),
    ):
        purge(standby)


@pytest.mark.parametrize(
    "options",
    [
        {"max_rows": 0},
        {"max_rows": True},
        {"owners_per_statement": 0},
        {"busy_wait": 1},
        {"busy_wait": timedelta(seconds=-1)},
        {"time_budget": timedelta(days=2)},
        {"time_budget": 10.0},
    ],
)
def test_a_bad_limit_is_refused_before_any_io(db: Database, options: dict[str, Any]) -> None:
    """Nothing is sent."""
    with db.statements() as sent, pytest.raises(InvalidArgumentError):
        purge(db, **options)

    assert [] == sent


def test_a_table_without_its_owner_cannot_be_purged_one_owner_at_a_time(db: Database) -> None:
    """Its statements would name a parent, which may be on another shard."""
    with db.statements() as sent, pytest.raises(InvalidArgumentError):
        purge(db, LINES, owners_per_statement=1)

    assert [] == sent


def test_a_batch_is_one_statement(db: Database, owner: UUID) -> None:
    """Two to begin, a scan, and the batch: nothing else is sent when nothing is stuck."""
    write(db, owner, EXPIRED, EXPIRED)
    with db.statements() as sent:
        purge(db)

    assert 4 == len(sent)
    assert "DELETE" in sent[-1]


def test_a_batch_of_a_run_does_not_wait_for_the_disk_and_one_of_the_callers_does(
    db: Database, admin: Admin, owner: UUID
) -> None:
    """The setting ends with the transaction, and no transaction of the caller has it."""
    write(db, owner, EXPIRED)
    with db.another(settings={"synchronous_commit": "on"}, pool_size=1, max_overflow=0) as one:
        with one.begin() as unit:
            unit.purge_tombstone_batch(FOLDERS, CUTOFF, 10)
            inside = unit.scalar("SHOW synchronous_commit")
        write(one, owner, EXPIRED)
        with one.statements() as sent:
            purge(one)
        with one.begin() as unit:
            afterwards = unit.scalar("SHOW synchronous_commit")

    assert ("on", "on") == (inside, afterwards)
    assert ["synchronous_commit" in statement for statement in sent] == ["DELETE" in each for each in sent]
    assert 0 == count(admin, "folders")

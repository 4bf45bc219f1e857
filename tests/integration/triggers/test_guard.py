"""The guard refuses what clients would not learn of, and lets the kit's own writes pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from baukit_sync import (
    TombstoneTable,
    allocate_revisions,
    backfill_revisions,
    fence_restore,
    migrations,
    next_revision,
    next_revisions,
    purge_tombstones,
    soft_delete_where,
    track,
    undelete_where,
    update_where,
)
from tests.integration.triggers.conftest import DOCS, sign_up
from tests.support.product import ITEMS, LISTS, NOTES, Item, Note, TodoList
from tests.support.ways import Admin, Database

LATER = timedelta(days=1)


class TrackedSession(Session):
    """A session whose flushes are stamped."""


track(TrackedSession)


def refused(error: pytest.ExceptionInfo[Any]) -> str:
    """Return what the guard said."""
    cause = error.value.orig if isinstance(error.value, DBAPIError) else error.value
    assert isinstance(cause, psycopg.Error)
    assert "23514" == cause.sqlstate
    return cause.diag.message_primary or ""


def add_note(engine: sa.Engine, owner: UUID, *, deleted: bool = False) -> Note:
    """Commit a note as the product does."""
    with sessionmaker(engine, class_=TrackedSession, expire_on_commit=False).begin() as session:
        note = Note(owner_id=owner, title="milk")
        session.add(note)
        session.flush()
        if deleted:
            session.delete(note)
    return note


def rows(outside: Admin, table: str = "notes") -> list[Any]:
    """Return a table's rows."""
    return sorted(outside.sql(f"SELECT * FROM {table}"))


def copy(session: Session, note: Note) -> None:
    """Copy a row in."""
    connection: Any = session.connection().connection.dbapi_connection
    with connection.cursor().copy("COPY notes (id, owner_id, revision, title) FROM STDIN") as stream:
        stream.write_row((uuid4(), note.owner_id, note.revision, "bread"))


ESCAPES: dict[str, Callable[[Session, Note], object]] = {
    "bulk_save_objects": lambda session, note: session.bulk_save_objects(
        [Note(id=uuid4(), owner_id=note.owner_id, revision=note.revision)]
    ),
    "bulk_insert_mappings": lambda session, note: session.bulk_insert_mappings(
        sa.inspect(Note), [{"id": uuid4(), "owner_id": note.owner_id, "revision": note.revision}]
    ),
    "bulk_update_mappings": lambda session, note: session.bulk_update_mappings(
        sa.inspect(Note), [{"id": note.id, "title": "bread"}]
    ),
    "connection insert": lambda session, note: session.connection().execute(
        sa.insert(Note).values(owner_id=note.owner_id, revision=note.revision)
    ),
    "connection update": lambda session, note: session.connection().execute(
        sa.update(Note).where(Note.id == note.id).values(title="bread")
    ),
    "connection soft delete": lambda session, note: session.connection().execute(
        sa.update(Note).where(Note.id == note.id).values(deleted_at=sa.func.now())
    ),
    "connection delete": lambda session, note: session.connection().execute(
        sa.delete(Note).where(Note.id == note.id)
    ),
    "upsert": lambda session, note: session.connection().execute(
        insert(Note)
        .values(id=note.id, owner_id=note.owner_id, revision=note.revision, title="")
        .on_conflict_do_update(index_elements=[Note.id], set_={"title": "bread"})
    ),
    "insert in a CTE": lambda session, note: session.connection().execute(
        sa.select(
            sa.insert(Note)
            .values(owner_id=note.owner_id, revision=note.revision)
            .returning(Note.id)
            .cte("inserted")
        )
    ),
    "text": lambda session, note: session.connection().execute(sa.text("UPDATE notes SET title = 'bread'")),
    "a revision made up": lambda session, note: session.connection().execute(
        sa.text("UPDATE notes SET revision = revision + 1")
    ),
    "COPY": copy,
    "truncate": lambda session, note: session.connection().execute(sa.text("TRUNCATE notes")),
    "truncate by cascade": lambda session, note: session.connection().execute(
        sa.text("TRUNCATE users CASCADE")
    ),
}


@pytest.mark.parametrize("session_class", [Session, TrackedSession])
@pytest.mark.parametrize("escape", ESCAPES)
def test_what_no_hook_sees_is_refused(
    escape: str, session_class: type[Session], engine: sa.Engine, owner: UUID, outside: Admin
) -> None:
    """Each write that escapes the ORM fails in the database, and nothing of it is written."""
    note = add_note(engine, owner)
    before = rows(outside)

    with session_class(engine) as session, pytest.raises((IntegrityError, psycopg.Error)) as error:
        ESCAPES[escape](session, note)

    assert "notes" in refused(error) or "lists" in refused(error)
    assert before == rows(outside)


def test_the_text_holds_no_owner_and_no_data(engine: sa.Engine, owner: UUID) -> None:
    """An error may be logged: it names the table and the constraint, and says what to do."""
    note = add_note(engine, owner)

    with engine.connect() as connection, pytest.raises(IntegrityError) as error:
        connection.execute(sa.text("UPDATE notes SET title = 'bread'"))
    cause = error.value.orig
    assert isinstance(cause, psycopg.Error)
    diag = cause.diag
    said = [diag.message_primary, diag.message_detail, diag.message_hint, diag.context]

    assert "the revision of a row of notes was not allocated for its owner in this transaction" == said[0]
    assert ("public", "notes") == (diag.schema_name, diag.table_name)
    assert "baukit_sync_guard_v1" == diag.constraint_name
    assert "update_where" in str(said[2])
    assert not any(secret in str(said) for secret in (str(owner), str(note.id), "milk", "bread"))


def test_the_kit_s_own_writes_pass(db: Database, owner: UUID, outside: Admin) -> None:
    """Stamping by hand, sets, tombstones and their purge, in every way."""
    with db.begin() as unit:
        first, second = unit.next_revisions(owner, 2)
        unit.add(TodoList(id=(list_id := uuid4()), owner_id=owner, revision=first))
        unit.flush()
        unit.add(Item(list_id=list_id, revision=second))
        unit.add(Note(owner_id=owner, revision=unit.next_revision(owner)))
    with db.begin() as unit:
        unit.update_where(Note, {"title": "bread"}, Note.owner_id == owner)
        unit.soft_delete_where(Note, Note.owner_id == owner)
        unit.undelete_where(Note, Note.owner_id == owner)
        unit.soft_delete_where(Note, Note.owner_id == owner)
    report = db.purge([TombstoneTable.for_model(Note)], datetime.now(UTC) + LATER, 10)

    assert 1 == report.deleted
    assert report.complete
    assert (1, 1, 0) == tuple(
        outside.scalar(f"SELECT count(*) FROM {table}") for table in ("lists", "list_items", "notes")
    )


def test_a_tracked_session_passes(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """Inserts, changes and deletes over several flushes and savepoints."""
    with TrackedSession(engine) as session, session.begin():
        notes = [Note(owner_id=owner, title=str(number)) for number in range(5)]
        session.add_all(notes)
        session.flush()
        notes[0].title = "changed"
        with suppress(ZeroDivisionError), session.begin_nested():
            notes[1].title = "undone"
            session.add(Note(owner_id=owner))
            session.flush()
            raise ZeroDivisionError
        with session.begin_nested():
            notes[2].title = "kept"
        session.delete(notes[3])

    assert 5 == len(rows(outside))
    assert [1] == sorted({count for (count,) in outside.sql("SELECT count(*) FROM notes GROUP BY revision")})


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_every_isolation_level_passes(isolation: str, engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """What a transaction allocated is known to itself, whatever it can see of others."""
    add_note(engine.execution_options(isolation_level=isolation), owner, deleted=True)
    at = engine.execution_options(isolation_level=isolation)
    report = purge_tombstones(at, [TombstoneTable.for_model(Note)], datetime.now(UTC) + LATER, 10)

    assert 1 == report.deleted
    assert [] == rows(outside)


def test_a_revision_of_an_earlier_transaction_is_refused(engine: sa.Engine, owner: UUID) -> None:
    """On the same connection, and although the counter has been raised again."""
    with engine.connect() as connection:
        with connection.begin():
            stale = next_revision(connection, owner)
        with connection.begin(), pytest.raises(IntegrityError) as error:
            next_revision(connection, owner)
            connection.execute(sa.insert(Note).values(owner_id=owner, revision=stale))

    assert "not allocated" in refused(error)


@pytest.mark.parametrize("off", [0, 3], ids=["below", "above"])
def test_a_revision_beside_the_allocated_ones_is_refused(off: int, engine: sa.Engine, owner: UUID) -> None:
    """The block is known from both ends."""
    add_note(engine, owner)

    with engine.connect() as connection, pytest.raises(IntegrityError) as error:
        first, _ = next_revisions(connection, owner, 2)
        connection.execute(sa.insert(Note).values(owner_id=owner, revision=first - 1 + off))

    assert "not allocated" in refused(error)


def test_a_revision_of_another_owner_is_refused(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """Counters are apart, also when a transaction raises both."""
    another = sign_up(outside)

    with engine.connect() as connection, pytest.raises(IntegrityError) as error:
        ranges = allocate_revisions(connection, {owner: 1, another: 5})
        connection.execute(sa.insert(Note).values(owner_id=owner, revision=ranges[another][-1]))

    assert "not allocated" in refused(error)


def test_several_allocations_of_a_transaction_are_one_range(
    engine: sa.Engine, owner: UUID, outside: Admin
) -> None:
    """The first of them counts after the last, and between those of other owners."""
    another = sign_up(outside)
    with engine.begin() as connection:
        given = [(owner, next_revision(connection, owner))]
        given += [(another, next_revision(connection, another))]
        given += [(owner, revision) for revision in next_revisions(connection, owner, 3)]
        given += [(another, next_revision(connection, another))]
        rows_of_both = [{"owner_id": who, "revision": revision} for who, revision in given]
        connection.execute(sa.insert(Note), rows_of_both)

    assert 6 == len(rows(outside))


def test_a_revision_of_a_savepoint_that_was_rolled_back_is_refused(
    engine: sa.Engine, owner: UUID, outside: Admin
) -> None:
    """The memory goes back with the counter; what was allocated before the savepoint stays."""
    with engine.connect() as connection, connection.begin():
        kept = next_revision(connection, owner)
        savepoint = connection.begin_nested()
        gone = next_revision(connection, owner)
        savepoint.rollback()
        with pytest.raises(IntegrityError) as error, connection.begin_nested():
            connection.execute(sa.insert(Note).values(owner_id=owner, revision=gone))
        connection.execute(sa.insert(Note).values(owner_id=owner, revision=kept))

    assert "not allocated" in refused(error)
    assert 1 == len(rows(outside))


def test_a_row_s_revision_does_not_go_back(engine: sa.Engine, owner: UUID) -> None:
    """Not even within a transaction; the same revision twice is fine there."""
    with engine.connect() as connection, pytest.raises(IntegrityError) as error:
        first, second = next_revisions(connection, owner, 2)
        connection.execute(sa.insert(Note).values(owner_id=owner, revision=second))
        connection.execute(sa.update(Note).values(title="bread", revision=second))
        connection.execute(sa.update(Note).values(title="butter", revision=first))

    assert "not allocated" in refused(error)


def test_allocating_and_writing_in_one_statement_passes(
    engine: sa.Engine, owner: UUID, outside: Admin
) -> None:
    """In whatever order PostgreSQL runs the parts."""
    statement = """
        WITH RECURSIVE inserted AS (
            INSERT INTO notes (id, owner_id, revision, title)
            SELECT gen_random_uuid(), owner_id, last_revision, '' FROM allocated RETURNING id
        ), allocated AS (
            UPDATE sync_revisions SET last_revision = last_revision + 1 RETURNING owner_id, last_revision
        ) SELECT count(*) FROM allocated"""
    with engine.begin() as connection:
        connection.execute(sa.text(statement))

    assert 1 == len(rows(outside))


def test_without_the_counters_trigger_every_write_is_refused(
    engine: sa.Engine, owner: UUID, outside: Admin
) -> None:
    """A guard that cannot know says no."""
    with engine.begin() as connection:
        migrations.drop_revisions_trigger(Operations(MigrationContext.configure(connection)))

    with pytest.raises(IntegrityError) as error:
        add_note(engine, owner)

    assert "not allocated" in refused(error)


def test_an_owner_who_does_not_fit_into_the_memory_is_refused(engine: sa.Engine, owner: UUID) -> None:
    """With too many owners in a transaction the guard does not guess."""
    with engine.connect() as connection, pytest.raises(IntegrityError) as error:
        connection.execute(
            sa.text(
                "SELECT set_config('baukit_sync.allocated_' || i, repeat('x', 32000), true)"
                " FROM generate_series(0, 255) AS i"
            )
        )
        revision = next_revision(connection, owner)
        connection.execute(sa.insert(Note).values(owner_id=owner, revision=revision))

    assert "not allocated" in refused(error)


def test_a_transaction_with_many_owners_passes(engine: sa.Engine, outside: Admin) -> None:
    """Ten thousand of them, each with its own range."""
    outside.sql("INSERT INTO users SELECT gen_random_uuid() FROM generate_series(1, 10000)")
    outside.sql("INSERT INTO sync_revisions SELECT id FROM users ON CONFLICT DO NOTHING")
    with engine.begin() as connection:
        connection.execute(
            sa.text(
                "WITH allocated AS (UPDATE sync_revisions SET last_revision = last_revision + 1 RETURNING *)"
                " INSERT INTO notes (id, owner_id, revision, title)"
                " SELECT gen_random_uuid(), owner_id, last_revision, '' FROM allocated"
            )
        )

    assert 10_000 == outside.scalar("SELECT count(*) FROM notes")


def test_a_row_cannot_change_its_owner(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """Neither with a revision of the old owner nor with one of the new."""
    another = sign_up(outside)
    add_note(engine, owner)

    for who in (owner, another):
        with engine.connect() as connection, pytest.raises(IntegrityError) as error:
            revision = next_revisions(connection, who, 5)[-1]
            connection.execute(sa.update(Note).values(owner_id=another, revision=revision))

        assert "a row of notes cannot move to another owner" == refused(error)


def list_with_item(engine: sa.Engine, owner: UUID) -> tuple[UUID, UUID]:
    """Commit a list and its item; return their ids."""
    with Session(engine, expire_on_commit=False) as session, session.begin():
        first, second = next_revisions(session, owner, 2)
        parent = TodoList(owner_id=owner, revision=first)
        session.add(parent)
        session.flush()
        item = Item(list_id=parent.id, revision=second)
        session.add(item)
    return parent.id, item.id


def test_a_child_is_checked_against_its_parent_s_owner(
    engine: sa.Engine, owner: UUID, outside: Admin
) -> None:
    """It moves between lists of its owner, and not to another's."""
    another = sign_up(outside)
    mine, _ = list_with_item(engine, owner)
    my_other, _ = list_with_item(engine, owner)
    theirs, _ = list_with_item(engine, another)
    move = sa.update(Item).where(Item.list_id == mine)
    with engine.begin() as connection:
        connection.execute(move.values(list_id=my_other, revision=next_revision(connection, owner)))

    with engine.connect() as connection, pytest.raises(IntegrityError) as moved:
        ranges = allocate_revisions(connection, {owner: 9, another: 9})
        move = sa.update(Item).where(Item.list_id == my_other)
        connection.execute(move.values(list_id=theirs, revision=ranges[another][-1]))
    with engine.connect() as connection, pytest.raises(IntegrityError) as stamped:
        revision = next_revision(connection, another)
        connection.execute(sa.insert(Item).values(list_id=mine, revision=revision))

    assert "a row of list_items cannot move to another owner" == refused(moved)
    assert "not allocated" in refused(stamped)
    assert 2 == outside.scalar("SELECT count(*) FROM list_items WHERE list_id = :id", id=my_other)


def test_a_tombstone_above_the_horizon_cannot_be_deleted(
    engine: sa.Engine, owner: UUID, outside: Admin
) -> None:
    """Nor one below it together with one above."""
    add_note(engine, owner, deleted=True)
    purge_tombstones(engine, [TombstoneTable.for_model(Note)], datetime.now(UTC) + LATER, 10)
    add_note(engine, owner, deleted=True)
    before = rows(outside)

    with engine.connect() as connection, pytest.raises(IntegrityError) as error:
        connection.execute(sa.delete(Note))

    assert "a row of notes that no purge has covered cannot be deleted" == refused(error)
    assert before == rows(outside)


def test_a_live_row_below_the_horizon_cannot_be_deleted(
    engine: sa.Engine, owner: UUID, outside: Admin
) -> None:
    """The horizon covers what was deleted, not what lives."""
    note = add_note(engine, owner)
    outside.sql("INSERT INTO sync_purge_horizons VALUES (:owner, 100)", owner=owner)

    with engine.connect() as connection, pytest.raises(IntegrityError) as error:
        connection.execute(sa.delete(Note).where(Note.id == note.id))

    assert "no purge has covered" in refused(error)


def test_a_delete_that_meets_no_row_passes(engine: sa.Engine, owner: UUID) -> None:
    """Nothing was lost."""
    with engine.begin() as connection:
        connection.execute(sa.delete(Note))


@pytest.mark.parametrize("options", [{}, {"owners_per_statement": 1}], ids=["pages of owners", "one owner"])
def test_a_purge_by_model_passes(
    options: dict[str, Any], engine: sa.Engine, owner: UUID, outside: Admin
) -> None:
    """Each batch raises the horizon before it deletes."""
    owners = [owner, sign_up(outside), sign_up(outside)]
    for who in owners:
        for _ in range(3):
            add_note(engine, who, deleted=True)

    report = purge_tombstones(
        engine, [TombstoneTable.for_model(Note)], datetime.now(UTC) + LATER, 2, **options
    )

    assert (9, True) == (report.deleted, report.complete)
    assert [] == rows(outside)


def test_a_purge_of_parents_and_children_passes(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """By model and by the product's own SQL."""
    for tables in (
        [TombstoneTable.for_model(Item, owner_via=[Item.list_id]), TombstoneTable.for_model(TodoList)],
        [ITEMS, LISTS, NOTES],
    ):
        add_note(engine, owner, deleted=True)
        list_id, _ = list_with_item(engine, owner)
        with TrackedSession(engine) as session, session.begin():
            session.execute(sa.text("SELECT 1"))
            item = sa.update(Item).where(Item.list_id == list_id)
            revision = next_revision(session, owner)
            session.connection().execute(item.values(deleted_at=sa.func.now(), revision=revision))
            soft_delete_where(session, TodoList, TodoList.id == list_id)
        report = purge_tombstones(engine, tables, datetime.now(UTC) + LATER, 5)

        assert report.complete, report
        assert [] == rows(outside, "list_items") + rows(outside, "lists")


def test_sets_pass(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """Any number of rows and owners in a few statements."""
    for who in (owner, sign_up(outside)):
        for _ in range(3):
            add_note(engine, who)
    with TrackedSession(engine) as session, session.begin():
        update_where(session, Note, {"title": "bread"}, sa.true())
        soft_delete_where(session, Note, sa.true())
        undelete_where(session, Note, sa.true())

    assert 6 == outside.scalar("SELECT count(*) FROM notes WHERE title = 'bread' AND deleted_at IS NULL")


def test_a_backfill_passes(empty_database_url: sa.URL, outside: Admin) -> None:
    """Rows that were there before the kit are stamped under the guard, which takes no unstamped ones."""
    engine = sa.create_engine(empty_database_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        op = Operations(MigrationContext.configure(connection))
        connection.execute(sa.text("CREATE TABLE docs (id serial PRIMARY KEY, owner_id uuid)"))
        insert_rows = "INSERT INTO docs (owner_id) SELECT"
        connection.execute(sa.text(f"{insert_rows} gen_random_uuid() FROM generate_series(1, 9)"))
        connection.execute(sa.text(f"{insert_rows} owner_id FROM docs"))
        migrations.create_revisions(op)
        migrations.create_purge_horizons(op)
        migrations.add_columns(op, "docs")
        migrations.create_revisions_trigger(op)
        migrations.create_guard_trigger(op, "docs")
        migrations.create_indexes(op, "docs")
    docs = sa.Table("docs", sa.MetaData(), autoload_with=engine)
    backfill_revisions(engine, docs)
    with pytest.raises(IntegrityError) as error, engine.begin() as connection:
        connection.execute(sa.insert(docs).values(owner_id=uuid4()))

    assert "not allocated" in refused(error)
    assert [(18, 0)] == outside.sql("SELECT count(*), count(*) FILTER (WHERE revision IS NULL) FROM docs")


def test_a_fence_after_a_restore_passes(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """It raises the counters, and rows go on above them."""
    add_note(engine, owner)
    with engine.begin() as connection:
        fence_restore(connection, gap=1000)
    add_note(engine, owner)

    assert [1, 1002] == sorted(revision for (revision,) in outside.sql("SELECT revision FROM notes"))


ERASURES = {
    "the rows' key first": ("notes", "sync_revisions"),
    "the counter's key first": ("sync_revisions", "notes"),
}


@pytest.mark.parametrize("deferred", [(), ("sync_revisions",), ("notes",), ("notes", "sync_revisions")])
@pytest.mark.parametrize("order", ERASURES)
def test_an_owner_can_be_erased_by_cascade(
    order: str, deferred: tuple[str, ...], engine: sa.Engine, owner: UUID, outside: Admin
) -> None:
    """Whichever foreign key PostgreSQL follows first, and when."""
    for table in ERASURES[order]:
        key = f"{table}_owner_id_fkey"
        when = " DEFERRABLE INITIALLY DEFERRED" if table in deferred else ""
        outside.sql(
            f"ALTER TABLE {table} DROP CONSTRAINT {key}, ADD CONSTRAINT {key} FOREIGN KEY (owner_id)"
            f" REFERENCES users ON DELETE CASCADE{when}"
        )
    another = sign_up(outside)
    for who in (owner, another):
        add_note(engine, who)
        add_note(engine, who, deleted=True)

    with engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM users WHERE id = :id"), {"id": owner})

    assert [(another, 2)] == outside.sql("SELECT owner_id, count(*) FROM notes GROUP BY 1")
    assert [(another,)] == outside.sql("SELECT owner_id FROM sync_revisions")


def test_a_cascade_may_come_to_the_rows_before_the_counter(engine: sa.Engine, outside: Admin) -> None:
    """An owner whose row is gone is erased, though the counter's turn is still to come."""
    outside.sql("CREATE TABLE people (id uuid PRIMARY KEY)")
    outside.sql("ALTER TABLE notes DROP CONSTRAINT notes_owner_id_fkey")
    for table, key in (("notes", "owner_id"), ("users", "id")):
        outside.sql(f"ALTER TABLE {table} ADD FOREIGN KEY ({key}) REFERENCES people ON DELETE CASCADE")
    owner = uuid4()
    outside.sql("INSERT INTO people VALUES (:owner)", owner=owner)
    outside.sql("INSERT INTO users VALUES (:owner)", owner=owner)
    outside.sql("INSERT INTO sync_revisions VALUES (:owner)", owner=owner)
    add_note(engine, owner)

    outside.sql("DELETE FROM people")

    assert [] == rows(outside) + rows(outside, "sync_revisions")


def test_an_owner_can_be_erased_by_hand_counter_first(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """Without its counter an owner has no clients that could miss anything."""
    add_note(engine, owner)
    with engine.begin() as connection:
        for statement in ("sync_revisions WHERE owner_id", "notes WHERE owner_id", "users WHERE id"):
            connection.execute(sa.text(f"DELETE FROM {statement} = :owner"), {"owner": owner})

    assert [] == rows(outside)


def test_a_cascade_from_elsewhere_is_refused(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """A foreign key that deletes synced rows is stopped; the other table keeps its row, too."""
    outside.sql("CREATE TABLE folders (id int PRIMARY KEY)")
    outside.sql("INSERT INTO folders VALUES (1)")
    outside.sql("ALTER TABLE notes ADD folder int REFERENCES folders ON DELETE CASCADE")
    with engine.begin() as connection:
        connection.execute(sa.insert(Note).values(owner_id=owner, revision=next_revision(connection, owner)))
        revision = next_revision(connection, owner)
        connection.execute(sa.text("UPDATE notes SET folder = 1, revision = :it"), {"it": revision})

    with engine.begin() as connection, pytest.raises(IntegrityError) as error:
        connection.execute(sa.text("DELETE FROM folders"))

    assert "no purge has covered" in refused(error)
    assert [(1,)] == outside.sql("SELECT id FROM folders")


@pytest.fixture
def partitioned(empty_database_url: sa.URL, outside: Admin) -> sa.Engine:
    """A guarded table in two partitions, one of them in another schema."""
    engine = sa.create_engine(empty_database_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        op = Operations(MigrationContext.configure(connection))
        for statement in (
            "CREATE SCHEMA parts",
            DOCS,
            "CREATE TABLE docs_0 PARTITION OF docs FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
            "CREATE TABLE parts.docs_1 PARTITION OF docs FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
        ):
            connection.execute(sa.text(statement))
        migrations.create_revisions(op)
        migrations.create_purge_horizons(op)
        migrations.create_indexes(op, "docs")
        migrations.create_revisions_trigger(op)
        migrations.create_guard_trigger(op, "docs")
    return engine


def test_partitions_are_guarded_by_their_own_names(partitioned: sa.Engine, outside: Admin) -> None:
    """Inserts, updates and deletes of a partition are refused as those of the table are; the purge passes."""
    docs = sa.Table("docs", sa.MetaData(), autoload_with=partitioned)
    with partitioned.begin() as connection:
        for _ in range(8):
            owner = uuid4()
            connection.execute(sa.text("INSERT INTO sync_revisions VALUES (:owner)"), {"owner": owner})
            revision = next_revision(connection, owner)
            connection.execute(sa.insert(docs).values(id=uuid4(), owner_id=owner, revision=revision))
    for statement in (
        "DELETE FROM docs",
        "DELETE FROM docs_0",
        "DELETE FROM parts.docs_1",
        "UPDATE parts.docs_1 SET deleted_at = now()",
        "INSERT INTO docs SELECT gen_random_uuid(), owner_id, now(), NULL, 1 FROM sync_revisions",
        "TRUNCATE docs",
    ):
        with partitioned.connect() as connection, pytest.raises(IntegrityError) as error:
            connection.execute(sa.text(statement))
        refused(error)
    with partitioned.begin() as connection:
        connection.execute(
            sa.text(
                "WITH allocated AS (UPDATE sync_revisions SET last_revision = last_revision + 1 RETURNING *)"
                " UPDATE docs SET deleted_at = now(), revision = last_revision FROM allocated"
                " WHERE docs.owner_id = allocated.owner_id"
            )
        )
    report = purge_tombstones(partitioned, [TombstoneTable.for_model(docs)], datetime.now(UTC) + LATER, 3)

    assert (8, True) == (report.deleted, report.complete)
    assert 0 == outside.scalar("SELECT count(*) FROM docs")


def test_a_partition_s_rows_are_covered_as_those_of_a_table(partitioned: sa.Engine, outside: Admin) -> None:
    """A live row below the horizon stays, and a tombstone above it."""
    owner = uuid4()
    outside.sql("INSERT INTO sync_revisions VALUES (:owner)", owner=owner)
    outside.sql("INSERT INTO sync_purge_horizons VALUES (:owner, 2)", owner=owner)
    with partitioned.begin() as connection:
        for revision, deleted_at in zip(
            next_revisions(connection, owner, 3), ("NULL", "now()", "now()"), strict=True
        ):
            connection.execute(
                sa.text(
                    f"INSERT INTO docs VALUES (gen_random_uuid(), :owner, now(), {deleted_at}, :revision)"
                ),
                {"owner": owner, "revision": revision},
            )
    for revision in (1, 3):
        with partitioned.connect() as connection, pytest.raises(IntegrityError) as error:
            connection.execute(sa.text("DELETE FROM docs WHERE revision = :it"), {"it": revision})

        assert "a row of docs_0" in refused(error) or "a row of docs_1" in refused(error)
    outside.sql("DELETE FROM docs WHERE revision = 2")


@pytest.mark.parametrize("order", ERASURES)
def test_an_owner_of_a_partitioned_table_can_be_erased(
    order: str, partitioned: sa.Engine, outside: Admin
) -> None:
    """By cascade, row by row."""
    outside.sql("CREATE TABLE users (id uuid PRIMARY KEY)")
    for table in ERASURES[order]:
        name = "docs" if table == "notes" else table
        outside.sql(f"ALTER TABLE {name} ADD FOREIGN KEY (owner_id) REFERENCES users ON DELETE CASCADE")
    owner = sign_up(outside)
    with partitioned.begin() as connection:
        for revision in next_revisions(connection, owner, 3):
            connection.execute(
                sa.text("INSERT INTO docs VALUES (:id, :owner, now(), NULL, :revision)"),
                {"id": uuid4(), "owner": owner, "revision": revision},
            )

    outside.sql("DELETE FROM users")

    assert 0 == outside.scalar("SELECT count(*) FROM docs")
    assert 0 == outside.scalar("SELECT count(*) FROM sync_revisions")


def test_the_search_path_of_a_session_does_not_matter(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """Not an empty one, nor one that leads to other tables of the same names."""
    outside.sql("CREATE SCHEMA decoy")
    for table in ("sync_revisions", "sync_purge_horizons", "notes"):
        outside.sql(f"CREATE TABLE decoy.{table} (LIKE public.{table} INCLUDING ALL)")
    note = add_note(engine, owner)
    for path in ("''", "decoy"):
        with engine.connect() as connection, pytest.raises(IntegrityError) as error:
            connection.execute(sa.text(f"SET LOCAL search_path = {path}"))
            connection.execute(sa.text("DELETE FROM public.notes WHERE id = :id"), {"id": note.id})

        assert "no purge has covered" in refused(error)
        with engine.begin() as connection:
            connection.execute(sa.text(f"SET LOCAL search_path = {path}"))
            raised = (
                "UPDATE public.sync_revisions SET last_revision = last_revision + 1 RETURNING last_revision"
            )
            revision = connection.scalar(sa.text(raised))
            connection.execute(sa.text("UPDATE public.notes SET revision = :it"), {"it": revision})


def test_replication_and_restores_may_bring_rows(engine: sa.Engine, owner: UUID, outside: Admin) -> None:
    """An apply worker and ``pg_restore --disable-triggers`` write what was checked where it came from."""
    with engine.begin() as connection:
        connection.execute(sa.text("SET LOCAL session_replication_role = replica"))
        connection.execute(sa.insert(Note).values(owner_id=owner, revision=1))

    assert 1 == len(rows(outside))

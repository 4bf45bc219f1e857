"""Writes that cannot be stamped raise a typed error and leave nothing; what no hook sees is on record."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session, aliased, make_transient

from baukit_sync import (
    STAMPED_BY_HAND,
    HardDeleteError,
    OwnerChangedError,
    OwnerMissingError,
    RevisionAssignedError,
    TrackingError,
    UnstampedWriteError,
    next_revision,
    update_where,
)
from tests.integration.tracking.models import (
    Base,
    Count,
    Draft,
    Folder,
    Lamp,
    Letter,
    Member,
    Note,
    Place,
    Plain,
    Room,
    User,
)
from tests.integration.tracking.paths import Path, Table
from tests.integration.tracking.store import Store, written
from tests.integration.tracking.world import World

CHANGES = Table()
STATEMENTS = Table()

notes: Any = Note.__table__
title_of_a_note = sa.update(Note).values(title="x")
changed_ids = title_of_a_note.returning(Note.id).cte()
without_columns = sa.Table("notes", sa.MetaData(), sa.Column("title", sa.Text))


@pytest.mark.parametrize(("path", "refusal"), CHANGES)
def test_a_change_that_cannot_be_stamped_is_refused(
    store: Store, world: World, path: Path, refusal: type[TrackingError]
) -> None:
    """A typed error, and nothing is written."""
    before = store.snapshot()
    with pytest.raises(refusal), store.begin() as session:
        path(session, world)

    assert before == store.snapshot()


@CHANGES.leads_to(OwnerChangedError)
def owner_by_column(session: Session, world: World) -> None:
    """Change the owner's id."""
    world.get(session, "note").owner_id = world.you


@CHANGES.leads_to(OwnerChangedError)
def owner_by_column_of_an_expired_row(session: Session, world: World) -> None:
    """Change the owner's id before it is loaded again."""
    note = world.get(session, "note")
    session.expire(note)
    note.owner_id = world.you


@CHANGES.leads_to(OwnerChangedError)
def owner_by_expression(session: Session, world: World) -> None:
    """Let the database work the owner out."""
    world.get(session, "note").owner_id = sa.select(User.id).where(User.id == world.you).scalar_subquery()


@CHANGES.leads_to(OwnerChangedError)
def owner_to_none(session: Session, world: World) -> None:
    """Take the owner's id."""
    world.get(session, "note").owner_id = None


@CHANGES.leads_to(OwnerChangedError)
def owner_by_many_to_one(session: Session, world: World) -> None:
    """Give another owner as an object."""
    world.get(session, "note").owner = session.get_one(User, world.you)


@CHANGES.leads_to(OwnerChangedError)
def owner_by_many_to_one_to_none(session: Session, world: World) -> None:
    """Take the owner as an object."""
    world.get(session, "note").owner = None


@CHANGES.leads_to(OwnerChangedError)
def owner_by_collection(session: Session, world: World) -> None:
    """Append to another owner's collection."""
    other = session.get_one(User, world.you)
    other.notes.append(world.get(session, "note"))


@CHANGES.leads_to(OwnerChangedError)
def owner_by_collection_without_a_way_back(session: Session, world: World) -> None:
    """Append to another owner's collection, of which the row knows nothing."""
    other = session.get_one(User, world.you)
    other.drafts.append(world.get(session, "draft"))


@CHANGES.leads_to(OwnerChangedError)
def owner_by_leaving_a_collection_without_a_way_back(session: Session, world: World) -> None:
    """Take a row from its owner's collection."""
    world.get(session, "user").drafts.clear()


@CHANGES.leads_to(OwnerChangedError)
def owner_of_a_new_row_by_collection_without_a_way_back(session: Session, world: World) -> None:
    """Append a new row that names another owner: it would be stamped by the wrong counter."""
    other = session.get_one(User, world.you)
    other.drafts.append(Draft(owner_id=world.me))


@CHANGES.leads_to(OwnerChangedError)
def owner_by_delete_of_the_owner(session: Session, world: World) -> None:
    """Delete an owner whose rows SQLAlchemy would disown."""
    session.delete(world.get(session, "user"))


@CHANGES.leads_to(OwnerMissingError)
def no_owner(session: Session, world: World) -> None:
    """Add a row without an owner."""
    session.add(Note())


@CHANGES.leads_to(OwnerMissingError)
def an_owner_that_is_new_as_well(session: Session, world: World) -> None:
    """Add a row for an owner that has no id yet."""
    session.add(Note(owner=User()))


@CHANGES.leads_to(OwnerMissingError)
def an_owner_that_only_the_database_knows(session: Session, world: World) -> None:
    """Add a row whose owner the database works out."""
    session.add(Draft(owner_id=sa.select(User.id).where(User.id == world.you).scalar_subquery()))


@CHANGES.leads_to(RevisionAssignedError)
def revision_of_a_new_row(session: Session, world: World) -> None:
    """Add a row with a revision."""
    session.add(Note(owner_id=world.me, revision=1_000))


@CHANGES.leads_to(RevisionAssignedError)
def revision_of_a_stored_row(session: Session, world: World) -> None:
    """Assign a revision."""
    world.get(session, "note").revision = 1_000


@CHANGES.leads_to(RevisionAssignedError)
def revision_by_expression(session: Session, world: World) -> None:
    """Let the database work a revision out."""
    world.get(session, "note").revision = Note.revision + 1


@CHANGES.leads_to(RevisionAssignedError)
def revision_of_a_copy(session: Session, world: World) -> None:
    """Turn a row into a new one, which brings its revision."""
    draft = world.get(session, "draft")
    make_transient(draft)
    draft.id = uuid.uuid4()
    session.add(draft)


@CHANGES.leads_to(RevisionAssignedError)
def a_stale_merge(session: Session, world: World) -> None:
    """Merge an object whose row has moved on: it would go back to what it was."""
    stale = world.get(session, "note")
    session.expunge(stale)
    with session.begin_nested():
        world.get(session, "note").title = "newer"
    session.merge(stale)


@CHANGES.leads_to(HardDeleteError)
def another_key(session: Session, world: World) -> None:
    """Change a key: clients would keep the row with the old one."""
    world.get(session, "draft").id = uuid.uuid4()


@CHANGES.leads_to(HardDeleteError)
def another_key_by_many_to_one(session: Session, world: World) -> None:
    """Give an association object another parent, whose key is part of its own."""
    world.get(session, "link").parent = world.get(session, "other list")


@CHANGES.leads_to(HardDeleteError)
def another_key_by_collection(session: Session, world: World) -> None:
    """Move an association object between collections."""
    link, source, target = (world.get(session, name) for name in ("link", "list", "other list"))
    with session.no_autoflush:
        source.links.remove(link)
        target.links.append(link)


@CHANGES.leads_to(UnstampedWriteError)
def a_hand_stamped_child_without_a_revision(session: Session, world: World) -> None:
    """Change a child without an owner column."""
    world.get(session, "count").number = 1


@CHANGES.leads_to(UnstampedWriteError)
def a_hand_stamped_child_with_its_old_revision(session: Session, world: World) -> None:
    """Assign the revision that it has."""
    count = world.get(session, "count")
    count.number, count.revision = 1, count.revision


@CHANGES.leads_to(UnstampedWriteError)
def a_hand_stamped_child_that_moves(session: Session, world: World) -> None:
    """Move it between collections of which it knows nothing."""
    count, source, target = (world.get(session, name) for name in ("count", "other list", "list"))
    with session.no_autoflush:
        source.counts.remove(count)
        target.counts.append(count)


@CHANGES.leads_to(HardDeleteError)
def a_hand_stamped_child_is_deleted(session: Session, world: World) -> None:
    """Delete a row that nothing can turn into a tombstone."""
    session.delete(world.get(session, "count"))


@CHANGES.leads_to(HardDeleteError)
def a_hand_stamped_child_is_an_orphan(session: Session, world: World) -> None:
    """Take it from the parent that owns it."""
    world.get(session, "other list").counts.clear()


@CHANGES.leads_to(HardDeleteError)
def a_hand_stamped_child_of_a_deleted_parent(session: Session, world: World) -> None:
    """Delete the parent that owns it."""
    session.delete(world.get(session, "other list"))


@CHANGES.leads_to(HardDeleteError)
def rows_that_the_database_removes(session: Session, world: World) -> None:
    """Delete a row that is not synced, with a foreign key ON DELETE CASCADE to it."""
    session.delete(world.get(session, "room"))


@CHANGES.leads_to(UnstampedWriteError)
def rows_that_the_database_changes(session: Session, world: World) -> None:
    """Delete a row that is not synced, with a foreign key ON DELETE SET NULL to it."""
    session.add(room := Room())
    session.flush()
    session.add(lamp := Lamp(owner_id=world.me, room_id=room.id))
    session.flush()
    session.delete(room)
    world.held.append(lamp)


@CHANGES.leads_to(UnstampedWriteError)
def links_that_are_synced_rows_are_added(session: Session, world: World) -> None:
    """Append to a many-to-many relationship through a synced table."""
    world.get(session, "team").members.append(Member(owner_id=world.me))


@CHANGES.leads_to(UnstampedWriteError)
def links_that_are_synced_rows_are_removed(session: Session, world: World) -> None:
    """Remove from a many-to-many relationship through a synced table."""
    world.get(session, "team").members.clear()


@pytest.mark.parametrize(("path", "refusal"), STATEMENTS)
def test_a_statement_that_cannot_be_stamped_is_refused(
    store: Store, me: uuid.UUID, path: Path, refusal: type[TrackingError]
) -> None:
    """A typed error; the transaction stays usable, and what it wrote before is kept."""
    before = store.snapshot()
    with store.begin() as session:
        session.add(Draft(owner_id=me))
        session.flush()
        with pytest.raises(refusal):
            path(session, World(me, me, {}))

    assert ["drafts"] == written(before, store.snapshot())


def statement(refusal: type[TrackingError], name: str, value: Any, parameters: Any = None) -> None:
    """Enter a statement for ``session.execute``."""

    def execute(session: Session, _world: World) -> None:
        session.execute(value, parameters)

    execute.__name__ = name
    STATEMENTS.leads_to(refusal)(execute)


statement(UnstampedWriteError, "orm_update", title_of_a_note)
statement(HardDeleteError, "orm_delete", sa.delete(Note))
statement(UnstampedWriteError, "orm_insert", sa.insert(Note).values(title="x"))
statement(UnstampedWriteError, "orm_bulk_insert", sa.insert(Note), [{"title": "x"}, {"title": "y"}])
statement(UnstampedWriteError, "orm_bulk_update", sa.update(Note), [{"id": uuid.uuid4(), "title": "x"}])
statement(UnstampedWriteError, "core_update", notes.update().values(title="x"))
statement(HardDeleteError, "core_delete", notes.delete())
statement(UnstampedWriteError, "core_insert", notes.insert().values(title="x"))
statement(
    UnstampedWriteError, "insert_from_select", sa.insert(Note).from_select(["title"], sa.select(Note.title))
)
statement(UnstampedWriteError, "update_returning", title_of_a_note.returning(Note))
statement(UnstampedWriteError, "update_of_a_core_alias", sa.update(notes.alias("n")).values(title="x"))
statement(UnstampedWriteError, "update_of_an_orm_alias", sa.update(aliased(Note)).values(title="x"))
statement(
    UnstampedWriteError,
    "update_of_a_name",
    sa.update(sa.table("notes", sa.column("title"))).values(title="x"),
)
statement(UnstampedWriteError, "update_of_another_table_object", without_columns.update().values(title="x"))
statement(UnstampedWriteError, "update_of_a_joined_subclass", sa.update(Letter).values(to="x"))
statement(UnstampedWriteError, "update_of_the_subclass_table", sa.update(Letter.__table__).values(to="x"))
statement(UnstampedWriteError, "update_of_an_imperative_class", sa.update(Plain).values(text="x"))
statement(UnstampedWriteError, "update_of_a_hand_stamped_child", sa.update(Count).values(number=1))
statement(
    UnstampedWriteError,
    "upsert",
    postgresql.insert(Draft)
    .values(id=uuid.uuid4(), owner_id=uuid.uuid4(), revision=1)
    .on_conflict_do_update(index_elements=["id"], set_={"text": "x"}),
)
statement(UnstampedWriteError, "select_from_a_cte_that_updates", sa.select(changed_ids.c.id))
statement(
    UnstampedWriteError, "select_beside_a_cte_that_updates", sa.select(sa.literal(1)).add_cte(changed_ids)
)
statement(
    UnstampedWriteError,
    "subquery_of_a_cte_that_updates",
    sa.select(Note).where(Note.id.in_(sa.select(changed_ids.c.id))),
)
statement(
    HardDeleteError,
    "union_with_a_cte_that_deletes",
    sa.union_all(sa.select(Note.id), sa.select(sa.delete(Note).returning(Note.id).cte().c.id)),
)
statement(
    UnstampedWriteError,
    "insert_elsewhere_from_a_cte_that_updates",
    sa.insert(Base.metadata.tables["logs"]).from_select(
        ["line"], sa.select(title_of_a_note.returning(Note.title).cte().c.title)
    ),
)
statement(
    UnstampedWriteError,
    "entities_from_an_update",
    sa.select(Note).from_statement(title_of_a_note.returning(Note)),
)
statement(UnstampedWriteError, "lambda_statement", sa.lambda_stmt(lambda: sa.update(Note).values(title="x")))
statement(HardDeleteError, "links", Base.metadata.tables["note_tags"].delete())
statement(HardDeleteError, "links_without_a_key", Base.metadata.tables["note_places"].delete())
statement(HardDeleteError, "delete_with_rows_that_the_database_removes", sa.delete(Room))


@STATEMENTS.leads_to(UnstampedWriteError)
def query_update(session: Session, _world: World) -> None:
    """Update by a query."""
    session.query(Note).update({"title": "x"})


@STATEMENTS.leads_to(HardDeleteError)
def query_delete(session: Session, _world: World) -> None:
    """Delete by a query."""
    session.query(Note).filter(Note.title != "").delete()


@STATEMENTS.leads_to(UnstampedWriteError)
def query_of_text(session: Session, _world: World) -> None:
    """Query entities from text that updates."""
    updates = sa.text("UPDATE notes SET title = 'x' RETURNING *")
    session.query(Note).from_statement(updates).all()


@STATEMENTS.leads_to(UnstampedWriteError)
def scalars(session: Session, _world: World) -> None:
    """Update and read scalars."""
    session.scalars(title_of_a_note.returning(Note.id)).all()


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("INSERT INTO drafts (id) SELECT id FROM notes", "drafts"),
        ("UPDATE notes SET title = 'x'", "notes"),
        ("update only public . \"notes\" set title = 'x'", "notes"),
        ("UPDATE ONLY (notes) SET title = 'x'", "notes"),
        ("UPDATE\"notes\"SET title = 'x'", "notes"),
        ("UPDATE /* all */ notes SET title = 'x'", "notes"),
        ("UPDATE -- all\n notes SET title = 'x'", "notes"),
        ("DELETE FROM ONLY notes", "notes"),
        ("MERGE INTO notes USING tags ON true WHEN MATCHED THEN DELETE", "notes"),
        ("TRUNCATE logs, only public.drafts", "drafts"),
        ("TRUNCATE TABLE drafts CASCADE", "drafts"),
        ("COPY drafts FROM '/dev/null'", "drafts"),
        ("WITH changed AS (UPDATE notes SET title = 'x' RETURNING id) SELECT * FROM changed", "notes"),
        ("UPDATE letters SET \"to\" = 'x'", "letters"),
        ("UPDATE plains SET text = 'x'", "plains"),
        ("UPDATE counts SET number = 1", "counts"),
        ("DELETE FROM note_places", "note_places"),
    ],
)
def test_text_that_writes_to_a_synced_table_is_refused(store: Store, text: str, table: str) -> None:
    """The error names the table; also when the text says which columns it returns."""
    clause = sa.text(text)
    refused = []
    for statement in (clause, clause.columns(sa.column("id"))):
        with store.begin() as session, pytest.raises(UnstampedWriteError) as refusal:
            session.execute(statement)
        refused.append(refusal.value.table)

    assert [table, table] == refused


@pytest.mark.parametrize(
    ("model", "refusal", "ways_out"),
    [
        (Note, UnstampedWriteError, ["update_where", "soft_delete_where"]),
        (Draft, HardDeleteError, ["tombstones"]),
    ],
)
def test_a_refusal_names_the_table_and_the_supported_way(
    store: Store, model: Any, refusal: type[TrackingError], ways_out: list[str]
) -> None:
    """It holds no value of the statement."""
    writes = sa.update(model).values(id=uuid.UUID(int=7)) if model is Note else sa.delete(model)
    with store.begin() as session, pytest.raises(refusal) as refused:
        session.execute(writes)

    assert [True, True, False] == [
        model.__tablename__ in str(refused.value),
        all(way in str(refused.value) for way in ways_out),
        str(uuid.UUID(int=7)) in str(refused.value),
    ]


def test_a_statement_can_vouch_for_its_revisions(store: Store, world: World) -> None:
    """By an execution option, on the statement or beside it."""
    before = store.snapshot()
    with store.begin() as session:
        stamped = notes.update().where(notes.c.title == "milk")
        for number in range(2):
            values = {"title": "milk", "revision": next_revision(session, world.me)}
            vouched = {STAMPED_BY_HAND: True}
            if number:
                session.execute(stamped.values(values), execution_options=vouched)
            else:
                session.execute(stamped.values(values).execution_options(**vouched))
    revision = store.snapshot().rows["notes", str(world.key("note"))]["revision"]

    assert before.counters[str(world.me)] + 2 == revision


def test_the_set_based_writes_of_the_kit_are_not_refused(store: Store, world: World) -> None:
    """They stamp each row, and refresh what the session has loaded."""
    before = store.snapshot()
    with store.begin() as session:
        draft = world.get(session, "draft")
        draft.text = "pending"
        update_where(session, Note, {"title": "x"}, sa.true())

        assert "x" == world.get(session, "note").title

    assert ["drafts", "notes", "notes"] == written(before, store.snapshot())


def test_a_refused_flush_leaves_the_session_as_it_was(store: Store, world: World) -> None:
    """What was deleted is still deleted, what was added still new; once the cause is gone, it works."""
    before = store.snapshot()
    with store.begin() as session:
        draft, note, todo = (world.get(session, name) for name in ("draft", "note", "list"))
        item, new = world.get(session, "item"), Folder(owner_id=world.me)
        with session.no_autoflush:
            session.delete(draft)
            session.add(new)
            todo.items.remove(item)
            note.owner_id = world.you
        with pytest.raises(OwnerChangedError):
            session.flush()
        with session.no_autoflush:
            as_it_was = (
                draft in session.deleted,
                new in session.new,
                new.revision is None,
                item not in todo.items,
                item.deleted_at is None,
                draft.deleted_at is None,
            )
            note.owner_id = world.me
        session.flush()

    assert (True,) * 6 == as_it_was
    assert ["drafts", "folders", "items", "steps", "steps"] == written(before, store.snapshot())


def test_a_refusal_during_the_flush_rolls_it_back(store: Store, world: World) -> None:
    """A collection without a way back moves a row only then; after the rollback the session works."""
    before = store.snapshot()
    with store.session() as session:
        world.get(session, "note").title = "lost"
        other = session.get_one(User, world.you)
        other.drafts.append(world.get(session, "draft"))
        with pytest.raises(OwnerChangedError):
            session.flush()
        session.rollback()
        world.get(session, "note").title = "kept"
        session.commit()

    assert ["notes"] == written(before, store.snapshot())


@pytest.mark.parametrize("model", [Draft, Place])
def test_gap_bulk_inserts_without_a_revision_violate_not_null(store: Store, world: World, model: Any) -> None:
    """SQLAlchemy has no hook for them: it is the column that refuses."""
    before = store.snapshot()
    for insert in (
        lambda session: session.bulk_save_objects([model(owner_id=world.me)]),
        lambda session: session.bulk_insert_mappings(model, [{"owner_id": world.me}]),
    ):
        with pytest.raises(sa.exc.IntegrityError) as refused, store.begin() as session:
            insert(session)
        assert "23502" == getattr(refused.value.orig, "sqlstate", None)

    assert before == store.snapshot()


def bulk_update_mappings(session: Session, world: World) -> None:
    """Update by dicts."""
    session.bulk_update_mappings(Draft, [{"id": world.key("draft"), "text": "x"}])


def bulk_save_objects(session: Session, world: World) -> None:
    """Update by a detached object."""
    draft = world.get(session, "draft")
    session.expunge(draft)
    draft.text = "x"
    session.bulk_save_objects([draft])


def connection_execute(session: Session, world: World) -> None:
    """Update by a statement on the session's connection."""
    session.connection().execute(sa.update(Draft).values(text="x"))


def exec_driver_sql(session: Session, world: World) -> None:
    """Update by the driver's own SQL."""
    session.connection().exec_driver_sql("UPDATE drafts SET text = 'x'")


@pytest.mark.parametrize(
    "path", [bulk_update_mappings, bulk_save_objects, connection_execute, exec_driver_sql]
)
def test_gap_bulk_updates_and_the_connection_write_without_a_revision(
    store: Store, world: World, path: Path
) -> None:
    """SQLAlchemy has no hook for them, and so clients never hear of such a write."""
    before = store.snapshot()
    with store.begin() as session:
        path(session, world)
    after = store.snapshot()
    (changed,) = [key for key, row in after.rows.items() if before.rows[key] != row]

    assert ("drafts", str(world.key("draft"))) == changed
    assert "x" == after.rows[changed]["text"]
    assert before.rows[changed]["revision"] == after.rows[changed]["revision"]
    assert before.counters == after.counters

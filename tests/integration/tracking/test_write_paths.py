"""Rows that are inserted or changed through a flush get a fresh revision each; what does not write, none."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import flag_dirty, flag_modified

from baukit_sync import next_revision
from tests.integration.tracking.models import (
    Card,
    Count,
    Draft,
    Folder,
    Item,
    LinkKind,
    Note,
    Plain,
    Point,
    Step,
    TodoList,
    User,
)
from tests.integration.tracking.paths import Path, Table
from tests.integration.tracking.store import Store, written
from tests.integration.tracking.world import World

WRITES = Table()
NO_WRITES = Table()


@pytest.mark.parametrize(("path", "tables"), WRITES)
def test_every_row_that_is_written_gets_a_fresh_revision_of_its_own(
    store: Store, world: World, path: Path, tables: list[str]
) -> None:
    """Exactly these rows are written, and each has its own step of its owner's counter."""
    before = store.snapshot()
    with store.begin() as session:
        path(session, world)

    assert tables == written(before, store.snapshot())


@WRITES.leads_to(["notes"])
def add(session: Session, world: World) -> None:
    """Add an object."""
    session.add(Note(owner_id=world.me))


@WRITES.leads_to(["items", "lists", "notes", "notes", "steps"])
def add_all(session: Session, world: World) -> None:
    """Add several objects, with what hangs on them."""
    item = Item(owner_id=world.me, parent=TodoList(owner_id=world.me), steps=[Step(owner_id=world.me)])
    session.add_all([Note(owner_id=world.me), Note(owner_id=world.me), item])


@WRITES.leads_to(["notes"])
def add_for_an_owner(session: Session, world: World) -> None:
    """Give the owner as an object, not as an id."""
    session.add(Note(owner=world.get(session, "user")))


@WRITES.leads_to(["notes"])
def append_to_an_owner(session: Session, world: World) -> None:
    """Let the owner's collection set the owner."""
    world.get(session, "user").notes.append(Note())


@WRITES.leads_to(["drafts"])
def append_to_an_owner_without_a_way_back(session: Session, world: World) -> None:
    """Let a collection set the owner that the object has already."""
    world.get(session, "user").drafts.append(Draft(owner_id=world.me))


@WRITES.leads_to(["cards"])
def add_a_dataclass_for_an_owner(session: Session, world: World) -> None:
    """Give a dataclass its owner as an object."""
    card = Card()
    card.owner = world.get(session, "user")
    session.add(card)


@WRITES.leads_to(["notes"])
def merge_new(session: Session, world: World) -> None:
    """Merge what the database does not have."""
    session.merge(Note(id=uuid4(), owner_id=world.me, title="merged"))


@WRITES.leads_to(["notes"])
def merge_onto_loaded(session: Session, world: World) -> None:
    """Merge onto a row that is loaded."""
    session.merge(Note(id=world.get(session, "note").id, title="merged"))


@WRITES.leads_to(["notes"])
def merge_onto_stored(session: Session, world: World) -> None:
    """Merge onto a row that is not loaded."""
    session.merge(Note(id=world.key("note"), title="merged"))


@WRITES.leads_to(["notes"])
def merge_revives_a_tombstone(session: Session, world: World) -> None:
    """Merge a live row onto a tombstone."""
    session.merge(Note(id=world.key("tombstone"), deleted_at=None))


@WRITES.leads_to(["notes"])
def merge_detached(session: Session, world: World) -> None:
    """Merge an object that was changed while it was detached."""
    note = world.get(session, "note")
    session.expunge(note)
    note.title = "merged"
    session.merge(note)


@WRITES.leads_to(["notes"])
def merge_without_loading(session: Session, world: World) -> None:
    """Change what was merged as it is."""
    note = world.get(session, "note")
    session.expunge(note)
    merged = session.merge(note, load=False)
    merged.title = "merged"


@WRITES.leads_to(["notes"])
def attach_again(session: Session, world: World) -> None:
    """Add an object that was changed while it was detached."""
    note = world.get(session, "note")
    session.expunge(note)
    note.title = "detached"
    session.add(note)


@WRITES.leads_to(["notes"])
def attribute(session: Session, world: World) -> None:
    """Change a column."""
    world.get(session, "note").title = "bread"


@WRITES.leads_to(["notes"])
def attribute_to_an_expression(session: Session, world: World) -> None:
    """Change a column to what the database works out."""
    world.get(session, "note").title = sa.func.upper(Note.title)


@WRITES.leads_to(["notes"])
def attribute_to_null(session: Session, world: World) -> None:
    """Empty a column."""
    world.get(session, "project note").project_id = None


@WRITES.leads_to(["notes"])
def expired_attribute(session: Session, world: World) -> None:
    """Change a column before it is loaded again."""
    note = world.get(session, "note")
    session.expire(note)
    note.title = "bread"


@WRITES.leads_to(["notes"])
def expired_attribute_to_the_stored_value(session: Session, world: World) -> None:
    """SQLAlchemy writes it, as it does not know the old value."""
    note = world.get(session, "note")
    session.expire(note)
    note.title = "milk"


@WRITES.leads_to(["notes"])
def deferred_attribute(session: Session, world: World) -> None:
    """Change a column that was not loaded."""
    world.get(session, "note").long = "text"


@WRITES.leads_to(["notes"])
def attribute_of_a_partly_loaded_row(session: Session, world: World) -> None:
    """Change a row of which only the key is loaded, not the owner either."""
    only_key = sa.select(Note).options(orm.load_only(Note.id)).where(Note.title == "milk")
    note = session.scalars(only_key).one()
    note.title = "bread"


@WRITES.leads_to(["notes"])
def mutable_json(session: Session, world: World) -> None:
    """Change a tracked dict in place."""
    world.get(session, "note").body["b"] = 2


@WRITES.leads_to(["notes"])
def json_flagged_as_modified(session: Session, world: World) -> None:
    """Change a plain list in place, and say so."""
    note = world.get(session, "note")
    note.raw.append(2)
    flag_modified(note, "raw")


@WRITES.leads_to(["notes"])
def composite(session: Session, world: World) -> None:
    """Change two columns as one value."""
    world.get(session, "note").at = Point(1, 2)


@WRITES.leads_to(["notes"])
def hybrid(session: Session, world: World) -> None:
    """Change a column through a hybrid property."""
    world.get(session, "note").shout = "BREAD"


@WRITES.leads_to(["cards", "plains"])
def attributes_mapped_otherwise(session: Session, world: World) -> None:
    """Change a dataclass and a class that was mapped imperatively."""
    world.get(session, "card").text = "new"
    world.get(session, "plain").text = "new"


@WRITES.leads_to(["cards", "plains"])
def add_mapped_otherwise(session: Session, world: World) -> None:
    """Add a dataclass and a class that was mapped imperatively."""
    session.add_all([Card(owner_id=world.me), Plain(owner_id=world.me)])


@WRITES.leads_to(["links", "links"])
def composite_keys_that_python_cannot_order(session: Session, world: World) -> None:
    """Change two rows whose keys differ in an enum."""
    links = world.get(session, "list").links
    for link in links:
        link.weight = 1

    assert len(LinkKind) == len(links)


@WRITES.leads_to(["notes"])
def tombstone_by_hand(session: Session, world: World) -> None:
    """Set ``deleted_at``."""
    world.get(session, "note").deleted_at = datetime.now(UTC)


@WRITES.leads_to(["notes"])
def undelete(session: Session, world: World) -> None:
    """Clear ``deleted_at``."""
    world.get(session, "tombstone").deleted_at = None


@WRITES.leads_to(["counts"])
def hand_stamped_child(session: Session, world: World) -> None:
    """Change a child without an owner column, with a revision."""
    count = world.get(session, "count")
    count.number, count.revision = 1, count.revision + 1_000


@WRITES.leads_to(["counts"])
def add_a_hand_stamped_child(session: Session, world: World) -> None:
    """Add a child without an owner column, with a revision."""
    session.add(Count(list_id=world.key("list"), revision=5))


@WRITES.leads_to(["notes"])
def bulk_save_of_an_attached_object(session: Session, world: World) -> None:
    """The bulk write is not seen, but the object is still changed for the next flush."""
    note = world.get(session, "note")
    note.title = "bulk"
    session.bulk_save_objects([note])


@pytest.mark.parametrize(("path", "tables"), NO_WRITES)
def test_what_does_not_write_allocates_nothing(
    store: Store, world: World, path: Path, tables: list[str]
) -> None:
    """No counter is touched, and no row."""
    before = store.snapshot()
    with store.counter_statements() as statements, store.begin() as session:
        path(session, world)

    assert before == store.snapshot()
    assert tables == statements


@NO_WRITES.leads_to([])
def the_same_values(session: Session, world: World) -> None:
    """Set columns of every kind to what they are."""
    note = world.get(session, "note")
    note.title, note.body, note.raw, note.at = "milk", {"a": 1}, [1], Point(0, 0)


@NO_WRITES.leads_to([])
def the_same_relationships(session: Session, world: World) -> None:
    """Set relationships of every kind to what they are."""
    note, todo = world.get(session, "note"), world.get(session, "list")
    note.owner, note.cover, note.icon = note.owner, note.cover, note.icon
    note.tags, note.places = list(note.tags), set(note.places)
    todo.items, todo.labels, todo.stickers = list(todo.items), dict(todo.labels), set(todo.stickers)


@NO_WRITES.leads_to([])
def there_and_back(session: Session, world: World) -> None:
    """Change a column, and change it back."""
    note = world.get(session, "note")
    note.title = "bread"
    note.title = "milk"


@NO_WRITES.leads_to([])
def removed_and_added_again(session: Session, world: World) -> None:
    """Take a child from a collection, and put it back."""
    todo, remark = world.get(session, "list"), world.get(session, "remark")
    todo.remarks.remove(remark)
    todo.remarks.append(remark)


@NO_WRITES.leads_to([])
def a_refresh(session: Session, world: World) -> None:
    """Read a changed row again before it is written."""
    note = world.get(session, "note")
    with session.no_autoflush:
        note.title = "bread"
        session.refresh(note)


@NO_WRITES.leads_to([])
def marked_as_dirty(session: Session, world: World) -> None:
    """Mark an object that has not changed."""
    flag_dirty(world.get(session, "note"))


@NO_WRITES.leads_to([])
def merged_unchanged(session: Session, world: World) -> None:
    """Merge an object that has not changed."""
    note = world.get(session, "note")
    session.expunge(note)
    session.merge(note)


@NO_WRITES.leads_to([])
def reads_and_other_tables(session: Session, world: World) -> None:
    """Read rows, and write what is not synced."""
    session.scalars(sa.select(Note).with_for_update()).all()
    session.execute(sa.text("SELECT * FROM notes FOR NO KEY UPDATE OF notes SKIP LOCKED"))
    session.execute(sa.text("INSERT INTO logs SELECT title FROM notes"))
    session.add(User())


@NO_WRITES.leads_to([])
def a_pending_object_that_is_taken_back(session: Session, world: World) -> None:
    """Append a new child, and remove it before the flush."""
    todo = world.get(session, "list")
    item = Item(owner_id=world.me)
    todo.items.append(item)
    todo.items.remove(item)


@NO_WRITES.leads_to([])
def a_tombstone_that_is_deleted_again(session: Session, world: World) -> None:
    """Delete what is a tombstone already."""
    session.delete(world.get(session, "tombstone"))


def test_a_stale_object_that_is_attached_again_gets_a_revision_above_the_stored_one(
    store: Store, world: World
) -> None:
    """What it remembers of its old revision does not count."""
    with store.begin() as session:
        stale = world.get(session, "note")
        session.expunge(stale)
    with store.begin() as session:
        world.get(session, "note").long = "in between"
    before = store.snapshot()
    with store.begin() as session:
        session.add(stale)
        stale.title = "stale"

    assert ["notes"] == written(before, store.snapshot())


def test_a_thousand_rows_of_an_owner_cost_one_statement(store: Store, me: UUID) -> None:
    """One flush raises the counter once, by the number of rows, for inserts as for updates."""
    with store.begin() as session:
        notes = [Note(owner_id=me) for _ in range(1_000)]
        session.add_all(notes)
        with store.counter_statements() as of_inserts:
            session.flush()
        for note in notes:
            note.title = "changed"
        with store.counter_statements() as of_updates:
            session.flush()
        revisions = {note.revision for note in notes}

    assert (1, 1) == (len(of_inserts), len(of_updates))
    assert set(range(1_001, 2_001)) == revisions


def test_a_flush_without_changes_sends_no_statement_for_counters(store: Store, me: UUID) -> None:
    """Neither does the commit after a flush."""
    with store.begin() as session:
        session.add(Note(owner_id=me))
        session.flush()
        with store.counter_statements() as statements:
            session.flush()
            session.commit()

    assert [] == statements


def test_each_flush_of_a_transaction_stamps_a_row_again(store: Store, me: UUID) -> None:
    """Also when the flushes are automatic, before a query."""
    with store.begin() as session:
        note = Note(owner_id=me)
        session.add(note)
        revisions = []
        for title in ("a", "b", "c"):
            note.title = title
            assert session.scalars(sa.select(Note.title)).one() == title
            revisions.append(note.revision)

    assert [1, 2, 3] == revisions
    assert 3 == store.last_revision(me)


def test_updated_at_moves_to_the_time_of_the_server(store: Store, world: World) -> None:
    """It is the database's clock at the flush, for a change and for a tombstone."""
    with store.begin() as session:
        earliest = session.scalar(sa.select(sa.func.clock_timestamp()))
        note, draft = world.get(session, "note"), world.get(session, "draft")
        note.title = "bread"
        session.delete(draft)
        session.flush()
        latest = session.scalar(sa.select(sa.func.clock_timestamp()))
        times = [note.updated_at, draft.updated_at, draft.deleted_at]

    assert [True] * 3 == [earliest <= time <= latest for time in times]


def test_an_updated_at_that_is_assigned_stays(store: Store, world: World) -> None:
    """It may be the client's time, which the product's conflict rule compares."""
    by_client = datetime.now(UTC) - timedelta(days=1)
    with store.begin() as session:
        new, old = Note(owner_id=world.me, updated_at=by_client), world.get(session, "note")
        old.title, old.updated_at = "bread", by_client
        session.add(new)
        session.flush()
        session.expire_all()

        assert [by_client] * 2 == [new.updated_at, old.updated_at]


def test_parents_have_lower_revisions_than_their_children(store: Store, me: UUID) -> None:
    """In the order of tables, and within a tree; whatever the order of adding."""
    with store.begin() as session:
        todo = TodoList(owner_id=me)
        item = Item(owner_id=me, parent=todo)
        step = Step(owner_id=me, item=item)
        root = Folder(owner_id=me)
        child = Folder(owner_id=me, parent=root)
        leaf = Folder(owner_id=me, parent=child)
        session.add_all([step, leaf, item, child, todo, root])
        session.flush()

        assert todo.revision < item.revision < step.revision
        assert root.revision < child.revision < leaf.revision


def test_the_same_changes_get_the_same_revisions(store: Store, me: UUID) -> None:
    """New rows are numbered as they were added, changed rows by their keys."""
    ids = [UUID(int=number) for number in range(20)]
    with store.begin() as session:
        session.add_all(Note(id=id_, owner_id=me) for id_ in reversed(ids))
        session.flush()
        inserted = {note.id: note.revision for note in session.scalars(sa.select(Note))}
    with store.begin() as session:
        for note in session.scalars(sa.select(Note).order_by(sa.func.random())).all():
            note.title = "changed"
        session.flush()
        updated = {note.id: note.revision for note in session.scalars(sa.select(Note))}

    assert {id_: 20 - number for number, id_ in enumerate(ids)} == inserted
    assert {id_: 21 + number for number, id_ in enumerate(ids)} == updated


def test_a_partial_flush_stamps_only_what_it_writes(store: Store, world: World) -> None:
    """What the flush leaves out is stamped by the next one."""
    before = store.snapshot()
    with store.begin() as session:
        note, draft = world.get(session, "note"), world.get(session, "draft")
        note.title, draft.text = "first", "second"
        flush_only(session, note)
        of_note, of_draft = note.revision, draft.revision
        session.flush()

        assert [of_note + 1] == [draft.revision]
        assert of_draft < of_note
    assert ["drafts", "notes"] == written(before, store.snapshot())


def flush_only(session: Session, *instances: object) -> None:
    """Flush some objects, in the way that SQLAlchemy 2.1 deprecates."""
    with pytest.warns() if sa.__version__ >= "2.1" else contextlib.nullcontext():
        session.flush(instances)


def test_a_flush_and_next_revision_share_the_counter(store: Store, me: UUID) -> None:
    """What one hands out, the other does not."""
    with store.begin() as session:
        by_hand = next_revision(session, me)
        note = Note(owner_id=me)
        session.add(note)
        session.flush()

        assert (1, 2) == (by_hand, note.revision)

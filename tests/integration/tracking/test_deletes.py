"""What SQLAlchemy would remove becomes a tombstone, with all that its cascades reach."""

from __future__ import annotations

import gc
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from baukit_sync import HardDeleteError, TombstoneTable, purge_tombstone_batch
from tests.integration.tracking.models import (
    Count,
    Cover,
    Draft,
    Item,
    Label,
    Room,
    Scrap,
    TodoList,
)
from tests.integration.tracking.paths import Path, Table
from tests.integration.tracking.store import Store, written
from tests.integration.tracking.world import World

DELETES = Table()

WHOLE_LIST = sorted(
    ["lists"]
    + ["archived", "items", "labels", "lines", "links", "remarks", "stickers", "visits"] * 2
    + ["steps"] * 4
)
"""A list's row and those of its children and grandchildren."""


@pytest.mark.parametrize(("path", "tables"), DELETES)
def test_what_would_be_removed_becomes_a_tombstone_with_a_revision_of_its_own(
    store: Store, world: World, path: Path, tables: list[str]
) -> None:
    """Exactly these rows are written, and nothing of them changes but what makes a tombstone."""
    before = store.snapshot()
    with store.begin() as session:
        path(session, world)
    after = store.snapshot()
    differences = [
        {name for name, value in row.items() if before.rows[key][name] != value} - {"edits"}
        for key, row in after.rows.items()
        if before.rows[key] != row
    ]

    assert tables == written(before, after)
    assert [{"deleted_at", "revision", "updated_at"}] * len(tables) == differences


@DELETES.leads_to(["notes"])
def a_row(session: Session, world: World) -> None:
    """Delete a row on which nothing hangs."""
    session.delete(world.get(session, "project note"))


@DELETES.leads_to(["cards", "plains"])
def mapped_otherwise(session: Session, world: World) -> None:
    """Delete a dataclass and a class that was mapped imperatively."""
    session.delete(world.get(session, "card"))
    session.delete(world.get(session, "plain"))


@DELETES.leads_to(["links"])
def a_composite_key(session: Session, world: World) -> None:
    """Delete an association object."""
    session.delete(world.get(session, "link"))


@DELETES.leads_to(["covers", "icons", "notes"])
def one_to_one(session: Session, world: World) -> None:
    """Delete a row with the one that points to it, and the one it points to."""
    session.delete(world.get(session, "note"))


@DELETES.leads_to(WHOLE_LIST)
def children_that_are_not_loaded(session: Session, world: World) -> None:
    """Delete a parent; some children would be left to the database."""
    session.delete(world.get(session, "list"))


@DELETES.leads_to(WHOLE_LIST)
def children_that_are_loaded(session: Session, world: World) -> None:
    """Delete a parent whose collections are loaded."""
    todo = world.get(session, "list")
    for name in ("items", "remarks", "labels", "stickers", "archived", "links"):
        assert 2 == len(getattr(todo, name))
    session.delete(todo)


@DELETES.leads_to(WHOLE_LIST)
def children_that_left_before_their_parent_went(session: Session, world: World) -> None:
    """Empty some collections, and delete the parent in the same flush."""
    todo = world.get(session, "list")
    with session.no_autoflush:
        todo.items.clear()
        todo.remarks.clear()
        session.delete(todo)


@DELETES.leads_to(["folders", "folders", "folders"])
def a_tree(session: Session, world: World) -> None:
    """Delete its root."""
    session.delete(world.get(session, "root"))


@DELETES.leads_to(["folders", "folders", "folders"])
def a_tree_twice(session: Session, world: World) -> None:
    """Delete its leaf, and its root."""
    session.delete(world.get(session, "leaf"))
    session.delete(world.get(session, "root"))


@DELETES.leads_to(["folders", "folders"])
def a_branch(session: Session, world: World) -> None:
    """Take it from its parent, which owns it."""
    world.get(session, "root").children.clear()


@DELETES.leads_to(["items", "steps", "steps"])
def an_orphan(session: Session, world: World) -> None:
    """Take a child with children from its collection."""
    world.get(session, "list").items.remove(world.get(session, "item"))


@DELETES.leads_to(["items", "steps", "steps"])
def an_orphan_by_many_to_one(session: Session, world: World) -> None:
    """Take the parent from a child; its collection is loaded."""
    assert 2 == len(world.get(session, "list").items)
    world.get(session, "item").parent = None


@DELETES.leads_to(["items", "steps", "steps"])
def an_orphan_by_many_to_one_of_a_collection_that_is_not_loaded(session: Session, world: World) -> None:
    """Take the parent from a child; its collection is not loaded."""
    world.get(session, "list")
    world.get(session, "item").parent = None


@DELETES.leads_to(["items", "items", "steps", "steps", "steps", "steps"])
def all_orphans(session: Session, world: World) -> None:
    """Replace a collection by an empty one."""
    world.get(session, "list").items = []


@DELETES.leads_to(["remarks"])
def an_orphan_without_a_way_back(session: Session, world: World) -> None:
    """Take a child that knows nothing of its parent from a collection."""
    world.get(session, "list").remarks.remove(world.get(session, "remark"))


@DELETES.leads_to(["labels"])
def an_orphan_of_a_dict(session: Session, world: World) -> None:
    """Take a key from a dict."""
    del world.get(session, "list").labels["a"]


@DELETES.leads_to(["stickers"])
def an_orphan_of_a_set(session: Session, world: World) -> None:
    """Take a member from a set."""
    world.get(session, "list").stickers.discard(world.get(session, "sticker"))


@DELETES.leads_to(["lines", "visits"])
def orphans_of_collections_that_are_never_loaded(session: Session, world: World) -> None:
    """Take children from a dynamic and from a write-only collection."""
    world.get(session, "list").visits.remove(world.get(session, "visit"))
    world.get(session, "list").lines.remove(world.get(session, "line"))


@DELETES.leads_to(["covers"])
def a_one_to_one_orphan(session: Session, world: World) -> None:
    """Set a one-to-one relationship to ``None``; nothing else holds what it was."""
    world.get(session, "note").cover = None


@DELETES.leads_to(["cells", "cells"])
def orphans_whose_foreign_key_holds_their_owner(session: Session, world: World) -> None:
    """They keep their parent, so they keep their owner."""
    world.get(session, "sheet").cells.clear()


@DELETES.leads_to(["items", "steps", "steps"])
def an_orphan_that_is_deleted_as_well(session: Session, world: World) -> None:
    """Take a child from its collection, and delete it."""
    item = world.get(session, "item")
    world.get(session, "list").items.remove(item)
    session.delete(item)


@DELETES.leads_to(["loose"])
def a_child_that_leaves_and_is_deleted(session: Session, world: World) -> None:
    """The parent does not own it, and still its foreign key stays."""
    loose = world.get(session, "loose")
    world.get(session, "list").loose.remove(loose)
    session.delete(loose)


@DELETES.leads_to(["photos", "teams"])
def what_a_many_to_many_relationship_owns(session: Session, world: World) -> None:
    """Delete the one side; the links stay."""
    session.delete(world.get(session, "team"))


@DELETES.leads_to(["documents", "pages"])
def a_joined_subclass(session: Session, world: World) -> None:
    """Delete a row of two tables."""
    session.delete(world.get(session, "letter"))


@DELETES.leads_to(["documents"])
def a_single_table_subclass(session: Session, world: World) -> None:
    """Delete a row of a subclass without a table."""
    session.delete(world.get(session, "memo"))


@DELETES.leads_to(["faxes"])
def a_concrete_subclass(session: Session, world: World) -> None:
    """Delete a row of a subclass with a table of its own."""
    session.delete(world.get(session, "fax"))


def bury_archived(store: Store, world: World) -> None:
    """Make a tombstone of one of the two children that a delete of the list does not load."""
    with store.begin() as session:
        session.delete(world.get(session, "archived"))
    world.held.clear()


def test_a_child_that_is_a_tombstone_stays_as_it_is(store: Store, world: World) -> None:
    """It is not written again, and it need not be held by anyone while the flush looks at it."""
    bury_archived(store, world)
    before = store.snapshot()
    with store.begin() as session:
        session.delete(world.get(session, "list"))

    assert WHOLE_LIST[1:] == written(before, store.snapshot())


def test_a_deleted_tombstone_with_live_children_buries_those(store: Store, world: World) -> None:
    """The tombstone itself is not written."""
    with store.begin() as session:
        world.get(session, "item").deleted_at = datetime.now(UTC)
    before = store.snapshot()
    with store.begin() as session:
        session.delete(world.get(session, "item"))

    assert ["steps", "steps"] == written(before, store.snapshot())


def test_a_deleted_tombstone_that_was_changed_is_written(store: Store, world: World) -> None:
    """A change is not lost because the row is deleted in the same flush."""
    before = store.snapshot()
    with store.begin() as session:
        tombstone = world.get(session, "tombstone")
        tombstone.title = "changed"
        session.delete(tombstone)

    assert ["notes"] == written(before, store.snapshot())


def test_a_deleted_row_that_was_changed_gets_one_revision(store: Store, world: World) -> None:
    """The change and the tombstone are one write."""
    before = store.snapshot()
    with store.begin() as session:
        draft = world.get(session, "draft")
        draft.text = "changed"
        session.delete(draft)

    assert ["drafts"] == written(before, store.snapshot())


def test_a_delete_that_is_taken_back_buries_nothing(store: Store, world: World) -> None:
    """As without tracking: adding the object again before the flush cancels its delete."""
    before = store.snapshot()
    with store.begin() as session:
        draft = world.get(session, "draft")
        session.delete(draft)
        session.add(draft)

    assert before == store.snapshot()


def test_a_tombstone_stays_in_the_session(store: Store, world: World) -> None:
    """It can be read and revived, as its row is still there."""
    before = store.snapshot()
    with store.begin() as session:
        draft = world.get(session, "draft")
        session.delete(draft)
        session.flush()
        assert draft in session
        draft.deleted_at = None
        revived = draft.revision
        session.flush()

        assert revived + 1 == draft.revision
    assert before.counters[str(world.me)] + 2 == store.last_revision(world.me)


def test_an_orphan_is_out_of_the_collection_and_keeps_its_parent(store: Store, world: World) -> None:
    """The collection is as the product left it, and the tombstone points to where it was."""
    with store.begin() as session:
        todo, item = world.get(session, "list"), world.get(session, "item")
        todo.items.remove(item)
        session.flush()

        assert item not in todo.items
        assert (todo, todo.id) == (item.parent, item.list_id)


def test_what_replaces_an_orphan_is_inserted(store: Store, world: World) -> None:
    """One to one, and under the same key of a dict: the old row is a tombstone, the new one is live."""
    before = store.snapshot()
    with store.begin() as session:
        note, todo = world.get(session, "note"), world.get(session, "list")
        note.cover = Cover(owner_id=world.me)
        todo.labels["a"] = Label(owner_id=world.me, name="a")
        session.flush()
        new = [note.cover.id, todo.labels["a"].id]
    with store.begin() as session:
        live = [
            session.scalars(sa.select(model.id).where(model.deleted_at.is_(None), criterion)).one()
            for model, criterion in ((Cover, sa.true()), (Label, Label.name == "a"))
        ]

    assert ["covers", "covers", "labels", "labels"] == written(before, store.snapshot())
    assert new == live


@pytest.mark.parametrize("held", [True, False])
def test_a_one_to_one_orphan_that_a_row_pointed_to_is_buried(store: Store, world: World, held: bool) -> None:
    """The row that pointed to it is written as well; it need not have loaded the other."""
    before = store.snapshot()
    with store.begin() as session:
        note = world.get(session, "note")
        assert not held or note.icon is not None
        note.icon = None
    after = store.snapshot()

    assert ["icons", "notes"] == written(before, after)
    assert after.rows["icons", str(world.key("icon"))]["deleted_at"] is not None


def test_an_orphan_of_a_many_to_many_relationship_is_buried(store: Store, world: World) -> None:
    """The side that owned it is written, as its links are gone."""
    before = store.snapshot()
    with store.begin() as session:
        world.get(session, "team").photos.clear()

    assert ["photos", "teams"] == written(before, store.snapshot())


def test_a_child_that_was_never_stored_is_inserted_as_a_tombstone(store: Store, world: World) -> None:
    """It belonged to a row that went in the same flush."""
    before = store.snapshot()
    with store.begin() as session, session.no_autoflush:
        todo = world.get(session, "list")
        todo.items.append(Item(owner_id=world.me, text="new"))
        session.delete(todo)
    with store.begin() as session:
        new = session.scalars(sa.select(Item).where(Item.text == "new")).one()

        assert new.deleted_at is not None
    assert sorted([*WHOLE_LIST, "items"]) == written(before, store.snapshot())


def test_children_of_a_garbage_collected_parent_are_buried(store: Store, world: World) -> None:
    """Nothing but the session refers to the objects of a flush, and to some not even that."""
    before = store.snapshot()
    world.held.clear()
    with store.begin() as session:
        session.delete(session.get_one(TodoList, world.key("list")))
        gc.collect()

    assert WHOLE_LIST == written(before, store.snapshot())


def test_what_is_not_synced_is_still_removed(store: Store, world: World) -> None:
    """By a delete, as an orphan, and with the parent that becomes a tombstone."""
    with store.begin() as session:
        todo, other = world.get(session, "list"), world.get(session, "other list")
        session.add_all([Scrap(parent=todo), Scrap(parent=other)])
        session.flush()
        session.delete(world.get(session, "scrap"))
        other.scraps.clear()
        session.flush()
        left = len(session.scalars(sa.select(Scrap)).all())
        session.delete(todo)
        session.flush()

        assert (1, 0) == (left, len(session.scalars(sa.select(Scrap)).all()))


def test_a_hand_stamped_child_that_is_a_tombstone_does_not_stop_its_parent(
    store: Store, world: World
) -> None:
    """The product has buried it, with a revision; the cascade leaves it alone."""
    with store.begin() as session:
        count = world.get(session, "count")
        count.deleted_at, count.revision = datetime.now(UTC), 1_000
        session.flush()
        session.delete(world.get(session, "other list"))
    with store.begin() as session:
        assert 1_000 == session.scalars(sa.select(Count)).one().revision
        assert world.get(session, "other list").deleted_at is not None


def test_a_parent_without_rows_that_the_database_would_write_is_removed(store: Store, world: World) -> None:
    """Only rows that are there stop the delete of a row that is not synced."""
    with store.begin() as session:
        session.add(room := Room())
        session.flush()
        session.delete(room)
        session.flush()

        assert [world.key("room")] == session.scalars(sa.select(Room.id)).all()


def test_an_orphan_whose_parent_is_forgotten_is_refused(store: Store, world: World) -> None:
    """SQLAlchemy would remove it although no relationship of the flush tells of it."""
    before = store.snapshot()
    for forget in (Session.expire, Session.expunge):
        with pytest.raises(HardDeleteError), store.begin() as session:
            todo = world.get(session, "list")
            todo.items.remove(world.get(session, "item"))
            forget(session, todo)

    assert before == store.snapshot()


def test_a_row_can_be_added_under_the_key_of_a_deleted_one_only_by_reviving_it(
    store: Store, world: World
) -> None:
    """Without tracking SQLAlchemy would turn a delete and an insert of one key into an update."""
    before = store.snapshot()
    with pytest.raises((sa.exc.IntegrityError, sa.exc.SAWarning)), store.begin() as session:
        draft = world.get(session, "draft")
        session.delete(draft)
        session.add(Draft(id=draft.id, owner_id=world.me))

    assert before == store.snapshot()


def test_a_tracked_session_can_purge(store: Store, world: World) -> None:
    """What the kit itself sends is not refused."""
    notes = TombstoneTable(
        "notes",
        "SELECT id, owner_id, revision FROM notes WHERE deleted_at < :cutoff"
        " LIMIT :limit FOR UPDATE SKIP LOCKED",
        "DELETE FROM notes WHERE id = ANY(:ids)",
    )
    with store.begin() as session:
        batch = purge_tombstone_batch(session, notes, datetime.now(UTC), 10)

    assert 1 == batch.deleted
    assert ("notes", str(world.key("tombstone"))) not in store.snapshot().rows

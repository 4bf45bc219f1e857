"""Rows that are written because a relationship changed, on whichever side: each gets a fresh revision."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session

from tests.integration.tracking.models import (
    Cell,
    Cover,
    Folder,
    Icon,
    Label,
    Line,
    Link,
    LinkKind,
    Member,
    Note,
    Place,
    Project,
    Remark,
    Sheet,
    Sticker,
    Tag,
    Team,
    TodoList,
    Visit,
)
from tests.integration.tracking.paths import Path, Table
from tests.integration.tracking.store import Store, written
from tests.integration.tracking.world import World

WRITES = Table()


@pytest.mark.parametrize(("path", "tables"), WRITES)
def test_every_row_that_a_relationship_writes_gets_a_fresh_revision_of_its_own(
    store: Store, world: World, path: Path, tables: list[str]
) -> None:
    """Exactly these rows are written, and each has its own step of its owner's counter."""
    before = store.snapshot()
    with store.begin() as session:
        path(session, world)

    assert tables == written(before, store.snapshot())


@WRITES.leads_to(["items"])
def moved_by_many_to_one(session: Session, world: World) -> None:
    """Give a child another parent; neither collection is loaded."""
    world.get(session, "item").parent = world.get(session, "other list")


@WRITES.leads_to(["items"])
def moved_by_many_to_one_between_loaded_collections(session: Session, world: World) -> None:
    """Give a child another parent; both collections are loaded."""
    source, target = world.get(session, "list"), world.get(session, "other list")
    assert (2, 0) == (len(source.items), len(target.items))
    world.get(session, "item").parent = target


@WRITES.leads_to(["items"])
def moved_by_collections(session: Session, world: World) -> None:
    """Take a child from one collection and put it into another."""
    item, source, target = (world.get(session, name) for name in ("item", "list", "other list"))
    with session.no_autoflush:
        source.items.remove(item)
        target.items.append(item)


@WRITES.leads_to(["items"])
def moved_by_foreign_key(session: Session, world: World) -> None:
    """Change the column."""
    world.get(session, "item").list_id = world.key("other list")


@WRITES.leads_to(["remarks"])
def moved_without_a_way_back(session: Session, world: World) -> None:
    """Move a child that knows nothing of its parents."""
    remark, source, target = (world.get(session, name) for name in ("remark", "list", "other list"))
    with session.no_autoflush:
        source.remarks.remove(remark)
        target.remarks.append(remark)


@WRITES.leads_to(["items", "lists"])
def moved_to_a_new_parent(session: Session, world: World) -> None:
    """Move a child into a collection of an object that is not stored yet."""
    session.add(TodoList(owner_id=world.me, items=[world.get(session, "item")]))


@WRITES.leads_to(["lists", "remarks"])
def moved_to_a_new_parent_without_a_way_back(session: Session, world: World) -> None:
    """The same for a child that knows nothing of its parents."""
    session.add(TodoList(owner_id=world.me, remarks=[world.get(session, "remark")]))


@WRITES.leads_to(["notes"])
def moved_to_a_new_parent_that_is_not_synced(session: Session, world: World) -> None:
    """The same when the new parent itself is not tracked."""
    session.add(Project(notes=[world.get(session, "note")]))


@WRITES.leads_to(["lines", "visits"])
def moved_between_collections_that_are_never_loaded(session: Session, world: World) -> None:
    """Move children between dynamic, and between write-only collections."""
    source, target = world.get(session, "list"), world.get(session, "other list")
    for name, child in (("visits", world.get(session, "visit")), ("lines", world.get(session, "line"))):
        getattr(source, name).remove(child)
        getattr(target, name).add(child)


@WRITES.leads_to(["lists", "loose"])
def moved_to_a_new_parent_by_many_to_one(session: Session, world: World) -> None:
    """Give a child a parent that is not stored yet."""
    world.get(session, "loose").parent = TodoList(owner_id=world.me)


@WRITES.leads_to(["notes"])
def left_a_parent_that_is_not_synced(session: Session, world: World) -> None:
    """Empty a collection; the foreign keys become null."""
    world.get(session, "project").notes.clear()


@WRITES.leads_to(["loose"])
def left_a_parent_that_does_not_own(session: Session, world: World) -> None:
    """Empty a collection that has a way back."""
    world.get(session, "list").loose.clear()


@WRITES.leads_to(["loose"])
def left_a_parent_by_many_to_one(session: Session, world: World) -> None:
    """Take the parent from a child; its collection is not loaded."""
    world.get(session, "list")
    world.get(session, "loose").parent = None


@WRITES.leads_to(["notes"])
def lost_a_parent_that_is_not_synced(session: Session, world: World) -> None:
    """Delete the parent; SQLAlchemy takes the foreign key."""
    session.delete(world.get(session, "project"))


@WRITES.leads_to(["labels"])
def set_in_a_dict(session: Session, world: World) -> None:
    """Set a new key of a dict."""
    world.get(session, "list").labels["c"] = Label(owner_id=world.me, name="c")


@WRITES.leads_to(["stickers"])
def added_to_a_set(session: Session, world: World) -> None:
    """Add to a set."""
    world.get(session, "list").stickers.add(Sticker(owner_id=world.me))


@WRITES.leads_to(["remarks"])
def appended_without_a_way_back(session: Session, world: World) -> None:
    """Append a new child that knows nothing of its parent."""
    world.get(session, "other list").remarks.append(Remark(owner_id=world.me))


@WRITES.leads_to(["lines", "visits"])
def added_to_collections_that_are_never_loaded(session: Session, world: World) -> None:
    """Add to a dynamic and to a write-only collection."""
    world.get(session, "list").visits.append(Visit(owner_id=world.me))
    world.get(session, "list").lines.add(Line(owner_id=world.me))


@WRITES.leads_to(["notes"])
def linked(session: Session, world: World) -> None:
    """Append to a many-to-many collection: the links belong to the row."""
    world.get(session, "note").tags.append(Tag(name="new"))


@WRITES.leads_to(["notes"])
def linked_by_an_association_proxy(session: Session, world: World) -> None:
    """Append through an association proxy."""
    world.get(session, "note").tag_names.append("new")


@WRITES.leads_to(["notes"])
def linked_from_a_side_that_is_not_synced(session: Session, world: World) -> None:
    """Put a note into a new tag; the note's own collection is not loaded."""
    session.add(Tag(name="new", notes=[world.get(session, "note")]))


@WRITES.leads_to(["notes"])
def unlinked_from_a_side_that_is_not_synced(session: Session, world: World) -> None:
    """Take all notes from a tag; their own collections are not loaded."""
    red = session.get_one(Tag, "red")
    red.notes.clear()


@WRITES.leads_to(["notes"])
def unlinked_by_a_delete_of_what_is_not_synced(session: Session, world: World) -> None:
    """Delete a tag; SQLAlchemy removes its links."""
    session.delete(session.get_one(Tag, "red"))


@WRITES.leads_to(["notes", "places"])
def linked_without_a_way_back(session: Session, world: World) -> None:
    """Append to a many-to-many collection that only one side has."""
    world.get(session, "note").places.add(Place(owner_id=world.me))


@WRITES.leads_to(["links", "lists"])
def linked_by_an_association_object(session: Session, world: World) -> None:
    """Add an object that is a link."""
    session.add(Link(owner_id=world.me, kind=LinkKind.FIRST, parent=TodoList(owner_id=world.me)))


@WRITES.leads_to(["covers", "notes"])
def one_to_one(session: Session, world: World) -> None:
    """Add a row with the one that points to it."""
    session.add(Note(owner_id=world.me, cover=Cover(owner_id=world.me)))


@WRITES.leads_to(["covers"])
def one_to_one_moved(session: Session, world: World) -> None:
    """Give the one that points to a row to another row."""
    world.get(session, "project note").cover = world.get(session, "cover")


@WRITES.leads_to(["icons", "notes"])
def one_to_one_by_many_to_one(session: Session, world: World) -> None:
    """Add one that a stored row points to."""
    world.get(session, "project note").icon = Icon(owner_id=world.me)


@WRITES.leads_to(["members", "teams"])
def a_post_update(session: Session, world: World) -> None:
    """Point to a new row in a second UPDATE of its own."""
    world.get(session, "team").captain = Member(owner_id=world.me)


@WRITES.leads_to(["members", "teams"])
def a_post_update_of_a_new_row(session: Session, world: World) -> None:
    """The same for a row that is new itself."""
    session.add(Team(owner_id=world.me, captain=Member(owner_id=world.me)))


@WRITES.leads_to(["folders", "folders"])
def a_tree(session: Session, world: World) -> None:
    """Add a leaf and move its parent up."""
    leaf = world.get(session, "leaf")
    leaf.children.append(Folder(owner_id=world.me))
    leaf.parent = world.get(session, "root")


@WRITES.leads_to(["folders", "folders"])
def a_tree_below_a_new_root(session: Session, world: World) -> None:
    """Put the root of a tree below a new one."""
    session.add(Folder(owner_id=world.me, children=[world.get(session, "root")]))


@WRITES.leads_to(["cells", "sheets"])
def an_owner_from_a_parent_that_is_new_as_well(session: Session, world: World) -> None:
    """A foreign key with the owner in it sets the child's owner in the flush."""
    session.add(Cell(sheet=Sheet(owner_id=world.me, number=2)))


@WRITES.leads_to(["cells"])
def an_owner_from_a_stored_parent(session: Session, world: World) -> None:
    """The same when the parent is stored."""
    world.get(session, "sheet").cells.append(Cell())

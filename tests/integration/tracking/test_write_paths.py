"""Every way in which SQLAlchemy writes a row through a flush: each row gets a fresh revision of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.orm import Session

from tests.integration.tracking.models import *
from tests.integration.tracking.store import Store, written
from tests.integration.tracking.world import World

Write = Callable[[Session, World], None]
WRITES: list[tuple[Write, list[str]]] = []


def writes(*tables: str) -> Callable[[Write], Write]:
    """Enter a way to write into the table, with the tables of the rows that it writes."""

    def enter(write: Write) -> Write:
        WRITES.append(pytest.param(write, sorted(tables), id=write.__name__))
        return write

    return enter


@pytest.mark.parametrize(("write", "tables"), WRITES)
def test_every_row_that_is_written_gets_a_fresh_revision_of_its_own(
    store: Store, world: World, write: Write, tables: list[str]
) -> None:
    """Exactly these rows, and each with its own step of its owner's counter."""
    before = store.snapshot()
    with store.begin() as session:
        write(session, world)

    assert tables == written(before, store.snapshot())


@writes("notes")
def add(session: Session, world: World) -> None:
    session.add(Note(owner_id=world.me))


@writes("notes", "notes", "lists", "items", "steps")
def add_all_with_children(session: Session, world: World) -> None:
    todo = TodoList(owner_id=world.me)
    item = Item(owner_id=world.me, parent=todo, steps=[Step(owner_id=world.me)])
    session.add_all([Note(owner_id=world.me), Note(owner_id=world.me), item])


@writes("cards", "plains", "documents", "documents")
def add_mapped_otherwise(session: Session, world: World) -> None:
    session.add_all([Card(owner_id=world.me), Plain(owner_id=world.me)])
    session.add_all([Letter(owner_id=world.me), Memo(owner_id=world.me)])


@writes("notes")
def add_for_a_persistent_owner(session: Session, world: World) -> None:
    session.add(Note(owner=world.get(session, "user")))


@writes("notes")
def append_to_a_persistent_owner(session: Session, world: World) -> None:
    world.get(session, "user").notes.append(Note())


@writes("cards")
def add_a_dataclass_for_a_persistent_owner(session: Session, world: World) -> None:
    card = Card()
    card.owner = world.get(session, "user")
    session.add(card)


@writes("drafts")
def append_to_a_collection_that_only_the_owner_knows(session: Session, world: World) -> None:
    world.get(session, "user").drafts.append(Draft(owner_id=world.me))


@writes("notes")
def merge_new(session: Session, world: World) -> None:
    session.merge(Note(id=uuid4(), owner_id=world.me, title="merged"))


@writes("notes")
def merge_onto_loaded(session: Session, world: World) -> None:
    note = world.get(session, "note")
    session.merge(Note(id=note.id, title="merged"))


@writes("notes")
def merge_onto_stored(session: Session, world: World) -> None:
    session.merge(Note(id=world.keys["note"][1][0], title="merged"))


@writes("notes")
def merge_revives_a_tombstone(session: Session, world: World) -> None:
    session.merge(Note(id=world.keys["tombstone"][1][0], deleted_at=None))


@writes("notes")
def merge_detached(session: Session, world: World) -> None:
    note = world.get(session, "note")
    session.expunge(note)
    note.title = "merged"
    session.merge(note)


@writes("notes")
def add_detached_and_changed(session: Session, world: World) -> None:
    note = world.get(session, "note")
    session.expunge(note)
    note.title = "detached"
    session.add(note)


@writes("notes")
def merge_without_load(session: Session, world: World) -> None:
    note = world.get(session, "note")
    session.expunge(note)
    session.merge(note, load=False).title = "merged"


@writes("notes")
def attribute(session: Session, world: World) -> None:
    world.get(session, "note").title = "bread"


@writes("notes")
def attribute_to_an_expression(session: Session, world: World) -> None:
    world.get(session, "note").title = sa.func.upper(Note.title)


@writes("notes")
def attribute_to_null(session: Session, world: World) -> None:
    world.get(session, "project note").project_id = None


@writes("notes")
def expired_attribute(session: Session, world: World) -> None:
    note = world.get(session, "note")
    session.expire(note)
    note.title = "bread"


@writes("notes")
def expired_attribute_to_the_stored_value(session: Session, world: World) -> None:
    """SQLAlchemy writes it, as it does not know the old value."""
    note = world.get(session, "note")
    session.expire(note)
    note.title = "milk"


@writes("notes")
def deferred_attribute(session: Session, world: World) -> None:
    world.get(session, "note").long = "text"


@writes("notes")
def attribute_of_a_partly_loaded_row(session: Session, world: World) -> None:
    note = session.scalars(sa.select(Note).options(orm.load_only(Note.id)).where(Note.title == "milk")).one()
    note.title = "bread"


@writes("notes")
def mutable_json(session: Session, world: World) -> None:
    world.get(session, "note").body["b"] = 2


@writes("notes")
def json_flagged_as_modified(session: Session, world: World) -> None:
    note = world.get(session, "note")
    note.raw.append(2)
    orm.attributes.flag_modified(note, "raw")


@writes("notes")
def composite(session: Session, world: World) -> None:
    world.get(session, "note").at = Point(1, 2)


@writes("notes")
def hybrid(session: Session, world: World) -> None:
    world.get(session, "note").shout = "BREAD"


@writes("documents")
def column_of_a_joined_subclass(session: Session, world: World) -> None:
    world.get(session, "letter").to = "you"


@writes("documents")
def column_of_the_joined_base(session: Session, world: World) -> None:
    world.get(session, "letter").title = "dear you"


@writes("documents")
def column_of_a_single_table_subclass(session: Session, world: World) -> None:
    world.get(session, "memo").priority = 1


@writes("cards", "plains")
def attributes_mapped_otherwise(session: Session, world: World) -> None:
    world.get(session, "card").text = "new"
    world.get(session, "plain").text = "new"


@writes("links")
def attribute_of_a_composite_key_row(session: Session, world: World) -> None:
    world.get(session, "link").weight = 1


@writes("links", "links")
def attributes_of_two_rows_whose_keys_python_cannot_order(session: Session, world: World) -> None:
    for link in world.get(session, "list").links:
        link.weight = 1


@writes("notes")
def tombstone_by_hand(session: Session, world: World) -> None:
    world.get(session, "note").deleted_at = datetime.now(UTC)


@writes("notes")
def undelete(session: Session, world: World) -> None:
    world.get(session, "tombstone").deleted_at = None


@writes("items")
def move_by_many_to_one(session: Session, world: World) -> None:
    world.get(session, "item").parent = world.get(session, "other list")


@writes("items")
def move_by_many_to_one_with_loaded_collections(session: Session, world: World) -> None:
    source, target = world.get(session, "list"), world.get(session, "other list")
    assert source.items, target.items == []
    world.get(session, "item").parent = target


@writes("items")
def move_by_collections(session: Session, world: World) -> None:
    item, source, target = (world.get(session, name) for name in ("item", "list", "other list"))
    with session.no_autoflush:
        source.items.remove(item)
        target.items.append(item)


@writes("items")
def move_by_foreign_key(session: Session, world: World) -> None:
    world.get(session, "item").list_id = world.keys["other list"][1][0]


@writes("lists", "items")
def move_to_a_new_parent(session: Session, world: World) -> None:
    session.add(TodoList(owner_id=world.me, items=[world.get(session, "item")]))


@writes("remarks")
def move_without_a_way_back(session: Session, world: World) -> None:
    remark, source, target = (world.get(session, name) for name in ("remark", "list", "other list"))
    with session.no_autoflush:
        source.remarks.remove(remark)
        target.remarks.append(remark)


@writes("remarks")
def append_without_a_way_back(session: Session, world: World) -> None:
    world.get(session, "other list").remarks.append(Remark(owner_id=world.me))


@writes("lists", "remarks")
def move_to_a_new_parent_without_a_way_back(session: Session, world: World) -> None:
    session.add(TodoList(owner_id=world.me, remarks=[world.get(session, "remark")]))


@writes("notes")
def move_to_a_new_parent_that_is_not_synced(session: Session, world: World) -> None:
    session.add(Project(notes=[world.get(session, "note")]))


@writes("notes")
def leave_a_parent_that_is_not_synced(session: Session, world: World) -> None:
    world.get(session, "project").notes.clear()


@writes("loose")
def leave_a_parent_that_does_not_own(session: Session, world: World) -> None:
    world.get(session, "list").loose.clear()


@writes("loose")
def leave_a_parent_that_does_not_own_by_many_to_one(session: Session, world: World) -> None:
    world.get(session, "loose").parent = None


@writes("loose", "lists")
def replace_a_parent(session: Session, world: World) -> None:
    world.get(session, "loose").parent = TodoList(owner_id=world.me)


@writes("labels")
def rename_in_a_dict(session: Session, world: World) -> None:
    world.get(session, "list").labels["a"].text = "new"


@writes("labels")
def set_in_a_dict(session: Session, world: World) -> None:
    world.get(session, "list").labels["c"] = Label(owner_id=world.me, name="c")


@writes("stickers")
def add_to_a_set(session: Session, world: World) -> None:
    world.get(session, "list").stickers.add(Sticker(owner_id=world.me))


@writes("visits", "lines")
def add_to_dynamic_collections(session: Session, world: World) -> None:
    world.get(session, "list").visits.append(Visit(owner_id=world.me))
    world.get(session, "list").lines.add(Line(owner_id=world.me))


@writes("visits", "lines")
def move_between_dynamic_collections(session: Session, world: World) -> None:
    source, target = world.get(session, "list"), world.get(session, "other list")
    for name, child in (("visits", world.get(session, "visit")), ("lines", world.get(session, "line"))):
        getattr(source, name).remove(child)
        getattr(target, name).add(child)


@writes("notes")
def many_to_many(session: Session, world: World) -> None:
    world.get(session, "note").tags.append(Tag(name="new"))


@writes("notes")
def many_to_many_from_the_other_side(session: Session, world: World) -> None:
    session.add(Tag(name="new", notes=[world.get(session, "note")]))


@writes("notes")
def many_to_many_removed_from_the_other_side(session: Session, world: World) -> None:
    red = session.get_one(Tag, "red")
    red.notes.clear()


@writes("notes")
def association_proxy(session: Session, world: World) -> None:
    world.get(session, "note").tag_names.append("new")


@writes("notes", "places")
def many_to_many_without_a_way_back(session: Session, world: World) -> None:
    world.get(session, "note").places.add(Place(owner_id=world.me))


@writes("notes")
def delete_what_is_linked(session: Session, world: World) -> None:
    session.delete(session.get_one(Tag, "red"))


@writes("links", "lists")
def association_object(session: Session, world: World) -> None:
    session.add(Link(owner_id=world.me, kind=LinkKind.FIRST, parent=TodoList(owner_id=world.me)))


@writes("covers", "notes")
def one_to_one(session: Session, world: World) -> None:
    session.add(Note(owner_id=world.me, cover=Cover(owner_id=world.me)))


@writes("notes", "icons")
def one_to_one_by_many_to_one(session: Session, world: World) -> None:
    world.get(session, "project note").icon = Icon(owner_id=world.me)


@writes("folders", "folders")
def tree(session: Session, world: World) -> None:
    world.get(session, "leaf").children.append(Folder(owner_id=world.me))
    world.get(session, "leaf").parent = world.get(session, "root")


@writes("counts")
def hand_stamped_child(session: Session, world: World) -> None:
    """A child without an owner column takes its revision from the caller."""
    count = world.get(session, "count")
    count.number, count.revision = 1, count.revision + 1_000


@writes("notes")
def several_flushes(session: Session, world: World) -> None:
    """The row gets a revision for each; the last one stays."""


WRITES.pop()

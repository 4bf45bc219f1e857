"""What SQLAlchemy would remove becomes a tombstone, with everything that its cascades reach."""

from __future__ import annotations

from collections.abc import Callable
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

Delete = Callable[[Session, World], None]
DELETES = []

OF_A_LIST = {
    "archived": 2,
    "items": 2,
    "labels": 2,
    "lines": 2,
    "links": 2,
    "lists": 1,
    "remarks": 2,
    "steps": 4,
    "stickers": 2,
    "visits": 2,
}


def buries(**rows: int) -> Callable[[Delete], Delete]:
    def enter(delete: Delete) -> Delete:
        DELETES.append(pytest.param(delete, rows, id=delete.__name__))
        return delete

    return enter


@pytest.mark.parametrize(("delete", "rows"), DELETES)
def test_what_would_be_removed_becomes_a_tombstone_with_a_fresh_revision(
    store: Store, world: World, delete: Delete, rows: dict[str, int]
) -> None:
    """Exactly these rows are written, all become tombstones, and no foreign key of theirs is taken."""
    before = store.snapshot()
    with store.begin() as session:
        delete(session, world)
    after = store.snapshot()
    changed = [key for key, row in after.rows.items() if before.rows.get(key) != row]

    assert sorted(name for name, count in rows.items() for _ in range(count)) == written(before, after)
    for key in changed:
        differences = {name for name, value in after.rows[key].items() if before.rows[key][name] != value}
        assert {"deleted_at", "revision", "updated_at"} == differences - {"edits"}, key


def load_everything(todo: TodoList) -> None:
    assert todo.items, todo.remarks
    assert [item.steps for item in todo.items]
    assert todo.labels, todo.stickers
    assert todo.archived, todo.links


@buries(notes=1)
def a_row(session: Session, world: World) -> None:
    session.delete(world.get(session, "project note"))


@buries(notes=1, covers=1, icons=1)
def one_to_one(session: Session, world: World) -> None:
    session.delete(world.get(session, "note"))


@buries(documents=1, pages=1)
def joined_inheritance(session: Session, world: World) -> None:
    session.delete(world.get(session, "letter"))


@buries(documents=1)
def single_table_inheritance(session: Session, world: World) -> None:
    session.delete(world.get(session, "memo"))


@buries(cards=1, plains=1)
def mapped_otherwise(session: Session, world: World) -> None:
    session.delete(world.get(session, "card"))
    session.delete(world.get(session, "plain"))


@buries(links=1)
def composite_key(session: Session, world: World) -> None:
    session.delete(world.get(session, "link"))


@buries(folders=3)
def tree(session: Session, world: World) -> None:
    session.delete(world.get(session, "root"))


@buries(folders=2)
def branch(session: Session, world: World) -> None:
    session.delete(world.get(session, "child"))


@buries(folders=2)
def branch_removed(session: Session, world: World) -> None:
    world.get(session, "root").children.clear()


@buries(items=1, steps=2)
def item_with_steps(session: Session, world: World) -> None:
    session.delete(world.get(session, "item"))


@buries(items=1, steps=2)
def orphan(session: Session, world: World) -> None:
    world.get(session, "list").items.remove(world.get(session, "item"))


@buries(items=1, steps=2)
def orphan_by_many_to_one(session: Session, world: World) -> None:
    todo = world.get(session, "list")
    assert todo.items
    world.get(session, "item").parent = None


@buries(items=1, steps=2)
def orphan_by_many_to_one_while_the_collection_is_not_loaded(session: Session, world: World) -> None:
    world.get(session, "list")
    world.get(session, "item").parent = None


@buries(remarks=1)
def orphan_without_a_way_back(session: Session, world: World) -> None:
    world.get(session, "list").remarks.remove(world.get(session, "remark"))


@buries(remarks=2)
def all_orphans_without_a_way_back(session: Session, world: World) -> None:
    world.get(session, "list").remarks = []


@buries(labels=1)
def orphan_of_a_dict(session: Session, world: World) -> None:
    del world.get(session, "list").labels["a"]


@buries(stickers=1)
def orphan_of_a_set(session: Session, world: World) -> None:
    world.get(session, "list").stickers.discard(world.get(session, "sticker"))


@buries(visits=1)
def orphan_of_a_dynamic_collection(session: Session, world: World) -> None:
    world.get(session, "list").visits.remove(world.get(session, "visit"))


@buries(lines=1)
def orphan_of_a_write_only_collection(session: Session, world: World) -> None:
    world.get(session, "list").lines.remove(world.get(session, "line"))


@buries(covers=1)
def one_to_one_orphan(session: Session, world: World) -> None:
    world.get(session, "note").cover = None


@buries(items=1, steps=2)
def orphan_removed_and_deleted(session: Session, world: World) -> None:
    item = world.get(session, "item")
    world.get(session, "list").items.remove(item)
    session.delete(item)


@buries(loose=1)
def removed_from_a_collection_and_deleted(session: Session, world: World) -> None:
    """Its foreign key could be null, and still it is not taken."""
    loose = world.get(session, "loose")
    world.get(session, "list").loose.remove(loose)
    session.delete(loose)


@buries(lists=1, archived=2, items=2, labels=2, lines=2, links=2, remarks=2, steps=4, stickers=2, visits=2)
def orphans_of_a_deleted_parent(session: Session, world: World) -> None:
    todo = world.get(session, "list")
    todo.items.clear()
    todo.remarks.clear()
    session.delete(todo)


@buries(lists=1, archived=2, items=2, labels=2, lines=2, links=2, remarks=2, steps=4, stickers=2, visits=2)
def nothing_loaded(session: Session, world: World) -> None:
    session.delete(world.get(session, "list"))


@buries(lists=1, archived=2, items=2, labels=2, lines=2, links=2, remarks=2, steps=4, stickers=2, visits=2)
def everything_loaded(session: Session, world: World) -> None:
    todo = world.get(session, "list")
    load_everything(todo)
    session.delete(todo)


@buries(lists=1, archived=2, items=2, labels=2, lines=2, links=2, remarks=2, steps=4, stickers=2, visits=2)
def after_a_change(session: Session, world: World) -> None:
    todo = world.get(session, "list")
    todo.title = "x"
    todo.title = "shopping"
    session.delete(todo)


@buries(icons=1, notes=1)
def one_to_one_orphan_of_many_to_one(session: Session, world: World) -> None:
    world.get(session, "note").icon = None


@buries(icons=1, notes=1)
def one_to_one_orphan_of_many_to_one_loaded(session: Session, world: World) -> None:
    n = world.get(session, "note")
    assert n.icon
    n.icon = None


@buries(icons=1, notes=1, covers=1)
def replaced_one_to_one(session: Session, world: World) -> None:
    n = world.get(session, "note")
    n.cover = Cover(owner_id=world.me)


@buries(labels=1)
def replaced_in_dict(session: Session, world: World) -> None:
    n = world.get(session, "list")
    n.labels["a"] = Label(owner_id=world.me, name="a")


@buries(items=1, steps=2)
def orphan_then_parent_expired(session: Session, world: World) -> None:
    n = world.get(session, "list")
    n.items.remove(world.get(session,"item"))
    session.expire(n)

@buries(items=1, steps=2)
def orphan_then_parent_refreshed(session: Session, world: World) -> None:
    n = world.get(session, "list")
    with session.no_autoflush:
        n.items.remove(world.get(session,"item"))
        session.refresh(n)

@buries(items=1, steps=2)
def orphan_then_parent_expunged(session: Session, world: World) -> None:
    n = world.get(session, "list")
    n.items.remove(world.get(session,"item"))
    session.expunge(n)

@buries(remarks=1)
def orphan_then_parent_expired_noback(session: Session, world: World) -> None:
    n = world.get(session, "list")
    n.remarks.remove(world.get(session,"remark"))
    session.expire(n)

@buries(notes=1)
def deleted_with_owner_pending_change(session: Session, world: World) -> None:
    n = world.get(session, "note")
    n.title="x"
    session.delete(n)

@buries(notes=1)
def tombstone_with_changes(session: Session, world: World) -> None:
    n = world.get(session, "tombstone")
    n.title="x"
    session.delete(n)

@buries(notes=1)
def hand_tombstone_then_delete(session: Session, world: World) -> None:
    n = world.get(session, "project note")
    n.deleted_at = datetime.now(UTC)
    session.delete(n)

@buries(chairs=1)
def room(session: Session, world: World) -> None:
    session.delete(world.get(session, "room"))

@buries(notes=1)
def project(session: Session, world: World) -> None:
    session.delete(world.get(session, "project"))

@buries(items=1)
def m2o_none_and_delete(session: Session, world: World) -> None:
    i = world.get(session, "item")
    i.parent = None
    session.delete(i)

@buries(archived=2, lists=1)
def passive_with_tombstone(session: Session, world: World) -> None:
    session.delete(world.get(session, "archived"))
    session.flush()
    world.held.clear(); session.expunge_all()
    session.delete(world.get(session, "list"))

"""The product's own listeners change objects too: what runs before the plan is stamped, the rest refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session

from baukit_sync import (
    HardDeleteError,
    OwnerChangedError,
    RevisionAssignedError,
    TrackingError,
    UnstampedWriteError,
    track,
)
from tests.integration.tracking.models import Draft, Note
from tests.integration.tracking.store import Store, written
from tests.integration.tracking.world import World

Change = Callable[[Session, World], Any]


@contextmanager
def listening(target: Any, name: str, listener: Callable[..., Any]) -> Iterator[None]:
    """Listen for the time of a block."""
    event.listen(target, name, listener)
    try:
        yield
    finally:
        event.remove(target, name, listener)


def change_the_draft(session: Session, world: World) -> None:
    """Change another object than the test does."""
    world.get(session, "draft").text = "by a listener"


def add_a_draft(session: Session, world: World) -> None:
    """Add an object."""
    session.add(Draft(owner_id=world.me))


def delete_the_draft(session: Session, world: World) -> None:
    """Delete an object."""
    session.delete(world.get(session, "draft"))


@pytest.mark.parametrize("change", [change_the_draft, add_a_draft, delete_the_draft])
def test_what_a_listener_changes_before_the_plan_is_stamped(
    store: Store, world: World, change: Change
) -> None:
    """A ``before_flush`` listener that was there before ``track`` is part of the flush."""
    session_class = type("Own", (Session,), {})
    event.listen(session_class, "before_flush", lambda session, *_: change(session, world))
    factory = store.new_factory(session_class)
    track(factory)
    before = store.snapshot()
    with store.begin(factory) as session:
        world.get(session, "note").title = "bread"

    assert ["drafts", "notes"] == written(before, store.snapshot())


def assign_a_revision(session: Session, world: World) -> None:
    """Change the stamp."""
    world.get(session, "note").revision = 1_000


def change_the_owner(session: Session, world: World) -> None:
    """Change the owner after the counter was chosen."""
    world.get(session, "note").owner_id = world.you


def delete_the_note(session: Session, world: World) -> None:
    """Delete what was stamped as a change."""
    session.delete(world.get(session, "note"))


def disown_an_item(session: Session, world: World) -> None:
    """Take a child from the collection that owns it."""
    world.get(session, "list").remarks.clear()


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (change_the_draft, UnstampedWriteError),
        (delete_the_draft, HardDeleteError),
        (assign_a_revision, RevisionAssignedError),
        (change_the_owner, OwnerChangedError),
        (delete_the_note, HardDeleteError),
        (disown_an_item, HardDeleteError),
    ],
)
def test_what_a_listener_changes_after_the_plan_is_refused(
    store: Store, world: World, change: Change, refusal: type[TrackingError]
) -> None:
    """A ``before_flush`` listener that comes later cannot slip a write past the plan."""
    before = store.snapshot()
    with (
        pytest.raises(refusal),
        store.begin() as session,
        listening(session, "before_flush", lambda session, *_: change(session, world)),
    ):
        world.get(session, "note").title = "bread"
        session.flush()

    assert before == store.snapshot()


def test_what_a_later_listener_adds_violates_not_null(store: Store, world: World) -> None:
    """It has no revision, and the column refuses it."""
    before = store.snapshot()
    with (
        pytest.raises(sa.exc.IntegrityError),
        store.begin() as session,
        listening(session, "before_flush", lambda session, *_: add_a_draft(session, world)),
    ):
        world.get(session, "note").title = "bread"
        session.flush()

    assert before == store.snapshot()


def test_a_mapper_listener_may_change_a_row_that_is_written(store: Store, world: World) -> None:
    """``before_update`` runs after the plan, and the row has its revision."""
    before = store.snapshot()

    def shorten(_mapper: Any, _connection: Any, note: Note) -> None:
        note.title = note.title[:1]

    with listening(Note, "before_update", shorten), store.begin() as session:
        world.get(session, "note").title = "bread"
    after = store.snapshot()

    assert "b" == after.rows["notes", str(world.key("note"))]["title"]
    assert ["notes"] == written(before, after)


def test_a_mapper_listener_cannot_make_a_write_of_what_is_none(store: Store, world: World) -> None:
    """SQLAlchemy calls ``before_update`` also for an object whose changes cancel out."""
    before = store.snapshot()

    def write(_mapper: Any, _connection: Any, draft: Draft) -> None:
        draft.text = "by a listener"

    with (
        pytest.raises(UnstampedWriteError),
        listening(Draft, "before_update", write),
        store.begin() as session,
    ):
        draft = world.get(session, "draft")
        draft.text = "there"
        draft.text = ""
        session.flush()

    assert before == store.snapshot()


def test_a_mapper_listener_cannot_set_another_owner(store: Store, world: World) -> None:
    """A new row would be stamped by the wrong counter."""
    before = store.snapshot()

    def set_owner(_mapper: Any, _connection: Any, draft: Draft) -> None:
        draft.owner_id = world.you

    with (
        pytest.raises(OwnerChangedError),
        listening(Draft, "before_insert", set_owner),
        store.begin() as session,
    ):
        session.add(Draft(owner_id=world.me))
        session.flush()

    assert before == store.snapshot()


@pytest.mark.parametrize("name", ["before_commit", "after_flush_postexec"])
def test_what_is_changed_around_a_flush_goes_into_the_next_one(store: Store, world: World, name: str) -> None:
    """Nothing of the first flush is remembered."""
    before = store.snapshot()
    with store.begin() as session:
        draft = world.get(session, "draft")

        def change(session: Session, *_: object) -> None:
            if draft.text == "":
                draft.text = "by a listener"

        world.get(session, "note").title = "bread"
        with listening(session, name, change):
            session.commit()

    assert ["drafts", "notes"] == written(before, store.snapshot())

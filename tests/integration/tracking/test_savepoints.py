"""Rollbacks, to a savepoint or of everything, take revisions back; what is written again gets fresh ones."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from baukit_sync import ensure_owner
from tests.integration.tracking.models import Note, User
from tests.integration.tracking.store import Store


def test_what_was_added_before_a_rollback_can_be_added_again(store: Store, me: UUID) -> None:
    """It gets the revision that the rollback gave back."""
    note = Note(owner_id=me)
    with store.session() as session:
        session.add(note)
        session.flush()
        first = note.revision
        session.rollback()
        taken_back = note.revision
        session.add(note)
        session.commit()

        assert (1, None, 1) == (first, taken_back, note.revision)
    assert 1 == store.last_revision(me)


def test_what_failed_to_be_inserted_can_be_added_again(store: Store, me: UUID) -> None:
    """After an error of the database, and after its cause is gone."""
    with store.session() as session:
        session.add(taken := Note(owner_id=me))
        session.commit()
        taken_id = taken.id
        session.expunge_all()
        note = Note(id=taken_id, owner_id=me)
        session.add(note)
        with pytest.raises(sa.exc.IntegrityError):
            session.flush()
        session.rollback()
        note.id = uuid4()
        session.add(note)
        session.commit()

        assert 2 == note.revision
    assert 2 == store.last_revision(me)


def test_what_failed_inside_a_savepoint_leaves_the_rest(store: Store, me: UUID) -> None:
    """The outer transaction goes on with the revision that the savepoint gave back."""
    with store.begin() as session:
        session.add(first := Note(owner_id=me))
        session.flush()
        first_id = first.id
        session.expunge(first)
        with pytest.raises(sa.exc.IntegrityError), session.begin_nested():
            session.add(Note(id=first_id, owner_id=me))
        second = Note(owner_id=me)
        session.add(second)
        session.flush()

        assert 2 == second.revision
    assert 2 == store.last_revision(me)


def test_a_change_that_was_rolled_back_is_stamped_again(store: Store, me: UUID) -> None:
    """The object has its old revision after the rollback, and a fresh one after the next change."""
    with store.begin() as session:
        session.add(note := Note(owner_id=me))
        session.flush()
        savepoint = session.begin_nested()
        note.title = "inside"
        session.flush()
        inside = note.revision
        savepoint.rollback()
        after = note.revision
        note.title = "outside"
        session.flush()

        assert (2, 1, 2) == (inside, after, note.revision)


def test_an_outer_savepoint_takes_the_inner_ones_with_it(store: Store, me: UUID) -> None:
    """Also when the inner one was released."""
    with store.begin() as session:
        session.add(note := Note(owner_id=me))
        outer = session.begin_nested()
        with session.begin_nested():
            note.title = "inner"
        session.add(Note(owner_id=me))
        session.flush()
        outer.rollback()
        note.title = "outside"
        session.flush()

        assert 2 == note.revision
    assert 2 == store.last_revision(me)


def test_a_tombstone_that_was_rolled_back_is_live(store: Store, me: UUID) -> None:
    """And can be deleted again."""
    with store.begin() as session:
        session.add(note := Note(owner_id=me))
        savepoint = session.begin_nested()
        session.delete(note)
        session.flush()
        savepoint.rollback()
        deleted_at = note.deleted_at
        session.delete(note)
        session.flush()

        assert deleted_at is None
        assert (2, True) == (note.revision, note.deleted_at is not None)


@dataclass
class Row:
    """What the model knows of a row."""

    owner: int
    revision: int = 0
    is_tombstone: bool = False


@dataclass
class Model:
    """What the database should have, seen from inside the transaction."""

    rows: dict[UUID, Row] = field(default_factory=dict)
    counters: list[int] = field(default_factory=lambda: [0, 0])


def machine(store: Store) -> type[RuleBasedStateMachine]:
    """Make the state machine for a store."""

    class Writes(RuleBasedStateMachine):
        """One session, whose savepoints end in any order, beside a model of what it should have written."""

        notes = Bundle("notes")

        @initialize()
        def start(self) -> None:
            """Give each run owners of its own."""
            self.closing = ExitStack()
            self.session = self.closing.enter_context(store.session())
            self.owners = [uuid4(), uuid4()]
            self.session.add_all(User(id=owner) for owner in self.owners)
            self.session.flush()
            for owner in self.owners:
                ensure_owner(self.session, owner)
            self.session.commit()
            self.model = Model()
            self.objects: dict[UUID, Note] = {}
            self.changed: set[UUID] = set()
            self.committed = Model()
            self.saved: list[tuple[Any, Model]] = []

        @rule(target=notes, owner=st.integers(0, 1))
        def add(self, owner: int) -> UUID:
            """Add a note."""
            note = Note(id=uuid4(), owner_id=self.owners[owner])
            self.session.add(note)
            self.objects[note.id] = note
            self.model.rows[note.id] = Row(owner)
            self.changed.add(note.id)
            return note.id

        @rule(note=notes)
        def add_again(self, note: UUID) -> None:
            """Add a note whose insert was rolled back, unless SQLAlchemy has expired its values with it."""
            owner_id = vars(self.objects[note]).get("owner_id")
            if note not in self.model.rows and owner_id is not None:
                self.objects[note].deleted_at = None
                self.session.add(self.objects[note])
                self.model.rows[note] = Row(self.owners.index(owner_id))
                self.changed.add(note)

        @rule(note=notes)
        def change(self, note: UUID) -> None:
            """Change a note to something new."""
            if note in self.model.rows:
                self.objects[note].title = str(uuid4())
                self.changed.add(note)

        @rule(note=notes)
        def change_nothing(self, note: UUID) -> None:
            """Set a note to what it is."""
            if note in self.model.rows:
                # Reading what a commit has expired flushes first.
                self.flush()
                self.objects[note].title = self.objects[note].title

        @rule(note=notes)
        def delete(self, note: UUID) -> None:
            """Delete a note, also a tombstone."""
            if note in self.model.rows:
                self.flush()
                self.session.delete(self.objects[note])
                if not self.model.rows[note].is_tombstone:
                    self.changed.add(note)
                self.model.rows[note].is_tombstone = True

        @rule(note=notes)
        def undelete(self, note: UUID) -> None:
            """Revive a tombstone."""
            if note in self.model.rows and self.model.rows[note].is_tombstone:
                self.flush()
                self.objects[note].deleted_at = None
                self.model.rows[note].is_tombstone = False
                self.changed.add(note)

        @rule(note=notes)
        def bury(self, note: UUID) -> None:
            """Make a tombstone by hand."""
            if note in self.model.rows:
                self.objects[note].deleted_at = datetime.now(UTC)
                self.model.rows[note].is_tombstone = True
                self.changed.add(note)

        @rule()
        def flush(self) -> None:
            """Write; each changed row gets one of the next numbers of its owner."""
            self.session.flush()
            for owner, last in enumerate(self.model.counters):
                written = [note for note in self.changed if self.model.rows[note].owner == owner]
                expected = range(last + 1, last + 1 + len(written))

                assert list(expected) == sorted(self.objects[note].revision for note in written)
                self.model.counters[owner] += len(written)
            for note in self.changed:
                self.model.rows[note].revision = self.objects[note].revision
            self.changed.clear()

        @precondition(lambda self: len(self.saved) < 4)
        @rule()
        def open_savepoint(self) -> None:
            """Open a savepoint; SQLAlchemy flushes first."""
            self.flush()
            self.saved.append((self.session.begin_nested(), copy.deepcopy(self.model)))

        @precondition(lambda self: self.saved)
        @rule()
        def release_savepoint(self) -> None:
            """Release the innermost savepoint; SQLAlchemy flushes first."""
            self.flush()
            self.saved.pop()[0].commit()

        @precondition(lambda self: self.saved)
        @rule(data=st.data())
        def roll_back_to_a_savepoint(self, data: st.DataObject) -> None:
            """Roll back to any savepoint, and so to those inside it.

            SQLAlchemy forgets what was added inside only when they are rolled back one by one.
            """
            for _ in range(data.draw(st.integers(1, len(self.saved)))):
                savepoint, self.model = self.saved.pop()
                savepoint.rollback()
            self.changed.clear()

        @rule()
        def roll_back(self) -> None:
            """Roll everything back."""
            self.session.rollback()
            self.saved.clear()
            self.changed.clear()
            self.model = copy.deepcopy(self.committed)

        @rule()
        def commit(self) -> None:
            """Commit, from inside any number of savepoints, and look from outside."""
            self.flush()
            while self.saved:
                self.saved.pop()[0].commit()
            self.session.commit()
            self.committed = copy.deepcopy(self.model)
            after = store.snapshot()
            stored = {
                UUID(key[1]): Row(
                    self.owners.index(UUID(row["owner_id"])), row["revision"], row["deleted_at"] is not None
                )
                for key, row in after.rows.items()
                if UUID(row["owner_id"]) in self.owners
            }

            assert self.model.rows == stored
            assert self.model.counters == [after.counters[str(owner)] for owner in self.owners]

        def teardown(self) -> None:
            """Close the session after a last look."""
            with self.closing:
                self.commit()

    return Writes


def test_whatever_is_rolled_back_revisions_are_counter_steps(store: Store) -> None:
    """Adds, changes, deletes and revivals between savepoints that end in any order."""
    run_state_machine_as_test(
        machine(store),
        settings=settings(
            max_examples=25,
            stateful_step_count=25,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )

"""Whose counter a flush raises: one statement for all owners, where the rows are written."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from baukit_sync import UnknownOwnerError, UnsafeTransactionError, ensure_owner, track
from tests.integration.tracking.models import Base, Draft, Note, User
from tests.integration.tracking.store import Store, written


def test_the_owners_of_a_flush_cost_one_statement(store: Store, owners: list[UUID]) -> None:
    """Each gets a block of its own counter."""
    before = store.snapshot()
    with store.counter_statements() as statements, store.begin() as session:
        for owner in (owners[1], owners[0], owners[1]):
            session.add_all([Note(owner_id=owner), Draft(owner_id=owner)])

    assert 1 == len(statements)
    assert ["drafts"] * 3 + ["notes"] * 3 == written(before, store.snapshot())
    assert [2, 4] == [store.last_revision(owner) for owner in owners]


def test_an_owner_without_a_counter_is_refused(store: Store, me: UUID) -> None:
    """Nothing is written for any owner; with the counter, the same flush works."""
    with store.begin() as session:
        session.add(stranger := User(id=uuid4()))
        session.flush()
        note, mine = Note(owner_id=stranger.id), Note(owner_id=me)
        session.add_all([mine, note])
        with pytest.raises(UnknownOwnerError):
            session.flush()
        untouched = note in session.new, note.revision, mine.revision, note.updated_at
        with session.no_autoflush:
            ensure_owner(session, stranger.id)
        session.flush()

        assert (1, 1) == (note.revision, mine.revision)
    assert (True, None, None, None) == untouched


def test_autocommit_is_refused(store: Store, me: UUID) -> None:
    """The counter's lock would be gone before the rows are written."""
    before = store.snapshot()
    engine = store.database.engine.execution_options(isolation_level="AUTOCOMMIT")
    with store.session(bind=engine) as session:
        session.add(Note(owner_id=me))
        with pytest.raises(UnsafeTransactionError):
            session.flush()

    assert before == store.snapshot()


def test_a_row_gets_its_revision_from_the_database_it_is_written_to(
    store: Store, me: UUID, empty_database_url: sa.URL
) -> None:
    """A session may have several; each has counters of its own."""
    elsewhere = sa.create_engine(empty_database_url, poolclass=sa.NullPool)
    Base.metadata.create_all(elsewhere)
    with Session(elsewhere) as session, session.begin():
        session.add(User(id=me))
        session.flush()
        ensure_owner(session, me)
        session.execute(sa.text("UPDATE sync_revisions SET last_revision = 100"))
    here = sa.create_engine(store.url, poolclass=sa.NullPool)
    factory = sessionmaker(binds={Note: here, Draft: elsewhere})
    track(factory)
    with factory.begin() as session:
        note, draft = Note(owner_id=me), Draft(owner_id=me)
        session.add_all([note, draft])
        session.flush()

        assert (1, 101) == (note.revision, draft.revision)
    with elsewhere.connect() as connection:
        assert 101 == connection.scalar(sa.text("SELECT last_revision FROM sync_revisions"))
    assert 1 == store.last_revision(me)

"""What ``track`` takes, and whose sessions it changes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from baukit_sync import InvalidArgumentError, next_revision, track
from tests.integration.tracking.models import Draft, Note
from tests.integration.tracking.store import Store


class ProductSession(Session):
    """A product's own session class."""


class ProductAsyncSession(AsyncSession):
    """A product's own async session class."""

    sync_session_class = ProductSession


def constant() -> int:
    """Scope every session to the same thing."""
    return 1


BLOCKING: dict[str, Callable[[Any], Any]] = {
    "sessionmaker": sessionmaker,
    "sessionmaker of a class": lambda engine: sessionmaker(engine, class_=type("Own", (Session,), {})),
    "scoped_session": lambda engine: scoped_session(sessionmaker(engine), constant),
}
ASYNC: dict[str, Callable[[Any], Any]] = {
    "async_sessionmaker": async_sessionmaker,
    "async_sessionmaker of a class": lambda engine: async_sessionmaker(engine, class_=ProductAsyncSession),
    "async_sessionmaker of a sync class": lambda engine: async_sessionmaker(
        engine, sync_session_class=type("Own", (Session,), {})
    ),
    "async_scoped_session": lambda engine: async_scoped_session(async_sessionmaker(engine), constant),
}


@contextmanager
def transaction(factory: Any) -> Iterator[Session]:
    """Open a blocking session of any factory, in a transaction."""
    made = factory()
    session = made.sync_session if isinstance(made, AsyncSession) else made
    with session, session.begin():
        yield session


@pytest.mark.parametrize("kind", range(4))
def test_sessions_of_every_factory_are_tracked(store: Store, me: UUID, kind: int) -> None:
    """Tracking once or twice makes no difference: a flush stamps once."""
    kinds = list((ASYNC if store.database.is_async else BLOCKING).values())
    factory = kinds[kind % len(kinds)](store.database.engine)
    for _ in range(2):
        track(factory)
    with transaction(factory) as session:
        note = Note(owner_id=me)
        session.add(note)
        session.flush()

        assert 1 == note.revision
    assert 1 == store.last_revision(me)


def test_sessions_of_other_factories_are_not_affected(store: Store, me: UUID) -> None:
    """They may be of the same class and engine; tracking one is not tracking all."""
    other = store.new_factory()
    with store.begin(other) as session:
        note = Note(owner_id=me, revision=next_revision(session, me))
        session.add(note)
        session.flush()
        session.execute(sa.update(Note).values(title="x"))

        assert 1 == note.revision
    with store.begin(other) as session:
        session.delete(session.scalars(sa.select(Note)).one())
        session.flush()

        assert [] == session.scalars(sa.select(Note)).all()


def test_a_class_and_then_its_factory_stamp_once(store: Store, me: UUID) -> None:
    """A factory's sessions inherit what their class was made to do; also the other way round."""
    engine = store.database.sync_engine
    for class_first in (True, False):
        session_class = type("Own", (Session,), {})
        factory = sessionmaker(engine, class_=session_class)
        for tracked in (session_class, factory) if class_first else (factory, session_class):
            track(tracked)
        before = store.last_revision(me)
        with factory.begin() as session:
            session.add(Note(owner_id=me))

        assert before + 1 == store.last_revision(me)


def test_a_tracked_class_tracks_every_session_of_it(store: Store, me: UUID) -> None:
    """Also those made without a factory, and those of a subclass that comes later."""
    session_class = type("Own", (Session,), {})
    track(session_class)
    later = type("Later", (session_class,), {})
    for made in (session_class, later):
        with made(store.database.sync_engine) as session, session.begin():
            session.add(Note(owner_id=me))

    assert 2 == store.last_revision(me)


def test_every_one_of_many_factories_is_tracked(store: Store, me: UUID) -> None:
    """Also one whose session class lies where a tracked one was before it was forgotten."""
    rounds = 8
    for _ in range(rounds):
        factory = store.new_factory()
        track(factory)
        with store.begin(factory) as session:
            session.add(Draft(owner_id=me))
        del factory, session
        gc.collect()

    assert rounds == store.last_revision(me)


@pytest.mark.parametrize("factory", [None, 5, "Session", Note, sessionmaker, Session(), AsyncSession()])
def test_anything_but_a_factory_or_a_session_class_is_refused(factory: Any) -> None:
    """Also a session: it is too late to track what may have pending changes."""
    with pytest.raises(InvalidArgumentError):
        track(factory)

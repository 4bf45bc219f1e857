"""Fixtures: a healthy product of its own for each test, as ``create_all`` makes it."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from baukit_sync import ensure_owner, next_revision
from tests.support.product import Base, Item, Note, TodoList, User
from tests.support.ways import Admin


@pytest.fixture
def url(empty_database_url: sa.URL, server_admin: Admin) -> sa.URL:
    """A database with settings that leave nothing to say."""
    name = empty_database_url.database
    for setting in ("synchronous_commit = on", "idle_in_transaction_session_timeout = '60s'"):
        server_admin.sql(f"ALTER DATABASE {name} SET {setting}")
    return empty_database_url


@pytest.fixture
def engine(url: sa.URL) -> Iterator[sa.Engine]:
    """An engine of that database."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    yield engine
    engine.dispose()


@pytest.fixture
def outside(url: sa.URL) -> Admin:
    """A look at that database from outside, which breaks things."""
    return Admin(url)


@pytest.fixture
def me(engine: sa.Engine) -> UUID:
    """An owner of a healthy product with rows and tombstones in every table."""
    Base.metadata.create_all(engine)
    owners = [uuid4(), uuid4()]
    for owner in owners:
        with Session(engine) as session, session.begin():
            session.add(User(id=owner))
            ensure_owner(session, owner)
            parent = TodoList(owner_id=owner, revision=next_revision(session, owner))
            session.add_all([parent, Note(owner_id=owner, revision=next_revision(session, owner))])
            session.flush()
            for deleted_at in (None, sa.func.now()):
                revision = next_revision(session, owner)
                session.add(Item(list_id=parent.id, deleted_at=deleted_at, revision=revision))
    return owners[0]

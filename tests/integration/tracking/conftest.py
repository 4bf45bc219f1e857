"""Fixtures: a product with a tracked session factory, in each of three ways."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from anyio.from_thread import BlockingPortal
from sqlalchemy.orm import Session, sessionmaker

from baukit_sync import ensure_owner, track
from tests.integration.tracking.models import Base, User
from tests.integration.tracking.store import Store
from tests.integration.tracking.world import World, populate
from tests.support.ways import WAYS, Admin, temporary_database


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the body of a test where the sessions of its store may be used."""
    store = pyfuncitem.funcargs.get("store")
    if not isinstance(store, Store):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    store.run(partial(pyfuncitem.obj, **{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="session")
def tracking_database_url(server_url: sa.URL, server_admin: Admin) -> Iterator[sa.URL]:
    """A database with the tables of this folder's models, which its tests use one after the other."""
    with temporary_database(server_url, server_admin) as url:
        Base.metadata.create_all(sa.create_engine(url, poolclass=sa.NullPool))
        yield url


@pytest.fixture
def empty_url(tracking_database_url: sa.URL) -> Iterator[sa.URL]:
    """That database, all of its tables empty."""
    yield tracking_database_url
    Admin(tracking_database_url).disconnect_others()
    with sa.create_engine(tracking_database_url, poolclass=sa.NullPool).begin() as connection:
        # No foreign key is checked, so the order of the tables does not matter.
        connection.execute(sa.text("SET LOCAL session_replication_role = replica"))
        for table in Base.metadata.tables.values():
            connection.execute(table.delete())


@pytest.fixture(params=WAYS)
def store(request: pytest.FixtureRequest, empty_url: sa.URL, portal: BlockingPortal) -> Iterator[Store]:
    """The product's database and its tracked factory."""
    opened = Store(request.param, empty_url, portal)
    yield opened
    opened.database.dispose()


@pytest.fixture
def owners(empty_url: sa.URL) -> list[UUID]:
    """Two users with counters, in the order of their ids."""
    ids = sorted([uuid4(), uuid4()])
    with Session(sa.create_engine(empty_url, poolclass=sa.NullPool)) as session, session.begin():
        session.add_all([User(id=owner_id) for owner_id in ids])
        for owner_id in ids:
            ensure_owner(session, owner_id)
    return ids


@pytest.fixture
def me(owners: list[UUID]) -> UUID:
    """A user with a counter."""
    return owners[0]


@pytest.fixture
def you(owners: list[UUID]) -> UUID:
    """Another user with a counter."""
    return owners[1]


@pytest.fixture
def world(empty_url: sa.URL, me: UUID, you: UUID) -> World:
    """Rows of every kind, written through a tracked session."""
    factory = sessionmaker(sa.create_engine(empty_url, poolclass=sa.NullPool))
    track(factory)
    with factory.begin() as session:
        return populate(session, me, you)

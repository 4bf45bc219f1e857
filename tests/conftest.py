"""Fixtures: one server, a database with the product's tables, and three ways to reach it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from anyio.from_thread import BlockingPortal
from sqlalchemy.orm import Session

import baukit_sync
from tests.support import product, servers, ways


@pytest.fixture(scope="session")
def server_url() -> Iterator[sa.URL]:
    """The server, started once."""
    with servers.server() as url:
        yield url


@pytest.fixture(scope="session")
def server_admin(server_url: sa.URL) -> ways.Admin:
    """The server's maintenance database."""
    return ways.Admin(server_url)


@pytest.fixture
def empty_database_url(server_url: sa.URL, server_admin: ways.Admin) -> Iterator[sa.URL]:
    """A database without tables, for one test."""
    with ways.temporary_database(server_url, server_admin) as url:
        yield url


@pytest.fixture(scope="session")
def product_database_url(server_url: sa.URL, server_admin: ways.Admin) -> Iterator[sa.URL]:
    """A database with the product's tables, which the tests use one after the other."""
    with ways.temporary_database(server_url, server_admin) as url:
        product.create_tables(sa.create_engine(url, poolclass=sa.NullPool))
        yield url


@pytest.fixture
def database_url(product_database_url: sa.URL) -> Iterator[sa.URL]:
    """A database with the product's tables, all of them empty."""
    yield product_database_url
    # Emptying the tables takes 5 ms; a clone of a template takes 50 to 150.
    ways.Admin(product_database_url).disconnect_others()
    product.delete_rows(sa.create_engine(product_database_url, poolclass=sa.NullPool))


@pytest.fixture(scope="session")
def portal() -> Iterator[BlockingPortal]:
    """The event loop of the async ways."""
    with ways.portal() as started:
        yield started


@pytest.fixture(params=ways.WAYS)
def db(
    request: pytest.FixtureRequest, database_url: sa.URL, portal: BlockingPortal
) -> Iterator[ways.Database]:
    """The test's database, in each of the three ways."""
    database = ways.Database(request.param, database_url, portal)
    yield database
    database.dispose()


@pytest.fixture(params=ways.WAYS)
def nowhere(request: pytest.FixtureRequest, portal: BlockingPortal) -> Iterator[ways.Database]:
    """A database that cannot be reached: whatever needs it fails."""
    url = sa.make_url("postgresql:///nothing?host=/nonexistent")
    database = ways.Database(request.param, url, portal)
    yield database
    database.dispose()


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    """Threads for what is expected to wait while the test goes on."""
    with ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture
def admin(database_url: sa.URL) -> ways.Admin:
    """A look at the test's database from outside."""
    return ways.Admin(database_url)


@pytest.fixture
def owners(database_url: sa.URL) -> list[UUID]:
    """Three users with counters, in the order of their ids."""
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    users = [product.User(id=uuid4()) for _ in range(3)]
    ids = sorted(user.id for user in users)
    with Session(engine) as session, session.begin():
        session.add_all(users)
        for owner_id in ids:
            baukit_sync.ensure_owner(session, owner_id)
    return ids


@pytest.fixture
def owner(owners: list[UUID]) -> UUID:
    """One of the users with counters."""
    return owners[0]


@pytest.fixture
def backwards(database_url: sa.URL, admin: ways.Admin) -> list[UUID]:
    """Two users in the order of their ids, with counters that a sequential scan finds in the other order."""
    # A new file: in the old one, rows go where others were.
    admin.sql("VACUUM FULL sync_revisions")
    ids = sorted([uuid4(), uuid4()])
    for owner_id in reversed(ids):
        admin.sql("INSERT INTO users VALUES (:id)", id=owner_id)
        admin.sql("INSERT INTO sync_revisions VALUES (:id)", id=owner_id)
    return ids

"""Fixtures: one server, a template with the product's tables, a clone of it for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from anyio.from_thread import BlockingPortal
from sqlalchemy.orm import Session

import baukit_sync
from tests.support import product, servers, ways

_serial = itertools.count(1)


@pytest.fixture(scope="session")
def server_url() -> Iterator[sa.URL]:
    """The server, started once."""
    with servers.server() as url:
        yield url


@pytest.fixture(scope="session")
def server_admin(server_url: sa.URL) -> ways.Admin:
    """The server's maintenance database."""
    return ways.Admin(server_url)


@pytest.fixture(scope="session")
def template(server_url: sa.URL, server_admin: ways.Admin) -> Iterator[str]:
    """A database with the product's tables, to be cloned."""
    name = f"baukit_template_{uuid4().hex[:8]}"
    server_admin.sql(f"CREATE DATABASE {name}")
    engine = sa.create_engine(server_url.set(database=name), poolclass=sa.NullPool)
    product.Base.metadata.create_all(engine)
    yield name
    server_admin.sql(f"DROP DATABASE {name} WITH (FORCE)")


def _database(server_url: sa.URL, server_admin: ways.Admin, template: str) -> Iterator[sa.URL]:
    name = f"baukit_test_{next(_serial)}_{uuid4().hex[:8]}"
    server_admin.sql(f"CREATE DATABASE {name} TEMPLATE {template}")
    yield server_url.set(database=name)
    server_admin.sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database_url(server_url: sa.URL, server_admin: ways.Admin, template: str) -> Iterator[sa.URL]:
    """A clone of the template, for one test."""
    yield from _database(server_url, server_admin, template)


@pytest.fixture
def empty_database_url(server_url: sa.URL, server_admin: ways.Admin) -> Iterator[sa.URL]:
    """A database without tables, for one test."""
    yield from _database(server_url, server_admin, "template0")


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

"""Fixtures: the product of tests/support, with a guard on each of its synced tables."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from anyio.from_thread import BlockingPortal

from baukit_sync import migrations
from tests.support import ways
from tests.support.product import Base

DOCS = """
    CREATE TABLE docs (
        id uuid, owner_id uuid, updated_at timestamptz DEFAULT now(), deleted_at timestamptz, revision bigint,
        PRIMARY KEY (owner_id, id)
    ) PARTITION BY HASH (owner_id)"""
"""A partitioned table."""


@pytest.fixture(params=ways.WAYS)
def db(
    request: pytest.FixtureRequest, empty_database_url: sa.URL, portal: BlockingPortal
) -> Iterator[ways.Database]:
    """A database of its own, in each of the three ways."""
    with ways.product_database(request.param, empty_database_url, portal, Base.metadata) as database:
        guard(empty_database_url)
        yield database


@pytest.fixture
def engine(empty_database_url: sa.URL) -> Iterator[sa.Engine]:
    """An engine of such a database."""
    engine = sa.create_engine(empty_database_url)
    Base.metadata.create_all(engine)
    guard(empty_database_url)
    yield engine
    engine.dispose()


def guard(url: sa.URL) -> None:
    """Put the guards on the product's tables, as a migration does."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        op = Operations(MigrationContext.configure(connection))
        migrations.create_revisions_trigger(op)
        migrations.create_guard_trigger(op, "notes")
        migrations.create_guard_trigger(op, "lists")
        migrations.create_guard_trigger(op, "list_items", owner="list_id", via=[("lists.id", "owner_id")])


@pytest.fixture
def outside(empty_database_url: sa.URL) -> ways.Admin:
    """A look at the database from outside."""
    return ways.Admin(empty_database_url)


@pytest.fixture
def owner(request: pytest.FixtureRequest, outside: ways.Admin) -> UUID:
    """A user with a counter."""
    request.getfixturevalue("db" if "db" in request.fixturenames else "engine")
    return sign_up(outside)


def sign_up(outside: ways.Admin) -> UUID:
    """Create a user with a counter."""
    owner = uuid4()
    outside.sql("INSERT INTO users VALUES (:owner)", owner=owner)
    outside.sql("INSERT INTO sync_revisions (owner_id) VALUES (:owner)", owner=owner)
    return owner

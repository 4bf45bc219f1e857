"""Fixtures: the tables of this folder's models, all of them empty, and a schema for what a test adds."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from tests.integration.purge.models import Base
from tests.support.ways import Admin, temporary_database


@pytest.fixture(scope="session")
def purge_database_url(server_url: sa.URL, server_admin: Admin) -> Iterator[sa.URL]:
    """A database with these tables, which the tests use one after the other."""
    with temporary_database(server_url, server_admin) as url:
        Base.metadata.create_all(sa.create_engine(url, poolclass=sa.NullPool))
        yield url


@pytest.fixture
def database_url(purge_database_url: sa.URL) -> Iterator[sa.URL]:
    """That database, with an empty schema ``extra`` for functions, triggers and tables of a test."""
    admin = Admin(purge_database_url)
    admin.sql("CREATE SCHEMA extra")
    yield purge_database_url
    admin.disconnect_others()
    # Triggers and foreign keys go with the functions and tables.
    admin.sql("DROP SCHEMA extra CASCADE")
    names = ", ".join(Base.metadata.tables)
    with admin.engine.connect() as connection:
        connection.execute(sa.text("SET session_replication_role = replica"))
        for name in names.split(", "):
            connection.execute(sa.text(f"DELETE FROM {name}"))


@pytest.fixture
def owners(admin: Admin) -> list[UUID]:
    """Three users with counters, in the order of their ids."""
    ids = sorted(uuid4() for _ in range(3))
    for owner_id in ids:
        admin.sql("INSERT INTO users VALUES (:id)", id=owner_id)
        admin.sql("INSERT INTO sync_revisions VALUES (:id)", id=owner_id)
    return ids


@pytest.fixture
def owner(owners: list[UUID]) -> UUID:
    """One of them."""
    return owners[0]

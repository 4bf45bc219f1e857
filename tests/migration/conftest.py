"""Fixtures: an empty database, and Alembic's operations on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations


@pytest.fixture
def engine(empty_database_url: sa.URL) -> sa.Engine:
    """An engine of a database without tables."""
    return sa.create_engine(empty_database_url, poolclass=sa.NullPool)


@pytest.fixture
def connection(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection to a database without tables; a test ends its own transactions."""
    with engine.connect() as connection:
        yield connection


@pytest.fixture
def op(connection: sa.Connection) -> Operations:
    """Alembic's operations on that connection."""
    return Operations(MigrationContext.configure(connection))

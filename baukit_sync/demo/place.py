"""Where the story is played: a schema of its own, in a private PostgreSQL or in a given one."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from secrets import token_hex

import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import URL, Engine
from sqlalchemy.exc import DBAPIError

from baukit_sync import embedded
from baukit_sync.demo import models


@dataclass(frozen=True)
class Place:
    """A database with the product's tables.

    Attributes:
        engine: Connects to it; finds unqualified names in the story's schema only.
        schema: The schema's name.
        server: What PostgreSQL calls its version.
        private: Whether the server was started for the story.
    """

    engine: Engine
    schema: str
    server: str
    private: bool


class UnusableDatabaseError(Exception):
    """The given database cannot be reached, or its role may not create a schema."""


@contextmanager
def own_schema(url: URL | None, *, connections: int) -> Generator[Place]:
    """Create a schema with a name of its own, and drop it at the end with all that is in it.

    Args:
        url: A PostgreSQL to play in, whose role may create schemas; ``None`` starts a private one.
        connections: The most connections to have open at a time.

    Raises:
        UnusableDatabaseError: The database at ``url`` cannot be used.
    """
    schema = f"baukit_sync_demo_{token_hex(4)}"
    with nullcontext(url) if url else embedded.server() as server:
        outside = sa.create_engine(server, poolclass=sa.NullPool)
        engine = sa.create_engine(
            server,
            pool_size=connections,
            max_overflow=0,
            connect_args={"options": _options(server, schema)},
        )
        try:
            with outside.begin() as connection:
                connection.execute(sa.schema.CreateSchema(schema))
        except DBAPIError as error:
            raise UnusableDatabaseError(_reason(error, server)) from None
        try:
            with engine.begin() as connection:
                models.upgrade(Operations(MigrationContext.configure(connection)))
                version = str(connection.scalar(sa.text("SHOW server_version"))).split()[0]
            yield Place(engine, schema, version, private=url is None)
        finally:
            engine.dispose()
            with outside.begin() as connection:
                connection.execute(sa.schema.DropSchema(schema, cascade=True))


def _reason(error: DBAPIError, url: URL) -> str:
    """Return what the server or the driver said, in one line and without the password."""
    said = str(error.orig).partition("\n")[0]
    password = str(url.password or "")
    return f"the database cannot be used: {said.replace(password, '***') if password else said}"


def _options(url: URL, schema: str) -> str:
    """Return libpq's ``options``, after those of the URL; a lock that is never released ends the story."""
    given = url.query.get("options", "")
    own = f"-c search_path={schema} -c lock_timeout=30s"
    return f"{given if isinstance(given, str) else ' '.join(given)} {own}".strip()

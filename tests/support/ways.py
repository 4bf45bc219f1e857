"""One test body, three ways: blocking psycopg, async psycopg, async asyncpg.

A test opens units of work with ``db.begin()`` and calls the kit as methods of the unit:
``unit.next_revision(owner)`` is ``baukit_sync.next_revision(session, owner)``, or ``await
baukit_sync.aio.next_revision(session, owner)``. Async sessions live on an event loop in a thread of its own,
so concurrency tests use plain threads and barriers in every way.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from anyio.from_thread import BlockingPortal, start_blocking_portal
from sqlalchemy import event
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import scoped_session, sessionmaker

import baukit_sync
from baukit_sync import aio

WAYS = ("blocking-psycopg", "async-psycopg", "async-asyncpg")

HANDLES = ("session", "scoped session", "connection")
"""What a product may call the kit with."""


class Unit:
    """A session or connection in a transaction, with the kit's functions as its methods."""

    def __init__(self, session: Any, call: Callable[..., Any], kit: Any) -> None:
        """Wrap a session; ``call`` runs a function, and awaits it in the async ways."""
        self.session = session
        self._call = call
        self._kit = kit

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return the kit's function of that name, bound to this unit's session."""
        function = getattr(self._kit, name)
        return lambda *args, **kwargs: self._call(function, self.session, *args, **kwargs)

    def sql(self, statement: str | sa.Executable, /, **parameters: Any) -> Sequence[Any]:
        """Run a statement; return its rows, or nothing when it returns none."""
        executable = sa.text(statement) if isinstance(statement, str) else statement
        result = self._call(self.session.execute, executable, parameters)
        return [] if isinstance(result, sa.CursorResult) and not result.returns_rows else result.all()

    def scalar(self, statement: str | sa.Executable, /, **parameters: Any) -> Any:
        """Run a statement; return the first column of its first row, or ``None``."""
        rows = self.sql(statement, **parameters)
        return rows[0][0] if rows else None

    def add(self, *instances: object) -> None:
        """Add instances to the session."""
        self.session.add_all(instances)

    def flush(self) -> None:
        """Flush the session."""
        self._call(self.session.flush)

    def rollback(self) -> None:
        """Roll the transaction back; the session begins a new one with its next statement."""
        self._call(self.session.rollback)

    def commit(self) -> None:
        """Commit; the session begins a new transaction with its next statement."""
        self._call(self.session.commit)

    @contextmanager
    def savepoint(self) -> Iterator[Any]:
        """Open a savepoint; it is rolled back when the block raises, or calls ``rollback`` on what it got."""
        nested = self._call(self.session.begin_nested)
        try:
            yield nested
        except BaseException:
            self._call(nested.rollback)
            raise
        if nested.is_active:
            self._call(nested.commit)


class Database:
    """A test's own database, reached in one of the three ways."""

    def __init__(
        self,
        way: str,
        url: sa.URL,
        portal: BlockingPortal,
        *,
        settings: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """Connect lazily to ``url`` in the given way.

        Args:
            way: One of :data:`WAYS`.
            url: Where to; its driver is replaced.
            portal: The event loop of the async ways.
            settings: PostgreSQL settings of every connection.
            options: Go to ``create_engine``.
        """
        self.way = way
        self.is_async = way.startswith("async")
        self.driver = way.split("-")[1]
        self.url = url.set(drivername=f"postgresql+{self.driver}")
        self._portal = portal
        self._kit: Any = aio if self.is_async else baukit_sync
        if settings is not None:
            options["connect_args"] = _connect_args(self.driver, settings)
        create: Any = create_async_engine if self.is_async else sa.create_engine
        self.engine: Any = create(self.url, **{"pool_size": 20, **options})

    @property
    def sync_engine(self) -> sa.Engine:
        """The engine that has the events, the pool and the cache."""
        return self.engine.sync_engine if isinstance(self.engine, AsyncEngine) else self.engine

    @contextmanager
    def another(self, **options: Any) -> Iterator[Database]:
        """Connect to the same database in the same way with other options."""
        other = Database(self.way, self.url, self._portal, **options)
        try:
            yield other
        finally:
            other.dispose()

    def dispose(self) -> None:
        """Close every pooled connection."""
        self.call(self.engine.dispose)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a function of SQLAlchemy or the kit; what it returns is awaited in the async ways."""
        if not self.is_async:
            return function(*args, **kwargs)

        async def run() -> Any:
            result = function(*args, **kwargs)
            return await result if hasattr(result, "__await__") else result

        return self._portal.call(run)

    @contextmanager
    def begin(self, *, isolation: str | None = None, handle: str = "session") -> Iterator[Unit]:
        """Open a unit of work; commit it, or roll it back when the block raises.

        Args:
            isolation: Another isolation level than the engine's.
            handle: One of :data:`HANDLES`. Sessions have ``expire_on_commit=True``.
        """
        engine = self.engine.execution_options(isolation_level=isolation) if isolation else self.engine
        session: Any = self.call(self._open, engine, handle)
        try:
            yield Unit(session, self.call, self._kit)
            self.call(session.commit)
        finally:
            self.call(session.close)

    def _open(self, engine: Any, handle: str) -> Any:
        if handle == "connection":
            return engine.connect()
        factory: Any = async_sessionmaker if self.is_async else sessionmaker
        scoped: Any = async_scoped_session if self.is_async else scoped_session
        sessions = factory(engine, expire_on_commit=True)
        return sessions() if handle == "session" else scoped(sessions, scopefunc=lambda: None)

    def purge(
        self, tables: Sequence[baukit_sync.TombstoneTable], cutoff: Any, limit: int, **options: Any
    ) -> Any:
        """Call ``purge_tombstones`` on the engine."""
        return self.on_engine("purge_tombstones", tables, cutoff, limit, **options)

    def on_engine(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call the kit's function of that name on the engine."""
        return self.call(getattr(self._kit, name), self.engine, *args, **kwargs)

    @contextmanager
    def statements(self) -> Iterator[list[str]]:
        """Collect every statement that is sent through this database's engine."""
        sent: list[str] = []

        def record(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            sent.append(statement)

        event.listen(self.sync_engine, "before_cursor_execute", record)
        try:
            yield sent
        finally:
            event.remove(self.sync_engine, "before_cursor_execute", record)


def _connect_args(driver: str, settings: Mapping[str, str]) -> Mapping[str, Any]:
    if driver == "asyncpg":
        return {"server_settings": settings}
    return {"options": " ".join(f"-c {name}={value}" for name, value in settings.items())}


class Admin:
    """A blocking look at a test's database from outside, on connections of its own."""

    def __init__(self, url: sa.URL) -> None:
        """Connect lazily to ``url``."""
        self.engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)

    def sql(self, statement: str, /, **parameters: Any) -> Sequence[Any]:
        """Run a statement and return its rows, or nothing when it returns none."""
        with self.engine.connect() as connection:
            result = connection.execute(sa.text(statement), parameters)
            return result.all() if result.returns_rows else []

    def scalar(self, statement: str, /, **parameters: Any) -> Any:
        """Run a statement; return the first column of its first row, or ``None``."""
        rows = self.sql(statement, **parameters)
        return rows[0][0] if rows else None

    def disconnect_others(self) -> None:
        """End every other connection to this database."""
        self.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    def wait_for_blocked(self, count: int = 1, *, seconds: float = 10) -> None:
        """Return once ``count`` backends of this database wait for a lock.

        Raises:
            TimeoutError: They did not within ``seconds``.
        """
        deadline = time.monotonic() + seconds
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND wait_event_type = 'Lock'"
        )
        with self.engine.connect() as connection:
            while connection.scalar(sa.text(waiting)) < count:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{count} backends did not block within {seconds} s")
                time.sleep(0.005)


def portal() -> AbstractContextManager[BlockingPortal]:
    """Run an event loop in a thread of its own."""
    return start_blocking_portal("asyncio")


_serial = itertools.count(1)


@contextmanager
def temporary_database(server_url: sa.URL, server_admin: Admin) -> Iterator[sa.URL]:
    """Create a database without tables, and drop it at the end."""
    name = f"baukit_test_{next(_serial)}_{uuid4().hex[:8]}"
    server_admin.sql(f"CREATE DATABASE {name} TEMPLATE template0")
    # A lock that is not released turns into a failed test, not into a test that hangs.
    server_admin.sql(f"ALTER DATABASE {name} SET lock_timeout = '15s'")
    yield server_url.set(database=name)
    server_admin.sql(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def product_database(
    way: str, url: sa.URL, portal: BlockingPortal, metadata: sa.MetaData
) -> Iterator[Database]:
    """Create a product's schemas and tables in an empty database, and reach it in one of the ways."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        for schema in sorted({table.schema for table in metadata.tables.values() if table.schema}):
            connection.execute(sa.schema.CreateSchema(schema))
        metadata.create_all(connection)
    database = Database(way, url, portal)
    yield database
    database.dispose()

"""A database with a tracked session factory, and what a write has done to its rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

import sqlalchemy as sa
from anyio.from_thread import BlockingPortal
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.util import greenlet_spawn

from baukit_sync import track
from tests.integration.tracking.models import SYNCED, Base
from tests.support.ways import Database

Key: TypeAlias = tuple[str, ...]
"""A table's name and a row's primary key."""


@dataclass(frozen=True)
class Snapshot:
    """Every synced row and every counter, as committed."""

    rows: Mapping[Key, Mapping[str, Any]]
    counters: Mapping[str, int]


class Store:
    """A product's database and its tracked session factory, in one of the three ways.

    The body of a test that uses it runs where the sessions of its way may be used: on the event loop, inside
    SQLAlchemy's greenlet, when they are async. So one blocking body serves all ways.
    """

    def __init__(self, way: str, url: sa.URL, portal: BlockingPortal) -> None:
        """Connect lazily, and track a factory."""
        self.database = Database(way, url, portal)
        self.portal, self.url = portal, url
        self.factory = self.new_factory()
        track(self.factory)
        self._outside = sa.create_engine(url, poolclass=sa.NullPool)

    def new_factory(self, session_class: type[Session] = Session) -> Any:
        """Return a factory that is not tracked."""
        if self.database.is_async:
            return async_sessionmaker(self.database.engine, sync_session_class=session_class)
        return sessionmaker(self.database.engine, class_=session_class)

    def session(self, factory: Any = None, **options: Any) -> Session:
        """Return a session of the tracked factory, or another; it has ``expire_on_commit=True``."""
        session: Any = (factory or self.factory)(**options)
        return session.sync_session if self.database.is_async else session  # type: ignore[no-any-return]

    @contextmanager
    def begin(self, factory: Any = None, **options: Any) -> Iterator[Session]:
        """Open a session in a transaction; commit it, or roll it back when the block raises."""
        with self.session(factory, **options) as session, session.begin():
            yield session

    def run(self, body: Callable[[], None]) -> None:
        """Run a test's body where the sessions of this way may be used."""
        if self.database.is_async:
            self.portal.call(functools.partial(greenlet_spawn, body))
        else:
            body()

    def snapshot(self) -> Snapshot:
        """Read every synced row and counter from outside."""
        rows: dict[Key, Mapping[str, Any]] = {}
        with self._outside.connect() as connection:
            for name, row in connection.execute(_EVERYTHING):
                rows[name, *(str(row[column.name]) for column in Base.metadata.tables[name].primary_key)] = (
                    row
                )
            counters = connection.execute(sa.text("SELECT owner_id::text, last_revision FROM sync_revisions"))
            return Snapshot(rows, {owner: last for owner, last in counters})  # noqa: C416

    def last_revision(self, owner_id: UUID) -> int:
        """Return an owner's committed counter."""
        return self.snapshot().counters[str(owner_id)]

    @contextmanager
    def counter_statements(self) -> Iterator[list[str]]:
        """Collect the statements that raise counters."""
        with self.database.statements() as sent:
            raised: list[str] = []
            yield raised
            raised += [statement for statement in sent if "UPDATE sync_revisions" in statement]


_EVERYTHING = sa.text(
    " UNION ALL ".join(f"SELECT '{table.name}', to_jsonb(t) FROM {table.name} AS t" for table in SYNCED)
)


def written(before: Snapshot, after: Snapshot) -> list[str]:
    """Name the table of each row that was inserted or changed, and check what tracking promises of them.

    No row is gone or has another owner. The rows that were written have the revisions that their owners'
    counters made in between, each of them once; so each is above the revision that the row had before.
    """
    assert set() == before.rows.keys() - after.rows.keys(), "rows are gone"

    changed = [key for key, row in after.rows.items() if before.rows.get(key) != row]
    stamped: dict[str, list[int]] = {owner: [] for owner in after.counters}
    for key in changed:
        row = after.rows[key]
        if "owner_id" in row:
            assert before.rows.get(key, row)["owner_id"] == row["owner_id"], "a row has another owner"
            stamped[row["owner_id"]].append(row["revision"])
    handed_out = {
        owner: list(range(before.counters.get(owner, 0) + 1, last + 1))
        for owner, last in after.counters.items()
    }

    assert handed_out == {owner: sorted(revisions) for owner, revisions in stamped.items()}

    return sorted(key[0] for key in changed)

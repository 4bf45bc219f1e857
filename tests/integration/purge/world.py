"""What the tests of this folder do to a database, and what they ask it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy import event

from baukit_sync import PurgeReport, TombstoneTable
from tests.support.ways import Admin, Database

CUTOFF = datetime(2026, 2, 1, tzinfo=UTC)
EXPIRED = CUTOFF - timedelta(days=1)
RECENT = CUTOFF + timedelta(days=1)

MODES = (None, 1)
"""Many owners in a statement, and one."""


def purge(
    db: Database, *tables: TombstoneTable, limit: int = 100, cutoff: datetime = CUTOFF, **options: Any
) -> PurgeReport:
    """Run a purge."""
    report: PurgeReport = db.purge(tables, cutoff, limit, **options)
    return report


def next_revision(admin: Admin, owner: UUID, count: int = 1) -> int:
    """Allocate revisions and return the last."""
    revision: int = admin.scalar(
        "UPDATE sync_revisions SET last_revision = last_revision + :count WHERE owner_id = :owner"
        " RETURNING last_revision",
        owner=owner,
        count=count,
    )
    return revision


def write(admin: Admin, owner: UUID, *deleted_at: datetime | None) -> list[UUID]:
    """Commit notes with a revision each; return their ids."""
    ids = [uuid4() for _ in deleted_at]
    for note, instant in zip(ids, deleted_at, strict=True):
        admin.sql(
            "INSERT INTO notes (id, owner_id, deleted_at, revision)"
            " VALUES (:id, :owner, :instant, :revision)",
            id=note,
            owner=owner,
            instant=instant,
            revision=next_revision(admin, owner),
        )
    return ids


def write_many(admin: Admin, owner: UUID, count: int) -> None:
    """Commit expired notes, a second apart, with the next revisions."""
    last = next_revision(admin, owner, count)
    admin.sql(
        "INSERT INTO notes (id, owner_id, deleted_at, revision)"
        " SELECT gen_random_uuid(), :owner, CAST(:start AS timestamptz) + n * interval '1 second', :base + n"
        " FROM generate_series(1, :count) AS n",
        owner=owner,
        start=EXPIRED - timedelta(days=10),
        base=last - count,
        count=count,
    )


def revisions(admin: Admin, owner: UUID) -> list[int]:
    """Return the revisions of an owner's notes, in order."""
    rows = admin.sql("SELECT revision FROM notes WHERE owner_id = :owner ORDER BY revision", owner=owner)
    return [revision for (revision,) in rows]


def horizons(admin: Admin) -> dict[UUID, int]:
    """Return every horizon."""
    return dict(tuple(row) for row in admin.sql("SELECT owner_id, horizon_revision FROM sync_purge_horizons"))


@contextmanager
def before(db: Database, fragment: str, act: Callable[[], object]) -> Iterator[list[str]]:
    """Act once, when a statement that contains a fragment is about to be sent.

    Yields:
        The statement, once it was met.
    """
    met: list[str] = []

    def look(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if fragment in statement and not met:
            met.append(statement)
            act()

    event.listen(db.sync_engine, "before_cursor_execute", look)
    try:
        yield met
    finally:
        event.remove(db.sync_engine, "before_cursor_execute", look)


class Gate:
    """A lock that a trigger must pass before a statement deletes notes, while the test holds it."""

    def __init__(self, admin: Admin, *, when: str = "FOR EACH STATEMENT", table: str = "notes") -> None:
        """Put the trigger in place."""
        self._admin = admin
        admin.sql(
            "CREATE FUNCTION extra.pass() RETURNS trigger LANGUAGE plpgsql AS"
            " $$BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN OLD; END$$"
        )
        admin.sql(f"CREATE TRIGGER gate BEFORE DELETE ON {table} {when} EXECUTE FUNCTION extra.pass()")

    @contextmanager
    def closed(
        self, pool: ThreadPoolExecutor, run: Callable[[], PurgeReport]
    ) -> Iterator[Future[PurgeReport]]:
        """Start a purge, and yield when it stands at the gate; it goes on when the block ends."""
        with self._admin.engine.connect() as connection:
            connection.execute(sa.text("SELECT pg_advisory_lock(4711)"))
            running = pool.submit(run)
            self._admin.wait_for_blocked()
            yield running


def locked_out(admin: Admin, statement: str, **parameters: Any) -> bool:
    """Tell whether a statement finds what it needs locked; it waits for a millisecond."""
    with admin.engine.connect() as connection:
        connection.execute(sa.text("SET lock_timeout = '1ms'"))
        try:
            connection.execute(sa.text(statement), parameters)
        except sa.exc.OperationalError as error:
            return getattr(error.orig, "sqlstate", None) == "55P03"
    return False


def summary(report: PurgeReport) -> list[tuple[str, int, Sequence[str]]]:
    """Return what a run did to each table: its name, how many rows, and why it is not complete."""
    return [(table.name, table.deleted, [*table.unfinished]) for table in report.tables]


@contextmanager
def each(db: Database, act: Callable[[str], object]) -> Iterator[None]:
    """Act before each statement of the engine is sent."""

    def look(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        act(statement)

    event.listen(db.sync_engine, "before_cursor_execute", look)
    try:
        yield
    finally:
        event.remove(db.sync_engine, "before_cursor_execute", look)

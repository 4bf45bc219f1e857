"""Make a table of a million rows syncable while somebody writes to it, and measure what the writer waits.

One server, one run: columns, indexes, backfill, and NOT NULL, with Alembic's operations. A writer in another
thread changes and adds rows all the time, as an application does that already stamps.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy.orm import DeclarativeBase, Mapped, Session

from baukit_sync import (
    SyncColumns,
    add_sync_tables,
    backfill_revisions,
    embedded,
    ensure_owner,
    guard_pull_cursor,
    next_revision,
)
from baukit_sync import migrations as sync

R = TypeVar("R")


class Base(DeclarativeBase):
    """The models, as they are in the end."""


class Task(SyncColumns, Base):
    """A row that was there before."""

    __tablename__ = "tasks"

    title: Mapped[str]


OLD = """
CREATE TABLE tasks (id uuid PRIMARY KEY, owner_id uuid NOT NULL, title text NOT NULL);
INSERT INTO tasks SELECT gen_random_uuid(), owner, 'a task of before'
FROM (SELECT gen_random_uuid() AS owner FROM generate_series(1, :owners)) AS owners,
     generate_series(1, :each);
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--owners", type=int, default=10_000)
    arguments = parser.parse_args()
    add_sync_tables(Base.metadata)
    with embedded.server(settings={"max_wal_size": "8GB"}) as url:
        engine = sa.create_engine(url)
        each = arguments.rows // arguments.owners
        with engine.begin() as connection:
            Base.metadata.tables["sync_revisions"].create(connection)
            Base.metadata.tables["sync_purge_horizons"].create(connection)
            for statement in OLD.split(";")[:-1]:
                connection.execute(sa.text(statement), {"owners": arguments.owners, "each": each})
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.text("VACUUM ANALYZE tasks"))
        migrate(engine, lambda op: sync.add_columns(op, "tasks"))
        done, waits = threading.Event(), list[float]()
        writer = threading.Thread(target=write, args=(engine, done, waits))
        writer.start()
        try:
            longest(
                "indexes",
                waits,
                lambda: migrate(engine, lambda op: sync.create_indexes_concurrently(op, "tasks")),
            )
            start = time.perf_counter()
            report = longest("backfill", waits, lambda: backfill_revisions(engine, Task))
            seconds = time.perf_counter() - start
            longest("not null", waits, lambda: migrate(engine, lambda op: sync.require_columns(op, "tasks")))
        finally:
            done.set()
            writer.join()
        print(
            f"{report.stamped:,} rows of {report.counters:,} owners in {seconds:.1f} s:"
            f" {report.stamped / seconds:,.0f} rows/s"
        )
        print(f"complete: {report.complete}; {pulled(engine):,} rows reach a client that pulls from 0")
        engine.dispose()


def migrate(engine: sa.Engine, function: Callable[[Operations], None]) -> None:
    """Run a migration as Alembic does."""
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        with context.begin_transaction():
            function(Operations(context))


def write(engine: sa.Engine, done: threading.Event, waits: list[float]) -> None:
    """Change a row of an owner and add one, again and again."""
    with engine.connect() as connection:
        owners = connection.scalars(sa.text("SELECT DISTINCT owner_id FROM tasks LIMIT 200")).all()
    turn = 0
    while not done.is_set():
        owner = owners[turn % len(owners)]
        turn += 1
        start = time.perf_counter()
        with Session(engine) as session, session.begin():
            ensure_owner(session, owner)
            task = session.scalars(sa.select(Task).where(Task.owner_id == owner).limit(1)).one()
            task.title, task.revision = f"changed {turn}", next_revision(session, owner)
            session.add(Task(owner_id=owner, title="new", revision=next_revision(session, owner)))
        waits.append(time.perf_counter() - start)


def longest(name: str, waits: list[float], step: Callable[[], R]) -> R:
    """Run a step, and print the writer's longest transaction meanwhile."""
    before = len(waits)
    result = step()
    print(
        f"{name}: the writer's longest transaction of {len(waits) - before:,}:"
        f" {max(waits[before:]) * 1e3:.0f} ms"
    )
    return result


def pulled(engine: sa.Engine) -> int:
    """Count what pulls from 0 return, of all owners."""
    total = 0
    with Session(engine) as session:
        for owner in session.scalars(sa.text("SELECT owner_id FROM sync_revisions")).all():
            window = guard_pull_cursor(session, owner, 0)
            total += (
                session.scalar(
                    sa.select(sa.func.count()).where(
                        Task.owner_id == owner, Task.revision > 0, Task.revision <= window.through
                    )
                )
                or 0
            )
        if total != session.scalar(sa.select(sa.func.count()).select_from(Task)):
            raise AssertionError("a row reaches no client")
    return total


if __name__ == "__main__":
    main()

"""What the purge costs, beside the batch DELETE that everybody writes and the four statements of a spec.

One server, one run. 100,000 tombstones among 200,000 live rows, limit 1,000; the tombstones of an owner are
far apart in time (spread), or 50 at a time (burst); or there are 50,000 owners with two each (sparse). Before
each measurement the tables are made anew, vacuumed and analysed.

The DELETEs without protection lock nothing, skip nobody and raise no horizon: they are the floor, by primary
key as usual, and by ctid as fast as it can be.
"""

from __future__ import annotations

import argparse
import os
import resource
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

import psycopg
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session

from baukit_sync import (
    SyncColumns,
    TombstoneTable,
    add_sync_tables,
    embedded,
    guard_pull_cursor,
    next_revision,
    purge_tombstones,
)

CUTOFF = datetime(2026, 11, 1, tzinfo=UTC)
LIMIT = 1_000


class Base(DeclarativeBase):
    """The models."""


class Note(SyncColumns, Base):
    """A synced row."""

    __tablename__ = "notes"

    title: Mapped[str]


NOTES = TombstoneTable.for_model(Note)

FOUR_STATEMENTS = TombstoneTable(
    "notes",
    "SELECT id, owner_id, revision FROM notes WHERE deleted_at < :cutoff"
    " ORDER BY deleted_at, id LIMIT :limit FOR UPDATE SKIP LOCKED",
    "DELETE FROM notes WHERE id = ANY(:ids)",
)

UNPROTECTED = {
    "DELETE by id": sa.text(
        "DELETE FROM notes WHERE id IN"
        " (SELECT id FROM notes WHERE deleted_at < :cutoff ORDER BY deleted_at LIMIT :limit)"
    ),
    "DELETE by ctid": sa.text(
        "WITH expired AS MATERIALIZED"
        " (SELECT ctid AS place FROM notes WHERE deleted_at < :cutoff ORDER BY deleted_at LIMIT :limit)"
        " DELETE FROM notes USING expired WHERE ctid = expired.place"
    ),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="without the 5 million rows and the neighbours")
    parser.add_argument("--purge", metavar="URL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.purge:
        purge_all(arguments.purge)
        return
    add_sync_tables(Base.metadata)
    with embedded.server(settings={"fsync": "on", "max_wal_size": "8GB"}) as url:
        engine = sa.create_engine(url)
        for name, owners, each, burst in (
            ("spread, 2,000 owners x 50", 2_000, 50, False),
            ("burst, 2,000 owners x 50", 2_000, 50, True),
            ("sparse, 50,000 owners x 2", 50_000, 2, False),
        ):
            compare(engine, arguments.rounds, name, owners, each, burst=burst)
        if not arguments.quick:
            growth(engine)
        engine.dispose()
    if not arguments.quick:
        for fsync, disk in (("on", "commits wait for the disk"), ("off", "no commit waits for the disk")):
            with embedded.server(settings={"fsync": fsync, "max_wal_size": "8GB"}) as url:
                engine = sa.create_engine(url)
                neighbours(engine, disk)
                engine.dispose()


def compare(engine: sa.Engine, rounds: int, name: str, owners: int, each: int, *, burst: bool) -> None:
    """Print how many rows a second each way deletes, and the ratios."""
    ways: dict[str, Callable[[], int]] = {
        "the kit": lambda: purge_tombstones(engine, [NOTES], CUTOFF, LIMIT).deleted,
        "four statements": lambda: purge_tombstones(engine, [FOUR_STATEMENTS], CUTOFF, LIMIT).deleted,
    }
    for way, statement in UNPROTECTED.items():
        ways[way] = lambda statement=statement: unprotected(engine, statement)
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, purge in ways.items():
            fill(engine, owners=owners, tombstones=each, live=200_000 // owners, burst=burst)
            rates[way].append(rate(purge, owners * each))
    median = {way: statistics.median(each) for way, each in rates.items()}
    print(f"{name}: {median['the kit']:,.0f} rows/s, {median['four statements']:,.0f} by four statements")
    for way in list(ways)[1:]:
        ratios = [ours / theirs for ours, theirs in zip(rates["the kit"], rates[way], strict=True)]
        print(f"  {statistics.median(ratios):.2f}x {way} ({min(ratios):.2f}-{max(ratios):.2f})")


def rate(purge: Callable[[], int], expected: int) -> float:
    """Return rows per second."""
    start = time.perf_counter()
    deleted = purge()
    seconds = time.perf_counter() - start
    if deleted != expected:
        raise AssertionError(f"{deleted} of {expected} rows were deleted")
    return expected / seconds


def unprotected(engine: sa.Engine, statement: sa.TextClause) -> int:
    """Delete batch by batch, each committed by itself, until one comes back short."""
    total = 0
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while True:
            deleted = connection.execute(statement, {"cutoff": CUTOFF, "limit": LIMIT}).rowcount
            total += deleted
            if deleted < LIMIT:
                return total


def fill(engine: sa.Engine, *, owners: int, tombstones: int, live: int, burst: bool = False) -> None:
    """Make the tables anew: each owner's rows in the order of their revisions, owner by owner."""
    turn = "owner.number * :tombstones + n" if burst else "n * :owners + owner.number"
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        Base.metadata.drop_all(connection)
        Base.metadata.create_all(connection)
        connection.execute(sa.text("CREATE INDEX ON notes (deleted_at, id) WHERE deleted_at IS NOT NULL"))
        connection.execute(
            sa.text(
                "INSERT INTO sync_revisions SELECT gen_random_uuid(), :revisions"
                " FROM generate_series(1, :owners)"
            ),
            {"owners": owners, "revisions": tombstones + live},
        )
        connection.execute(
            sa.text(
                "INSERT INTO notes (id, owner_id, deleted_at, revision, title)"
                f" SELECT gen_random_uuid(), owner_id, CASE WHEN n < :tombstones THEN"
                f" timestamptz '2026-09-01' + ({turn}) * interval '1 ms' END, n + 1, repeat('x', 100)"
                " FROM (SELECT owner_id, row_number() OVER () AS number FROM sync_revisions) AS owner,"
                " generate_series(0, :tombstones + :live - 1) AS n ORDER BY owner.number, n"
            ),
            {"owners": owners, "tombstones": tombstones, "live": live},
        )
        connection.execute(sa.text("VACUUM ANALYZE"))
        connection.execute(sa.text("CHECKPOINT"))


def growth(engine: sa.Engine) -> None:
    """Print the rate beside 100,000 and 5,000,000 live rows, and the memory of a million tombstones."""
    rates = {}
    for live in (100_000, 5_000_000):
        measured = []
        for _ in range(3):
            fill(engine, owners=2_000, tombstones=50, live=live // 2_000)
            measured.append(rate(lambda: purge_tombstones(engine, [NOTES], CUTOFF, LIMIT).deleted, 100_000))
        rates[live] = statistics.median(measured)
    print(f"rate beside 5,000,000 live rows: {rates[5_000_000] / rates[100_000]:.2f}x of that beside 100,000")
    fill(engine, owners=2_000, tombstones=500, live=1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    deleted = purge_tombstones(engine, [NOTES], CUTOFF, LIMIT).deleted
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{deleted:,} tombstones in one run: the process grew by {grown:.1f} MB")


def neighbours(engine: sa.Engine, disk: str) -> None:
    """Print what a pull and a write of another owner take while another process purges, and without it.

    By turns of 50,000 rows each, so that both sides meet the same disk, and with a processor for either: two
    that share one wait for each other in the scheduler, whatever they do in the database.
    """
    if not own_processor(engine, 0):
        print("the purge and its neighbour share processors here: what follows is the scheduler's doing, too")
    ratios, latencies = [], []
    for _ in range(3):
        fill(engine, owners=2_000, tombstones=500, live=10)
        with engine.begin() as connection:
            owner: UUID = connection.execute(
                sa.text("INSERT INTO sync_revisions VALUES (gen_random_uuid(), 0) RETURNING owner_id")
            ).scalar_one()
        quiet, busy = list[float](), list[float]()
        command = [sys.executable, __file__, "--purge", engine.url.render_as_string(hide_password=False)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as purging:
            assert purging.stdin is not None
            assert purging.stdout is not None
            purging.stdout.readline()
            while True:
                purging.stdin.write("go on\n")
                purging.stdin.flush()
                turn = list[float]()
                while not select.select([purging.stdout], [], [], 0)[0]:
                    turn.append(pull_and_write(engine, owner))
                if purging.stdout.readline() == "nothing left\n":
                    break
                busy += turn
                quiet += [pull_and_write(engine, owner) for _ in turn]
            purging.stdin.close()
        latencies.append(p99(busy))
        ratios.append(p99(busy) / p99(quiet))
    print(
        f"a pull and a write of another owner while it runs, {disk}:"
        f" p99 {statistics.median(latencies) * 1e3:.2f} ms,"
        f" {statistics.median(ratios):.2f}x of without ({min(ratios):.2f}-{max(ratios):.2f})"
    )


def own_processor(engine: sa.Engine, number: int) -> bool:
    """Keep this process and its connections' backends on one processor; return whether the system can."""
    if not hasattr(os, "sched_setaffinity") or (os.cpu_count() or 1) < 2:
        return False
    os.sched_setaffinity(0, {number})

    @sa.event.listens_for(engine, "connect")
    def _stay(connection: psycopg.Connection, _record: object) -> None:
        os.sched_setaffinity(connection.info.backend_pid, {number})

    return True


def pull_and_write(engine: sa.Engine, owner: UUID) -> float:
    """Return the seconds of one transaction."""
    start = time.perf_counter()
    with Session(engine) as session, session.begin():
        guard_pull_cursor(session, owner, 0)
        next_revision(session, owner)
    return time.perf_counter() - start


def p99(seconds: list[float]) -> float:
    """Return the time that 99 of 100 stay below."""
    return statistics.quantiles(seconds, n=100)[98]


def purge_all(url: str) -> None:
    """Purge in a process of its own, 50,000 rows whenever it is told to."""
    engine = sa.create_engine(url)
    own_processor(engine, 1)
    with engine.connect():
        print("ready", flush=True)
    for _ in sys.stdin:
        deleted = purge_tombstones(engine, [NOTES], CUTOFF, LIMIT, max_rows=50_000).deleted
        print("purged" if deleted else "nothing left", flush=True)


if __name__ == "__main__":
    main()

"""A purge that is killed at any moment: rows and horizons change together, and a second run completes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from uuid import UUID

import pytest
import sqlalchemy as sa

from baukit_sync import purge_tombstones
from tests.integration.purge.models import NOTES
from tests.integration.purge.world import CUTOFF, next_revision, write, write_many
from tests.support.ways import Admin

KILLS = int(os.environ.get("BAUKIT_SYNC_TEST_PURGE_KILLS", "50"))
"""Of each kind."""

ROWS, LIMIT = 120, 3

BATCHES = ROWS * 3 // LIMIT

PURGER = (
    f"LIMIT = {LIMIT}"
    """
import sys
import sqlalchemy as sa
from baukit_sync import purge_tombstones
from tests.integration.purge.models import NOTES
from tests.integration.purge.world import CUTOFF
engine = sa.create_engine(sys.argv[1])
mode = int(sys.argv[2]) or None
print("ready", flush=True)
for _ in sys.stdin:
    tell = lambda _: print("batch", flush=True)
    purge_tombstones(engine, [NOTES], CUTOFF, LIMIT, owners_per_statement=mode, on_batch=tell)
    print("done", flush=True)
"""
)


class Purger:
    """A process that purges whenever it is told to."""

    def __init__(self, url: sa.URL, mode: int | None) -> None:
        """Start it, and wait until it is ready."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", PURGER, url.render_as_string(hide_password=False), str(mode or 0)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert "ready\n" == self.read()

    def read(self) -> str:
        """Return the next line that it prints."""
        assert self.process.stdout
        return self.process.stdout.readline()

    def go(self, chance: random.Random) -> None:
        """Start a purge, and return somewhere in the middle of it."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        for _ in range(chance.randrange(1, BATCHES // 2)):
            assert "batch\n" == self.read()
        time.sleep(chance.random() * 0.002)

    def finish(self) -> None:
        """Return when the purge is done."""
        while (line := self.read()) != "done\n":
            assert "batch\n" == line

    def kill(self) -> None:
        """End it as a crash of the machine would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()


def fill(admin: Admin, owners: list[UUID]) -> None:
    """Commit tombstones and live rows, each owner's interleaved."""
    for owner in owners:
        write_many(admin, owner, ROWS // 2)
        write(admin, owner, None)
        write_many(admin, owner, ROWS // 2)


def check(admin: Admin) -> int:
    """Compare the horizons with what is missing, and return how many rows are.

    In one statement: the server may still commit what a killed process has sent.
    """
    owners = admin.sql(
        "SELECT greatest, rows, horizon_revision FROM sync_revisions"
        " CROSS JOIN LATERAL (SELECT max(number) AS greatest, count(*) AS rows"
        " FROM generate_series(1, last_revision) AS handed_out (number) WHERE NOT EXISTS (SELECT FROM notes"
        " WHERE notes.owner_id = sync_revisions.owner_id AND notes.revision = number)) AS missing"
        " LEFT JOIN sync_purge_horizons USING (owner_id)"
    )

    assert [row.greatest for row in owners] == [row.horizon_revision for row in owners]
    return sum(row.rows for row in owners)


@pytest.mark.parametrize("mode", [None, 1], ids=["many", "one"])
def test_a_process_that_is_killed_leaves_exact_horizons(
    admin: Admin, owners: list[UUID], mode: int | None
) -> None:
    """``kill -9`` at random points of a run; another run takes the rest."""
    chance = random.Random(4)
    partly = lived = 0
    fill(admin, owners)
    for number in range(KILLS // 2 + KILLS % 2 * (mode is None)):
        purger = Purger(admin.engine.url, mode)
        purger.go(chance)
        purger.kill()
        lived = number + 1
        gone = check(admin)
        partly += ROWS * 3 * number < gone < ROWS * 3 * lived
        assert lived == admin.scalar("SELECT count(*) FROM notes WHERE deleted_at IS NULL") // 3
        purge_again(admin)
        assert 0 == admin.scalar("SELECT count(*) FROM notes WHERE deleted_at IS NOT NULL")
        check(admin)
        fill(admin, owners)

    assert partly >= KILLS // 8


@pytest.mark.parametrize("mode", [None, 1], ids=["many", "one"])
def test_a_backend_that_is_terminated_leaves_exact_horizons(
    admin: Admin, owners: list[UUID], mode: int | None
) -> None:
    """``pg_terminate_backend`` at random points; the process goes on with a new connection."""
    chance = random.Random(5)
    purger = Purger(admin.engine.url, mode)
    hit = 0
    for _ in range(KILLS // 2 + KILLS % 2 * (mode is None)):
        fill(admin, owners)
        purger.go(chance)
        ended = admin.sql(
            "SELECT pg_terminate_backend(pid), (SELECT count(*) FROM notes WHERE deleted_at IS NOT NULL)"
            " FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        )
        hit += any(left for _, left in ended)
        purger.finish()
        check(admin)
    purger.kill()
    purge_again(admin)
    gone = check(admin)

    assert 0 == admin.scalar("SELECT count(*) FROM notes WHERE deleted_at IS NOT NULL")
    assert gone == (KILLS // 2 + KILLS % 2 * (mode is None)) * ROWS * 3
    assert hit


def purge_again(admin: Admin) -> None:
    """Run a whole purge."""
    # The server ends the killed process's transaction when it notices.
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if purge_tombstones(
            sa.create_engine(admin.engine.url, poolclass=sa.NullPool), [NOTES], CUTOFF, 500
        ).complete:
            return
    raise AssertionError("a run after the kill does not complete")


def test_the_check_of_these_tests_sees_a_missing_row(admin: Admin, owners: list[UUID]) -> None:
    """A row that goes without its horizon fails it."""
    write_many(admin, owners[0], 2)
    next_revision(admin, owners[1])

    with pytest.raises(AssertionError):
        check(admin)

"""PgBouncer in transaction mode: many clients, two server connections, and nothing that stays on them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from anyio.from_thread import BlockingPortal

from baukit_sync import ResyncRequiredError
from tests.support import servers
from tests.support.product import CALLS, CUTOFF, EXPIRED, NOTES, write_note
from tests.support.threads import together
from tests.support.ways import WAYS, Admin, Database

CONNECT_ARGS: dict[str, dict[str, Any]] = {
    "psycopg": {"prepare_threshold": None},
    "asyncpg": {
        "statement_cache_size": 0,
        "prepared_statement_cache_size": 0,
        "prepared_statement_name_func": lambda: f"__asyncpg_{uuid4()}__",
    },
}
"""What each driver needs behind PgBouncer: no prepared statement that it hopes to find again."""


@pytest.fixture
def pooler_url(database_url: sa.URL) -> Iterator[sa.URL]:
    """A PgBouncer in front of the test's database."""
    if shutil.which("pgbouncer") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("pgbouncer is not on PATH")
        pytest.skip("pgbouncer is not on PATH")
    with servers.pgbouncer(database_url, server_connections=2) as url:
        yield url


@pytest.fixture(params=WAYS)
def pooled(request: pytest.FixtureRequest, pooler_url: sa.URL, portal: BlockingPortal) -> Iterator[Database]:
    """The test's database through PgBouncer, in each of the three ways."""
    driver = request.param.split("-")[1]
    database = Database(request.param, pooler_url, portal, connect_args=CONNECT_ARGS[driver])
    yield database
    database.dispose()


def test_eight_writers_share_two_server_connections(pooled: Database, admin: Admin, owner: UUID) -> None:
    """Revisions are 1..n: each transaction has its locks for itself, whichever connection it runs on."""

    def write_many() -> None:
        for _ in range(10):
            with pooled.begin() as unit:
                write_note(unit, owner)

    together(*[write_many] * 8)

    rows = admin.sql("SELECT revision FROM notes ORDER BY revision")
    assert list(range(1, 81)) == [revision for (revision,) in rows]


def test_writers_of_several_owners_share_them_too(pooled: Database, admin: Admin, owners: list[UUID]) -> None:
    """They do not deadlock, and every owner's counter is exact."""

    def write_many() -> None:
        for turn in range(10):
            with pooled.begin() as unit:
                unit.allocate_revisions(dict.fromkeys(owners[turn % 3 :] + owners[: turn % 3], 2))

    together(*[write_many] * 6)

    assert [(120,)] * 3 == [tuple(row) for row in admin.sql("SELECT last_revision FROM sync_revisions")]


def test_every_function_works_again_and_again(pooled: Database, owner: UUID) -> None:
    """A statement that was prepared on one server connection is not looked for on another."""

    def call_all() -> None:
        for _ in range(8):
            with pooled.begin() as unit:
                for call in CALLS.values():
                    call(unit, owner)

    together(call_all, call_all, call_all)

    with pooled.begin() as unit:
        assert 24 * (10 + 2 + 2 + 1) == unit.current_revision(owner)


def test_pulls_purges_and_horizons_work(pooled: Database, owner: UUID) -> None:
    """An open pull keeps the purge out; afterwards its old cursor must resync."""
    with pooled.begin() as unit:
        for _ in range(5):
            write_note(unit, owner, deleted_at=EXPIRED)
    with pooled.begin() as pull:
        window = pull.guard_pull_cursor(owner, 1)
        during = pooled.purge([NOTES], CUTOFF, 2)
    afterwards = pooled.purge([NOTES], CUTOFF, 2)

    assert 5 == window.through
    assert 0 == during.deleted
    assert 5 == afterwards.deleted
    with pooled.begin() as unit, pytest.raises(ResyncRequiredError):
        unit.guard_pull_cursor(owner, 1)


def test_nothing_stays_on_a_server_connection(pooled: Database, admin: Admin, owner: UUID) -> None:
    """No lock, setting or open transaction: the connection goes to another client next."""
    with pooled.begin() as unit:
        before = unit.sql("SELECT name, setting FROM pg_settings ORDER BY name")
    with pooled.begin() as unit:
        for call in CALLS.values():
            call(unit, owner)
    pooled.purge([NOTES], CUTOFF, 10)

    def settings() -> list[Any]:
        with pooled.begin() as unit:
            return list(unit.sql("SELECT name, setting FROM pg_settings ORDER BY name"))

    assert [before] * 4 == together(*[settings] * 4)
    assert 0 == admin.scalar(
        "SELECT count(*) FROM pg_stat_activity JOIN pg_locks USING (pid)"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )

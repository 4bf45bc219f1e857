"""PgBouncer in transaction mode: each batch on whichever server connection is free."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from anyio.from_thread import BlockingPortal

from tests.integration.purge.models import EVERY, NOTES
from tests.integration.purge.world import (
    EXPIRED,
    MODES,
    horizons,
    purge,
    revisions,
    summary,
    write,
    write_many,
)
from tests.support import servers
from tests.support.ways import WAYS, Admin, Database

CONNECT_ARGS: dict[str, dict[str, Any]] = {
    "psycopg": {"prepare_threshold": None},
    "asyncpg": {
        "statement_cache_size": 0,
        "prepared_statement_cache_size": 0,
        "prepared_statement_name_func": lambda: f"__asyncpg_{uuid4()}__",
    },
}


@pytest.fixture(params=WAYS)
def pooled(
    request: pytest.FixtureRequest, database_url: sa.URL, portal: BlockingPortal
) -> Iterator[Database]:
    """The test's database through a PgBouncer with two server connections."""
    if shutil.which("pgbouncer") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("pgbouncer is not on PATH")
        pytest.skip("pgbouncer is not on PATH")
    driver = request.param.split("-")[1]
    with servers.pgbouncer(database_url, server_connections=2) as url:
        database = Database(request.param, url, portal, connect_args=CONNECT_ARGS[driver])
        yield database
        database.dispose()


@pytest.mark.parametrize("mode", MODES, ids=["many", "one"])
def test_busy_and_blocked_rows_are_told_apart_behind_a_pooler(
    pooled: Database, admin: Admin, owners: list[UUID], mode: int | None
) -> None:
    """Savepoints, lock timeouts and single statements need no connection of their own."""
    write_many(admin, owners[0], 25)
    (blocked,) = write(admin, owners[1], EXPIRED)
    write(admin, owners[2], EXPIRED, None)
    admin.sql("CREATE TABLE extra.pins (note_id uuid REFERENCES notes)")
    admin.sql("INSERT INTO extra.pins VALUES (:id)", id=blocked)
    with admin.engine.connect().execution_options(isolation_level="READ COMMITTED") as pull:
        statement = sa.text("SELECT FROM sync_revisions WHERE owner_id = :id FOR KEY SHARE")
        pull.execute(statement, {"id": owners[2]})
        wait = timedelta(milliseconds=50)
        report = purge(pooled, NOTES, limit=4, owners_per_statement=mode, busy_wait=wait)
        pull.rollback()

    assert [("notes", 25, ["busy", "blocked"])] == summary(report)
    assert [[], [1], [1, 2]] == [revisions(admin, owner) for owner in owners]
    assert {owners[0]: 25} == horizons(admin)
    assert "15s" == admin.scalar("SHOW lock_timeout")


def test_tables_of_every_shape_are_purged_behind_a_pooler(pooled: Database, admin: Admin) -> None:
    """Nothing that a statement needs stays on a server connection."""
    for _ in range(3):
        report = purge(pooled, *EVERY)

    assert report.complete

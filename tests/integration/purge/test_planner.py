"""Plans that nobody would choose: no more than ``limit`` rows per statement, and exact horizons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import event

from baukit_sync import PurgeProgress
from tests.integration.purge.models import NOTES
from tests.integration.purge.world import MODES, horizons, purge, summary, write, write_many
from tests.support.ways import Admin, Database

SETTINGS = {
    "as usual": (),
    "no hash join": ("hashjoin",),
    "no merge join": ("mergejoin",),
    "no hash or merge join, no sort, no material": ("hashjoin", "mergejoin", "sort", "material", "memoize"),
    "no nested loop": ("nestloop",),
    "no nested loop or hash join": ("nestloop", "hashjoin"),
    "no index": ("indexscan", "indexonlyscan", "bitmapscan"),
    "no index, tid scan, hash or merge join": (
        "indexscan",
        "indexonlyscan",
        "bitmapscan",
        "tidscan",
        "hashjoin",
        "mergejoin",
        "material",
    ),
    "no sequential scan": ("seqscan",),
}


@pytest.fixture(autouse=True)
def _statistics(admin: Admin) -> Iterator[None]:
    """Leave the table's statistics to the test, and give them back."""
    admin.sql("ALTER TABLE notes SET (autovacuum_enabled = off)")
    yield
    admin.sql("ALTER TABLE notes RESET (autovacuum_enabled)")
    admin.sql("VACUUM ANALYZE notes")


@pytest.mark.parametrize("db", ["blocking-psycopg"], indirect=True)
@pytest.mark.parametrize("mode", MODES, ids=["many", "one"])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("statistics", ["fresh", "none", "of an empty table", "too high"])
def test_no_plan_deletes_more_than_the_limit(
    db: Database, admin: Admin, owners: list[UUID], mode: int | None, settings: str, statistics: str
) -> None:
    """Whatever the planner may use, and believes, a statement deletes at most ``limit`` rows."""
    if statistics == "of an empty table":
        admin.sql("TRUNCATE notes")
        admin.sql("VACUUM ANALYZE notes")
    for owner, count in zip(owners, (25, 3, 4), strict=True):
        write_many(admin, owner, count)
        write(admin, owner, None, None)
    if statistics == "fresh":
        admin.sql("ANALYZE notes")
    elif statistics == "too high":
        admin.sql("UPDATE pg_class SET reltuples = 1e9, relpages = 1000000 WHERE relname = 'notes'")
    off = {f"enable_{name}": "off" for name in SETTINGS[settings]}
    batches: list[PurgeProgress] = []
    with db.another(settings={**off, "plan_cache_mode": "auto"}) as hostile:
        report = purge(hostile, NOTES, limit=7, owners_per_statement=mode, on_batch=batches.append)

    assert [("notes", 32, [])] == summary(report)
    assert 7 >= max(batch.deleted for batch in batches)
    assert {owners[0]: 25, owners[1]: 3, owners[2]: 4} == horizons(admin)
    assert 6 == admin.scalar("SELECT count(*) FROM notes")


@pytest.mark.parametrize("db", ["blocking-psycopg"], indirect=True)
@pytest.mark.parametrize("statistics", ["none", "of an empty table", "too high"])
def test_one_owner_is_never_joined_row_by_row(
    db: Database, admin: Admin, owner: UUID, statistics: str
) -> None:
    """A plan that compares each row of the owner with each of the batch takes minutes at 30,000 rows."""
    if statistics == "of an empty table":
        admin.sql("TRUNCATE notes")
        admin.sql("VACUUM ANALYZE notes")
    write_many(admin, owner, 200)
    if statistics == "too high":
        admin.sql("UPDATE pg_class SET reltuples = 1e9, relpages = 1000000 WHERE relname = 'notes'")
    plans: list[str] = []

    def explain(connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "DELETE" in statement:
            with connection.connection.dbapi_connection.cursor() as other:
                other.execute(f"EXPLAIN {statement}", parameters)
                plans.append("\n".join(row[0] for row in other.fetchall()))

    event.listen(db.sync_engine, "before_cursor_execute", explain)
    purge(db, NOTES, limit=150, owners_per_statement=1)

    assert 2 == len(plans)
    assert [] == [plan for plan in plans if "Join" in plan or "Nested Loop" in plan]
    assert all("hashed SubPlan" in plan for plan in plans)

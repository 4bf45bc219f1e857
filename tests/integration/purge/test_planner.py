"""Plans that nobody would choose: no more than ``limit`` rows per statement, and exact horizons."""

from __future__ import annotations

from uuid import UUID

import pytest

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


@pytest.mark.parametrize("db", ["blocking-psycopg"], indirect=True)
@pytest.mark.parametrize("mode", MODES, ids=["many", "one"])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("statistics", ["fresh", "none", "of an empty table", "too high"])
def test_no_plan_deletes_more_than_the_limit(
    db: Database, admin: Admin, owners: list[UUID], mode: int | None, settings: str, statistics: str
) -> None:
    """Whatever the planner may use, and believes, a statement deletes at most ``limit`` rows."""
    admin.sql("ALTER TABLE notes SET (autovacuum_enabled = off)")
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

"""A long run: no statement more in the cache, and no memory that grows with the rows."""

from __future__ import annotations

import tracemalloc
from uuid import UUID

import pytest

from baukit_sync import PurgeProgress
from tests.integration.purge.models import NOTES
from tests.integration.purge.world import MODES, purge, summary, write_many
from tests.support.ways import Admin, Database

modes = pytest.mark.parametrize("mode", MODES, ids=["many", "one"])


@modes
def test_a_thousand_batches_compile_no_statement_anew(
    db: Database, admin: Admin, owners: list[UUID], mode: int | None
) -> None:
    """Whatever the number of owners and rows of a batch, the statements are the same."""
    for owner, count in zip(owners, (700, 303, 2), strict=True):
        write_many(admin, owner, count)
    sizes: list[int] = []

    def look(_: PurgeProgress) -> None:
        sizes.append(len(db.sync_engine._compiled_cache or ()))

    report = purge(db, NOTES, limit=1, owners_per_statement=mode, on_batch=look)

    assert 1005 == report.tables[0].batches
    assert {sizes[0]} == {*sizes}


@pytest.mark.parametrize("db", ["blocking-psycopg"], indirect=True)
@modes
def test_memory_does_not_grow_with_the_rows(
    db: Database, admin: Admin, owners: list[UUID], mode: int | None
) -> None:
    """A hundred thousand tombstones leave less than a megabyte behind."""
    for owner in owners:
        write_many(admin, owner, 2_000)
    purge(db, NOTES, limit=1000, owners_per_statement=mode)
    for owner in owners:
        write_many(admin, owner, 33_000)
    tracemalloc.start()
    report = purge(db, NOTES, limit=1000, owners_per_statement=mode)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert [("notes", 99_000, [])] == summary(report)
    assert peak < 1_000_000

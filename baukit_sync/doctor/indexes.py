"""Do a pull and a purge find their rows through an index? PostgreSQL's planner says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from baukit_sync.doctor.catalog import quoted
from baukit_sync.doctor.examination import Examination
from baukit_sync.doctor.synced import SyncedTable

# A small table is read faster without an index. What counts is whether one can be used at all.
_OFF = ("enable_seqscan", "enable_bitmapscan", "enable_sort")


def examine_indexes(exam: Examination, table: SyncedTable) -> None:
    """Report indexes that are invalid, and those that a pull or a purge misses."""
    relation = table.relation
    broken = [index for index in relation.indexes if not index.valid]
    for index in broken:
        exam.error(
            "index_invalid",
            f"{quoted(relation.schema)}.{quoted(index.name)}",
            "A concurrent build failed: every write pays for the index, and no query uses it.",
            f"REINDEX INDEX CONCURRENTLY {quoted(relation.schema)}.{quoted(index.name)};",
        )
    for role, reader in (("revision", "pull"), ("deleted_at", "purge")):
        wanted = table.index_columns(role)
        if any(index.columns[:2] == wanted for index in broken) or not set(wanted) <= set(relation.columns):
            continue
        exam.attempt(relation.label, f"explain a {reader}", partial(_explain, exam, table, role, reader))


def _explain(exam: Examination, table: SyncedTable, role: str, reader: str) -> None:
    if _is_used(exam, table, role):
        return
    wanted = table.index_columns(role)
    there = any(index.columns[:2] == wanted for index in table.relation.indexes)
    columns = ", ".join(wanted)
    if there:
        exam.warning(
            "index_unused",
            table.relation.label,
            f"There is an index on ({columns}), but a {reader} cannot use it: its condition, its collation "
            "or its operator class differs.",
            f"{table.create_index(role)} -- after DROP INDEX of the other",
        )
        return
    report = exam.error if role == "revision" else exam.warning
    report(
        "index_missing",
        table.relation.label,
        f"Without an index on ({columns}) each {reader} of one owner reads the rows of all owners.",
        table.create_index(role),
    )


def _is_used(exam: Examination, table: SyncedTable, role: str) -> bool:
    """Tell whether the planner finds one owner's range of the column through one index, in its order."""
    for setting in _OFF:
        exam.setting(setting, "off")
    key, column, source = table.name("owner_id"), table.name(role), table.relation.source
    if table.hops:
        key = _key(table)
    bounds = "> 0" if role == "revision" else "< now()"
    ((plan,),) = exam.rows(
        f"EXPLAIN (FORMAT JSON) SELECT {column} FROM {source}"
        f" WHERE {key} = (SELECT {key} FROM {source} LIMIT 1) AND {column} {bounds} ORDER BY {column}"
        " LIMIT 500"
    )
    document = json.loads(plan) if isinstance(plan, str) else plan
    scans = list(_scans(document[0]["Plan"]))
    names = table.index_columns(role)
    return bool(scans) and all(all(name in scan.get("Index Cond", "") for name in names) for scan in scans)


def _key(table: SyncedTable) -> str:
    return SyncedTable(table.relation, {"key": table.key or ""}, table.key, ()).name("key")


def _scans(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the scans of the table and its partitions, without that of the subquery for a key."""
    if plan.get("Parent Relationship") == "InitPlan":
        return
    if "Relation Name" in plan:
        yield plan
    for child in plan.get("Plans", []):
        yield from _scans(child)

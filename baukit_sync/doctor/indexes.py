"""Do a pull and a purge find their rows through an index? PostgreSQL's planner says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from baukit_sync.doctor.catalog import embedded, quoted
from baukit_sync.doctor.examination import Examination
from baukit_sync.doctor.synced import SyncedTable

# A small table is read faster without an index. What counts is whether one can be used at all.
_OFF = ("enable_seqscan", "enable_bitmapscan", "enable_sort", "enable_incremental_sort")


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
        if table.key is None or not table.is_comparable(role) or any(i.columns[:2] == wanted for i in broken):
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
    """Tell whether the planner finds one owner's range of the column through one index."""
    for setting in _OFF:
        exam.setting(setting, "off")
    key, column, source = embedded(table.key or ""), table.name(role), table.relation.source
    bounds = f"{column} > 0" if role == "revision" else f"{column} < now()"
    names = table.index_columns(role)
    chosen = _scans_of(
        exam,
        f"SELECT {column} FROM {source} WHERE {key} = (SELECT {key} FROM {source} LIMIT 1) AND {bounds}"
        f" ORDER BY {column} LIMIT 500",
    )
    if chosen and all(all(name in scan.get("Index Cond", "") for name in names) for scan in chosen):
        return True
    # Statistics may favour another index today. With sorts off, this order comes from no other.
    ordered = _scans_of(
        exam, f"SELECT {key} FROM {source} WHERE {column} IS NOT NULL ORDER BY {key}, {column}", "Sort"
    )
    return bool(ordered) and all("Index Name" in scan for scan in ordered)


def _scans_of(exam: Examination, statement: str, *unwanted: str) -> list[dict[str, Any]]:
    """Explain a statement; return its scans of tables, or none when the plan has an unwanted node."""
    ((plan,),) = exam.rows(f"EXPLAIN (FORMAT JSON) {statement}")
    document = json.loads(plan) if isinstance(plan, str) else plan
    nodes = list(_nodes(document[0]["Plan"]))
    return (
        []
        if any(node["Node Type"] in unwanted for node in nodes)
        else [n for n in nodes if "Relation Name" in n]
    )


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a plan, without those of the subquery for a key."""
    if plan.get("Parent Relationship") == "InitPlan":
        return
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)

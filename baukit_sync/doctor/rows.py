"""Checks of the rows against counters and horizons.

An owner costs a few index probes, whatever the size of the table: owners are found one after the other
through the index, and at most so many of them are looked at.
"""

from __future__ import annotations

from baukit_sync.doctor.catalog import embedded, plain
from baukit_sync.doctor.examination import Examination
from baukit_sync.doctor.kit import Kit
from baukit_sync.doctor.synced import SyncedTable

_MOST_ROWS = 100_000


def examine_rows(exam: Examination, table: SyncedTable, kit: Kit) -> None:
    """Compare a table's rows with their owners' counters."""
    label = table.relation.label
    if table.key is None or kit.revisions is None or not table.can_be_read:
        return
    comparable = kit.usable and table.owner_type == kit.owner_type
    if not comparable or not table.is_comparable("revision"):
        return
    exam.attempt(label, "compare revisions with counters", lambda: _compare(exam, table, kit))
    exam.attempt(label, "look for revisions that rows share", lambda: _shared(exam, table))
    if exam.retention is not None and table.is_comparable("deleted_at"):
        exam.attempt(label, "look for old tombstones", lambda: _overdue(exam, table))


def _keys(table: SyncedTable, condition: str = "true") -> str:
    """Return CTEs that find the distinct keys one by one, each by one probe of the index."""
    key, source = embedded(table.key or ""), table.relation.source
    return f"""
WITH RECURSIVE walk (key) AS (
    (SELECT {key} FROM {source} WHERE {key} IS NOT NULL AND {condition} ORDER BY {key} LIMIT 1)
    UNION ALL
    SELECT (SELECT {key} FROM {source} WHERE {key} > walk.key AND {condition} ORDER BY {key} LIMIT 1)
    FROM walk WHERE walk.key IS NOT NULL
), keys AS MATERIALIZED (SELECT key FROM walk WHERE key IS NOT NULL LIMIT :most)"""


def _compare(exam: Examination, table: SyncedTable, kit: Kit) -> None:
    assert kit.revisions is not None  # noqa: S101 - examine_rows has asked
    key, revision, source = embedded(table.key or ""), table.name("revision"), table.relation.source
    # One statement has one snapshot: a writer commits its rows and its counter together.
    ((looked, lost, missing, ahead, invalid),) = exam.rows(
        f"""{_keys(table)}, owners AS MATERIALIZED (SELECT key, {table.owner_of("key")} AS owner FROM keys)
SELECT count(*), count(*) FILTER (WHERE owners.owner IS NULL),
    count(*) FILTER (WHERE owners.owner IS NOT NULL AND counter.owner_id IS NULL),
    count(*) FILTER (WHERE newest.revision > counter.last_revision),
    count(*) FILTER (WHERE oldest.revision < 1)
FROM owners
LEFT JOIN {kit.revisions.source} AS counter ON counter.owner_id = owners.owner
LEFT JOIN LATERAL (SELECT {revision} AS revision FROM {source} AS r WHERE r.{key} = owners.key
    AND {revision} IS NOT NULL ORDER BY {revision} DESC LIMIT 1) AS newest ON true
LEFT JOIN LATERAL (SELECT {revision} AS revision FROM {source} AS r WHERE r.{key} = owners.key
    AND {revision} IS NOT NULL ORDER BY {revision} LIMIT 1) AS oldest ON true""",
        most=exam.most_owners,
    )
    label, at = table.relation.label, table.relation.at(table.names.get("revision", "revision"))
    if lost:
        exam.error(
            "parent_missing",
            table.relation.at(table.key or ""),
            f"The rows of {lost} parents that do not exist have no owner: they reach no client, and are "
            "never purged.",
            plain(f"DELETE FROM {label} AS r WHERE {table.owner_of(f'r.{key}')} IS NULL;")
            + " -- then add the foreign key",
        )
    if missing:
        owner = table.owner_of(f"r.{key}")
        exam.error(
            "counter_missing",
            label,
            f"{missing} owners of rows have no counter: their writes fail, and their tombstones are never "
            "purged.",
            plain(
                f"INSERT INTO {kit.revisions.label} (owner_id, last_revision)"
                f" SELECT {owner}, max(r.{revision})"
                f" FROM {label} AS r WHERE {owner} IS NOT NULL GROUP BY 1 ON CONFLICT DO NOTHING;"
                " -- with several synced tables run the doctor again afterwards"
            ),
        )
    if ahead:
        exam.error(
            "revision_above_counter",
            at,
            f"Rows of {ahead} owners carry revisions that their counters have not handed out: no pull "
            "returns them, and later writes get the same numbers.",
            plain(
                f"UPDATE {kit.revisions.label} AS c SET last_revision = m.revision"
                f" FROM (SELECT {table.owner_of(f'r.{key}')} AS owner, max(r.{revision}) AS revision"
                f" FROM {label} AS r GROUP BY 1) AS m"
                " WHERE c.owner_id = m.owner AND c.last_revision < m.revision;"
            ),
        )
    if invalid:
        exam.error(
            "revision_invalid",
            at,
            f"Rows of {invalid} owners or parents have a revision below 1: a cursor of 0 asks for what is "
            "above it, so no client gets them.",
            "Stamp them again with update_where(session, Model, {...}, Model.revision < 1), or as in "
            "how-to/make-a-table-syncable.",
        )
    if looked >= exam.most_owners:
        exam.info(
            "owners_sampled",
            label,
            f"Only the rows of the first {looked} owners or parents were compared with counters.",
            "examine(..., most_owners=1_000_000), at a quiet time",
        )


def _shared(exam: Examination, table: SyncedTable) -> None:
    key, revision = embedded(table.key or ""), table.name("revision")
    found = exam.rows(
        f"SELECT 1 FROM (SELECT {key} AS key, {revision} AS revision FROM {table.relation.source}"
        f" WHERE {revision} > 0 AND {key} IS NOT NULL ORDER BY {key}, {revision} LIMIT :most) AS r"
        " GROUP BY key, revision HAVING count(*) > 1 LIMIT 1",
        most=_MOST_ROWS,
    )
    if found:
        exam.info(
            "revision_shared",
            table.relation.at(table.names.get("revision", "revision")),
            "Rows of one owner share a revision. Pages keep them together, but a write that reuses a "
            "revision of another transaction is lost to clients that have passed it.",
            "next_revisions(session, owner_id, len(rows))  # one for each row",
        )


def _overdue(exam: Examination, table: SyncedTable) -> None:
    deleted_at, key, source = table.name("deleted_at"), embedded(table.key or ""), table.relation.source
    ((owners, oldest),) = exam.rows(
        f"""{_keys(table, f"{deleted_at} IS NOT NULL")}
SELECT count(*), CAST(floor(extract(epoch FROM now() - min(oldest.at)) / 86400) AS bigint) FROM keys
CROSS JOIN LATERAL (SELECT {deleted_at} AS at FROM {source} AS r WHERE r.{key} = keys.key
    AND {deleted_at} IS NOT NULL ORDER BY {deleted_at} LIMIT 1) AS oldest
WHERE oldest.at < now() - CAST(:retention AS interval)""",
        most=exam.most_owners,
        retention=exam.retention,
    )
    if owners:
        exam.warning(
            "tombstones_overdue",
            table.relation.label,
            f"Tombstones of {owners} owners or parents should be gone, the oldest after {oldest} days: the "
            "purge does not run, does not see them, or skips their owners.",
            "purge_tombstones(engine, PURGE_ORDER, slot.starts_at - RETENTION, limit=1_000)"
            "  # then read its report",
        )


def examine_horizons(exam: Examination, kit: Kit) -> None:
    """Compare horizons with counters."""
    if not kit.usable or kit.revisions is None or kit.horizons is None:
        return
    ((above,),) = exam.rows(
        f"SELECT count(*) FROM {kit.horizons.source} AS h JOIN {kit.revisions.source} AS c"
        " ON c.owner_id = h.owner_id WHERE h.horizon_revision > c.last_revision"
    )
    if above:
        exam.error(
            "horizon_above_counter",
            kit.horizons.at("horizon_revision"),
            f"The horizons of {above} owners are above their counters: a client that has rebuilt is told to "
            "rebuild again, for ever.",
            f"UPDATE {kit.revisions.label} AS c SET last_revision = h.horizon_revision FROM"
            f" {kit.horizons.label} AS h WHERE h.owner_id = c.owner_id"
            " AND h.horizon_revision > c.last_revision;",
        )

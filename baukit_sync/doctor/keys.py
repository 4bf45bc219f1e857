"""What writes to a synced table behind the kit's back: foreign keys, triggers, rules and ORM cascades."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Mapper, RelationshipDirection

from baukit_sync.doctor import catalog
from baukit_sync.doctor.catalog import quoted
from baukit_sync.doctor.examination import Examination
from baukit_sync.doctor.synced import SyncedTable

_TRIGGERS = """
SELECT t.tgname::text FROM pg_catalog.pg_trigger AS t JOIN pg_catalog.pg_proc AS p ON p.oid = t.tgfoid
WHERE t.tgrelid = :oid AND NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 3 = 3
AND p.prosrc ~* 'return\\s+null' AND COALESCE(obj_description(p.oid, 'pg_proc'), '') NOT LIKE 'baukit-sync%'
ORDER BY 1"""

_RULES = """
SELECT rulename::text FROM pg_catalog.pg_rewrite WHERE ev_class = :oid AND ev_type IN ('2', '3', '4')
AND ev_enabled <> 'D' ORDER BY 1"""


def examine_keys(exam: Examination, table: SyncedTable) -> None:
    """Report foreign keys by which another table's delete removes or rewrites synced rows."""
    for key in table.relation.foreign_keys:
        # With an owner go its rows, its counter and its clients: that is erasure.
        erases = key.columns == (table.names.get("owner_id", "owner_id"),) and key.on_delete == "CASCADE"
        if erases or key.on_delete not in {"CASCADE", "SET NULL", "SET DEFAULT"}:
            continue
        target = catalog.by_oid(exam, key.target)
        to = target.label if target else "the other table"
        columns = ", ".join(map(quoted, key.columns))
        targets = ", ".join(map(quoted, key.target_columns))
        fix = (
            f"ALTER TABLE {table.relation.label} DROP CONSTRAINT {quoted(key.name)},"
            f" ADD CONSTRAINT {quoted(key.name)} FOREIGN KEY ({columns}) REFERENCES {to} ({targets});"
        )
        where = f"{table.relation.label}.{quoted(key.name)}"
        if key.on_delete == "CASCADE":
            exam.error(
                "foreign_key_deletes_rows",
                where,
                f"Deleting a row of {to} deletes synced rows without tombstone or horizon: clients keep them "
                "for ever.",
                fix,
            )
        else:
            exam.error(
                "foreign_key_rewrites_rows",
                where,
                f"Deleting a row of {to} changes synced rows without a new revision: no client learns of it.",
                fix,
            )


def examine_triggers(exam: Examination, table: SyncedTable) -> None:
    """Report triggers that may drop a write, and rules that replace one; the kit's own are left out."""
    for (name,) in exam.rows(_TRIGGERS, oid=table.relation.oid):
        exam.info(
            "trigger_drops_writes",
            f"{table.relation.label}.{quoted(name)}",
            "This BEFORE trigger can return NULL: the write then does not happen, while its revision is "
            "spent and the client is told that all went well.",
            "Raise an error instead of RETURN NULL, or see that it returns NULL for no synced write.",
        )
    for (name,) in exam.rows(_RULES, oid=table.relation.oid):
        exam.warning(
            "rewrite_rule",
            f"{table.relation.label}.{quoted(name)}",
            "A rule replaces or multiplies statements: the kit's writes and purges do something else.",
            f"DROP RULE {quoted(name)} ON {table.relation.label};",
        )


def examine_relationships(exam: Examination, mappers: Sequence[Mapper[Any]]) -> None:
    """Report relationships that leave the deletion of synced children to the database."""
    for mapper in mappers:
        for relationship in mapper.relationships:
            if relationship.viewonly or relationship.direction is not RelationshipDirection.ONETOMANY:
                continue
            child = relationship.mapper
            synced = {"revision", "deleted_at"} <= set(child.column_attrs.keys())
            remote = {column.key for _, column in relationship.local_remote_pairs or ()}
            if synced and relationship.passive_deletes and remote != {"owner_id"}:
                exam.warning(
                    "relationship_passive_deletes",
                    f"{mapper.class_.__name__}.{relationship.key}",
                    "passive_deletes leaves children that are not loaded to the database: they get neither "
                    "tombstone nor revision.",
                    f"{relationship.key} = relationship(cascade='all, delete-orphan')",
                )

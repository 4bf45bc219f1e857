"""A synced table: its columns, and the way from its rows to their owner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from baukit_sync.doctor import catalog
from baukit_sync.doctor.catalog import Column, ForeignKey, Relation, embedded, quoted
from baukit_sync.doctor.examination import Examination

_FARTHEST = 5


@dataclass(frozen=True, slots=True)
class Hop:
    """One step from a child to the row that knows the owner: ``parent.key`` leads to ``parent.column``."""

    parent: Relation
    key: str
    column: str


@dataclass(frozen=True, slots=True)
class SyncedTable:
    """A synced table.

    Attributes:
        relation: What the catalogs say.
        names: What its columns are called, by the kit's names for them.
        key: The column that leads to the owner; ``None`` when there is none.
        hops: The parents between that column and the owner, nearest first.
    """

    relation: Relation
    names: Mapping[str, str]
    key: str | None
    hops: tuple[Hop, ...]

    def column(self, role: str) -> Column | None:
        """Return one of the five columns, or ``None``."""
        return self.relation.columns.get(self.names.get(role, role))

    def name(self, role: str) -> str:
        """Return the name of one of the five columns, for ``sa.text``."""
        return embedded(self.names.get(role, role))

    def owner_of(self, key: str) -> str:
        """Return an expression for the owner that a value of the key column leads to."""
        for hop in self.hops:
            column, parent_key = embedded(hop.column), embedded(hop.key)
            key = f"(SELECT {column} FROM {hop.parent.source} WHERE {parent_key} = {key})"
        return key

    @property
    def owner_type(self) -> str | None:
        """The type of the owner's id."""
        if self.key is None:
            return None
        holder, name = (
            (self.hops[-1].parent, self.hops[-1].column) if self.hops else (self.relation, self.key)
        )
        return holder.columns[name].type

    def is_comparable(self, role: str) -> bool:
        """Tell whether ``revision`` or ``deleted_at`` is there, with a type that statements can compare."""
        column = self.column(role)
        return column is not None and column.is_comparable

    @property
    def can_be_read(self) -> bool:
        """Whether the rows, and their parents', may be read."""
        return self.relation.readable and all(hop.parent.readable for hop in self.hops)

    @property
    def is_hidden(self) -> bool:
        """Whether row-level security may hide rows, or their parents."""
        return self.relation.rows_hidden or any(hop.parent.rows_hidden for hop in self.hops)

    def index_columns(self, role: str) -> tuple[str, str]:
        """Return the columns of the index that a pull (``revision``) or a purge (``deleted_at``) needs."""
        return (self.key or "", self.names.get(role, role))

    def create_index(self, role: str) -> str:
        """Return the statement that creates that index."""
        suffix, where = ("sync", "") if role == "revision" else ("tombstone", f" WHERE {role} IS NOT NULL")
        columns = ", ".join(quoted(name) for name in self.index_columns(role))
        name = f"{self.relation.name}_{suffix}_idx"
        # PostgreSQL would cut a longer one to another's; without a name it makes one up.
        name = f"{quoted(name)} " if len(name.encode()) <= 63 else ""
        how = "" if self.relation.partitioned else "CONCURRENTLY "
        return f"CREATE INDEX {how}{name}ON {self.relation.label} ({columns}){where};"


def synced_table(exam: Examination, relation: Relation, names: Mapping[str, str]) -> SyncedTable:
    """Find out how a table's rows lead to their owner: by their own column, or through a parent."""
    owner = names.get("owner_id", "owner_id")
    if owner in relation.columns:
        return SyncedTable(relation, names, owner, ())
    hops = _way_to_owner(exam, relation, owner, _FARTHEST)
    return SyncedTable(relation, names, hops[0][0] if hops else None, tuple(hop for _, hop in hops))


def _way_to_owner(exam: Examination, relation: Relation, owner: str, farthest: int) -> list[tuple[str, Hop]]:
    candidates = [key for key in relation.foreign_keys if len(key.columns) == 1]
    # The key that has the index is the one that pulls go through.
    for key in sorted(candidates, key=lambda key: not _leads_index(relation, key)):
        parent = catalog.by_oid(exam, key.target) if key.target != relation.oid else None
        if parent is None:
            continue
        if owner in parent.columns:
            return [(key.columns[0], Hop(parent, key.target_columns[0], owner))]
        if farthest > 1 and (rest := _way_to_owner(exam, parent, owner, farthest - 1)):
            return [(key.columns[0], Hop(parent, key.target_columns[0], rest[0][0])), *rest]
    return []


def _leads_index(relation: Relation, key: ForeignKey) -> bool:
    return any(index.columns[:2] == (key.columns[0], "revision") for index in relation.indexes)

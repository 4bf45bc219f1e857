"""What PostgreSQL's catalogs say about a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy.dialects import postgresql

from baukit_sync.doctor.examination import Examination

# A driver's own paramstyle would double every percent sign in a name. SQLAlchemy leaves the call untyped.
_preparer = postgresql.dialect(paramstyle="named").identifier_preparer  # type: ignore[no-untyped-call]


def quoted(name: str) -> str:
    """Quote a name where it needs it."""
    return _preparer.quote(name)


def embedded(name: str) -> str:
    """Quote a name for ``sa.text``, which would take an unescaped colon for a parameter."""
    return _preparer.quote_identifier(name).replace(":", "\\:")


def plain(statement: str) -> str:
    """Return a statement made of embedded names as people paste it."""
    return statement.replace("\\:", ":")


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its type in PostgreSQL's words, and whether PostgreSQL fills it in."""

    name: str
    type: str
    nullable: bool
    default: str | None

    @property
    def is_comparable(self) -> bool:
        """Whether it can be compared with a revision, or else with an instant."""
        return self.type in {"bigint", "integer", "smallint", "numeric", "date"} or self.type.startswith(
            "timestamp"
        )


@dataclass(frozen=True, slots=True)
class Index:
    """An index; an expression among its columns has the name ``None``."""

    name: str
    columns: tuple[str | None, ...]
    valid: bool
    unique: bool
    primary: bool
    predicate: str | None
    is_constraint: bool
    is_referenced: bool


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A foreign key of a table; ``on_delete`` is ``CASCADE``, ``SET NULL`` and so on."""

    name: str
    columns: tuple[str, ...]
    target: int
    target_columns: tuple[str, ...]
    on_delete: str


@dataclass(frozen=True, slots=True)
class Relation:
    """A table and what belongs to it."""

    oid: int
    schema: str
    name: str
    partitioned: bool
    readable: bool
    rows_hidden: bool
    options: tuple[str, ...]
    columns: Mapping[str, Column]
    indexes: tuple[Index, ...]
    foreign_keys: tuple[ForeignKey, ...]
    checks: tuple[str, ...]

    @property
    def label(self) -> str:
        """Its name for people, and for SQL to paste."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    @property
    def source(self) -> str:
        """Its name for ``sa.text``."""
        return f"{embedded(self.schema)}.{embedded(self.name)}"

    @property
    def primary_key(self) -> tuple[str | None, ...]:
        """The columns of its primary key."""
        return next((index.columns for index in self.indexes if index.primary), ())

    def at(self, column: str) -> str:
        """Name one of its columns for people."""
        return f"{self.label}.{quoted(column)}"


_FIND = """
SELECT c.oid, n.nspname::text, c.relname::text, c.relkind = 'p', c.reloptions,
       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'),
       row_security_active(c.oid)
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND """

_COLUMNS = """
SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), NOT a.attnotnull,
       CASE WHEN a.attidentity <> '' THEN 'identity' ELSE pg_get_expr(d.adbin, d.adrelid) END
FROM pg_catalog.pg_attribute AS a
LEFT JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = :oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""

_INDEXES = """
SELECT c.relname::text,
       ARRAY(SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
             LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
             WHERE k.place <= i.indnkeyatts ORDER BY k.place),
       i.indisvalid AND i.indisready, i.indisunique, i.indisprimary, pg_get_expr(i.indpred, i.indrelid),
       EXISTS (SELECT FROM pg_catalog.pg_constraint WHERE conindid = c.oid AND contype IN ('u', 'x')),
       EXISTS (SELECT FROM pg_catalog.pg_constraint WHERE conindid = c.oid AND contype = 'f')
FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
WHERE i.indrelid = :oid ORDER BY c.relname"""

_FOREIGN_KEYS = """
SELECT k.conname::text,
       ARRAY(SELECT a.attname::text FROM unnest(k.conkey) WITH ORDINALITY AS u (attnum, place)
             JOIN pg_catalog.pg_attribute AS a ON a.attrelid = k.conrelid AND a.attnum = u.attnum
             ORDER BY place),
       k.confrelid,
       ARRAY(SELECT a.attname::text FROM unnest(k.confkey) WITH ORDINALITY AS u (attnum, place)
             JOIN pg_catalog.pg_attribute AS a ON a.attrelid = k.confrelid AND a.attnum = u.attnum
             ORDER BY place),
       CASE k.confdeltype WHEN 'c' THEN 'CASCADE' WHEN 'n' THEN 'SET NULL' WHEN 'd' THEN 'SET DEFAULT'
            WHEN 'r' THEN 'RESTRICT' ELSE 'NO ACTION' END
FROM pg_catalog.pg_constraint AS k WHERE k.conrelid = :oid AND k.contype = 'f' AND k.conparentid = 0
ORDER BY k.conname"""

_CHECKS = """
SELECT pg_get_constraintdef(oid) FROM pg_catalog.pg_constraint
WHERE conrelid = :oid AND contype = 'c' AND convalidated"""


def find(exam: Examination, name: str, schema: str | None) -> Relation | None:
    """Return a table by its schema, or without one the table that an unqualified name means."""
    if schema is None:
        return _one(exam, "c.relname = :name AND pg_table_is_visible(c.oid)", name=name)
    return _one(exam, "c.relname = :name AND n.nspname = :schema", name=name, schema=schema)


def by_oid(exam: Examination, oid: int) -> Relation | None:
    """Return the table with an oid."""
    return _one(exam, "c.oid = :oid", oid=oid)


def _one(exam: Examination, condition: str, **parameters: object) -> Relation | None:
    found = exam.rows(_FIND + condition, **parameters)
    if not found:
        return None
    oid, schema, name, partitioned, options, readable, rows_hidden = found[0]
    return Relation(
        oid=oid,
        schema=schema,
        name=name,
        partitioned=partitioned,
        readable=readable,
        rows_hidden=rows_hidden,
        options=tuple(options or ()),
        columns={row[0]: Column(*row) for row in exam.rows(_COLUMNS, oid=oid)},
        indexes=tuple(Index(row[0], tuple(row[1]), *row[2:]) for row in exam.rows(_INDEXES, oid=oid)),
        foreign_keys=tuple(
            ForeignKey(row[0], tuple(row[1]), row[2], tuple(row[3]), row[4])
            for row in exam.rows(_FOREIGN_KEYS, oid=oid)
        ),
        checks=tuple(row[0] for row in exam.rows(_CHECKS, oid=oid)),
    )


def with_all_columns(exam: Examination, names: list[str]) -> list[tuple[str, str]]:
    """Return the schema and name of every table that has all of these columns, partitions left out."""
    rows = exam.rows(
        "SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_class AS c"
        " JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'"
        " AND n.nspname NOT IN ('pg_catalog', 'information_schema')"
        " AND CAST(:names AS text[]) <@ ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute AS a"
        " WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) ORDER BY 1, 2",
        names=names,
    )
    return [(schema, name) for schema, name in rows]


def schemas_with(exam: Examination, table: str, *, visible: bool = False) -> list[str]:
    """Return the schemas with a table of this name; ``visible`` for those on the search path, in order."""
    path = " AND n.nspname = ANY (current_schemas(false))" if visible else ""
    rows = exam.rows(
        "SELECT n.nspname::text FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n"
        f" ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p', 'v') AND c.relname = :name{path}"
        " ORDER BY array_position(current_schemas(false), n.nspname), 1",
        name=table,
    )
    return [schema for (schema,) in rows]

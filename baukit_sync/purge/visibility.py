"""Row-level security: would it hide rows from the role that purges?"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ClauseElement, Connection, Executable
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from baukit_sync.errors import RowSecurityError
from baukit_sync.purge.table import TombstoneTable
from baukit_sync.schema import counters

# A policy that is not plainly true may hide rows, and what is hidden would count as gone.
_BLINDED = sa.text(
    """\
SELECT relation
FROM unnest(CAST(:relations AS text[])) AS relation
WHERE row_security_active(to_regclass(relation))
  AND EXISTS (
    SELECT FROM unnest(ARRAY['r', 'w', 'd']) AS command
    WHERE NOT EXISTS (
        SELECT FROM pg_policy AS policy
        WHERE polrelid = to_regclass(relation) AND polpermissive AND polcmd IN (command, '*')
          AND (0 = ANY(polroles) OR EXISTS (SELECT FROM unnest(polroles) AS r WHERE pg_has_role(r, 'USAGE')))
          AND pg_get_expr(polqual, polrelid) = 'true')
      OR EXISTS (
        SELECT FROM pg_policy AS policy
        WHERE polrelid = to_regclass(relation) AND NOT polpermissive AND polcmd IN (command, '*')
          AND (0 = ANY(polroles) OR EXISTS (SELECT FROM unnest(polroles) AS r WHERE pg_has_role(r, 'USAGE')))
          AND pg_get_expr(polqual, polrelid) IS DISTINCT FROM 'true'))"""
).bindparams(sa.bindparam("relations", type_=postgresql.ARRAY(sa.Text)))


def refuse_blinded(connection: Connection, tables: Iterable[TombstoneTable], bounds: dict[str, Any]) -> None:
    """Refuse to purge what the connection's role may not see.

    Args:
        connection: The purge's own.
        tables: What it purges; the tables of caller-owned SQL are found with EXPLAIN.
        bounds: The parameters of a selector.

    Raises:
        RowSecurityError: A policy of one of the tables, or of the counters, may hide rows.
    """
    relations = {_name(connection, counters): counters.name}
    for table in tables:
        if table.known is None:
            relations.update(_explained(connection, table, bounds))
        else:
            shape = table.known.shape
            others = [pairs[0][1].table for pairs in shape.path]
            others += [pairs[0][0].table for pairs in (*shape.children, *shape.parts)]
            relations.update((_name(connection, each), each.name) for each in (shape.table, *others))
    blinded = connection.scalars(_BLINDED, {"relations": list(relations)}).first()
    if blinded is not None:
        raise RowSecurityError(relations[blinded])


def _name(connection: Connection, table: sa.Table) -> str:
    """Return a table's quoted name, in the schema that this connection has it in."""
    options: Any = connection.get_execution_options()
    schemas: Any = options.get("schema_translate_map") or {}
    schema: str | None = schemas.get(table.schema, table.schema)
    quote = connection.dialect.identifier_preparer.quote_identifier
    return f"{quote(schema)}.{quote(table.name)}" if schema else quote(table.name)


class _Explain(Executable, ClauseElement):
    """A statement's plan, as JSON."""

    inherit_cache = False

    def __init__(self, statement: Any) -> None:
        self.statement = statement


@compiles(_Explain)
def _explain(element: _Explain, compiler: SQLCompiler, **options: Any) -> str:
    return f"EXPLAIN (VERBOSE, FORMAT JSON) {compiler.process(element.statement, **options)}"


def _explained(connection: Connection, table: TombstoneTable, bounds: dict[str, Any]) -> dict[str, str]:
    """Find the tables of a caller-owned selector in its plan."""
    statement = sa.text(table.select) if isinstance(table.select, str) else table.select
    plan = connection.scalar(_Explain(statement), bounds)
    quote = connection.dialect.identifier_preparer.quote_identifier
    return {
        f"{quote(node['Schema'])}.{quote(node['Relation Name'])}": node["Relation Name"]
        for node in _nodes(json.loads(plan) if isinstance(plan, str) else plan)
    }


def _nodes(plan: Any) -> Iterator[dict[str, Any]]:
    """Walk a plan's nodes that read a table."""
    for name, inner in plan.items() if hasattr(plan, "items") else enumerate(plan):
        if name == "Relation Name":
            yield plan
        if not isinstance(inner, str | int | float | None):
            yield from _nodes(inner)

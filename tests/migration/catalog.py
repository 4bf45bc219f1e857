"""Two looks at a database: Alembic's comparison with models, and PostgreSQL's catalog, which tells more."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

_FACTS = sa.text("""
SELECT concat_ws(' ', 'relation', relkind, relname, reloptions) AS fact
FROM pg_class WHERE relnamespace = :schema
UNION ALL
SELECT concat_ws(' ', 'column', relname, attnum, attname, format_type(atttypid, atttypmod), attidentity,
                 CASE WHEN attnotnull THEN 'NOT NULL' END, 'DEFAULT ' || pg_get_expr(adbin, adrelid))
FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped
LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE relnamespace = :schema AND relkind IN ('r', 'p')
UNION ALL
SELECT concat_ws(' ', 'constraint', relname, conname, pg_get_constraintdef(pg_constraint.oid))
FROM pg_constraint JOIN pg_class ON conrelid = pg_class.oid WHERE relnamespace = :schema
UNION ALL
SELECT concat_ws(' ', 'index', pg_get_indexdef(indexrelid), CASE WHEN NOT indisvalid THEN 'INVALID' END)
FROM pg_index JOIN pg_class ON indexrelid = pg_class.oid WHERE relnamespace = :schema
UNION ALL
SELECT concat_ws(' ', 'function', proname, md5(prosrc), obj_description(oid, 'pg_proc'))
FROM pg_proc WHERE pronamespace = :schema
UNION ALL
SELECT concat_ws(' ', 'trigger', tgenabled, pg_get_triggerdef(pg_trigger.oid))
FROM pg_trigger JOIN pg_class ON tgrelid = pg_class.oid WHERE relnamespace = :schema AND NOT tgisinternal
""")


def differences(
    connection: sa.Connection, metadata: sa.MetaData, *, include_schemas: bool = False
) -> list[Any]:
    """Return what autogenerate would change in a database to make it what ``metadata`` says."""
    options = {"compare_type": True, "compare_server_default": True, "include_schemas": include_schemas}
    return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)


def facts(connection: sa.Connection, schema: str = "public") -> list[str]:
    """Return one line per relation, column, constraint, index, function and trigger of a schema, sorted."""
    of_schema = connection.scalar(
        sa.text("SELECT oid FROM pg_namespace WHERE nspname = :schema"), {"schema": schema}
    )
    lines = connection.scalars(_FACTS, {"schema": of_schema})
    return sorted(line for line in lines if "alembic_version" not in line)

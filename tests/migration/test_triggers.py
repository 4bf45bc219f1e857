"""The triggers' statements: order, repetition, downgrades, offline, names."""

from __future__ import annotations

import io
from uuid import uuid4

import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations

from baukit_sync import migrations as sync
from baukit_sync import next_revision
from tests.migration.catalog import facts


def create_product(op: Operations, *, schema: str | None = None, notes: str = "notes") -> None:
    """Create the kit's tables and two synced ones."""
    sync.create_revisions(op, schema=schema)
    sync.create_purge_horizons(op, schema=schema)
    op.create_table(notes, *sync.columns(), schema=schema)
    op.create_table(
        "items",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("note_id", sa.Uuid),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.func.now()),
        sa.Column("deleted_at", sa.DateTime(timezone=True)),
        sa.Column("revision", sa.BigInteger),
        schema=schema,
    )


def create_triggers(op: Operations, *, schema: str | None = None, notes: str = "notes") -> None:
    """Create every trigger there is."""
    path = f"{schema}.{notes}.id" if schema else f"{notes}.id"
    sync.create_revisions_trigger(op, schema=schema)
    for table, owner, via in ((notes, "owner_id", []), ("items", "note_id", [(path, "owner_id")])):
        sync.create_guard_trigger(op, table, owner=owner, via=via, schema=schema)
        sync.create_stamp_trigger(op, table, owner=owner, via=via, deletes_by=["id"], schema=schema)


def drop_triggers(op: Operations, *, schema: str | None = None, notes: str = "notes") -> None:
    """Drop them."""
    for table in ("items", notes):
        sync.drop_stamp_trigger(op, table, schema=schema)
        sync.drop_guard_trigger(op, table, schema=schema)
    sync.drop_revisions_trigger(op, schema=schema)


def test_a_second_run_changes_nothing(connection: sa.Connection, op: Operations) -> None:
    """A trigger that exists is replaced by itself."""
    create_product(op)
    create_triggers(op)
    first = facts(connection)
    create_triggers(op)

    assert first == facts(connection)
    # The counters' trigger; of each table three of the guard, two of the stamp; and the functions.
    assert 1 + 2 * 5 == sum(fact.startswith("trigger") for fact in first)
    assert 1 + 2 * 2 == sum(fact.startswith("function") for fact in first)


def test_a_downgrade_leaves_nothing_behind(connection: sa.Connection, op: Operations) -> None:
    """Upgrade, downgrade, upgrade; a second downgrade is harmless."""
    create_product(op)
    before = facts(connection)
    create_triggers(op)
    with_triggers = facts(connection)
    drop_triggers(op)
    after = facts(connection)
    drop_triggers(op)
    create_triggers(op)

    assert before == after
    assert with_triggers == facts(connection)


def test_a_stamp_may_stop_to_turn_deletes(connection: sa.Connection, op: Operations) -> None:
    """The same function without ``deletes_by`` takes that trigger away."""
    create_product(op)
    sync.create_stamp_trigger(op, "notes")
    without = facts(connection)
    sync.create_stamp_trigger(op, "notes", deletes_by=["id"])
    turned = facts(connection)
    sync.create_stamp_trigger(op, "notes")

    assert without == facts(connection)
    assert without != turned


@pytest.mark.parametrize("schema", [None, "app"])
def test_offline_is_the_same_as_online(schema: str | None, connection: sa.Connection, op: Operations) -> None:
    """The script that ``--sql`` writes creates the same functions and triggers."""
    connection.execute(sa.text("CREATE SCHEMA app"))
    create_product(op, schema=schema)
    create_triggers(op, schema=schema)
    online = facts(connection, schema or "public")
    drop_triggers(op, schema=schema)
    script = io.StringIO()
    offline = MigrationContext.configure(
        dialect_name="postgresql",
        dialect_opts={"paramstyle": "named"},
        opts={"as_sql": True, "output_buffer": script},
    )
    create_triggers(Operations(offline), schema=schema)
    connection.connection.driver_connection.execute(script.getvalue())  # type: ignore[union-attr]

    assert online == facts(connection, schema or "public")


NAMES = ["order", 'My "notes"', "100%", ":id", "it's", "$sync$", "{braces}", "ümlaut" * 7]


@pytest.mark.parametrize("schema", [None, 'My "schema" %:'])
@pytest.mark.parametrize("table", NAMES)
def test_a_table_may_have_any_name(
    table: str, schema: str | None, connection: sa.Connection, op: Operations
) -> None:
    """The names stay names in functions, triggers and comments; the triggers work."""
    if schema:
        connection.execute(sa.schema.CreateSchema(schema))
    create_product(op, schema=schema, notes=table)
    create_triggers(op, schema=schema, notes=table)
    quoted = '"My ""schema"" %:"' if schema else "public"
    connection.execute(sa.text("SELECT set_config('search_path', :path, true)"), {"path": quoted})
    owner = uuid4()
    connection.execute(sa.text("INSERT INTO sync_revisions VALUES (:owner)"), {"owner": owner})
    notes = sa.Table(table, sa.MetaData(), autoload_with=connection, schema=schema)
    items = sa.Table("items", sa.MetaData(), autoload_with=connection, schema=schema)
    note_id, item_id = uuid4(), uuid4()
    connection.execute(sa.insert(notes).values(id=note_id, owner_id=owner))
    connection.execute(sa.insert(items).values(id=item_id, note_id=note_id))
    connection.execute(sa.update(items).values(revision=next_revision(connection, owner)))
    connection.execute(sa.delete(notes))

    rows = connection.execute(sa.select(notes.c.revision, notes.c.deleted_at.is_not(None))).all()
    # The stamp had reserved 2 and 3.
    assert [(3, True)] == rows
    assert [4] == connection.scalars(sa.select(items.c.revision)).all()
    with pytest.raises(sa.exc.IntegrityError, match="was not allocated"):
        connection.execute(sa.update(items).values(revision=99))


def test_the_kit_s_tables_may_be_in_another_schema(connection: sa.Connection, op: Operations) -> None:
    """``revisions_schema`` says where."""
    connection.execute(sa.text("CREATE SCHEMA kit"))
    sync.create_revisions(op, schema="kit")
    sync.create_purge_horizons(op, schema="kit")
    sync.create_revisions_trigger(op, schema="kit")
    op.create_table("notes", *sync.columns())
    sync.create_guard_trigger(op, "notes", schema="public", revisions_schema="kit")
    sync.create_stamp_trigger(op, "notes", schema="public", revisions_schema="kit", deletes_by=["id"])
    owner = uuid4()
    connection.execute(sa.text("INSERT INTO kit.sync_revisions VALUES (:owner)"), {"owner": owner})
    connection.execute(
        sa.text("INSERT INTO notes (id, owner_id) VALUES (gen_random_uuid(), :owner)"), {"owner": owner}
    )
    connection.execute(sa.text("DELETE FROM notes"))

    rows = connection.execute(sa.text("SELECT revision, deleted_at IS NOT NULL FROM notes")).all()
    assert [(2, True)] == rows

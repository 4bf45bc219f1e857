"""The one-shot upgrade of a ``sync_revisions`` that still has ``user_id``, and its downgrade."""

from __future__ import annotations

import io
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations

from baukit_sync import migrations as sync
from tests.migration.catalog import facts

NAME = "sync_revisions_user_id_fkey"
ACTIONS = ["", "CASCADE", "RESTRICT", "SET NULL", "SET DEFAULT", "CASCADE DEFERRABLE INITIALLY DEFERRED"]
ALICE = UUID(int=1)


@pytest.fixture
def connection(connection: sa.Connection) -> sa.Connection:
    """A connection to a database with one user and no counters yet."""
    connection.execute(sa.text("CREATE TABLE users (id uuid PRIMARY KEY)"))
    connection.execute(sa.text("INSERT INTO users VALUES (:id)"), {"id": ALICE})
    return connection


def create_old_shape(connection: sa.Connection, *, action: str = "CASCADE", name: str = NAME) -> None:
    """Create the table as it was, with Alice's counter at 7."""
    on_delete = f"ON DELETE {action}" if action else ""
    connection.execute(
        sa.text(f"""
        CREATE TABLE sync_revisions (
            user_id uuid PRIMARY KEY CONSTRAINT "{name}" REFERENCES users (id) {on_delete},
            last_revision bigint NOT NULL DEFAULT 0
        )""")
    )
    connection.execute(sa.text("INSERT INTO sync_revisions VALUES (:id, 7)"), {"id": ALICE})
    connection.commit()


def foreign_key(connection: sa.Connection) -> tuple[str, str]:
    """Return the name and the definition of the table's foreign key."""
    query = "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'f'"
    name, definition = connection.execute(sa.text(query)).one()
    return name, definition


def test_the_upgraded_table_is_what_create_revisions_makes(connection: sa.Connection, op: Operations) -> None:
    """After the upgrade nothing tells the table from a new one."""
    create_old_shape(connection)
    sync.rename_user_id_to_owner_id(op)
    upgraded = facts(connection)
    sync.drop_revisions(op)
    sync.create_revisions(op, owner="users.id")

    assert facts(connection) == upgraded


def test_every_counter_keeps_its_value(connection: sa.Connection, op: Operations) -> None:
    """Only names change."""
    create_old_shape(connection)
    sync.rename_user_id_to_owner_id(op)
    rows = connection.execute(sa.text("SELECT owner_id, last_revision FROM sync_revisions")).all()

    assert [(ALICE, 7)] == rows


@pytest.mark.parametrize("action", ACTIONS)
def test_the_foreign_key_keeps_its_delete_action(
    connection: sa.Connection, op: Operations, action: str
) -> None:
    """Its name changes, what it does stays."""
    create_old_shape(connection, action=action)
    _, before = foreign_key(connection)
    sync.rename_user_id_to_owner_id(op)

    assert ("sync_revisions_owner_id_fkey", before.replace("user_id", "owner_id")) == foreign_key(connection)


def test_a_foreign_key_of_another_name_keeps_it(connection: sa.Connection, op: Operations) -> None:
    """A product that named the foreign key itself finds it again."""
    create_old_shape(connection, name="fk_Counters")
    sync.rename_user_id_to_owner_id(op)

    definition = "FOREIGN KEY (owner_id) REFERENCES users(id) ON DELETE CASCADE"
    assert ("fk_Counters", definition) == foreign_key(connection)


def test_a_table_without_a_foreign_key_is_upgraded(connection: sa.Connection, op: Operations) -> None:
    """The product need not have had one."""
    create_old_shape(connection)
    connection.execute(sa.text(f"ALTER TABLE sync_revisions DROP CONSTRAINT {NAME}"))
    sync.rename_user_id_to_owner_id(op)
    upgraded = facts(connection)
    sync.drop_revisions(op)
    sync.create_revisions(op)

    assert facts(connection) == upgraded


def test_an_upgrade_of_the_present_shape_changes_nothing(connection: sa.Connection, op: Operations) -> None:
    """So it may run on databases that were created later, and twice."""
    sync.create_revisions(op, owner="users.id")
    created = facts(connection)
    sync.rename_user_id_to_owner_id(op)

    assert created == facts(connection)


def test_an_upgrade_that_was_half_done_by_hand_is_completed(
    connection: sa.Connection, op: Operations
) -> None:
    """Each step looks only at itself."""
    create_old_shape(connection)
    connection.execute(sa.text("ALTER TABLE sync_revisions RENAME COLUMN user_id TO owner_id"))
    sync.rename_user_id_to_owner_id(op)
    upgraded = facts(connection)
    sync.drop_revisions(op)
    sync.create_revisions(op, owner="users.id")

    assert facts(connection) == upgraded


def test_the_upgraded_table_refuses_a_negative_counter(connection: sa.Connection, op: Operations) -> None:
    """The check is there and holds."""
    create_old_shape(connection)
    sync.rename_user_id_to_owner_id(op)

    with pytest.raises(sa.exc.IntegrityError, match="sync_revisions_last_revision_check"):
        connection.execute(sa.text("UPDATE sync_revisions SET last_revision = -1"))


def test_a_counter_that_is_negative_already_stops_the_upgrade(
    connection: sa.Connection, op: Operations
) -> None:
    """It is not passed over, and the migration's transaction takes everything back."""
    create_old_shape(connection)
    connection.execute(sa.text("UPDATE sync_revisions SET last_revision = -1"))
    connection.commit()
    before = facts(connection)
    with pytest.raises(sa.exc.IntegrityError, match="sync_revisions_last_revision_check"):
        sync.rename_user_id_to_owner_id(op)
    connection.rollback()

    assert before == facts(connection)


def test_a_table_that_has_both_columns_stops_the_upgrade(connection: sa.Connection, op: Operations) -> None:
    """Which of the two is the owner is not for the kit to guess."""
    create_old_shape(connection)
    connection.execute(sa.text("ALTER TABLE sync_revisions ADD COLUMN owner_id uuid"))

    with pytest.raises(sa.exc.ProgrammingError, match="already exists"):
        sync.rename_user_id_to_owner_id(op)


def test_an_upgrade_of_nothing_is_refused(op: Operations) -> None:
    """A missing table is a mistake in the search path or the history."""
    with pytest.raises(sa.exc.ProgrammingError, match='"sync_revisions" does not exist'):
        sync.rename_user_id_to_owner_id(op)


def test_horizons_still_belong_to_their_counters(connection: sa.Connection, op: Operations) -> None:
    """A foreign key that points at the renamed column follows it."""
    create_old_shape(connection)
    connection.execute(
        sa.text("""
        CREATE TABLE sync_purge_horizons (
            owner_id uuid PRIMARY KEY REFERENCES sync_revisions (user_id) ON DELETE CASCADE,
            horizon_revision bigint NOT NULL CHECK (horizon_revision > 0),
            updated_at timestamptz NOT NULL DEFAULT now()
        )""")
    )
    upgraded_by_hand = [
        fact.replace("user_id", "owner_id") for fact in facts(connection) if "horizon" in fact
    ]
    sync.rename_user_id_to_owner_id(op)

    assert upgraded_by_hand == [fact for fact in facts(connection) if "horizon" in fact]


@pytest.mark.parametrize("action", ACTIONS)
def test_a_downgrade_restores_the_old_shape(connection: sa.Connection, op: Operations, action: str) -> None:
    """Down after up is where it began, with the data."""
    create_old_shape(connection, action=action)
    before = facts(connection)
    sync.rename_user_id_to_owner_id(op)
    sync.rename_owner_id_to_user_id(op)
    rows = connection.execute(sa.text("SELECT user_id, last_revision FROM sync_revisions")).all()

    assert before == facts(connection)
    assert [(ALICE, 7)] == rows


def test_a_second_downgrade_changes_nothing(connection: sa.Connection, op: Operations) -> None:
    """The old shape is left as it is."""
    create_old_shape(connection)
    before = facts(connection)
    sync.rename_owner_id_to_user_id(op)

    assert before == facts(connection)


def test_a_downgraded_table_can_be_upgraded_again(connection: sa.Connection, op: Operations) -> None:
    """Up, down and up again ends where up ends."""
    create_old_shape(connection)
    sync.rename_user_id_to_owner_id(op)
    upgraded = facts(connection)
    sync.rename_owner_id_to_user_id(op)
    sync.rename_user_id_to_owner_id(op)

    assert upgraded == facts(connection)


@pytest.mark.parametrize("schema", ["app", "a:b%s", '"', "$sync$", "$sync_$ $sync$"])
def test_a_table_in_a_schema_is_upgraded(connection: sa.Connection, op: Operations, schema: str) -> None:
    """Also when the schema's name looks like a part of the statement."""
    op.execute(sa.schema.CreateSchema(schema))
    sync.create_revisions(op, schema=schema)
    created = facts(connection, schema)
    sync.rename_owner_id_to_user_id(op, schema=schema)
    old = facts(connection, schema)
    sync.rename_user_id_to_owner_id(op, schema=schema)

    assert any("user_id" in fact for fact in old)
    assert created == facts(connection, schema)


def test_a_script_upgrades_too(connection: sa.Connection, op: Operations) -> None:
    """With ``--sql`` the statements come out as the database needs them."""
    create_old_shape(connection)
    script = io.StringIO()
    offline = {"as_sql": True, "output_buffer": script}
    sync.rename_user_id_to_owner_id(
        Operations(
            MigrationContext.configure(
                dialect_name="postgresql", dialect_opts={"paramstyle": "named"}, opts=offline
            )
        )
    )
    connection.connection.cursor().execute(script.getvalue().encode())
    upgraded = facts(connection)
    sync.drop_revisions(op)
    sync.create_revisions(op, owner="users.id")

    assert facts(connection) == upgraded


def test_an_owner_without_counter_stays_without(connection: sa.Connection, op: Operations) -> None:
    """The upgrade adds no rows."""
    create_old_shape(connection)
    connection.execute(sa.text("INSERT INTO users VALUES (:id)"), {"id": uuid4()})
    sync.rename_user_id_to_owner_id(op)

    assert 1 == connection.scalar(sa.text("SELECT count(*) FROM sync_revisions"))

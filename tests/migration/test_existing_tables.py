"""Tables that have rows already: their columns, NOT NULL, natural keys, and what autogenerate sees."""

from __future__ import annotations

import io
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations

from baukit_sync import InvalidArgumentError, live_unique_index
from baukit_sync import migrations as sync
from tests.migration.catalog import differences, facts
from tests.migration.test_concurrent_indexes import migrate
from tests.migration.test_products import PRODUCTS, Product, operations

ROW = "INSERT INTO notes (owner_id, revision) VALUES (gen_random_uuid(), 1)"


def grow(op: Operations, product: Product) -> None:
    """Make a product's table syncable that was there before."""
    sync.add_columns(op, product.notes, owner_type=product.owner_type, schema=product.schema)
    sync.create_indexes_concurrently(op, product.notes, schema=product.schema)
    sync.require_columns(op, product.notes, schema=product.schema)


def before(connection: sa.Connection, product: Product) -> None:
    """Create everything but the columns and indexes of the table."""
    op = operations(connection, product.metadata())
    product.upgrade(op)
    sync.drop_indexes(op, product.notes, schema=product.schema)
    op.drop_table(product.notes, schema=product.schema)
    op.create_table(product.notes, sa.Column("id", sa.Uuid, primary_key=True), schema=product.schema)


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS.keys())
def test_a_table_that_grew_is_the_one_that_the_models_make(engine: sa.Engine, product: Product) -> None:
    """The catalog says the same about both."""
    with engine.connect() as connection:
        product.create_all(connection)
        created = product.facts(connection)
        connection.rollback()
        before(connection, product)
        connection.commit()
    migrate(engine, lambda op: grow(op, product))
    with engine.connect() as connection:
        grown = product.facts(connection)

    assert created == grown


def test_growing_and_going_back_leaves_nothing(engine: sa.Engine) -> None:
    """Upgrade, downgrade, upgrade: but the owner's column stays."""
    product = Product()
    with engine.begin() as connection:
        before(connection, product)
        bare = facts(connection)

    def shrink(op: Operations) -> None:
        sync.release_columns(op, "notes")
        sync.drop_indexes_concurrently(op, "notes")
        sync.drop_columns(op, "notes")

    migrate(engine, lambda op: grow(op, product))
    migrate(engine, shrink)
    with engine.begin() as connection:
        shrunk = [fact for fact in facts(connection) if "owner_id" not in fact or "notes" not in fact]
    migrate(engine, lambda op: grow(op, product))
    with engine.connect() as connection:
        again = facts(connection)
        product_facts = len(again)

    assert bare == shrunk
    assert product_facts > len(bare)


def test_a_grown_table_is_grown_once(engine: sa.Engine) -> None:
    """A second run changes nothing."""
    product = Product()
    with engine.begin() as connection:
        before(connection, product)
    migrate(engine, lambda op: grow(op, product))
    with engine.connect() as connection:
        first = facts(connection)
    migrate(engine, lambda op: grow(op, product))
    with engine.connect() as connection:
        second = facts(connection)

    assert first == second


def test_a_row_without_a_revision_refuses_not_null_and_a_second_run_heals(engine: sa.Engine) -> None:
    """The check that is left behind keeps new ones out, and is gone in the end."""
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE notes (id uuid PRIMARY KEY DEFAULT gen_random_uuid())"))
        connection.execute(sa.text("INSERT INTO notes DEFAULT VALUES"))
    migrate(engine, lambda op: sync.add_columns(op, "notes"))
    with pytest.raises(sa.exc.IntegrityError):
        migrate(engine, lambda op: sync.require_columns(op, "notes"))
    with engine.connect() as connection, pytest.raises(sa.exc.IntegrityError):
        connection.execute(sa.text("INSERT INTO notes DEFAULT VALUES"))
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE notes SET owner_id = gen_random_uuid(), revision = 1"))
    migrate(engine, lambda op: sync.require_columns(op, "notes"))
    with engine.connect() as connection:
        nullable = connection.scalars(
            sa.text(
                "SELECT column_name FROM information_schema.columns"
                " WHERE table_name = 'notes' AND is_nullable = 'YES'"
            )
        ).all()
        checks = [fact for fact in facts(connection) if "sync_required" in fact]

    assert ["deleted_at"] == nullable
    assert [] == checks


def test_the_table_is_read_while_others_write(engine: sa.Engine) -> None:
    """The check is validated without a lock that a writer conflicts with: the writer is never refused."""
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE notes (id uuid PRIMARY KEY DEFAULT gen_random_uuid())"))
    migrate(engine, lambda op: sync.add_columns(op, "notes"))
    with engine.begin() as connection:
        connection.execute(sa.text(ROW))
    locks: list[str] = []

    def look(op: Operations) -> None:
        connection: Any = op.get_bind()

        @sa.event.listens_for(connection, "after_cursor_execute")
        def write(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if "VALIDATE" in statement:
                with engine.begin() as other:
                    other.execute(sa.text("SET LOCAL lock_timeout = '500ms'"))
                    other.execute(sa.text(ROW))
                locks.append(statement)

        sync.require_columns(op, "notes")

    migrate(engine, look)

    assert 1 == len(locks)


def test_a_script_makes_the_same_table(engine: sa.Engine) -> None:
    """With ``--sql`` the steps commit one by one, too."""
    product = Product()
    script = io.StringIO()
    context = MigrationContext.configure(
        dialect_name="postgresql",
        dialect_opts={"paramstyle": "named"},
        opts={"as_sql": True, "output_buffer": script},
    )
    with context.begin_transaction():
        grow(Operations(context), product)
    with engine.begin() as connection:
        before(connection, product)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in script.getvalue().split(";\n"):
            if statement.strip():
                connection.connection.cursor().execute(statement.encode())
    with engine.connect() as connection:
        scripted = facts(connection)
        connection.rollback()
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE notes"))
        connection.execute(sa.text("CREATE TABLE notes (id uuid CONSTRAINT notes_pkey PRIMARY KEY)"))
    migrate(engine, lambda op: grow(op, product))
    with engine.connect() as connection:
        migrated = facts(connection)

    assert migrated == scripted


@pytest.mark.parametrize("concurrently", [False, True])
def test_a_natural_key_is_unique_among_live_rows(engine: sa.Engine, concurrently: bool) -> None:
    """A deleted row does not block a new one; autogenerate finds the index in the models."""
    metadata = sa.MetaData(naming_convention={"ix": "changed_%(column_0_label)s"})
    sa.Table(
        "notes",
        metadata,
        *sync.columns(),
        sa.Column("slug", sa.Text),
        live_unique_index("notes_live_slug_key", "owner_id", "slug"),
    )
    create = sync.create_live_unique_index_concurrently if concurrently else sync.create_live_unique_index

    def upgrade(op: Operations) -> None:
        op.create_table("notes", *sync.columns(), sa.Column("slug", sa.Text))
        create(op, "notes_live_slug_key", "notes", ["owner_id", "slug"])

    migrate(engine, upgrade)
    row = sa.text(
        "INSERT INTO notes (id, owner_id, revision, slug, deleted_at) VALUES"
        " (gen_random_uuid(), '00000000-0000-0000-0000-000000000001', 1, 'inbox', :deleted_at)"
    )
    with engine.begin() as connection:
        for deleted_at in ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", None):
            connection.execute(row, {"deleted_at": deleted_at})
        changes = differences(connection, metadata)
    with engine.connect() as connection, pytest.raises(sa.exc.IntegrityError):
        connection.execute(row, {"deleted_at": None})
    migrate(engine, lambda op: sync.drop_live_unique_index(op, "notes_live_slug_key"))
    with engine.connect() as connection:
        rest = [fact for fact in facts(connection) if "live_slug" in fact]

    assert [] == changes
    assert [] == rest


@pytest.mark.parametrize("columns", ["slug", [], [""], [1]])
def test_a_natural_key_without_names_is_refused(op: Operations, columns: Any) -> None:
    """Text is a sequence of letters, which is not meant."""
    with pytest.raises(InvalidArgumentError):
        sync.create_live_unique_index(op, "key", "notes", columns)


def test_autogenerate_leaves_the_kits_tables_alone(engine: sa.Engine) -> None:
    """A product that does not add them to its MetaData does not drop them."""

    def upgrade(op: Operations) -> None:
        sync.create_revisions(op)
        sync.create_purge_horizons(op)
        op.create_table("surplus", sa.Column("id", sa.Integer, primary_key=True))
        op.create_table("mine", sa.Column("id", sa.Integer, primary_key=True))

    def mine(_thing: Any, name: str | None, *_: Any) -> bool:
        return name != "mine"

    def mine_by_name(name: str | None, *_: Any) -> bool:
        return name != "mine"

    def dropped(connection: sa.Connection, **options: Any) -> list[str]:
        context = MigrationContext.configure(connection, opts=options)
        return [
            change[1].name
            for change in compare_metadata(context, sa.MetaData())
            if change[0] == "remove_table"
        ]

    migrate(engine, upgrade)
    with engine.connect() as connection:
        by_object = dropped(connection, include_object=sync.include_object())
        by_object_and_mine = dropped(connection, include_object=sync.include_object(mine))
        by_name = dropped(connection, include_name=sync.include_name())
        by_name_and_mine = dropped(connection, include_name=sync.include_name(mine_by_name))

    assert {"mine", "surplus"} == set(by_object) == set(by_name)
    assert ["surplus"] == by_object_and_mine == by_name_and_mine


def test_a_product_that_has_the_kits_tables_in_its_models_still_compares_them(engine: sa.Engine) -> None:
    """The filter hides only what the models do not have."""
    product = Product()
    with engine.connect() as connection:
        product.upgrade(Operations(MigrationContext.configure(connection)))
        connection.execute(sa.text("ALTER TABLE sync_revisions ADD COLUMN surplus int"))
        options = {"include_object": sync.include_object()}
        context = MigrationContext.configure(connection, opts=options)
        changes = compare_metadata(context, product.metadata())

    assert ["remove_column"] == [change[0] for change in changes]

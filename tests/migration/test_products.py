"""Products of every kind: their migrations and their models make the same database."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, mapped_column

from baukit_sync import SyncColumns, add_sync_tables, ddl
from baukit_sync import migrations as sync
from tests.migration.catalog import differences, facts

CONVENTION = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


@dataclass(frozen=True)
class Product:
    """What can differ between products, as far as the kit's tables see it."""

    owner_type: sa.types.TypeEngine[Any] = field(default_factory=sa.Uuid)
    ondelete: str | None = "CASCADE"
    schema: str | None = None
    users_schema: str | None = None
    users: str = "users"
    key: str = "id"
    notes: str = "notes"
    convention: dict[str, str] = field(default_factory=dict)

    @property
    def owner(self) -> str:
        """The owner column, as a foreign key names it."""
        return ".".join(part for part in (self.users_schema, self.users, self.key) if part)

    @property
    def schemas(self) -> list[str]:
        """The schemas that the product has besides ``public``."""
        return sorted({name for name in (self.schema, self.users_schema) if name})

    def metadata(self) -> sa.MetaData:
        """Return the product's models, declared with the kit's mixin."""

        class Base(DeclarativeBase):
            metadata = sa.MetaData(naming_convention=self.convention)

        sa.Table(
            self.users,
            Base.metadata,
            sa.Column(self.key, self.owner_type, primary_key=True, autoincrement=False),
            schema=self.users_schema,
        )

        class _Note(SyncColumns, Base):
            __tablename__ = self.notes
            __table_args__ = ({"schema": self.schema},)
            owner_id = mapped_column(self.owner_type, nullable=False, sort_order=-4)

        add_sync_tables(
            Base.metadata,
            owner=self.owner,
            owner_type=self.owner_type,
            ondelete=self.ondelete,
            schema=self.schema,
        )
        return Base.metadata

    def upgrade(self, op: Operations) -> None:
        """Run the product's migrations."""
        for schema in self.schemas:
            op.execute(sa.schema.CreateSchema(schema))
        op.create_table(
            self.users,
            sa.Column(self.key, self.owner_type, primary_key=True, autoincrement=False),
            schema=self.users_schema,
        )
        sync.create_revisions(
            op, owner=self.owner, owner_type=self.owner_type, ondelete=self.ondelete, schema=self.schema
        )
        sync.create_purge_horizons(op, owner_type=self.owner_type, schema=self.schema)
        op.create_table(self.notes, *sync.columns(self.owner_type), schema=self.schema)
        sync.create_indexes(op, self.notes, schema=self.schema)

    def downgrade(self, op: Operations) -> None:
        """Run them backwards, one by one."""
        sync.drop_indexes(op, self.notes, schema=self.schema)
        op.drop_table(self.notes, schema=self.schema)
        sync.drop_purge_horizons(op, schema=self.schema)
        sync.drop_revisions(op, schema=self.schema)
        op.drop_table(self.users, schema=self.users_schema)

    def create_all(self, connection: sa.Connection) -> None:
        """Create everything from the models."""
        for schema in self.schemas:
            connection.execute(sa.schema.CreateSchema(schema))
        self.metadata().create_all(connection)

    def facts(self, connection: sa.Connection) -> list[str]:
        """Return what the catalog says about all of the product's schemas."""
        return [fact for schema in ("public", *self.schemas) for fact in facts(connection, schema)]


PRODUCTS = {
    "plain": Product(),
    "bigint owners": Product(owner_type=sa.BigInteger()),
    "text owners": Product(owner_type=sa.Text()),
    "varchar owners in another collation": Product(owner_type=sa.String(36, collation="C")),
    "no action": Product(ondelete=None),
    "no action, said": Product(ondelete="NO ACTION"),
    "restrict": Product(ondelete="RESTRICT"),
    "a schema": Product(schema="app", users_schema="app"),
    "owners in another schema": Product(schema="app", users_schema="auth"),
    "owners in the default schema": Product(schema="app"),
    "only the owners in a schema": Product(users_schema="auth"),
    "a naming convention": Product(convention=CONVENTION),
    "a naming convention in a schema": Product(schema="app", users_schema="app", convention=CONVENTION),
    "mixed case": Product(schema="App", users_schema="Auth", users="Users", key="Id", notes="MyNotes"),
    "reserved words": Product(
        schema="table", users_schema="user", users="order", key="group", notes="select"
    ),
    "spaces": Product(
        schema="my app", users_schema="my users", users="the users", key="the id", notes="a note"
    ),
    "beyond ASCII": Product(schema="büro", users="Nutzer:in", key="nº", notes="日記"),
    "the longest names": Product(schema="s" * 63, users="u" * 63, key="k" * 63, notes="n" * 49),
    "bind parameters and percent signs": Product(
        schema="a:b%(c)s", users=":users::x", key=r"\:id%", notes="%s:notes\\"
    ),
    "quotes": Product(schema='"quoted"', users='u"s', key="it's", notes='"";--'),
    "an attack": Product(
        schema='x"; DROP TABLE public.precious; --',
        users='u"; DROP TABLE precious; --',
        key='i"); DROP TABLE precious; --',
        notes="n'; DROP TABLE precious; /* $$ $sync$",
    ),
}


@pytest.fixture(params=PRODUCTS.values(), ids=PRODUCTS.keys())
def product(request: pytest.FixtureRequest) -> Product:
    """One of the products."""
    return request.param


def operations(connection: sa.Connection, metadata: sa.MetaData) -> Operations:
    """Return Alembic's operations, which take the naming convention from the models."""
    return Operations(MigrationContext.configure(connection, opts={"target_metadata": metadata}))


def test_autogenerate_finds_nothing_to_do(product: Product, connection: sa.Connection) -> None:
    """After the migrations, autogenerate proposes no change to the models' tables."""
    metadata = product.metadata()
    product.upgrade(operations(connection, metadata))

    assert [] == differences(connection, metadata, include_schemas=True)


def test_autogenerate_without_schemas_finds_nothing_to_do(connection: sa.Connection) -> None:
    """It does not matter whether ``include_schemas`` is set when no schema is."""
    metadata = Product().metadata()
    Product().upgrade(operations(connection, metadata))

    assert [] == differences(connection, metadata)


def test_migrations_and_create_all_make_the_same_database(
    product: Product, connection: sa.Connection
) -> None:
    """The catalog says the same about both, to the names, checks, predicates and storage parameters."""
    with connection.begin() as transaction:
        product.create_all(connection)
        created = product.facts(connection)
        transaction.rollback()
    product.upgrade(operations(connection, product.metadata()))

    assert created == product.facts(connection)


def test_no_naming_convention_changes_a_name_of_the_kit(connection: sa.Connection, op: Operations) -> None:
    """Not even one that builds on the names that constraints have."""
    metadata = sa.MetaData(naming_convention=dict.fromkeys(["ck", "fk"], "changed_%(constraint_name)s"))
    sa.Table("users", metadata, sa.Column("id", sa.Uuid, primary_key=True))
    add_sync_tables(metadata, owner="users.id")
    metadata.create_all(connection)
    created = facts(connection)
    sync.drop_purge_horizons(op)
    sync.drop_revisions(op)
    sync.create_revisions(op, owner="users.id")
    sync.create_purge_horizons(op)

    assert created == facts(connection)


def test_a_downgrade_leaves_nothing(product: Product, connection: sa.Connection) -> None:
    """Every drop function finds what its create function made."""
    op = operations(connection, product.metadata())
    product.upgrade(op)
    product.downgrade(op)

    assert [] == product.facts(connection)


def test_a_name_is_only_ever_a_name(connection: sa.Connection) -> None:
    """A statement hidden in a name is not run."""
    attack = PRODUCTS["an attack"]
    connection.execute(sa.text("CREATE TABLE precious ()"))
    attack.upgrade(operations(connection, attack.metadata()))
    sync.rename_owner_id_to_user_id(Operations(MigrationContext.configure(connection)), schema=attack.schema)

    assert sa.inspect(connection).has_table("precious")


def test_a_printed_script_makes_the_same_database(product: Product, engine: sa.Engine) -> None:
    """Without Alembic, the statements of ``ddl`` are run as they are, all in one message."""
    script = ddl.script(
        [
            *ddl.create_revisions(
                owner=product.owner,
                owner_type=product.owner_type,
                ondelete=product.ondelete,
                schema=product.schema,
            ),
            *ddl.create_purge_horizons(owner_type=product.owner_type, schema=product.schema),
            *ddl.create_indexes(product.notes, schema=product.schema),
        ]
    )
    with engine.connect() as connection:
        product.create_all(connection)
        created = product.facts(connection)
        op = Operations(MigrationContext.configure(connection))
        sync.drop_indexes(op, product.notes, schema=product.schema)
        sync.drop_purge_horizons(op, schema=product.schema)
        sync.drop_revisions(op, schema=product.schema)
        connection.connection.cursor().execute(script.encode())
        printed = product.facts(connection)

    assert created == printed


@pytest.mark.parametrize("name", ["bind parameters and percent signs", "quotes", "an attack"])
def test_a_script_of_alembic_makes_the_same_database(name: str, connection: sa.Connection) -> None:
    """With ``--sql`` no name is escaped for a driver that will not run it."""
    product = PRODUCTS[name]
    script = io.StringIO()
    context = MigrationContext.configure(
        dialect_name="postgresql",
        dialect_opts={"paramstyle": "named"},
        opts={"as_sql": True, "output_buffer": script},
    )
    product.upgrade(Operations(context))
    with connection.begin() as transaction:
        product.create_all(connection)
        created = product.facts(connection)
        transaction.rollback()
    connection.connection.cursor().execute(script.getvalue().encode())

    assert created == product.facts(connection)


def test_a_tenant_is_found_by_search_path(connection: sa.Connection) -> None:
    """Without ``schema``, tables go to the first schema of ``search_path``, beside those of others."""
    metadata = Product().metadata()
    Product().upgrade(operations(connection, metadata))
    public = facts(connection)
    connection.execute(sa.text("CREATE SCHEMA tenant"))
    connection.execute(sa.text("SET search_path TO tenant, public"))
    connection.dialect.default_schema_name = "tenant"
    Product().upgrade(operations(connection, metadata))
    found = differences(connection, metadata)
    connection.execute(sa.text("RESET search_path"))
    tenant = [fact.replace("tenant.", "public.") for fact in facts(connection, "tenant")]

    assert [] == found
    assert public == [fact.replace("REFERENCES public.", "REFERENCES ") for fact in tenant]


@pytest.mark.parametrize("name", ["plain", "bind parameters and percent signs"])
def test_asyncpg_runs_the_migrations_too(name: str, engine: sa.Engine) -> None:
    """An environment on an async engine makes the same database."""
    product = PRODUCTS[name]

    async def on_asyncpg(function: Callable[[sa.Connection], list[str]]) -> list[str]:
        async_engine = create_async_engine(engine.url.set(drivername="postgresql+asyncpg"))
        async with async_engine.connect() as connection:
            result = await connection.run_sync(function)
        await async_engine.dispose()
        return result

    def migrate(connection: sa.Connection) -> list[str]:
        op = operations(connection, product.metadata())
        product.upgrade(op)
        sync.rename_owner_id_to_user_id(op, schema=product.schema)
        sync.rename_user_id_to_owner_id(op, schema=product.schema)
        return product.facts(connection)

    made = asyncio.run(on_asyncpg(migrate))
    with engine.connect() as connection:
        product.create_all(connection)
        created = product.facts(connection)

    assert created == made

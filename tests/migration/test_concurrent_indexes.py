"""Building the indexes of a table while others write to it."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations

from baukit_sync import migrations as sync
from tests.migration.catalog import facts
from tests.support.ways import Admin

WRITE = sa.text("INSERT INTO notes (id, owner_id, revision) VALUES (gen_random_uuid(), gen_random_uuid(), 1)")


@pytest.fixture
def indexed(engine: sa.Engine) -> list[str]:
    """What the catalog says after ``create_indexes``; the database is left with the bare table."""
    with engine.connect() as connection:
        op = Operations(MigrationContext.configure(connection))
        op.create_table("notes", *sync.columns())
        connection.commit()
        sync.create_indexes(op, "notes")
        found = facts(connection)
        connection.rollback()
    return found


def migrate(engine: sa.Engine, function: Callable[[Operations], None], *, lock_timeout: str = "0") -> None:
    """Run a migration the way Alembic does, and commit it."""
    with engine.connect() as connection:
        connection.execute(sa.text(f"SET lock_timeout = '{lock_timeout}'"))
        connection.commit()
        context = MigrationContext.configure(connection)
        with context.begin_transaction():
            function(Operations(context))


def build(op: Operations) -> None:
    """Build the indexes of ``notes`` concurrently."""
    sync.create_indexes_concurrently(op, "notes")


def test_the_indexes_are_those_of_create_indexes(engine: sa.Engine, indexed: list[str]) -> None:
    """Only the way they are built differs."""
    migrate(engine, build)
    with engine.connect() as connection:
        found = facts(connection)

    assert indexed == found


def test_a_second_run_ends_with_the_same_indexes(engine: sa.Engine, indexed: list[str]) -> None:
    """It builds them anew."""
    migrate(engine, build)
    migrate(engine, build)
    with engine.connect() as connection:
        found = facts(connection)

    assert indexed == found


def test_a_build_after_one_that_failed_leaves_no_invalid_index(engine: sa.Engine, indexed: list[str]) -> None:
    """The invalid index that a failed build leaves is not taken for a good one."""
    with engine.begin() as writer:
        writer.execute(WRITE)
        with pytest.raises(sa.exc.OperationalError, match="lock timeout"):
            migrate(engine, build, lock_timeout="50ms")
    with engine.connect() as connection:
        after_failure = facts(connection)
    migrate(engine, build)
    with engine.connect() as connection:
        after_success = facts(connection)

    assert any("INVALID" in fact for fact in after_failure)
    assert indexed == after_success


def test_writers_go_on_while_an_index_is_built(engine: sa.Engine, indexed: list[str]) -> None:
    """The build waits for an open transaction, and nobody waits for the build."""
    with ThreadPoolExecutor() as pool:
        with engine.begin() as reader:
            reader.execute(WRITE)
            building = pool.submit(migrate, engine, build)
            Admin(engine.url).wait_for_blocked()
            with engine.begin() as writer:
                writer.execute(sa.text("SET LOCAL lock_timeout = '5s'"))
                writer.execute(WRITE)
        building.result(timeout=30)
    with engine.connect() as connection:
        found = facts(connection)

    assert indexed == found


def test_a_script_builds_them_outside_its_transaction(engine: sa.Engine, indexed: list[str]) -> None:
    """With ``--sql`` the transaction is ended before and begun again after."""
    script = io.StringIO()
    context = MigrationContext.configure(
        dialect_name="postgresql",
        dialect_opts={"paramstyle": "named"},
        opts={"as_sql": True, "output_buffer": script},
    )
    with context.begin_transaction():
        build(Operations(context))
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in script.getvalue().split(";"):
            connection.execute(statement.encode())
    with engine.connect() as connection:
        found = facts(connection)

    assert indexed == found


def test_a_concurrent_drop_leaves_the_bare_table_and_runs_twice(engine: sa.Engine) -> None:
    """The downgrade of a concurrent build removes both indexes; a second run finds nothing to do."""
    with engine.begin() as connection:
        Operations(MigrationContext.configure(connection)).create_table("notes", *sync.columns())
    with engine.connect() as connection:
        bare = facts(connection)
    migrate(engine, build)
    for _ in range(2):
        migrate(engine, lambda op: sync.drop_indexes_concurrently(op, "notes"))
    with engine.connect() as connection:
        found = facts(connection)

    assert bare == found

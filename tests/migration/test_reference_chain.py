"""The reference chain: a product's migrations, run by Alembic's own commands."""

from __future__ import annotations

import importlib
import io
from argparse import Namespace
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from tests.migration.catalog import differences, facts

ROOT = Path(__file__).parents[2]


def config(url: sa.URL | None, output: io.StringIO | None = None) -> Config:
    """Return the chain's configuration, as ``alembic -x url=...`` makes it."""
    x = [] if url is None else [f"url={url.render_as_string(hide_password=False)}"]
    return Config(ROOT / "alembic.ini", cmd_opts=Namespace(x=x), output_buffer=output)


def reference_metadata() -> sa.MetaData:
    """Return what the chain's environment compares; ``alembic.ini`` says where it is imported from."""
    ScriptDirectory.from_config(config(None))
    return importlib.import_module("reference").Base.metadata


METADATA = reference_metadata()


@pytest.fixture
def upgraded(engine: sa.Engine) -> sa.Engine:
    """A database that the chain has upgraded."""
    command.upgrade(config(engine.url), "head")
    return engine


def test_autogenerate_finds_nothing_to_do_after_an_upgrade(upgraded: sa.Engine) -> None:
    """The upgraded database is what the models say."""
    with upgraded.connect() as connection:
        found = differences(connection, METADATA)

    assert [] == found


def test_the_upgraded_database_is_what_create_all_makes(engine: sa.Engine) -> None:
    """A database that ``create_all`` made, read back, is no different from an upgraded one."""
    created = sa.MetaData()
    with engine.begin() as connection:
        METADATA.create_all(connection)
        created.reflect(connection)
        METADATA.drop_all(connection)
    command.upgrade(config(engine.url), "head")
    with engine.connect() as connection:
        found = differences(connection, created)

    assert METADATA.tables.keys() == created.tables.keys()
    assert [] == found


def test_the_catalogs_of_both_are_equal(engine: sa.Engine) -> None:
    """Checks, predicates of indexes and storage parameters are the same too, which Alembic does not see."""
    with engine.begin() as connection:
        METADATA.create_all(connection)
        created = facts(connection)
        METADATA.drop_all(connection)
    command.upgrade(config(engine.url), "head")
    with engine.connect() as connection:
        upgraded = facts(connection)

    assert created == upgraded


def test_a_downgrade_leaves_nothing(upgraded: sa.Engine) -> None:
    """Only Alembic's own table is left."""
    command.downgrade(config(upgraded.url), "base")
    with upgraded.connect() as connection:
        left = facts(connection)

    assert [] == left


def test_an_upgrade_after_a_downgrade_is_as_good_as_the_first(upgraded: sa.Engine) -> None:
    """Up, down and up again ends where up ends."""
    with upgraded.connect() as connection:
        first = facts(connection)
    command.downgrade(config(upgraded.url), "base")
    command.upgrade(config(upgraded.url), "head")
    with upgraded.connect() as connection:
        second = facts(connection)

    assert first == second


def test_a_script_makes_the_same_database(upgraded: sa.Engine) -> None:
    """``--sql`` needs no database, and its script does what the upgrade does."""
    script = io.StringIO()
    command.upgrade(config(None, script), "head", sql=True)
    with upgraded.connect() as connection:
        online = facts(connection)
    command.downgrade(config(upgraded.url), "base")
    with upgraded.begin() as connection:
        connection.execute(sa.text("DROP TABLE alembic_version"))
    run_script(upgraded.url, script.getvalue())
    with upgraded.connect() as connection:
        offline = facts(connection)

    assert online == offline


def test_a_downgrade_script_leaves_nothing(upgraded: sa.Engine) -> None:
    """``--sql`` works downwards too."""
    script = io.StringIO()
    command.downgrade(config(None, script), "head:base", sql=True)
    run_script(upgraded.url, script.getvalue())
    with upgraded.connect() as connection:
        left = facts(connection)

    assert [] == left


def run_script(url: sa.URL, script: str) -> None:
    """Send a script as it is, in one message, the way ``psql -c`` does."""
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(script.encode())


def test_the_environment_names_the_database_when_the_command_does_not(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``BAUKIT_SYNC_DATABASE_URL`` is asked when there is no ``-x url=...``."""
    monkeypatch.setenv("BAUKIT_SYNC_DATABASE_URL", engine.url.render_as_string(hide_password=False))
    command.upgrade(config(None), "head")

    assert sa.inspect(engine).has_table("sync_revisions")


def test_an_upgrade_without_a_database_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no default database."""
    monkeypatch.delenv("BAUKIT_SYNC_DATABASE_URL", raising=False)
    with pytest.raises(CommandError, match="which database"):
        command.upgrade(config(None), "head")


def test_a_tombstone_does_not_keep_its_name(upgraded: sa.Engine) -> None:
    """A live list may have the name of a deleted one, and of no other live one."""
    add = sa.text(
        "INSERT INTO lists (id, owner_id, deleted_at, revision, name)"
        " VALUES (:id, :owner, :deleted_at, 1, 'milk')"
    )
    owner = uuid4()
    with upgraded.begin() as connection:
        connection.execute(add, {"id": uuid4(), "owner": owner, "deleted_at": "2026-01-01T00:00:00Z"})
        connection.execute(add, {"id": uuid4(), "owner": owner, "deleted_at": None})
        with pytest.raises(sa.exc.IntegrityError, match="lists_name_key"):
            connection.execute(add, {"id": uuid4(), "owner": owner, "deleted_at": None})

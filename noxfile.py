"""How this project is checked: ``nox`` runs all that must hold, ``nox -s NAME`` one of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2024.10.9"
nox.options.sessions = ["lint", "types", "docs", "tests", "machine_postgres", "wheel"]
nox.options.reuse_venv = "yes"

PYPROJECT = nox.project.load_toml("pyproject.toml")
PYTHONS = nox.project.python_versions(PYPROJECT)
SQLALCHEMY = {"2.0": "sqlalchemy>=2.0.40,<2.1", "2.1": "sqlalchemy>=2.1,<2.2"}
CURRENT = f"{sys.version_info.major}.{sys.version_info.minor}"
EVERYTHING = ".[alembic,asyncpg,cli,embedded,psycopg]"


def _group(*names: str) -> tuple[str, ...]:
    return tuple(nox.project.dependency_groups(PYPROJECT, *names))


def _newest_python() -> str:
    """Return the newest Python that this project names and this machine runs."""
    for version in reversed(PYTHONS):
        program = shutil.which(f"python{version}")
        # A version manager has a stand-in for each Python, also for those that it will not run here.
        if program and subprocess.run([program, "-V"], capture_output=True, check=False).returncode == 0:  # noqa: S603
            return version
    return CURRENT


@nox.session
def lint(session: nox.Session) -> None:
    """Style, and the storeys of the house."""
    session.install(EVERYTHING, *_group("lint"))
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("lint-imports", "--no-cache")


@nox.session
def types(session: nox.Session) -> None:
    """Two type checkers, both strict."""
    session.install(EVERYTHING, "nox", *_group("types", "test"))
    session.run("mypy")
    session.run("pyright")


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation; a broken reference or a public name left out is an error."""
    session.install(EVERYTHING, *_group("docs"))
    session.run("sphinx-build", "-W", "--keep-going", "-n", "-q", "-E", "docs", "docs/_build/html")


@nox.session
@nox.parametrize("python,sqlalchemy", [(CURRENT, "2.0"), (_newest_python(), "2.1")], ids=["2.0", "2.1"])
def tests(session: nox.Session, sqlalchemy: str) -> None:
    """Every test: SQLAlchemy 2.0 on this Python, 2.1 on the newest that is installed."""
    _tests(session, sqlalchemy, *session.posargs)


@nox.session(python=PYTHONS)
@nox.parametrize("sqlalchemy", list(SQLALCHEMY))
def matrix(session: nox.Session, sqlalchemy: str) -> None:
    """Every test on every Python that is installed."""
    _tests(session, sqlalchemy, *session.posargs)


@nox.session
def machine_postgres(session: nox.Session) -> None:
    """The database tests on the PostgreSQL that this machine has, usually another major version."""
    if shutil.which("pg_config") is None:
        session.skip("this machine has no PostgreSQL server of its own")
    session.env["BAUKIT_SYNC_TEST_POSTGRES"] = "machine"
    _tests(session, "2.1", "tests/integration", "tests/migration", *session.posargs)


@nox.session
def wheel(session: nox.Session) -> None:
    """The unit and acceptance tests against the built wheel, out of the source tree's reach."""
    session.install("build", *_group("test"))
    folder = Path(session.create_tmp())
    shutil.rmtree(folder)
    session.run("python", "-m", "build", "--wheel", "--outdir", str(folder), silent=True)
    (built,) = folder.glob("*.whl")
    session.install("--force-reinstall", "--no-deps", str(built))
    session.install(f"{built}[alembic,asyncpg,cli,embedded,psycopg]")
    shutil.copytree("tests", folder / "tests")
    shutil.copy("pyproject.toml", folder)
    with session.chdir(folder):
        session.run(
            "pytest", "-n", "auto", "--dist", "loadfile", "tests/unit", "tests/acceptance", *session.posargs
        )


@nox.session
def bench(session: nox.Session) -> None:
    """The benchmarks: each prints ratios from one run."""
    session.install(EVERYTHING, *_group("bench", "test"))
    for script in session.posargs or sorted(str(path) for path in Path("benchmarks").glob("[!_]*.py")):
        session.run("python", script)


def _tests(session: nox.Session, sqlalchemy: str, *arguments: str) -> None:
    session.install(EVERYTHING, SQLALCHEMY[sqlalchemy], *_group("test"))
    # A documentation page is one program: its blocks stay on one worker.
    session.run("pytest", "-n", "auto", "--dist", "loadfile", *arguments)

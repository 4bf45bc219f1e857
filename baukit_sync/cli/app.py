"""The commands and their options. What a command does is written elsewhere."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer
from sqlalchemy import URL

from baukit_sync.cli import doctor, sql
from baukit_sync.cli.database import database_url
from baukit_sync.cli.signals import deferred_exit

app = typer.Typer(
    name="baukit-sync",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    epilog="Exit codes: 0 all is fine; 1 a check failed; 2 the command could not run (wrong usage, a missing "
    "extra, no database); 130 Ctrl-C.",
)
app.add_typer(sql.app, name="sql")
app.command()(doctor.doctor)


def _version(*, wanted: bool) -> None:
    if not wanted:
        return
    try:
        typer.echo(f"baukit-sync {version('baukit-sync')}")
    except PackageNotFoundError:
        typer.echo("baukit-sync, not installed")
    raise typer.Exit


@app.callback()
def baukit_sync(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """The server kit for offline sync on SQLAlchemy and PostgreSQL."""


@app.command()
def demo(
    *,
    url: Annotated[
        URL | None,
        typer.Option(
            parser=database_url,
            metavar="URL",
            envvar="BAUKIT_SYNC_DEMO_URL",
            help="Play in this PostgreSQL, whose role may create a schema, instead of a private one.",
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=10, max=100_000, help="Edits per owner in chapter 9.")] = 1_000,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document, and nothing else.")
    ] = False,
) -> None:
    """Play a story of offline devices against a real PostgreSQL, and check it.

    Three devices with wrong clocks write, conflict, delete, stay away for too long and come back; ten owners
    write ten thousand edits. In the end every row, revision and horizon is compared. Everything happens in a
    schema of its own, which is dropped at the end.

    Exit codes: 0 every invariant held; 1 one did not, and the last lines say which; 2 it could not run.
    """
    from baukit_sync.demo import Audience, UnusableDatabaseError, play  # noqa: PLC0415 - needs more extras
    from baukit_sync.demo.show import Screen  # noqa: PLC0415

    try:
        with deferred_exit() as checkpoint:
            audience = Audience() if as_json else Screen()
            report = play(url, rows=rows, audience=audience, checkpoint=checkpoint)
    except UnusableDatabaseError as error:
        typer.echo(f"baukit-sync: {error}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        sys.stdout.write(report.to_json() + "\n")
    raise typer.Exit(0 if report.verified else 1)

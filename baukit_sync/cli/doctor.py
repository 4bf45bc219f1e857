"""``baukit-sync doctor``: what the doctor finds, for people, for scripts, and as an exit code."""

from __future__ import annotations

import importlib
import json
import sys
import textwrap
from collections import Counter
from datetime import timedelta
from enum import Enum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from sqlalchemy import URL, NullPool, create_engine
from sqlalchemy.exc import DBAPIError

from baukit_sync.cli.database import database_url
from baukit_sync.doctor import Finding, Severity, examine
from baukit_sync.errors import MissingExtraError

_COLOURS = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


class FailOn(Enum):
    """From which severity on the command fails."""

    WARNING = "warning"
    ERROR = "error"


def doctor(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:ATTRIBUTE]",
            help="A MetaData, a declarative base or a list of models, such as shop.models:Base. Without it: "
            "every table that has the five columns.",
            show_default=False,
        ),
    ] = None,
    *,
    url: Annotated[
        URL,
        typer.Option(
            parser=database_url,
            metavar="URL",
            envvar="BAUKIT_SYNC_DATABASE_URL",
            help="The database, with the role that writes or purges.",
            show_default=False,
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document, and nothing else.")
    ] = False,
    fail_on: Annotated[
        FailOn, typer.Option(help="Exit with 1 for findings of this severity or a worse one.")
    ] = FailOn.WARNING,
    retention_days: Annotated[
        int | None,
        typer.Option(min=0, help="Report tombstones that are older than this.", show_default=False),
    ] = None,
    time_limit: Annotated[int, typer.Option(min=1, help="Seconds for all checks together.")] = 60,
) -> None:
    """Examine a database: is it fit to sync? Reads only.

    Exit codes: 0 no finding of the severity that counts; 1 there are some; 2 wrong usage; 3 no connection.
    """
    models = None if target is None else _load(target)
    findings = _examine(
        url,
        models,
        retention=None if retention_days is None else timedelta(days=retention_days),
        time_limit=timedelta(seconds=time_limit),
    )
    failed = any(finding.severity.rank <= Severity(fail_on.value).rank for finding in findings)
    if as_json:
        document = {"failed": failed, "findings": [finding.to_dict() for finding in findings]}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    elif sys.stdout.isatty():
        _show(findings)
    else:
        _write(findings)
    raise typer.Exit(1 if failed else 0)


def _load(target: str) -> Any:
    """Import what the argument names, also from the current folder."""
    module, _, attribute = target.partition(":")
    if not module or not attribute:
        raise typer.BadParameter("use MODULE:ATTRIBUTE, such as shop.models:Base", param_hint="TARGET")
    sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
        for name in attribute.split("."):
            found = getattr(found, name)
    except Exception as error:  # noqa: BLE001 - a product's module may raise anything
        # Its text too may hold anything, such as a setting.
        message = f"importing {module} and its {attribute} raised {type(error).__name__}"
        raise typer.BadParameter(message, param_hint="TARGET") from None
    return found


def _examine(url: URL, models: Any, *, retention: timedelta | None, time_limit: timedelta) -> list[Finding]:
    patience = {} if "connect_timeout" in url.query else {"connect_timeout": 10}
    try:
        engine = create_engine(url, poolclass=NullPool, connect_args=patience)
    except ImportError:
        raise MissingExtraError("psycopg") from None
    try:
        return examine(engine, models, retention=retention, time_limit=time_limit)
    except DBAPIError as error:
        secrets = [url.password, url.query.get("password")]
        reason = str(error.orig).strip()
        if any(str(secret) in reason for secret in secrets if secret):
            reason = type(error.orig).__name__
        typer.echo(f"baukit-sync: no connection: {reason}", err=True)
        raise typer.Exit(3) from None


def _write(findings: list[Finding]) -> None:
    for finding in findings:
        typer.echo(f"{finding.severity.value}: {finding.code}: {finding.where}")
        typer.echo(textwrap.indent(textwrap.fill(finding.why, 76), "    "))
        typer.echo(textwrap.indent(finding.fix.strip(), "    > ") + "\n")
    typer.echo(_summary(findings))


def _show(findings: list[Finding]) -> None:
    console = Console(highlight=False)
    table = Table("finding", "what to do", show_lines=True, expand=True)
    for finding in findings:
        colour = _COLOURS[finding.severity]
        name = Text.assemble((finding.severity.value, colour), f"\n{finding.code}")
        body = Text.assemble((finding.where, "bold"), f"\n{finding.why}\n", (finding.fix.strip(), "green"))
        table.add_row(name, body)
    if findings:
        console.print(table)
    console.print(_summary(findings))


def _summary(findings: list[Finding]) -> str:
    counts = Counter(finding.severity for finding in findings)
    names = {Severity.ERROR: "errors", Severity.WARNING: "warnings", Severity.INFO: "infos"}
    return ", ".join(f"{counts[severity]} {name}" for severity, name in names.items())

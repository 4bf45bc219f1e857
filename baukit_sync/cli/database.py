"""The URL of a database, as an option."""

from __future__ import annotations

import typer
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError


def database_url(text: str) -> URL:
    """Read a PostgreSQL URL. What is wrong with it is not repeated: it may hold a password."""
    try:
        url = make_url(text)
    except ArgumentError:
        url = None
    if url is None or url.get_backend_name() != "postgresql":
        raise typer.BadParameter("use postgresql+psycopg://user@host/database")
    return url.set(drivername="postgresql+psycopg")

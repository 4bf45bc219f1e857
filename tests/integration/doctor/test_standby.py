"""A server that replays another's changes: readable, and of no use to pulls and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa

from baukit_sync import (
    PrimaryRequiredError,
    embedded,
    ensure_owner,
    guard_pull_cursor,
    guard_push_cursor,
    next_revision,
)
from baukit_sync.doctor import Severity, examine
from tests.integration.doctor.test_findings import found
from tests.support.product import Base

SETTINGS = {"idle_in_transaction_session_timeout": "60s", "lock_timeout": "15s", "max_connections": "10"}
"""They leave nothing else to say."""


CALLS: dict[str, Callable[[sa.Connection], object]] = {
    "guard_pull_cursor": lambda connection: guard_pull_cursor(connection, uuid4(), 0),
    "guard_push_cursor": lambda connection: guard_push_cursor(connection, uuid4(), 0),
    "next_revision": lambda connection: next_revision(connection, uuid4()),
    "ensure_owner": lambda connection: ensure_owner(connection, uuid4()),
}


@pytest.fixture(scope="module")
def standby(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sa.Engine]:
    """A healthy product's server, started again as a standby that waits for a primary."""
    folder = tmp_path_factory.mktemp("standby")
    with embedded.server(folder, settings=SETTINGS) as url:
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        Base.metadata.create_all(engine)
    Path(folder, "pgdata", "standby.signal").touch()
    with embedded.server(folder, settings=SETTINGS) as url:
        yield sa.create_engine(url, poolclass=sa.NullPool)


def test_it_is_the_only_finding(standby: sa.Engine) -> None:
    """The doctor reads it, and names nothing else."""
    findings = examine(standby, Base)

    assert [("standby", Severity.ERROR, "pg_is_in_recovery()")] == found(findings)


@pytest.mark.parametrize("call", CALLS)
def test_what_locks_a_counter_says_what_it_needs(call: str, standby: sa.Engine) -> None:
    """Never an unguarded read, and never a write that is lost."""
    with standby.begin() as connection, pytest.raises(PrimaryRequiredError):
        CALLS[call](connection)

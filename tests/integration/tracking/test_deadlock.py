"""Writers of the same owners queue, whatever the order in which they add their rows."""

from __future__ import annotations

from threading import Barrier
from uuid import UUID

import pytest
import sqlalchemy as sa
from anyio.from_thread import BlockingPortal

from tests.integration.tracking.models import Note
from tests.integration.tracking.store import Store
from tests.support.threads import together
from tests.support.ways import WAYS

ROUNDS = 200


@pytest.mark.parametrize("way", WAYS)
def test_two_writers_of_the_same_owners_do_not_deadlock(
    way: str, empty_url: sa.URL, portal: BlockingPortal, owners: list[UUID]
) -> None:
    """One adds for a and b, the other for b and a, at the same moment, many times; all of them commit."""
    opened = Store(way, empty_url, portal)
    start = Barrier(2)

    def writer(order: list[UUID]) -> None:
        def write() -> None:
            with opened.begin() as session:
                session.add_all([Note(owner_id=owner) for owner in order])

        for _ in range(ROUNDS):
            start.wait(60)
            opened.run(write)

    together(lambda: writer(owners), lambda: writer(owners[::-1]), seconds=120)
    counters = [opened.last_revision(owner) for owner in owners]
    opened.database.dispose()

    assert [2 * ROUNDS] * 2 == counters

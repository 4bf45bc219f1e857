"""What ``next_revision`` costs above the statement it sends.

One server, one connection, one transaction. The variants take turns; a ratio is the median over the rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from uuid import uuid4

import psycopg
import sqlalchemy as sa
from sqlalchemy.orm import Session

from baukit_sync import add_sync_tables, embedded, ensure_owner, next_revision

ROUNDS, CALLS = 40, 250


def main() -> None:
    """Measure and print."""
    metadata = sa.MetaData()
    counters = add_sync_tables(metadata).revisions
    owner = uuid4()
    by_hand = (
        sa.update(counters)
        .where(counters.c.owner_id == sa.bindparam("owner"))
        .values(last_revision=counters.c.last_revision + 1)
        .returning(counters.c.last_revision)
    )
    as_text = sa.text(
        "UPDATE sync_revisions SET last_revision = last_revision + 1 WHERE owner_id = :owner"
        " RETURNING last_revision"
    )
    raw = (
        "UPDATE sync_revisions SET last_revision = last_revision + 1 WHERE owner_id = %s"
        " RETURNING last_revision"
    )

    with embedded.server() as url:
        engine = sa.create_engine(url)
        metadata.create_all(engine)
        with Session(engine) as session:
            ensure_owner(session, owner)
            driver = session.connection().connection.dbapi_connection
            assert isinstance(driver, psycopg.Connection)

            def raw_psycopg() -> None:
                driver.execute(raw, (owner,)).fetchone()

            seconds = measure(
                {
                    "raw psycopg": raw_psycopg,
                    "the same Core statement by hand": lambda: session.execute(
                        by_hand, {"owner": owner}
                    ).scalar_one(),
                    "the same text by hand": lambda: session.execute(as_text, {"owner": owner}).scalar_one(),
                    "next_revision": lambda: next_revision(session, owner),
                }
            )
        engine.dispose()

    kit = seconds["next_revision"]
    for name, rounds in seconds.items():
        ratio = statistics.median(ours / theirs for ours, theirs in zip(kit, rounds, strict=True))
        micros = statistics.median(rounds) / CALLS * 1e6
        print(f"{name:32} {micros:7.1f} us   next_revision takes {ratio:.2f}x")
    print("aim: at most 1.15x the statement by hand")


def measure(variants: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Return each variant's seconds per round; the variants take turns, after one round to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(ROUNDS + 1):
        for name, call in variants.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return seconds


if __name__ == "__main__":
    main()

"""What ``pull_page`` costs beside the range scans it is made of, and whether a large table slows it down.

One server, one session, one transaction. A page of 1,000 rows out of 1,000,000; both sides read the same
revisions, in turns, into an empty session. By hand means: the statements that a product would write, with the
end of the page known beforehand, so without what it takes to find it.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session

from baukit_sync import PullPage, PullWindow, SyncColumns, add_sync_tables, embedded, pull_page

ROUNDS, LIMIT = 200, 1_000

OWN, OTHERS, FEW = 50_000, 950_000, 10_000
"""Rows of the owner that pulls, and of others in the large table and in the small one."""

ME = UUID(int=1)


class Base(DeclarativeBase):
    """The models."""


class Note(SyncColumns, Base):
    """A row of the large table."""

    __tablename__ = "notes"

    title: Mapped[str]


class Task(SyncColumns, Base):
    """A row of a second large table."""

    __tablename__ = "tasks"

    title: Mapped[str]


class Memo(SyncColumns, Base):
    """A row of the small table."""

    __tablename__ = "memos"

    title: Mapped[str]


FILL = """
INSERT INTO {table} (id, owner_id, revision, title)
SELECT gen_random_uuid(),
    lpad(to_hex(CASE WHEN mine THEN 1 ELSE 2 + n % 19 END), 32, '0')::uuid,
    CASE WHEN mine THEN (n + 1) * {own} / {rows} ELSE 1 + n / 19 END,
    'milk and bread'
FROM (
    SELECT n, (n + 1) * {own} / {rows} > n * {own} / {rows} AS mine
    FROM generate_series(0::bigint, {rows} - 1) n
) numbered
"""
"""The rows of the owner that pulls lie between those of others, as they are written over the years."""


def main() -> None:
    """Measure and print."""
    add_sync_tables(Base.metadata)
    with embedded.server() as url:
        engine = sa.create_engine(url)
        Base.metadata.create_all(engine)
        with engine.begin() as connection:
            for table, others in (("notes", OTHERS), ("tasks", OTHERS), ("memos", FEW)):
                connection.execute(sa.text(FILL.format(table=table, own=OWN, rows=OWN + others)))
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.text("VACUUM ANALYZE"))
        with Session(engine) as session:
            check_plans(session)
            print(f"a page of {LIMIT:,} rows out of {OWN + OTHERS:,}, median of {ROUNDS} rounds\n")
            for name, models in (("one table", [Note]), ("two tables", [Note, Task])):
                compare(
                    session,
                    f"{name}, ORM instances",
                    lambda window, models=models: instances_by_hand(session, window, models),
                    lambda window, models=models: pull_page(session, window, models, limit=LIMIT),
                )
                compare(
                    session,
                    f"{name}, mappings",
                    lambda window, models=models: mappings_by_hand(session, window, models),
                    lambda window, models=models: pull_page(
                        session, window, models, limit=LIMIT, mappings=True
                    ),
                )
            print()
            size = f"{OTHERS:,} rows of other owners beside {FEW:,}"
            compare(
                session,
                size,
                lambda window: pull_page(session, window, [Memo], limit=LIMIT),
                lambda window: pull_page(session, window, [Note], limit=LIMIT),
                aim=1.3,
            )
        engine.dispose()


def instances_by_hand(session: Session, window: PullWindow, models: list[Any]) -> list[Any]:
    """Read the page's rows as instances, in revision order."""
    rows: list[Any] = []
    for model in models:
        rows += session.scalars(
            sa.select(model)
            .where(model.owner_id == window.owner_id)
            .where(model.revision > window.after, model.revision <= end_of(window, models))
            .order_by(model.revision)
        )
    return sorted(rows, key=lambda row: row.revision) if len(models) > 1 else rows


def mappings_by_hand(session: Session, window: PullWindow, models: list[Any]) -> list[Any]:
    """Read the page's rows as dicts, in revision order."""
    rows: list[Any] = []
    for model in models:
        table = model.__table__
        found = session.execute(
            sa.select(table)
            .where(table.c.owner_id == window.owner_id)
            .where(table.c.revision > window.after, table.c.revision <= end_of(window, models))
            .order_by(table.c.revision)
        )
        rows += [row._asdict() for row in found]
    return sorted(rows, key=lambda row: row["revision"]) if len(models) > 1 else rows


def end_of(window: PullWindow, models: list[Any]) -> int:
    """Return the page's last revision; each table has one row of each."""
    return window.after + LIMIT // len(models)


def compare(
    session: Session,
    name: str,
    theirs: Callable[[PullWindow], Any],
    ours: Callable[[PullWindow], PullPage],
    *,
    aim: float = 1.2,
) -> None:
    """Measure in turns, the first now one, now the other, and print the median of the rounds' ratios."""
    seconds: dict[Any, list[float]] = {theirs: [], ours: []}
    for number in range(ROUNDS + 10):
        window = PullWindow(ME, random.randrange(OWN - 2 * LIMIT), OWN)
        for function in random.sample([theirs, ours], 2):
            session.expunge_all()
            start = time.perf_counter()
            function(window)
            if number >= 10:
                seconds[function].append(time.perf_counter() - start)
    ratios = [ours_took / theirs_took for theirs_took, ours_took in zip(*seconds.values(), strict=True)]
    milliseconds = statistics.median(seconds[theirs]) * 1e3
    print(f"{name:44} {milliseconds:5.2f} ms   {statistics.median(ratios):.2f}x (aim: at most {aim}x)")


def check_plans(session: Session) -> None:
    """Stop when a statement of a pull is anything but a range scan over the index."""
    sent: list[tuple[str, Any]] = []

    def record(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        sent.append((statement, parameters))

    event.listen(session.get_bind(), "before_cursor_execute", record)
    pull_page(session, PullWindow(ME, OWN // 2, OWN), [Note, Task], limit=LIMIT)
    event.remove(session.get_bind(), "before_cursor_execute", record)
    for statement, parameters in sent:
        plan = session.connection().exec_driver_sql(f"EXPLAIN {statement}", parameters).scalars().all()
        if not any("Index" in line for line in plan) or any("Seq Scan" in line for line in plan):
            raise SystemExit("not a range scan:\n" + "\n".join(plan))


if __name__ == "__main__":
    main()

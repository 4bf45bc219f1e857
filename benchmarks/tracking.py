"""What tracking costs on top of the same flush with revisions assigned by hand.

One server, one run; both sides insert or update 1,000 rows of one owner in one flush and roll back, in turns.
By hand means: one ``next_revisions``, and assignments for each row.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, sessionmaker

from baukit_sync import SyncColumns, add_sync_tables, embedded, ensure_owner, next_revisions
from baukit_sync.tracking import track

ROUNDS, ROWS = 30, 1_000


class Base(DeclarativeBase):
    """The models."""


class Note(SyncColumns, Base):
    """A synced row."""

    __tablename__ = "notes"

    title: Mapped[str]


def main() -> None:
    """Measure and print."""
    add_sync_tables(Base.metadata)
    owner = uuid4()
    with embedded.server() as url:
        engine = sa.create_engine(url)
        Base.metadata.create_all(engine)
        by_hand, tracked = sessionmaker(engine), sessionmaker(engine)
        track(tracked)
        with by_hand.begin() as session:
            ensure_owner(session, owner)
            revisions = next_revisions(session, owner, ROWS)
            session.add_all(Note(owner_id=owner, title="", revision=revision) for revision in revisions)

        def insert(_session: Session) -> list[Note]:
            return [Note(owner_id=owner, title="milk") for _ in range(ROWS)]

        def update(session: Session) -> list[Note]:
            notes = list(session.scalars(sa.select(Note).limit(ROWS)))
            for number, note in enumerate(notes):
                note.title = f"milk {number}"
            return notes

        for name, prepare in (("insert", insert), ("update", update)):
            ratios, seconds = compare(by_hand, tracked, prepare, owner)
            print(
                f"{name} {ROWS:,} rows in one flush: by hand {seconds * 1e3:.1f} ms,"
                f" tracked takes {statistics.median(ratios):.2f}x (aim: at most 1.15x)"
            )
        engine.dispose()


def compare(
    by_hand: sessionmaker[Session],
    tracked: sessionmaker[Session],
    prepare: Callable[[Session], list[Note]],
    owner: object,
) -> tuple[list[float], float]:
    """Return tracked/by-hand for each round, and the median seconds by hand."""
    ratios, hand = [], []
    for number in range(ROUNDS + 1):
        ours = timed(tracked, prepare, None)
        theirs = timed(by_hand, prepare, owner)
        if number:
            ratios.append(ours / theirs)
            hand.append(theirs)
    return ratios, statistics.median(hand)


def timed(
    factory: sessionmaker[Session], prepare: Callable[[Session], list[Note]], stamp_for: object
) -> float:
    """Return the seconds from stamping to the end of the flush."""
    with factory() as session:
        notes = prepare(session)
        session.add_all(notes)
        start = time.perf_counter()
        if stamp_for is not None:
            now = datetime.now(UTC)
            for note, revision in zip(notes, next_revisions(session, stamp_for, ROWS), strict=True):  # type: ignore[arg-type]
                note.revision, note.updated_at = revision, now
        session.flush()
        seconds = time.perf_counter() - start
        session.rollback()
    return seconds


if __name__ == "__main__":
    main()

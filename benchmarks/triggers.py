"""What the triggers cost, beside the same writes without them. Ratios of one run; the seconds are context."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, sessionmaker

from baukit_sync import (
    SyncColumns,
    TombstoneTable,
    add_sync_tables,
    embedded,
    ensure_owner,
    migrations,
    next_revisions,
    purge_tombstones,
    soft_delete_where,
    track,
)

ROWS = 1_000


class Base(DeclarativeBase):
    """The models."""


class Plain(SyncColumns, Base):
    """A table without triggers."""

    __tablename__ = "plain"
    title: Mapped[str]


class Guarded(SyncColumns, Base):
    """The same with the guard."""

    __tablename__ = "guarded"
    title: Mapped[str]


class Stamped(SyncColumns, Base):
    """The same, stamped by the database."""

    __tablename__ = "stamped"
    title: Mapped[str]


class GuardedAndStamped(SyncColumns, Base):
    """The same with both."""

    __tablename__ = "guarded_and_stamped"
    title: Mapped[str]


MODELS = (Plain, Guarded, Stamped, GuardedAndStamped)
Model = type[Plain] | type[Guarded] | type[Stamped] | type[GuardedAndStamped]


class TrackedSession(Session):
    """A session whose flushes are stamped."""


track(TrackedSession)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    add_sync_tables(Base.metadata)
    with embedded.server() as url:
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            Base.metadata.create_all(connection)
            op = Operations(MigrationContext.configure(connection))
            # Not before the plain table's turn: the trigger on the counters is the guard's cost, too.
            migrations.create_guard_trigger(op, "guarded")
            migrations.create_guard_trigger(op, "guarded_and_stamped")
            migrations.create_stamp_trigger(op, "stamped", deletes_by=["id"])
            migrations.create_stamp_trigger(op, "guarded_and_stamped", deletes_by=["id"])
        for name, write, models in (
            ("1,000 rows in one INSERT", insert_select, MODELS),
            ("1,000 rows in one flush", insert_flush, (Plain, Guarded)),
            ("1,000 changed objects in one flush", update_flush, (Plain, Guarded)),
            ("300 transactions of one UPDATE", update_each, MODELS),
        ):
            compare(engine, name, write, models, rounds)
        purge(engine, max(3, rounds // 3))
        engine.dispose()


def compare(
    engine: sa.Engine,
    name: str,
    write: Callable[[sa.Engine, Model, UUID], float],
    models: tuple[Model, ...],
    rounds: int,
) -> None:
    """Print the ratios to the table without triggers, round by round in turns."""
    seconds: dict[Model, list[float]] = {model: [] for model in models}
    for _ in range(rounds):
        for model in models:
            owner = uuid4()
            with Session(engine) as session, session.begin():
                ensure_owner(session, owner)
            with_guard(engine, on=model in {Guarded, GuardedAndStamped})
            seconds[model].append(write(engine, model, owner))
            with engine.begin() as connection:
                connection.execute(sa.text("SET LOCAL session_replication_role = replica"))
                connection.execute(sa.delete(model))
    report(name, {model.__tablename__: times for model, times in seconds.items()})


def report(name: str, seconds: dict[str, list[float]]) -> None:
    """Print the median of the rounds' ratios."""
    plain = seconds.pop("plain")
    ratios = ", ".join(
        f"{table} {statistics.median(a / b for a, b in zip(times, plain, strict=True)):.2f}x"
        for table, times in seconds.items()
    )
    print(f"{name}: {ratios} of {statistics.median(plain) * 1e3:.1f} ms without")


def with_guard(engine: sa.Engine, *, on: bool) -> None:
    """Put the trigger on the counters, or take it away."""
    with engine.begin() as connection:
        op = Operations(MigrationContext.configure(connection))
        (migrations.create_revisions_trigger if on else migrations.drop_revisions_trigger)(op)


def insert_select(engine: sa.Engine, model: Model, owner: UUID) -> float:
    """Insert rows in one statement; a stamped table gets no revision from its writer."""
    table = model.__tablename__
    revision = "NULL" if model in {Stamped, GuardedAndStamped} else "CAST(:first AS bigint) + i"
    insert = sa.text(
        f"INSERT INTO {table} (id, owner_id, revision, title)"
        f" SELECT gen_random_uuid(), :owner, {revision}, 'title' FROM generate_series(0, {ROWS - 1}) AS i"
    )
    start = time.perf_counter()
    with Session(engine) as session, session.begin():
        first = 0 if model in {Stamped, GuardedAndStamped} else next_revisions(session, owner, ROWS)[0]
        session.execute(
            insert, {"owner": owner, "first": first} if ":first" in insert.text else {"owner": owner}
        )
    return time.perf_counter() - start


def insert_flush(engine: sa.Engine, model: Model, owner: UUID) -> float:
    """Flush new objects of a tracked session."""
    with TrackedSession(engine) as session, session.begin():
        session.add_all(model(owner_id=owner, title="title") for _ in range(ROWS))
        start = time.perf_counter()
        session.flush()
        return time.perf_counter() - start


def update_flush(engine: sa.Engine, model: Model, owner: UUID) -> float:
    """Flush changed objects of a tracked session."""
    insert_flush(engine, model, owner)
    with TrackedSession(engine) as session, session.begin():
        for row in session.scalars(sa.select(model)):
            row.title = "another"
        start = time.perf_counter()
        session.flush()
        return time.perf_counter() - start


def update_each(engine: sa.Engine, model: Model, owner: UUID) -> float:
    """Change a row in each of many transactions."""
    insert_flush(engine, model, owner)
    allocated = sa.text(
        "WITH allocated AS (UPDATE sync_revisions SET last_revision = last_revision + 1"
        " WHERE owner_id = :owner RETURNING last_revision)"
        f" UPDATE {model.__tablename__} SET title = :title, updated_at = clock_timestamp(),"
        " revision = last_revision FROM allocated WHERE id = :id"
    )
    stamped = sa.text(f"UPDATE {model.__tablename__} SET title = :title WHERE id = :id")
    with Session(engine) as session:
        ids = session.scalars(sa.select(model.id).limit(300)).all()
    start = time.perf_counter()
    with engine.connect() as connection:
        for row_id in ids:
            if model in {Stamped, GuardedAndStamped}:
                connection.execute(stamped, {"title": "another", "id": row_id})
            else:
                connection.execute(allocated, {"title": "another", "id": row_id, "owner": owner})
            connection.commit()
    return time.perf_counter() - start


def purge(engine: sa.Engine, rounds: int) -> None:
    """Print what a purge of 50,000 tombstones takes."""
    seconds: dict[str, list[float]] = {}
    for _ in range(rounds):
        for model in MODELS:
            with_guard(engine, on=model in {Guarded, GuardedAndStamped})
            with sessionmaker(engine, class_=TrackedSession).begin() as session:
                for _ in range(50):
                    owner = uuid4()
                    ensure_owner(session, owner)
                    session.add_all(model(owner_id=owner, title="title") for _ in range(ROWS))
                    session.flush()
                    soft_delete_where(session, model, model.owner_id == owner)
                    session.expunge_all()
            spec = TombstoneTable.for_model(model)
            start = time.perf_counter()
            done = purge_tombstones(engine, [spec], datetime.now(UTC) + timedelta(hours=1), 1_000)
            seconds.setdefault(model.__tablename__, []).append(time.perf_counter() - start)
            assert done.deleted == 50 * ROWS, done
    report("a purge of 50,000 tombstones", seconds)


if __name__ == "__main__":
    main()

"""Retries: what is run again, how often, and what is left of the run that failed."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from anyio.from_thread import BlockingPortal
from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import baukit_sync
from baukit_sync import InvalidArgumentError, UnknownOwnerError, aio, next_revision, retry
from baukit_sync.retry import Backoff
from tests.support.product import Note
from tests.support.threads import together
from tests.support.ways import Admin, Database

Body = Callable[[Any], Any]

NO_DELAY = timedelta(0)

INSERT = "INSERT INTO notes (id, owner_id, revision, title) VALUES (gen_random_uuid(), :owner, 1, :title)"


class Retrying:
    """``retry_transaction`` in a test's way, with a session or a connection."""

    def __init__(self, db: Database, handle: str) -> None:
        """Take the bodies of all ways: they get a ``Session`` or a ``Connection``."""
        self.db = db
        self.handle = handle
        self.attempts: list[Any] = []

    def factory(self, **options: Any) -> Any:
        """Return a factory of the handle's kind."""
        if self.handle == "connection":
            return self.db.engine
        return (async_sessionmaker if self.db.is_async else sessionmaker)(self.db.engine, **options)

    def run(self, body: Body, **options: Any) -> Any:
        """Run a unit of work; its attempts are counted."""

        def counted(unit: Any) -> Any:
            self.attempts.append(unit)
            return body(unit)

        async def work(unit: Any) -> Any:
            return await unit.run_sync(counted)

        options = {"first_delay": NO_DELAY, **options}
        if self.db.is_async:
            return self.db.call(aio.retry_transaction, self.factory(), work, **options)
        return baukit_sync.retry_transaction(self.factory(), counted, **options)


@pytest.fixture(params=["session", "connection"])
def handle(request: pytest.FixtureRequest) -> str:
    """What the unit of work gets."""
    return str(request.param)


@pytest.fixture
def retrying(db: Database, handle: str) -> Retrying:
    """The function under test, at READ COMMITTED."""
    return Retrying(db, handle)


@contextmanager
def isolated(retrying: Retrying, level: str) -> Iterator[Retrying]:
    """Take the function under test to another isolation level."""
    with retrying.db.another(isolation_level=level) as db:
        yield Retrying(db, retrying.handle)


@pytest.fixture
def rival(database_url: sa.URL) -> Iterator[sa.Engine]:
    """Connections of someone else, as strict as they can be."""
    engine = sa.create_engine(database_url, isolation_level="SERIALIZABLE")
    yield engine
    engine.dispose()


@pytest.fixture
def notes(admin: Admin, owner: UUID) -> UUID:
    """An owner with the notes ``a`` and ``b``."""
    for title in "ab":
        admin.sql(INSERT, owner=owner, title=title)
    return owner


def append(unit: Any, title: str, text: str) -> None:
    """Add to the title of the notes that begin so."""
    statement = sa.text("UPDATE notes SET title = title || :text WHERE title LIKE :title || '%'")
    unit.execute(statement, {"text": text, "title": title})


def titles(admin: Admin) -> list[str]:
    """Return all titles in order."""
    return [title for (title,) in admin.sql("SELECT title FROM notes ORDER BY title")]


def end_connection(unit: Any, admin: Admin) -> None:
    """End the server's side of a connection, and wait until it is gone."""
    pid = unit.execute(sa.text("SELECT pg_backend_pid()")).scalar()
    assert admin.scalar("SELECT pg_terminate_backend(:pid, 5000)", pid=pid)


def cut_connection(unit: Any, admin: Admin) -> None:
    """Break the network of a connection: nobody says so, and no SQLSTATE comes."""
    connection: Connection = unit if isinstance(unit, Connection) else unit.connection()
    driver: Any = connection.connection.driver_connection
    if connection.dialect.driver == "asyncpg":
        driver.terminate()
    else:
        with socket.socket(fileno=os.dup(driver.fileno())) as network:
            network.shutdown(socket.SHUT_RDWR)


def failing(state: str) -> Body:
    """Return a body that the database fails with this SQLSTATE."""

    def body(unit: Any) -> None:
        unit.execute(sa.text(f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END $$"))

    return body


def test_a_run_without_trouble_commits_once_and_returns_its_result(
    retrying: Retrying, admin: Admin, notes: UUID
) -> None:
    """It runs in a transaction of its own."""

    def body(unit: Any) -> str:
        assert unit.in_transaction()
        append(unit, "a", "!")
        return "done"

    assert "done" == retrying.run(body)
    assert 1 == len(retrying.attempts)
    assert ["a!", "b"] == titles(admin)


def test_a_serialization_failure_is_run_again(
    retrying: Retrying, admin: Admin, notes: UUID, rival: sa.Engine
) -> None:
    """From the first read on: the second run sees what the rival has committed."""
    seen = []

    def body(unit: Any) -> None:
        seen.append(unit.execute(sa.text("SELECT title FROM notes WHERE title LIKE 'a%'")).scalar())
        if len(seen) == 1:
            with rival.begin() as connection:
                append(connection, "a", "1")
        append(unit, "a", "2")

    with isolated(retrying, "REPEATABLE READ") as repeatable:
        repeatable.run(body)

    assert ["a", "a1"] == seen
    assert ["a12", "b"] == titles(admin)


def test_a_deadlock_is_run_again(
    retrying: Retrying, admin: Admin, notes: UUID, rival: sa.Engine, background: ThreadPoolExecutor
) -> None:
    """The victim's locks are gone, so the other one ends, and the second run comes after it."""
    ended = []

    def from_b_to_a() -> None:
        with rival.connect().execution_options(isolation_level="READ COMMITTED") as connection:
            connection.execute(sa.text("SET deadlock_timeout = '1min'"))
            append(connection, "b", "1")
            append(connection, "a", "1")
            connection.commit()

    def body(unit: Any) -> None:
        unit.execute(sa.text("SET LOCAL deadlock_timeout = '10ms'"))
        if ended:
            ended[0].result(10)
        append(unit, "a", "2")
        if not ended:
            ended.append(background.submit(from_b_to_a))
            admin.wait_for_blocked()
        append(unit, "b", "2")

    retrying.run(body)

    assert 2 == len(retrying.attempts)
    assert ["a12", "b12"] == titles(admin)


@pytest.mark.parametrize("lose", [end_connection, cut_connection])
def test_a_lost_connection_is_run_again(
    retrying: Retrying, admin: Admin, notes: UUID, lose: Callable[[Any, Admin], None]
) -> None:
    """On a new connection; what the first run wrote is gone."""

    def body(unit: Any) -> None:
        append(unit, "a", "!")
        if len(retrying.attempts) == 1:
            lose(unit, admin)
        append(unit, "b", "!")

    retrying.run(body)

    assert 2 == len(retrying.attempts)
    assert ["a!", "b!"] == titles(admin)


def test_a_connection_that_is_lost_in_the_last_flush_is_run_again(
    db: Database, admin: Admin, notes: UUID
) -> None:
    """What the unit of work left pending is written before COMMIT is under way."""
    retrying = Retrying(db, "session")

    def body(session: Session) -> None:
        session.add(Note(owner_id=notes, revision=1, title="c"))
        if len(retrying.attempts) == 1:
            event.listen(session, "before_flush", lambda *_: end_connection(session, admin))

    retrying.run(body)

    assert 2 == len(retrying.attempts)
    assert ["a", "b", "c"] == titles(admin)


def test_a_serialization_failure_at_commit_is_run_again(
    retrying: Retrying, admin: Admin, notes: UUID, rival: sa.Engine
) -> None:
    """PostgreSQL has rolled back, whatever the body did before."""
    committed = []

    def total(unit: Any) -> int:
        count: int = unit.execute(sa.text("SELECT count(*) FROM notes")).scalar_one()
        return count

    def insert(unit: Any, title: str) -> None:
        unit.execute(sa.text(INSERT), {"owner": notes, "title": title})

    def body(unit: Any) -> int:
        with rival.connect() as connection:
            first = len(retrying.attempts) == 0 and not committed
            if first:
                total(connection)
            count = total(unit)
            insert(unit, f"c{count}")
            if first:
                insert(connection, f"d{count}")
                connection.commit()
                committed.append(count)
        return count

    with isolated(retrying, "SERIALIZABLE") as serializable:
        ended: list[bool] = []
        event.listen(serializable.db.sync_engine, "commit", lambda _: ended.append(True))
        result = serializable.run(body)

    assert (3, 2, 2) == (result, len(serializable.attempts), len(ended))
    assert ["a", "b", "c3", "d2"] == titles(admin)


def test_a_connection_that_is_lost_at_commit_is_not_run_again(
    retrying: Retrying, admin: Admin, notes: UUID
) -> None:
    """COMMIT may have been carried out: the work might be done twice."""

    def body(unit: Any) -> None:
        append(unit, "a", "!")
        if isinstance(unit, Session):
            event.listen(unit, "before_commit", lambda session: end_connection(session, admin))
        else:
            pid = unit.execute(sa.text("SELECT pg_backend_pid()")).scalar()
            ended = "SELECT pg_terminate_backend(:pid, 5000)"
            event.listen(unit.engine, "commit", lambda _: admin.sql(ended, pid=pid), once=True)

    with pytest.raises(DBAPIError) as caught:
        retrying.run(body)

    assert caught.value.connection_invalidated
    assert 1 == len(retrying.attempts)


@pytest.mark.parametrize("attempts", [1, 2, 7])
def test_the_number_of_runs_is_bounded(retrying: Retrying, attempts: int) -> None:
    """The last run's error comes out."""
    with pytest.raises(DBAPIError) as caught:
        retrying.run(failing("40001"), attempts=attempts)

    assert "40001" == caught.value.orig.sqlstate
    assert attempts == len(retrying.attempts)


@pytest.mark.parametrize("state", ["40001", "40P01", "57P01", "57P03", "08006"])
def test_what_passes_is_run_again(retrying: Retrying, state: str) -> None:
    """A serialization failure, a deadlock, and what a server says that goes away or is not back yet."""
    with pytest.raises(DBAPIError):
        retrying.run(failing(state), attempts=2)

    assert 2 == len(retrying.attempts)


@pytest.mark.parametrize("state", ["23505", "40002", "40003", "55P03", "57014", "25006", "P0001", "XX000"])
def test_what_does_not_pass_is_run_once(retrying: Retrying, state: str) -> None:
    """A broken constraint stays broken; a timeout or a cancelled statement is the caller's own wish."""
    with pytest.raises(DBAPIError):
        retrying.run(failing(state))

    assert 1 == len(retrying.attempts)


@pytest.mark.parametrize("error", [ValueError("no"), UnknownOwnerError()])
def test_an_error_of_the_work_comes_out_at_once(
    retrying: Retrying, admin: Admin, notes: UUID, error: Exception
) -> None:
    """And what it had written is rolled back."""

    def body(unit: Any) -> None:
        append(unit, "a", "!")
        raise error

    with pytest.raises(type(error)) as caught:
        retrying.run(body)

    assert error is caught.value
    assert 1 == len(retrying.attempts)
    assert ["a", "b"] == titles(admin)


def test_an_integrity_error_comes_out_at_once(db: Database, admin: Admin, notes: UUID) -> None:
    """Also from the flush that follows the work."""
    retrying = Retrying(db, "session")
    with pytest.raises(IntegrityError):
        retrying.run(lambda session: session.add(Note(owner_id=uuid4(), revision=1)))

    assert 1 == len(retrying.attempts)
    assert ["a", "b"] == titles(admin)


def test_each_run_has_a_new_transaction_and_leaves_nothing_open(
    retrying: Retrying, admin: Admin, notes: UUID
) -> None:
    """A failed run's session is rolled back and closed before the next begins."""
    transactions, still_open = [], []

    def body(unit: Any) -> None:
        still_open.extend(earlier.in_transaction() for earlier in retrying.attempts[:-1])
        transactions.append(unit.execute(sa.text("SELECT pg_current_xact_id()::text")).scalar())
        append(unit, "a", "!")
        if len(retrying.attempts) < 4:
            failing("40001")(unit)

    retrying.run(body)

    assert 4 == len(set(transactions)) == len({id(unit) for unit in retrying.attempts})
    assert [False] * 6 == still_open
    assert ["a!", "b"] == titles(admin)
    assert 0 == retrying.db.sync_engine.pool.checkedout()


def test_it_sleeps_without_a_connection_and_not_after_the_last_run(
    retrying: Retrying, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may need the connection meanwhile."""
    slept = []

    def sleep(seconds: float) -> None:
        slept.append((seconds, retrying.db.sync_engine.pool.checkedout()))

    async def async_sleep(seconds: float) -> None:
        sleep(seconds)

    monkeypatch.setattr(retry, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(aio, "asyncio", SimpleNamespace(sleep=async_sleep))
    with pytest.raises(DBAPIError):
        retrying.run(
            failing("40P01"), attempts=4, first_delay=timedelta(hours=1), max_delay=timedelta(hours=3)
        )

    assert [0, 0, 0] == [checked_out for _, checked_out in slept]
    assert all(0 <= seconds <= most for (seconds, _), most in zip(slept, (3600, 7200, 10800), strict=True))
    assert 3 == len({seconds for seconds, _ in slept})


ERROR = DBAPIError("", {}, SimpleNamespace(sqlstate="40001"), connection_invalidated=False)


@pytest.mark.parametrize(("attempt", "most"), [(1, 0.02), (2, 0.04), (3, 0.08), (9, 1.0), (99, 1.0)])
def test_a_delay_is_random_between_zero_and_a_bound_that_doubles(attempt: int, most: float) -> None:
    """Rivals that failed together do not come back together."""
    backoff = Backoff(100, timedelta(milliseconds=20), timedelta(seconds=1))
    delays = [backoff.seconds(attempt, ERROR, committing=False) for _ in range(2_000)]

    assert all(delay is not None and 0 <= delay <= most for delay in delays)
    assert min(map(float, delays)) < most / 50
    assert max(map(float, delays)) > most * 49 / 50


def test_a_hundred_attempts_do_not_overflow_the_delay() -> None:
    """The bound is a number of seconds that can be slept."""
    backoff = Backoff(100, timedelta.max, timedelta.max)
    delay = backoff.seconds(99, ERROR, committing=False)

    assert delay is not None
    assert delay <= timedelta.max.total_seconds()


@pytest.mark.parametrize("attempts", [0, -1, 101, True, 2.0, "3", None])
def test_attempts_out_of_range_are_refused(retrying: Retrying, attempts: Any) -> None:
    """1..100, and nothing has run."""
    with pytest.raises(InvalidArgumentError) as caught:
        retrying.run(failing("40001"), attempts=attempts)

    assert "attempts" == caught.value.argument
    assert [] == retrying.attempts


@pytest.mark.parametrize("argument", ["first_delay", "max_delay"])
@pytest.mark.parametrize("delay", [timedelta(-1), 1, 0.5, None])
def test_a_delay_that_means_nothing_is_refused(retrying: Retrying, argument: str, delay: Any) -> None:
    """A timedelta of at least zero, and nothing has run."""
    with pytest.raises(InvalidArgumentError) as caught:
        retrying.run(failing("40001"), **{argument: delay})

    assert argument == caught.value.argument
    assert [] == retrying.attempts


FACTORIES: dict[str, Callable[[Any, Any, bool], Any]] = {
    "connection": lambda engine, connection, is_async: connection,
    "session": lambda engine, connection, is_async: Session(engine),
    "maker on a connection": lambda engine, connection, is_async: _maker(is_async)(connection),
    "maker configured with a connection": lambda engine, connection, is_async: _configured(
        _maker(is_async)(), bind=connection
    ),
    "maker with a class on a connection": lambda engine, connection, is_async: _maker(is_async)(
        engine, binds={Note: connection}
    ),
    "scoped session": lambda engine, connection, is_async: (
        async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: None)
        if is_async
        else scoped_session(sessionmaker(engine))
    ),
    "class": lambda engine, connection, is_async: Session,
    "nothing": lambda engine, connection, is_async: None,
}


def _maker(is_async: bool) -> Any:
    return async_sessionmaker if is_async else sessionmaker


def _configured(maker: Any, **options: Any) -> Any:
    maker.configure(**options)
    return maker


@pytest.mark.parametrize("factory", list(FACTORIES))
def test_only_a_factory_of_transactions_of_its_own_is_taken(db: Database, factory: str) -> None:
    """In a transaction of the caller's there is nothing to run again."""
    connection: Connection | AsyncConnection = db.call(db.engine.connect)
    made = FACTORIES[factory](db.engine, connection, db.is_async)
    ran: list[Any] = []
    function: Any = aio.retry_transaction if db.is_async else baukit_sync.retry_transaction
    with pytest.raises(InvalidArgumentError) as caught:
        db.call(function, made, ran.append)
    db.call(connection.close)

    assert "factory" == caught.value.argument
    assert [] == ran


def test_concurrent_units_of_work_all_succeed(retrying: Retrying, admin: Admin, owner: UUID) -> None:
    """Writers that collide at SERIALIZABLE take turns; no revision comes twice."""
    with isolated(retrying, "SERIALIZABLE") as serializable:

        def write() -> list[int]:
            return [serializable.run(partial(next_revision, owner_id=owner), attempts=100) for _ in range(8)]

        revisions = chain.from_iterable(together(write, write, write))

    assert list(range(1, 25)) == sorted(revisions)
    assert 24 == admin.scalar("SELECT last_revision FROM sync_revisions WHERE owner_id = :id", id=owner)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_a_cancelled_sleep_does_not_run_again(
    database_url: sa.URL, portal: BlockingPortal, driver: str
) -> None:
    """The task ends, and no connection stays open."""
    db = Database(f"async-{driver}", database_url, portal)
    ran: list[AsyncConnection] = []

    async def work(connection: AsyncConnection) -> None:
        ran.append(connection)
        await connection.run_sync(failing("40001"))

    async def cancelled() -> bool:
        given_back = asyncio.Event()
        event.listen(db.sync_engine, "checkin", lambda *_: given_back.set())
        day = timedelta(days=1)
        task = asyncio.create_task(aio.retry_transaction(db.engine, work, first_delay=day, max_delay=day))
        await given_back.wait()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert portal.call(cancelled)
    assert 1 == len(ran)
    assert 0 == db.sync_engine.pool.checkedout()
    db.dispose()

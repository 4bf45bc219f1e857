"""``baukit_sync.aio``: the blocking functions again, for async sessions, connections and engines."""

from __future__ import annotations

import asyncio
import inspect
from asyncio import current_task
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
)

import baukit_sync
from baukit_sync import ResyncRequiredError, UnknownOwnerError, aio
from tests.support.product import CALLS, CUTOFF, EXPIRED, NOTES, Note, User, write_note
from tests.support.ways import Admin, Database

NEEDS_A_DATABASE = {"session", "engine", "factory"}
SERVES_BOTH = {"track"}
async_only = pytest.mark.parametrize("db", ["async-psycopg", "async-asyncpg"], indirect=True)


def blocking_functions() -> dict[str, Callable[..., Any]]:
    """Return the functions that work on a session, an engine or a factory of sessions.

    ``track`` is not one: the listeners that it puts on a session serve an async session too.
    """
    public = {name: getattr(baukit_sync, name) for name in baukit_sync.__all__ if name not in SERVES_BOTH}
    return {
        name: member
        for name, member in public.items()
        if inspect.isfunction(member) and next(iter(inspect.signature(member).parameters)) in NEEDS_A_DATABASE
    }


def arguments(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """Return the arguments after the first: name, kind and default of each."""
    _, *others = inspect.signature(function).parameters.values()
    return [(parameter.name, parameter.kind, parameter.default) for parameter in others]


def test_every_database_function_has_an_async_twin() -> None:
    """None is forgotten, and there is no other."""
    twins = [name for name in aio.__all__ if inspect.iscoroutinefunction(getattr(aio, name))]

    assert sorted(blocking_functions()) == twins
    assert {*twins, "AsyncSessionLike"} == set(aio.__all__)


@pytest.mark.parametrize("name", sorted(blocking_functions()))
def test_a_twin_takes_the_same_arguments(name: str) -> None:
    """Names, order, kinds and defaults agree; only the session is another."""
    assert arguments(getattr(baukit_sync, name)) == arguments(getattr(aio, name))


@pytest.mark.parametrize("name", sorted(blocking_functions()))
def test_a_twin_is_documented(name: str) -> None:
    """A lifted function has the blocking one's text, one written anew refers to it."""
    blocking, twin = getattr(baukit_sync, name), getattr(aio, name)

    assert blocking.__doc__ == twin.__doc__ or f"baukit_sync.{name}`" in twin.__doc__
    assert (name, "baukit_sync.aio") == (twin.__name__, twin.__module__)


def test_every_function_on_a_session_is_called_by_the_tests_of_all_functions() -> None:
    """Those that try AUTOCOMMIT, read-only transactions and Core connections know every function."""
    first = {
        name: next(iter(inspect.signature(function).parameters))
        for name, function in blocking_functions().items()
    }
    assert sorted(name for name, parameter in first.items() if parameter == "session") == sorted(CALLS)


@async_only
@pytest.mark.parametrize("call", ["next_revision", "guard_pull_cursor", "current_revision_for_update"])
def test_a_cancelled_call_lets_go_of_its_connection(
    db: Database, admin: Admin, owner: UUID, call: str
) -> None:
    """The cancellation passes through, nobody waits any more, and the pool is whole."""

    async def wait(blocked: asyncio.Event) -> None:
        async with AsyncSession(db.engine) as session, session.begin():
            blocked.set()
            await getattr(aio, call)(session, owner, *[0] * (call == "guard_pull_cursor"))

    async def cancel_while_waiting() -> bool:
        blocked = asyncio.Event()
        task = asyncio.create_task(wait(blocked))
        await blocked.wait()
        await asyncio.to_thread(admin.wait_for_blocked)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return True
        return False

    with db.begin() as unit:
        unit.sql("SELECT FROM sync_revisions FOR UPDATE")
        was_cancelled = db.call(cancel_while_waiting)
        still_out = db.sync_engine.pool.checkedout()

    assert was_cancelled
    assert 1 == still_out
    with db.begin() as unit:
        assert 1 == unit.next_revision(owner)


@async_only
def test_a_timeout_ends_a_call(db: Database, admin: Admin, owner: UUID) -> None:
    """``asyncio.timeout`` works around a call, and the same session goes on after a rollback."""

    async def wait_in_vain() -> int:
        async with AsyncSession(db.engine) as session:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await aio.next_revision(session, owner)
            await session.rollback()
            return await aio.current_revision(session, owner) or 0

    with db.begin() as unit:
        unit.next_revision(owner)
        seen = db.call(wait_in_vain)

    assert 0 == seen


@async_only
def test_typed_errors_pass_through(db: Database, owner: UUID) -> None:
    """The kit's own, with their fields."""
    with db.begin() as unit:
        write_note(unit, owner)
        write_note(unit, owner, deleted_at=EXPIRED)
    db.purge([NOTES], CUTOFF, 10)
    with db.begin() as unit:
        with pytest.raises(UnknownOwnerError):
            unit.next_revision(uuid4())
        with pytest.raises(ResyncRequiredError) as caught:
            unit.guard_pull_cursor(owner, 1)

    assert 2 == caught.value.horizon_revision


@async_only
def test_database_errors_pass_through(db: Database) -> None:
    """As SQLAlchemy raised them: here a counter for a user that does not exist."""
    with db.begin() as unit:
        with pytest.raises(IntegrityError) as caught:
            unit.ensure_owner(uuid4())
        unit.rollback()

    assert "23503" == getattr(caught.value.orig, "sqlstate", None)


@async_only
def test_a_scoped_session_works(db: Database, owner: UUID) -> None:
    """Every call gets the session of the current task."""

    async def body() -> list[int]:
        scoped = async_scoped_session(async_sessionmaker(db.engine), scopefunc=current_task)
        try:
            async with scoped.begin():
                return [await aio.next_revision(scoped, owner), await aio.next_revision(scoped, owner)]
        finally:
            await scoped.remove()

    assert [1, 2] == db.call(body)


@async_only
def test_results_are_plain_values_after_the_commit(db: Database, owner: UUID) -> None:
    """Sessions expire what they hold at a commit; what the kit returned needs no refresh."""

    async def body() -> tuple[Any, ...]:
        async with AsyncSession(db.engine, expire_on_commit=True) as session:
            async with session.begin():
                revision = await aio.next_revision(session, owner)
                session.add(Note(owner_id=owner, revision=revision))
                blocks = await aio.allocate_revisions(session, {owner: 2})
                window = await aio.guard_pull_cursor(session, owner, 0)
            return revision, blocks[owner], window.owner_id, window.through

    assert (1, range(2, 4), owner, 3) == db.call(body)


@async_only
def test_tasks_on_one_event_loop_allocate_without_gaps(db: Database, admin: Admin, owner: UUID) -> None:
    """A task that waits for a counter blocks its connection, not the loop."""

    async def write_many() -> None:
        async with AsyncSession(db.engine) as session:
            for _ in range(10):
                async with session.begin():
                    revision = await aio.next_revision(session, owner)
                    session.add(Note(owner_id=owner, revision=revision))

    async def write_all() -> None:
        await asyncio.gather(*[write_many() for _ in range(8)])

    db.call(write_all)

    rows = admin.sql("SELECT revision FROM notes ORDER BY revision")
    assert list(range(1, 81)) == [revision for (revision,) in rows]


@async_only
def test_a_new_users_counter_is_created_in_the_same_flush(db: Database, admin: Admin) -> None:
    """``ensure_owner`` flushes an async session, too."""
    owner = uuid4()

    async def body() -> None:
        async with AsyncSession(db.engine) as session, session.begin():
            session.add(User(id=owner))
            await aio.ensure_owner(session, owner)

    db.call(body)

    assert 0 == admin.scalar("SELECT last_revision FROM sync_revisions WHERE owner_id = :id", id=owner)

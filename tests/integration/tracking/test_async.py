"""Async code as a product writes it, with ``expire_on_commit=True``; other tests share one blocking body."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from anyio import create_task_group
from anyio.from_thread import BlockingPortal
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import selectinload

from baukit_sync import (
    HardDeleteError,
    OwnerChangedError,
    UnknownOwnerError,
    UnstampedWriteError,
    aio,
    track,
)
from tests.integration.tracking.models import Draft, Item, Note, Step, TodoList, User

Body = Callable[[async_sessionmaker[AsyncSession], UUID], Awaitable[None]]


@asynccontextmanager
async def tracked(url: sa.URL, driver: str) -> AsyncIterator[async_sessionmaker[AsyncSession]]:
    """Make a tracked factory, and close its connections at the end."""
    engine = create_async_engine(url.set(drivername=f"postgresql+{driver}"))
    factory = async_sessionmaker(engine)
    track(factory)
    try:
        yield factory
    finally:
        await engine.dispose()


@pytest.fixture(params=["psycopg", "asyncpg"])
def run(
    request: pytest.FixtureRequest, empty_url: sa.URL, me: UUID, portal: BlockingPortal
) -> Callable[[Body], None]:
    """Run a coroutine function with a tracked factory and an owner, on the event loop."""

    async def with_factory(body: Body) -> None:
        async with tracked(empty_url, request.param) as factory:
            await body(factory, me)

    return lambda body: portal.call(with_factory, body)


def test_add_change_and_delete(run: Callable[[Body], None]) -> None:
    """Each flush stamps; what was expired by a commit is refreshed before it is read."""

    async def body(factory: async_sessionmaker[AsyncSession], me: UUID) -> None:
        revisions = []
        async with factory() as session:
            note = Note(owner_id=me)
            session.add(note)
            await session.commit()
            await session.refresh(note)
            revisions.append(note.revision)
            note.title = "bread"
            await session.commit()
            await session.refresh(note)
            revisions.append(note.revision)
            await session.delete(note)
            await session.commit()
            await session.refresh(note)
            revisions.append(note.revision)

            assert note.deleted_at is not None
        assert [1, 2, 3] == revisions

    run(body)


def test_changing_what_a_commit_has_expired(run: Callable[[Body], None]) -> None:
    """The flush loads the owner that it needs; the product has loaded nothing."""

    async def body(factory: async_sessionmaker[AsyncSession], me: UUID) -> None:
        async with factory() as session:
            note, todo = Note(owner_id=me), TodoList(owner_id=me)
            session.add_all([note, todo])
            await session.commit()
            note.title, todo.title = "bread", "shopping"
            await session.commit()
        async with factory.begin() as session:
            assert 4 == await aio.current_revision(session, me)

    run(body)


def test_a_delete_buries_children_that_are_not_loaded(run: Callable[[Body], None]) -> None:
    """The flush loads them where I/O is allowed."""

    async def body(factory: async_sessionmaker[AsyncSession], me: UUID) -> None:
        async with factory.begin() as session:
            todo = TodoList(id=uuid4(), owner_id=me)
            session.add(Item(owner_id=me, parent=todo, steps=[Step(owner_id=me)]))
            key = todo.id
        async with factory.begin() as session:
            await session.delete(await session.get_one(TodoList, key))
        async with factory() as session:
            for model in (TodoList, Item, Step):
                row = (await session.scalars(sa.select(model))).one()

                assert (True, True) == (row.deleted_at is not None, 3 < row.revision <= 6)

    run(body)


def test_an_orphan_becomes_a_tombstone(run: Callable[[Body], None]) -> None:
    """Taken from a collection that was loaded eagerly, as async code does."""

    async def body(factory: async_sessionmaker[AsyncSession], me: UUID) -> None:
        async with factory.begin() as session:
            session.add(Item(owner_id=me, parent=TodoList(owner_id=me)))
        async with factory.begin() as session:
            with_items = sa.select(TodoList).options(selectinload(TodoList.items))
            todo = (await session.scalars(with_items)).one()
            (item,) = todo.items
            todo.items.clear()
            await session.flush()

            assert (3, True) == (item.revision, item.deleted_at is not None)

    run(body)


def test_refusals_reach_the_caller(run: Callable[[Body], None]) -> None:
    """Of a flush and of a statement; the session stays usable."""

    async def body(factory: async_sessionmaker[AsyncSession], me: UUID) -> None:
        async with factory.begin() as session:
            session.add_all([note := Note(owner_id=me), Draft(owner_id=me)])
            await session.flush()
            for statement, refusal in (
                (sa.update(Note).values(title="x"), UnstampedWriteError),
                (sa.delete(Note), HardDeleteError),
                (sa.text("DELETE FROM notes"), UnstampedWriteError),
            ):
                with pytest.raises(refusal):
                    await session.execute(statement)
                with pytest.raises(refusal):
                    await session.stream(statement)
            note.owner_id = uuid4()
            with pytest.raises(OwnerChangedError):
                await session.flush()
            note.owner_id = me
        async with factory.begin() as session:
            assert 2 == await aio.current_revision(session, me)

    run(body)


def test_an_owner_without_a_counter_is_refused(run: Callable[[Body], None]) -> None:
    """With one, the same flush works."""

    async def body(factory: async_sessionmaker[AsyncSession], me: UUID) -> None:
        async with factory.begin() as session:
            session.add(user := User())
            await session.flush()
            session.add(note := Note(owner=user))
            with pytest.raises(UnknownOwnerError):
                await session.flush()
            with session.no_autoflush:
                await aio.ensure_owner(session, user.id)
            await session.flush()

            assert 1 == note.revision

    run(body)


def test_a_savepoint_that_is_rolled_back_gives_its_revisions_back(run: Callable[[Body], None]) -> None:
    """What was added inside can be added again outside."""

    async def body(factory: async_sessionmaker[AsyncSession], me: UUID) -> None:
        async with factory.begin() as session:
            note = Note(owner_id=me)
            async with session.begin_nested() as savepoint:
                session.add(note)
                await session.flush()
                inside = note.revision
                await savepoint.rollback()
            session.add(note)
            await session.flush()

            assert (1, 1) == (inside, note.revision)

    run(body)


def test_tasks_with_sessions_of_their_own_get_revisions_without_gap_or_duplicate(
    run: Callable[[Body], None],
) -> None:
    """They write for one owner at the same time, each in its own transaction."""

    async def body(factory: async_sessionmaker[AsyncSession], me: UUID) -> None:
        revisions: list[int] = []

        async def write() -> None:
            async with factory.begin() as session:
                note = Note(owner_id=me)
                session.add(note)
                await session.flush()
                revisions.append(note.revision)

        async with create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(write)

        assert list(range(1, 11)) == revisions

    run(body)


def test_a_scoped_session(run: Callable[[Body], None]) -> None:
    """It shares the factory that was tracked."""

    async def body(factory: async_sessionmaker[AsyncSession], me: UUID) -> None:
        scoped: async_scoped_session[AsyncSession] = async_scoped_session(factory, lambda: 1)
        track(scoped)
        scoped.add(note := Note(owner_id=me))
        await scoped.flush()
        revision = note.revision
        await scoped.commit()
        await scoped.remove()

        assert 1 == revision

    run(body)

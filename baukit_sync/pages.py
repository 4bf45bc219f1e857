"""Pages of a pull: the rows of several tables, in one order of revisions.

One statement finds where the page ends, and one for each table that has rows reads them. Both are range scans
over ``(owner_id, revision)``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.orm import Mapper, undefer, with_polymorphic
from sqlalchemy.orm.attributes import instance_dict

from baukit_sync.errors import InvalidArgumentError
from baukit_sync.pull import PullWindow
from baukit_sync.transaction import OwnerId, SessionLike, check_integer, execute, flush

AnySelect: TypeAlias = "sa.Select[*tuple[Any, ...]]"

MAX_PAGE_LIMIT = 100_000

_REVISION, _DELETED = "baukit_sync_revision", "baukit_sync_deleted"

_EXPECTED_SOURCES = "classes with owner_id, revision and deleted_at, or PullSources, at least one"


@dataclass(frozen=True, slots=True, eq=False)
class PullSource:
    """A named SELECT to pull from: a child that gets its owner through a parent, or a filtered view.

    ::

        ATTACHMENTS = PullSource(
            "attachments",
            sa.select(Attachment).join(Item),
            owner_id=Item.owner_id,
            revision=Attachment.revision,
            deleted_at=Attachment.deleted_at,
        )

    Build it once, at import: the statements of a list of sources are kept.

    Attributes:
        name: What the changes call their source.
        select: What to read, without order, limit or offset. A filter hides rows for good: it must not depend
            on columns that change without a new revision of the row.
        owner_id: The column that says whose row it is.
        revision: The column of the row's revision.
        deleted_at: The column that makes it a tombstone.

    Raises:
        InvalidArgumentError: ``name`` is not text, ``select`` is not such a SELECT, or one of the others is
            not a column.
    """

    name: str
    select: AnySelect
    owner_id: sa.ColumnExpressionArgument[Any]
    revision: sa.ColumnExpressionArgument[int]
    deleted_at: sa.ColumnExpressionArgument[Any]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidArgumentError("name", "what the changes call their source")
        # An order would come before the revision's, and a limit would cut rows out of the page.
        if not isinstance(self.select, sa.Select) or not _is_whole(self.select):
            raise InvalidArgumentError("select", "a SELECT without order, limit or offset")
        for field in ("owner_id", "revision", "deleted_at"):
            if not isinstance(getattr(self, field), sa.SQLColumnExpression):
                raise InvalidArgumentError(field, "a column")


Source: TypeAlias = PullSource | type[Any]
"""A tracked class, or a named SELECT."""


# A page makes thousands of them: a tuple costs half of what a frozen dataclass does.
class Change(NamedTuple):
    """One row of a page.

    Attributes:
        source: The class's table, or the :class:`PullSource`'s name.
        owner_id: Whose row it is.
        revision: The revision that the row carries.
        deleted: Whether it is a tombstone.
        row: The ORM instance; from a connection or a select of columns, a mapping of its columns.
    """

    source: str
    owner_id: OwnerId
    revision: int
    deleted: bool
    row: Any


@dataclass(frozen=True, slots=True)
class PullPage:
    """A page of changes.

    Attributes:
        changes: The rows, tombstones included, in revision order for each owner.
        next_cursors: For each owner, what its client sends with the next pull.
        rebuilds: For each owner whose client started from 0 and is not through, the ``rebuild`` that it sends
            along.
        has_more: Whether a window holds rows beyond the page. With ``through=window.through`` the next
            ``guard_pull_cursor`` pulls on up to the same bound while writers go on.
    """

    changes: tuple[Change, ...]
    next_cursors: Mapping[OwnerId, int]
    rebuilds: Mapping[OwnerId, int]
    has_more: bool

    @property
    def next_cursor(self) -> int:
        """The next cursor of a page from one window.

        Raises:
            ValueError: The page is from several windows; see :attr:`next_cursors`.
        """
        (cursor,) = self.next_cursors.values()
        return cursor

    @property
    def rebuild(self) -> int | None:
        """The ``rebuild`` of a page from one window."""
        return next(iter(self.rebuilds.values()), None)


def pull_page(
    session: SessionLike,
    window: PullWindow | Iterable[PullWindow],
    sources: Iterable[Source],
    *,
    limit: int,
    mappings: bool = False,
) -> PullPage:
    """Read the next page of one or several windows, in the transaction whose guard gave them.

    A page ends between two revisions, never within one: rows that share a revision come together, and only
    then may a page exceed its limit. The next cursor stands below the first row that was left out; with none
    left it is ``window.through``, also when a filter left the page empty. Several windows are read one after
    the other. Pending ORM objects are flushed first, also where autoflush is off.

    The session's own ``do_orm_execute`` hooks see the statements for instances, with the execution option
    ``sync_pull``: one that hides deleted rows must leave these alone, or no client hears of a deletion.

    Args:
        session: The session or connection that the guard was called on.
        window: What ``guard_pull_cursor`` returned, or the windows among what ``guard_pull_cursors`` did.
        sources: Tracked classes and named SELECTs, at least one.
        limit: How many rows, 1..100,000.
        mappings: Return rows as dicts of columns instead of ORM instances; a connection always does.

    Returns:
        The page. Instances that the session had loaded before are refreshed.

    Raises:
        InvalidArgumentError: ``limit`` is out of range, ``window`` or ``sources`` holds something else,
            ``sources`` is empty, or two windows are of one owner. Nothing was sent.
        UnsafeTransactionError: The connection is in AUTOCOMMIT; nothing was sent.

    Sends one statement for each window, and one for each source that has rows in it; none for an empty
    window. Rows of one revision that exceed the limit cost one more, and one for every source. Locks nothing
    beyond the guard's lock. Commits nothing. Source: contract section 4.
    """
    check_integer("limit", limit, least=1, most=MAX_PAGE_LIMIT)
    windows = _windows(window)
    reader = _reader(_sources(sources))
    # Refreshing an instance overwrites what it has pending.
    flush(session, always=True)
    changes: list[Change] = []
    cursors = {each.owner_id: each.after for each in windows}
    unread = [each for each in windows if each.after < each.through]
    while unread:
        end = reader.end_of_page(session, unread[0], limit - len(changes))
        changes += reader.read(session, unread[0], end, mappings=mappings)
        cursors[unread[0].owner_id] = end.through
        if end.more:
            break
        unread[0] = replace(unread[0], after=end.through)
        if unread[0].after == unread[0].through:
            del unread[0]
    rebuilds = {
        each.owner_id: each.rebuild
        for each in windows
        if each.rebuild is not None and cursors[each.owner_id] < each.rebuild
    }
    return PullPage(tuple(changes), cursors, rebuilds, has_more=bool(unread))


class _End(NamedTuple):
    """Where a page ends in a window.

    Attributes:
        through: The last revision of the page.
        sources: Which sources have rows up to it.
        more: Whether a row beyond it was found; if not, there may be one that was not looked for.
    """

    through: int
    sources: list[int]
    more: bool


class _Reader:
    """The statements of one list of sources."""

    def __init__(self, sources: Sequence[PullSource]) -> None:
        self._end = _end_statement(sources)
        self._sources = [_SourceReader(source) for source in sources]

    def end_of_page(self, session: SessionLike, window: PullWindow, room: int) -> _End:
        """Find where a page ends that has room for so many rows; with no room, whether there are any."""
        examined = max(room, 0) + 1
        parameters = {**_bounds(window, window.through), "examined": examined}
        found: Sequence[Any] = execute(session, self._end, parameters).all()
        if sum(row.examined for row in found) < examined:
            return _End(window.through, [row.source for row in found], more=False)
        if room < 1:
            return _End(window.after, [], more=True)
        last: int = max(row.last for row in found)
        if min(row.first for row in found) == last:
            # More rows of one revision than there is room for, and perhaps in sources that were cut off.
            return _End(last, list(range(len(self._sources))), more=False)
        # One row more than there is room for: leave out all that share its revision.
        return _End(last - 1, [row.source for row in found if row.first < last], more=True)

    def read(self, session: SessionLike, window: PullWindow, end: _End, *, mappings: bool) -> list[Change]:
        """Read the rows of the page, in revision order."""
        changes: list[Change] = []
        # A session that has loaded nothing has nothing to refresh, and to look for it takes time.
        refresh = not isinstance(session, Connection) and bool(session.identity_map)
        for number in sorted(end.sources):
            source = self._sources[number]
            if mappings or isinstance(session, Connection) or not source.is_entity:
                changes += source.mappings(session, window, end)
            else:
                changes += source.instances(session, window, end, refresh=refresh)
        return sorted(changes, key=attrgetter("revision")) if len(end.sources) > 1 else changes


class _SourceReader:
    """The statements of one source."""

    def __init__(self, source: PullSource) -> None:
        deleted_at: Any = source.deleted_at
        facts = sa.label(_REVISION, source.revision), deleted_at.is_not(None).label(_DELETED)
        # An entity that is selected by its columns loads nothing eagerly.
        columns = (*source.select.selected_columns, *facts)
        by_columns = source.select.with_only_columns(*columns, maintain_column_froms=True)
        attributes = _attributes(source)
        by_entity = source.select.add_columns(*facts)
        if attributes:
            by_entity = source.select.options(*(undefer(each) for each in attributes))
        self.is_entity = _is_entity(source.select)
        self._name = source.name
        self._mappings = _within(source, by_columns)
        self._instances = _within(source, by_entity)
        self._attributes = [each.key for each in attributes]

    def mappings(self, session: SessionLike, window: PullWindow, end: _End) -> list[Change]:
        """Read the rows as dicts."""
        name, owner_id = self._name, window.owner_id
        rows: Any = execute(session, self._mappings, _bounds(window, end.through))
        columns = tuple(rows.keys())[:-2]
        return [
            Change(name, owner_id, row[-2], row[-1], dict(zip(columns, row, strict=False))) for row in rows
        ]

    def instances(self, session: Any, window: PullWindow, end: _End, *, refresh: bool) -> list[Change]:
        """Read the rows as ORM instances; joined eager loading needs them made unique."""
        name, owner_id = self._name, window.owner_id
        options = {"populate_existing": refresh, "sync_pull": True}
        rows = session.execute(self._instances, _bounds(window, end.through), execution_options=options)
        if not self._attributes:
            return [
                Change(name, owner_id, revision, deleted, row) for row, revision, deleted in rows.unique()
            ]
        # They are in the instance: two columns more would cost a third of the page.
        revision, deleted_at = self._attributes
        loaded = ((row, instance_dict(row)) for row in rows.scalars().unique())
        return [
            Change(name, owner_id, values[revision], values[deleted_at] is not None, row)
            for row, values in loaded
        ]


def _windows(window: PullWindow | Iterable[PullWindow]) -> tuple[PullWindow, ...]:
    windows = tuple(window) if isinstance(window, Iterable) else (window,)
    if not all(isinstance(each, PullWindow) for each in windows):
        raise InvalidArgumentError("window", "a PullWindow, or several")
    if len({each.owner_id for each in windows}) < len(windows):
        raise InvalidArgumentError("window", "one window for each owner")
    return windows


def _sources(sources: Iterable[Source]) -> tuple[Source, ...]:
    listed = tuple(sources) if isinstance(sources, Iterable) else ()
    if not listed or not all(isinstance(each, PullSource | type) for each in listed):
        raise InvalidArgumentError("sources", _EXPECTED_SOURCES)
    return listed


@functools.lru_cache(maxsize=256)
def _reader(sources: tuple[Source, ...]) -> _Reader:
    return _Reader([_named(source) for source in sources])


def _named(source: Source) -> PullSource:
    if isinstance(source, PullSource):
        return source
    mapper: Mapper[Any] | None = sa.inspect(source, raiseerr=False)
    if mapper is None or not {"owner_id", "revision", "deleted_at"} <= set(mapper.columns.keys()):
        raise InvalidArgumentError("sources", _EXPECTED_SOURCES)
    subclasses = [
        each.class_ for each in mapper.self_and_descendants if each is not mapper and not each.concrete
    ]
    # With the columns of its subclasses, or each of their rows would load them by a statement of its own.
    entity: Any = with_polymorphic(mapper.class_, subclasses) if subclasses else mapper.class_
    return PullSource(
        name=getattr(mapper.local_table, "name", mapper.class_.__name__),
        select=sa.select(entity),
        owner_id=entity.owner_id,
        revision=entity.revision,
        deleted_at=entity.deleted_at,
    )


def _is_whole(select: AnySelect) -> bool:
    return select.order_by(None).limit(None).offset(None).compare(select)


def _is_entity(select: AnySelect) -> bool:
    columns = select.column_descriptions
    return len(columns) == 1 and columns[0]["expr"] is columns[0].get("entity")


def _attributes(source: PullSource) -> list[Any]:
    """Return ``revision`` and ``deleted_at`` if they are attributes of the selected entity, else nothing."""
    attributes: list[Any] = [source.revision, source.deleted_at]
    entity = sa.inspect(source.select.column_descriptions[0].get("entity"), raiseerr=False)
    of_entity = (getattr(each, "parent", None) is entity for each in attributes)
    return attributes if _is_entity(source.select) and all(of_entity) else []


def _bounds(window: PullWindow, through: int) -> dict[str, Any]:
    return {"owner": window.owner_id, "after": window.after, "through": through}


def _within(source: PullSource, select: AnySelect) -> AnySelect:
    """Keep the owner's rows in the window, in revision order: a range scan over (owner_id, revision)."""
    owner_id: Any = source.owner_id
    revision: Any = source.revision
    return select.where(
        owner_id == sa.bindparam("owner"),
        revision > sa.bindparam("after"),
        revision <= sa.bindparam("through"),
    ).order_by(revision)


def _end_statement(sources: Sequence[PullSource]) -> AnySelect:
    """Build the statement that examines as many rows as a page holds, and one more."""
    examined = sa.bindparam("examined", type_=sa.BigInteger)
    scans = [
        _within(
            source,
            source.select.with_only_columns(
                sa.literal_column(str(number), sa.Integer).label("source"),
                sa.label("revision", source.revision),
                maintain_column_froms=True,
            ),
        ).limit(examined)
        for number, source in enumerate(sources)
    ]
    scanned = sa.union_all(*scans).subquery("scanned")
    page = sa.select(scanned).order_by(scanned.c.revision).limit(examined).subquery("page")
    return sa.select(
        page.c.source,
        sa.func.min(page.c.revision).label("first"),
        sa.func.max(page.c.revision).label("last"),
        sa.func.count().label("examined"),
    ).group_by(page.c.source)

"""One batch of a table that the kit knows: one statement for many owners, or three for a single one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeAlias

from sqlalchemy import Connection

from baukit_sync.errors import DeleteMismatchError
from baukit_sync.purge.batch import Tombstone, key_parameters, raise_horizons
from baukit_sync.purge.isolate import remove_what_may_go
from baukit_sync.purge.keys import names
from baukit_sync.purge.one_owner import OneOwnerStatements
from baukit_sync.purge.run import CHECK_AT_ONCE, PurgeRun
from baukit_sync.purge.shape import Shape
from baukit_sync.purge.statements import Statements

Key: TypeAlias = tuple[Any, ...]
"""The values of the columns that lead to an owner."""


class Purged(NamedTuple):
    """What a batch did to a key whose owner it could lock.

    Attributes:
        key: The key.
        deleted: How many rows.
        youngest: The latest ``deleted_at`` of them.
    """

    key: Key
    deleted: int
    youngest: datetime | None


class Batches(Protocol):
    """What the drain needs of either kind."""

    @property
    def statements(self) -> Statements | OneOwnerStatements:
        """The statements to scan and look with."""
        ...

    @property
    def most_keys(self) -> int | None:
        """How many keys one batch takes; ``None`` for as many as fit."""
        ...

    def keys(self, keys: Sequence[Key]) -> dict[str, Any]:
        """Return the parameters that name some keys."""
        ...

    def purge(self, keys: Sequence[Key], since: datetime, room: int) -> list[Purged]:
        """Commit a batch; only keys whose owners were locked are in the answer."""
        ...

    def purge_on(
        self, connection: Connection, keys: Sequence[Key], since: datetime, room: int
    ) -> list[Purged]:
        """Do a batch in a transaction that is open."""
        ...

    def raise_horizons(self, connection: Connection, rows: Sequence[Any]) -> None:
        """Raise the horizons of locked owners to what is about to go."""
        ...


class ManyOwners:
    """Batches of as many owners as fit, each batch one statement."""

    def __init__(self, run: PurgeRun, statements: Statements, most_keys: int | None) -> None:
        """Prepare."""
        self.statements = statements
        self.most_keys = most_keys
        self._run = run

    def keys(self, keys: Sequence[Key]) -> dict[str, Any]:
        """Return the parameters that name some keys."""
        return dict(key_parameters(keys[0], keys))

    def purge(self, keys: Sequence[Key], since: datetime, room: int) -> list[Purged]:
        """Commit a batch, in one round trip."""
        bounds = self._bounds(keys, since, room)
        return _purged(keys, self._run.execute(self.statements.purge_and_go_on, bounds))

    def purge_on(
        self, connection: Connection, keys: Sequence[Key], since: datetime, room: int
    ) -> list[Purged]:
        """Do a batch in a transaction that is open."""
        bounds = self._bounds(keys, since, room)
        return _purged(keys, connection.execute(self.statements.purge, bounds).all())

    def raise_horizons(self, connection: Connection, rows: Sequence[Any]) -> None:
        """Raise the horizons of locked owners to what is about to go."""
        raise_horizons(connection.execute, [Tombstone(None, row.owner_id, row.revision) for row in rows])

    def _bounds(self, keys: Sequence[Key], since: datetime, room: int) -> dict[str, Any]:
        return {**self.keys(keys), "cutoff": self._run.cutoff, "since": since, "limit": room}


class OneOwner:
    """Batches of one owner, in the statements that sharded engines take."""

    def __init__(self, run: PurgeRun, statements: OneOwnerStatements) -> None:
        """Prepare."""
        self.statements = statements
        self.most_keys = 1
        self._run = run

    def keys(self, keys: Sequence[Key]) -> dict[str, Any]:
        """Return the parameter that names the one key."""
        ((owner_id,),) = keys
        return {"key_0": owner_id}

    def purge(self, keys: Sequence[Key], since: datetime, room: int) -> list[Purged]:
        """Commit a batch."""
        with self._run.transaction() as connection:
            return self.purge_on(connection, keys, since, room)

    def purge_on(
        self, connection: Connection, keys: Sequence[Key], since: datetime, room: int
    ) -> list[Purged]:
        """Do a batch in a transaction that is open."""
        owner = self.keys(keys)
        bounds = {**owner, "cutoff": self._run.cutoff, "since": since}
        chosen = connection.execute(self.statements.choose, {**bounds, "limit": room}).one()
        if not chosen.locked:
            return []
        if not chosen.rows:
            return [Purged(keys[0], 0, None)]
        bounds |= {"limit": chosen.rows, "until": chosen.youngest, "revision": chosen.revision}
        connection.execute(self.statements.raise_horizon, bounds)
        gone = connection.execute(self.statements.purge, bounds).one()
        return [Purged(keys[0], gone.deleted, gone.youngest)]

    def raise_horizons(self, connection: Connection, rows: Sequence[Any]) -> None:
        """Raise the horizon of the locked owner to what is about to go."""
        raised = {"key_0": rows[0].owner_id, "revision": max(row.revision for row in rows)}
        connection.execute(self.statements.raise_horizon, raised)
        connection.execute(self.statements.touch, raised)


class Isolated:
    """Batches that find the rows which a foreign key still needs, and leave them out."""

    def __init__(self, run: PurgeRun, shape: Shape, batches: Batches) -> None:
        """Prepare.

        Args:
            run: The run.
            shape: The table.
            batches: Of the kind whose statements this one may send.
        """
        self.blocked: dict[Key, Key] = {}
        """The rows that cannot go, by primary key, each with its key."""
        self._run = run
        self._batches = batches
        self._name = shape.table.fullname
        self._key = names("key", shape.key)
        self._id = names("id", shape.primary_key)

    def purge(self, keys: Sequence[Key], since: datetime, room: int) -> list[Purged]:
        """Commit a batch without the rows that cannot go."""
        statements = self._batches.statements
        parameters = self._batches.keys(keys)
        bounds = {**parameters, "cutoff": self._run.cutoff, "since": since, "limit": room + len(self.blocked)}
        with self._run.transaction() as connection:
            connection.execute(CHECK_AT_ONCE)
            locked = [self._values(row, self._key) for row in connection.execute(statements.lock, parameters)]
            found: Sequence[Any] = connection.execute(statements.candidates, bounds).all() if locked else ()
            rows: list[Any] = [row for row in found if self._values(row, self._id) not in self.blocked][:room]

            def remove(some: Sequence[Any]) -> None:
                self._batches.raise_horizons(connection, some)
                ids = {name: [getattr(row, name) for row in some] for name in self._id}
                # The last one is the table's own, whose rows are locked.
                *_, deleted = [
                    connection.execute(delete, {**parameters, **ids}).rowcount for delete in statements.delete
                ]
                if deleted != len(some):
                    raise DeleteMismatchError(self._name, len(some), deleted)

            gone, blocked = remove_what_may_go(connection, rows, remove)
        self.blocked.update((self._values(row, self._id), self._values(row, self._key)) for row in blocked)
        purged = {key: Purged(key, 0, None) for key in locked}
        for row in gone:
            _, deleted, youngest = purged[key := self._values(row, self._key)]
            purged[key] = Purged(key, deleted + 1, max(row.deleted_at, youngest or row.deleted_at))
        return list(purged.values())

    @staticmethod
    def _values(row: Any, columns: Sequence[str]) -> Key:
        return tuple(getattr(row, column) for column in columns)


def _purged(keys: Sequence[Key], rows: Sequence[Any]) -> list[Purged]:
    width = len(keys[0])
    return [Purged(tuple(row[:width]), row.deleted, row.youngest) for row in rows]

"""Random products and interleavings, against a model of what must be there."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from baukit_sync import PurgeReport, purge_tombstones
from tests.integration.purge.models import EVERY, Base
from tests.integration.purge.world import CUTOFF, EXPIRED, RECENT
from tests.support.ways import Admin

OWNED = {
    "notes": "SELECT id::text, owner_id, deleted_at, revision FROM notes",
    "folders": "SELECT id::text, owner_id, deleted_at, revision FROM folders",
    "animals": "SELECT id::text, owner_id, deleted_at, revision FROM animals",
    "shelves": "SELECT id::text, owner_id, deleted_at, revision FROM shelves",
    "books": "SELECT book.id::text, owner_id, book.deleted_at, book.revision FROM books AS book"
    " LEFT JOIN shelves USING (region, number)",
    "pages": "SELECT page.book_id || '/' || page.number, owner_id, page.deleted_at, page.revision"
    " FROM pages AS page JOIN books AS book ON book.id = book_id"
    " LEFT JOIN shelves ON (shelves.region, shelves.number) = (book.region, book.number)",
}
"""Every row with its owner."""

Rows = dict[str, tuple[UUID | None, Any, int]]
"""By table and key: the owner, ``deleted_at``, and the revision."""


class Product:
    """A database with random rows, what is known of them, and what must hold of every purge."""

    def __init__(self, admin: Admin, chance: random.Random) -> None:
        """Add owners; one of them has no counter."""
        self.chance = chance
        engine = sa.create_engine(admin.engine.url, isolation_level="AUTOCOMMIT")
        self._connection = engine.connect()
        self.owners = sorted(uuid4() for _ in range(4))
        self.orphan = self.owners[chance.randrange(4)]
        self.horizons: dict[UUID, int] = {}
        self._revision = dict.fromkeys(self.owners, 0)
        self._numbers = iter(range(1, 10**6))
        for owner in self.owners:
            admin.sql("INSERT INTO users VALUES (:id)", id=owner)
            if owner != self.orphan:
                admin.sql("INSERT INTO sync_revisions VALUES (:id)", id=owner)

    def _sql(self, statement: str, **parameters: Any) -> Sequence[Any]:
        result = self._connection.execute(sa.text(statement), parameters)
        return result.all() if result.returns_rows else []

    def close(self) -> None:
        """Give the connection back."""
        self._connection.close()
        self._connection.engine.dispose()

    def next_revision(self, owner: UUID) -> int:
        """Allocate as the kit does."""
        self._revision[owner] += 1
        self._sql(
            "UPDATE sync_revisions SET last_revision = :revision WHERE owner_id = :id",
            id=owner,
            revision=self._revision[owner],
        )
        return self._revision[owner]

    def insert(self, table: str, owner: UUID, **values: Any) -> None:
        """Insert a live row, a fresh tombstone, or, most often, an expired one."""
        row = {
            "deleted_at": self.chance.choice([None, RECENT, EXPIRED, EXPIRED, EXPIRED]),
            "revision": self.next_revision(owner),
            **values,
        }
        names = ", ".join(row)
        self._sql(f"INSERT INTO {table} ({names}) VALUES ({', '.join(f':{name}' for name in row)})", **row)

    def write(self, owner: UUID) -> None:
        """Insert rows of every kind."""
        chance = self.chance
        for _ in range(chance.randrange(8)):
            self.insert("notes", owner, id=uuid4(), owner_id=owner)
        folders: list[UUID | None] = [None]
        for _ in range(chance.randrange(8)):
            folders.append(uuid4())
            parent = chance.choice([*folders[:-1], folders[-1] if chance.random() < 0.1 else None])
            self.insert("folders", owner, id=folders[-1], owner_id=owner, parent_id=parent)
        for _ in range(chance.randrange(4)):
            kind, animal = chance.choice(["animal", "dog"]), uuid4()
            self.insert("animals", owner, id=animal, owner_id=owner, kind=kind)
            if kind == "dog":
                self._sql("INSERT INTO dogs VALUES (:id)", id=animal)
        for _ in range(chance.randrange(4)):
            number = next(self._numbers)
            self.insert("shelves", owner, id=uuid4(), owner_id=owner, region=number % 2, number=number)
            for _ in range(chance.randrange(4)):
                book = uuid4()
                self.insert("books", owner, id=book, region=number % 2, number=number)
                if chance.random() < 0.1:
                    self.insert("books", owner, id=uuid4(), region=chance.choice([None, 1]), number=None)
                for page in range(chance.randrange(3)):
                    self.insert("pages", owner, book_id=book, number=page)

    def change(self) -> None:
        """Revive, or delete anew, a note or a folder."""
        rows = self._sql(
            "SELECT 'notes', id, owner_id FROM notes UNION ALL SELECT 'folders', id, owner_id FROM folders"
        )
        if rows:
            table, key, owner = self.chance.choice(rows)
            self._sql(
                f"UPDATE {table} SET deleted_at = :instant, revision = :revision WHERE id = :id",
                id=key,
                instant=self.chance.choice([None, RECENT, EXPIRED]),
                revision=self.next_revision(owner),
            )

    def rows(self) -> Rows:
        """Read all rows."""
        return {
            f"{table} {key}": (owner, deleted_at, revision)
            for table, query in OWNED.items()
            for key, owner, deleted_at, revision in self._sql(query)
        }

    def check(self, before: Rows, report: PurgeReport, held: set[UUID], *, is_limited: bool) -> None:
        """Compare the database after a purge with what it must be."""
        after = self.rows()
        gone = {key: row for key, row in before.items() if key not in after}
        assert after.items() <= before.items()
        assert all(deleted_at and deleted_at < CUTOFF for _, deleted_at, _ in gone.values())
        assert not {owner for owner, _, _ in gone.values()} & {*held, self.orphan}
        for owner, _, revision in gone.values():
            assert owner is not None
            self.horizons[owner] = max(revision, self.horizons.get(owner, 0))
        read = self._sql("SELECT owner_id, horizon_revision FROM sync_purge_horizons")
        assert self.horizons == dict(tuple(row) for row in read)
        assert 0 == len(self._sql("SELECT FROM dogs FULL JOIN animals USING (id) WHERE kind IS NULL"))
        for table in report.tables:
            left = [
                row
                for key, row in after.items()
                if key.startswith(f"{table.name} ") and row[1] and row[1] < CUTOFF
            ]
            assert sum(key.startswith(f"{table.name} ") for key in gone) == table.deleted
            assert len(left) == table.expired_left
            assert min((row[1] for row in left), default=None) == table.oldest_left
            assert (not left) == table.complete
        assert is_limited or self.may_go(after, held) == 0

    def may_go(self, rows: Rows, held: set[UUID]) -> int:
        """Count the leaves that an unlimited run must have taken; parents of one more run are not such."""
        expired = {
            key
            for key, (owner, deleted_at, _) in rows.items()
            if deleted_at and deleted_at < CUTOFF and owner not in {*held, self.orphan, None}
        }
        return sum(key.startswith(("notes ", "animals ", "pages ")) for key in expired)


@pytest.fixture
def hands(admin: Admin) -> Iterator[sa.Engine]:
    """An engine whose connections hold pulls open."""
    engine = sa.create_engine(admin.engine.url)
    yield engine
    engine.dispose()


SEEDS = int(os.environ.get("BAUKIT_SYNC_TEST_PURGE_SEEDS", "8"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_happens_nothing_live_is_lost_and_horizons_are_exact(
    admin: Admin, hands: sa.Engine, seed: int
) -> None:
    """Writes, changes, pulls that are held open, and purges with any limits, in any order."""
    chance = random.Random(seed)
    product = Product(admin, chance)
    for _ in range(8):
        for owner in product.owners:
            product.write(owner)
        for _ in range(chance.randrange(6)):
            product.change()
        mode = chance.choice([None, None, 1, 3])
        tables = [table for table in EVERY if mode != 1 or (table.known and table.known.one_owner)]
        max_rows = chance.choice([None, None, 1, 5, 20])
        held = set(chance.sample(product.owners, chance.choice([0, 0, 1, 2]))) - {product.orphan}
        before = product.rows()
        with ExitStack() as open_pulls:
            for owner in held:
                pull = open_pulls.enter_context(hands.connect())
                pull.execute(
                    sa.text("SELECT FROM sync_revisions WHERE owner_id = :id FOR KEY SHARE"), {"id": owner}
                )
            dry = purge_tombstones(hands, tables, CUTOFF, 7, dry_run=True, owners_per_statement=mode)
            report = purge_tombstones(
                hands,
                tables,
                CUTOFF,
                chance.choice([1, 2, 3, 5, 100]),
                max_rows=max_rows,
                owners_per_statement=mode,
            )

        assert before == product.rows() or report.deleted
        assert dry.deleted >= report.tables[0].deleted
        assert max_rows is None or report.deleted <= max_rows
        product.check(before, report, held, is_limited=max_rows is not None or mode == 1)
    product.close()


def test_every_table_of_the_models_is_purged() -> None:
    """Or the model would not see what happens to it."""
    purged = {table.name for table in EVERY}

    assert {"users", "dogs", "sync_revisions", "sync_purge_horizons"} == {*Base.metadata.tables} - purged

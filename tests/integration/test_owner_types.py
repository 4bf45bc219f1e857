"""Owner ids are UUIDs, 64-bit integers or text, on every driver, and the tables may live in any schema."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from anyio.from_thread import BlockingPortal
from sqlalchemy.dialects.postgresql import ARRAY

from baukit_sync import (
    CursorAheadError,
    InvalidArgumentError,
    PurgeBatch,
    ResyncRequiredError,
    SyncError,
    TombstoneTable,
    UnknownOwnerError,
    sync_columns,
)
from tests.support.product import CALLS, CUTOFF, EXPIRED, OWNER_TYPES
from tests.support.ways import WAYS, Admin, Database, Unit

OWNERS: dict[str, list[Any]] = {
    "uuid": [UUID(int=0), UUID(int=1), UUID("ffffffff-ffff-ffff-ffff-ffffffffffff"), uuid4()],
    "bigint": [-(2**63), -1, 0, 1, 2**15, 2**31, 1_700_000_000_000_001, 2**63 - 1],
    "text": [
        "",
        "a",
        "A",
        " a",
        "o'brien",
        'say "hi"',
        "Zoë",
        "Zoe\u0308",
        "漢字🙂",
        "{1,2}",
        "%s :x $1 \\",
        "NULL",
    ],
}
"""For each type, ids that a driver or a string format might take for something else."""

DOCUMENTS = TombstoneTable(
    "documents",
    "SELECT id, owner_id, revision FROM documents WHERE deleted_at < :cutoff"
    " ORDER BY deleted_at, id LIMIT :limit FOR UPDATE SKIP LOCKED",
    "DELETE FROM documents WHERE id = ANY(:ids)",
)


def insert_document(unit: Unit, owner: Any, revision: int) -> None:
    """Insert an expired tombstone."""
    unit.sql(
        "INSERT INTO documents (id, owner_id, deleted_at, revision)"
        " VALUES (gen_random_uuid(), :owner, :deleted_at, :revision)",
        owner=owner,
        deleted_at=EXPIRED,
        revision=revision,
    )


@pytest.fixture(params=sorted(OWNERS))
def kind(request: pytest.FixtureRequest) -> str:
    """The name of an owner type."""
    return str(request.param)


@pytest.fixture
def ids(kind: str) -> list[Any]:
    """Owner ids of the type."""
    return OWNERS[kind]


@pytest.fixture(params=WAYS)
def typed(
    request: pytest.FixtureRequest, database_url: sa.URL, portal: BlockingPortal, kind: str, ids: list[Any]
) -> Iterator[Database]:
    """A database whose tables have owners of the type and are found by ``search_path``."""
    database = Database(request.param, database_url, portal, settings={"search_path": f"owners_{kind}"})
    with database.begin() as unit:
        for owner in ids:
            unit.ensure_owner(owner)
    yield database
    database.dispose()


def test_every_counter_is_its_owners_own(typed: Database, ids: list[Any]) -> None:
    """No two ids share a counter, and every function finds the id that it was given."""
    with typed.begin() as unit:
        for count, owner in enumerate(ids, start=1):
            unit.ensure_owner(owner)
            unit.next_revisions(owner, count)
            unit.next_revision(owner)

        expected = list(range(2, len(ids) + 2))
        assert expected == [unit.current_revision(owner) for owner in ids]
        assert expected == [unit.current_revision_for_update(owner) for owner in ids]


def test_many_owners_are_served_at_once(typed: Database, ids: list[Any]) -> None:
    """Every owner of the mapping gets the block it asked for, under the key it was asked with."""
    with typed.begin() as unit:
        blocks = unit.allocate_revisions({owner: count for count, owner in enumerate(ids, start=1)})

    assert {owner: range(1, count + 1) for count, owner in enumerate(ids, start=1)} == blocks


def test_one_owner_is_served_by_the_statement_for_many(typed: Database, ids: list[Any]) -> None:
    """An array of one id has the same type as an array of many."""
    with typed.begin() as unit:
        assert [{owner: range(1, 2)} for owner in ids] == [
            unit.allocate_revisions({owner: 1}) for owner in ids
        ]


def test_an_unknown_owner_is_unknown(typed: Database, kind: str, ids: list[Any]) -> None:
    """Alone and among others."""
    stranger = {"uuid": UUID(int=7), "bigint": 7, "text": "7"}[kind]
    with typed.begin() as unit:
        with pytest.raises(UnknownOwnerError):
            unit.next_revision(stranger)
        with pytest.raises(UnknownOwnerError):
            unit.allocate_revisions({ids[0]: 1, stranger: 1})

        assert unit.current_revision(stranger) is None
        assert unit.current_revision(ids[0]) == 0


def test_a_batch_raises_the_horizon_of_every_owner(typed: Database, ids: list[Any]) -> None:
    """The ids that the selector returned find their counters and horizons."""
    with typed.begin() as unit:
        for count, owner in enumerate(ids, start=1):
            for revision in unit.next_revisions(owner, count):
                insert_document(unit, owner, revision)
    total = sum(range(len(ids) + 1))
    with typed.begin() as unit:
        batch = unit.purge_tombstone_batch(DOCUMENTS, CUTOFF, 1000)
        horizons = [unit.purge_horizon(owner) for owner in ids]

    assert PurgeBatch(selected=total, deleted=total) == batch
    assert list(range(1, len(ids) + 1)) == horizons


def test_guards_know_every_owners_horizon(typed: Database, ids: list[Any]) -> None:
    """Below it a resync, from it on a window, above the counter an error."""
    with typed.begin() as unit:
        for owner in ids:
            insert_document(unit, owner, unit.next_revisions(owner, 2)[-1])
    typed.purge([DOCUMENTS], CUTOFF, 1000)
    with typed.begin() as unit:
        for owner in ids:
            for guard in (unit.guard_pull_cursor, unit.guard_push_cursor):
                with pytest.raises(ResyncRequiredError):
                    guard(owner, 1)
                with pytest.raises(CursorAheadError):
                    guard(owner, 3)
                guard(owner, 2)

        windows = [unit.guard_pull_cursor(owner, 2) for owner in ids]
        assert [(owner, 2, 2) for owner in ids] == [(w.owner_id, w.after, w.through) for w in windows]


def test_no_error_mentions_the_owner(typed: Database, kind: str) -> None:
    """What a caller logs or sends to a client names nobody."""
    owner = {"uuid": UUID(int=0xABCDEF), "bigint": 987654321, "text": "somebody@example.org"}[kind]
    errors: list[BaseException] = []
    with typed.begin() as unit:
        for call in (
            lambda: unit.next_revision(owner),
            lambda: unit.allocate_revisions({owner: 1}),
            lambda: unit.guard_pull_cursor(owner, 1),
            lambda: unit.guard_push_cursor(owner, "x"),
            lambda: unit.next_revisions(owner, 0),
            lambda: unit.next_revision([owner]),
        ):
            with pytest.raises(SyncError) as caught:
                call()
            errors.append(caught.value)

    assert [] == [error for error in errors if str(owner) in f"{error} {error.args}"]


def test_a_fence_raises_every_owner(typed: Database, ids: list[Any]) -> None:
    """Counters and horizons stand at the gap."""
    with typed.begin() as unit:
        fenced = unit.fence_restore(gap=5)

        assert len(ids) == fenced
        assert [5] * len(ids) == [unit.current_revision(owner) for owner in ids]
        assert [5] * len(ids) == [unit.purge_horizon(owner) for owner in ids]


def test_the_tables_are_found_by_schema_translate_map(
    db: Database, admin: Admin, kind: str, ids: list[Any]
) -> None:
    """With Core specs, which SQLAlchemy translates too, no other schema is touched."""
    schema = f"owners_{kind}"
    documents = sa.Table("documents", sa.MetaData(), *sync_columns(OWNER_TYPES[kind]))
    spec = TombstoneTable(
        "documents",
        sa.select(documents.c.id, documents.c.owner_id, documents.c.revision)
        .where(documents.c.deleted_at < sa.bindparam("cutoff"))
        .limit(sa.bindparam("limit"))
        .with_for_update(skip_locked=True),
        sa.delete(documents).where(documents.c.id == sa.any_(sa.bindparam("ids", type_=ARRAY(sa.Uuid)))),
    )
    with db.another(execution_options={"schema_translate_map": {None: schema}}) as translated:
        with translated.begin() as unit:
            for owner in ids:
                unit.ensure_owner(owner)
                (revision,) = unit.allocate_revisions({owner: 1})[owner]
                document = {"owner_id": owner, "deleted_at": EXPIRED, "revision": revision}
                unit.sql(sa.insert(documents).values(document))
                unit.next_revision(owner)
        report = translated.purge([spec], CUTOFF, 1000)
        with translated.begin() as unit:
            unit.fence_restore(gap=10)
            windows = [unit.guard_pull_cursor(owner, 12) for owner in ids]
            unit.guard_push_cursor(ids[0], 12)
            read = [(unit.current_revision_for_update(owner), unit.purge_horizon(owner)) for owner in ids]

    assert len(ids) == report.tables[0].deleted
    assert [12] * len(ids) == [window.through for window in windows]
    assert [(12, 12)] * len(ids) == read
    assert len(ids) == admin.scalar(f"SELECT count(*) FROM {schema}.sync_purge_horizons")
    assert 0 == admin.scalar("SELECT count(*) FROM sync_revisions")


NO_OWNER_IDS = [
    *(True, False, 1.0, None, b"a", Decimal(1), ("a",), object),
    *(2**63, -(2**63) - 1, "a\x00b", "\ud800"),
]
TAKE_AN_OWNER_ID = {
    name for name in CALLS if name.startswith(("allocate", "current", "ensure", "guard", "next"))
}


@pytest.mark.parametrize("function", sorted(TAKE_AN_OWNER_ID | {"purge_horizon"}))
def test_what_no_owner_column_holds_is_refused_before_any_io(nowhere: Database, function: str) -> None:
    """A bool is not 1, bytes are not text, and a driver never gets to guess."""
    arguments = []
    with nowhere.begin() as unit:
        for owner in NO_OWNER_IDS:
            with pytest.raises(InvalidArgumentError) as caught:
                CALLS[function](unit, owner)
            arguments.append(caught.value.argument)

    assert ["owner_id"] * len(NO_OWNER_IDS) == arguments

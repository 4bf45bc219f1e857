"""What the statements do to a database that is in use: order, repetition, erasure, locks."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest
import sqlalchemy as sa
from alembic.operations import Operations

from baukit_sync import migrations as sync
from tests.migration.catalog import facts

ALICE = UUID(int=1)
BOB = UUID(int=2)


def sqlstate(raised: pytest.ExceptionInfo[sa.exc.DBAPIError]) -> str | None:
    """Return the SQLSTATE of a database's error."""
    return getattr(raised.value.orig, "sqlstate", None)


def create_kit(op: Operations, *, ondelete: str | None = "CASCADE") -> None:
    """Create the kit's tables for a product's users."""
    op.create_table("users", sa.Column("id", sa.Uuid, primary_key=True))
    sync.create_revisions(op, owner="users.id", ondelete=ondelete)
    sync.create_purge_horizons(op)


def create_notes(op: Operations) -> None:
    """Create a synced table."""
    op.create_table("notes", *sync.columns())


def add_owners(connection: sa.Connection) -> None:
    """Give Alice and Bob a counter and a horizon."""
    for owner in (ALICE, BOB):
        of_owner = {"id": owner}
        connection.execute(sa.text("INSERT INTO users VALUES (:id)"), of_owner)
        connection.execute(sa.text("INSERT INTO sync_revisions VALUES (:id, 7)"), of_owner)
        connection.execute(sa.text("INSERT INTO sync_purge_horizons VALUES (:id, 3)"), of_owner)


def owners_left(connection: sa.Connection) -> tuple[list[UUID], list[UUID]]:
    """Return who has a counter and who has a horizon."""
    of_counters = connection.scalars(sa.text("SELECT owner_id FROM sync_revisions ORDER BY 1")).all()
    of_horizons = connection.scalars(sa.text("SELECT owner_id FROM sync_purge_horizons ORDER BY 1")).all()
    return list(of_counters), list(of_horizons)


def test_a_second_run_changes_nothing(connection: sa.Connection, op: Operations) -> None:
    """What exists is left as it is, with its rows."""
    create_kit(op)
    create_notes(op)
    sync.create_indexes(op, "notes")
    add_owners(connection)
    first = facts(connection)
    sync.create_revisions(op, owner="users.id")
    sync.create_purge_horizons(op)
    sync.create_indexes(op, "notes")

    assert first == facts(connection)
    assert ([ALICE, BOB], [ALICE, BOB]) == owners_left(connection)


def test_a_word_that_only_postgresql_reserves_can_be_a_name(
    connection: sa.Connection, op: Operations
) -> None:
    """SQLAlchemy's list of reserved words lacks some, and product code then says ``quoted_name``."""
    op.create_table(sa.quoted_name("lateral", quote=True), *sync.columns())
    sync.create_indexes(op, "lateral")

    assert sa.inspect(connection).has_index("lateral", "lateral_sync_idx")


def test_dropping_what_is_not_there_is_harmless(connection: sa.Connection, op: Operations) -> None:
    """A second downgrade finds nothing to do."""
    sync.drop_indexes(op, "notes")
    sync.drop_purge_horizons(op)
    sync.drop_revisions(op)

    assert [] == facts(connection)


def test_counters_cannot_be_dropped_before_horizons(connection: sa.Connection, op: Operations) -> None:
    """PostgreSQL refuses, so horizons are never left without counters."""
    create_kit(op)
    with pytest.raises(sa.exc.DBAPIError) as raised:
        sync.drop_revisions(op)

    assert "2BP01" == sqlstate(raised)


def test_horizons_cannot_be_created_before_counters(op: Operations) -> None:
    """PostgreSQL refuses."""
    with pytest.raises(sa.exc.DBAPIError) as raised:
        sync.create_purge_horizons(op)

    assert "42P01" == sqlstate(raised)


def test_horizons_refuse_owners_of_another_type(op: Operations) -> None:
    """The two calls take the same ``owner_type``, or the second fails."""
    sync.create_revisions(op, owner_type=sa.BigInteger())
    with pytest.raises(sa.exc.DBAPIError) as raised:
        sync.create_purge_horizons(op)

    assert "42804" == sqlstate(raised)


def test_erasing_a_counter_erases_its_horizon(connection: sa.Connection, op: Operations) -> None:
    """And leaves everybody else's."""
    create_kit(op)
    add_owners(connection)
    connection.execute(sa.text("DELETE FROM sync_revisions WHERE owner_id = :id"), {"id": ALICE})

    assert ([BOB], [BOB]) == owners_left(connection)


def test_erasing_an_owner_erases_its_counter_and_its_horizon(
    connection: sa.Connection, op: Operations
) -> None:
    """Nothing of an erased owner is left in the kit's tables."""
    create_kit(op)
    add_owners(connection)
    connection.execute(sa.text("DELETE FROM users WHERE id = :id"), {"id": ALICE})

    assert ([BOB], [BOB]) == owners_left(connection)


@pytest.mark.parametrize("ondelete", ["RESTRICT", "NO ACTION", None])
def test_an_owner_with_a_counter_cannot_be_erased_unless_deletes_cascade(
    connection: sa.Connection, op: Operations, ondelete: str | None
) -> None:
    """The other actions make the product erase the counter first."""
    create_kit(op, ondelete=ondelete)
    add_owners(connection)

    with pytest.raises(sa.exc.IntegrityError, match="sync_revisions_owner_id_fkey"):
        connection.execute(sa.text("DELETE FROM users WHERE id = :id"), {"id": ALICE})


def test_a_counter_needs_an_owner(connection: sa.Connection, op: Operations) -> None:
    """A counter for nobody is refused."""
    create_kit(op)

    with pytest.raises(sa.exc.IntegrityError, match="sync_revisions_owner_id_fkey"):
        connection.execute(sa.text("INSERT INTO sync_revisions VALUES (:id)"), {"id": ALICE})


def test_a_counter_starts_at_zero(connection: sa.Connection, op: Operations) -> None:
    """Zero is the default."""
    sync.create_revisions(op)
    connection.execute(sa.text("INSERT INTO sync_revisions VALUES (:id)"), {"id": ALICE})

    assert 0 == connection.scalar(sa.text("SELECT last_revision FROM sync_revisions"))


def test_a_counter_is_never_negative(connection: sa.Connection, op: Operations) -> None:
    """The check holds."""
    sync.create_revisions(op)

    with pytest.raises(sa.exc.IntegrityError, match="sync_revisions_last_revision_check"):
        connection.execute(sa.text("INSERT INTO sync_revisions VALUES (:id, -1)"), {"id": ALICE})


def test_a_horizon_is_positive(connection: sa.Connection, op: Operations) -> None:
    """No purge has removed revision 0: there is none."""
    create_kit(op)
    add_owners(connection)

    with pytest.raises(sa.exc.IntegrityError, match="sync_purge_horizons_horizon_revision_check"):
        connection.execute(sa.text("UPDATE sync_purge_horizons SET horizon_revision = 0"))


LOCKS: list[tuple[Callable[[Operations], None], dict[str, str]]] = [
    (
        lambda op: sync.create_revisions(op, owner="users.id"),
        {"users": "ShareRowExclusiveLock", "sync_revisions": "AccessExclusiveLock"},
    ),
    (
        sync.create_purge_horizons,
        {"sync_revisions": "ShareRowExclusiveLock", "sync_purge_horizons": "AccessExclusiveLock"},
    ),
    (create_notes, {"notes": "AccessExclusiveLock"}),
    (lambda op: sync.create_indexes(op, "notes"), {"notes": "ShareLock"}),
    (lambda op: sync.drop_indexes(op, "notes"), {"notes": "AccessExclusiveLock"}),
    (sync.create_revisions_trigger, {"sync_revisions": "ShareRowExclusiveLock"}),
    (lambda op: sync.create_guard_trigger(op, "notes"), {"notes": "ShareRowExclusiveLock"}),
    (
        lambda op: sync.create_stamp_trigger(op, "notes"),
        {"notes": "ShareRowExclusiveLock"},
    ),
    (lambda op: sync.drop_stamp_trigger(op, "notes"), {"notes": "AccessExclusiveLock"}),
    (lambda op: sync.drop_guard_trigger(op, "notes"), {"notes": "AccessExclusiveLock"}),
    (sync.drop_revisions_trigger, {"sync_revisions": "AccessExclusiveLock"}),
    (sync.drop_purge_horizons, {"sync_revisions": "AccessExclusiveLock"}),
    (sync.rename_owner_id_to_user_id, {"sync_revisions": "AccessExclusiveLock"}),
    (sync.rename_user_id_to_owner_id, {"sync_revisions": "AccessExclusiveLock"}),
    (sync.drop_revisions, {"users": "AccessExclusiveLock"}),
]


def test_each_function_takes_the_locks_that_it_documents(connection: sa.Connection, op: Operations) -> None:
    """The strongest lock on each table, until the transaction ends."""
    op.create_table("users", sa.Column("id", sa.Uuid, primary_key=True))
    connection.commit()
    held = []
    for function, _ in LOCKS:
        function(op)
        held.append(strongest_locks(connection))
        connection.commit()

    assert [locks for _, locks in LOCKS] == held


def strongest_locks(connection: sa.Connection) -> dict[str, str]:
    """Return the strongest lock that this transaction holds on each table that exists."""
    strength = [
        "AccessShareLock",
        "RowShareLock",
        "RowExclusiveLock",
        "ShareUpdateExclusiveLock",
        "ShareLock",
        "ShareRowExclusiveLock",
        "ExclusiveLock",
        "AccessExclusiveLock",
    ]
    rows = connection.execute(
        sa.text("""
        SELECT relname, mode FROM pg_locks JOIN pg_class ON pg_class.oid = relation
        WHERE pid = pg_backend_pid() AND relnamespace = 'public'::regnamespace AND relkind = 'r'
        """)
    ).all()
    return {row.relname: row.mode for row in sorted(rows, key=lambda row: strength.index(row.mode))}

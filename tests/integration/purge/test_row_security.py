"""A role that may not see every row must not purge, and must not report success."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from anyio.from_thread import BlockingPortal

from baukit_sync import RowSecurityError, TombstoneTable
from tests.integration.purge.models import ANIMALS, BOOKS, FOLDERS, NOTES, PAGES, Base
from tests.integration.purge.world import EXPIRED, horizons, purge, revisions, summary, write
from tests.support.ways import WAYS, Admin, Database

TENANT = "CREATE POLICY tenant ON {table} USING ({owner} = current_setting('app.tenant', true))"
OPEN = "CREATE POLICY purge ON {table} FOR ALL TO {role} USING (true)"
NARROW = "CREATE POLICY narrow ON {table} AS RESTRICTIVE USING (revision > 0)"

OWN_SQL = TombstoneTable(
    "notes",
    "SELECT id, owner_id, revision FROM notes WHERE deleted_at < :cutoff"
    " ORDER BY deleted_at, id LIMIT :limit FOR UPDATE SKIP LOCKED",
    "DELETE FROM notes WHERE id = ANY(:ids)",
)


@pytest.fixture
def role(admin: Admin) -> Iterator[str]:
    """A role that may use every table and owns none; policies go when the test ends."""
    name = f"purger_{uuid4().hex[:8]}"
    admin.sql(f"CREATE ROLE {name} LOGIN")
    admin.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {name}")
    yield name
    for table, policy in admin.sql("SELECT tablename, policyname FROM pg_policies"):
        admin.sql(f"DROP POLICY {policy} ON {table}")
    for table in Base.metadata.tables:
        admin.sql(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY, DISABLE ROW LEVEL SECURITY")
    admin.disconnect_others()
    admin.sql(f"DROP OWNED BY {name}")
    admin.sql(f"DROP ROLE {name}")


@pytest.fixture(params=WAYS)
def purger(
    request: pytest.FixtureRequest, database_url: sa.URL, role: str, portal: BlockingPortal
) -> Iterator[Database]:
    """The database as that role reaches it, in each of the three ways."""
    database = Database(request.param, database_url.set(username=role), portal)
    yield database
    database.dispose()


def secure(admin: Admin, role: str, table: str, *policies: str, owner: str = "owner_id::text") -> None:
    """Turn row-level security on, with these policies."""
    admin.sql(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    for policy in policies:
        admin.sql(policy.format(table=table, role=role, owner=owner))


def test_a_role_without_policies_in_its_way_purges(
    purger: Database, admin: Admin, owner: UUID, role: str
) -> None:
    """It needs no more than rights on the tables."""
    write(admin, owner, EXPIRED)

    assert [("notes", 1, [])] == summary(purge(purger, NOTES))


@pytest.mark.parametrize("mode", [None, 1])
def test_a_tenants_policy_is_an_error(
    purger: Database, admin: Admin, owner: UUID, role: str, mode: int | None
) -> None:
    """Without a tenant the role sees nothing, which would look like a complete purge."""
    write(admin, owner, EXPIRED)
    secure(admin, role, "notes", TENANT)
    with pytest.raises(RowSecurityError) as caught:
        purge(purger, NOTES, owners_per_statement=mode)

    assert "notes" == caught.value.table
    assert ([1], {}) == (revisions(admin, owner), horizons(admin))


def test_no_policy_at_all_is_an_error(purger: Database, admin: Admin, owner: UUID, role: str) -> None:
    """Row-level security without a policy hides everything."""
    write(admin, owner, EXPIRED)
    secure(admin, role, "notes")
    with pytest.raises(RowSecurityError):
        purge(purger, NOTES)

    assert [1] == revisions(admin, owner)


def test_a_policy_that_opens_the_table_to_the_role_is_enough(
    purger: Database, admin: Admin, owner: UUID, role: str
) -> None:
    """Beside the tenants' own."""
    write(admin, owner, EXPIRED)
    secure(admin, role, "notes", TENANT, OPEN)
    secure(admin, role, "sync_revisions", TENANT, OPEN)

    assert [("notes", 1, [])] == summary(purge(purger, NOTES))
    assert {owner: 1} == horizons(admin)


def test_a_policy_that_opens_it_to_another_role_is_not(
    purger: Database, admin: Admin, owner: UUID, role: str
) -> None:
    """Policies apply to the roles that they name."""
    write(admin, owner, EXPIRED)
    secure(admin, role, "notes", TENANT, OPEN.replace("{role}", "postgres"))
    with pytest.raises(RowSecurityError):
        purge(purger, NOTES)

    assert [1] == revisions(admin, owner)


def test_a_restrictive_policy_is_an_error(purger: Database, admin: Admin, owner: UUID, role: str) -> None:
    """It narrows what the others have opened."""
    write(admin, owner, EXPIRED)
    secure(admin, role, "notes", OPEN, NARROW)
    with pytest.raises(RowSecurityError):
        purge(purger, NOTES)

    assert [1] == revisions(admin, owner)


@pytest.mark.parametrize(
    "command", ["SELECT", "UPDATE", "DELETE"], ids=["only to read", "only to lock", "only to delete"]
)
def test_a_policy_for_one_command_is_not_enough(
    purger: Database, admin: Admin, owner: UUID, role: str, command: str
) -> None:
    """A batch reads, locks and deletes."""
    write(admin, owner, EXPIRED)
    secure(admin, role, "notes", OPEN.replace("ALL", command))
    with pytest.raises(RowSecurityError):
        purge(purger, NOTES)

    assert [1] == revisions(admin, owner)


@pytest.mark.parametrize(
    ("hidden", "spec"),
    [
        ("sync_revisions", NOTES),
        ("shelves", BOOKS),
        ("books", PAGES),
        ("shelves", PAGES),
        ("pages", BOOKS),
        ("folders", FOLDERS),
        ("dogs", ANIMALS),
    ],
    ids=["counter", "parent", "near parent", "far parent", "child", "own children", "part"],
)
def test_a_hidden_neighbour_is_an_error(
    purger: Database, admin: Admin, role: str, hidden: str, spec: TombstoneTable
) -> None:
    """A hidden counter, parent, child or part would make a row look like another."""
    secure(admin, role, hidden, TENANT, owner="current_setting('app.tenant', true)")
    with pytest.raises(RowSecurityError) as caught:
        purge(purger, spec)

    assert hidden == caught.value.table


def test_a_hidden_horizon_is_an_error(purger: Database, admin: Admin, owner: UUID, role: str) -> None:
    """PostgreSQL itself refuses to write one that a policy forbids; nothing is deleted."""
    write(admin, owner, EXPIRED)
    secure(admin, role, "sync_purge_horizons", TENANT)
    with pytest.raises(sa.exc.DBAPIError) as caught:
        purge(purger, NOTES)

    assert "42501" == getattr(caught.value.orig, "sqlstate", None)
    assert [1] == revisions(admin, owner)


def test_the_tables_of_a_caller_owned_spec_are_found_in_its_plan(
    purger: Database, admin: Admin, owner: UUID, role: str
) -> None:
    """The kit does not parse its SQL."""
    write(admin, owner, EXPIRED)
    secure(admin, role, "notes", TENANT)
    with pytest.raises(RowSecurityError) as caught:
        purge(purger, OWN_SQL)

    assert "notes" == caught.value.table
    assert [1] == revisions(admin, owner)


def test_a_role_that_bypasses_row_security_purges(
    purger: Database, admin: Admin, owner: UUID, role: str
) -> None:
    """Whatever the policies say."""
    admin.sql(f"ALTER ROLE {role} BYPASSRLS")
    write(admin, owner, EXPIRED)
    secure(admin, role, "notes", TENANT)

    assert [("notes", 1, [])] == summary(purge(purger, NOTES))

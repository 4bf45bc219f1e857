"""Tables that are partitioned by owner: one owner per statement touches one partition of each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from anyio.from_thread import BlockingPortal
from sqlalchemy import event

from baukit_sync import PurgeReport, TombstoneTable, purge_tombstones, sync_indexes
from tests.integration.purge.world import CUTOFF, EXPIRED, purge, summary
from tests.support.ways import WAYS, Admin, Database

PARTITIONS = 8

metadata = sa.MetaData()


def _keyed(name: str, *columns: Any, **options: Any) -> sa.Table:
    return sa.Table(
        name,
        metadata,
        sa.Column("owner_id", sa.Uuid, primary_key=True),
        sa.Column("id", sa.Uuid, primary_key=True),
        *columns,
        sa.Column("deleted_at", sa.DateTime(timezone=True)),
        sa.Column("revision", sa.BigInteger, nullable=False),
        *sync_indexes(name),
        **options,
    )


BY_OWNER = {"postgresql_partition_by": "HASH (owner_id)"}

docs = _keyed("docs", **BY_OWNER)
lines = _keyed(
    "lines",
    sa.Column("doc_id", sa.Uuid),
    sa.ForeignKeyConstraint(["owner_id", "doc_id"], ["docs.owner_id", "docs.id"]),
    **BY_OWNER,
)
undeclared = _keyed("undeclared")
"""Partitioned, and its Table does not say so."""

LINES, DOCS, UNDECLARED = (TombstoneTable.for_model(table) for table in (lines, docs, undeclared))

TABLES = ("docs", "lines", "undeclared", "sync_revisions", "sync_purge_horizons")


def create(admin: Admin) -> None:
    """Create all tables with eight partitions each."""
    owner = "owner_id uuid"
    keyed = f"{owner}, id uuid, deleted_at timestamptz, revision bigint NOT NULL, PRIMARY KEY (owner_id, id)"
    columns = {
        "sync_revisions": f"{owner} PRIMARY KEY, last_revision bigint NOT NULL DEFAULT 0",
        "sync_purge_horizons": f"{owner} PRIMARY KEY REFERENCES sync_revisions ON DELETE CASCADE,"
        " horizon_revision bigint NOT NULL, updated_at timestamptz NOT NULL DEFAULT now()",
        "docs": keyed,
        "lines": f"{keyed}, doc_id uuid, FOREIGN KEY (owner_id, doc_id) REFERENCES docs",
        "undeclared": keyed,
    }
    for name, definition in columns.items():
        admin.sql(f"CREATE TABLE {name} ({definition}) PARTITION BY HASH (owner_id)")
        for number in range(PARTITIONS):
            admin.sql(
                f"CREATE TABLE {name}_{number} PARTITION OF {name}"
                f" FOR VALUES WITH (MODULUS {PARTITIONS}, REMAINDER {number})"
            )
    for name in ("docs", "lines", "undeclared"):
        admin.sql(f"CREATE INDEX ON {name} (owner_id, deleted_at) WHERE deleted_at IS NOT NULL")


def fill(admin: Admin, owner: UUID) -> None:
    """Commit a counter, and in each table three tombstones and a live row; some lines belong to docs."""
    admin.sql("INSERT INTO sync_revisions VALUES (:owner, 12)", owner=owner)
    doc = uuid4()
    for number, instant in enumerate([EXPIRED, EXPIRED, EXPIRED, None], 1):
        row = {"owner": owner, "id": doc if number == 1 else uuid4(), "instant": instant}
        for base, name in enumerate(("undeclared", "docs", "lines")):
            values = ":owner, :id, :instant, :revision"
            extra = {"doc": doc} if name == "lines" else {}
            values += ", :doc" if extra else ""
            admin.sql(f"INSERT INTO {name} VALUES ({values})", **row, revision=base * 4 + number, **extra)


@pytest.fixture(scope="module")
def partitioned_url(server_url: sa.URL, server_admin: Admin) -> Iterator[sa.URL]:
    """A database with these tables."""
    name = f"baukit_partitions_{uuid4().hex[:8]}"
    server_admin.sql(f"CREATE DATABASE {name} TEMPLATE template0")
    url = server_url.set(database=name)
    create(Admin(url))
    yield url
    server_admin.sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=WAYS)
def partitioned(
    request: pytest.FixtureRequest, partitioned_url: sa.URL, portal: BlockingPortal
) -> Iterator[Database]:
    """That database, empty, in each of the three ways."""
    database = Database(request.param, partitioned_url, portal)
    yield database
    database.dispose()
    admin = Admin(partitioned_url)
    for name in ("lines", "docs", "undeclared", "sync_revisions"):
        admin.sql(f"DELETE FROM {name}")


def check(admin: Admin, owners: list[UUID], report: PurgeReport) -> None:
    """Everything expired that can go is gone: a doc stays for its live line."""
    assert [
        ("undeclared", 3 * len(owners), []),
        ("lines", 3 * len(owners), []),
        ("docs", 2 * len(owners), ["children"]),
    ] == summary(report)
    assert dict.fromkeys(owners, 11) == dict(
        tuple(row) for row in admin.sql("SELECT owner_id, horizon_revision FROM sync_purge_horizons")
    )
    assert [len(owners)] * 2 == [
        admin.scalar(f"SELECT count(*) FROM {name}") for name in ("undeclared", "lines")
    ]


@pytest.mark.parametrize("mode", [None, 1, 3])
@pytest.mark.parametrize("limit", [2, 5, 100])
def test_partitioned_tables_are_purged(partitioned: Database, mode: int | None, limit: int) -> None:
    """In every mode, and also when the Table does not say that it is partitioned."""
    admin = Admin(partitioned.url.set(drivername="postgresql+psycopg"))
    owners = [uuid4() for _ in range(12)]
    for owner in owners:
        fill(admin, owner)
    report = purge(partitioned, UNDECLARED, LINES, DOCS, limit=limit, owners_per_statement=mode)

    check(admin, owners, report)


@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
def test_one_owner_per_statement_touches_one_partition(partitioned_url: sa.URL, plans: str) -> None:
    """Every statement that locks or writes, as it was sent, with custom and with generic plans."""
    admin = Admin(partitioned_url)
    owners = [uuid4() for _ in range(12)]
    for owner in owners:
        fill(admin, owner)
    engine = sa.create_engine(
        partitioned_url, connect_args={"options": f"-c plan_cache_mode={plans}", "prepare_threshold": 0}
    )
    touched: list[dict[str, set[str]]] = []

    @event.listens_for(engine, "before_cursor_execute")
    def explain(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "SKIP LOCKED" in statement or "INSERT" in statement or "UPDATE " in statement:
            raw = connection.connection.dbapi_connection
            with raw.cursor() as other:
                other.execute("SAVEPOINT explained")
                other.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters)
                touched.append(partitions(other.fetchone()[0][0]["Plan"]))
                other.execute("ROLLBACK TO SAVEPOINT explained")

    report = purge_tombstones(engine, [UNDECLARED, LINES, DOCS], CUTOFF, 2, owners_per_statement=1)
    engine.dispose()

    assert 8 * len(owners) == report.deleted
    assert len(touched) >= 3 * 2 * len(owners)
    assert {"docs", "lines", "undeclared", "sync_revisions"} == {name for plan in touched for name in plan}
    assert [] == [plan for plan in touched if any(len(found) > 1 for found in plan.values())]
    for name in ("lines", "docs", "undeclared", "sync_revisions"):
        admin.sql(f"DELETE FROM {name}")


def partitions(plan: Any) -> dict[str, set[str]]:
    """Return which partitions of each table a plan has read or written."""
    found: dict[str, set[str]] = {}
    if isinstance(plan, dict):
        name = plan.get("Relation Name")
        if name and plan.get("Actual Loops", 1):
            table, _, number = name.rpartition("_")
            if table in TABLES:
                found[table] = {number}
        plan = list(plan.values())
    for inner in plan if isinstance(plan, list) else []:
        for table, numbers in partitions(inner).items():
            found.setdefault(table, set()).update(numbers)
    return found


def test_a_row_that_moves_to_another_partition_during_a_run_costs_a_retry(partitioned_url: sa.URL) -> None:
    """PostgreSQL cannot follow it, and says 40001; nothing is lost, and the horizons are exact."""
    admin = Admin(partitioned_url)
    a, b = sorted([uuid4(), uuid4()])
    fill(admin, a)
    fill(admin, b)
    engine = sa.create_engine(partitioned_url)
    moved: list[bool] = []

    @event.listens_for(engine, "before_cursor_execute")
    def move(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "SKIP LOCKED" in statement and not moved:
            moved.append(True)
            admin.sql("UPDATE undeclared SET owner_id = :b WHERE revision = 3 AND owner_id = :a", a=a, b=b)

    for _ in range(2):
        purge_tombstones(engine, [UNDECLARED], CUTOFF, 100)
    engine.dispose()

    assert moved
    assert 2 == admin.scalar("SELECT count(*) FROM undeclared")
    assert {a: 2, b: 3} == dict(
        tuple(row) for row in admin.sql("SELECT owner_id, horizon_revision FROM sync_purge_horizons")
    )
    for name in ("lines", "docs", "undeclared", "sync_revisions"):
        admin.sql(f"DELETE FROM {name}")


@pytest.mark.parametrize("mode", [None, 1, 3])
def test_rows_at_the_same_place_of_other_partitions_stay(partitioned: Database, mode: int | None) -> None:
    """A ctid says where in a partition a row is, not in which."""
    admin = Admin(partitioned.url.set(drivername="postgresql+psycopg"))
    admin.sql("TRUNCATE undeclared")
    owners = [uuid4() for _ in range(12)]
    for owner in owners:
        admin.sql("INSERT INTO sync_revisions VALUES (:owner, 1)", owner=owner)
        admin.sql("INSERT INTO undeclared VALUES (:owner, :id, :at, 1)", owner=owner, id=uuid4(), at=EXPIRED)
    with admin.engine.connect().execution_options(isolation_level="READ COMMITTED") as pull:
        pull.execute(
            sa.text("SELECT FROM sync_revisions WHERE owner_id = :id FOR KEY SHARE"), {"id": owners[0]}
        )
        report = purge(partitioned, UNDECLARED, owners_per_statement=mode)
        pull.rollback()

    assert [("undeclared", 11, ["busy"])] == summary(report)
    assert [(owners[0],)] == [tuple(row) for row in admin.sql("SELECT owner_id FROM undeclared")]
    assert 0 == admin.scalar("SELECT count(*) FROM sync_purge_horizons WHERE owner_id = :id", id=owners[0])


def test_the_same_runs_on_citus() -> None:
    """A cluster that ``BAUKIT_SYNC_TEST_CITUS_URL`` names, with the tables distributed by owner."""
    url = os.environ.get("BAUKIT_SYNC_TEST_CITUS_URL")
    if url is None:
        pytest.skip("BAUKIT_SYNC_TEST_CITUS_URL names no Citus cluster")
    admin = Admin(sa.make_url(url).set(drivername="postgresql+psycopg"))
    schema = f"baukit_{uuid4().hex[:8]}"
    admin.sql(f"CREATE SCHEMA {schema}")
    engine = sa.create_engine(admin.engine.url, connect_args={"options": f"-c search_path={schema},public"})
    try:
        inside = Admin.__new__(Admin)
        inside.engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        for statement in CITUS:
            inside.sql(statement)
        owners = [uuid4() for _ in range(12)]
        for owner in owners:
            fill(inside, owner)
        report = purge_tombstones(engine, [UNDECLARED, LINES, DOCS], CUTOFF, 2, owners_per_statement=1)

        check(inside, owners, report)
    finally:
        engine.dispose()
        admin.sql(f"DROP SCHEMA {schema} CASCADE")


_KEYED = (
    "owner_id uuid, id uuid, deleted_at timestamptz, revision bigint NOT NULL{}, PRIMARY KEY (owner_id, id)"
)

CITUS = (
    "CREATE TABLE sync_revisions (owner_id uuid PRIMARY KEY, last_revision bigint NOT NULL DEFAULT 0)",
    "SELECT create_distributed_table('sync_revisions', 'owner_id')",
    (
        "CREATE TABLE sync_purge_horizons (owner_id uuid PRIMARY KEY, horizon_revision bigint NOT NULL,"
        " updated_at timestamptz NOT NULL DEFAULT now())"
    ),
    "SELECT create_distributed_table('sync_purge_horizons', 'owner_id', colocate_with => 'sync_revisions')",
    f"CREATE TABLE docs ({_KEYED.format('')})",
    "SELECT create_distributed_table('docs', 'owner_id', colocate_with => 'sync_revisions')",
    f"CREATE TABLE lines ({_KEYED.format(', doc_id uuid')}, FOREIGN KEY (owner_id, doc_id) REFERENCES docs)",
    "SELECT create_distributed_table('lines', 'owner_id', colocate_with => 'docs')",
    f"CREATE TABLE undeclared ({_KEYED.format('')})",
    "SELECT create_distributed_table('undeclared', 'owner_id', colocate_with => 'docs')",
)

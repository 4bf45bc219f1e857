"""What the doctor may not see, may not do, and has no time for."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

import baukit_sync.doctor
from baukit_sync import (
    InvalidArgumentError,
    SyncColumns,
    UnsafeTransactionError,
    add_sync_tables,
    sync_columns,
    sync_indexes,
)
from baukit_sync.doctor import Severity, examine
from baukit_sync.doctor.examination import Examination
from tests.integration.doctor.test_findings import found
from tests.support import servers
from tests.support.product import OWNER_TYPES, Base, Note
from tests.support.ways import Admin

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


@pytest.fixture
def role(outside: Admin, engine: sa.Engine, me: UUID) -> Iterator[str]:
    """A role without privileges that may connect."""
    name = f"doctor_{uuid4().hex[:8]}"
    outside.sql(f"CREATE ROLE {name} LOGIN")
    yield name
    outside.sql(f"DROP OWNED BY {name}")
    outside.sql(f"DROP ROLE {name}")


@pytest.fixture
def as_role(role: str, url: sa.URL) -> sa.Engine:
    """An engine that connects as that role."""
    return sa.create_engine(url.set(username=role), poolclass=sa.NullPool)


def test_a_role_that_may_read_is_enough(as_role: sa.Engine, role: str, outside: Admin) -> None:
    """SELECT is all that the doctor needs."""
    outside.sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")

    assert [] == examine(as_role, Base)


def test_a_table_that_may_not_be_read_is_a_finding(as_role: sa.Engine, role: str, outside: Admin) -> None:
    """Of one table without rights the rest is said, and the others are examined."""
    outside.sql(f"GRANT SELECT ON sync_revisions, sync_purge_horizons, lists, list_items TO {role}")
    outside.sql("UPDATE list_items SET revision = 1000 WHERE deleted_at IS NULL")
    outside.sql("ALTER TABLE notes ALTER revision SET DEFAULT 0")

    assert [
        ("revision_above_counter", ERROR, "public.list_items.revision"),
        ("revision_default", ERROR, "public.notes.revision"),
        ("permission_denied", WARNING, "public.notes"),
    ] == found(examine(as_role, Base))


def test_a_role_without_any_right_crashes_nothing(as_role: sa.Engine) -> None:
    """Every table is a finding."""
    findings = examine(as_role, Base)

    assert {"permission_denied"} == {finding.code for finding in findings}
    assert {"notes", "lists", "list_items", "sync_revisions", "sync_purge_horizons"} == {
        finding.where.removeprefix("public.") for finding in findings
    }


def test_rows_hidden_by_a_policy_are_a_finding(as_role: sa.Engine, role: str, outside: Admin) -> None:
    """A role that row-level security blinds is told so; its owner is not blind."""
    outside.sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    outside.sql("ALTER TABLE notes ENABLE ROW LEVEL SECURITY")

    assert [("rows_hidden", WARNING, "public.notes")] == found(examine(as_role, Base))
    assert [] == examine(sa.create_engine(outside.engine.url, poolclass=sa.NullPool), Base)


def test_forced_policies_blind_the_owner(as_role: sa.Engine, role: str, outside: Admin) -> None:
    """FORCE ROW LEVEL SECURITY counts for the table's owner too."""
    outside.sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    outside.sql(f"ALTER TABLE notes OWNER TO {role}")
    outside.sql("ALTER TABLE notes ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")

    assert [("rows_hidden", WARNING, "public.notes")] == found(examine(as_role, Base))


def test_a_locked_table_is_a_finding_after_a_while(engine: sa.Engine, outside: Admin, me: UUID) -> None:
    """Who holds ACCESS EXCLUSIVE keeps the doctor waiting for one check's time, and no longer."""
    with engine.begin() as other:
        other.execute(sa.text("LOCK TABLE notes"))

        findings = examine(engine, Base, check_limit=timedelta(milliseconds=100))

    assert {("check_timed_out", "notes")} == {(finding.code, finding.where) for finding in findings}
    assert {INFO} == {finding.severity for finding in findings}


def test_a_statement_that_fails_is_a_finding(engine: sa.Engine) -> None:
    """Nothing that PostgreSQL refuses ends the examination, or spoils what comes after it."""
    with engine.begin() as connection:
        exam = Examination(connection, timedelta(seconds=5), time.monotonic() + 60, 10, None)

        done = exam.attempt("here", "divide", lambda: exam.rows("SELECT 1 / 0"))

        assert not done
        assert [("check_failed", WARNING, "here")] == found(exam.findings)
        assert [(1,)] == exam.rows("SELECT 1")


def test_a_broken_connection_is_an_error(engine: sa.Engine, outside: Admin) -> None:
    """It is no finding about a check."""
    with engine.connect() as connection:
        connection.begin()
        exam = Examination(connection, timedelta(seconds=5), time.monotonic() + 60, 10, None)

        with pytest.raises(DBAPIError):
            exam.attempt("here", "go on", lambda: (outside.disconnect_others(), exam.rows("SELECT 1")))


def test_no_time_at_all_is_said(engine: sa.Engine, me: UUID) -> None:
    """When all time is over, each check that did not run is a finding."""
    findings = examine(engine, Base, time_limit=timedelta(0))

    assert {"check_timed_out"} == {finding.code for finding in findings}


def test_owners_that_were_not_looked_at_are_said(engine: sa.Engine, me: UUID) -> None:
    """A sample is called one."""
    findings = examine(engine, [Note], most_owners=1)

    assert [("owners_sampled", INFO, "public.notes")] == found(findings)


def test_an_owner_of_another_type_is_a_finding(engine: sa.Engine, outside: Admin, me: UUID) -> None:
    """Text in a table and UUID in the counters do not compare."""
    outside.sql("ALTER TABLE notes DROP CONSTRAINT notes_owner_id_fkey, ALTER owner_id TYPE text")

    (finding,) = examine(engine, Base)
    outside.sql(finding.fix)

    assert ("owner_type", ERROR, "public.notes.owner_id") == found([finding])[0]
    assert [] == examine(engine, Base)


def test_an_index_of_another_collation_is_not_used(engine: sa.Engine, outside: Admin) -> None:
    """The planner knows better than the list of columns."""
    metadata = sa.MetaData()
    _text_product(metadata)
    metadata.create_all(engine)
    outside.sql('CREATE INDEX things_sync_idx ON things (owner_id COLLATE "ucs_basic", revision)')

    assert [("index_unused", WARNING, "public.things")] == found(examine(engine, metadata))


def _text_product(metadata: sa.MetaData) -> None:
    add_sync_tables(metadata, owner_type=OWNER_TYPES["text"])
    sa.Table("things", metadata, *sync_columns(sa.Text()), sync_indexes("things")[1])


def test_autocommit_is_a_finding(engine: sa.Engine, me: UUID) -> None:
    """An engine in AUTOCOMMIT is examined in a transaction all the same."""
    findings = examine(engine.execution_options(isolation_level="AUTOCOMMIT"), Base)

    assert [("autocommit", ERROR, "isolation_level")] == found(findings)


def test_a_connection_in_autocommit_is_refused(engine: sa.Engine, me: UUID) -> None:
    """There is no transaction to be read-only in."""
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(UnsafeTransactionError),
    ):
        examine(connection, Base)


def test_the_callers_transaction_goes_on(engine: sa.Engine, outside: Admin, me: UUID) -> None:
    """Its writes are seen, its settings come back, and it may still write and commit."""
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE notes SET revision = 1000"))

        (finding,) = examine(connection, [Note])
        limit = connection.scalar(sa.text("SHOW statement_timeout"))
        connection.execute(sa.text("UPDATE notes SET title = 'later'"))

    assert "revision_above_counter" == finding.code
    assert "0" == limit
    assert "later" == outside.scalar("SELECT min(title) FROM notes")


def test_it_reads_only(engine: sa.Engine, me: UUID) -> None:
    """Whatever is in a view or a policy: PostgreSQL refuses writes while the doctor looks."""
    seen: set[str] = set()

    @sa.event.listens_for(engine, "before_cursor_execute")
    def look(connection: sa.Connection, cursor: object, statement: str, *_: object) -> None:
        if "pg_catalog.pg_class" in statement:
            seen.add(
                str(connection.connection.driver_connection.execute("SHOW transaction_read_only").fetchone())
            )  # type: ignore[union-attr]

    examine(engine, Base)

    assert {"('on',)"} == seen


def test_statements_with_values_have_parameters(engine: sa.Engine, me: UUID) -> None:
    """The retention is a parameter, and no session setting outlives the transaction."""
    sent: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda c, u, statement, *_: sent.append(statement))

    examine(engine, Base, retention=timedelta(days=12345))

    assert [] == [statement for statement in sent if "12345" in statement]
    assert [] == [statement for statement in sent if statement.lstrip().upper().startswith("SET ")]


@pytest.mark.parametrize("target", ["notes", 3, [None], [Base, "x"], object], ids=str)
def test_another_target_is_refused(target: object) -> None:
    """Before any I/O."""
    engine = sa.create_engine("postgresql+psycopg:///nothing?host=/nonexistent")

    with pytest.raises(InvalidArgumentError):
        examine(engine, target)  # type: ignore[arg-type]


class Models(DeclarativeBase):
    """Models whose relationship leaves deletes to the database."""


class Box(SyncColumns, Models):
    """A parent."""

    __tablename__ = "boxes"

    things: Mapped[list[Thing]] = relationship(passive_deletes=True)


class Thing(SyncColumns, Models):
    """A child."""

    __tablename__ = "things"

    box_id: Mapped[UUID] = mapped_column(sa.ForeignKey("boxes.id"))


def test_a_relationship_that_leaves_deletes_to_the_database(engine: sa.Engine) -> None:
    """The models show what no catalog does."""
    if "sync_revisions" not in Models.metadata.tables:
        add_sync_tables(Models.metadata)
    Models.metadata.create_all(engine)

    assert [("relationship_passive_deletes", WARNING, "Box.things")] == found(examine(engine, Models))


def test_prepared_statements_behind_a_pooler(engine: sa.Engine, url: sa.URL, me: UUID) -> None:
    """PgBouncer in transaction mode: fine without psycopg's prepared statements, a finding with them."""
    if shutil.which("pgbouncer") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("pgbouncer is not on PATH")
        pytest.skip("pgbouncer is not on PATH")
    with servers.pgbouncer(url, server_connections=2) as pooled:
        unsafe = sa.create_engine(pooled, poolclass=sa.NullPool)
        safe = sa.create_engine(pooled, poolclass=sa.NullPool, connect_args={"prepare_threshold": None})

        assert [("pooler_prepared_statements", WARNING, "prepare_threshold")] == found(examine(unsafe, Base))
        assert [] == examine(safe, Base)


def test_a_pending_write_of_another_owner_is_no_fault(engine: sa.Engine, me: UUID) -> None:
    """A writer's counter and rows become visible together."""
    with Session(engine) as session:
        session.execute(sa.text("UPDATE sync_revisions SET last_revision = last_revision + 1"))
        session.execute(sa.text("UPDATE notes SET revision = 5"))

        assert [] == examine(engine, [Note])


def reported_codes() -> set[str]:
    """Return each code that the source reports."""
    folder = Path(baukit_sync.doctor.__file__).parent
    source = "".join(path.read_text() for path in folder.glob("*.py"))
    return set(re.findall(r'(?:error|warning|info|report)\(\s*"([a-z_]+)"', source))


def test_every_code_has_a_database_with_that_fault() -> None:
    """Each is named by a test in this folder."""
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))

    assert set() == {code for code in reported_codes() if f'"{code}"' not in tests}


def test_the_reference_has_every_code() -> None:
    """The page of findings names each code that the source reports, and no other."""
    page = Path(baukit_sync.doctor.__file__).parents[2] / "docs" / "reference" / "doctor.md"
    if not page.exists():
        pytest.skip("the documentation is not beside this copy of the tests")

    assert sorted(reported_codes()) == sorted(
        re.findall(r"^\| `([a-z_]+)` \|", page.read_text(), re.MULTILINE)
    )

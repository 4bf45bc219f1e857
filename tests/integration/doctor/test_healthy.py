"""Whatever the documentation calls syncable has no findings, in every way to connect."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from anyio.from_thread import BlockingPortal
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from baukit_sync import (
    SyncColumns,
    add_sync_tables,
    ensure_owner,
    migrations,
    next_revision,
    next_revisions,
    sync_columns,
    sync_indexes,
    track,
)
from baukit_sync.doctor import Finding, State, Target, TriggerState, examine, trigger_states
from tests.support.product import OWNER_TYPES, Base, Item, Note, TodoList
from tests.support.ways import WAYS, Admin, Database

OWNERS = {"uuid": [uuid4(), uuid4()], "bigint": [1, 2**62], "text": ["a", "é%:'"]}


def in_this_way(db: Database, *arguments: object) -> list[Finding]:
    """Examine as each kind of product would."""
    if not isinstance(db.engine, AsyncEngine):
        return examine(db.engine, *arguments)  # type: ignore[arg-type]

    async def run() -> list[Finding]:
        async with db.engine.connect() as connection:
            return await connection.run_sync(examine, *arguments)  # type: ignore[no-any-return]

    return db.call(run)  # type: ignore[no-any-return]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, url: sa.URL, portal: BlockingPortal) -> Iterator[Database]:
    """The healthy database, in each of the three ways."""
    database = Database(request.param, url, portal)
    yield database
    database.dispose()


@pytest.mark.parametrize(
    "target", [None, Base, Base.metadata, [Note, TodoList, Item], Note, Note.__table__], ids=str
)
def test_a_healthy_product_has_no_findings(target: Target | None, way: Database, me: UUID) -> None:
    """Stamped by hand, with a child that gets its owner through a parent."""
    assert [] == in_this_way(way, target)


def test_an_empty_product_has_no_findings(way: Database, engine: sa.Engine) -> None:
    """Tables without rows."""
    Base.metadata.create_all(engine)

    assert [] == in_this_way(way, Base)


def test_a_tracked_product_has_no_findings(engine: sa.Engine, me: UUID) -> None:
    """What tracking writes is healthy."""
    sessions = sessionmaker(engine)
    track(sessions)
    with sessions.begin() as session:
        session.add_all([kept := Note(owner_id=me), Note(owner_id=me)])
    with sessions.begin() as session:
        session.delete(session.merge(kept))

    assert [] == examine(engine, Base)


@pytest.mark.parametrize("kind", OWNER_TYPES)
def test_every_owner_type_is_healthy(kind: str, way: Database, engine: sa.Engine) -> None:
    """UUID, BIGINT and TEXT owners; the tables live in a schema that search_path leads to."""
    documents = make(engine, kind, "tenant")
    database = str(engine.url.database)
    Admin(engine.url).sql(f"ALTER DATABASE {database} SET search_path = tenant")

    assert [] == in_this_way(way, documents.metadata)
    assert [] == in_this_way(way)


def make(engine: sa.Engine, kind: str, schema: str) -> sa.Table:
    """Create the kit's tables and a table with odd names, and write to them."""
    metadata = sa.MetaData()
    add_sync_tables(metadata, owner_type=OWNER_TYPES[kind], schema=schema)
    columns, indexes = sync_columns(OWNER_TYPES[kind]), sync_indexes("50% of: it's")
    documents = sa.Table("50% of: it's", metadata, *columns, *indexes, schema=schema)
    with engine.begin() as connection:
        connection.execute(sa.schema.CreateSchema(schema))
        metadata.create_all(connection)
    translated = engine.execution_options(schema_translate_map={None: schema})
    for owner in OWNERS[kind]:
        with Session(translated) as session, session.begin():
            ensure_owner(session, owner)
            for deleted_at in (None, sa.func.now()):
                values = {"owner_id": owner, "deleted_at": deleted_at}
                session.execute(sa.insert(documents).values(**values, revision=next_revision(session, owner)))
    return documents


def test_a_translated_schema_is_healthy(engine: sa.Engine) -> None:
    """``schema_translate_map`` leads to the kit's tables and to the product's."""
    make(engine, "uuid", "tenant")
    metadata = sa.MetaData()
    add_sync_tables(metadata)
    sa.Table("50% of: it's", metadata, *sync_columns())

    assert [] == examine(engine.execution_options(schema_translate_map={None: "tenant"}), metadata)


def test_a_schema_with_counters_of_its_own_is_left_alone(engine: sa.Engine, me: UUID) -> None:
    """Without models, another tenant's tables are not held against this one's counters."""
    make(engine, "uuid", "tenant")

    assert [] == examine(engine)


@pytest.mark.parametrize("rows", [0, 3, 20_000])
def test_a_partitioned_table_is_healthy(rows: int, engine: sa.Engine) -> None:
    """Hash-partitioned by owner, with the owner in its key; small and large."""
    metadata = partitioned(sync_indexes("parts"))
    metadata.create_all(engine)
    fill(engine, "parts", rows, partitions=4)

    assert [] == examine(engine, metadata)
    assert [] == examine(engine)


def test_a_fault_of_a_partitioned_table_is_one_finding(engine: sa.Engine) -> None:
    """Its partitions have the same fault, and are not tables that the product knows."""
    metadata = partitioned(sync_indexes("parts")[1:])
    metadata.create_all(engine)
    fill(engine, "parts", 3, partitions=4)

    (finding,) = examine(engine)

    assert ("index_missing", "public.parts") == (finding.code, finding.where)
    assert "CREATE INDEX parts_sync_idx ON public.parts (owner_id, revision);" == finding.fix


def partitioned(indexes: list[sa.Index]) -> sa.MetaData:
    """Describe the kit's tables and a table that is partitioned by owner."""
    metadata = sa.MetaData()
    add_sync_tables(metadata)
    columns = [column for column in sync_columns() if column.name != "id"]
    sa.Table(
        "parts",
        metadata,
        sa.Column("id", sa.Uuid),
        *columns,
        sa.PrimaryKeyConstraint("owner_id", "id"),
        *indexes,
        postgresql_partition_by="HASH (owner_id)",
    )
    return metadata


def fill(engine: sa.Engine, table: str, rows: int, *, partitions: int = 0) -> None:
    """Write rows for ten owners, with a counter each."""
    with engine.begin() as connection:
        for part in range(partitions):
            connection.execute(
                sa.text(
                    f"CREATE TABLE {table}_{part} PARTITION OF {table}"
                    f" FOR VALUES WITH (MODULUS {partitions}, REMAINDER {part})"
                )
            )
        connection.execute(
            sa.text(
                f"INSERT INTO {table} (id, owner_id, updated_at, revision) SELECT gen_random_uuid(),"
                f" CAST(md5((n % 10)::text) AS uuid), now(), n / 10 + 1 FROM generate_series(1, {rows}) AS n"
            )
        )
        connection.execute(
            sa.text(f"INSERT INTO sync_revisions SELECT owner_id, max(revision) FROM {table} GROUP BY 1")
        )
        connection.execute(sa.text(f"ANALYZE {table}"))


@pytest.mark.parametrize("rows", [0, 3, 20_000])
def test_other_indexes_do_not_hide_the_right_one(rows: int, engine: sa.Engine) -> None:
    """The planner of a small table may like another index; the right one is there all the same."""
    metadata = sa.MetaData()
    add_sync_tables(metadata)
    table = sa.Table("things", metadata, *sync_columns(), *sync_indexes("things"))
    for columns in (
        ["owner_id"],
        ["revision"],
        ["deleted_at"],
        ["owner_id", "id"],
        ["owner_id", "updated_at"],
    ):
        sa.Index(f"other_{'_'.join(columns)}", *(table.c[column] for column in columns))
    metadata.create_all(engine)
    fill(engine, "things", rows)

    assert [] == examine(engine, metadata)


HARMLESS = {
    "names of a convention": "ALTER TABLE sync_revisions"
    " RENAME CONSTRAINT sync_revisions_last_revision_check TO ck;"
    "ALTER TABLE sync_purge_horizons RENAME CONSTRAINT sync_purge_horizons_horizon_revision_check TO ck_h;"
    "ALTER TABLE sync_purge_horizons RENAME CONSTRAINT sync_purge_horizons_owner_id_fkey TO fk_h;"
    "ALTER INDEX notes_sync_idx RENAME TO ix_notes; ALTER INDEX notes_tombstone_idx RENAME TO ix_notes_gone",
    "owners who take their rows with them": "ALTER TABLE notes DROP CONSTRAINT notes_owner_id_fkey,"
    " ADD FOREIGN KEY (owner_id) REFERENCES users ON DELETE CASCADE",
    "unsynced rows that go with a note": "CREATE TABLE thumbnails"
    " (note_id uuid REFERENCES notes ON DELETE CASCADE)",
    "a natural key of live rows": "UPDATE notes SET title = id::text;"
    "CREATE UNIQUE INDEX ON notes (owner_id, title) WHERE deleted_at IS NULL",
    "a key that a foreign key needs": "UPDATE notes SET title = id::text;"
    "CREATE UNIQUE INDEX ON notes (title);"
    "CREATE TABLE titles (title varchar REFERENCES notes (title))",
    "keys with the primary key or the revision": "CREATE UNIQUE INDEX ON notes (owner_id, id);"
    "CREATE UNIQUE INDEX ON notes (owner_id, revision)",
    "a descending index": "DROP INDEX notes_sync_idx; CREATE INDEX ON notes (owner_id DESC, revision DESC)",
    "an index with more columns": "DROP INDEX notes_sync_idx;"
    "CREATE INDEX ON notes (owner_id, revision) INCLUDE (id)",
    "a lower fillfactor": "ALTER TABLE sync_revisions SET (fillfactor = 20)",
    "a tighter check": "ALTER TABLE sync_revisions"
    " DROP CONSTRAINT sync_revisions_last_revision_check,"
    " ADD CHECK (last_revision >= 0 AND last_revision < 9007199254740992)",
    "a table with only some of the columns": "CREATE TABLE audits"
    " (id int, revision text, updated_at timestamp)",
    "a temporary table": "CREATE TEMP TABLE t AS SELECT * FROM notes",
}


@pytest.mark.parametrize("sql", HARMLESS.values(), ids=HARMLESS)
def test_what_does_no_harm_is_no_finding(sql: str, engine: sa.Engine, me: UUID) -> None:
    """The doctor looks at what things do, not at their names."""
    with engine.begin() as connection:
        for statement in sql.split(";"):
            connection.execute(sa.text(statement))
            connection.execute(sa.text("SET CONSTRAINTS ALL IMMEDIATE"))

        assert [] == examine(connection, Base)
        assert [] == examine(connection)


TRIGGERS = {
    "after": ("RETURN NULL;", "AFTER UPDATE", ""),
    "statement": ("RETURN NULL;", "BEFORE UPDATE", ""),
    "before": ("NEW.title := ''x''; RETURN NEW;", "BEFORE UPDATE", "FOR EACH ROW"),
}


@pytest.mark.parametrize(("body", "when", "each"), TRIGGERS.values(), ids=TRIGGERS)
def test_a_trigger_that_drops_nothing_is_no_finding(
    body: str, when: str, each: str, engine: sa.Engine, me: UUID
) -> None:
    """What an AFTER or statement trigger returns is ignored; others return the row."""
    each = "FOR EACH ROW" if when.startswith("AFTER") else each
    with engine.begin() as connection:
        connection.exec_driver_sql(
            f"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {body} END'"
        )
        connection.exec_driver_sql(f"CREATE TRIGGER t {when} ON notes {each} EXECUTE FUNCTION f()")

    assert [] == examine(engine, Base)


def test_the_kits_own_triggers_are_no_finding(engine: sa.Engine, me: UUID) -> None:
    """All of them, on all tables: what drops a write there does so on purpose."""
    with engine.begin() as connection:
        op = Operations(MigrationContext.configure(connection))
        migrations.create_revisions_trigger(op)
        via = {"owner": "list_id", "via": [("lists.id", "owner_id")]}
        for table, way in {"notes": {}, "lists": {}, "list_items": via}.items():
            migrations.create_guard_trigger(op, table, **way)
            migrations.create_stamp_trigger(op, table, deletes_by=["id"], **way)

    assert [] == examine(engine, Base)
    with engine.connect() as connection:
        states = trigger_states(connection)
    assert {State.INSTALLED} == {state.state for state in states}
    assert [
        ("allocated", "sync_revisions"),
        ("guard", "list_items"),
        ("guard", "lists"),
        ("guard", "notes"),
        ("stamp", "list_items"),
        ("stamp", "lists"),
        ("stamp", "notes"),
    ] == sorted((state.kind, state.table[1]) for state in states if state.table)


def test_a_function_whose_triggers_are_gone_is_missing_them(engine: sa.Engine, me: UUID) -> None:
    """It is listed without a table."""
    with engine.begin() as connection:
        migrations.create_stamp_trigger(Operations(MigrationContext.configure(connection)), "notes")
        connection.exec_driver_sql("DROP TRIGGER baukit_sync_stamp_v1 ON notes")

        states = trigger_states(connection)

    assert [TriggerState("stamp", "stamp_v1", None, State.MISSING, ("baukit_sync_stamp_v1",))] == states


class Models(DeclarativeBase):
    """Models with an inheritance, columns of other names, a grandchild and a tree."""


class Person(Models):
    """Whom rows are synced for."""

    __tablename__ = "people"

    id: Mapped[UUID] = mapped_column(primary_key=True)


class Thing(SyncColumns, Models):
    """A class with subclasses."""

    __tablename__ = "things"

    kind: Mapped[str]
    owner_id: Mapped[UUID] = mapped_column(sa.ForeignKey("people.id", ondelete="CASCADE"))
    parent_id: Mapped[UUID | None] = mapped_column(sa.ForeignKey("things.id"))

    __mapper_args__ = {"polymorphic_on": "kind"}  # noqa: RUF012


class Book(Thing):
    """A subclass with a table of its own."""

    __tablename__ = "books"

    id: Mapped[UUID] = mapped_column(sa.ForeignKey("things.id"), primary_key=True)
    title: Mapped[str]

    __mapper_args__ = {"polymorphic_identity": "book"}  # noqa: RUF012


class Renamed(Models):
    """A class whose columns have other names in the database."""

    __tablename__ = "renamed"

    id: Mapped[UUID] = mapped_column("key", primary_key=True)
    owner_id: Mapped[UUID] = mapped_column("user")
    deleted_at: Mapped[object | None] = mapped_column("gone", sa.DateTime(timezone=True))
    revision: Mapped[int] = mapped_column("rev", sa.BigInteger)

    __table_args__ = (
        sa.Index("renamed_sync_idx", owner_id, revision),
        sa.Index("renamed_tombstone_idx", owner_id, deleted_at, postgresql_where=deleted_at.is_not(None)),
    )


class Shelf(Models):
    """A link between a person and what is on the shelf: not synced."""

    __tablename__ = "shelves"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    thing_id: Mapped[UUID] = mapped_column(sa.ForeignKey("things.id"))


class Label(Models):
    """A grandchild: its owner is its shelf's thing's."""

    __tablename__ = "labels"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    shelf_id: Mapped[UUID] = mapped_column(sa.ForeignKey("shelves.id"))
    deleted_at: Mapped[object | None] = mapped_column(sa.DateTime(timezone=True))
    revision: Mapped[int] = mapped_column(sa.BigInteger)

    __table_args__ = (*sync_indexes("labels", owner="shelf_id"),)


add_sync_tables(Models.metadata, owner="people.id")


@pytest.fixture
def models(engine: sa.Engine) -> UUID:
    """The models' tables, with a row in each; returns the owner."""
    Models.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        owner = uuid4()
        session.add(Person(id=owner))
        ensure_owner(session, owner)
        first, second, third = next_revisions(session, owner, 3)
        book = Book(id=uuid4(), owner_id=owner, revision=first, title="x")
        session.add_all([book, Renamed(id=uuid4(), owner_id=owner, revision=second)])
        session.flush()
        session.add(shelf := Shelf(id=uuid4(), thing_id=book.id))
        session.flush()
        session.add(Label(id=uuid4(), shelf_id=shelf.id, revision=third))
    return owner


@pytest.mark.parametrize(
    "target", [Models, [Book, Renamed, Label], [Thing, Book, Models.metadata]], ids=["base", "list", "mixed"]
)
def test_every_way_to_map_is_healthy(target: Target, engine: sa.Engine, models: UUID) -> None:
    """Joined inheritance, renamed columns, an owner two parents away, a tree."""
    assert [] == examine(engine, target)


def test_a_fault_of_a_renamed_column_names_it(engine: sa.Engine, models: UUID) -> None:
    """The database's name is the one to look for."""
    Admin(engine.url).sql('UPDATE renamed SET "rev" = 50')

    (finding,) = examine(engine, Models)

    assert ("revision_above_counter", "public.renamed.rev") == (finding.code, finding.where)


def test_a_fault_of_a_grandchild_is_found(engine: sa.Engine, models: UUID) -> None:
    """Its counter is found through both parents."""
    Admin(engine.url).sql("UPDATE labels SET revision = 50")

    (finding,) = examine(engine, Models)

    assert ("revision_above_counter", "public.labels.revision") == (finding.code, finding.where)

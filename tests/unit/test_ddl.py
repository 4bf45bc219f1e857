"""The text of the kit's DDL."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from baukit_sync import InvalidArgumentError, ddl

# A published function never changes what it emits: add to this, change nothing in it.
PUBLISHED: list[tuple[list[str], str]] = [
    (
        ddl.create_revisions(),
        """\
CREATE TABLE IF NOT EXISTS sync_revisions (
    owner_id UUID
        CONSTRAINT sync_revisions_pkey PRIMARY KEY,
    last_revision BIGINT NOT NULL DEFAULT 0
        CONSTRAINT sync_revisions_last_revision_check CHECK (last_revision >= 0)
) WITH (fillfactor = 50);
""",
    ),
    (
        ddl.create_revisions(
            owner="auth.users.id", owner_type=sa.BigInteger(), ondelete="RESTRICT", schema="app"
        ),
        """\
CREATE TABLE IF NOT EXISTS "app".sync_revisions (
    owner_id BIGINT
        CONSTRAINT sync_revisions_pkey PRIMARY KEY
        CONSTRAINT sync_revisions_owner_id_fkey REFERENCES "auth"."users" ("id") ON DELETE RESTRICT,
    last_revision BIGINT NOT NULL DEFAULT 0
        CONSTRAINT sync_revisions_last_revision_check CHECK (last_revision >= 0)
) WITH (fillfactor = 50);
""",
    ),
    (ddl.drop_revisions(), "DROP TABLE IF EXISTS sync_revisions;\n"),
    (ddl.drop_revisions(schema="app"), 'DROP TABLE IF EXISTS "app".sync_revisions;\n'),
    (
        ddl.create_purge_horizons(owner_type=sa.Text(), schema="app"),
        """\
CREATE TABLE IF NOT EXISTS "app".sync_purge_horizons (
    owner_id TEXT
        CONSTRAINT sync_purge_horizons_pkey PRIMARY KEY
        CONSTRAINT sync_purge_horizons_owner_id_fkey
            REFERENCES "app".sync_revisions (owner_id) ON DELETE CASCADE,
    horizon_revision BIGINT NOT NULL
        CONSTRAINT sync_purge_horizons_horizon_revision_check CHECK (horizon_revision > 0),
    updated_at TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT now()
);
""",
    ),
    (ddl.drop_purge_horizons(), "DROP TABLE IF EXISTS sync_purge_horizons;\n"),
    (
        ddl.create_indexes("list_items", owner="list_id", schema="app"),
        """\
CREATE INDEX IF NOT EXISTS "list_items_sync_idx" ON "app"."list_items" ("list_id", revision);
CREATE INDEX IF NOT EXISTS "list_items_tombstone_idx" ON "app"."list_items" ("list_id", deleted_at) \
WHERE deleted_at IS NOT NULL;
""",
    ),
    (
        ddl.create_indexes_concurrently("notes", schema="app"),
        """\
DROP INDEX CONCURRENTLY IF EXISTS "app"."notes_sync_idx";
CREATE INDEX CONCURRENTLY "notes_sync_idx" ON "app"."notes" ("owner_id", revision);
DROP INDEX CONCURRENTLY IF EXISTS "app"."notes_tombstone_idx";
CREATE INDEX CONCURRENTLY "notes_tombstone_idx" ON "app"."notes" ("owner_id", deleted_at) \
WHERE deleted_at IS NOT NULL;
""",
    ),
    (
        ddl.drop_indexes("notes", schema="app"),
        """\
DROP INDEX IF EXISTS "app"."notes_sync_idx";
DROP INDEX IF EXISTS "app"."notes_tombstone_idx";
""",
    ),
    (
        ddl.rename_user_id(),
        """\
DO $sync$ BEGIN ALTER TABLE sync_revisions RENAME COLUMN user_id TO owner_id; \
EXCEPTION WHEN undefined_column THEN NULL; END $sync$;
DO $sync$ BEGIN ALTER TABLE sync_revisions RENAME CONSTRAINT sync_revisions_user_id_fkey \
TO sync_revisions_owner_id_fkey; EXCEPTION WHEN undefined_object THEN NULL; END $sync$;
DO $sync$ BEGIN ALTER TABLE sync_revisions RENAME CONSTRAINT sync_revisions_user_id_not_null \
TO sync_revisions_owner_id_not_null; EXCEPTION WHEN undefined_object THEN NULL; END $sync$;
DO $sync$ BEGIN ALTER TABLE sync_revisions ADD CONSTRAINT sync_revisions_last_revision_check \
CHECK (last_revision >= 0); EXCEPTION WHEN duplicate_object THEN NULL; END $sync$;
ALTER TABLE sync_revisions SET (fillfactor = 50);
""",
    ),
    (
        ddl.rename_owner_id(),
        """\
ALTER TABLE sync_revisions RESET (fillfactor);
ALTER TABLE sync_revisions DROP CONSTRAINT IF EXISTS sync_revisions_last_revision_check;
DO $sync$ BEGIN ALTER TABLE sync_revisions RENAME CONSTRAINT sync_revisions_owner_id_fkey \
TO sync_revisions_user_id_fkey; EXCEPTION WHEN undefined_object THEN NULL; END $sync$;
DO $sync$ BEGIN ALTER TABLE sync_revisions RENAME CONSTRAINT sync_revisions_owner_id_not_null \
TO sync_revisions_user_id_not_null; EXCEPTION WHEN undefined_object THEN NULL; END $sync$;
DO $sync$ BEGIN ALTER TABLE sync_revisions RENAME COLUMN owner_id TO user_id; \
EXCEPTION WHEN undefined_column THEN NULL; END $sync$;
""",
    ),
]


@pytest.mark.parametrize(("statements", "published"), PUBLISHED)
def test_a_published_statement_never_changes(statements: list[str], published: str) -> None:
    """What a migration did when it was written, it does today."""
    assert published == ddl.script(statements)


@pytest.mark.parametrize("owner_type", [sa.BigInteger(), sa.BigInteger])
def test_a_type_may_be_a_class(owner_type: Any) -> None:
    """As in ``sa.Column``."""
    assert "owner_id BIGINT" in ddl.create_purge_horizons(owner_type=owner_type)[0]


def all_statements(*, owner: str, schema: str, table: str, column: str) -> str:
    """Return every statement that names can be given to."""
    return ddl.script(
        [
            *ddl.create_revisions(owner=owner, schema=schema),
            *ddl.create_purge_horizons(schema=schema),
            *ddl.create_indexes(table, owner=column, schema=schema),
            *ddl.create_indexes_concurrently(table, owner=column, schema=schema),
            *ddl.drop_indexes(table, schema=schema),
            *ddl.drop_purge_horizons(schema=schema),
            *ddl.drop_revisions(schema=schema),
        ]
    )


QUOTED = re.compile(r'"(?:[^"]|"")+"', re.DOTALL)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1).filter(
    lambda name: len(name.encode()) <= 49
)
parts = names.filter(lambda name: "." not in name)


@given(names, names, names, parts, parts)
def test_a_name_changes_nothing_but_itself(
    schema: str, table: str, column: str, users: str, key: str
) -> None:
    """Whatever is in it, a name stays inside its quotes."""
    plain = all_statements(owner="o.o", schema="s", table="t", column="c")
    odd = all_statements(owner=f"{users}.{key}", schema=schema, table=table, column=column)

    assert QUOTED.sub("?", plain) == QUOTED.sub("?", odd)


@given(st.lists(st.sampled_from(["$sync$", "$sync_$", "$", "_", "sync", "$$"]), min_size=1).map("".join))
def test_a_name_never_ends_the_block_that_it_is_in(schema: str) -> None:
    """The dollar quotes around a block occur nowhere inside it."""
    for statement in ddl.rename_user_id(schema=schema[:63])[:-1]:
        opening = statement.split(" ")[1]

        assert statement.endswith(opening)
        assert 2 == statement.count(opening)


TOO_LONG = "é" * 32


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("schema", lambda: ddl.create_revisions(schema="")),
        ("schema", lambda: ddl.create_revisions(schema=TOO_LONG)),
        ("schema", lambda: ddl.create_revisions(schema="a\0b")),
        ("schema", lambda: ddl.drop_revisions(schema="")),
        ("schema", lambda: ddl.create_purge_horizons(schema="")),
        ("schema", lambda: ddl.drop_purge_horizons(schema="")),
        ("schema", lambda: ddl.rename_user_id(schema="")),
        ("schema", lambda: ddl.rename_owner_id(schema="")),
        ("owner", lambda: ddl.create_revisions(owner="")),
        ("owner", lambda: ddl.create_revisions(owner="users")),
        ("owner", lambda: ddl.create_revisions(owner=".id")),
        ("owner", lambda: ddl.create_revisions(owner="users.")),
        ("owner", lambda: ddl.create_revisions(owner=".users.id")),
        ("owner", lambda: ddl.create_revisions(owner=f"{TOO_LONG}.id")),
        ("owner", lambda: ddl.create_revisions(owner=f"users.{TOO_LONG}")),
        ("owner", lambda: ddl.create_revisions(owner=f"{TOO_LONG}.users.id")),
        ("owner", lambda: ddl.create_revisions(owner=sa.column("id"))),  # type: ignore[arg-type]
        ("owner_type", lambda: ddl.create_revisions(owner_type=sa.types.NullType())),
        ("owner_type", lambda: ddl.create_purge_horizons(owner_type="uuid")),  # type: ignore[arg-type]
        ("ondelete", lambda: ddl.create_revisions(ondelete="SET NULL")),
        ("ondelete", lambda: ddl.create_revisions(ondelete="SET DEFAULT")),
        ("ondelete", lambda: ddl.create_revisions(owner="users.id", ondelete="")),
        ("ondelete", lambda: ddl.create_revisions(owner="users.id", ondelete="CASCADE; DROP TABLE users")),
        ("table", lambda: ddl.create_indexes("")),
        ("table", lambda: ddl.create_indexes("t" * 50)),
        ("table", lambda: ddl.create_indexes("é" * 25)),
        ("table", lambda: ddl.create_indexes_concurrently("t" * 50)),
        ("table", lambda: ddl.drop_indexes("")),
        ("table", lambda: ddl.drop_indexes("t" * 50)),
        ("owner", lambda: ddl.create_indexes("notes", owner="")),
        ("owner", lambda: ddl.create_indexes_concurrently("notes", owner=TOO_LONG)),
    ],
)
def test_what_cannot_be_a_name_a_type_or_an_action_is_refused(
    argument: str, call: Callable[[], list[str]]
) -> None:
    """PostgreSQL would cut a long name to another one; the rest it would refuse later."""
    with pytest.raises(InvalidArgumentError) as raised:
        call()

    assert argument == raised.value.argument


def test_a_refusal_says_how_long_a_table_s_name_may_be() -> None:
    """Shorter than PostgreSQL's limit, because the indexes' names are longer."""
    with pytest.raises(InvalidArgumentError, match="1 to 49 bytes"):
        ddl.create_indexes("t" * 50)


def test_the_longest_names_are_accepted() -> None:
    """63 bytes each, and 49 for a table whose indexes add ``_tombstone_idx``."""
    statements = all_statements(
        owner=f"{'s' * 63}.{'u' * 63}.{'k' * 63}", schema="s" * 63, table="t" * 49, column="c" * 63
    )

    assert 63 == max(len(name) - 2 for name in QUOTED.findall(statements))

"""The text of the triggers."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baukit_sync import InvalidArgumentError, ddl, triggers

# A published function never changes: add a version to this, and change nothing in it.
PUBLISHED = {
    "allocated_v1.sql": "0f599b934533fd26",
    "guard_v1.sql": "77230b8ff1b0e66a",
    "stamp_v1.sql": "381c9809ff1e72cf",
}


def test_a_published_function_never_changes() -> None:
    """What a migration installed when it was written, it installs today."""
    folder = files("baukit_sync") / "sql"

    assert PUBLISHED == {
        file.name: triggers.fingerprint(file.read_text())
        for file in folder.iterdir()
        if file.name.endswith(".sql")
    }


def all_statements(*, schema: str, table: str, column: str, parent: str) -> str:
    """Return every statement that names can be given to."""
    names = {"owner": column, "via": [(f"{parent}.{parent}", column)], "schema": schema}
    return ddl.script(
        [
            *triggers.create_revisions_trigger(schema=schema),
            *triggers.create_guard_trigger(table, **names, revisions_schema=parent),
            *triggers.create_stamp_trigger(table, **names, deletes_by=[column, table]),
            *triggers.drop_stamp_trigger(table, schema=schema),
            *triggers.drop_guard_trigger(table, schema=schema),
            *triggers.drop_revisions_trigger(schema=schema),
        ]
    )


# A name of one column stands alone, in the name of a function with a suffix, and in a literal.
NAMED = re.compile(r"""'"(?:[^"]|"")+"(?:\.sync_revisions)?'|"(?:[^"]|"")+?"(?!")""", re.DOTALL)
COMMENT = re.compile(r"(baukit-sync \w+) \w{16}")
names = st.text(st.characters(exclude_characters="\0.", exclude_categories=["Cs"]), min_size=1).filter(
    lambda name: len(name.encode()) <= 49
)


@given(names, names, names, names)
def test_a_name_changes_nothing_but_itself(schema: str, table: str, column: str, parent: str) -> None:
    """Whatever is in it, a name stays inside its quotes."""

    def shape(text: str) -> str:
        return COMMENT.sub(r"\1", NAMED.sub("?", re.sub(r"\$sync_*\$", "$sync$", text)))

    plain = all_statements(schema="s", table="t", column="c", parent="p")
    odd = all_statements(schema=schema, table=table, column=column, parent=parent)

    assert shape(plain) == shape(odd)


@pytest.mark.parametrize("create", [triggers.create_guard_trigger, triggers.create_stamp_trigger])
def test_a_name_never_ends_the_body_that_it_is_in(create: Callable[..., list[str]]) -> None:
    """The dollar quotes around a body occur nowhere inside it."""
    function, *_ = create("notes", owner="$sync$")

    assert 2 == function.count("$sync_$")
    assert function.endswith("$sync_$")


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("schema", lambda: triggers.create_revisions_trigger(schema="")),
        ("schema", lambda: triggers.drop_revisions_trigger(schema="")),
        ("table", lambda: triggers.create_guard_trigger("")),
        ("table", lambda: triggers.create_guard_trigger("t" * 50)),
        ("table", lambda: triggers.drop_guard_trigger("t" * 50)),
        ("table", lambda: triggers.create_stamp_trigger("t" * 50)),
        ("table", lambda: triggers.drop_stamp_trigger("")),
        ("owner", lambda: triggers.create_guard_trigger("notes", owner="")),
        ("via", lambda: triggers.create_guard_trigger("notes", via=[("lists", "owner_id")])),
        ("via", lambda: triggers.create_guard_trigger("notes", via=[("lists.id", "")])),
        ("schema", lambda: triggers.create_guard_trigger("notes", schema="")),
        ("schema", lambda: triggers.create_guard_trigger("notes", revisions_schema="")),
        ("deletes_by", lambda: triggers.create_stamp_trigger("notes", deletes_by="id")),
        ("deletes_by", lambda: triggers.create_stamp_trigger("notes", deletes_by=[""])),
    ],
)
def test_what_cannot_be_a_name_is_refused(argument: str, call: Callable[[], list[str]]) -> None:
    """PostgreSQL would cut a long name to another one; the rest it would refuse later."""
    with pytest.raises(InvalidArgumentError) as raised:
        call()

    assert argument == raised.value.argument


def test_a_table_s_name_may_have_49_bytes() -> None:
    """Its function's name has ``_sync_guard_v1`` more."""
    with pytest.raises(InvalidArgumentError, match="1 to 49 bytes"):
        triggers.create_guard_trigger("t" * 50)
    triggers.create_guard_trigger("t" * 49)
    triggers.create_stamp_trigger("t" * 49)

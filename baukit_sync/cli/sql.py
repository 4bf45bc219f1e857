"""``baukit-sync sql``: the kit's DDL as plain SQL, for teams without Alembic."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Annotated, Any, TypeAlias

import sqlalchemy as sa
import typer
from sqlalchemy.types import TypeEngine

from baukit_sync import ddl, triggers

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Print the kit's DDL, to pipe into psql or to paste into a migration. Connects to nothing.",
    epilog="For example: baukit-sync sql create-tables --owner users.id | psql -1 -v ON_ERROR_STOP=1 mydb",
)

Table: TypeAlias = Annotated[str, typer.Argument(help="The synced table.", show_default=False)]
Schema: TypeAlias = Annotated[
    str | None, typer.Option(help="The tables' schema; without it search_path decides.", show_default=False)
]
Owner: TypeAlias = Annotated[
    str, typer.Option(help="The column that leads to the owner: in a child without one, the parent's key.")
]
Via: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=COLUMN",
        help="For such a child, a parent's key and the column that leads on: lists.id=owner_id.",
        show_default=False,
    ),
]
RevisionsSchema: TypeAlias = Annotated[
    str | None, typer.Option(help="The schema of sync_revisions, if it is another.", show_default=False)
]


class OwnerType(Enum):
    """The owner column's type."""

    UUID = "uuid"
    BIGINT = "bigint"
    TEXT = "text"

    @property
    def type(self) -> TypeEngine[Any]:
        """The type in SQLAlchemy's words."""
        match self:
            case OwnerType.UUID:
                return sa.Uuid()
            case OwnerType.BIGINT:
                return sa.BigInteger()
            case OwnerType.TEXT:
                return sa.Text()


class OnDelete(Enum):
    """What deleting an owner does to its counter."""

    CASCADE = "cascade"
    RESTRICT = "restrict"
    NO_ACTION = "no-action"


@app.command()
def create_tables(
    *,
    owner: Annotated[
        str | None,
        typer.Option(help="The column that owners live in: users.id. Without it: no foreign key."),
    ] = None,
    owner_type: Annotated[OwnerType, typer.Option(help="That column's type.")] = OwnerType.UUID,
    ondelete: Annotated[
        OnDelete,
        typer.Option(
            metavar="ACTION",
            help="What deleting an owner does to its counter and horizon: cascade, restrict or no-action.",
        ),
    ] = OnDelete.CASCADE,
    schema: Schema = None,
) -> None:
    """Create sync_revisions and sync_purge_horizons."""
    action = ondelete.value.replace("-", " ").upper()
    _print(
        *ddl.create_revisions(owner=owner, owner_type=owner_type.type, ondelete=action, schema=schema),
        *ddl.create_purge_horizons(owner_type=owner_type.type, schema=schema),
    )


@app.command()
def drop_tables(*, schema: Schema = None) -> None:
    """Drop both tables, and with them every counter and horizon."""
    _print(*ddl.drop_purge_horizons(schema=schema), *ddl.drop_revisions(schema=schema))


@app.command()
def create_indexes(
    table: Table,
    *,
    owner: Owner = "owner_id",
    concurrently: Annotated[
        bool, typer.Option("--concurrently", help="Build beside writers; needs psql without -1.")
    ] = False,
    schema: Schema = None,
) -> None:
    """Create the two indexes of a synced table."""
    create = ddl.create_indexes_concurrently if concurrently else ddl.create_indexes
    _print(*create(table, owner=owner, schema=schema))


@app.command()
def drop_indexes(table: Table, *, schema: Schema = None) -> None:
    """Drop the two indexes of a synced table."""
    _print(*ddl.drop_indexes(table, schema=schema))


@app.command()
def create_revisions_trigger(*, schema: Schema = None) -> None:
    """Let guards see what a transaction allocates: once, for all of them."""
    _print(*triggers.create_revisions_trigger(schema=schema))


@app.command()
def drop_revisions_trigger(*, schema: Schema = None) -> None:
    """Drop it, after the guards."""
    _print(*triggers.drop_revisions_trigger(schema=schema))


@app.command()
def create_guard_trigger(
    table: Table,
    *,
    owner: Owner = "owner_id",
    via: Via = None,
    schema: Schema = None,
    revisions_schema: RevisionsSchema = None,
) -> None:
    """Refuse unstamped writes and hard deletes of a synced table."""
    _print(
        *triggers.create_guard_trigger(
            table, owner=owner, via=_pairs(via), schema=schema, revisions_schema=revisions_schema
        )
    )


@app.command()
def drop_guard_trigger(table: Table, *, schema: Schema = None) -> None:
    """Drop the guard of a table."""
    _print(*triggers.drop_guard_trigger(table, schema=schema))


@app.command()
def create_stamp_trigger(
    table: Table,
    *,
    owner: Owner = "owner_id",
    via: Via = None,
    deletes_by: Annotated[
        list[str] | None,
        typer.Option(help="A column of the primary key: deletes become tombstones.", show_default=False),
    ] = None,
    schema: Schema = None,
    revisions_schema: RevisionsSchema = None,
) -> None:
    """Stamp what others write to a synced table."""
    _print(
        *triggers.create_stamp_trigger(
            table,
            owner=owner,
            via=_pairs(via),
            deletes_by=deletes_by or (),
            schema=schema,
            revisions_schema=revisions_schema,
        )
    )


@app.command()
def drop_stamp_trigger(table: Table, *, schema: Schema = None) -> None:
    """Drop the stamp of a table."""
    _print(*triggers.drop_stamp_trigger(table, schema=schema))


@app.command()
def rename_user_id(*, schema: Schema = None) -> None:
    """Bring a sync_revisions with user_id to its present shape."""
    _print(*ddl.rename_user_id(schema=schema))


@app.command()
def rename_owner_id(*, schema: Schema = None) -> None:
    """Undo rename-user-id."""
    _print(*ddl.rename_owner_id(schema=schema))


def _pairs(via: list[str] | None) -> list[tuple[str, str]]:
    pairs = [step.partition("=") for step in via or ()]
    return [(key, column) for key, _, column in pairs]


def _print(*statements: str) -> None:
    sys.stdout.write(ddl.script(statements))

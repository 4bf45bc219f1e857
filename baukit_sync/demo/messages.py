"""What the notes product's devices and its server say to each other, in JSON with camelCase keys."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias
from uuid import UUID

from pydantic import Field, model_validator

from baukit_sync.hlc import MAX_SAFE_INTEGER
from baukit_sync.wire import Cursor, PullResponse, Revision, WireModel

TableName: TypeAlias = Literal["lists", "items", "attachments"]


class Change(WireModel):
    """A row as a device wrote it. The device makes the id, so that it can write offline."""

    table: TableName
    id: UUID
    parent_id: UUID | None = None
    title: str
    stamp: Annotated[int, Field(strict=True, ge=1, le=MAX_SAFE_INTEGER)]
    deleted: bool = False

    @model_validator(mode="after")
    def _has_a_parent_unless_a_list(self) -> Self:
        if (self.parent_id is None) != (self.table == "lists"):
            raise ValueError("items and attachments have a parent, lists have none")
        return self


class PulledChange(Change):
    """A row as the server has it."""

    revision: Revision


class Push(WireModel):
    """A push: what a device wrote, on top of what it had pulled."""

    base_cursor: Cursor
    changes: list[Change]


class Pushed(WireModel):
    """What became of a push: the revisions of the rows that were written, and what had no effect."""

    applied: dict[UUID, Revision]
    ignored: list[UUID]


class Pull(WireModel):
    """A page that a device asks for: what lies above ``cursor``.

    The pages after the first say with ``through`` where their pull ends, although others go on writing. A
    device that started from 0 also sends back the ``rebuild`` of its last page: its cursors may lie below the
    horizon.
    """

    cursor: Cursor
    through: Cursor | None = None
    rebuild: Cursor | None = None
    limit: Annotated[int, Field(ge=1, le=1_000)]


class Page(PullResponse[PulledChange]):
    """A page of a pull; all pages of the pull have the same ``through``."""

    through: Cursor

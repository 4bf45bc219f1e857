"""Pydantic models of what client and server say to each other, in camelCase.

Every number is an integer that JavaScript keeps exactly; bools, floats and strings are refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from baukit_sync.errors import (
    CursorAheadError,
    InvalidCursorError,
    NegativeCursorError,
    PrimaryRequiredError,
    ResyncRequiredError,
    SyncError,
    UnknownOwnerError,
)
from baukit_sync.hlc import HybridLogicalClockState
from baukit_sync.horizon import MAX_REVISION, RESYNC_REQUIRED_STATUS

Revision = Annotated[int, Field(strict=True, ge=0, le=MAX_REVISION)]
"""A revision or a counter's value: an integer in 0..9,007,199,254,740,991."""

Cursor = Annotated[int, Field(strict=True, ge=0, le=MAX_REVISION)]
"""The last revision a client has applied; 0 asks for everything."""

ChangeT = TypeVar("ChangeT")


class WireModel(BaseModel):
    """A frozen model that reads and writes camelCase and refuses unknown fields."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        serialize_by_alias=True,
    )


class ResyncDetails(WireModel):
    """The details of :class:`ResyncRequired`: the horizon and nothing else."""

    horizon_revision: Revision


class ResyncRequired(WireModel):
    """The body of the 409 that answers a cursor below the horizon. Source: contract section 4.

    It names no owner, table or row, and its text is constant::

        ResyncRequired.at(error.horizon_revision)
    """

    code: Literal["resync_required"] = "resync_required"
    message: Literal["Pull again from revision 0"] = "Pull again from revision 0"
    details: ResyncDetails

    @classmethod
    def at(cls, horizon_revision: int) -> ResyncRequired:
        """Return the body for this horizon, an integer in 0..9,007,199,254,740,991."""
        return cls(details=ResyncDetails(horizon_revision=horizon_revision))


class PullResponse(WireModel, Generic[ChangeT]):
    """A page of changes in revision order; write ``PullResponse[YourChange]``.

    Attributes:
        changes: The product's own change models, tombstones included.
        next_cursor: What the client stores once it has applied the page, and sends with its next pull.
        has_more: Whether another page is waiting.
        rebuild: What a client that started from 0 sends along until it is through; else ``None``.
    """

    changes: list[ChangeT]
    next_cursor: Cursor
    has_more: bool
    rebuild: Cursor | None = None


class ErrorBody(WireModel):
    """The body of any other refusal: a stable code and a text that says nothing of the product's data."""

    code: str
    message: str


_STATUS: dict[type[SyncError], tuple[int, str]] = {
    NegativeCursorError: (400, "The cursor must be an integer >= 0"),
    InvalidCursorError: (400, "The cursor must be an integer >= 0"),
    UnknownOwnerError: (404, "Nothing is synced for this owner"),
    PrimaryRequiredError: (503, "Try again"),
}


def error_response(error: SyncError) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and JSON body that answer an error, for any framework.

    * ``ResyncRequiredError``: 409 ``resync_required``, with the horizon.
    * ``CursorAheadError``: the same, with the counter as the horizon; the client has to rebuild as well.
    * ``NegativeCursorError``, ``InvalidCursorError``: 400 and their own code.
    * ``UnknownOwnerError``: 404 ``unknown_owner``. ``PrimaryRequiredError``: 503 ``primary_required``.
    * Any other: 500 ``internal_error``.

    Args:
        error: What a function of this package raised.

    Returns:
        The status, and a body that ``json.dumps`` takes. It holds no owner id, table name or row data.
    """
    match error:
        case ResyncRequiredError(horizon_revision=horizon):
            return RESYNC_REQUIRED_STATUS, ResyncRequired.at(horizon).model_dump(by_alias=True)
        case CursorAheadError(current_revision=current):
            return RESYNC_REQUIRED_STATUS, ResyncRequired.at(current).model_dump(by_alias=True)
        case _:
            code = error.code if type(error) in _STATUS else "internal_error"
            status, message = _STATUS.get(type(error), (500, "Something went wrong"))
            return status, ErrorBody(code=code, message=message).model_dump(by_alias=True)


class ClockState(WireModel):
    """A hybrid logical clock's state as clients persist it: ``wallTimeMs``, ``counter``, ``deviceId``."""

    wall_time_ms: Annotated[int, Field(strict=True, ge=0, le=MAX_REVISION)]
    counter: Annotated[int, Field(strict=True, ge=0, le=999)]
    device_id: Annotated[str, Field(strict=True)]

    @classmethod
    def of(cls, state: HybridLogicalClockState) -> ClockState:
        """Return the wire form of a clock's snapshot."""
        return cls(wall_time_ms=state.wall_time_ms, counter=state.counter, device_id=state.device_id)

    def to_state(self) -> HybridLogicalClockState:
        """Return the state that ``HybridLogicalClock.open`` takes."""
        return HybridLogicalClockState(self.wall_time_ms, self.counter, self.device_id)

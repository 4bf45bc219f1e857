"""Pydantic models of what client and server say to each other, in camelCase.

Every number is an integer that JavaScript keeps exactly; bools, floats and strings are refused.
"""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from baukit_sync.hlc import HybridLogicalClockState
from baukit_sync.horizon import MAX_REVISION

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
    """

    changes: list[ChangeT]
    next_cursor: Cursor
    has_more: bool


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

"""What goes over the wire: camelCase, and integers that JavaScript keeps exactly."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from baukit_sync import (
    CursorAheadError,
    HybridLogicalClock,
    HybridLogicalClockState,
    InvalidCursorError,
    NegativeCursorError,
    PrimaryRequiredError,
    ResyncRequiredError,
    SelectorShapeError,
    SyncError,
    UnknownOwnerError,
)
from baukit_sync.horizon import MAX_REVISION, RESYNC_REQUIRED_CODE, RESYNC_REQUIRED_STATUS
from baukit_sync.wire import ClockState, Cursor, PullResponse, ResyncRequired, Revision, error_response


class Numbers(BaseModel):
    """A product's model that uses the kit's two types."""

    cursor: Cursor
    revision: Revision


class NoteChange(BaseModel):
    """A product's change."""

    id: UUID
    revision: Revision
    title: str | None


FIELDS = pytest.mark.parametrize("field", ["cursor", "revision"])


@FIELDS
@pytest.mark.parametrize("value", [0, 1, 2**31, MAX_REVISION])
def test_an_integer_that_javascript_keeps_is_accepted(field: str, value: int) -> None:
    """From Python and from JSON, up to the greatest one."""
    values = {"cursor": 1, "revision": 1} | {field: value}

    assert value == getattr(Numbers(**values), field)
    assert value == getattr(Numbers.model_validate_json(json.dumps(values)), field)


@FIELDS
@pytest.mark.parametrize("value", ["1", 1.0, 1.5, True, False, None, -1, 2**53, [1]])
def test_anything_else_is_refused_from_python(field: str, value: Any) -> None:
    """Nothing is converted."""
    with pytest.raises(ValidationError) as caught:
        Numbers(**({"cursor": 1, "revision": 1} | {field: value}))

    assert [(field,)] == [error["loc"] for error in caught.value.errors()]


@FIELDS
@pytest.mark.parametrize(
    "text", ['"1"', "1.0", "1e3", "true", "false", "null", "-1", "9007199254740992", "1" * 30, "[1]"]
)
def test_anything_else_is_refused_from_json(field: str, text: str) -> None:
    """A float that happens to be whole comes from a client that has lost the integer."""
    values = {"cursor": "1", "revision": "1"} | {field: text}
    body = ", ".join(f'"{name}": {value}' for name, value in values.items())
    with pytest.raises(ValidationError) as caught:
        Numbers.model_validate_json(f"{{{body}}}")

    assert [(field,)] == [error["loc"] for error in caught.value.errors()]


@FIELDS
def test_the_json_schema_says_integer_with_its_bounds(field: str) -> None:
    """So that generated clients refuse what the server would."""
    schema = Numbers.model_json_schema()["properties"][field]

    assert ("integer", 0, MAX_REVISION) == (schema["type"], schema["minimum"], schema["maximum"])


def test_the_body_of_a_resync_is_the_contracts() -> None:
    """Nothing else is in it: no owner, no table, no row."""
    expected = (
        '{"code":"resync_required","message":"Pull again from revision 0","details":{"horizonRevision":7}}'
    )

    assert expected == ResyncRequired.at(7).model_dump_json()


def test_the_body_of_a_resync_is_read_back() -> None:
    """A client in Python may use the same model."""
    body = ResyncRequired.at(7)

    assert body == ResyncRequired.model_validate_json(body.model_dump_json())


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NegativeCursorError(), 400, "negative_cursor"),
        (InvalidCursorError(), 400, "invalid_cursor"),
        (UnknownOwnerError(), 404, "unknown_owner"),
        (PrimaryRequiredError(), 503, "primary_required"),
        (SelectorShapeError("secret_table"), 500, "internal_error"),
        (SyncError("secret"), 500, "internal_error"),
    ],
)
def test_every_error_has_an_answer_that_gives_nothing_away(error: SyncError, status: int, code: str) -> None:
    """A code and a constant text."""
    answered, body = error_response(error)

    assert (status, code) == (answered, body["code"])
    assert {"code", "message"} == set(body)
    assert "secret" not in json.dumps(body)


@pytest.mark.parametrize("error", [ResyncRequiredError(7), CursorAheadError(7)])
def test_both_stale_and_foreign_cursors_are_answered_by_a_resync(error: SyncError) -> None:
    """A client has one thing to do in either case, and one code to know."""
    status, body = error_response(error)

    assert (RESYNC_REQUIRED_STATUS, RESYNC_REQUIRED_CODE) == (status, body["code"])
    assert {"horizonRevision": 7} == body["details"]


def test_a_pull_response_holds_the_products_changes() -> None:
    """Its own fields are camelCase; the changes are as the product wrote them."""
    change = NoteChange(id=uuid4(), revision=4, title=None)
    response = PullResponse[NoteChange](changes=[change], next_cursor=4, has_more=True)
    sent = json.loads(response.model_dump_json(by_alias=True))

    assert {"id": str(change.id), "revision": 4, "title": None} == sent["changes"][0]
    assert (4, True) == (sent["nextCursor"], sent["hasMore"])
    assert response == PullResponse[NoteChange].model_validate_json(response.model_dump_json())


def test_a_pull_response_checks_the_products_changes() -> None:
    """A change of another shape is not sent."""
    with pytest.raises(ValidationError):
        PullResponse[NoteChange].model_validate({"changes": [{"id": 1}], "nextCursor": 4, "hasMore": False})


def test_the_schema_of_a_pull_response_names_the_products_change() -> None:
    """An OpenAPI document shows both, with the names that go over the wire."""
    schema = PullResponse[NoteChange].model_json_schema()

    assert {"changes", "nextCursor", "hasMore"} <= set(schema["properties"])
    assert {"$ref": "#/$defs/NoteChange"} == schema["properties"]["changes"]["items"]


def test_a_misspelt_field_is_refused() -> None:
    """A client's typing error is not silence."""
    with pytest.raises(ValidationError):
        PullResponse[NoteChange].model_validate({"changes": [], "nextCursor": 4, "hasMore": 0, "more": 1})


@given(st.integers(0, 9_007_199_254_740), st.integers(0, 999), st.text(min_size=1))
def test_a_clocks_state_comes_back_as_it_was(wall_time_ms: int, counter: int, device_id: str) -> None:
    """Through JSON in camelCase, whatever characters the device id has."""
    state = HybridLogicalClockState(wall_time_ms, counter, device_id)
    sent = ClockState.of(state).model_dump_json(by_alias=True)

    assert {"wallTimeMs": wall_time_ms, "counter": counter, "deviceId": device_id} == json.loads(sent)
    assert state == ClockState.model_validate_json(sent).to_state()


def test_a_clock_goes_on_from_the_state_that_it_sent() -> None:
    """The next timestamp is greater than every one before."""
    clock = HybridLogicalClock.open("device", lambda: 1_000)
    before = clock.now()
    sent = ClockState.of(clock.snapshot()).model_dump_json()
    reopened = HybridLogicalClock.open("device", lambda: 0, ClockState.model_validate_json(sent).to_state())

    assert before < reopened.now()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("wallTimeMs", value) for value in ("1", 1.0, True, -1, 2**53, None)],
        *[("counter", value) for value in ("1", 1.0, True, -1, 1000, None)],
        *[("deviceId", value) for value in (1, True, None)],
    ],
)
def test_a_clocks_state_is_strict(field: str, value: Any) -> None:
    """A float or a text in it comes from a client that stores it wrongly."""
    state = {"wallTimeMs": 1, "counter": 0, "deviceId": "device"} | {field: value}
    with pytest.raises(ValidationError) as python:
        ClockState.model_validate(state)
    with pytest.raises(ValidationError) as text:
        ClockState.model_validate_json(json.dumps(state))

    assert [(field,)] == [error["loc"] for error in python.value.errors()]
    assert [(field,)] == [error["loc"] for error in text.value.errors()]


def test_a_wire_model_does_not_change() -> None:
    """Nobody corrects a body on its way out."""
    with pytest.raises(ValidationError):
        ResyncRequired.at(7).code = "other"  # type: ignore[assignment]

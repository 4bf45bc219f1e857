"""What a client is told when a call is refused, and the page that it gets when it is not."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from pydantic import BaseModel, ValidationError

from baukit_sync import errors
from baukit_sync.errors import (
    CursorAheadError,
    InvalidArgumentError,
    InvalidCursorError,
    NegativeCursorError,
    PrimaryRequiredError,
    ResyncRequiredError,
    SyncError,
    UnknownOwnerError,
)
from baukit_sync.horizon import MAX_REVISION
from baukit_sync.wire import ErrorBody, PullResponse, ResyncRequired, error_response

CLIENT_ERRORS = {
    ResyncRequiredError: (409, "resync_required"),
    CursorAheadError: (409, "resync_required"),
    InvalidCursorError: (400, "invalid_cursor"),
    NegativeCursorError: (400, "negative_cursor"),
    UnknownOwnerError: (404, "unknown_owner"),
    PrimaryRequiredError: (503, "primary_required"),
}


def subclasses(error: type[SyncError]) -> list[type[SyncError]]:
    """Return an error class and all that derive from it."""
    return [error, *(each for child in error.__subclasses__() for each in subclasses(child))]


def made(error: type[SyncError]) -> SyncError:
    """Make an error whose fields all say ``secret``, or 7."""
    for arguments in ((), (7,), ("secret",), ("secret", "secret"), ("secret", 7, 7), (7, 7)):
        try:
            instance = error(*arguments)
            str(instance)
        except TypeError:
            continue
        return instance
    raise AssertionError(error)


ALL = [made(error) for error in subclasses(SyncError)]


def test_a_resync_names_the_horizon_and_nothing_else() -> None:
    """Status, code and key are what clients in other languages know."""
    assert (
        409,
        {
            "code": "resync_required",
            "message": "Pull again from revision 0",
            "details": {"horizonRevision": 12},
        },
    ) == error_response(ResyncRequiredError(12))


@pytest.mark.parametrize("current", [0, 7, MAX_REVISION])
def test_a_cursor_that_is_ahead_is_answered_like_one_below_the_horizon(current: int) -> None:
    """The client does the same about it: it rebuilds from 0. The counter stands in for the horizon."""
    status, body = error_response(CursorAheadError(current))

    assert (409, "resync_required") == (status, body["code"])
    assert {"horizonRevision": current} == body["details"]


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
def test_each_error_has_a_status_and_a_stable_code(error: SyncError) -> None:
    """What is not the client's to know is an internal error."""
    status, body = error_response(error)

    assert CLIENT_ERRORS.get(type(error), (500, "internal_error")) == (status, body["code"])


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
def test_a_body_is_json_without_secrets(error: SyncError) -> None:
    """No argument, table or reason of the error gets out, whatever it is."""
    _, body = error_response(error)
    text = json.dumps(body)

    assert "secret" not in text
    assert {"code", "message"} <= body.keys()
    assert "details" not in body or ["horizonRevision"] == list(body["details"])


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
def test_a_body_is_one_of_the_two_models(error: SyncError) -> None:
    """A client in Python can parse it."""
    status, body = error_response(error)
    model: type[BaseModel] = ResyncRequired if status == 409 else ErrorBody

    assert body == model.model_validate(body).model_dump(by_alias=True)


def test_the_same_error_has_the_same_body_in_every_process() -> None:
    """Its text does not depend on the error's fields."""
    bodies = [error_response(InvalidArgumentError(argument, "x"))[1] for argument in ("a", "b")]

    assert bodies[0] == bodies[1]


def test_every_error_of_the_package_was_looked_at() -> None:
    """A new one is an internal error until someone decides otherwise."""
    public = {value for value in vars(errors).values() if isinstance(value, type)}

    assert {each for each in public if issubclass(each, SyncError)} == {type(error) for error in ALL}


class NoteChange(BaseModel):
    """A product's change."""

    id: str
    deleted: bool


def test_a_page_is_camel_case_on_the_wire() -> None:
    """Cursors and changes in the product's own shape."""
    response = PullResponse[NoteChange](
        changes=[NoteChange(id="a", deleted=True)], next_cursor=5, has_more=True, rebuild=9
    )

    assert {
        "changes": [{"id": "a", "deleted": True}],
        "nextCursor": 5,
        "hasMore": True,
        "rebuild": 9,
    } == json.loads(response.model_dump_json())
    assert response == PullResponse[NoteChange].model_validate_json(response.model_dump_json())


def test_a_page_without_a_rebuild_says_so() -> None:
    """Most are incremental."""
    response = PullResponse[NoteChange](changes=[], next_cursor=0, has_more=False)

    assert {"changes": [], "nextCursor": 0, "hasMore": False, "rebuild": None} == json.loads(
        response.model_dump_json()
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nextCursor", -1),
        ("nextCursor", MAX_REVISION + 1),
        ("nextCursor", "5"),
        ("nextCursor", 5.0),
        ("nextCursor", True),
        ("rebuild", -1),
        ("rebuild", "5"),
        ("changes", [{"id": uuid4().hex}]),
        ("more", 1),
    ],
)
def test_a_page_that_a_client_could_not_keep_is_refused(field: str, value: Any) -> None:
    """A cursor is an integer that JavaScript keeps exactly."""
    page = {"changes": [], "nextCursor": 5, "hasMore": False, field: value}
    with pytest.raises(ValidationError):
        PullResponse[NoteChange].model_validate(page)

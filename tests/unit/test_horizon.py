"""The pull-cursor rule, and cursors as text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baukit_sync import InvalidArgumentError, InvalidCursorError, NegativeCursorError, ResyncRequiredError
from baukit_sync.horizon import (
    FULL_RESYNC_CURSOR,
    HORIZON_REVISION_DETAIL,
    MAX_REVISION,
    RESYNC_REQUIRED_CODE,
    RESYNC_REQUIRED_STATUS,
    check_cursor,
    check_pull_cursor,
    parse_cursor,
)

REVISIONS = st.integers(0, MAX_REVISION)
NOT_INTEGERS = [None, True, False, 1.0, 1.5, float("nan"), "", "1", "x", b"1", [1]]


def refused(cursor: int, horizon: int | None) -> int | None:
    """Return the horizon that a refusal carries, or ``None`` when the cursor is served."""
    try:
        check_pull_cursor(cursor, horizon)
    except ResyncRequiredError as error:
        return error.horizon_revision
    return None


def test_the_wire_constants_are_those_of_the_contract() -> None:
    """Clients in other languages have them built in."""
    assert (409, "resync_required", "horizonRevision", 0) == (
        RESYNC_REQUIRED_STATUS,
        RESYNC_REQUIRED_CODE,
        HORIZON_REVISION_DETAIL,
        FULL_RESYNC_CURSOR,
    )
    assert ResyncRequiredError.code == RESYNC_REQUIRED_CODE
    assert 2**53 - 1 == MAX_REVISION


@given(REVISIONS)
def test_zero_is_always_served(horizon: int) -> None:
    """A client that has nothing cannot have missed anything."""
    assert refused(0, horizon) is None


@given(REVISIONS, REVISIONS)
def test_a_cursor_is_served_from_the_horizon_on(a: int, b: int) -> None:
    """The client with the cursor at the horizon has seen the tombstone that was purged."""
    horizon, cursor = sorted([a, b])

    assert refused(cursor, horizon) is None


@given(REVISIONS, REVISIONS)
def test_a_cursor_below_the_horizon_is_refused_with_it(a: int, b: int) -> None:
    """Every positive cursor below."""
    cursor, horizon = min(a, b) // 2 + 1, max(a, b) // 2 + 2

    assert horizon == refused(cursor, horizon)


@given(REVISIONS)
def test_without_a_horizon_every_cursor_is_served(cursor: int) -> None:
    """``None`` and 0 both mean that nothing was ever purged."""
    assert refused(cursor, None) is None
    assert refused(cursor, 0) is None


@pytest.mark.parametrize("horizon", [None, 0, 5])
@given(cursor=st.integers(max_value=-1))
def test_a_negative_cursor_is_an_error_of_its_own(cursor: int, horizon: int | None) -> None:
    """It never means the beginning."""
    with pytest.raises(NegativeCursorError):
        check_pull_cursor(cursor, horizon)


@given(st.integers(min_value=MAX_REVISION + 1))
def test_a_cursor_above_the_greatest_safe_integer_is_invalid(cursor: int) -> None:
    """JavaScript would have rounded it on the way."""
    with pytest.raises(InvalidCursorError):
        check_cursor(cursor)


@pytest.mark.parametrize("cursor", NOT_INTEGERS)
def test_what_is_no_integer_is_no_cursor(cursor: Any) -> None:
    """Not even where Python would compare it with one."""
    with pytest.raises(InvalidCursorError):
        check_pull_cursor(cursor, None)


@pytest.mark.parametrize("horizon", [-1, *NOT_INTEGERS[1:]])
def test_what_is_no_horizon_is_refused(horizon: Any) -> None:
    """A comparison with it would let every cursor pass, or none."""
    with pytest.raises(InvalidArgumentError):
        check_pull_cursor(1, horizon)


@given(REVISIONS)
def test_every_cursor_is_read_back_from_its_text(cursor: int) -> None:
    """What a server sends as a decimal number comes back as it was."""
    assert cursor == parse_cursor(str(cursor))


@given(st.text(alphabet="0123456789+-_. eExX\u0661\uff11\n", max_size=20))
def test_a_text_that_is_read_is_the_cursors_own(text: str) -> None:
    """No two texts are the same cursor: no sign, no leading zero, no other digits than ASCII's."""
    try:
        cursor = parse_cursor(text)
    except InvalidCursorError:
        return
    assert str(cursor) == text


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "x",
            "-1",
            "-0",
            "+1",
            "1e3",
            "1.0",
            "0x1",
            "01",
            "00",
            " 1",
            "1 ",
            "1\n",
            "1_000",
            "\u0661",
        ),
        *("9007199254740992", "9223372036854775808", "1" * 400),
        *(None, 1, 1.0, True, b"1"),
    ],
)
def test_any_other_text_is_an_invalid_cursor(text: Any) -> None:
    """Never silence, and never a guess."""
    with pytest.raises(InvalidCursorError):
        parse_cursor(text)

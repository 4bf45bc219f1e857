"""The hybrid logical clock: its encoding, its steps, its limits and its memory."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from baukit_sync.errors import (
    BlankDeviceIdError,
    ClockDriftError,
    ExceedsSafeIntegerError,
    HlcError,
    InvalidArgumentError,
    InvalidComponentError,
    InvalidPhysicalClockError,
    InvalidTimestampError,
)
from baukit_sync.hlc import (
    MAX_SAFE_INTEGER,
    HybridLogicalClock,
    HybridLogicalClockState,
    compare,
    decode,
    encode,
    system_time_ms,
)

MAX_WALL_MS = 9_007_199_254_740
T = 1_700_000_000_123

NOT_INTEGERS = [True, False, 1.0, float("nan"), float("inf"), "1", "1e15", b"1", None, 1j]

timestamps = st.integers(1, MAX_SAFE_INTEGER)
# Few milliseconds, so that physical, own and remote times meet often.
close_walls = st.integers(T, T + 2)
close_timestamps = st.builds(encode, close_walls, st.sampled_from([0, 1, 2, 997, 998, 999]))
any_walls = close_walls | st.integers(0, MAX_WALL_MS - 1)
any_remotes = close_timestamps | st.integers(1, encode(MAX_WALL_MS - 1, 999))


@dataclass
class SetClock:
    """A physical clock that reads what the test sets."""

    reading: Any

    def __call__(self) -> Any:
        """Return the reading."""
        return self.reading


def clock_at(wall_time_ms: int, counter: int, physical: Callable[[], Any]) -> HybridLogicalClock:
    """Open a clock whose last timestamp is the given one."""
    return HybridLogicalClock.open("a", physical, HybridLogicalClockState(wall_time_ms, counter, "a"))


# --- encoding ---


@given(st.integers(0, MAX_WALL_MS - 1), st.integers(0, 999))
@example(0, 0)
@example(MAX_WALL_MS - 1, 999)
def test_decoding_undoes_encoding(wall_time_ms: int, counter: int) -> None:
    """Every wall time and counter come back from their timestamp."""
    timestamp = encode(wall_time_ms, counter)

    assert 1 <= timestamp <= MAX_SAFE_INTEGER
    assert (wall_time_ms, counter) == decode(timestamp)


@given(timestamps)
@example(1)
@example(MAX_SAFE_INTEGER)
def test_encoding_undoes_decoding(timestamp: int) -> None:
    """Every valid timestamp is the encoding of what it decodes to."""
    wall_time_ms, counter = decode(timestamp)

    assert timestamp == encode(wall_time_ms, counter)


def test_a_timestamp_is_the_wall_time_in_thousandths_and_the_counter_plus_one() -> None:
    """The arithmetic is fixed: other languages share it."""
    assert encode(1_700_000_000_123, 456) == 1_700_000_000_123_457


def test_the_first_timestamp_is_one() -> None:
    """Wall time 0 with counter 0 encodes to 1, so that 0 stays invalid."""
    assert encode(0, 0) == 1


def test_the_greatest_timestamp_is_counter_990_of_the_last_millisecond() -> None:
    """JavaScript's greatest safe integer is the greatest timestamp."""
    assert decode(9_007_199_254_740_991) == (9_007_199_254_740, 990)
    assert encode(9_007_199_254_740, 990) == 9_007_199_254_740_991


def test_decoded_parts_have_names() -> None:
    """A decoded timestamp is read by name as well as by position."""
    decoded = decode(encode(T, 7))

    assert decoded.wall_time_ms == T
    assert decoded.counter == 7


@given(any_walls, st.integers(0, 999), any_walls, st.integers(0, 999))
def test_timestamps_sort_as_their_parts_do(wall_a: int, counter_a: int, wall_b: int, counter_b: int) -> None:
    """The order of timestamps is that of (wall time, counter)."""
    assert ((wall_a, counter_a) < (wall_b, counter_b)) == (
        encode(wall_a, counter_a) < encode(wall_b, counter_b)
    )


@pytest.mark.parametrize(("wall_time_ms", "counter"), [(-1, 0), (0, -1), (0, 1000), (-(10**30), 10**30)])
def test_encoding_refuses_a_component_outside_its_range(wall_time_ms: int, counter: int) -> None:
    """A negative wall time and a counter outside 0..999 are invalid components."""
    with pytest.raises(InvalidComponentError):
        encode(wall_time_ms, counter)


@pytest.mark.parametrize("value", NOT_INTEGERS)
def test_encoding_refuses_a_component_that_is_not_an_integer(value: Any) -> None:
    """Bools, floats and strings are not integers, in either place."""
    with pytest.raises(InvalidComponentError):
        encode(value, 0)
    with pytest.raises(InvalidComponentError):
        encode(0, value)


@pytest.mark.parametrize(("wall_time_ms", "counter"), [(MAX_WALL_MS, 991), (MAX_WALL_MS + 1, 0), (10**30, 0)])
def test_encoding_refuses_what_javascript_would_round(wall_time_ms: int, counter: int) -> None:
    """Valid components whose timestamp is above 2**53 - 1 exceed the safe integer."""
    with pytest.raises(ExceedsSafeIntegerError):
        encode(wall_time_ms, counter)


def test_encoding_checks_the_components_before_the_maximum() -> None:
    """An invalid counter is reported even when the wall time is too great as well."""
    with pytest.raises(InvalidComponentError):
        encode(10**30, 1000)


@pytest.mark.parametrize("value", [0, -1, MAX_SAFE_INTEGER + 1, 10**30, -(10**30)])
def test_decoding_refuses_an_integer_that_is_no_timestamp(value: int) -> None:
    """0 and everything outside 1..2**53 - 1 are invalid."""
    with pytest.raises(InvalidTimestampError):
        decode(value)


@pytest.mark.parametrize("value", NOT_INTEGERS)
def test_decoding_refuses_what_is_not_an_integer(value: Any) -> None:
    """Bools, floats and strings are no timestamps, although True equals 1."""
    with pytest.raises(InvalidTimestampError):
        decode(value)


# --- comparing ---


@given(timestamps, timestamps)
@example(5, 5)
@example(MAX_SAFE_INTEGER - 1, MAX_SAFE_INTEGER)
def test_comparing_orders_timestamps(a: int, b: int) -> None:
    """The result is -1, 0 or 1, as the integers are ordered."""
    assert (a > b) - (a < b) == compare(a, b)


@pytest.mark.parametrize("value", [0, -1, MAX_SAFE_INTEGER + 1, *NOT_INTEGERS])
def test_comparing_with_something_invalid_gives_none(value: Any) -> None:
    """What is no timestamp has no order, on either side and with itself."""
    assert None is compare(value, 5)
    assert None is compare(5, value)
    assert None is compare(value, value)


# --- now ---


def test_now_is_the_physical_time_when_that_is_ahead() -> None:
    """A later physical time starts at its counter 0."""
    clock = clock_at(T, 500, SetClock(T + 1))

    assert encode(T + 1, 0) == clock.now()


def test_now_counts_up_while_the_physical_clock_stalls() -> None:
    """Within one millisecond the counter tells the values apart."""
    clock = clock_at(T, 500, SetClock(T))

    assert encode(T, 501) == clock.now()


def test_now_counts_up_when_the_physical_clock_goes_back() -> None:
    """A physical clock behind the wall time does not take it back."""
    clock = clock_at(T, 500, SetClock(T - 60_000))

    assert encode(T, 501) == clock.now()


def test_now_rolls_a_full_counter_over_into_the_next_millisecond() -> None:
    """After counter 999 comes counter 0 of the next millisecond."""
    clock = clock_at(T, 999, SetClock(T))

    assert encode(T + 1, 0) == clock.now()


def test_a_new_clock_starts_from_the_origin() -> None:
    """Without a state the clock stands at (0, 0), which it never returns."""
    clock = HybridLogicalClock.open("a", SetClock(0))

    assert encode(0, 1) == clock.now()


def test_the_default_physical_clock_is_the_systems() -> None:
    """Without a physical clock, now lies between two readings of the system's clock."""
    before = system_time_ms()
    wall_time_ms = decode(HybridLogicalClock.open("a").now()).wall_time_ms
    after = system_time_ms()

    assert before <= wall_time_ms <= after


def test_a_system_clock_before_1970_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default clock is read without a call and still checked."""
    clock = HybridLogicalClock.open("a")
    monkeypatch.setattr("baukit_sync.hlc.time_ns", lambda: -1)

    with pytest.raises(InvalidPhysicalClockError):
        clock.now()


# --- observe ---


@pytest.mark.parametrize(
    ("physical", "own", "remote", "expected"),
    [
        pytest.param(T, (T, 5), (T, 9), (T, 10), id="own and remote share the wall, remote ahead"),
        pytest.param(T, (T, 9), (T, 5), (T, 10), id="own and remote share the wall, own ahead"),
        pytest.param(T, (T, 5), (T - 1, 900), (T, 6), id="own alone has the wall"),
        pytest.param(T, (T - 1, 900), (T, 5), (T, 6), id="remote alone has the wall"),
        pytest.param(T, (T - 1, 900), (T - 2, 900), (T, 0), id="physical alone has the wall"),
        pytest.param(T - 9, (T - 5, 3), (T, 5), (T, 6), id="remote ahead of physical"),
        pytest.param(T, (T, 999), (T - 1, 0), (T + 1, 0), id="own counter rolls over"),
        pytest.param(T, (T - 1, 0), (T, 999), (T + 1, 0), id="remote counter rolls over"),
    ],
)
def test_observe_merges(
    physical: int, own: tuple[int, int], remote: tuple[int, int], expected: tuple[int, int]
) -> None:
    """The wall is the greatest of the three; its counter follows those that share it."""
    clock = clock_at(*own, SetClock(physical))

    assert expected == decode(clock.observe(encode(*remote)))


def stepped(state: tuple[int, int], physical: int, remote: tuple[int, int] | None) -> tuple[int, int]:
    """Step a (wall, counter) by the contract's words, case by case."""
    wall, counter = state
    if remote is None:
        merged = (physical, 0) if physical > wall else (wall, counter + 1)
    else:
        remote_wall, remote_counter = remote
        latest = max(physical, wall, remote_wall)
        if latest == wall == remote_wall:
            merged = (latest, max(counter, remote_counter) + 1)
        elif latest == wall:
            merged = (latest, counter + 1)
        elif latest == remote_wall:
            merged = (latest, remote_counter + 1)
        else:
            merged = (latest, 0)
    return (merged[0] + 1, 0) if merged[1] == 1000 else merged


@given(any_walls, close_timestamps | any_remotes, st.none() | close_timestamps | any_remotes)
def test_a_step_is_the_one_that_the_contract_describes(physical: int, own: int, remote: int | None) -> None:
    """The one comparison of the code equals the contract's case distinction."""
    clock = clock_at(*decode(own), SetClock(physical))
    value = clock.now() if remote is None else clock.observe(remote)

    assert stepped(decode(own), physical, None if remote is None else decode(remote)) == decode(value)


@pytest.mark.parametrize("value", [0, -1, MAX_SAFE_INTEGER + 1, *NOT_INTEGERS])
def test_observe_refuses_what_is_no_timestamp(value: Any) -> None:
    """An invalid remote timestamp is an error and changes nothing."""
    clock = clock_at(T, 5, SetClock(T + 1))

    with pytest.raises(InvalidTimestampError):
        clock.observe(value)
    assert HybridLogicalClockState(T, 5, "a") == clock.snapshot()


def test_observe_checks_the_timestamp_before_it_reads_the_physical_clock() -> None:
    """Bad input is refused before anything else is done."""
    clock = HybridLogicalClock.open("a", SetClock(-1))

    with pytest.raises(InvalidTimestampError):
        clock.observe(0)


# --- observe_many ---


@given(any_walls, any_remotes, st.lists(close_timestamps | any_remotes, min_size=1))
def test_a_batch_is_merged_as_its_greatest_timestamp(physical: int, own: int, remotes: list[int]) -> None:
    """Observing a batch equals observing the greatest of it."""
    batch = clock_at(*decode(own), SetClock(physical))
    single = clock_at(*decode(own), SetClock(physical))

    assert single.observe(max(remotes)) == batch.observe_many(remotes)


def test_a_batch_takes_one_counter_however_long_it_is() -> None:
    """Five thousand timestamps of a frozen millisecond do not use it up."""
    clock = clock_at(T, 5, SetClock(T))

    assert encode(T, 6) == clock.observe_many([encode(T, 3)] * 5_000)


def test_a_batch_may_be_an_iterator() -> None:
    """The timestamps are read once."""
    clock = clock_at(T, 5, SetClock(T))

    assert encode(T, 10) == clock.observe_many(encode(T, counter) for counter in (3, 9, 4))


def test_an_empty_batch_is_a_local_event() -> None:
    """With nothing to observe, the value is that of now."""
    clock = clock_at(T, 5, SetClock(T))

    assert encode(T, 6) == clock.observe_many([])


@pytest.mark.parametrize("value", [0, -1, MAX_SAFE_INTEGER + 1, *NOT_INTEGERS])
def test_one_invalid_timestamp_refuses_the_whole_batch(value: Any) -> None:
    """A batch is checked to its end before the clock moves."""
    clock = clock_at(T, 5, SetClock(T + 1))

    with pytest.raises(InvalidTimestampError):
        clock.observe_many([encode(T, 9), encode(T + 5, 0), value])
    assert HybridLogicalClockState(T, 5, "a") == clock.snapshot()


def test_an_error_of_the_batch_itself_leaves_the_state_unchanged() -> None:
    """An iterator that fails half-way has moved nothing."""

    def failing() -> Iterator[int]:
        yield encode(T + 5, 0)
        raise LookupError

    clock = clock_at(T, 5, SetClock(T + 1))

    with pytest.raises(LookupError):
        clock.observe_many(failing())
    assert HybridLogicalClockState(T, 5, "a") == clock.snapshot()


@pytest.mark.parametrize("value", [None, 5, 1.5])
def test_a_batch_must_be_iterable(value: Any) -> None:
    """A single timestamp or None is not a batch."""
    clock = clock_at(T, 5, SetClock(T + 1))

    with pytest.raises(InvalidArgumentError, match="remotes must be"):
        clock.observe_many(value)


# --- increase ---

events = st.tuples(
    any_walls,
    st.none() | close_timestamps | any_remotes | st.lists(close_timestamps | any_remotes, max_size=4),
    st.booleans(),
)


@given(st.lists(events))
def test_every_value_is_above_all_that_the_clock_has_returned_or_seen(
    events: list[tuple[int, int | list[int] | None, bool]],
) -> None:
    """Whatever the physical clock reads, and across restarts, values strictly increase."""
    physical = SetClock(0)
    clock = HybridLogicalClock.open("a", physical)
    known = 1
    for reading, remotes, restart in events:
        physical.reading = reading
        if restart:
            clock = HybridLogicalClock.open("a", physical, clock.snapshot())
        match remotes:
            case None:
                value = clock.now()
            case int():
                value = clock.observe(remotes)
                known = max(known, remotes)
            case _:
                value = clock.observe_many(remotes)
                known = max(known, *remotes, 1)

        assert known < value
        known = value


def test_a_thousand_and_more_events_in_one_millisecond_strictly_increase() -> None:
    """A frozen physical clock pushes the wall time on, not the counter around."""
    clock = HybridLogicalClock.open("a", SetClock(T))
    values = [clock.now() for _ in range(2_500)]

    assert encode(T, 0) == values[0]
    assert encode(T + 2, 499) == values[-1]
    assert all(a < b for a, b in pairwise(values))


# --- the maximum ---


def test_the_greatest_timestamp_can_be_reached() -> None:
    """The successor of the last but one is the greatest."""
    clock = clock_at(MAX_WALL_MS, 989, SetClock(T))

    assert clock.now() == MAX_SAFE_INTEGER


@pytest.mark.parametrize(
    "step",
    [
        HybridLogicalClock.now,
        lambda clock: clock.observe(1),
        lambda clock: clock.observe_many([1, 2]),
    ],
    ids=["now", "observe", "observe_many"],
)
def test_an_exhausted_clock_refuses(step: Callable[[HybridLogicalClock], int]) -> None:
    """After the greatest timestamp there is no other; the state stays."""
    clock = clock_at(MAX_WALL_MS, 990, SetClock(T))

    with pytest.raises(ExceedsSafeIntegerError):
        step(clock)
    assert HybridLogicalClockState(MAX_WALL_MS, 990, "a") == clock.snapshot()


def test_the_greatest_remote_timestamp_cannot_be_followed() -> None:
    """A remote that leaves no later value is refused, and the clock goes on without it."""
    clock = clock_at(T, 5, SetClock(T))

    with pytest.raises(ExceedsSafeIntegerError):
        clock.observe(MAX_SAFE_INTEGER)
    assert encode(T, 6) == clock.now()


# --- the physical clock ---

STEPS = [
    pytest.param(HybridLogicalClock.now, id="now"),
    pytest.param(lambda clock: clock.observe(encode(T, 9)), id="observe"),
    pytest.param(lambda clock: clock.observe_many([encode(T, 9)]), id="observe_many"),
    pytest.param(lambda clock: clock.observe_many([]), id="observe_many of nothing"),
]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("reading", [-1, MAX_SAFE_INTEGER + 1, 10**30, *NOT_INTEGERS])
def test_an_invalid_reading_is_refused(step: Callable[[HybridLogicalClock], int], reading: Any) -> None:
    """Whatever is not an integer in 0..2**53 - 1 is no reading; the state stays."""
    clock = clock_at(T, 5, SetClock(reading))

    with pytest.raises(InvalidPhysicalClockError):
        step(clock)
    assert HybridLogicalClockState(T, 5, "a") == clock.snapshot()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("reading", [MAX_WALL_MS + 1, MAX_SAFE_INTEGER])
def test_a_reading_that_no_timestamp_can_express_is_refused(
    step: Callable[[HybridLogicalClock], int], reading: int
) -> None:
    """A valid reading beyond the last wall time exceeds the safe integer; the state stays."""
    clock = clock_at(T, 5, SetClock(reading))

    with pytest.raises(ExceedsSafeIntegerError):
        step(clock)
    assert HybridLogicalClockState(T, 5, "a") == clock.snapshot()


@pytest.mark.parametrize("step", STEPS)
def test_an_error_of_the_physical_clock_passes_through(step: Callable[[HybridLogicalClock], int]) -> None:
    """What the physical clock raises reaches the caller; the state stays."""

    def broken() -> int:
        raise LookupError

    clock = clock_at(T, 5, broken)

    with pytest.raises(LookupError):
        step(clock)
    assert HybridLogicalClockState(T, 5, "a") == clock.snapshot()


@pytest.mark.parametrize("step", STEPS)
def test_the_physical_clock_is_read_once_per_value(step: Callable[[HybridLogicalClock], int]) -> None:
    """Two readings could disagree within one step."""
    readings = count(T)
    clock = clock_at(T, 5, lambda: next(readings))
    step(clock)

    assert next(readings) == T + 1


def test_the_physical_clock_must_be_callable() -> None:
    """A reading in the place of a clock is a mistake."""
    physical: Any = T

    with pytest.raises(InvalidArgumentError, match="physical_clock must be callable"):
        HybridLogicalClock.open("a", physical)


# --- drift ---


def drifting_clock(max_drift_ms: int, physical: int = T) -> HybridLogicalClock:
    """Open a clock that refuses what is too far ahead."""
    return HybridLogicalClock.open("a", SetClock(physical), max_drift_ms=max_drift_ms)


@pytest.mark.parametrize("max_drift_ms", [0, 1, 60_000])
@pytest.mark.parametrize("counter", [0, 999])
def test_a_remote_exactly_as_far_ahead_as_allowed_is_accepted(max_drift_ms: int, counter: int) -> None:
    """The boundary is inclusive, and the counter is no part of the drift."""
    remote = encode(T + max_drift_ms, counter)

    assert remote + 1 == drifting_clock(max_drift_ms).observe(remote)


@pytest.mark.parametrize("max_drift_ms", [0, 1, 60_000])
def test_a_remote_one_millisecond_further_ahead_is_refused(max_drift_ms: int) -> None:
    """The first wall time beyond the boundary is too far; the state stays."""
    clock = drifting_clock(max_drift_ms)

    with pytest.raises(ClockDriftError) as caught:
        clock.observe(encode(T + max_drift_ms + 1, 0))
    assert (max_drift_ms + 1, max_drift_ms) == (caught.value.ahead_ms, caught.value.max_drift_ms)
    assert HybridLogicalClockState(0, 0, "a") == clock.snapshot()


def test_a_remote_from_the_past_is_never_too_far_away() -> None:
    """The check is one-sided: a device that was offline for years is heard."""
    assert encode(T, 0) == drifting_clock(0).observe(1)


def test_one_timestamp_too_far_ahead_refuses_the_whole_batch() -> None:
    """The greatest of the batch is checked, wherever it stands; the state stays."""
    clock = drifting_clock(60_000)

    with pytest.raises(ClockDriftError):
        clock.observe_many([encode(T + 60_001, 0), encode(T, 0)])
    assert HybridLogicalClockState(0, 0, "a") == clock.snapshot()


def test_drift_is_measured_from_the_physical_clock_and_not_from_the_clocks_own_wall() -> None:
    """A clock that is ahead itself does not let remotes pull it further."""
    state = HybridLogicalClockState(T + 60_000, 0, "a")
    clock = HybridLogicalClock.open("a", SetClock(T), state, max_drift_ms=60_000)

    with pytest.raises(ClockDriftError):
        clock.observe(encode(T + 60_001, 0))


def test_without_a_limit_any_remote_is_accepted() -> None:
    """The check is off by default."""
    clock = HybridLogicalClock.open("a", SetClock(T))

    assert encode(MAX_WALL_MS, 1) == clock.observe(encode(MAX_WALL_MS, 0))


def test_a_restored_state_exactly_as_far_ahead_as_allowed_is_accepted() -> None:
    """The boundary is the same for a state as for a remote."""
    state = HybridLogicalClockState(T + 60_000, 999, "a")
    clock = HybridLogicalClock.open("a", SetClock(T), state, max_drift_ms=60_000)

    assert state == clock.snapshot()


def test_a_restored_state_further_ahead_is_refused() -> None:
    """A poisoned state is not taken up, and not reset behind the operator's back."""
    state = HybridLogicalClockState(T + 60_001, 0, "a")

    with pytest.raises(ClockDriftError):
        HybridLogicalClock.open("a", SetClock(T), state, max_drift_ms=60_000)


def test_a_foreign_state_is_reset_before_its_drift_could_matter() -> None:
    """A state that would not be used cannot refuse the opening."""
    state = HybridLogicalClockState(T + 60_001, 0, "b")
    clock = HybridLogicalClock.open("a", SetClock(T), state, max_drift_ms=60_000)

    assert HybridLogicalClockState(0, 0, "a") == clock.snapshot()


def test_a_physical_clock_in_seconds_shows_at_the_first_remote() -> None:
    """Seconds read as milliseconds lie in 1970; the error says which unit was expected."""
    clock = drifting_clock(60_000, physical=T // 1_000)

    with pytest.raises(ClockDriftError, match=r"\d+ ms ahead"):
        clock.observe(encode(T, 0))


def test_opening_with_a_limit_checks_the_physical_clock() -> None:
    """The state cannot be judged by an invalid reading."""
    with pytest.raises(InvalidPhysicalClockError):
        HybridLogicalClock.open("a", SetClock(-1), max_drift_ms=0)


@pytest.mark.parametrize("value", [-1, *(value for value in NOT_INTEGERS if value is not None)])
def test_the_limit_must_be_a_number_of_milliseconds(value: Any) -> None:
    """A negative limit, a bool or a float is refused."""
    with pytest.raises(InvalidArgumentError, match="max_drift_ms must be"):
        HybridLogicalClock.open("a", SetClock(T), max_drift_ms=value)


# --- state ---


@pytest.mark.parametrize("device_id", ["", " ", "\t\n", "\u00a0\u2003", None, 7, b"a"])
def test_a_blank_device_id_is_refused(device_id: Any) -> None:
    """A device id is text with something in it."""
    with pytest.raises(BlankDeviceIdError):
        HybridLogicalClock.open(device_id, SetClock(T))


def test_a_restored_clock_goes_on_after_its_last_value() -> None:
    """The snapshot of one run is the start of the next."""
    first = HybridLogicalClock.open("a", SetClock(T))
    last = first.observe(encode(T + 9, 41))
    second = HybridLogicalClock.open("a", SetClock(T), first.snapshot())

    assert last + 1 == second.now()


@pytest.mark.parametrize(
    ("wall_time_ms", "counter", "device_id"),
    [
        (T, 5, "b"),
        (T, 5, "A"),
        (T, 5, None),
        (-1, 5, "a"),
        (T, -1, "a"),
        (T, 1000, "a"),
        (MAX_WALL_MS, 991, "a"),
        (10**30, 0, "a"),
        (True, 0, "a"),
        (float(T), 0, "a"),
        (str(T), "5", "a"),
        (None, None, "a"),
        ([], {}, "a"),
    ],
)
def test_a_state_that_is_foreign_or_cannot_be_encoded_is_reset(
    wall_time_ms: Any, counter: Any, device_id: Any
) -> None:
    """The clock then starts at (0, 0) under its own device id."""
    state = HybridLogicalClockState(wall_time_ms, counter, device_id)
    clock = HybridLogicalClock.open("a", SetClock(T), state)

    assert HybridLogicalClockState(0, 0, "a") == clock.snapshot()


@pytest.mark.parametrize("state", [{"wallTimeMs": T, "counter": 5, "deviceId": "a"}, (T, 5, "a"), T, ""])
def test_something_else_than_a_state_is_refused(state: Any) -> None:
    """Taking it for a missing state would repeat timestamps."""
    with pytest.raises(InvalidArgumentError, match="state must be"):
        HybridLogicalClock.open("a", SetClock(T), state)


def test_a_snapshot_does_not_move_with_the_clock() -> None:
    """A state is a value: it can be stored while the clock goes on."""
    clock = clock_at(T, 5, SetClock(T))
    state = clock.snapshot()
    clock.now()

    assert HybridLogicalClockState(T, 5, "a") == state


def test_a_state_survives_pickling() -> None:
    """A state can be handed to another process."""
    state = HybridLogicalClockState(T, 5, "a")

    assert state == pickle.loads(pickle.dumps(state))


# Every own timestamp of this file is within it; the last millisecond is not.
LIMIT_MS = MAX_WALL_MS - 1 - T


@pytest.mark.parametrize(
    ("reading", "step"),
    [
        pytest.param(-1, HybridLogicalClock.now, id="invalid reading"),
        pytest.param(MAX_SAFE_INTEGER, HybridLogicalClock.now, id="reading too great"),
        pytest.param(T, lambda clock: clock.observe(0), id="invalid remote"),
        pytest.param(T, lambda clock: clock.observe_many([encode(T, 9), 0]), id="invalid batch"),
        pytest.param(T, lambda clock: clock.observe(encode(MAX_WALL_MS, 0)), id="drift"),
    ],
)
@given(own=close_timestamps | any_remotes)
def test_a_failed_step_is_as_if_it_had_not_been(
    reading: int, step: Callable[[HybridLogicalClock], int], own: int
) -> None:
    """After any error the state is the same, and so is the next value."""
    state = HybridLogicalClockState(*decode(own), "a")
    physical = SetClock(T)
    disturbed = HybridLogicalClock.open("a", physical, state, max_drift_ms=LIMIT_MS)
    undisturbed = HybridLogicalClock.open("a", SetClock(T), state, max_drift_ms=LIMIT_MS)
    physical.reading = reading
    with pytest.raises(HlcError):
        step(disturbed)
    physical.reading = T

    assert state == disturbed.snapshot()
    assert undisturbed.now() == disturbed.now()

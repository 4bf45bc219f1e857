"""Fixed UTC slots: a grid without time zones, and one step along it."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from baukit_sync.errors import InvalidArgumentError
from baukit_sync.slots import FixedUtcInterval, FixedUtcSlot

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAIVE_EPOCH = EPOCH.replace(tzinfo=None)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
NEW_YORK = ZoneInfo("America/New_York")

periods = st.integers(1, 40 * 86_400).map(lambda seconds: timedelta(seconds=seconds)) | st.sampled_from(
    [timedelta(seconds=1), timedelta(minutes=7), HOUR, DAY, timedelta(weeks=1)]
)
zones = st.sampled_from([UTC, timezone(timedelta(hours=14)), timezone(-timedelta(hours=12))]) | st.timezones()
# A slot of up to 40 days around any of these lies in the years 1 to 9999.
instants = st.datetimes(NAIVE_EPOCH.replace(year=2), NAIVE_EPOCH.replace(year=9999), timezones=zones)


class NoOffset(tzinfo):
    """A time zone that does not say its offset: the datetime is still naive."""

    def utcoffset(self, dt: datetime | None) -> None:
        """Say nothing."""


NOT_AWARE = [
    NAIVE_EPOCH,
    EPOCH.replace(tzinfo=NoOffset()),
    date(2026, 11, 30),
    1_796_000_000,
    "2026-11-30T00:00:00Z",
    None,
]


# --- the interval ---


@pytest.mark.parametrize(
    "period",
    [
        timedelta(0),
        timedelta(seconds=-1),
        timedelta(microseconds=1),
        timedelta(seconds=1.5),
        timedelta.max,
        3600,
        3600.0,
        "1h",
        None,
    ],
)
def test_a_period_is_a_positive_number_of_whole_seconds(period: Any) -> None:
    """Fractions, zero, the negative and everything else than a timedelta are refused."""
    with pytest.raises(InvalidArgumentError, match="period must be"):
        FixedUtcInterval(period)


# --- slot_at ---


@given(periods, instants)
@example(DAY, datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC))
@example(DAY, datetime(2024, 2, 29, 12, tzinfo=UTC))
@example(HOUR, datetime(2026, 3, 8, 3, 0, tzinfo=NEW_YORK))
@example(HOUR, datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK, fold=1))
def test_a_slot_contains_its_instant(period: timedelta, t: datetime) -> None:
    """The slot starts at or before the instant and ends after it."""
    slot = FixedUtcInterval(period).slot_at(t)

    assert timedelta(0) <= t - slot.starts_at < period


@given(periods, instants)
def test_a_slot_starts_on_the_grid_in_utc(period: timedelta, t: datetime) -> None:
    """Every start is a whole number of periods away from the Unix epoch."""
    starts_at = FixedUtcInterval(period).slot_at(t).starts_at

    assert starts_at.tzinfo is UTC
    assert timedelta(0) == (starts_at - EPOCH) % period


@given(periods, instants)
def test_a_slots_own_start_belongs_to_it(period: timedelta, t: datetime) -> None:
    """The start is inclusive, so slot_at of a start is the same slot."""
    interval = FixedUtcInterval(period)
    slot = interval.slot_at(t)

    assert slot == interval.slot_at(slot.starts_at)


@given(periods, instants, zones)
def test_a_slot_depends_on_the_instant_and_not_on_its_time_zone(
    period: timedelta, t: datetime, zone: tzinfo
) -> None:
    """The same instant in another zone is in the same slot."""
    interval = FixedUtcInterval(period)

    assert interval.slot_at(t) == interval.slot_at(t.astimezone(zone))


@pytest.mark.parametrize(
    ("period", "t", "expected"),
    [
        (HOUR, datetime(2026, 11, 30, 22, 40, tzinfo=UTC), datetime(2026, 11, 30, 22, tzinfo=UTC)),
        (HOUR, datetime(1969, 12, 31, 23, 30, tzinfo=UTC), datetime(1969, 12, 31, 23, tzinfo=UTC)),
        (DAY, datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)),
        (DAY, datetime(2024, 2, 29, 23, 59, 59, tzinfo=UTC), datetime(2024, 2, 29, tzinfo=UTC)),
        (DAY, datetime(2024, 3, 1, tzinfo=UTC), datetime(2024, 3, 1, tzinfo=UTC)),
        # The epoch was a Thursday.
        (timedelta(weeks=1), datetime(2026, 12, 2, 23, tzinfo=UTC), datetime(2026, 11, 26, tzinfo=UTC)),
        (
            timedelta(seconds=7),
            datetime(1970, 1, 1, 0, 0, 20, tzinfo=UTC),
            datetime(1970, 1, 1, 0, 0, 14, tzinfo=UTC),
        ),
    ],
)
def test_slots_are_anchored_at_the_unix_epoch(period: timedelta, t: datetime, expected: datetime) -> None:
    """The grid is the same for everybody, whatever day or zone a job starts in."""
    assert expected == FixedUtcInterval(period).slot_at(t).starts_at


@pytest.mark.parametrize(
    ("t", "expected"),
    [
        pytest.param(
            datetime(2026, 3, 8, 1, 59, tzinfo=NEW_YORK), "2026-03-08T06:00:00Z/PT3600S", id="before the gap"
        ),
        pytest.param(
            datetime(2026, 3, 8, 3, 0, tzinfo=NEW_YORK), "2026-03-08T07:00:00Z/PT3600S", id="after the gap"
        ),
        pytest.param(
            datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK), "2026-11-01T05:00:00Z/PT3600S", id="first 01:30"
        ),
        pytest.param(
            datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK, fold=1),
            "2026-11-01T06:00:00Z/PT3600S",
            id="second 01:30",
        ),
    ],
)
def test_no_hour_is_lost_or_doubled_when_the_clocks_change(t: datetime, expected: str) -> None:
    """Around daylight saving each hour of real time has its own slot."""
    assert expected == FixedUtcInterval(HOUR).slot_at(t).identifier


@pytest.fixture
def process_in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the whole process into a zone with daylight saving."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="needs tzset")
@pytest.mark.usefixtures("process_in_new_york")
@pytest.mark.parametrize("hour", [1, 2, 6, 7, 23])
def test_the_time_zone_of_the_process_does_not_matter(hour: int) -> None:
    """A server in New York has the slots of a server in UTC, also on the day of the gap."""
    slot = FixedUtcInterval(DAY).slot_at(datetime(2026, 3, 8, hour, 30, tzinfo=UTC))

    assert "2026-03-08T00:00:00Z/PT86400S" == slot.identifier


@pytest.mark.parametrize("t", NOT_AWARE)
def test_slot_at_refuses_what_is_not_an_aware_datetime(t: Any) -> None:
    """A naive datetime means another instant on every machine."""
    with pytest.raises(InvalidArgumentError, match="t must be an aware datetime"):
        FixedUtcInterval(HOUR).slot_at(t)


@pytest.mark.parametrize(
    ("period", "t"),
    [
        (timedelta(days=365), datetime(1, 1, 1, tzinfo=UTC)),
        (HOUR, datetime(1, 1, 1, tzinfo=timezone(HOUR))),
        (HOUR, datetime(9999, 12, 31, 23, 30, tzinfo=timezone(-HOUR))),
        (timedelta(days=999_999_999), datetime(1969, 1, 1, tzinfo=UTC)),
        (timedelta(days=999_999_999, seconds=1), datetime(1969, 1, 1, tzinfo=UTC)),
    ],
)
def test_slot_at_refuses_a_slot_that_no_datetime_can_express(period: timedelta, t: datetime) -> None:
    """A start outside the years 1 to 9999 is a typed error, not an overflow."""
    with pytest.raises(InvalidArgumentError, match="t must be an instant whose slot starts in the years"):
        FixedUtcInterval(period).slot_at(t)


@given(periods, st.datetimes(timezones=zones))
@example(HOUR, datetime.min.replace(tzinfo=UTC))
@example(HOUR, datetime.max.replace(tzinfo=UTC))
@example(HOUR, datetime.max.replace(tzinfo=timezone(timedelta(hours=14))))
def test_any_datetime_has_a_slot_or_a_typed_error(period: timedelta, t: datetime) -> None:
    """At both ends of the calendar nothing else is raised."""
    try:
        slot = FixedUtcInterval(period).slot_at(t)
    except InvalidArgumentError:
        assert not EPOCH.replace(year=2) <= t <= EPOCH.replace(year=9999)
    else:
        assert timedelta(0) <= t - slot.starts_at < period


# --- next_slot ---


@given(periods, instants, instants)
def test_the_next_slot_is_the_first_one_after_both_the_slot_and_now(
    period: timedelta, t: datetime, now: datetime
) -> None:
    """It starts after both, and the boundary before it does not."""
    interval = FixedUtcInterval(period)
    slot = interval.slot_at(t)
    starts_at = interval.next_slot(slot, now).starts_at

    assert starts_at > slot.starts_at
    assert starts_at > now
    assert starts_at - period <= max(slot.starts_at, now)


@given(periods, instants, instants)
def test_the_next_slot_is_on_the_grid(period: timedelta, t: datetime, now: datetime) -> None:
    """A late or early step does not move the grid."""
    interval = FixedUtcInterval(period)
    following = interval.next_slot(interval.slot_at(t), now)

    assert following == interval.slot_at(following.starts_at)


HOURLY = FixedUtcInterval(HOUR)
TEN = HOURLY.slot_at(datetime(2026, 11, 30, 10, tzinfo=UTC))


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param(datetime(2026, 11, 30, 10, 20, tzinfo=UTC), 11, id="in time"),
        pytest.param(datetime(2026, 11, 30, 11, 0, tzinfo=UTC), 12, id="on the boundary"),
        pytest.param(datetime(2026, 11, 30, 10, 59, 59, 999_999, tzinfo=UTC), 11, id="just before it"),
        pytest.param(datetime(2026, 11, 30, 17, 5, tzinfo=UTC), 18, id="seven hours late"),
        pytest.param(datetime(2026, 11, 30, 3, 0, tzinfo=UTC), 11, id="the clock went back"),
        pytest.param(datetime(2026, 11, 30, 6, 30, tzinfo=NEW_YORK), 12, id="now in another zone"),
    ],
)
def test_missed_slots_are_skipped_and_the_step_is_always_forward(now: datetime, expected: int) -> None:
    """After an outage one slot follows, never the missed ones and never an earlier one."""
    assert datetime(2026, 11, 30, expected, tzinfo=UTC) == HOURLY.next_slot(TEN, now).starts_at


@pytest.mark.parametrize("slot", [FixedUtcInterval(DAY).slot_at(EPOCH), TEN.starts_at, TEN.identifier, None])
def test_next_slot_refuses_a_slot_of_another_period(slot: Any) -> None:
    """A slot belongs to the interval with its period."""
    with pytest.raises(InvalidArgumentError, match="slot must be"):
        HOURLY.next_slot(slot, EPOCH)


@pytest.mark.parametrize("now", NOT_AWARE)
def test_next_slot_refuses_a_now_that_is_not_an_aware_datetime(now: Any) -> None:
    """A naive datetime means another instant on every machine."""
    with pytest.raises(InvalidArgumentError, match="now must be an aware datetime"):
        HOURLY.next_slot(TEN, now)


@pytest.mark.parametrize("now", [EPOCH, datetime.max.replace(tzinfo=UTC)])
def test_there_is_no_slot_after_the_year_9999(now: datetime) -> None:
    """The last slot has no successor: a typed error, not an overflow."""
    last = HOURLY.slot_at(datetime.max.replace(tzinfo=UTC))

    with pytest.raises(InvalidArgumentError, match="in the years 1 to 9999"):
        HOURLY.next_slot(last, now)


# --- the slot ---


def test_an_identifier_is_an_iso_interval() -> None:
    """Start in UTC and length in seconds, both in full."""
    slot = HOURLY.slot_at(datetime(2026, 11, 30, 22, 40, tzinfo=UTC))

    assert "2026-11-30T22:00:00Z/PT3600S" == slot.identifier


def test_an_early_year_is_padded_in_an_identifier() -> None:
    """A year has four digits always."""
    slot = FixedUtcInterval(DAY).slot_at(datetime(7, 3, 1, tzinfo=UTC))

    assert "0007-03-01T00:00:00Z/PT86400S" == slot.identifier


@given(periods, instants)
def test_an_identifier_is_fit_for_an_idempotency_key(period: timedelta, t: datetime) -> None:
    """It is 1 to 128 visible ASCII characters."""
    identifier = FixedUtcInterval(period).slot_at(t).identifier

    assert 1 <= len(identifier) <= 128
    assert all("!" <= character <= "~" for character in identifier)


@given(periods, instants, periods, instants)
def test_only_equal_slots_share_an_identifier(
    period_a: timedelta, a: datetime, period_b: timedelta, b: datetime
) -> None:
    """Other starts and other lengths have other names."""
    slot_a = FixedUtcInterval(period_a).slot_at(a)
    slot_b = FixedUtcInterval(period_b).slot_at(b)

    assert (slot_a == slot_b) == (slot_a.identifier == slot_b.identifier)


@given(periods, instants, st.data())
def test_a_retry_has_the_cutoff_and_identifier_of_the_first_attempt(
    period: timedelta, t: datetime, data: st.DataObject
) -> None:
    """Whenever within its slot a job is tried again, it works on the same rows under the same key."""
    interval = FixedUtcInterval(period)
    first = interval.slot_at(t)
    delay = data.draw(st.timedeltas(timedelta(0), period - timedelta(microseconds=1)))
    retry = interval.slot_at(first.starts_at + delay)

    assert first.identifier == retry.identifier
    assert first.starts_at - timedelta(days=30) == retry.starts_at - timedelta(days=30)


@given(periods, instants, st.timedeltas(timedelta(microseconds=1), DAY))
def test_a_slot_off_the_grid_is_refused(period: timedelta, t: datetime, off: timedelta) -> None:
    """A slot made by hand cannot claim a start that slot_at would not give."""
    assume(off % period)
    starts_at = FixedUtcInterval(period).slot_at(t).starts_at + off

    with pytest.raises(InvalidArgumentError, match="starts_at must be a multiple of the period"):
        FixedUtcSlot(starts_at, period)


def test_a_slot_made_by_hand_is_kept_in_utc() -> None:
    """The same slot is equal and has the same identifier, whatever zone its start was written in."""
    slot = FixedUtcSlot(datetime(2026, 11, 30, 5, tzinfo=NEW_YORK), HOUR)

    assert slot.starts_at.tzinfo is UTC
    assert TEN == slot
    assert TEN.identifier == slot.identifier


@pytest.mark.parametrize("starts_at", NOT_AWARE)
def test_a_slot_refuses_a_start_that_is_not_an_aware_datetime(starts_at: Any) -> None:
    """A naive datetime means another instant on every machine."""
    with pytest.raises(InvalidArgumentError, match="starts_at must be an aware datetime"):
        FixedUtcSlot(starts_at, HOUR)


@pytest.mark.parametrize("period", [timedelta(0), timedelta(seconds=-1), timedelta(seconds=1.5), 3600, None])
def test_a_slot_refuses_a_period_that_no_interval_has(period: Any) -> None:
    """The same periods are valid for a slot as for an interval."""
    with pytest.raises(InvalidArgumentError, match="period must be"):
        FixedUtcSlot(EPOCH, period)


def test_a_slot_that_starts_before_the_year_1_in_utc_is_refused() -> None:
    """Normalising its start is a typed error, not an overflow."""
    with pytest.raises(InvalidArgumentError, match="in the years 1 to 9999"):
        FixedUtcSlot(datetime(1, 1, 1, tzinfo=timezone(HOUR)), HOUR)


def test_a_slot_survives_pickling() -> None:
    """A slot can be handed to another process."""
    assert TEN == pickle.loads(pickle.dumps(TEN))


def test_equal_slots_are_one_key() -> None:
    """Slots are values: they hash as they compare."""
    assert 1 == len({TEN, FixedUtcSlot(datetime(2026, 11, 30, 5, tzinfo=NEW_YORK), HOUR)})

"""Fixed UTC slots: a grid of equal intervals that names each run of a recurring job.

The grid is anchored at the Unix epoch and has no time zone, so no hour is missing or doubled when the clocks
change. A slot is data: a job that takes its cutoff from the slot's start does the same on every retry.

Nothing here touches a database or reads a clock. Source: the sync contract, section 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from baukit_sync.errors import InvalidArgumentError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_IN_RANGE = "an instant whose slot starts in the years 1 to 9999 UTC"


@dataclass(frozen=True, slots=True)
class FixedUtcSlot:
    """One interval of the grid: from ``starts_at``, inclusive, for ``period``.

    Attributes:
        starts_at: The slot's start. Any aware datetime on the grid is accepted; it is kept in UTC.
        period: The slot's length: a whole number of seconds above 0.

    Raises:
        InvalidArgumentError: ``starts_at`` is naive, off the period's grid or outside the years 1 to 9999 in
            UTC, or ``period`` is not a whole number of seconds above 0.
    """

    starts_at: datetime
    period: timedelta

    def __post_init__(self) -> None:
        _check_period(self.period)
        since_epoch = _since_epoch("starts_at", self.starts_at)
        if since_epoch % self.period:
            raise InvalidArgumentError("starts_at", "a multiple of the period after or before the Unix epoch")
        object.__setattr__(self, "starts_at", _instant("starts_at", since_epoch))

    @property
    def identifier(self) -> str:
        """A stable name of the slot, fit for an idempotency key: ``2026-11-30T22:00:00Z/PT3600S``.

        It is the slot as an ISO 8601 interval, start and length in seconds, in visible ASCII. Two slots have
        the same identifier only if they are equal.
        """
        start = self.starts_at.replace(tzinfo=None).isoformat(timespec="seconds")
        return f"{start}Z/PT{self.period // _SECOND}S"


@dataclass(frozen=True, slots=True)
class FixedUtcInterval:
    """A grid of slots of one length, anchored at 1970-01-01T00:00:00Z.

    Attributes:
        period: The length of every slot: a whole number of seconds above 0.

    Raises:
        InvalidArgumentError: ``period`` is not a timedelta, is not above 0, or has a fraction of a second.

    Example:
        >>> hourly = FixedUtcInterval(timedelta(hours=1))
        >>> hourly.slot_at(datetime(2026, 11, 30, 22, 40, tzinfo=UTC)).identifier
        '2026-11-30T22:00:00Z/PT3600S'
    """

    period: timedelta

    def __post_init__(self) -> None:
        _check_period(self.period)

    def slot_at(self, t: datetime) -> FixedUtcSlot:
        """Return the slot that contains an instant.

        Args:
            t: The instant: an aware datetime in any time zone, before or after 1970.

        Returns:
            The slot with ``starts_at <= t < starts_at + period``.

        Raises:
            InvalidArgumentError: ``t`` is naive, or its slot starts outside the years 1 to 9999.
        """
        return self._slot("t", _since_epoch("t", t) // self.period)

    def next_slot(self, slot: FixedUtcSlot, now: datetime) -> FixedUtcSlot:
        """Return the slot for the run after this one.

        A late job skips the slots it missed: one run follows an outage, not many. When the system's clock has
        gone back, the job still moves forward.

        Args:
            slot: The current slot, of this interval's period.
            now: The present instant: an aware datetime in any time zone.

        Returns:
            The earliest slot that starts after both ``slot.starts_at`` and ``now``.

        Raises:
            InvalidArgumentError: ``slot`` has another period, ``now`` is naive, or the next slot would start
                outside the years 1 to 9999.
        """
        if not _is_slot_of(slot, self.period):
            raise InvalidArgumentError("slot", "a slot of this interval's period")
        latest = max(_since_epoch("slot", slot.starts_at), _since_epoch("now", now))
        return self._slot("now", latest // self.period + 1)

    def _slot(self, argument: str, index: int) -> FixedUtcSlot:
        try:
            since_epoch = index * self.period
        except OverflowError:
            raise InvalidArgumentError(argument, _IN_RANGE) from None
        return FixedUtcSlot(_instant(argument, since_epoch), self.period)


def _check_period(period: object) -> None:
    if not isinstance(period, timedelta) or period <= timedelta(0) or period % _SECOND:
        raise InvalidArgumentError("period", "a timedelta of whole seconds above 0")


def _is_slot_of(slot: object, period: timedelta) -> bool:
    return isinstance(slot, FixedUtcSlot) and slot.period == period


def _since_epoch(argument: str, t: object) -> timedelta:
    if not isinstance(t, datetime) or t.utcoffset() is None:
        raise InvalidArgumentError(argument, "an aware datetime")
    # Subtracting uses t's own offset, honours its fold, and cannot overflow as astimezone() can.
    return t - _EPOCH


def _instant(argument: str, since_epoch: timedelta) -> datetime:
    try:
        return _EPOCH + since_epoch
    except OverflowError:
        raise InvalidArgumentError(argument, _IN_RANGE) from None

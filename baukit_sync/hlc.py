"""A hybrid logical clock: timestamps that follow the wall clock and still increase when it does not.

A timestamp is one integer, so that every language compares it alike::

    timestamp = wall_time_ms * 1000 + counter + 1        1 .. 9_007_199_254_740_991

The wall time is in milliseconds since the Unix epoch, the counter tells apart 1,000 events of one
millisecond, and the added one keeps 0 invalid. The greatest timestamp is JavaScript's greatest safe integer;
it lies in June 2255. The clock orders events; which of two writes wins is the product's decision.

Nothing here touches a database, a file or the network. Source: the sync contract, section 6; Kulkarni et al.,
"Logical Physical Clocks and Consistent Snapshots" (2014).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Lock
from time import time_ns
from typing import Literal, NamedTuple, Self, TypeGuard

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

MAX_SAFE_INTEGER = 9_007_199_254_740_991
"""2**53 - 1: above it JavaScript rounds integers silently."""

COUNTERS_PER_MS = 1_000
"""How many timestamps one millisecond holds."""

_ORIGIN = 1
"""The timestamp of wall time 0, counter 0: where a clock without a past stands."""


class DecodedTimestamp(NamedTuple):
    """The two halves of a timestamp.

    Attributes:
        wall_time_ms: Milliseconds since the Unix epoch, in 0..9,007,199,254,740.
        counter: The event within that millisecond, in 0..999.
    """

    wall_time_ms: int
    counter: int


@dataclass(frozen=True, slots=True)
class HybridLogicalClockState:
    """What a clock must remember between two runs. The fields are not checked before they are used.

    Attributes:
        wall_time_ms: The wall time of the last timestamp, in milliseconds since the Unix epoch.
        counter: The counter of the last timestamp, in 0..999.
        device_id: Whose clock it is.
    """

    wall_time_ms: int
    counter: int
    device_id: str


def encode(wall_time_ms: int, counter: int) -> int:
    """Pack a wall time and a counter into one timestamp.

    Args:
        wall_time_ms: Milliseconds since the Unix epoch, in 0..9,007,199,254,740.
        counter: The event within that millisecond, in 0..999; at most 990 in the last millisecond.

    Returns:
        The timestamp, in 1..9,007,199,254,740,991. Timestamps sort as their (wall time, counter) pairs do.

    Raises:
        InvalidComponentError: One of the two is not an integer (a bool is none) or below 0, or the counter is
            above 999.
        ExceedsSafeIntegerError: Both are valid and the timestamp is too great.
    """
    if not _is_integer(wall_time_ms) or not _is_integer(counter):
        raise InvalidComponentError
    if wall_time_ms < 0 or not 0 <= counter < COUNTERS_PER_MS:
        raise InvalidComponentError
    timestamp = wall_time_ms * COUNTERS_PER_MS + counter + 1
    if timestamp > MAX_SAFE_INTEGER:
        raise ExceedsSafeIntegerError
    return timestamp


def decode(timestamp: int) -> DecodedTimestamp:
    """Unpack a timestamp: the inverse of `encode`.

    Args:
        timestamp: An encoded timestamp, in 1..9,007,199,254,740,991.

    Returns:
        Its wall time in milliseconds and its counter; (9,007,199,254,740, 990) for the greatest.

    Raises:
        InvalidTimestampError: It is not an integer (a bool is none), or outside that range.
    """
    if not _is_timestamp(timestamp):
        raise InvalidTimestampError
    return DecodedTimestamp(*divmod(timestamp - 1, COUNTERS_PER_MS))


def compare(a: object, b: object) -> Literal[-1, 0, 1] | None:
    """Order two timestamps.

    Args:
        a: An encoded timestamp, or anything else.
        b: An encoded timestamp, or anything else.

    Returns:
        -1 when ``a`` is the earlier, 1 when it is the later, 0 when they are equal, None when one of them is
        not an integer in 1..9,007,199,254,740,991.
    """
    if not _is_timestamp(a) or not _is_timestamp(b):
        return None
    if a == b:
        return 0
    return -1 if a < b else 1


def system_time_ms() -> int:
    """Read the system's clock: milliseconds since the Unix epoch. The default physical clock."""
    return time_ns() // 1_000_000


class HybridLogicalClock:
    """One device's clock: every value it returns is greater than the one before and than all it observed.

    `open` makes one. Any number of threads may share it: its lock is held for a handful of instructions, and
    not while the physical clock is read. Processes may not: a fork needs a device id and a clock of its own.

    Saving the state is the caller's part: store `snapshot` with the rows that carry its timestamps, in one
    transaction. A run that starts from an older state than it had reached may repeat timestamps; observing
    the greatest timestamp in the data after `open` prevents that.

    Example:
        >>> clock = HybridLogicalClock.open("device-a", lambda: 1_700_000_000_123)
        >>> clock.now()
        1700000000123001
        >>> clock.observe(1_700_000_000_123_501)
        1700000000123502
        >>> clock.snapshot()
        HybridLogicalClockState(wall_time_ms=1700000000123, counter=501, device_id='device-a')
    """

    __slots__ = ("_device_id", "_last", "_lock", "_max_drift_ms", "_physical_clock")

    def __init__(
        self,
        device_id: str,
        physical_clock: Callable[[], int] = system_time_ms,
        state: HybridLogicalClockState | None = None,
        *,
        max_drift_ms: int | None = None,
    ) -> None:
        if _is_blank(device_id):
            raise BlankDeviceIdError
        if not callable(physical_clock):
            raise InvalidArgumentError("physical_clock", "callable")
        if max_drift_ms is not None and (not _is_integer(max_drift_ms) or max_drift_ms < 0):
            raise InvalidArgumentError("max_drift_ms", "None or an integer of milliseconds >= 0")

        self._device_id = device_id
        self._physical_clock = physical_clock
        self._max_drift_ms = max_drift_ms
        # One integer is the whole state. Its order is that of (wall time, counter), adding one to it rolls
        # counter 999 over into the next millisecond, and it is read and replaced in one piece.
        self._last = _timestamp_of(state, device_id)
        self._lock = Lock()
        if max_drift_ms is not None:
            _refuse_drift(self._last, _read(physical_clock), max_drift_ms)

    @classmethod
    def open(
        cls,
        device_id: str,
        physical_clock: Callable[[], int] = system_time_ms,
        state: HybridLogicalClockState | None = None,
        *,
        max_drift_ms: int | None = None,
    ) -> Self:
        """Open a device's clock, where its saved state left it.

        Args:
            device_id: Names the device; not blank. It is compared with the state's and goes into `snapshot`.
            physical_clock: Returns milliseconds since the Unix epoch, in 0..9,007,199,254,740,991. It may
                stall or go back; what it raises passes through. A clock in seconds is taken for 1970.
            state: A snapshot from an earlier run. Without one, with one of another device, or with one that
                no timestamp can express, the clock starts at wall time 0, counter 0.
            max_drift_ms: How many milliseconds a remote timestamp, or ``state``, may be ahead of the physical
                clock; exactly that many are accepted, and the past always is. None, the default, accepts
                everything: then one timestamp from the far future exhausts the clock for good.

        Returns:
            The clock. The physical clock has been read only if ``max_drift_ms`` is given.

        Raises:
            BlankDeviceIdError: The device id is not a string, is empty, or is only white space.
            InvalidArgumentError: ``physical_clock`` is not callable, ``state`` is something else than a state
                or None, or ``max_drift_ms`` is neither None nor an integer >= 0.
            InvalidPhysicalClockError: ``max_drift_ms`` is given and the physical clock's reading is invalid.
            ClockDriftError: ``state`` is too far ahead. It is not reset silently, because timestamps would
                repeat: correct the physical clock, or give the state up by opening with ``state=None``.
        """
        return cls(device_id, physical_clock, state, max_drift_ms=max_drift_ms)

    def now(self) -> int:
        """Return a timestamp for a local event.

        Returns:
            The physical time with counter 0 if that is past the clock's wall time; otherwise the successor of
            the last timestamp.

        Raises:
            InvalidPhysicalClockError: The physical clock's reading is invalid. The state is unchanged.
            ExceedsSafeIntegerError: The timestamp would be above the greatest one. The state is unchanged.
        """
        # Reading the default clock here and repeating the lines of _advance spares two calls. acquire() with
        # try/finally would be faster than `with`, but CPython runs signal handlers as acquire() returns: an
        # exception raised there (Ctrl-C, a task's time limit) comes before the try and leaves the lock held.
        read = self._physical_clock
        physical_ms = time_ns() // 1_000_000 if read is system_time_ms else _read(read)
        if physical_ms < 0:
            raise InvalidPhysicalClockError
        earliest = physical_ms * COUNTERS_PER_MS
        with self._lock:
            last = self._last
            timestamp = last + 1 if last >= earliest else earliest + 1
            if timestamp > MAX_SAFE_INTEGER:
                raise ExceedsSafeIntegerError
            self._last = timestamp
        return timestamp

    def observe(self, remote: int) -> int:
        """Return a timestamp for the receipt of another device's timestamp.

        Use `observe_many` for a batch: each call here takes one of a millisecond's 1,000 counters.

        Args:
            remote: An encoded timestamp, in 1..9,007,199,254,740,991.

        Returns:
            A timestamp above ``remote`` and above every earlier one of this clock.

        Raises:
            InvalidTimestampError: ``remote`` is no timestamp. The state is unchanged.
            InvalidPhysicalClockError: The physical clock's reading is invalid. The state is unchanged.
            ClockDriftError: ``remote`` is more than ``max_drift_ms`` ahead. The state is unchanged.
            ExceedsSafeIntegerError: The timestamp would be above the greatest one. The state is unchanged.
        """
        if not _is_timestamp(remote):
            raise InvalidTimestampError
        return self._merge(remote)

    def observe_many(self, remotes: Iterable[int]) -> int:
        """Return a timestamp for the receipt of a batch, having checked all of it first.

        Only the greatest is merged, so a batch of any size takes one counter.

        Args:
            remotes: Encoded timestamps, each in 1..9,007,199,254,740,991; read once, to the end. An empty
                batch is a local event: the call is then the same as `now`.

        Returns:
            A timestamp above every one of ``remotes`` and above every earlier one of this clock.

        Raises:
            InvalidArgumentError: ``remotes`` is not iterable. The state is unchanged.
            InvalidTimestampError: One of ``remotes`` is no timestamp. The state is unchanged.
            InvalidPhysicalClockError: The physical clock's reading is invalid. The state is unchanged.
            ClockDriftError: One is more than ``max_drift_ms`` ahead. The state is unchanged. `decode` tells
                which rows are too far ahead; the others can be observed without them.
            ExceedsSafeIntegerError: The timestamp would be above the greatest one. The state is unchanged.
        """
        try:
            batch = iter(remotes)
        except TypeError:
            raise InvalidArgumentError("remotes", "an iterable of encoded timestamps") from None
        greatest = 0
        for remote in batch:
            if not _is_timestamp(remote):
                raise InvalidTimestampError
            greatest = max(greatest, remote)
        return self._merge(greatest) if greatest else self.now()

    def snapshot(self) -> HybridLogicalClockState:
        """Return the state to save, from which `open` goes on. Takes no lock."""
        wall_time_ms, counter = decode(self._last)
        return HybridLogicalClockState(wall_time_ms, counter, self._device_id)

    def _merge(self, remote: int) -> int:
        physical_ms = _read(self._physical_clock)
        if self._max_drift_ms is not None:
            _refuse_drift(remote, physical_ms, self._max_drift_ms)
        return self._advance(max(physical_ms * COUNTERS_PER_MS, remote))

    def _advance(self, earliest: int) -> int:
        """Step past ``earliest`` and the last timestamp.

        This is the whole of the four merge cases. Where the physical time is ahead, ``physical * 1000`` is
        the greatest and one more is its counter 0. Elsewhere the greater of own and remote has the later wall
        time and, within one wall time, the higher counter; one more is that counter's successor.
        """
        with self._lock:
            timestamp = max(earliest, self._last) + 1
            if timestamp > MAX_SAFE_INTEGER:
                raise ExceedsSafeIntegerError
            self._last = timestamp
        return timestamp


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_timestamp(value: object) -> TypeGuard[int]:
    return _is_integer(value) and 1 <= value <= MAX_SAFE_INTEGER


def _is_blank(device_id: object) -> bool:
    return not isinstance(device_id, str) or not device_id.strip()


def _timestamp_of(state: object, device_id: str) -> int:
    """Return the last timestamp of a saved state, or the origin when it cannot be this device's."""
    if state is None:
        return _ORIGIN
    if not isinstance(state, HybridLogicalClockState):
        raise InvalidArgumentError("state", "a HybridLogicalClockState or None")
    if state.device_id != device_id:
        return _ORIGIN
    try:
        return encode(state.wall_time_ms, state.counter)
    except HlcError:
        return _ORIGIN


def _read(physical_clock: Callable[[], object]) -> int:
    physical_ms = physical_clock()
    if not _is_integer(physical_ms) or not 0 <= physical_ms <= MAX_SAFE_INTEGER:
        raise InvalidPhysicalClockError
    return physical_ms


def _refuse_drift(timestamp: int, physical_ms: int, max_drift_ms: int) -> None:
    ahead_ms = decode(timestamp).wall_time_ms - physical_ms
    if ahead_ms > max_drift_ms:
        raise ClockDriftError(ahead_ms, max_drift_ms)

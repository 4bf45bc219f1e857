"""The hybrid logical clock under threads and signals."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest

from baukit_sync.hlc import HybridLogicalClock

T = 1_700_000_000_123
THREADS = 4
VALUES_EACH = 200


def give_way(frame: FrameType, event: str, argument: Any) -> Any:
    """Let another thread run before every line: a trace function.

    With the interpreter lock, CPython switches threads only at calls and jumps, so a race without one of them
    would stay hidden until some other interpreter ran it.
    """
    time.sleep(0)
    return give_way


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(HybridLogicalClock.now, id="now"),
        pytest.param(lambda clock: clock.observe(1), id="observe"),
        pytest.param(lambda clock: clock.observe_many([1, 2]), id="observe_many"),
    ],
)
def test_threads_never_get_the_same_value(step: Callable[[HybridLogicalClock], int]) -> None:
    """Threads that share a clock in a frozen millisecond get distinct values, each thread increasing ones."""
    clock = HybridLogicalClock.open("a", lambda: T)
    barrier = threading.Barrier(THREADS)

    def take_values() -> list[int]:
        barrier.wait()
        sys.settrace(give_way)
        try:
            return [step(clock) for _ in range(VALUES_EACH)]
        finally:
            sys.settrace(None)

    with ThreadPoolExecutor(THREADS) as pool:
        futures = [pool.submit(take_values) for _ in range(THREADS)]
    values = [future.result() for future in futures]

    assert THREADS * VALUES_EACH == len(set().union(*values))
    assert all(a < b for taken in values for a, b in pairwise(taken))


def test_a_slow_physical_clock_does_not_hold_other_threads_up() -> None:
    """While one thread reads the physical clock, another gets its value."""
    within_reading = threading.Event()
    other_is_served = threading.Event()

    def physical() -> int:
        if threading.current_thread() is not threading.main_thread():
            within_reading.set()
            assert other_is_served.wait(10)
        return T

    clock = HybridLogicalClock.open("a", physical)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(clock.now)
        assert within_reading.wait(10)
        first = clock.now()
        other_is_served.set()

        assert first < slow.result()


class StruckError(Exception):
    """What the signal handler raises."""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
def test_an_exception_from_a_signal_handler_does_not_leave_the_clock_locked() -> None:
    """A time limit or Ctrl-C that strikes in the middle of a step costs that step only."""
    armed = False

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise StruckError

    clock = HybridLogicalClock.open("a")
    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    try:
        for _ in range(500):
            try:
                armed = True
                while True:
                    clock.now()
            except StruckError:
                assert not clock._lock.locked()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)

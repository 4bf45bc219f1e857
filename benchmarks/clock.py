"""What a timestamp costs: ``HybridLogicalClock.now`` beside two other hybrid logical clocks.

One process, one thread, the system's clock. The contenders take turns, each round in another order, and
a ratio is the median of the rounds' ratios: a slow moment of the machine hits both sides of it.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from itertools import repeat

from accordsync_core.hlc import Hlc
from hlcpy import HLC

from baukit_sync import HybridLogicalClock

ROUNDS, CALLS = 60, 20_000

OURS, BARE, HLCPY, ACCORDSYNC = (
    "HybridLogicalClock.now",
    "time.time_ns",
    "hlcpy HLC.sync",
    "accordsync-core Hlc.tick",
)
LOCKED = {OURS: "yes", BARE: "-", HLCPY: "yes", ACCORDSYNC: "no"}
AIMS = {HLCPY: 4.0, ACCORDSYNC: 1.0}


def tick_accordsync() -> None:
    """Keep each clock as the state of the next tick, as its users must."""
    read, clock = time.time_ns, Hlc.initial("a")
    for _ in repeat(None, CALLS):
        clock = clock.tick(read() // 1_000_000)


def calling(function: Callable[[], object]) -> Callable[[], None]:
    """Wrap a call in the same loop."""

    def run() -> None:
        for _ in repeat(None, CALLS):
            function()

    return run


def main() -> None:
    """Measure and print."""
    contenders = {
        BARE: calling(time.time_ns),
        OURS: calling(HybridLogicalClock.open("a").now),
        ACCORDSYNC: tick_accordsync,
        HLCPY: calling(HLC().sync),
    }
    rounds = measure(contenders)

    print(f"Python {platform.python_version()}, median of {ROUNDS} rounds of {CALLS:,} calls, loop included")
    print(f"\n{'':26}{'ns/call':>9}{'of ours':>9}{'locked':>8}")
    for name in contenders:
        per_call = statistics.median(each[name] for each in rounds) / CALLS
        print(f"{name:26}{per_call:9.0f}{ratio(rounds, name):8.2f}x{LOCKED[name]:>8}")

    print()
    for name, aim in AIMS.items():
        measured = ratio(rounds, name)
        verdict = "met" if measured > aim else "MISSED"
        print(f"aim: more than {aim:g}x as fast as {name}: {measured:.2f}x, {verdict}")


def measure(contenders: dict[str, Callable[[], None]]) -> list[dict[str, int]]:
    """Time every contender once per round; the first round only warms up."""
    rounds = []
    names = list(contenders)
    for _ in range(ROUNDS + 1):
        names.append(names.pop(0))
        nanoseconds = {}
        for name in names:
            start = time.perf_counter_ns()
            contenders[name]()
            nanoseconds[name] = time.perf_counter_ns() - start
        rounds.append(nanoseconds)
    return rounds[1:]


def ratio(rounds: list[dict[str, int]], name: str) -> float:
    """Return how much longer a contender took than ours."""
    return statistics.median(each[name] / each[OURS] for each in rounds)


if __name__ == "__main__":
    main()

"""Threads that start together, and threads that are expected to wait."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

T = TypeVar("T")


def together(*bodies: Callable[[], T], seconds: float = 60) -> list[T]:
    """Start every body at the same moment, each in a thread of its own.

    Returns:
        What they returned, in order; the first error is raised instead.
    """
    barrier = Barrier(len(bodies))

    def start(body: Callable[[], T]) -> T:
        barrier.wait(seconds)
        return body()

    with ThreadPoolExecutor(len(bodies)) as pool:
        return [future.result(seconds) for future in [pool.submit(start, body) for body in bodies]]

"""What Ctrl-C and SIGTERM do: an exit, which lets whoever has something to put away do so."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def exit_on_signals() -> None:
    """Exit with 128 plus the signal's number, wherever the main thread is."""
    for number in _SIGNALS:
        signal.signal(number, _exit)


@contextmanager
def deferred_exit() -> Generator[Callable[[], None]]:
    """Exit at the next checkpoint only: in the middle of a flush an exit leaves a session in pieces.

    Yields:
        The checkpoint: it exits when a signal has come, in any thread.

    The end of the block is a checkpoint too. A second signal does not wait for one.
    """
    received = list[int]()

    def remember(number: int, frame: FrameType | None) -> None:
        if received:
            _exit(number, frame)
        received.append(number)

    def checkpoint() -> None:
        if received:
            _exit(received[0], None)

    for number in _SIGNALS:
        signal.signal(number, remember)
    try:
        yield checkpoint
    finally:
        exit_on_signals()
    checkpoint()


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)

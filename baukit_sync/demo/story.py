"""The stage: Ada, her devices, and the story's own time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from baukit_sync import FixedUtcInterval, FixedUtcSlot, purge_horizon
from baukit_sync.demo import product
from baukit_sync.demo.device import Device
from baukit_sync.demo.messages import Pushed
from baukit_sync.demo.place import Place
from baukit_sync.demo.witness import WatchedApi, Witness
from baukit_sync.hlc import decode

NIGHTLY = FixedUtcInterval(timedelta(days=1))
"""When the purge runs."""


class Clock:
    """The story's time. It stands still until a chapter moves it on."""

    def __init__(self) -> None:
        self._now = datetime(2026, 3, 2, 9, tzinfo=UTC)

    def now(self) -> datetime:
        """Return the true time."""
        return self._now

    def slot(self) -> FixedUtcSlot:
        """Return the slot of the nightly purge."""
        return NIGHTLY.slot_at(self._now)

    def advance(self, time: timedelta) -> None:
        """Move on."""
        self._now += time

    def skewed(self, by: timedelta) -> Callable[[], int]:
        """Return a physical clock that is wrong by so much, in milliseconds since the Unix epoch."""
        return lambda: int((self._now + by).timestamp() * 1000)


class Story:
    """What the chapters share."""

    def __init__(self, place: Place, checkpoint: Callable[[], None]) -> None:
        self.place = place
        self.clock = Clock()
        self.witness = Witness(place.engine)
        self.api = WatchedApi(place.engine, self.clock.now, self.witness, checkpoint)
        with Session(place.engine) as session, session.begin():
            self.ada = product.sign_up(session)
        self.phone = self._device("phone", timedelta(minutes=3))
        self.laptop = self._device("laptop", timedelta(minutes=-2))
        # With pages this small, a rebuild's half-way cursor lies below the horizon.
        self.tablet = self._device("tablet", timedelta(), page=2)

    def _device(self, name: str, skew: timedelta, *, page: int = 3) -> Device:
        return Device(name, self.ada, self.api, self.clock.skewed(skew), page=page)

    def counter(self) -> dict[str, Any]:
        """Return Ada's counter and horizon."""
        with Session(self.place.engine) as session, session.begin():
            horizon = purge_horizon(session, self.ada)
        return {"last_revision": self.witness.counters()[self.ada], "horizon": horizon}


def find(device: Device, title: str) -> UUID:
    """Return the row with this title."""
    return next(row.id for row in device.rows.values() if row.title == title)


def sync(*devices: Device) -> None:
    """Let one device after the other sync."""
    for device in devices:
        device.sync()


def revisions(pushed: Pushed) -> str:
    """Say which revisions a push was given."""
    return span(sorted(pushed.applied.values()))


def span(ordered: list[int]) -> str:
    """Say which revisions these are."""
    if not ordered:
        return "none"
    return str(ordered[0]) if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"


def stamp_text(stamp: int) -> str:
    """Spell out a stamp: its wall time and its counter."""
    wall_time_ms, counter = decode(stamp)
    return f"{datetime.fromtimestamp(wall_time_ms / 1000, UTC):%H:%M:%S} +{counter}"

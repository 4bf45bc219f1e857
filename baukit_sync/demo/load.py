"""The last chapter: many owners, several devices of each writing at the same time, over real connections."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import timedelta
from threading import Event, Semaphore
from time import perf_counter
from uuid import UUID

from sqlalchemy.orm import Session

from baukit_sync.demo import product
from baukit_sync.demo.device import Device
from baukit_sync.demo.messages import Change
from baukit_sync.demo.report import Audience, Step
from baukit_sync.demo.story import NIGHTLY, Story
from baukit_sync.demo.witness import expect, served
from baukit_sync.wire import ResyncRequired

WRITERS = 3
"""Devices of each owner that write."""

THREADS = 8
"""Devices that work at the same time, each on a connection of its own."""

BATCH = 42
"""How many edits a device collects for a push, at the most."""


@dataclass(frozen=True)
class Owner:
    """An owner's devices: those that write, one that pulls once on the way, and one that comes at the end."""

    writers: list[Device]
    old: Device
    fresh: Device


class Load:
    """Ten thousand edits, the purge of what they deleted, and the devices that come after it."""

    def __init__(self, story: Story, audience: Audience, *, owners: int, rows: int) -> None:
        self._story = story
        self._audience = audience
        self._rows = rows
        self._stop = Event()
        self._working = Semaphore(THREADS)
        with Session(story.place.engine) as session, session.begin():
            ids = [product.sign_up(session) for _ in range(owners)]
        self._owners = [self._owner(owner_id, number) for number, owner_id in enumerate(ids, 1)]

    @property
    def devices(self) -> list[Device]:
        """All devices of the chapter."""
        return [device for owner in self._owners for device in (*owner.writers, owner.old, owner.fresh)]

    def _owner(self, owner_id: UUID, number: int) -> Owner:
        def device(name: str, skew_seconds: int) -> Device:
            skewed = self._story.clock.skewed(timedelta(seconds=skew_seconds))
            return Device(f"{name} of owner {number}", owner_id, self._story.api, skewed, page=200)

        writers = [device(f"writer {n}", 40 * n - 80) for n in range(1, WRITERS + 1)]
        return Owner(writers, device("old device", 0), device("fresh device", 0))

    def steps(self) -> Iterator[Step]:
        """Write, purge and pull."""
        yield self._write()
        yield self._purge()
        yield self._pull()

    def _write(self) -> Step:
        total = len(self._owners) * self._rows
        began = perf_counter()
        with self._audience.progress("writing", total) as advance:
            pushes = self._run(advance)
        seconds = perf_counter() - began
        for owner in self._owners:
            for device in owner.writers:
                served(device.pull())
        rows = self._story.witness.rows().values()
        return Step(
            f"{len(self._owners)} owners have {WRITERS} devices each, and all write at once: inserts, edits "
            "and deletes, in conflict with each other. After each push a device pulls what the others wrote.",
            {
                "edits": total,
                "pushes": pushes,
                "connections": THREADS,
                "seconds": round(seconds, 2),
                "edits_per_second": round(total / seconds),
                "live_rows": sum(1 for row in rows if row.deleted_at is None),
                "tombstones": sum(1 for row in rows if row.deleted_at),
            },
        )

    def _run(self, advance: Callable[[int], None]) -> int:
        pool = ThreadPoolExecutor(THREADS, thread_name_prefix="baukit-sync-demo")
        try:
            jobs = [
                pool.submit(self._work, owner, writer, share, advance)
                for owner in self._owners
                for writer, share in zip(owner.writers, _shares(self._rows, WRITERS), strict=True)
            ]
            return sum(job.result() for job in as_completed(jobs))
        finally:
            # After Ctrl-C no thread may be in a transaction when the schema is dropped. The pool cannot tell:
            # it never knows a thread that it was about to start when the signal came.
            self._stop.set()
            for _ in range(THREADS):
                self._working.acquire()
            self._working.release(THREADS)
            pool.shutdown(cancel_futures=True)

    def _work(self, owner: Owner, device: Device, edits: int, advance: Callable[[int], None]) -> int:
        choice = random.Random(device.name)  # noqa: S311 - the same edits in every run
        batches = _shares(edits, max(-(-edits // BATCH), min(edits // 5, 8)) or 1)
        for number, batch in enumerate(batches):
            with self._working:
                if self._stop.is_set():
                    break
                for _ in range(batch):
                    _edit(device, choice)
                served(device.push())
                served(device.pull())
                if device is owner.writers[0] and number == len(batches) // 2:
                    served(owner.old.pull())
            advance(batch)
        return len(batches)

    def _purge(self) -> Step:
        self._story.clock.advance(product.RETENTION + NIGHTLY.period)
        purged = self._story.witness.purge(self._story.clock.slot())
        expect("a purge after the retention leaves no tombstone", holds=purged.kept == 0)
        return Step(
            "A month later the purge takes all that was deleted, batch by batch.",
            {
                "seconds": round(purged.seconds, 2),
                "rows_per_second": round(purged.removed / purged.seconds),
                "horizons": len(self._story.witness.horizons()),
            },
            purged.table,
        )

    def _pull(self) -> Step:
        horizons = self._story.witness.horizons()
        began = perf_counter()
        refused = pages = rows = 0
        for owner in self._owners:
            below = 0 < owner.old.cursor < horizons.get(owner.old.owner_id, 0)
            answer = owner.old.pull()
            expect(
                "a cursor is refused below the horizon, and only there", holds=_is_refusal(answer) == below
            )
            refused += below
            owner.old.sync()
            pages += len(served(owner.fresh.pull()))
            rows += len(owner.fresh.confirmed)
        return Step(
            "For each owner a device comes back that last pulled in the middle of it all, and a new device "
            "pulls for the first time.",
            {
                "old_devices_refused_and_rebuilt": refused,
                "rows_pulled_by_new_devices": rows,
                "in_pages": pages,
                "seconds": round(perf_counter() - began, 2),
            },
        )


def _is_refusal(answer: object) -> bool:
    return isinstance(answer, ResyncRequired)


def _shares(total: int, parts: int) -> list[int]:
    return [total // parts + (part < total % parts) for part in range(parts)]


def _edit(device: Device, choice: random.Random) -> None:
    """Do something with a row of the device: write one below it, change it or delete it."""
    rows = list(device.rows.values())
    what = choice.choices(("add", "edit", "delete"), (60, 25, 15))[0] if rows else "add"
    row = choice.choice(rows) if rows else None
    match what, row:
        case "edit", Change():
            device.edit(row.id, f"edited by {device.name}")
        case "delete", Change():
            device.delete(row.id)
        case _, Change(table="lists"):
            device.add("items", "item", row.id)
        case _, Change(table="items"):
            device.add("attachments", "attachment", row.id)
        case _:
            device.add("lists", "list")

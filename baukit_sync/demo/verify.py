"""The verdict: whether devices, server, counters and horizons agree in the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from uuid import UUID

from baukit_sync.demo.device import Device
from baukit_sync.demo.witness import ServerRow, ViolationError, Witness


def verdict(witness: Witness, devices: Collection[Device]) -> dict[str, int]:
    """Check all that the story leaves behind.

    Returns:
        What was compared, counted.

    Raises:
        ViolationError: What does not hold, all of it.
    """
    rows, counters, horizons = witness.rows(), witness.counters(), witness.horizons()
    live = {id_: row for id_, row in rows.items() if row.deleted_at is None}
    violated = [
        *_devices(devices, live),
        *_conflicts(witness, rows, live),
        *_revisions(witness, rows, counters),
        *_horizons(witness, horizons),
    ]
    if violated:
        raise ViolationError(violated)
    return {
        "devices": len(devices),
        "rows_on_devices": sum(len(device.confirmed) for device in devices),
        "rows_on_the_server": len(live),
        "tombstones": len(rows) - len(live),
        "revisions": sum(counters.values()),
        "horizons": len(horizons),
    }


def _devices(devices: Iterable[Device], live: Mapping[UUID, ServerRow]) -> Iterator[str]:
    """Compare every field of every row, both ways."""
    on_server: dict[UUID, set[tuple[object, ...]]] = defaultdict(set)
    for row in live.values():
        fields = (row.table, row.id, row.parent_id, row.title, row.stamp, row.revision)
        on_server[row.owner_id].add(fields)
    for device in devices:
        on_device: set[tuple[object, ...]] = {
            (row.table, row.id, row.parent_id, row.title, row.stamp, row.revision)
            for row in device.confirmed.values()
        }
        if lacking := len(on_server[device.owner_id] - on_device):
            yield f"every device has all of the server's rows: {device.name} lacks {lacking}"
        if phantoms := len(on_device - on_server[device.owner_id]):
            yield f"no device has a row that the server has not: {device.name} has {phantoms}"
        if device.outbox:
            yield f"every edit was pushed: {device.name} still has {len(device.outbox)}"


def _conflicts(
    witness: Witness, rows: Mapping[UUID, ServerRow], live: Mapping[UUID, ServerRow]
) -> Iterator[str]:
    """Compare each row's stamp with what was pushed; a row deleted with its parent may have a greater one."""
    lost = sum(1 for row in rows.values() if row.stamp < witness.newest[row.id])
    lost += sum(1 for row in live.values() if row.stamp > witness.newest[row.id])
    if lost:
        yield f"the edit with the greatest stamp wins: it did not in {lost} rows"
    if orphans := sum(1 for row in live.values() if row.parent_id and row.parent_id not in live):
        yield f"nothing lives below a deleted row: {orphans} rows do"


def _revisions(
    witness: Witness, rows: Mapping[UUID, ServerRow], counters: Mapping[UUID, int]
) -> Iterator[str]:
    used: dict[UUID, list[int]] = defaultdict(list)
    for row in rows.values():
        used[row.owner_id].append(row.revision)
    for owner_id, counter in counters.items():
        if len(used[owner_id]) != len(set(used[owner_id])):
            yield "an owner's rows have different revisions: two share one"
        if max(used[owner_id], default=0) > counter:
            yield "no revision is above its owner's counter: one is"
        if sorted(witness.handed_out[owner_id]) != list(range(1, counter + 1)):
            yield "a counter hands out every revision, and each of them once: one did not"


def _horizons(witness: Witness, horizons: Mapping[UUID, int]) -> Iterator[str]:
    for owner_id in horizons.keys() | witness.purged.keys():
        found, purged = horizons.get(owner_id), witness.purged.get(owner_id)
        if found != purged:
            yield f"a horizon is the greatest revision purged for its owner: {found} instead of {purged}"

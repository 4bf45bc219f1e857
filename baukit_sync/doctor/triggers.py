"""The kit's own triggers: which are installed, and are they what this version installs?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from baukit_sync.doctor.catalog import quoted
from baukit_sync.doctor.examination import Examination
from baukit_sync.doctor.kit import Kit
from baukit_sync.doctor.synced import SyncedTable
from baukit_sync.triggers import ALLOCATED, GUARD, STAMP, fingerprint

# A function without triggers stands without a table. The clones on partitions are left out.
_INSTALLED = r"""
SELECT n.nspname::text, p.proname::text, p.prosrc, obj_description(p.oid, 'pg_proc') AS comment,
    tn.nspname::text, c.relname::text,
    COALESCE(array_agg(t.tgname::text ORDER BY 1) FILTER (WHERE t.oid IS NOT NULL), '{}'),
    COALESCE(array_agg(t.tgname::text ORDER BY 1) FILTER (WHERE t.tgenabled IN ('D', 'R')), '{}')
FROM pg_catalog.pg_proc AS p
JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
LEFT JOIN pg_catalog.pg_trigger AS t ON t.tgfoid = p.oid AND NOT t.tgisinternal AND t.tgparentid = 0
LEFT JOIN pg_catalog.pg_class AS c ON c.oid = t.tgrelid
LEFT JOIN pg_catalog.pg_namespace AS tn ON tn.oid = c.relnamespace
WHERE p.prorettype = 'trigger'::regtype AND obj_description(p.oid, 'pg_proc') LIKE 'baukit-sync %'
GROUP BY n.nspname, p.proname, p.prosrc, p.oid, tn.nspname, c.relname
ORDER BY 1, 2, 5, 6"""

_NEWEST = {version.rpartition("_v")[0]: version for version in (ALLOCATED, GUARD, STAMP)}

_TRIGGERS = {
    ALLOCATED: ["baukit_sync_allocated_v1"],
    GUARD: ["baukit_sync_guard_v1", "baukit_sync_guard_v1_delete", "baukit_sync_guard_v1_truncate"],
    STAMP: ["baukit_sync_stamp_v1"],
}


_FIX = "sync.create_{}_trigger(op, ...)  # as its migration does"


class State(Enum):
    """What became of a trigger that the kit installed."""

    INSTALLED = "installed"
    OUTDATED = "outdated"
    CHANGED = "changed"
    DISABLED = "disabled"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class TriggerState:
    """A function of the kit's, and its triggers on a table.

    Attributes:
        kind: ``"guard"``, ``"stamp"``, or ``"allocated"``, which belongs to ``sync_revisions``.
        version: The version that is installed, such as ``"guard_v1"``.
        table: The table's schema and name; ``None`` when the function has no trigger left.
        state: ``OUTDATED``: this version of the kit installs a newer one. ``CHANGED``: the function is not
            what its comment says. ``DISABLED``: a trigger does not fire. ``MISSING``: a trigger is gone.
        triggers: The names of those that are missing or disabled.
    """

    kind: str
    version: str
    table: tuple[str, str] | None
    state: State
    triggers: tuple[str, ...] = ()


def trigger_states(connection: Connection) -> list[TriggerState]:
    """Return what the kit has installed in a database; a table without a trigger is not in it.

    Reads the catalogs only, and takes no lock that anybody waits for.
    """
    return _states(connection.execute(sa.text(_INSTALLED.replace(":", "\\:"))).all())


def _states(rows: Sequence[Any]) -> list[TriggerState]:
    return [_state(*row) for row in rows]


def _state(
    _schema: str,
    _function: str,
    body: str,
    comment: str,
    table_schema: str | None,
    table: str | None,
    present: Sequence[str],
    disabled: Sequence[str],
) -> TriggerState:
    _, version, said = (*comment.split(), "", "")[:3]
    kind = version.rpartition("_v")[0]
    where = (table_schema, table) if table_schema and table else None

    def found(state: State, *names: str) -> TriggerState:
        return TriggerState(kind, version, where, state, names)

    if gone := sorted(set(_TRIGGERS.get(version, ())) - set(present)):
        return found(State.MISSING, *gone)
    if disabled:
        return found(State.DISABLED, *disabled)
    if said != fingerprint(body):
        return found(State.CHANGED)
    return found(State.INSTALLED if version == _NEWEST.get(kind) else State.OUTDATED)


def examine_kit_triggers(exam: Examination, table: SyncedTable, kit: Kit) -> None:
    """Report triggers of the kit's on a table that do not do what this version's would."""
    states = _states(exam.rows(_INSTALLED.replace(":", "\\:")))
    here = (table.relation.schema, table.relation.name)
    for state in states:
        if state.table == here:
            _report(exam, table.relation.label, state)
    guarded = any(state.kind == "guard" and state.table == here for state in states)
    if guarded and kit.revisions is not None:
        counters = (kit.revisions.schema, kit.revisions.name)
        remembered = [state for state in states if state.kind == "allocated" and state.table == counters]
        for state in remembered:
            _report(exam, kit.revisions.label, state)
        if not remembered:
            _missing(exam, kit.revisions.label, _FIX.format("revisions"))


def _report(exam: Examination, label: str, state: TriggerState) -> None:
    what = "revisions" if state.kind == "allocated" else state.kind
    fix = _FIX.format(what)
    match state.state:
        case State.INSTALLED:
            return
        case State.MISSING:
            _missing(exam, label, fix)
        case State.DISABLED:
            for trigger in state.triggers:
                exam.warning(
                    "trigger_disabled",
                    f"{label}.{quoted(trigger)}",
                    "It was switched off, for a restore perhaps, and not on again: it sees no write.",
                    f"ALTER TABLE {label} ENABLE TRIGGER {quoted(trigger)};",
                )
        case State.CHANGED:
            exam.warning(
                "trigger_changed",
                f"{label}.{state.kind}",
                "The function is not the one that the kit installed: somebody has replaced it.",
                fix,
            )
        case State.OUTDATED:
            exam.warning(
                "trigger_outdated",
                f"{label}.{state.kind}",
                f"It is {state.version}, and this version of the kit installs a newer one.",
                fix,
            )


def _missing(exam: Examination, label: str, fix: str) -> None:
    exam.error(
        "trigger_missing",
        label,
        "A part of the guard or of the stamp is gone: writes are refused that should pass, or pass unseen.",
        fix,
    )

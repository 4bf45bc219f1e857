"""After a flush: does every row that it wrote have what the plan gave it?"""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_dict, instance_state

from baukit_sync.errors import (
    HardDeleteError,
    OwnerChangedError,
    RevisionAssignedError,
    UnstampedWriteError,
)
from baukit_sync.tracking.plan import Plan
from baukit_sync.tracking.rows import State, is_assigned, is_renamed, is_written
from baukit_sync.tracking.shape import Shape, shape_of
from baukit_sync.transaction import OwnerId

PLAN = "baukit_sync_plan"
"""Where a flush keeps its plan until it ends."""


def refuse_escaped(_session: Session, context: Any) -> None:
    """Refuse what the flush wrote and the plan did not foresee. Listens to ``after_flush``.

    Other listeners can change objects after the plan was made, and SQLAlchemy some while it flushes.

    Raises:
        TrackingError: There is such a row; the flush is rolled back.
    """
    plan: Plan = context.attributes[PLAN]
    fates: dict[State, tuple[bool, bool]] = context.states
    for mapper, states in context.mappers.items():
        shape = shape_of(mapper)
        for state in states if shape.syncable else ():
            is_delete, is_only_listed = fates[state]
            if is_only_listed:
                continue
            if is_delete:
                raise HardDeleteError(shape.table)
            revision = plan.revisions.get(state)
            if revision is not None:
                _check_stamp(state, shape, plan.owners[state], revision)
            elif _is_unstamped(state, shape):
                raise UnstampedWriteError(shape.table)
            if state.key is not None and is_renamed(state, shape):
                raise HardDeleteError(shape.table)


def _check_stamp(state: State, shape: Shape, owner_id: OwnerId, revision: int) -> None:
    values = state.dict
    written_for = values.get("owner_id")
    # Comparing UUIDs runs Python code.
    if written_for is not owner_id and written_for != owner_id:
        raise OwnerChangedError(shape.table)
    if values.get("revision") != revision:
        raise RevisionAssignedError(shape.table)


def _is_unstamped(state: State, shape: Shape) -> bool:
    if state.key is None:
        return shape.tracked
    return is_written(state, shape) and (shape.tracked or not is_assigned(state, "revision"))


def forget_revision(_session: Session, instance: Any) -> None:
    """Take the revision back from an object whose INSERT was rolled back, so that it can be added again."""
    if shape_of(instance_state(instance).mapper).tracked:
        instance_dict(instance)["revision"] = None

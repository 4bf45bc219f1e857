"""What one flush will write: the rows to stamp, their owners, and which become tombstones.

Making a plan only reads. ``carry_out`` allocates all revisions in one statement, and changes objects after
that: a refusal leaves the session as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from sqlalchemy.orm import RelationshipDirection, Session
from sqlalchemy.orm.attributes import instance_state, set_committed_value

from baukit_sync.errors import (
    HardDeleteError,
    OwnerChangedError,
    RevisionAssignedError,
    UnstampedWriteError,
)
from baukit_sync.revisions import allocate_at
from baukit_sync.tracking.rows import (
    State,
    children_of,
    has_left,
    history_of,
    is_assigned,
    is_orphan,
    is_renamed,
    is_written,
    owner_of,
    parents_first,
    refuse_dragged,
)
from baukit_sync.tracking.shape import (
    Relationship,
    Shape,
    is_to_children,
    leads_to_synced,
    nulls_children,
    sets_owner,
    shape_of,
)
from baukit_sync.transaction import OwnerId


@dataclass(slots=True)
class Plan:
    """The rows one flush will write.

    Attributes:
        session: Whose flush it is.
        removed: What the flush would remove, with its instances.
        owners: Each row to stamp, with its owner.
        revisions: Each row that was stamped, with its revision.
        tombstones: The rows among them that become tombstones.
        leaving: Parents, relationships, and the children that left them and must stay.
        orphans: Rows that have left a parent.
        held: The instances; a session refers to its own only weakly.
    """

    session: Session
    removed: dict[State, Any]
    owners: dict[State, OwnerId] = field(default_factory=dict[State, OwnerId])
    revisions: dict[State, int] = field(default_factory=dict[State, int])
    tombstones: set[State] = field(default_factory=set[State])
    leaving: list[tuple[State, Relationship, Any]] = field(
        default_factory=list[tuple[State, Relationship, Any]]
    )
    orphans: list[State] = field(default_factory=list[State])
    held: list[Any] = field(default_factory=list[Any])

    @classmethod
    def of(cls, session: Session, instances: Sequence[Any] | None = None) -> Self:
        """Plan what a session's pending changes will write.

        Args:
            session: The session that is about to flush.
            instances: The only ones that it will flush.

        Raises:
            TrackingError: A change cannot be stamped. The session is as it was.
        """
        chosen = None if instances is None else {id(instance) for instance in instances}

        def only_chosen(pending: Any) -> list[Any]:
            return [instance for instance in pending if chosen is None or id(instance) in chosen]

        plan = cls(session, {instance_state(instance): instance for instance in only_chosen(session.deleted)})
        for instance in only_chosen(session.new):
            plan._add_new(instance_state(instance))
        for instance in (*only_chosen(session.dirty), *plan.removed.values()):
            plan._add_changed(instance_state(instance))
        plan._add_removed()
        return plan

    def carry_out(self) -> None:
        """Allocate the revisions and stamp the rows.

        Raises:
            UnknownOwnerError: An owner has no counter. The session is as it was.
        """
        now = datetime.min.replace(tzinfo=UTC)
        for bind, rows in self._rows().items():
            connection = self.session.connection(bind_arguments={"bind": bind})
            blocks, now = allocate_at(
                connection, {owner_id: len(states) for owner_id, states in rows.items()}
            )
            for owner_id, states in rows.items():
                self.revisions.update(zip(states, blocks[owner_id], strict=True))
        for state, instance in self.removed.items():
            if shape_of(state.mapper).syncable:
                self.session.add(instance)
        for parent, relationship, child in self.leaving:
            _keep(parent, relationship, child)
        for state, revision in self.revisions.items():
            row: Any = state.obj()
            if state in self.tombstones:
                row.deleted_at = now
            if shape_of(state.mapper).has_updated_at and not is_assigned(state, "updated_at"):
                row.updated_at = now
            row.revision = revision

    def _rows(self) -> dict[Any, dict[OwnerId, list[State]]]:
        """Group the rows by database, whose counters they need, and by owner; in the order of revisions."""
        rows: dict[Any, dict[OwnerId, list[State]]] = {}
        binds = {mapper: self.session.get_bind(mapper) for mapper in {state.mapper for state in self.owners}}
        for state in parents_first(self.owners):
            by_owner = rows.setdefault(binds[state.mapper], {})
            by_owner.setdefault(self.owners[state], []).append(state)
        return rows

    def _write(self, state: State, shape: Shape) -> None:
        if state not in self.owners:
            if is_assigned(state, "revision"):
                raise RevisionAssignedError(shape.table)
            self.owners[state] = owner_of(state, shape)
            self.held.append(state.obj())

    def _add_new(self, state: State) -> None:
        shape = shape_of(state.mapper)
        if shape.tracked:
            self._write(state, shape)
        self._add_related(state, shape)

    def _add_changed(self, state: State) -> None:
        shape = shape_of(state.mapper)
        if shape.syncable and is_written(state, shape):
            if shape.tracked:
                self._write(state, shape)
            elif not is_assigned(state, "revision"):
                raise UnstampedWriteError(shape.table)
            if is_renamed(state, shape):
                raise HardDeleteError(shape.table)
        if shape.syncable and is_orphan(state, shape):
            self.orphans.append(state)
        self._add_related(state, shape)

    def _add_related(self, parent: State, shape: Shape) -> None:
        """Add the children that a changed relationship writes, or removes."""
        if shape.to_children_keys.isdisjoint(parent.committed_state):
            return
        for relationship in shape.through_synced:
            if relationship.key in parent.committed_state:
                raise UnstampedWriteError(str(relationship.secondary))
        for relationship in shape.to_children:
            if relationship.key in parent.committed_state:
                history = history_of(parent, relationship)
                for child in (*history.added, *history.deleted):
                    if child is not None and instance_state(child).persistent:
                        self._add_child(parent, relationship, child)

    def _add_child(self, parent: State, relationship: Relationship, child: Any) -> None:
        state = instance_state(child)
        shape = shape_of(state.mapper)
        left = has_left(state, relationship)
        if left and (relationship.cascade.delete_orphan or state in self.removed):
            self.removed[state] = child
            if shape.syncable:
                self.leaving.append((parent, relationship, child))
        elif is_to_children(relationship) and shape.tracked:
            if left and sets_owner(relationship):
                raise OwnerChangedError(shape.table)
            self._write(state, shape)

    def _add_removed(self) -> None:
        """Make tombstones of what the flush would remove, and of all that SQLAlchemy's cascades reach."""
        for state in self.orphans:
            if state not in self.removed:
                raise HardDeleteError(shape_of(state.mapper).table)
        waiting, seen = list(self.removed.values()), set[State]()
        while waiting:
            instance = waiting.pop()
            state = instance_state(instance)
            if state in seen:
                continue
            seen.add(state)
            self.held.append(instance)
            shape = shape_of(state.mapper)
            if shape.syncable:
                self._bury(state, shape)
            else:
                self._add_bereft(state, shape)
            for relationship in shape.related:
                if relationship.cascade.delete and leads_to_synced(relationship):
                    waiting += children_of(self.session, instance, relationship)

    def _bury(self, state: State, shape: Shape) -> None:
        instance: Any = state.obj()
        if getattr(instance, "deleted_at", None) is None:
            if not shape.tracked:
                raise HardDeleteError(shape.table)
            self.tombstones.add(state)
            self._write(state, shape)

    def _add_bereft(self, parent: State, shape: Shape) -> None:
        """Add the rows that lose a parent, or a link, because a row that is not synced goes."""
        for relationship in shape.through_synced:
            if children_of(self.session, parent.obj(), relationship):
                raise HardDeleteError(str(relationship.secondary))
        for relationship in shape.related:
            is_link = relationship.direction is RelationshipDirection.MANYTOMANY
            if not (is_link or nulls_children(relationship)) or not leads_to_synced(relationship):
                continue
            is_owner = is_to_children(relationship) and sets_owner(relationship)
            if is_owner and relationship.passive_deletes and relationship.key not in parent.dict:
                # The database removes what is not loaded with its owner.
                continue
            for child in children_of(self.session, parent.obj(), relationship):
                state = instance_state(child)
                if is_owner:
                    raise OwnerChangedError(shape_of(state.mapper).table)
                if shape_of(state.mapper).tracked:
                    self._write(state, shape_of(state.mapper))
        refuse_dragged(self.session, parent, shape)


def _keep(parent: State, relationship: Relationship, child: Any) -> None:
    """Let a row keep the parent it has left: SQLAlchemy neither removes it then, nor its foreign key."""
    relationship.class_attribute.impl.sethasparent(instance_state(child), parent, value=True)
    if is_to_children(relationship) and relationship.back_populates:
        set_committed_value(child, relationship.back_populates, parent.obj())

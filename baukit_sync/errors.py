"""Every error this package raises.

::

    SyncError
     |__ InvalidArgumentError        (also ValueError)
     |__ HlcError
     |    |__ BlankDeviceIdError
     |    |__ ClockDriftError
     |    |__ ExceedsSafeIntegerError
     |    |__ InvalidComponentError
     |    |__ InvalidPhysicalClockError
     |    |__ InvalidTimestampError
     |__ PullCursorError
     |    |__ CursorAheadError
     |    |__ InvalidCursorError
     |    |__ NegativeCursorError
     |    |__ ResyncRequiredError
     |__ UnknownOwnerError
     |__ UnsafeTransactionError
     |__ PrimaryRequiredError
     |__ PurgeError
     |    |__ BatchLimitExceededError
     |    |__ DeleteMismatchError
     |    |__ RowSecurityError
     |    |__ SelectorShapeError
     |    |__ UnsafeForeignKeyError
     |__ TrackingError
     |    |__ HardDeleteError
     |    |__ OwnerChangedError
     |    |__ OwnerMissingError
     |    |__ RevisionAssignedError
     |    |__ UnstampedWriteError
     |__ EmbeddedServerError
     |__ MissingExtraError           (also ImportError)

An error carries its facts as positional fields and builds its text from them, so it pickles and its
``code`` never changes. No text holds an owner id, a key or row data. Errors of the database pass through
as SQLAlchemy raised them, except where a function documents one of these instead.
"""

from __future__ import annotations

from typing import ClassVar


class SyncError(Exception):
    """The root of every error of this package; ``code`` is stable, the text is not."""

    code: ClassVar[str] = "sync_error"


class InvalidArgumentError(SyncError, ValueError):
    """An argument cannot mean anything. Raised before any I/O.

    Attributes:
        argument: The argument's name.
        expected: What would have been accepted.
    """

    code = "invalid_argument"

    def __init__(self, argument: str, expected: str) -> None:
        super().__init__(argument, expected)
        self.argument = argument
        self.expected = expected

    def __str__(self) -> str:
        return f"{self.argument} must be {self.expected}"


class HlcError(SyncError):
    """The hybrid logical clock refused; its state has not changed."""

    code = "hlc_error"


class BlankDeviceIdError(HlcError):
    """A clock was opened with a device id that is not text, is empty, or is only white space."""

    code = "blank_device_id"

    def __str__(self) -> str:
        return "a clock needs a device id that is not blank"


class ClockDriftError(HlcError):
    """A wall time is further ahead of the physical clock than the clock's owner allows.

    Attributes:
        ahead_ms: How far ahead it is, in milliseconds.
        max_drift_ms: The most that is allowed, in milliseconds; a wall exactly that far ahead is accepted.
    """

    code = "clock_drift"

    def __init__(self, ahead_ms: int, max_drift_ms: int) -> None:
        super().__init__(ahead_ms, max_drift_ms)
        self.ahead_ms = ahead_ms
        self.max_drift_ms = max_drift_ms

    def __str__(self) -> str:
        return f"the wall time is {self.ahead_ms} ms ahead of this clock; {self.max_drift_ms} ms are allowed"


class ExceedsSafeIntegerError(HlcError):
    """The timestamp would pass 9,007,199,254,740,991, the greatest integer that JavaScript keeps exactly."""

    code = "exceeds_safe_integer"

    def __str__(self) -> str:
        return "no timestamp is left below JavaScript's greatest safe integer"


class InvalidComponentError(HlcError):
    """A wall time is not an integer of milliseconds >= 0, or a counter is not an integer in 0..999."""

    code = "invalid_component"

    def __str__(self) -> str:
        return "the wall time must be an integer of milliseconds >= 0 and the counter an integer in 0..999"


class InvalidPhysicalClockError(HlcError):
    """The physical clock's reading is not an integer of milliseconds in 0..9,007,199,254,740,991."""

    code = "invalid_physical_clock"

    def __str__(self) -> str:
        return "the physical clock must read an integer of milliseconds in 0..9007199254740991"


class InvalidTimestampError(HlcError):
    """An encoded timestamp is not an integer in 1..9,007,199,254,740,991."""

    code = "invalid_timestamp"

    def __str__(self) -> str:
        return "an encoded timestamp must be an integer in 1..9007199254740991"


class PullCursorError(SyncError):
    """A pull or push cannot start from this cursor; nothing was read."""

    code = "pull_cursor_error"


class CursorAheadError(PullCursorError):
    """The cursor lies above everything the owner's counter ever handed out.

    It comes from a database that was restored from a backup, from another owner, or from a forged request.
    Serving it would lose every change until the counter has passed it: let the client rebuild from 0.

    Attributes:
        current_revision: The owner's counter; 0 when there is none.
    """

    code = "cursor_ahead"

    def __init__(self, current_revision: int) -> None:
        super().__init__(current_revision)
        self.current_revision = current_revision

    def __str__(self) -> str:
        return f"the cursor is ahead of the current revision {self.current_revision}"


class InvalidCursorError(PullCursorError):
    """The cursor is not an integer, or is above 9,007,199,254,740,991."""

    code = "invalid_cursor"

    def __str__(self) -> str:
        return "a cursor must be an integer in 0..9007199254740991"


class NegativeCursorError(PullCursorError):
    """The cursor is below 0."""

    code = "negative_cursor"

    def __str__(self) -> str:
        return "a cursor must not be negative"


class ResyncRequiredError(PullCursorError):
    """Tombstones above the cursor have been purged: the client must rebuild from cursor 0.

    Attributes:
        horizon_revision: The owner's purge horizon; every cursor from here on is served.
    """

    code = "resync_required"

    def __init__(self, horizon_revision: int) -> None:
        super().__init__(horizon_revision)
        self.horizon_revision = horizon_revision

    def __str__(self) -> str:
        return f"the cursor is below the purge horizon {self.horizon_revision}: rebuild from cursor 0"


class UnknownOwnerError(SyncError):
    """The owner has no counter: call ``ensure_owner`` when the owner is created."""

    code = "unknown_owner"

    def __str__(self) -> str:
        return "the owner has no revision counter: call ensure_owner when the owner is created"


class UnsafeTransactionError(SyncError):
    """The connection is in AUTOCOMMIT: a lock would be gone before the work that it protects.

    Raised before anything is sent.
    """

    code = "unsafe_transaction"

    def __str__(self) -> str:
        return "the connection is in AUTOCOMMIT: use a transaction, so that the lock lasts until its end"


class PrimaryRequiredError(SyncError):
    """The server is a standby, or the transaction is read-only (SQLSTATE 25006): it cannot lock the counter.

    Reading without the lock would lose rows, so there is no fallback. The transaction is aborted.
    """

    code = "primary_required"

    def __str__(self) -> str:
        return "this needs the primary in a read-write transaction: the owner's counter cannot be locked here"


class PurgeError(SyncError):
    """A purge stopped; its open batch must be rolled back, earlier batches stay."""

    code = "purge_error"


class BatchLimitExceededError(PurgeError):
    """A selector ignored its limit. Nothing was deleted.

    Attributes:
        table: The spec's name.
        selected: How many rows the selector returned.
        limit: How many it was asked for.
    """

    code = "batch_limit_exceeded"

    def __init__(self, table: str, selected: int, limit: int) -> None:
        super().__init__(table, selected, limit)
        self.table = table
        self.selected = selected
        self.limit = limit

    def __str__(self) -> str:
        return f"the selector of {self.table} returned {self.selected} rows for a limit of {self.limit}"


class DeleteMismatchError(PurgeError):
    """A deleter removed another number of rows than it was given ids: roll the batch back.

    Attributes:
        table: The spec's name.
        expected: How many ids the deleter was given.
        deleted: How many rows it removed.
    """

    code = "delete_mismatch"

    def __init__(self, table: str, expected: int, deleted: int) -> None:
        super().__init__(table, expected, deleted)
        self.table = table
        self.expected = expected
        self.deleted = deleted

    def __str__(self) -> str:
        return f"the deleter of {self.table} removed {self.deleted} rows for {self.expected} ids"


class RowSecurityError(PurgeError):
    """Row-level security may hide rows from the role that purges. Nothing was deleted.

    Attributes:
        table: A table whose policies are not plain ``USING (true)`` for the role.
    """

    code = "row_security"

    def __init__(self, table: str) -> None:
        super().__init__(table)
        self.table = table

    def __str__(self) -> str:
        return (
            f"row-level security may hide rows of {self.table} from the purge: give its role BYPASSRLS, or a"
            " policy FOR ALL USING (true)"
        )


class SelectorShapeError(PurgeError):
    """A selector does not return ``id``, ``owner_id`` and a positive ``revision``. Nothing was deleted.

    Attributes:
        table: The spec's name.
    """

    code = "selector_shape"

    def __init__(self, table: str) -> None:
        super().__init__(table)
        self.table = table

    def __str__(self) -> str:
        return f"the selector of {self.table} must return id, owner_id and a positive revision in every row"


class UnsafeForeignKeyError(PurgeError):
    """Purging a table would delete or change rows of another synced table without a tombstone.

    Attributes:
        table: The table to purge.
        referring: The table whose foreign key points at it.
        ondelete: What that key does: CASCADE, SET NULL or SET DEFAULT.
    """

    code = "unsafe_foreign_key"

    def __init__(self, table: str, referring: str, ondelete: str) -> None:
        super().__init__(table, referring, ondelete)
        self.table = table
        self.referring = referring
        self.ondelete = ondelete

    def __str__(self) -> str:
        return (
            f"purging {self.table} would change synced rows of {self.referring} without a tombstone: its"
            f" foreign key is ON DELETE {self.ondelete}; use NO ACTION"
        )


class TrackingError(SyncError):
    """A tracked session refused a write that it cannot stamp; nothing of the flush or statement was sent.

    Attributes:
        table: The table that would have been written.
    """

    code = "tracking_error"

    def __init__(self, table: str) -> None:
        super().__init__(table)
        self.table = table


class HardDeleteError(TrackingError):
    """A row of a syncable table would have been removed: clients that have it would keep it for ever."""

    code = "hard_delete"

    def __str__(self) -> str:
        return f"rows of {self.table} would be removed and no client told: make them tombstones"


class OwnerChangedError(TrackingError):
    """A row would have moved to another owner: the old owner's clients would keep it for ever."""

    code = "owner_changed"

    def __str__(self) -> str:
        return f"a row of {self.table} cannot change its owner: delete it, and add a copy for the new owner"


class OwnerMissingError(TrackingError):
    """A new row has no owner yet when it is flushed."""

    code = "owner_missing"

    def __str__(self) -> str:
        return f"a new row of {self.table} has no owner: set owner_id, or flush the owner first"


class RevisionAssignedError(TrackingError):
    """A revision was assigned by hand in a session that stamps its rows itself."""

    code = "revision_assigned"

    def __str__(self) -> str:
        return f"the revision of a row of {self.table} was assigned by hand: leave it to the tracked session"


class UnstampedWriteError(TrackingError):
    """A statement or a flush would have written rows without giving each its own revision."""

    code = "unstamped_write"

    def __str__(self) -> str:
        return (
            f"rows of {self.table} would be written without new revisions: change ORM objects, or use"
            " update_where, soft_delete_where or undelete_where"
        )


class EmbeddedServerError(SyncError):
    """The private PostgreSQL did not start.

    Attributes:
        reason: What its start-up said.
    """

    code = "embedded_server"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the private PostgreSQL did not start: {self.reason}"


class MissingExtraError(SyncError, ImportError):
    """A part of this package needs an extra that is not installed.

    Attributes:
        extra: The extra's name, as in ``pip install 'baukit-sync[extra]'``.
    """

    code = "missing_extra"

    def __init__(self, extra: str) -> None:
        super().__init__(extra)
        self.extra = extra

    def __str__(self) -> str:
        return f"this needs an extra: pip install 'baukit-sync[{self.extra}]'"


class MissingIndexWarning(UserWarning):
    """A table has no index that leads from an owner to its tombstones: the purge reads the table instead."""

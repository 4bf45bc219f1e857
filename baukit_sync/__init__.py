"""The server kit for offline sync on SQLAlchemy and PostgreSQL.

Small functions that run inside your own transaction: revisions, pulls, purge horizons and a hybrid logical
clock. :mod:`baukit_sync.aio` has the same functions for ``AsyncSession`` and ``AsyncConnection``.
"""

from baukit_sync.errors import (
    BatchLimitExceededError,
    BlankDeviceIdError,
    ClockDriftError,
    CursorAheadError,
    DeleteMismatchError,
    EmbeddedServerError,
    ExceedsSafeIntegerError,
    HardDeleteError,
    HlcError,
    InvalidArgumentError,
    InvalidComponentError,
    InvalidCursorError,
    InvalidPhysicalClockError,
    InvalidTimestampError,
    MissingExtraError,
    NegativeCursorError,
    OwnerChangedError,
    OwnerMissingError,
    PrimaryRequiredError,
    PullCursorError,
    PurgeError,
    ResyncRequiredError,
    RevisionAssignedError,
    SelectorShapeError,
    SyncError,
    TrackingError,
    UnknownOwnerError,
    UnsafeTransactionError,
    UnstampedWriteError,
)
from baukit_sync.hlc import (
    HybridLogicalClock,
    HybridLogicalClockState,
)
from baukit_sync.horizon import (
    check_pull_cursor,
    parse_cursor,
)
from baukit_sync.pages import (
    Change,
    PullPage,
    PullSource,
    pull_page,
)
from baukit_sync.pull import (
    PullWindow,
    fence_restore,
    guard_pull_cursor,
    guard_pull_cursors,
    guard_push_cursor,
    purge_horizon,
)
from baukit_sync.purge import (
    PurgeBatch,
    PurgedTable,
    PurgeReport,
    TombstoneTable,
    purge_tombstone_batch,
    purge_tombstones,
)
from baukit_sync.retry import (
    retry_transaction,
)
from baukit_sync.revisions import (
    allocate_revisions,
    current_revision,
    current_revision_for_update,
    ensure_owner,
    next_revision,
    next_revisions,
)
from baukit_sync.schema import (
    SyncColumns,
    SyncDataclassColumns,
    SyncTables,
    add_sync_tables,
    sync_columns,
    sync_indexes,
)
from baukit_sync.slots import (
    FixedUtcInterval,
    FixedUtcSlot,
)
from baukit_sync.tracking import (
    STAMPED_BY_HAND,
    track,
)
from baukit_sync.transaction import (
    OwnerId,
)
from baukit_sync.writes import (
    soft_delete_where,
    undelete_where,
    update_where,
)

__all__ = [
    "STAMPED_BY_HAND",
    "BatchLimitExceededError",
    "BlankDeviceIdError",
    "Change",
    "ClockDriftError",
    "CursorAheadError",
    "DeleteMismatchError",
    "EmbeddedServerError",
    "ExceedsSafeIntegerError",
    "FixedUtcInterval",
    "FixedUtcSlot",
    "HardDeleteError",
    "HlcError",
    "HybridLogicalClock",
    "HybridLogicalClockState",
    "InvalidArgumentError",
    "InvalidComponentError",
    "InvalidCursorError",
    "InvalidPhysicalClockError",
    "InvalidTimestampError",
    "MissingExtraError",
    "NegativeCursorError",
    "OwnerChangedError",
    "OwnerId",
    "OwnerMissingError",
    "PrimaryRequiredError",
    "PullCursorError",
    "PullPage",
    "PullSource",
    "PullWindow",
    "PurgeBatch",
    "PurgeError",
    "PurgeReport",
    "PurgedTable",
    "ResyncRequiredError",
    "RevisionAssignedError",
    "SelectorShapeError",
    "SyncColumns",
    "SyncDataclassColumns",
    "SyncError",
    "SyncTables",
    "TombstoneTable",
    "TrackingError",
    "UnknownOwnerError",
    "UnsafeTransactionError",
    "UnstampedWriteError",
    "add_sync_tables",
    "allocate_revisions",
    "check_pull_cursor",
    "current_revision",
    "current_revision_for_update",
    "ensure_owner",
    "fence_restore",
    "guard_pull_cursor",
    "guard_pull_cursors",
    "guard_push_cursor",
    "next_revision",
    "next_revisions",
    "parse_cursor",
    "pull_page",
    "purge_horizon",
    "purge_tombstone_batch",
    "purge_tombstones",
    "retry_transaction",
    "soft_delete_where",
    "sync_columns",
    "sync_indexes",
    "track",
    "undelete_where",
    "update_where",
]

"""The purge: delete expired tombstones, raise their owners' horizons, and get past whatever is stuck.

``table`` says how a table is purged, ``batch`` does it in the caller's transaction, and ``drain`` in its own.
"""

from __future__ import annotations

from baukit_sync.purge.batch import PurgeBatch, purge_tombstone_batch
from baukit_sync.purge.drain import purge_tombstones
from baukit_sync.purge.report import PurgedTable, PurgeProgress, PurgeReport, PurgeUnfinished
from baukit_sync.purge.table import TombstoneTable

__all__ = [
    "PurgeBatch",
    "PurgeProgress",
    "PurgeReport",
    "PurgeUnfinished",
    "PurgedTable",
    "TombstoneTable",
    "purge_tombstone_batch",
    "purge_tombstones",
]

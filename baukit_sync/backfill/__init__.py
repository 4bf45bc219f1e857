"""Give the rows that are there already a counter and a revision, while the application goes on writing.

A cursor of 0 asks for revisions above 0, so a row without one reaches no client. ``revision IS NULL`` is what
marks a row as not yet done: a run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

from baukit_sync.backfill.report import BackfillProgress, BackfillReport
from baukit_sync.backfill.run import backfill_revisions

__all__ = ["BackfillProgress", "BackfillReport", "backfill_revisions"]

"""The run: table after table, each batch in a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine

from baukit_sync.errors import InvalidArgumentError
from baukit_sync.purge.batch import MAX_BATCH_LIMIT
from baukit_sync.purge.owners import OwnerDrain
from baukit_sync.purge.report import PurgedTable, PurgeProgress, PurgeReport
from baukit_sync.purge.run import PurgeRun, logger
from baukit_sync.purge.selectors import SelectorDrain
from baukit_sync.purge.table import TombstoneTable
from baukit_sync.purge.visibility import refuse_blinded
from baukit_sync.transaction import check_aware, check_integer


def purge_tombstones(  # noqa: PLR0913 -- each is a limit of its own
    engine: Engine,
    tables: Sequence[TombstoneTable],
    cutoff: datetime,
    limit: int,
    *,
    busy_wait: timedelta | None = None,
    time_budget: timedelta | None = None,
    max_rows: int | None = None,
    pause: timedelta | None = None,
    owners_per_statement: int | None = None,
    dry_run: bool = False,
    on_batch: Callable[[PurgeProgress], object] | None = None,
) -> PurgeReport:
    """Delete the expired tombstones of several tables, batch by batch, each in a transaction of its own.

    Tables from :meth:`baukit_sync.TombstoneTable.for_model` are purged owner by owner. Whatever is stuck is
    skipped and reported: an owner who writes or pulls, one without a counter, a row that a foreign key still
    needs. A caller-owned spec is done when a batch selects fewer than ``limit`` rows or deletes nothing. A
    batch that loses a deadlock, a lock or the connection is tried once more.

    Args:
        engine: Where to connect; each batch is a READ COMMITTED transaction, whatever the engine's default.
        tables: The specs in purge order: children before their parents.
        cutoff: Tombstones with ``deleted_at`` before this instant are expired. Take it from a slot, not from
            the wall clock, so that a retry purges what the first attempt would have.
        limit: The most rows of one batch, 1..1,000,000. Owners' writers wait for one batch at most.
        busy_wait: How long to wait, once for each table and at its end, for the owners that were busy; behind
            a purge that waits, their new pulls and writes wait too. Without it nothing waits.
        time_budget: After this time no batch is begun.
        max_rows: After this many rows, in all tables, no batch is begun.
        pause: How long to rest after each batch. Without it the purge takes what the disk gives, and others'
            commits wait behind its log.
        owners_per_statement: The most owners of one statement. 1 is for sharded databases: every statement
            that locks or deletes then says ``owner_id = :owner``. By default as many as fit into ``limit``.
        dry_run: Count what would be deleted, and delete nothing. Of a caller-owned spec the first batch is
            counted, and of a tree its leaves.
        on_batch: Called after each batch that was committed, in this thread; async, on the event loop.

    Returns:
        What was deleted from each table, what is left, and why.

    Raises:
        RowSecurityError: Row-level security may hide tombstones from this role; nothing was deleted.
        PurgeError: A caller-owned spec broke its contract, as for :func:`purge_tombstone_batch`. Batches that
            were committed stay.
        PrimaryRequiredError: The server is a standby, or read-only.
        InvalidArgumentError: An argument is out of range; nothing was sent.

    Until a batch is committed it holds its rows and their owners' counters FOR UPDATE, and the parents that
    say whose the rows are FOR SHARE; it skips what others have locked. Commits once per batch; where that is
    one statement, without waiting for the disk. Source: contract section 5.
    """
    check_aware("cutoff", cutoff)
    check_integer("limit", limit, least=1, most=MAX_BATCH_LIMIT)
    for argument, number in (("max_rows", max_rows), ("owners_per_statement", owners_per_statement)):
        if number is not None:
            check_integer(argument, number, least=1, most=2**53)
    for argument, span in (("busy_wait", busy_wait), ("time_budget", time_budget), ("pause", pause)):
        if span is not None and not (isinstance(span, timedelta) and timedelta() <= span <= _LONGEST):
            raise InvalidArgumentError(argument, f"a timedelta from 0 to {_LONGEST.days} days")
    started = datetime.now(UTC)
    run = PurgeRun(
        engine,
        cutoff,
        limit,
        time_budget=time_budget,
        max_rows=max_rows,
        pause=pause,
        on_batch=on_batch,
    )
    drains = [
        SelectorDrain(run, table)
        if table.known is None
        else OwnerDrain(run, table.name, table.known, owners_per_statement)
        for table in tables
    ]
    purged: list[PurgedTable] = []

    def check() -> None:
        with run.transaction() as connection:
            run.learn_isolation(connection)
            refuse_blinded(connection, tables, {"cutoff": cutoff, "limit": limit})

    try:
        run.attempt(check, or_raise=True)
        for drain in drains:
            purged.append(drain.count() if dry_run else drain.drain(busy_wait))
            logger.info("purged %s", purged[-1].name, extra={"purge": purged[-1].to_dict()})
    finally:
        run.close()
    return PurgeReport(tuple(purged), cutoff, started, datetime.now(UTC), dry_run)


_LONGEST = timedelta(days=1)

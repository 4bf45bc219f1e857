"""Chapters 5 to 8: deletes, the purge, a device that returns too late, and a purge that meets a pull."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from sqlalchemy.orm import Session

from baukit_sync import guard_pull_cursor
from baukit_sync.demo import product
from baukit_sync.demo.report import Step
from baukit_sync.demo.story import Story, find, revisions, sync
from baukit_sync.demo.witness import expect, served
from baukit_sync.wire import ResyncRequired


def deletes(story: Story) -> Iterator[Step]:
    """Delete a list with all that is below it, and much later one row more."""
    phone, laptop = story.phone, story.laptop
    story.clock.advance(timedelta(days=1))
    laptop.delete(find(laptop, "Camping"))
    pushed = served(laptop.push())
    sync(laptop, phone)
    yield Step(
        "The next day the laptop deletes the list Camping. The server deletes what is below it, too: every "
        "row becomes a tombstone with a revision of its own, so that every device hears of it.",
        {"deletes_pushed": 1, "tombstones": len(pushed.applied), "revisions": revisions(pushed)},
    )
    story.clock.advance(timedelta(days=20))
    laptop.delete(find(laptop, "carton.jpg"))
    pushed = served(laptop.push())
    sync(laptop)
    yield Step(
        "Twenty days later it deletes a picture. The phone is offline and does not hear of that.",
        {"revisions": revisions(pushed), "cursor_of_the_phone": phone.cursor},
    )


def purge(story: Story) -> Iterator[Step]:
    """Purge by slot."""
    story.clock.advance(timedelta(days=20))
    slot = story.clock.slot()
    purged = story.witness.purge(slot)
    again = story.witness.purge(slot)
    expect("a purge that is run again for its slot finds nothing", holds=again.removed == 0)
    expect("tombstones within the retention stay", holds=purged.kept == 1)
    yield Step(
        "Another twenty days later the nightly purge takes the tombstones that are older than 30 days, "
        "children before parents. The horizon rises to the greatest revision that it removed.",
        {
            "slot": slot.identifier,
            "cutoff": f"{slot.starts_at - product.RETENTION:%Y-%m-%d %H:%M} UTC",
            "removed_when_run_again": again.removed,
            "tombstones_kept": purged.kept,
            **story.counter(),
        },
        purged.table,
    )


def late_return(story: Story) -> Iterator[Step]:
    """Let the third device come back below the horizon, rebuild and agree with the others."""
    tablet, laptop = story.tablet, story.laptop
    known = set(tablet.confirmed)
    pull = tablet.pull()
    expect("a pull from below the horizon is refused", holds=isinstance(pull, ResyncRequired))
    yield Step(
        f"The tablet is back, and pulls from cursor {tablet.cursor}. An answer would leave out the deletes "
        "that were purged, so there is none but HTTP 409:",
        wire=pull.model_dump_json() if isinstance(pull, ResyncRequired) else None,
    )
    push = tablet.push()
    expect("a push from below the horizon is refused", holds=isinstance(push, ResyncRequired))
    yield Step(
        "Its push is refused as well: it would bring the tent back to life. The edits stay where they are.",
        {"pending_edits": [edit.title for edit in tablet.outbox.values()]},
    )
    given_up = tablet.rebuild()
    yield Step(
        "It rebuilds from cursor 0: what the server has replaces what the tablet knew. The edit of the tent "
        "is given up, because the tent was deleted; the other one is kept.",
        {
            "rows_removed": len(known - set(tablet.confirmed)),
            "rows": len(tablet.confirmed),
            "edits_given_up": len(given_up),
            "pending_edits": [edit.title for edit in tablet.outbox.values()],
            "cursor": tablet.cursor,
        },
    )
    pushed = served(tablet.push())
    sync(tablet, laptop)
    kept = "basmati rice" in [row.title for row in laptop.rows.values()]
    expect("a pending edit survives a rebuild", holds=kept)
    expect("devices that have synced have the same rows", holds=tablet.confirmed == laptop.confirmed)
    yield Step(
        "It pushes the edit that it kept, and agrees with the laptop.",
        {"revisions": revisions(pushed), "rows": [row.title for row in laptop.rows.values()]},
    )


def race(story: Story) -> Iterator[Step]:
    """Let a purge and a writer run into an open pull."""
    phone, laptop = story.phone, story.laptop
    story.clock.advance(timedelta(days=20))
    slot = story.clock.slot()
    with Session(story.place.engine) as session, session.begin():
        window = guard_pull_cursor(session, story.ada, phone.cursor)
        purged = story.witness.purge(slot, busy=[story.ada])
        laptop.add("lists", "Garden")
        written = served(laptop.push())
        page = product.read_page(session, window, limit=50)
    yield Step(
        "The phone begins a pull, and its cursor passes the guard. Before a row is read, the purge comes for "
        "the picture's tombstone, and the laptop writes. The writer goes on; the purge skips Ada.",
        {
            "window": f"({window.after}, {window.through}]",
            "purged": purged.removed,
            "written": revisions(written),
        },
    )
    phone.apply(page)
    deleted = [change.title for change in page.changes if change.deleted]
    expect("a pull returns every tombstone that its guard has let it expect", holds=deleted == ["carton.jpg"])
    purged = story.witness.purge(slot)
    expect("the next purge takes what an open pull has held back", holds=purged.removed == 1)
    pages = served(phone.pull())
    later = [change.title for page in pages for change in page.changes]
    expect("what is written during a pull comes with the next one", holds=later == ["Garden"])
    yield Step(
        "The pull returns the tombstone, and nothing that was written after it began. Then the purge takes "
        "the tombstone, and the next pull brings what was written.",
        {
            "pulled": [change.title for change in page.changes],
            "tombstones_pulled": deleted,
            "purged_afterwards": purged.removed,
            "next_pull": later,
            **story.counter(),
        },
    )
    sync(laptop, story.tablet)

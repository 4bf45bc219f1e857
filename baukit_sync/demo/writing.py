"""Chapters 1 to 4: a schema, and devices that write offline, push, pull and agree."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from baukit_sync.demo.device import Device
from baukit_sync.demo.report import Step
from baukit_sync.demo.story import Story, find, revisions, span, stamp_text, sync
from baukit_sync.demo.witness import expect, served


def schema(story: Story) -> Iterator[Step]:
    """Show what the migration has created."""
    place = story.place
    where = "private, in a temporary folder" if place.private else "the one you named"
    yield Step(
        "One Alembic revision creates the product's tables and, with the kit's functions, the kit's two. All "
        "of it is in a schema of its own, which is dropped at the end; nothing else is touched.",
        {
            "server": f"PostgreSQL {place.server}, {where}",
            "schema": place.schema,
            "tables": sorted(sa.inspect(place.engine).get_table_names(place.schema)),
        },
    )
    yield Step("Ada signs up and gets a counter.", story.counter())


def offline(story: Story) -> Iterator[Step]:
    """Let two devices write, with clocks that are wrong."""
    phone, laptop = story.phone, story.laptop
    groceries = phone.add("lists", "Groceries")
    milk = phone.add("items", "milk", groceries)
    phone.add("items", "rice", groceries)
    phone.add("attachments", "carton.jpg", milk)
    camping = laptop.add("lists", "Camping")
    for title in ("tent", "stove"):
        item = laptop.add("items", title, camping)
        laptop.add("attachments", f"{title}.pdf", item)
    yield Step(
        "Without a network both write. They make the ids themselves, and their hybrid logical clocks stamp "
        "each edit.",
        table=[
            {
                "device": device.name,
                "it_is": f"{story.clock.now():%H:%M:%S}",
                "stamp": stamp_text(next(iter(device.outbox.values())).stamp),
                "pending": len(device.outbox),
                "rows": [row.title for row in device.rows.values()],
            }
            for device in (phone, laptop)
        ],
    )


def agreement(story: Story) -> Iterator[Step]:
    """Push, pull in pages, repeat a push and decide a conflict."""
    phone, laptop = story.phone, story.laptop
    pushes = [(device.name, served(device.push())) for device in (phone, laptop)]
    yield Step(
        "Both push. One block of the owner's counter serves a push, and each row gets a revision of its own.",
        table=[
            {"device": name, "rows": len(pushed.applied), "revisions": revisions(pushed)}
            for name, pushed in pushes
        ],
    )
    yield Step(
        "The phone pulls in pages, all tables in revision order. The first page fixes where the pull ends.",
        table=_pages(phone),
    )
    sync(laptop)
    yield from _lost_answer(story)
    yield from _conflict(story)
    yield from _slow_clock(story)


def _lost_answer(story: Story) -> Iterator[Step]:
    phone = story.phone
    phone.edit(find(phone, "rice"), "brown rice")
    before = story.counter()["last_revision"]
    story.api.push(phone.owner_id, phone.push_request().model_dump_json())
    again = served(phone.push())
    taken = story.counter()["last_revision"] - before
    expect("a push that is sent twice is applied once", holds=taken == 1 and not again.applied)
    yield Step(
        "The answer to a push is lost, so the phone sends it again. The second finds nothing left to do.",
        {"revisions_of_the_first": taken, "revisions_of_the_second": len(again.applied)},
    )
    sync(phone, story.laptop)


def _conflict(story: Story) -> Iterator[Step]:
    phone, laptop = story.phone, story.laptop
    milk = find(phone, "milk")
    story.clock.advance(timedelta(hours=1))
    edits: list[dict[str, Any]] = []
    for device, title in ((phone, "oat milk"), (laptop, "soy milk")):
        device.edit(milk, title)
        stamp = stamp_text(device.outbox[milk].stamp)
        edits.append(
            {"device": device.name, "edit": title, "it_is": f"{story.clock.now():%H:%M:%S}", "stamp": stamp}
        )
        story.clock.advance(timedelta(seconds=20))
    sync(phone, laptop, phone)
    winner = laptop.rows[milk].title
    expect("of two edits the one with the greater stamp wins", holds=winner == "oat milk")
    yield Step(
        "Both edit the milk, and neither knows of the other. The greater stamp wins on every device: here "
        "that of the phone, whose clock is fast, although the laptop's edit is later and arrives later.",
        {"winner": winner},
        edits,
    )


def _slow_clock(story: Story) -> Iterator[Step]:
    phone, laptop = story.phone, story.laptop
    milk = find(laptop, "oat milk")
    story.clock.advance(timedelta(minutes=1))
    laptop.edit(milk, "almond milk")
    edit = laptop.outbox[milk]
    sync(laptop, phone)
    winner = phone.rows[milk].title
    expect("an edit of what its device has seen wins", holds=winner == "almond milk")
    yield Step(
        "Now the laptop has seen the phone's edit, and changes it. Its clock is slow, but a hybrid logical "
        "clock steps past every stamp that it has seen.",
        {"edit": edit.title, "stamp": stamp_text(edit.stamp), "winner": winner},
    )


def absence(story: Story) -> Iterator[Step]:
    """Let a third device pull, edit and stay away."""
    tablet = story.tablet
    sync(tablet)
    story.clock.advance(timedelta(hours=1))
    tablet.edit(find(tablet, "brown rice"), "basmati rice")
    tablet.edit(find(tablet, "tent"), "tent for four")
    yield Step(
        "A tablet pulls everything. Then it edits two items offline and disappears in a drawer.",
        {
            "cursor": tablet.cursor,
            "rows": len(tablet.confirmed),
            "pending_edits": [edit.title for edit in tablet.outbox.values()],
        },
    )


def _pages(device: Device) -> list[dict[str, Any]]:
    return [
        {
            "page": number,
            "revisions": span([change.revision for change in page.changes]),
            "next_cursor": page.next_cursor,
            "through": page.through,
            "has_more": page.has_more,
        }
        for number, page in enumerate(served(device.pull()), 1)
    ]

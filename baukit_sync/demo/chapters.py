"""The chapters in their order, and how they are played."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter

from sqlalchemy import URL

from baukit_sync.demo import purging, writing
from baukit_sync.demo.device import ProtocolError
from baukit_sync.demo.load import THREADS, Load
from baukit_sync.demo.place import own_schema
from baukit_sync.demo.report import Audience, Chapter, Report, Step
from baukit_sync.demo.story import Story
from baukit_sync.demo.verify import verdict
from baukit_sync.demo.witness import ViolationError


def play(
    url: URL | None = None,
    *,
    owners: int = 10,
    rows: int = 1_000,
    audience: Audience,
    checkpoint: Callable[[], None] = lambda: None,
) -> Report:
    """Play the story and check what it leaves behind.

    Args:
        url: A PostgreSQL to play in, whose role may create schemas; ``None`` starts a private one.
        owners: How many owners write in the last chapter.
        rows: How many edits are made for each of them.
        audience: Whom it is told.
        checkpoint: Called before every request and chapter, by any thread; what it raises ends the story.

    Returns:
        The report. A violated invariant ends the story and stands in the report; it does not raise.

    Raises:
        MissingExtraError: There is no ``url``, and the extra ``embedded`` is not installed.
        EmbeddedServerError: The private PostgreSQL did not start.
        UnusableDatabaseError: The database at ``url`` cannot be reached, or its role may not create a schema.

    Commits to a schema of its own, which is dropped at the end.
    """
    report = Report()
    began = perf_counter()
    try:
        with own_schema(url, connections=THREADS + 4) as place:
            story = Story(place, checkpoint)
            load = Load(story, audience, owners=owners, rows=rows)
            for number, (title, steps) in enumerate(_chapters(story, load), 1):
                checkpoint()
                _tell(Chapter(number, title), steps, report, audience)
        report.verified = True
    except (ViolationError, ProtocolError) as error:
        report.violated += map(str, error.args)
    report.seconds = round(perf_counter() - began, 3)
    audience.end(report)
    return report


def _chapters(story: Story, load: Load) -> list[tuple[str, Iterator[Step]]]:
    return [
        ("A schema", writing.schema(story)),
        ("Two devices write offline", writing.offline(story)),
        ("They push, pull and agree", writing.agreement(story)),
        ("A third device stays away", writing.absence(story)),
        ("Deletes leave tombstones", purging.deletes(story)),
        ("A purge raises the horizon", purging.purge(story)),
        ("The third device returns", purging.late_return(story)),
        ("A purge meets an open pull", purging.race(story)),
        ("Many owners, many writers", load.steps()),
        ("The verdict", _verdict(story, load)),
    ]


def _verdict(story: Story, load: Load) -> Iterator[Step]:
    devices = [story.phone, story.laptop, story.tablet, *load.devices]
    found = verdict(story.witness, devices)
    yield Step(
        "Every device has the server's live rows and no others, field by field. Each counter has handed out "
        "every revision once. Each horizon is the greatest revision that was purged for its owner.",
        found,
    )


def _tell(chapter: Chapter, steps: Iterator[Step], report: Report, audience: Audience) -> None:
    report.chapters.append(chapter)
    audience.chapter(chapter)
    began = perf_counter()
    for step in steps:
        chapter.steps.append(step)
        audience.step(step)
    chapter.seconds = round(perf_counter() - began, 3)

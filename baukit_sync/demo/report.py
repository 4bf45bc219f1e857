"""What the story tells: steps with their facts, gathered in chapters, and a report of all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Step:
    """One thing that happens.

    Attributes:
        text: What it is, in a sentence or two.
        facts: What can be seen of it, by names like ``last_revision``; values that JSON has.
        table: Further facts, a mapping with the same keys for each row.
        wire: JSON that went over the wire, as it was.
    """

    text: str
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    table: Sequence[Mapping[str, Any]] = ()
    wire: str | None = None


@dataclass
class Chapter:
    """Steps that belong together, and how long they took."""

    number: int
    title: str
    steps: list[Step] = field(default_factory=list[Step])
    seconds: float = 0.0


@dataclass
class Report:
    """The whole story.

    Attributes:
        verified: Whether the story came to its end and every invariant held.
        violated: The invariants that did not hold.
        chapters: The chapters that were told.
        seconds: How long all of it took, the server's start and stop included.
    """

    verified: bool = False
    violated: list[str] = field(default_factory=list[str])
    chapters: list[Chapter] = field(default_factory=list[Chapter])
    seconds: float = 0.0

    def to_json(self) -> str:
        """Return the report as one JSON document, the wire bodies as parts of it."""
        document = asdict(self)
        for chapter in document["chapters"]:
            for step in chapter["steps"]:
                step["wire"] = json.loads(step["wire"]) if step["wire"] else None
        return json.dumps(document, indent=2)


class Audience:
    """Whom the story is told, while it goes on. This one does not listen."""

    def chapter(self, chapter: Chapter) -> None:
        """Hear that a chapter begins."""

    def step(self, step: Step) -> None:
        """Hear of a step."""

    @contextmanager
    def progress(self, _text: str, _total: int) -> Generator[Callable[[int], None]]:
        """Hear how a long step gets on: call what is given with what was done since the last call."""
        yield lambda _done: None

    def end(self, report: Report) -> None:
        """Hear how it ended."""

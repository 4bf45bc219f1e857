"""The story on a screen: with a little colour on a terminal, as plain text anywhere else."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from rich.console import Console, RenderableType
from rich.json import JSON
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from baukit_sync.demo.report import Audience, Chapter, Report, Step

WIDTH = 80


class Screen(Audience):
    """Prints each step as it happens."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._console.width = min(self._console.width, WIDTH)

    def chapter(self, chapter: Chapter) -> None:
        """Print a rule with the chapter's title."""
        title = f"{chapter.number}  {chapter.title}"
        if self._console.is_terminal:
            heading: RenderableType = Rule(Text(title, style="bold cyan"), align="left", style="dim")
        else:
            heading = Text(f"{title}\n{'-' * len(title)}")
        self._print(heading, gap=chapter.number > 1)

    def step(self, step: Step) -> None:
        """Print what happens, then what can be seen of it."""
        self._print(Text(step.text))
        details = [_table(step.table)] if step.table else []
        details += [_facts(step.facts)] if step.facts else []
        for detail in details:
            self._print(Padding(detail, (0, 0, 0, 2)), gap=False)
        if step.wire:
            body = JSON(step.wire, highlight=self._console.is_terminal)
            self._print(Padding(body, (0, 0, 0, 2)), gap=False)

    def _print(self, what: RenderableType, *, gap: bool = True) -> None:
        if gap:
            self._console.print()
        if self._console.is_terminal:
            self._console.print(what)
            return
        # Rich fills its lines up with spaces, which nobody wants in a file.
        with self._console.capture() as capture:
            self._console.print(what)
        for line in capture.get().splitlines():
            self._console.out(line.rstrip())

    @contextmanager
    def progress(self, text: str, total: int) -> Generator[Callable[[int], None]]:
        """Show a bar on a terminal while the work lasts."""
        columns = (
            TextColumn("  {task.description}"),
            BarColumn(bar_width=30, complete_style="cyan", finished_style="cyan"),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        bar = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        with bar:
            task = bar.add_task(text, total=total)
            yield lambda done: bar.advance(task, done)

    def end(self, report: Report) -> None:
        """Print the verdict."""
        if report.verified:
            self._print(Text(f"Verified, in {report.seconds:.1f} s.", style="bold green"))
        for invariant in report.violated:
            self._print(Text(f"Violated: {invariant}", style="bold red"))


def _facts(facts: Mapping[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        grid.add_row(_words(name), _plain(value))
    return grid


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name, value in rows[0].items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        table.add_column(_words(name), justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_plain(value) for value in row.values()))
    return table


def _words(name: str) -> str:
    return name.replace("_", " ")


def _plain(value: Any) -> Text:
    match value:
        case bool():
            text = "yes" if value else "no"
        case None:
            text = "none"
        case int():
            text = f"{value:,}"
        case float():
            text = f"{value:,.2f}"
        case list():
            text = ", ".join(map(str, cast("list[object]", value))) or "none"
        case _:
            text = str(value)
    return Text(text)

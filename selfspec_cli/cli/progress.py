"""Progress on stderr: bars with an ETA on a terminal, a line now and then elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from selfspec_cli.cli.visible import visible

LINE_EVERY_S = 20.0  # seconds between plain lines of one stage
MIN_SHARE = 0.01  # of a stage; before that, set-up dominates and an ETA would be noise


class _Bar:
    def __init__(self, bars: Progress, task: TaskID) -> None:
        self._bars, self._task = bars, task

    def advance(self, amount: float = 1) -> None:
        """Move the bar."""
        self._bars.advance(self._task, amount)


class _Lines:
    def __init__(self, console: Console, name: str, total: float) -> None:
        self._console, self._name, self._total = console, name, total
        self._done, self._begin = 0.0, time.monotonic()
        self._said = self._begin

    def advance(self, amount: float = 1) -> None:
        """Count, and say so once in a while."""
        self._done += amount
        now = time.monotonic()
        if now - self._said < LINE_EVERY_S or self._done <= 0:
            return
        self._said = now
        share = min(1.0, self._done / self._total)
        if share < MIN_SHARE:
            self._console.print(f"{self._name}: begun")
            return
        left = (now - self._begin) * (1 - share) / share
        self._console.print(f"{self._name}: {share:.0%}, about {left:.0f} s left")


class TerminalProgress:
    """Draws stages on stderr; `quiet` keeps only what a person must know."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        self._quiet = quiet

    @contextmanager
    def stage(self, name: str, total: float) -> Iterator["_Bar | _Lines"]:
        """Open a stage of `total` units."""
        total = total or 1.0
        if not self._console.is_terminal:
            self._console.print(f"{name}: started")
            begin = time.monotonic()
            yield _Lines(self._console, name, total)
            self._console.print(f"{name}: done in {time.monotonic() - begin:.0f} s")
            return
        columns = (
            TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, console=self._console) as bars:
            yield _Bar(bars, bars.add_task(name, total=total))

    def note(self, text: str) -> None:
        """Print one line."""
        self._console.print(visible(text), markup=False)

    def notice(self, text: str) -> None:
        """Print one line, quiet or not."""
        if self._quiet:
            typer.echo(visible(text), err=True)
        else:
            self.note(text)

"""What a stage tells about its progress; the command line draws it, tests ignore it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Protocol


class Stage(Protocol):
    """One stage under way."""

    def advance(self, amount: float = 1) -> None:
        """Count work done, in the unit of the stage's total."""


class Progress(Protocol):
    """Opens stages and passes on notes."""

    def stage(self, name: str, total: float) -> AbstractContextManager[Stage]:
        """Open a stage of `total` units of work."""

    def note(self, text: str) -> None:
        """One line worth knowing."""

    def notice(self, text: str) -> None:
        """One line that must be known, said where progress is not shown too."""


class _Still:
    def advance(self, amount: float = 1) -> None:
        """Say nothing."""


class Silent:
    """Says nothing."""

    def stage(self, name: str, total: float) -> AbstractContextManager[Stage]:  # noqa: ARG002
        """Open a stage that says nothing."""
        return nullcontext(_Still())

    def note(self, text: str) -> None:
        """Drop the note."""

    def notice(self, text: str) -> None:
        """Drop the notice."""


def compile_notes(progress: Progress) -> Callable[[], None]:
    """Return what `load_model` calls before each program that it compiles: one note each."""
    numbers = count(1)

    def told() -> None:
        progress.note(f"compiling layer program {next(numbers)}; kept for later runs")

    return told

"""A decoder that stops with an error is a finding of the case at hand, not the end of the proof."""

from collections.abc import Callable, Iterable

from selfspec_cli.errors import short_of_memory

STOPPED = (RuntimeError, ValueError, IndexError)
"""What the engine raises where an invariant of its own is broken."""


def attempt(where: str, faults: list[str], work: Callable[[], Iterable[str]]) -> None:
    """Do `work` and add the faults it returns; an error of the engine is one too.

    Args:
        where: the case, for the message.
        faults: extended in place.
        work: one case.

    Raises:
        RuntimeError: there is too little memory, which says nothing about the decoder.
    """
    try:
        faults.extend(work())
    except STOPPED as error:
        if short_of_memory(error):
            raise
        faults.append(f"{where}: {stopped(error)}")


def stopped(error: BaseException) -> str:
    """One line about an error of the engine."""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"decoding stopped: {first}"

"""Stop strings on committed tokens."""

from collections.abc import Callable, Sequence
from typing import Any


def stop_check(tokenizer: Any, stops: Sequence[str]) -> Callable[[Sequence[int]], bool] | None:
    """Return a test of whether an output's text contains a stop string, or None without any.

    It is asked after every committed token, so only the tail that the last token can have
    completed is decoded: a token is at least one character, but may be part of one, hence the
    margin of four tokens (one UTF-8 character has at most four bytes).
    """
    if not stops:
        return None
    tail = max(len(stop.encode()) for stop in stops) + 4

    def stopped(output: Sequence[int]) -> bool:
        text = tokenizer.decode(list(output[-tail:]))
        return any(stop in text for stop in stops)

    return stopped

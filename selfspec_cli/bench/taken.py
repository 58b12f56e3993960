"""How much of a planned bench was done, and why not all of it."""

from dataclasses import dataclass
from typing import Any

INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """How much of what was planned got done."""

    requests: int
    """(request, temperature) pairs that every arm decoded at least once."""
    planned_requests: int
    turns: int
    """Requests alone and batches, each repeat counted."""
    planned_turns: int
    stopped: str | None
    """Why before the end; None where all was done."""
    planned_s: float | None = None
    """Seconds that warm-up and turns should have taken; None where that is not known."""
    took_s: float | None = None
    """Seconds from the beginning of the warm-up to the end of the last turn."""

    @property
    def partial(self) -> bool:
        """Whether some of it is missing."""
        return self.stopped is not None

    @property
    def sentence(self) -> str:
        """Say that results are partial; empty where they are not."""
        if not self.partial:
            return ""
        turns = (
            ""
            if self.planned_turns == self.planned_requests
            else f" ({self.turns} of {self.planned_turns} turns of requests, batches and repeats)"
        )
        return (
            f"PARTIAL, {self.stopped}: {self.requests} of {self.planned_requests} requests were "
            f"measured with every arm{turns}."
        )

    @property
    def time_sentence(self) -> str:
        """Say how long it took beside how long it should have; empty where that is not known."""
        if self.took_s is None:
            return ""
        planned = "" if self.planned_s is None else f"planned {_seconds(self.planned_s)}, "
        return f"Decoding: {planned}took {_seconds(self.took_s)}."

    def to_document(self) -> dict[str, Any]:
        """Return its part of bench.json."""
        return {
            "partial": self.partial,
            "stopped": self.stopped,
            "num_requests_measured": self.requests,
            "num_turns_measured": self.turns,
            "num_turns": self.planned_turns,
            "planned_s": self.planned_s,
            "took_s": self.took_s,
        }


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 10 else f"{value:.2g} s"

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

    def to_document(self) -> dict[str, Any]:
        """Return its part of bench.json."""
        return {
            "partial": self.partial,
            "stopped": self.stopped,
            "num_requests_measured": self.requests,
            "num_turns_measured": self.turns,
            "num_turns": self.planned_turns,
        }

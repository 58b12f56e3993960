"""Buckets: classes of requests by what is known when a request arrives. Standard library only.

Never by outcomes such as output length: a plan must be able to decide before decoding.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

OPEN = -1  # context_max of an open band inside tables, where a missing key cannot be grouped


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketKey:
    """A task, a band of context lengths and a temperature. Sorts by these, in this order."""

    task: str
    context_min: int
    """Smallest prompt in the band, tokens."""
    context_max: int | None
    """First prompt length beyond the band, tokens; None where the band is open."""
    temperature: float

    @property
    def label(self) -> str:
        """Text for people, one line, with control characters escaped."""
        task = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in self.task)
        return (
            f"{task}, {context_label(self.context_min, self.context_max)}, T={self.temperature:g}"
        )

    @property
    def sort_key(self) -> tuple[str, int, float, float]:
        """Order of buckets in every table; an open band comes after a closed one."""
        top = float("inf") if self.context_max is None else float(self.context_max)
        return (self.task, self.context_min, top, self.temperature)

    def __lt__(self, other: "BucketKey") -> bool:
        return self.sort_key < other.sort_key


def context_band(prompt_tokens: int, edges: Sequence[int]) -> tuple[int, int | None]:
    """Return the band [low, high) that a prompt falls into; high is None in the last, open one.

    Args:
        prompt_tokens: length of the prompt, template included (tokens).
        edges: ascending, the first 0 (as `CalibrateConfig.context_edges` guarantees).

    Raises:
        ValueError: a length below the first edge.
    """
    index = bisect_right(edges, prompt_tokens)
    if index == 0:
        raise ValueError(f"{prompt_tokens} tokens lie below the first edge of {tuple(edges)}")
    return edges[index - 1], edges[index] if index < len(edges) else None


def context_label(context_min: int, context_max: int | None) -> str:
    """Return a band as text, both ends included: `512-2047 tokens`, `8192+ tokens`."""
    if context_max is None:
        return f"{context_min}+ tokens"
    return f"{context_min}-{context_max - 1} tokens"


def bucket_of(
    *, task: str, prompt_tokens: int, temperature: float, edges: Sequence[int]
) -> BucketKey:
    """Return the bucket of one request at one temperature.

    Args:
        task: label of the trace, exactly as read.
        prompt_tokens: length of the prompt, template included (tokens).
        temperature: at which it is decoded.
        edges: of the context bands.

    Raises:
        ValueError: a length below the first edge.
    """
    low, high = context_band(prompt_tokens, edges)
    return BucketKey(task=task, context_min=low, context_max=high, temperature=temperature)

"""Up to which batch size a rule holds, and why not beyond. Only stdlib: a server reads it."""

from collections.abc import Mapping, Sequence
from typing import Any

from selfspec_cli.plan.decide_check import Rule


def beyond_batch(rule: Rule, sizes: Sequence[int], batch_size: float) -> str | None:
    """Return why an enabled rule does not hold at a batch size; None where it does.

    Between two measured sizes the larger one speaks: what pays there paid at the smaller one too.

    Args:
        rule: as the plan holds it.
        sizes: measured batch sizes, ascending.
        batch_size: requests decoded together, at least the smallest measured.
    """
    most = rule["max_batch"]
    speaks = size_that_speaks(sizes, batch_size)
    if speaks is not None and speaks <= most:
        return None
    failing = next((size for size in sizes if size > most), None)
    if failing is None:
        return f"batch size {batch_size:g} was not calibrated, only up to {sizes[-1]}"
    entry = _entry(rule.get("by_batch", []), failing)
    why = "it does not pay" if entry is None else entry["reason"]
    return f"pays up to batch {most}; at {failing} {why}"


def beyond_context(
    document: Mapping[str, Any], sizes: Sequence[int], batch_size: float, context_tokens: float
) -> str | None:
    """Return why costs do not cover a prompt at a batch size; larger batches may be timed at less.

    Args:
        document: the plan.
        sizes: measured batch sizes, ascending.
        batch_size: requests decoded together.
        context_tokens: length of the prompt (tokens).
    """
    if batch_size < sizes[0]:
        return f"batch size {batch_size:g} was not calibrated, the smallest measured is {sizes[0]}"
    entry = _entry(document.get("batches", []), size_that_speaks(sizes, batch_size))
    if entry is None:
        return None
    low, high = entry["prompt_tokens_min"], entry["prompt_tokens_max"]
    if low is not None and high is not None and low <= context_tokens <= high:
        return None
    measured = "nothing was" if low is None or high is None else f"{low} to {high} were"
    return (
        f"a context of {context_tokens:g} tokens was not measured at batch {entry['batch_size']}, "
        f"where {measured}"
    )


def size_that_speaks(sizes: Sequence[int], batch_size: float) -> int | None:
    """Return the smallest measured size that is not smaller; None beyond the largest."""
    return next((size for size in sizes if size >= batch_size), None)


def _entry(entries: Sequence[Mapping[str, Any]], size: int | None) -> Mapping[str, Any] | None:
    return next((entry for entry in entries if entry["batch_size"] == size), None)

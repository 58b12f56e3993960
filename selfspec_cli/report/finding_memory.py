"""Findings about memory: a device that is short of it, and speculation that takes more."""

from collections.abc import Iterator

import pandas as pd

from selfspec_cli.report.finding_types import Evidence, Finding
from selfspec_cli.report.format import number, percent, plural

FULL = 0.90  # weights and caches alone; passes, buffers and other programs need the rest
ABOVE = 1.10  # exits share weights and cache: more than this is a second copy of something
GIB = 2.0**30


def device_short(evidence: Evidence) -> Iterator[Finding]:
    """Weights and caches of the largest batch at the longest request, against the device."""
    memory = evidence.memory
    if memory is None or not evidence.plan.batch_sizes:
        return
    rows, tokens = max(evidence.plan.batch_sizes), _longest(evidence)
    needed = memory.weight_bytes + rows * tokens * memory.token_bytes
    if needed > FULL * memory.device_bytes:
        yield Finding(
            code="device_memory_short",
            symptom="The device's memory is short.",
            evidence=f"Weights and caches of {plural(rows, 'row')} of {tokens:,} tokens take at "
            f"least {number(needed / GIB, 1)} GiB, {percent(needed / memory.device_bytes)} of "
            f"{number(memory.device_bytes / GIB, 1)} GiB; {percent(FULL)} is the limit.",
            cause="The model, the batch or the context is too large for the device.",
            remedy="Give up in this order: trained adapters and other parts that only the draft "
            "needs, long drafts, then the largest batch. Exits share weights and cache with the "
            "model, so turning them off frees next to nothing.",
        )


def _longest(evidence: Evidence) -> int:
    traces = evidence.plan.traces
    known = [rule.prompt_tokens_max or 0 for rule in evidence.plan.rules]
    prompt = max([traces.prompt_tokens_max or 0, *known])
    return prompt + (traces.output_window.observed_tokens or 0)


def above_plain(evidence: Evidence) -> Iterator[Finding]:
    """Peak memory of the plan's decodes above that of plain ones, in bench.csv."""
    table = evidence.bench
    if table.empty or "peak_memory_bytes" not in table or "arm" not in table:
        return
    peaks = table.dropna(subset=["peak_memory_bytes"])
    keys = [name for name in ("task", "context_min", "temperature", "batch_size") if name in peaks]
    highest = peaks.pivot_table(
        index=keys, columns="arm", values="peak_memory_bytes", aggfunc="max"
    )
    if "ar" not in highest:
        return
    ours = highest[[name for name in ("plan", "forced") if name in highest]].max(axis=1)
    pairs = pd.DataFrame({"ours": ours, "plain": highest["ar"]}).dropna()
    pairs["times"] = pairs["ours"] / pairs["plain"]
    if len(pairs) and pairs["times"].max() > ABOVE:
        worst = pairs.sort_values("times").iloc[-1]
        yield Finding(
            code="memory_above_plain",
            symptom="Speculation takes more memory than plain decoding.",
            evidence=f"Peak {number(worst['ours'] / GIB)} GiB against "
            f"{number(worst['plain'] / GIB)} GiB plain, {number(worst['times'])} times; "
            f"{ABOVE:g} is the limit.",
            cause="A second cache or a second copy of weights: early exits need neither.",
            remedy="Let draft and verification share one cache: layers below the exit are written "
            "once.",
        )

"""A bench in words: names of arms, verdicts, and sentences that terminal and page share."""

from collections import Counter
from collections.abc import Iterator, Sequence

from selfspec_cli.analysis.intervals import RatioInterval
from selfspec_cli.analysis.latency import Quantile
from selfspec_cli.bench.slower import SlowRequest
from selfspec_cli.bench.speed import MIN_REPEATS
from selfspec_cli.bench.summary import (
    AR,
    EARLY_EXIT,
    FORCED,
    GENERATE,
    PLAN,
    PROMPT_LOOKUP,
    RIVALS,
    BenchSummary,
    Line,
)
from selfspec_cli.report.format import (
    NOT_KNOWN,
    number,
    percent,
    plural,
    ratio_with_interval,
    shown,
)

FASTER, SLOWER, SAME, NO_VERDICT = "faster", "slower", "not significant", "no verdict"
_SHORT = {
    AR: "plain", PLAN: "plan", FORCED: "forced on", PROMPT_LOOKUP: "HF lookup",
    EARLY_EXIT: "HF exit", GENERATE: "HF plain",
}  # fmt: skip
_LONG = {
    AR: "plain decoding", PLAN: "plan", FORCED: "forced on everywhere",
    PROMPT_LOOKUP: "transformers' prompt lookup", EARLY_EXIT: "transformers' early exit",
    GENERATE: "transformers' plain decoding",
}  # fmt: skip
_MAX_NAMED = 3  # buckets in a sentence


def short_name(arm: str) -> str:
    """Return an arm's name for the head of a column."""
    return _SHORT.get(arm, shown(arm, 14))


def long_name(arm: str) -> str:
    """Return an arm's name for a sentence."""
    return _LONG.get(arm, shown(arm, 30))


def verdict(found: RatioInterval | None) -> str:
    """Return what a speedup says: faster, slower, not significant, or no verdict.

    No verdict where there is no interval, or fewer effective groups than a rule may rest on. An
    arm that is no faster is called faster in 2.5 % of benches, and as often slower.
    """
    if found is None or found.low is None or found.high is None or not found.supports_verdict:
        return NO_VERDICT
    if found.low > 1.0:
        return FASTER
    return SLOWER if found.high < 1.0 else SAME


def says(line: Line) -> str:
    """Return the verdict of a line; none of whole batches, whose repeats are the same requests."""
    return NO_VERDICT if line.whole_batches else verdict(judged(line))


def unit(line: Line) -> str:
    """Return what the groups of a line's intervals are."""
    return "repeats" if line.whole_batches else "groups of requests"


def speed(found: RatioInterval | None) -> str:
    """Return `1.12x (1.05-1.19)`, or `n/a`."""
    return (
        NOT_KNOWN if found is None else ratio_with_interval(found.estimate, found.low, found.high)
    )


def judged(line: Line) -> RatioInterval:
    """Return the speedup an arm is judged by: a rival's over its own plain decoding."""
    return line.speedup if line.own_speedup is None else line.own_speedup


def seconds(found: Quantile) -> str:
    """Return a time that keeps three digits, `0.123 s` or `12.3 ms`, or `n/a`."""
    value = found.value
    if value is None:
        return NOT_KNOWN
    return f"{value:.3g} s" if value >= 0.1 else f"{1000 * value:.3g} ms"


def megabytes(value: int | None) -> str:
    """Return bytes as `1,235 MB`, or `0.42 MB` where there are few; `n/a` where not measured."""
    if value is None:
        return NOT_KNOWN
    return f"{value / 1e6:,.0f} MB" if value >= 1e7 else f"{value / 1e6:.2g} MB"


def answer(summary: BenchSummary) -> str:
    """Return the bench in one sentence: what the plan does, measured here."""
    lines = [line for arm in summary.arms if (line := summary.total(arm)) and _counts(arm)]
    told = [_told(line, len(summary.buckets)) for line in lines]
    said = "; ".join(told) if told else "Nothing was decoded beside plain decoding: no verdict"
    if summary.taken is None or not summary.taken.partial:
        return said
    of = f"{summary.taken.requests} of {summary.taken.planned_requests}"
    return f"Partial, {of} requests: {said}"


def _counts(arm: str) -> bool:
    return arm not in (AR, GENERATE)


def _told(line: Line, buckets: int) -> str:
    found, name = judged(line), long_name(line.arm)
    if found.estimate is None:
        return f"{name}: no request to compare"
    some = f" in {line.num_buckets} of {buckets} buckets" if line.num_buckets < buckets else ""
    if line.arm in RIVALS:
        return f"{name} {speed(found)} of its own generate{some}{_thin(line)}"
    if line.arm != PLAN:
        return f"{name} {speed(found)}{some}{_thin(line)}"
    over = some or f" over {plural(line.num_buckets, 'bucket')}"
    if line.num_requests and not line.num_speculating:
        return f"plan speculates nowhere{over}, so {speed(found)} of plain decoding is timing alone"
    return f"{name} {speed(found)} of plain decoding{over}{_thin(line)}"


def _thin(line: Line) -> str:
    said = says(line)
    return f" ({said})" if said in (SAME, NO_VERDICT) else ""


def facts(summary: BenchSummary) -> Iterator[str]:
    """Yield sentences for people, a partial bench first: batches, peaks, slow requests, memory."""
    if summary.taken is not None and summary.taken.partial:
        yield summary.taken.sentence
    yield from _batches(summary)
    yield from peaks(summary)
    yield from _slower(summary)
    yield from _exactness(summary)
    yield from _memory(summary)
    if summary.taken is not None and summary.taken.time_sentence:
        yield summary.taken.time_sentence
    yield (
        f"Totals are weighted by {summary.weighted_by}; intervals: 95 %, over groups of requests"
        f"{_blocks(summary)}."
    )


def peaks(summary: BenchSummary) -> Iterator[str]:
    """Yield one warning an arm whose rounds accept all or nothing in some bucket."""
    for arm in summary.arms:
        found = [line for line in summary.lines if line.arm == arm and line.two_peaks]
        if found:
            names = [line.bucket.label for line in found if line.bucket]
            more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
            yield (
                f"Two peaks of accepted lengths, all or nothing, with {short_name(arm)} in "
                f"{shown('; '.join(names[:_MAX_NAMED]), 120)}{more}: "
                "the median gains, the tail pays."
            )


def reasons(slower: Sequence[SlowRequest]) -> str:
    """Return why requests got slower, the commonest reason first: `timing noise 2, ...`."""
    counts = Counter(one.reason for one in slower)
    return ", ".join(f"{reason} {n}" for reason, n in sorted(counts.items(), key=_most))


def _most(item: tuple[str, int]) -> tuple[int, str]:
    return (-item[1], item[0])


def _batches(summary: BenchSummary) -> Iterator[str]:
    for size in summary.batch_sizes[1:]:
        told = [
            f"{short_name(line.arm)} {speed(judged(line))}"
            for line in summary.totals
            if line.batch_size == size and _counts(line.arm)
        ]
        plain = summary.total(AR, size)
        rate = number(plain.tokens_per_second, 1) if plain else NOT_KNOWN
        yield f"Batch {size}: plain {rate} tokens/s{''.join(f', {one}' for one in told)}."


def _blocks(summary: BenchSummary) -> str:
    """What the intervals of whole batches rest on; empty where there are no whole batches."""
    whole = [line for line in summary.totals if line.whole_batches and line.arm != AR]
    if not whole:
        return ""
    if all(line.speedup.low is None for line in whole):
        return f"; whole batches need {MIN_REPEATS} repeats for one (--repeats)"
    return "; of whole batches over repeats of the same requests, timing alone and no verdict"


def _slower(summary: BenchSummary) -> Iterator[str]:
    for arm in summary.arms:
        line = summary.total(arm)
        if line is None or not line.num_compared or arm in RIVALS:
            continue
        share = percent(len(line.slower) / line.num_compared)
        why = f": {reasons(line.slower)}" if line.slower else ""
        yield (
            f"Slower than 1.05 x their plain time with {short_name(arm)}: {len(line.slower)} of "
            f"{line.num_compared} requests ({share}){why}."
        )


def _exactness(summary: BenchSummary) -> Iterator[str]:
    ours = [line for line in summary.totals if line.arm not in RIVALS and line.num_checked]
    if not ours:
        yield "No output was compared with plain decoding: exactness is not shown here."
        return
    checked, differ = sum(n.num_checked for n in ours), sum(n.num_differ for n in ours)
    if differ:
        yield (
            f"Greedy output DIFFERS from plain decoding in {differ} of {checked} compared; "
            "bench.json tells numeric ties apart."
        )
    else:
        yield f"Greedy output equals plain decoding ({checked} compared)."


def _memory(summary: BenchSummary) -> Iterator[str]:
    told = [
        f"{short_name(line.arm)} {megabytes(line.peak_memory_bytes)}"
        for arm in summary.arms
        if (line := summary.total(arm)) and line.peak_memory_bytes is not None
    ]
    if told:
        yield f"Peak memory: {', '.join(told)}."

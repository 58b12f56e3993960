"""A bench's summary as a document for programs: all numbers, undefined ones missing."""

from typing import Any

from selfspec_cli.analysis.intervals import RatioInterval
from selfspec_cli.bench import words
from selfspec_cli.bench.latency_table import Latencies, Quantiles
from selfspec_cli.bench.summary import AR, GENERATE, BenchSummary, Line
from selfspec_cli.buckets import BucketKey
from selfspec_cli.storage.documents import plain_data


def summary_document(summary: BenchSummary) -> dict[str, Any]:
    """Return the part of bench.json and of `--json` that the tables show; times in seconds.

    Args:
        summary: of `summary.summarise`.
    """
    document = {
        "answer": words.answer(summary),
        "facts": list(words.facts(summary)),
        "weighted_by": summary.weighted_by,
        "totals": [_line(line) for line in summary.totals],
        "lines": [_line(line) for line in summary.lines],
    }
    plain = plain_data(document)
    return plain if isinstance(plain, dict) else {}


def _line(line: Line) -> dict[str, Any]:
    judged = line.arm not in (AR, GENERATE)
    return {
        "bucket": _bucket(line.bucket),
        "batch_size": line.batch_size,
        "arm": line.arm,
        "exit_layer": line.exit_layer,
        "draft_length": line.draft_length,
        "num_buckets": line.num_buckets,
        "num_requests": line.num_requests,
        "num_speculating": line.num_speculating,
        "num_tokens": line.num_tokens,
        "tokens_per_second": line.tokens_per_second,
        "speedup": _ratio(line.speedup),
        "own_speedup": None if line.own_speedup is None else _ratio(line.own_speedup),
        "verdict": words.says(line) if judged else None,
        "interval_over": words.unit(line),
        **_times(line.latencies),
        "cost_per_1000_tokens": line.cost_per_1000_tokens,
        "peak_memory_bytes": line.peak_memory_bytes,
        "accepted_lengths": _lengths(line),
        "equality": {"num_checked": line.num_checked, "num_differ": line.num_differ},
        "slower": _slower(line) if judged else None,
    }


def _bucket(bucket: BucketKey | None) -> dict[str, Any] | None:
    if bucket is None:
        return None
    return {
        "task": bucket.task,
        "context_min": bucket.context_min,
        "context_max": bucket.context_max,
        "temperature": bucket.temperature,
    }


def _ratio(found: RatioInterval) -> dict[str, Any]:
    return {
        "estimate": found.estimate,
        "low": found.low,
        "high": found.high,
        "num_groups": found.num_groups,
        "effective_groups": found.effective_groups,
    }


def _times(found: Latencies) -> dict[str, Any]:
    return {
        "request_s": _quantiles(found.request),
        "first_token_s": _quantiles(found.first_token),
        "token_s": _quantiles(found.token),
        "longest_gap_s": _quantiles(found.longest_gap),
    }


def _quantiles(three: Quantiles) -> dict[str, Any]:
    values = {f"p{round(100 * one.level)}": one.value for one in three}
    return {**values, "num_values": three[0].num_values}


def _lengths(line: Line) -> dict[str, Any] | None:
    if line.lengths is None:
        return None
    return {"share": [float(one) for one in line.lengths.share], "two_peaks": line.two_peaks}


def _slower(line: Line) -> dict[str, Any]:
    """Requests by name in buckets only: a total would repeat them."""
    counts: dict[str, Any] = {"num_compared": line.num_compared, "num_slower": len(line.slower)}
    if line.bucket is None:
        return counts
    names = ("request_id", "ratio", "reason", "evidence")
    return counts | {
        "requests": [{name: getattr(one, name) for name in names} for one in line.slower]
    }

"""bench_summary.csv and the list of slow requests, safe to open in a spreadsheet."""

from collections import Counter
from typing import Any

import pandas as pd

from selfspec_cli.bench import words
from selfspec_cli.bench.figures import bucket_columns
from selfspec_cli.bench.latency_table import Latencies
from selfspec_cli.bench.slower import (
    FEW_ACCEPTED,
    NO_GAIN,
    NOISE,
    PREFILL,
    SHORT,
    UNEXPLAINED,
    SlowRequest,
)
from selfspec_cli.bench.summary import AR, GENERATE, BenchSummary, Line
from selfspec_cli.report.sheets import disarmed

_REASONS = (FEW_ACCEPTED, SHORT, PREFILL, NO_GAIN, NOISE, UNEXPLAINED)
_COUNTS = ("context_min", "context_max", "exit_layer", "draft_length", "peak_memory_bytes")
SLOW_COLUMNS = (
    "task", "context_min", "context_max", "temperature", "batch_size", "arm", "request_id",
    "ratio", "reason", "evidence",
)  # fmt: skip


def summary_sheet(summary: BenchSummary) -> pd.DataFrame:
    """Return bench_summary.csv: totals first, then one row a (bucket, batch size, arm)."""
    table = pd.DataFrame([_row(line) for line in (*summary.totals, *summary.lines)])
    counts = {name: "Int64" for name in _COUNTS if name in table}
    return disarmed(table.astype(counts))


def slow_sheet(summary: BenchSummary) -> pd.DataFrame:
    """Return one row a slow request of an arm, the slowest of each bucket first."""
    rows = [_slow(line, one) for line in summary.lines for one in line.slower]
    table = pd.DataFrame(rows, columns=list(SLOW_COLUMNS))
    return disarmed(table.astype({"context_max": "Int64"}))


def _row(line: Line) -> dict[str, Any]:
    own = line.own_speedup
    return {
        "scope": "total" if line.bucket is None else "bucket",
        **bucket_columns(line.bucket),
        "batch_size": line.batch_size,
        "arm": line.arm,
        "exit_layer": line.exit_layer,
        "draft_length": line.draft_length,
        "num_buckets": line.num_buckets,
        "num_requests": line.num_requests,
        "num_speculating": line.num_speculating,
        "num_tokens": line.num_tokens,
        "tokens_per_second": line.tokens_per_second,
        "speedup": line.speedup.estimate,
        "speedup_low": line.speedup.low,
        "speedup_high": line.speedup.high,
        "speedup_own": own.estimate if own else None,
        "speedup_own_low": own.low if own else None,
        "speedup_own_high": own.high if own else None,
        "num_groups": words.judged(line).num_groups,
        "effective_groups": words.judged(line).effective_groups,
        "interval_over": words.unit(line),
        "verdict": None if line.arm in (AR, GENERATE) else words.says(line),
        **_times(line.latencies),
        "cost_per_1000_tokens": line.cost_per_1000_tokens,
        "two_peaks": line.two_peaks if line.lengths else None,
        "peak_memory_bytes": line.peak_memory_bytes,
        "num_checked": line.num_checked,
        "num_differ": line.num_differ,
        "num_compared": line.num_compared,
        **_slow_counts(line),
    }


def _times(found: Latencies) -> dict[str, Any]:
    names = {
        "request": found.request,
        "first_token": found.first_token,
        "token": found.token,
        "longest_gap": found.longest_gap,
    }
    return {
        f"{name}_p{round(100 * one.level)}_s": one.value
        for name, three in names.items()
        for one in three
    }


def _slow_counts(line: Line) -> dict[str, Any]:
    if not line.num_compared:
        return {"num_slower": None} | dict.fromkeys(map(_column, _REASONS))
    counts = Counter(one.reason for one in line.slower)
    return {"num_slower": len(line.slower)} | {_column(r): counts[r] for r in _REASONS}


def _column(reason: str) -> str:
    return f"slower_{reason.replace(' ', '_')}"


def _slow(line: Line, one: SlowRequest) -> dict[str, Any]:
    return {
        **bucket_columns(line.bucket),
        "batch_size": line.batch_size,
        "arm": line.arm,
        "request_id": one.request_id,
        "ratio": one.ratio,
        "reason": one.reason,
        "evidence": one.evidence,
    }

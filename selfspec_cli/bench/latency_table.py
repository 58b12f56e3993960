"""Times that users feel, as quantiles over requests, each with the requests it rests on."""

from dataclasses import dataclass

import pandas as pd

from selfspec_cli.analysis.latency import Quantile, reported_quantile

LEVELS = (0.50, 0.95, 0.99)
Quantiles = tuple[Quantile, Quantile, Quantile]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """P50, P95 and P99 over requests (s); a value is missing below its smallest n."""

    request: Quantiles
    """Whole request, prefill included."""
    first_token: Quantiles
    token: Quantiles
    """Mean time between the tokens of a request, of requests with at least two."""
    longest_gap: Quantiles
    """Longest wait of a request between tokens: what a reader sees stall."""


def latencies(requests: pd.DataFrame) -> Latencies:
    """Return the quantiles of one arm.

    Args:
        requests: of `paired.averaged`; missing times are left out.
    """
    decoded = requests.loc[requests["committed"] > 0]
    return Latencies(
        request=_quantiles(requests["request_seconds"]),
        first_token=_quantiles(requests["prefill_seconds"]),
        token=_quantiles(decoded["seconds"] / decoded["committed"]),
        longest_gap=_quantiles(decoded["gap_max_s"]),
    )


def _quantiles(column: pd.Series) -> Quantiles:
    values = [float(value) for value in column.dropna()]
    p50, p95, p99 = (reported_quantile(values, level) for level in LEVELS)
    return p50, p95, p99

"""Conditions that argue against speculation whatever the speedup says, each with its number."""

import pandas as pd

from selfspec_cli.plan import text
from selfspec_cli.plan.decide import MIN_OUTPUT_TOKENS
from selfspec_cli.plan.document import Guard

SHORT_SHARE = 0.5  # more than this share of short outputs disables a bucket
MAX_FLOOR_RATIO = 2.0  # a plain step above this many bandwidth floors does not wait for memory


def guards_of(
    paths: pd.DataFrame,
    request_speedup: float | None,
    threshold: float,
    floor_ratio: float | None,
) -> list[Guard]:
    """Return the guards that fire.

    Args:
        paths: path table of the bucket.
        request_speedup: speedup with prefill on both sides; None: not known.
        threshold: speedup that the margin asks for.
        floor_ratio: plain step ÷ bandwidth floor; None: not known.
    """
    found = [
        _short_outputs(paths),
        _request_speedup(request_speedup, threshold),
        _not_bandwidth_bound(floor_ratio),
    ]
    return [guard for guard in found if guard is not None]


def disabling(guard: Guard) -> bool:
    """Whether a guard switches its rule off; the others only warn.

    Prefill is the same on both sides, so it dilutes a gain but cannot turn it into a loss: a
    request speedup below the margin is a warning, one below 1 means that decoding loses. A step far
    above the bandwidth floor says that there is less room, but the speedup was measured all the
    same.
    """
    if guard.name == "request_speedup":
        return guard.value is not None and guard.value < 1.0
    return guard.name == "short_outputs"


def _short_outputs(paths: pd.DataFrame) -> Guard | None:
    allowed = paths.drop_duplicates("request_id")["allowed_tokens"]
    if allowed.empty:
        return None
    share = float((allowed < MIN_OUTPUT_TOKENS).mean())
    if share <= SHORT_SHARE:
        return None
    told = f"{text.percent(share)} of requests allow fewer than {MIN_OUTPUT_TOKENS} output tokens"
    return Guard(name="short_outputs", value=share, limit=SHORT_SHARE, text=told)


def _request_speedup(value: float | None, threshold: float) -> Guard | None:
    if value is None or value >= threshold:
        return None
    told = f"with prefill the whole request is {value:.2f} times as fast, below {threshold:g}"
    return Guard(name="request_speedup", value=value, limit=threshold, text=told)


def _not_bandwidth_bound(ratio: float | None) -> Guard | None:
    if ratio is None or ratio <= MAX_FLOOR_RATIO:
        return None
    told = (
        f"a plain step takes {ratio:.1f} times the bandwidth floor: decoding does not wait for "
        "memory, which leaves speculation less room"
    )
    return Guard(name="not_bandwidth_bound", value=ratio, limit=MAX_FLOOR_RATIO, text=told)

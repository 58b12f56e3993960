"""What the whole plan brings to this log, and the best single setting for all of it."""

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from selfspec_cli.analysis.intervals import ratio_interval
from selfspec_cli.plan import text
from selfspec_cli.plan.document import GlobalCell, Interval, Rule, Total
from selfspec_cli.plan.judgement import Judge
from selfspec_cli.plan.pools import Pools
from selfspec_cli.plan.rules import Basis, cell_of, key_of_rule
from selfspec_cli.plan.traffic import in_bucket

Floats = npt.NDArray[np.float64]
Verdict = Literal["enable", "enable some", "do not enable", "no verdict"]
UNCHANGED = Interval(estimate=0.0, low=0.0, high=0.0)


def total_of(rules: Sequence[Rule], basis: Basis) -> Total:
    """Return the traffic-weighted effect of a plan: each request of the log weighs once.

    An enabled bucket gains what its evidence says, spread over its requests like the seconds of
    its cell; so the total is not flattered by cells that were chosen on the same requests.

    Args:
        rules: one a bucket.
        basis: what they were made from.
    """
    enabled = [rule for rule in rules if rule.enabled]
    change = _change(enabled, basis) if enabled else UNCHANGED
    share = sum(rule.token_share or 0.0 for rule in enabled)
    return Total(
        decode_time_change=change,
        num_buckets=len(rules),
        num_enabled=len(enabled),
        enabled_token_share=share if rules else None,
        oracle_decode_time_change=_oracle(basis),
        sentence=_sentence(change, len(enabled), len(rules), share),
    )


def _change(enabled: Sequence[Rule], basis: Basis) -> Interval:
    """Relative change of decode time with a jackknife interval over groups."""
    paths = basis.paths.loc[basis.paths["priced"]]
    planned = (paths["weight"] * paths["ar_seconds"]).rename("planned")
    plain = planned.copy()
    spread: list[tuple[float, float]] = []
    for rule in enabled:
        mine = in_bucket(paths, key_of_rule(rule))
        seconds = mine["weight"] * _seconds(rule, mine, basis)
        planned.loc[mine.index] = seconds
        spread.append((float(seconds.sum()), _cost_log_sd(rule, basis)))
    whole = float(planned.sum())
    if not whole > 0:
        return UNCHANGED
    # One machine timed all cells: their errors are taken as going together, the safe side.
    log_sd = sum(part / whole * sd for part, sd in spread)
    if not np.isfinite(log_sd):
        log_sd = 0.0
    ratio = ratio_interval(planned, plain, paths["group_id"].to_numpy(), extra_log_sd=log_sd)
    return Interval(
        estimate=_less_one(ratio.estimate), low=_less_one(ratio.low), high=_less_one(ratio.high)
    )


def _seconds(rule: Rule, mine: pd.DataFrame, basis: Basis) -> pd.Series:
    """Seconds of each path of a bucket under its rule, scaled to the rule's evidence."""
    cell = cell_of(rule)
    if cell is None:
        return mine["ar_seconds"]
    walk = basis.inputs.walk
    rows = walk.loc[(walk["exit_layer"] == cell[0]) & (walk["draft_length"] == cell[1])]
    seconds = mine["path_id"].map(rows.set_index("path_id")["seconds"]).astype(float)
    own, evidence = rule.in_sample_speedup, rule.speedup.estimate
    return seconds if own is None or evidence is None else seconds * (own / evidence)


def _cost_log_sd(rule: Rule, basis: Basis) -> float:
    cell, pool = cell_of(rule), basis.pools.own.get(key_of_rule(rule))
    return 0.0 if cell is None or pool is None else pool.cells[cell].cost_log_sd


def _oracle(basis: Basis) -> float | None:
    """Change with every request at its own best cell, or off: a ceiling."""
    walk = basis.inputs.walk
    rows = walk.loc[walk["exit_layer"].isin(basis.inputs.exit_layers)]
    best = rows.groupby("path_id")["seconds"].min()
    paths = basis.paths.loc[basis.paths["priced"]]
    plain = paths["ar_seconds"]
    least = np.minimum(plain, paths["path_id"].map(best).astype(float))
    whole = float((paths["weight"] * plain).sum())
    return float((paths["weight"] * least).sum()) / whole - 1.0 if whole > 0 else None


def _less_one(value: float | None) -> float | None:
    return None if value is None else value - 1.0


def _sentence(change: Interval, num_enabled: int, num_rules: int, share: float) -> str:
    buckets = text.count(num_rules, "bucket")
    if num_enabled == 0:
        return f"decode time unchanged (0 %) on this log: speculation is off everywhere ({buckets})"
    bounds = ""
    if change.low is not None and change.high is not None:
        # Printed as savings, so the larger one is the lower bound of the change.
        small, large = -100.0 * change.high, -100.0 * change.low
        bounds = f" ({small:.0f}..{large:.0f})"
    return (
        f"decode time {_signed(change.estimate)}{bounds} on this log; "
        f"{num_enabled} of {buckets}, {text.percent(share)} of tokens"
    )


def _signed(change: float | None) -> str:
    if change is None:
        return text.MISSING
    digits = 1 if abs(change) < 0.01 else 0
    return f"{100.0 * change:+.{digits}f} %"


def verdict_of(rules: Iterable[Rule]) -> Verdict:
    """Return the plan's verdict in one of four phrases."""
    listed = list(rules)
    if all(rule.evidence == "none" for rule in listed):
        return "no verdict"
    if all(rule.enabled for rule in listed):
        return "enable"
    return "enable some" if any(rule.enabled for rule in listed) else "do not enable"


def global_cells(pools: Pools, judge: Judge) -> list[GlobalCell]:
    """Return the best single (L, k) for all traffic, one a temperature."""
    found = []
    for temperature, pool in sorted(pools.all.items()):
        cell = pool.evidence.cell
        if cell is None or not pool.drafts:
            continue
        found.append(
            GlobalCell(
                temperature=temperature,
                exit_layer=cell[0],
                draft_length=cell[1],
                speedup=text.to_interval(pool.evidence.interval),
                enabled_alone=judge.judge(pool).status == "pass",
            )
        )
    return found

"""Which part of a round takes the gain: the draft step, verification, or what surrounds them.

Parts are timed alone, c in long chains, and o is what whole rounds take beyond them. A delay of
every draft step that only short chains have is therefore measured within o. It is told apart by its
growth: what a round waits once is the same at every draft length, what a draft step waits grows
with the number of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from selfspec_cli.plan.document import Rule
from selfspec_cli.report.finding_costs import costly_rules
from selfspec_cli.report.finding_types import Evidence, Finding
from selfspec_cli.report.format import number
from selfspec_cli.report.rule_rows import rule_label

MIN_EXCESS = 0.10  # plain steps a round; less takes no gain away that is worth a name
MIN_GROWTH = 0.02  # plain steps a drafted token; less is not worth a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shares:
    """A round in plain steps, at a rule's cell over all traffic of its temperature."""

    rule: Rule
    draft: float
    """c."""
    share: float
    """L/N."""
    verify: float
    """v."""
    overhead: float
    """o."""
    growth: float
    """What o grows by with each drafted token, at most all of it; 0 where that is not known."""

    @property
    def excess(self) -> dict[str, float]:
        """What each part takes beyond the formula's c = L/N, v = 1, o = 0 (plain steps)."""
        k = self.rule.draft.length or 0
        return {
            "draft": k * (self.draft - self.share + self.growth),
            "verify": self.verify - 1,
            "overhead": self.overhead - k * self.growth,
        }


def dearest_part(evidence: Evidence) -> Iterator[Finding]:
    """The part with the largest excess, at the largest bucket whose gain the costs take."""
    for rule in costly_rules(evidence):
        shares = _shares(evidence, rule)
        if shares is None:
            continue
        part = max(shares.excess, key=lambda name: shares.excess[name])
        if shares.excess[part] > MIN_EXCESS:
            yield _FINDINGS[part](shares)
            return


def _shares(evidence: Evidence, rule: Rule) -> _Shares | None:
    grid, layer = evidence.grid, rule.drafter.exit_layer
    if grid.empty or layer is None:
        return None
    of_layer = grid.loc[
        (grid["temperature"] == rule.temperature_min) & (grid["exit_layer"] == layer)
    ].dropna(subset=["draft_cost_ratio", "verify_cost_ratio", "overhead_ratio"])
    at = of_layer.loc[of_layer["draft_length"] == rule.draft.length]
    if at.empty:
        return None
    row = at.sort_values("batch_size").iloc[0]
    same = of_layer.loc[of_layer["batch_size"] == row["batch_size"]]
    return _Shares(
        rule=rule,
        draft=float(row["draft_cost_ratio"]),
        share=layer / evidence.plan.model.num_layers,
        verify=float(row["verify_cost_ratio"]),
        overhead=float(row["overhead_ratio"]),
        growth=_growth(same, float(row["overhead_ratio"]) / float(row["draft_length"])),
    )


def _growth(same: pd.DataFrame, most: float) -> float:
    """Slope of o over the draft lengths of one layer, least squares, within [0, most]."""
    lengths = same["draft_length"].to_numpy(dtype=np.float64)
    if len(np.unique(lengths)) < 2:
        return 0.0
    slope = np.polyfit(lengths, same["overhead_ratio"].to_numpy(dtype=np.float64), 1)[0]
    return float(np.clip(slope, 0.0, max(most, 0.0)))


def _where(shares: _Shares) -> str:
    excess = shares.excess
    return (
        f"{rule_label(shares.rule)}, L={shares.rule.drafter.exit_layer}, "
        f"k={shares.rule.draft.length}: beyond the formula a round takes "
        f"{number(excess['draft'])} plain steps in drafting, {number(excess['verify'])} in "
        f"verifying, {number(excess['overhead'])} around them"
    )


def _waits(shares: _Shares) -> str:
    if shares.growth < MIN_GROWTH:
        return ""
    return (
        f"; in whole rounds each drafted token takes {number(shares.growth)} plain steps more than "
        "in the chains that c was timed in"
    )


def _draft(shares: _Shares) -> Finding:
    return Finding(
        code="draft_step_slow",
        symptom="A draft step costs more than its share of the layers.",
        evidence=f"c = {number(shares.draft)} where L/N = {number(shares.share)}"
        f"{_waits(shares)}. {_where(shares)}.",
        cause="The head is a large part of a short chain, or short chains run with per-call "
        "overhead.",
        remedy="A smaller head or vocabulary for the draft, compiled or captured draft steps, "
        "fewer but longer chains (larger L, smaller k).",
    )


def _verify(shares: _Shares) -> Finding:
    return Finding(
        code="verify_slow",
        symptom="Verification costs more than one plain step.",
        evidence=f"v = {number(shares.verify)} where the formula has 1. {_where(shares)}.",
        cause="Several positions at once are bound by computation on this machine, or use slower "
        "kernels than one.",
        remedy="Shorter drafts, better kernels for a few positions, or a machine with more "
        "arithmetic to spare.",
    )


def _overhead(shares: _Shares) -> Finding:
    return Finding(
        code="overhead_share",
        symptom="Rounds spend their gain outside the model.",
        evidence=f"o = {number(shares.overhead)} plain steps a round are neither drafting nor "
        f"verifying, whatever the draft length. {_where(shares)}.",
        cause="Acceptance tests, copies between host and device, or bookkeeping of every round.",
        remedy="Keep tokens and verdicts on the device, prepare masks once, and profile one round.",
    )


_FINDINGS = {"draft": _draft, "verify": _verify, "overhead": _overhead}

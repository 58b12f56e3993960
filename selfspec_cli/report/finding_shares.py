"""Which part of a round takes the gain: the draft step, verification, or what surrounds them."""

from collections.abc import Iterator
from dataclasses import dataclass

from selfspec_cli.plan.document import Rule
from selfspec_cli.report.finding_costs import costly_rules
from selfspec_cli.report.finding_types import Evidence, Finding
from selfspec_cli.report.format import number
from selfspec_cli.report.rule_rows import rule_label

MIN_EXCESS = 0.10  # plain steps a round; less takes no gain away that is worth a name


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

    @property
    def excess(self) -> dict[str, float]:
        """What each part takes beyond the formula's c = L/N, v = 1, o = 0 (plain steps)."""
        k = self.rule.draft.length or 0
        return {
            "draft": k * (self.draft - self.share),
            "verify": self.verify - 1,
            "overhead": self.overhead,
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
    at = grid.loc[
        (grid["temperature"] == rule.temperature_min)
        & (grid["exit_layer"] == layer)
        & (grid["draft_length"] == rule.draft.length)
    ].dropna(subset=["draft_cost_ratio", "verify_cost_ratio", "overhead_ratio"])
    if at.empty:
        return None
    row = at.sort_values("batch_size").iloc[0]
    return _Shares(
        rule=rule,
        draft=float(row["draft_cost_ratio"]),
        share=layer / evidence.plan.model.num_layers,
        verify=float(row["verify_cost_ratio"]),
        overhead=float(row["overhead_ratio"]),
    )


def _where(shares: _Shares) -> str:
    excess = shares.excess
    return (
        f"{rule_label(shares.rule)}, L={shares.rule.drafter.exit_layer}, "
        f"k={shares.rule.draft.length}: beyond the formula a round takes "
        f"{number(excess['draft'])} plain steps in drafting, {number(excess['verify'])} in "
        f"verifying, {number(excess['overhead'])} around them"
    )


def _draft(shares: _Shares) -> Finding:
    return Finding(
        code="draft_step_slow",
        symptom="A draft step costs more than its share of the layers.",
        evidence=f"c = {number(shares.draft)} where L/N = {number(shares.share)}. "
        f"{_where(shares)}.",
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
        f"verifying. {_where(shares)}.",
        cause="Acceptance tests, copies between host and device, or bookkeeping of every round.",
        remedy="Keep tokens and verdicts on the device, prepare masks once, and profile one round.",
    )


_FINDINGS = {"draft": _draft, "verify": _verify, "overhead": _overhead}

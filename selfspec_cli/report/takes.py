"""What it would take where the answer is no: acceptance needed, acceptance had, gain if it rose."""

from dataclasses import dataclass

from selfspec_cli.plan.document import GainAt, PlanDocument, Rule
from selfspec_cli.report.rule_rows import by_traffic, rule_label

MAX_TAKES = 8  # buckets shown, the largest by decode time; rules.csv has all


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """One bucket that is off."""

    label: str
    exit_layer: int | None
    draft_length: int | None
    observed: float | None
    """Tested acceptance at the best cell, in [0, 1]."""
    needed: float | None
    """Break-even acceptance there; None where even 1 does not pay."""
    gains: tuple[GainAt, ...]
    """Best speedup if acceptance rose to 0.6, 0.7, 0.8."""

    def gain_at(self, acceptance: float) -> GainAt | None:
        """Return the best speedup at an acceptance; None where the plan does not give it."""
        near = [gain for gain in self.gains if abs(gain.acceptance - acceptance) < 1e-9]
        return near[0] if near else None

    @property
    def gap(self) -> float | None:
        """Acceptance still missing; negative where there is more than needed."""
        if self.needed is None or self.observed is None:
            return None
        return self.needed - self.observed


def takes(plan: PlanDocument) -> tuple[Take, ...]:
    """Return what the largest disabled buckets would need, the largest first."""
    off = [rule for rule in by_traffic(plan.rules) if not rule.enabled and _has_numbers(rule)]
    return tuple(_take(rule) for rule in off[:MAX_TAKES])


def _has_numbers(rule: Rule) -> bool:
    return bool(rule.gain_at) or rule.break_even_acceptance is not None


def _take(rule: Rule) -> Take:
    return Take(
        label=rule_label(rule),
        exit_layer=rule.drafter.exit_layer,
        draft_length=rule.draft.length,
        observed=rule.acceptance_rate_tested,
        needed=rule.break_even_acceptance,
        gains=tuple(rule.gain_at),
    )

"""The rules of a plan as rows for people: label, state, evidence in words, a bar to look at."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from selfspec_cli.buckets import context_label
from selfspec_cli.plan.document import Rule
from selfspec_cli.report.format import known, shown

State = Literal["on", "off", "unknown"]
Scale = tuple[float, float]
_WIDEST: Scale = (0.4, 2.5)  # speedups a bar can show; beyond them it ends at the edge
_NARROWEST: Scale = (0.9, 1.1)
_EVIDENCE = {"own": "own", "parent": "same task", "all": "all tasks", "none": "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Places of an interval on a line, percent of its width."""

    low: float
    estimate: float
    high: float
    one: float
    """Where a speedup of 1 lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRow:
    """One rule as shown."""

    rule: Rule
    label: str
    """Task, context band and temperature on one line, unprintable characters escaped."""
    task: str
    context: str
    temperature: str
    state: State
    """unknown: off for want of evidence, not because it does not pay."""
    evidence: str
    bar: Bar | None
    """None where the rule has no interval."""


def rule_rows(rules: Sequence[Rule]) -> tuple[RuleRow, ...]:
    """Return the rules as rows, the largest share of decode time first."""
    scale = _scale(rules)
    return tuple(_row(rule, scale) for rule in by_traffic(rules))


def by_traffic(rules: Iterable[Rule]) -> list[Rule]:
    """Sort rules by their share of plain decode time, then tokens, then bucket."""
    return sorted(
        rules,
        key=lambda rule: (
            -(rule.time_share or 0.0),
            -rule.num_tokens,
            rule.task,
            rule.context_min,
            rule.temperature_min,
        ),
    )


def rule_label(rule: Rule) -> str:
    """Return the bucket of a rule on one line."""
    task, context, temperature = _parts(rule)
    return f"{task}, {context}, {temperature}"


def state_of(rule: Rule) -> State:
    """Return whether a rule is on, off, or off only for want of evidence."""
    if rule.enabled:
        return "on"
    unknown = rule.evidence == "none" or rule.speedup.estimate is None
    return "unknown" if unknown else "off"


def _row(rule: Rule, scale: Scale) -> RuleRow:
    task, context, temperature = _parts(rule)
    return RuleRow(
        rule=rule,
        label=rule_label(rule),
        task=task,
        context=context,
        temperature=temperature,
        state=state_of(rule),
        evidence=_EVIDENCE[rule.evidence],
        bar=_bar(rule, scale),
    )


def _parts(rule: Rule) -> tuple[str, str, str]:
    low, high = rule.temperature_min, rule.temperature_max
    degrees = f"T={low:g}" if low == high else f"T={low:g} to below {high:g}"
    return shown(rule.task), context_label(rule.context_min, rule.context_max), degrees


def _scale(rules: Sequence[Rule]) -> Scale:
    """One scale for all bars: as wide as the intervals, within what still can be read."""
    ends = [_ends(rule) for rule in rules if rule.speedup.estimate is not None]
    low = min([_NARROWEST[0], *(low for low, _ in ends)])
    high = max([_NARROWEST[1], *(high for _, high in ends)])
    return max(low, _WIDEST[0]), min(high, _WIDEST[1])


def _ends(rule: Rule) -> tuple[float, float]:
    found, estimate = rule.speedup, rule.speedup.estimate or 1.0
    low = estimate if found.low is None else found.low
    return low, estimate if found.high is None else found.high


def _bar(rule: Rule, scale: Scale) -> Bar | None:
    estimate = rule.speedup.estimate
    if estimate is None or not known(estimate):
        return None
    places = [_place(speedup, scale) for speedup in (*_ends(rule), estimate, 1.0)]
    return Bar(low=places[0], high=places[1], estimate=places[2], one=places[3])


def _place(speedup: float, scale: Scale) -> float:
    """Logarithmic, so that twice as fast is as far from 1 as half as fast."""
    low, high = (math.log(end) for end in scale)
    at = (math.log(max(speedup, 1e-9)) - low) / (high - low)
    return round(100 * min(max(at, 0.0), 1.0), 2)

"""Numbers of a plan as text for people; one place, so that all sentences agree."""

from selfspec_cli.analysis.evidence import Cell
from selfspec_cli.analysis.intervals import RatioInterval
from selfspec_cli.buckets import context_label
from selfspec_cli.plan.document import Interval, Rule

MISSING = "n/a"


def number(value: float | None, digits: int = 2) -> str:
    """Return a number with a fixed count of decimals, or `n/a`."""
    return MISSING if value is None else f"{value:.{digits}f}"


def percent(share: float | None) -> str:
    """Return a fraction as a percentage: whole, or with one decimal below 1 %."""
    if share is None:
        return MISSING
    digits = 1 if 0.0 < abs(share) < 0.01 else 0
    return f"{100.0 * share:.{digits}f} %"


def interval(value: Interval) -> str:
    """Return `1.21 (1.12-1.31)`, without bounds where there are none."""
    if value.estimate is None or value.low is None or value.high is None:
        return number(value.estimate)
    return f"{value.estimate:.2f} ({value.low:.2f}-{value.high:.2f})"


def times(value: Interval) -> str:
    """Return `1.21x (1.12-1.31)`, without bounds where there are none."""
    if value.estimate is None or value.low is None or value.high is None:
        return MISSING if value.estimate is None else f"{value.estimate:.2f}x"
    return f"{value.estimate:.2f}x ({value.low:.2f}-{value.high:.2f})"


def cell(value: Cell) -> str:
    """Return `L=12, k=3`."""
    return f"L={value[0]}, k={value[1]}"


def band(rule: Rule) -> str:
    """Return a rule's context band in tokens, `512-2047` or `8192+`."""
    return context_label(rule.context_min, rule.context_max).removesuffix(" tokens")


def temperature(rule: Rule) -> str:
    """Return a rule's temperature, `0.7`, or its range, `0-0.7` (the end excluded)."""
    low, high = rule.temperature_min, rule.temperature_max
    return f"{low:g}" if low == high else f"{low:g}-{high:g}"


def count(amount: int, what: str) -> str:
    """Return `1 request`, `7 requests`."""
    return f"{amount} {what}" if amount == 1 else f"{amount} {what}s"


def to_interval(ratio: RatioInterval) -> Interval:
    """Return a ratio's estimate and bounds as the document holds them."""
    return Interval(estimate=ratio.estimate, low=ratio.low, high=ratio.high)

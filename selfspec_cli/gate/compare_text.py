"""A comparison in words, and as one strict JSON document."""

from typing import Any

from selfspec_cli.analysis.intervals import MIN_EFFECTIVE_GROUPS
from selfspec_cli.gate.comparable import UNSTEADY
from selfspec_cli.gate.compare import Comparison, Row
from selfspec_cli.gate.pairing import NEGLIGIBLE, Paired
from selfspec_cli.report.format import NOT_KNOWN
from selfspec_cli.storage.documents import plain_data

SCHEMA_VERSION = 1
_MOST_DIGITS = 4
_FEW = "too few requests"
_BETTER = {"ratio": ("faster", "slower"), "difference": ("higher", "lower")}


def words(found: Paired | None) -> str:
    """Return a speedup ratio or an acceptance difference as a person would say it.

    Significant is what the 95 % interval of this number alone excludes; below 8 effective groups
    nothing is.
    """
    return _words(found, *_BETTER["ratio" if found is None else found.kind])


def brief(told: str) -> str:
    """Return words for a narrow column whose head says what the interval is."""
    if told.startswith(_FEW):
        return _FEW
    head, comma, ends = told.partition(", 95 % ")
    return f"{head} ({ends})" if comma else told


def longer(found: Paired | None) -> str:
    """Return a ratio of times as a person would say it: above 1 is longer."""
    return _words(found, "longer", "shorter")


def timing_words(comparison: Comparison, found: Paired | None) -> str:
    """Return `words` of a number that rests on timings, or why it is not judged."""
    return words(found) if comparison.timing_judged else not_judged(comparison)


def not_judged(comparison: Comparison) -> str:
    """Return why seconds of the two runs do not compare: `other hardware: not judged`."""
    parts = dict.fromkeys(entry.key.split(".")[0] for entry in comparison.foreign_timing)
    names = ["hardware" if part == "device" else part for part in parts if part != UNSTEADY]
    reasons = [f"other {' and '.join(names)}"] if names else []
    reasons += [UNSTEADY] if UNSTEADY in parts else []
    return f"{', '.join(reasons)}: not judged"


def rule_change(row: Row) -> str:
    """Return what the two plans say of a bucket: `off -> L=3, k=2`, or what both say."""
    return f"{row.base_rule} -> {row.new_rule}" if row.rule_changed else row.new_rule


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as plain values: no NaN, undefined is None.

    Returns:
        schema_version, base, new, timing_judged, foreign_timing and other_differences (each key,
        base, new), num_base_only, num_new_only, total and buckets: label, num_pairs, num_groups,
        base_rule, new_rule, rule_changed, seconds_ratio, and speedup, measured, acceptance, p99,
        each None or estimate, base, new, low, high, num_groups, effective_groups, words.
    """
    document = {
        "schema_version": SCHEMA_VERSION,
        "base": comparison.base,
        "new": comparison.new,
        "timing_judged": comparison.timing_judged,
        "foreign_timing": [_difference(entry) for entry in comparison.foreign_timing],
        "other_differences": [_difference(entry) for entry in comparison.other_differences],
        "num_base_only": comparison.num_base_only,
        "num_new_only": comparison.num_new_only,
        "total": _row(comparison, comparison.total),
        "buckets": [_row(comparison, row) for row in comparison.rows],
    }
    plain: Any = plain_data(document)
    return dict(plain)


def _words(found: Paired | None, above: str, below: str) -> str:
    if found is None:
        return NOT_KNOWN
    if found.effective_groups < MIN_EFFECTIVE_GROUPS:
        return f"{_FEW} ({found.num_groups}, worth {found.effective_groups:.1f})"
    if found.low is None or found.high is None:
        return f"{_value(found, found.estimate, 2)}, no interval"
    digits = _digits(found)
    ends = [_value(found, end, digits, bare=True) for end in (found.low, found.high)]
    joined = "-".join(ends) if found.kind == "ratio" else " to ".join(ends)
    if found.low > found.neutral + NEGLIGIBLE:
        space = " " if found.kind == "ratio" else ", "
        return f"{_value(found, found.estimate, digits)}{space}{above}, 95 % {joined}"
    if found.high < found.neutral - NEGLIGIBLE:
        return f"{_value(found, found.estimate, digits)}, {below}, 95 % {joined}"
    return f"not significant ({joined})"


def _digits(found: Paired) -> int:
    """Two, or as many as keep an end that excludes "no change" from being rounded onto it."""
    ends = [end for end in (found.low, found.high) if end is not None]
    told = [end for end in ends if abs(end - found.neutral) > NEGLIGIBLE]
    for digits in range(2, _MOST_DIGITS):
        if all(round(end, digits) != found.neutral for end in told):
            return digits
    return _MOST_DIGITS


def _value(found: Paired, value: float, digits: int, *, bare: bool = False) -> str:
    if found.kind == "ratio":
        return f"{value:.{digits}f}" + ("" if bare else "x")
    text = f"{value:+.{digits}f}"
    return f"{0.0:.{digits}f}" if float(text) == 0 else text


def _difference(entry: Any) -> dict[str, str]:
    return {"key": entry.key, "base": entry.base, "new": entry.new}


def _row(comparison: Comparison, row: Row) -> dict[str, object]:
    return {
        "label": row.label,
        "num_pairs": row.num_pairs,
        "num_groups": row.num_groups,
        "base_rule": row.base_rule or None,
        "new_rule": row.new_rule or None,
        "rule_changed": row.rule_changed,
        "seconds_ratio": row.seconds_ratio,
        "speedup": _paired(row.speedup, timing_words(comparison, row.speedup)),
        "measured": _paired(row.measured, timing_words(comparison, row.measured)),
        "acceptance": _paired(row.acceptance, words(row.acceptance)),
        "p99": _paired(
            row.p99, longer(row.p99) if comparison.timing_judged else not_judged(comparison)
        ),
    }


def _paired(found: Paired | None, told: str) -> dict[str, object] | None:
    if found is None:
        return None
    names = ("estimate", "base", "new", "low", "high", "num_groups", "effective_groups")
    return {**{name: getattr(found, name) for name in names}, "words": told}

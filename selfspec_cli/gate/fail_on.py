"""Ad-hoc limits on a comparison, `METRIC:LIMIT`, and the paired one-sided tests behind them.

    speedup:-3%        the new plan's speedup may be 3 % lower
    speedup:0.05       it may be lower by 0.05 (1.20x -> 1.15x)
    acceptance:-0.02   tested acceptance may be lower by 0.02
    p99:+5%            P99 of request time may be 5 % longer
    measured:-3%       as speedup, of what both runs really decoded

A sign is the direction of the allowed loss, and may be left out; `%` is relative to the base run,
a plain number is in the metric's own unit (x, a fraction, seconds for p99).

Each expression makes a check for all requests and one a bucket:

- fail: a one-sided paired test rejects "the loss is at most the allowed one", at 0.5 % shared
  (Holm) by all timing comparisons judged together, and by all acceptance comparisons;
- pass: no such rejection, the loss measured is at most the allowed one, and the 95 % interval
  excludes one that is larger by more than 5 points (5 % of the base, 0.05 of acceptance);
- no verdict: anything else, so also fewer than 8 effective groups of requests, timings of other
  hardware, or a number that a run does not hold. Of a bucket that is shown and does not end the
  gate without a verdict; of all requests it does.

0.01 % (0.0001 of acceptance) is no difference anywhere: two engines' rounding moves as much.
"""

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from selfspec_cli.errors import ConfigError
from selfspec_cli.gate.comparable import UNSTEADY
from selfspec_cli.gate.compare import Comparison, Row
from selfspec_cli.gate.compare_text import longer, not_judged, words
from selfspec_cli.gate.holm import FAMILY_LEVEL, Held, holm
from selfspec_cli.gate.pairing import NEGLIGIBLE, Paired
from selfspec_cli.gate.verdict import Check

UNSEEN = 0.05  # a loss beyond the allowed one that may go unseen where a check passes
_NUMBER = re.compile(r"([+-]?)((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(\s*%)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What a limit may be set on."""

    name: str
    label: str
    grows_worse: bool
    """Whether a larger value is a loss."""
    timing: bool
    unit: str
    advice: str


METRICS = {
    metric.name: metric
    for metric in (
        Metric(
            name="speedup", label="speedup", grows_worse=False, timing=True, unit="x",
            advice="Compare the rules and costs of both runs: selfspec compare.",
        ),
        Metric(
            name="measured", label="measured speedup", grows_worse=False, timing=True, unit="x",
            advice="Decode both runs again on a quiet machine, then look at their costs.",
        ),
        Metric(
            name="acceptance", label="tested acceptance", grows_worse=False, timing=False, unit="",
            advice="Look for a changed checkpoint, tokenizer or chat template.",
        ),
        Metric(
            name="p99", label="P99 of request time", grows_worse=True, timing=True, unit=" s",
            advice="Turn off the rules of the slowest requests, or lower max_slow_share.",
        ),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FailOn:
    """One parsed expression."""

    text: str
    metric: Metric
    loss: float
    """Allowed, not negative; a fraction of the base run's value where relative."""
    relative: bool
    lenient: bool = False
    """A loss measured within the noise passes, as long as the interval excludes one beyond 5
    points; else the loss measured itself must be at most the allowed one."""


DEFAULTS = (
    FailOn(text="speedup:0%", metric=METRICS["speedup"], loss=0.0, relative=True, lenient=True),
    FailOn(
        text="acceptance:0", metric=METRICS["acceptance"], loss=0.0, relative=False, lenient=True
    ),
)
"""What `gate --baseline` asks for: no loss that can be told from noise."""


def parse_fail_on(text: str) -> FailOn:
    """Parse one `METRIC:LIMIT`.

    Raises:
        ConfigError: no colon, an unknown metric, no number, a sign that points to a gain, or a
            limit that no run could ever exceed.
    """
    name, colon, limit = text.partition(":")
    name = name.strip()
    if not colon:
        raise _wrong(text, "not METRIC:LIMIT", "For example: --fail-on speedup:-3%")
    if name not in METRICS:
        near = difflib.get_close_matches(name.lower(), METRICS, n=1)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise _wrong(text, f"unknown metric {name!r}", f"{meant}Known: {', '.join(METRICS)}.")
    metric, match = METRICS[name], _NUMBER.fullmatch(limit.strip())
    if match is None:
        raise _wrong(text, f"{limit.strip()!r} is no limit", "Write -3%, 0.05 or +5%.")
    sign, digits, percent = match.groups()
    value = float(digits) / (100.0 if percent else 1.0)
    worse = "+" if metric.grows_worse else "-"
    if sign and sign != worse and value > 0:
        raise _wrong(
            text,
            f"{metric.label} gets worse {'upwards' if metric.grows_worse else 'downwards'}, and "
            f"{limit.strip()} allows a gain",
            f"Write {name}:{worse}{limit.strip().lstrip('+-')}.",
        )
    _check_possible(text, metric, value, relative=bool(percent))
    return FailOn(text=text, metric=metric, loss=value, relative=bool(percent))


def checks_against(
    comparison: Comparison, expressions: Sequence[str | FailOn], level: float = FAMILY_LEVEL
) -> tuple[Check, ...]:
    """Judge a comparison; all expressions given share one family of tests.

    Args:
        comparison: of two runs.
        expressions: as `parse_fail_on` takes or returns them.
        level: chance of a false failure, shared by all timing comparisons.

    Returns:
        For each expression a check over all requests, then one a bucket.

    Raises:
        ConfigError: an expression that cannot be parsed, or an allowed loss as large as the whole.
    """
    parsed = [parse_fail_on(e) if isinstance(e, str) else e for e in expressions]
    asked = [
        _Question(limit=limit, row=row, comparison=comparison)
        for limit in parsed
        for row in (comparison.total, *comparison.rows)
    ]
    for limit in parsed:
        _check_bearable(limit, getattr(comparison.total, limit.metric.name))
    held: dict[int, Held | None] = {}
    for timing in (True, False):
        family = [at for at, one in enumerate(asked) if one.limit.metric.timing is timing]
        tests = holm([asked[at].p_value for at in family], level)
        held |= dict(zip(family, tests, strict=True))
    return tuple(one.check(held[at]) for at, one in enumerate(asked))


def baseline_checks(
    comparison: Comparison, expressions: Sequence[str | FailOn] = (), level: float = FAMILY_LEVEL
) -> tuple[Check, ...]:
    """Judge what `gate --baseline` asks by itself: no loss of speedup nor of tested acceptance.

    Args:
        comparison: the run against its baseline.
        expressions: of `--fail-on`, judged in the same family of tests.
        level: as in `checks_against`.

    Raises:
        ConfigError: as `checks_against`.
    """
    return checks_against(comparison, [*DEFAULTS, *expressions], level)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """One expression asked of one row."""

    limit: FailOn
    row: Row
    comparison: Comparison

    @property
    def found(self) -> Paired | None:
        value: Paired | None = getattr(self.row, self.limit.metric.name)
        return value

    @property
    def judged(self) -> Paired | None:
        """The number, if there is enough behind it and it may be judged at all."""
        metric, found = self.limit.metric, self.found
        if found is None or not found.supports_verdict:
            return None
        return found if self.comparison.timing_judged or not metric.timing else None

    @property
    def p_value(self) -> float | None:
        found, metric = self.judged, self.limit.metric
        if found is None:
            return None
        bound = _bound(self.limit, found)
        if metric.grows_worse:
            return found.p_above(bound + NEGLIGIBLE)
        return found.p_below(bound - NEGLIGIBLE)

    def check(self, held: Held | None) -> Check:
        """Return the check, given how the test came out within its family."""
        limit, metric, found = self.limit, self.limit.metric, self.found
        outcome = "no_verdict"
        if held is not None and held.rejected:
            outcome = "fail"
        elif self.judged is not None and _passes(limit, self.judged):
            outcome = "pass"
        whole = self.row is self.comparison.total
        return Check(
            name=f"baseline {metric.name}",
            subject="" if whole else self.row.label,
            outcome=outcome,  # type: ignore[arg-type]
            value=None if found is None else found.estimate,
            low=None if found is None else found.low,
            high=None if found is None else found.high,
            limit=None if found is None else _bound(limit, found),
            text=self._sentence(),
            next_step=self._next_step(outcome),
            optional=not whole,
            timing=metric.timing,
        )

    def _sentence(self) -> str:
        metric, found = self.limit.metric, self.found
        allowed = f"allowed loss {_allowed(self.limit)}"
        if found is None:
            return f"{metric.label}: not in both runs, {allowed}"
        if metric.timing and not self.comparison.timing_judged:
            return f"{metric.label}: {not_judged(self.comparison)}"
        told = longer(found) if metric.grows_worse else words(found)
        values = f"{found.base:.3g}{metric.unit} -> {found.new:.3g}{metric.unit}"
        return f"{metric.label} {values}: {told}, {allowed}"

    def _next_step(self, outcome: str) -> str:
        metric = self.limit.metric
        if outcome == "pass":
            return ""
        if outcome == "fail":
            return metric.advice
        if metric.timing and not self.comparison.timing_judged:
            keys = ", ".join(entry.key for entry in self.comparison.foreign_timing)
            quiet = "again on a quiet machine, with more cost.blocks"
            return f"Calibrate {quiet if keys == UNSTEADY else f'both runs with the same {keys}'}."
        if self.found is None and metric.name == "p99":
            return "A P99 needs 300 requests in both runs, with prefill timed."
        if metric.timing and self.judged is not None:
            return "Too noisy to tell: time both on a quiet machine, with more cost.blocks."
        return "Calibrate both runs on more requests."


def _bound(limit: FailOn, found: Paired) -> float:
    """The value of the paired number at which exactly the allowed loss is lost."""
    loss = limit.loss
    if found.kind == "ratio" and not limit.relative:
        loss = limit.loss / found.base
    elif found.kind == "difference" and limit.relative:
        loss = limit.loss * found.base
    return found.neutral + (loss if limit.metric.grows_worse else -loss)


def _check_bearable(limit: FailOn, found: Paired | None) -> None:
    """Refuse an absolute loss as large as all that the base run has: no run could fail it."""
    if found is None or limit.metric.grows_worse:
        return
    if found.neutral - _bound(limit, found) >= (1.0 if found.kind == "ratio" else found.base) > 0:
        raise _wrong(
            limit.text,
            f"the base run's {limit.metric.label} is {found.base:.3g}{limit.metric.unit}, and all "
            "of it may be lost",
            "Give a limit that a run can exceed.",
        )


def _passes(limit: FailOn, found: Paired) -> bool:
    low, high = found.low, found.high
    if low is None or high is None:
        return False
    bound = _bound(limit, found)
    if limit.metric.grows_worse:
        return high <= bound + UNSEEN and (limit.lenient or found.estimate <= bound + NEGLIGIBLE)
    return low >= bound - UNSEEN and (limit.lenient or found.estimate >= bound - NEGLIGIBLE)


def _allowed(limit: FailOn) -> str:
    if limit.relative:
        return f"{100 * limit.loss:g} %"
    return f"{limit.loss:g}{limit.metric.unit}"


def _check_possible(text: str, metric: Metric, value: float, *, relative: bool) -> None:
    if not math.isfinite(value):
        raise _wrong(text, "the limit is not finite", "Write -3%, 0.05 or +5%.")
    fraction = relative or metric.name == "acceptance"
    if fraction and value >= 1.0 and not metric.grows_worse:
        raise _wrong(text, "all of it may be lost", "Give a limit that a run can exceed.")


def _wrong(text: str, what: str, hint: str) -> ConfigError:
    return ConfigError(what, where=f"--fail-on {text}", hint=hint)

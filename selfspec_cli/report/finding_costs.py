"""Findings about time: unsteady or misleading costs, and where they eat the gain."""

from collections.abc import Iterator

from selfspec_cli.plan.document import Rule
from selfspec_cli.report.finding_types import (
    GOOD_ACCEPTANCE,
    Evidence,
    Finding,
    judged_off,
    scope,
    speed,
)
from selfspec_cli.report.format import milliseconds, number, percent, plural, ratio
from selfspec_cli.report.rule_rows import rule_label

FAR_FROM_FLOOR = 2.0  # plain step ÷ bandwidth floor; METHOD.md §4 and the plan's guard
MAX_MEASURED_GAP = 0.10  # predicted against measured, median over decoded cells
MAX_COST_MODEL_ERROR = 0.05  # METHOD.md §4


def unstable(evidence: Evidence) -> Iterator[Finding]:
    """Timing blocks that differ by more than 10 %."""
    bad = [timing for timing in evidence.timings if timing.unstable]
    if bad:
        worst = max(bad, key=lambda timing: max(timing.ar_spread, timing.round_spread))
        yield Finding(
            code="unstable_timing",
            symptom="Timings vary too much for a verdict to rest on them.",
            evidence=f"{worst.law} law: plain steps vary by {percent(worst.ar_spread, 1)}, rounds "
            f"by {percent(worst.round_spread, 1)} between timing blocks; 10 % is the limit.",
            cause="Other programs, a changing clock rate or too little memory on the machine.",
            remedy="Measure on a quiet machine, with more blocks (cost.blocks).",
        )


def not_additive(evidence: Evidence) -> Iterator[Finding]:
    """Sums of parts that miss held-out whole rounds by more than 5 %."""
    for timing in evidence.timings:
        error = timing.cost_model_error
        if error is not None and error > MAX_COST_MODEL_ERROR:
            yield Finding(
                code="parts_do_not_add_up",
                symptom="Measured parts do not add up to measured rounds.",
                evidence=f"{timing.law} law: median error {percent(error, 1)} on held-out rounds; "
                f"{percent(MAX_COST_MODEL_ERROR)} is the limit.",
                cause="Kernels that behave differently alone and in a round, or an unsteady clock.",
                remedy="Trust only cells that were timed whole or confirmed; measure again.",
            )


def prediction_off(evidence: Evidence) -> Iterator[Finding]:
    """Decoded cells that miss their predictions by more than 10 % in the median."""
    table = evidence.measured
    if table.empty:
        return
    gap = (table["predicted_speedup"] / table["measured_speedup"] - 1).abs()
    if gap.median() > MAX_MEASURED_GAP:
        yield Finding(
            code="prediction_off",
            symptom="Real decoding does not run as predicted.",
            evidence=f"Median gap {percent(gap.median(), 1)}, largest {percent(gap.max(), 1)} over "
            f"{plural(len(table), 'decoded cell')}.",
            cause="The machine changed pace between timing and decoding, or recorded text is not "
            "the model's own.",
            remedy="Measure again on a quiet machine; try --continuations regenerate.",
        )


def costly(evidence: Evidence) -> Iterator[Finding]:
    """The textbook formula promises a gain from this acceptance, the measured costs take it."""
    rules = costly_rules(evidence)
    if rules:
        first = rules[0]
        formula = first.textbook.formula_speedup if first.textbook else None
        yield Finding(
            code="costly_drafts",
            symptom="Acceptance is fine, yet there is no gain.",
            evidence=f"{scope(rules)}. {rule_label(first)}: "
            f"{percent(first.acceptance_rate_tested)} accepted, the formula with c = L/N and v = 1 "
            f"promises {ratio(formula)}, measured costs leave {speed(first)}.",
            cause="A round costs more than the formula counts: draft steps above L/N, verification "
            "above one step, or time around them (see the cost curves).",
            remedy="Faster kernels for small steps (graphs, a smaller head for the draft), a "
            "shallower exit layer, or a machine that is bandwidth bound.",
        )


def costly_rules(evidence: Evidence) -> list[Rule]:
    """Return rules that are off although acceptance is good and the formula promises a gain."""
    goal = 1 + evidence.plan.settings.margin
    return [
        rule
        for rule in judged_off(evidence)
        if (rule.acceptance_rate_tested or 0.0) >= GOOD_ACCEPTANCE
        and rule.textbook is not None
        and (rule.textbook.formula_speedup or 0.0) >= goal
        and (rule.speedup.estimate or 0.0) < goal
    ]


def not_bandwidth_bound(evidence: Evidence) -> Iterator[Finding]:
    """Plain steps far above the time their bytes need."""
    costs = evidence.plan.measured_on.costs
    if costs.floor_ratio is not None and costs.floor_ratio > FAR_FROM_FLOOR:
        yield Finding(
            code="not_bandwidth_bound",
            symptom="Plain decoding does not wait for memory, which leaves speculation less room.",
            evidence=f"A plain step takes {milliseconds(costs.ar_step_s)}, reading its bytes would "
            f"take {milliseconds(costs.bandwidth_floor_s)}: {number(costs.floor_ratio, 1)} times "
            f"the floor; {FAR_FROM_FLOOR:g} is the limit.",
            cause="Computation or per-step overhead dominates.",
            remedy="Make the plain step faster first (compiled kernels, threads, number format).",
        )


def fades_with_context(evidence: Evidence) -> Iterator[Finding]:
    """A gain on short prompts that long ones of the same task and temperature surely lack."""
    worst: tuple[Rule, Rule] | None = None
    families: dict[tuple[str, float], list[Rule]] = {}
    for rule in evidence.plan.rules:
        families.setdefault((rule.task, rule.temperature_min), []).append(rule)
    for rules in families.values():
        known = sorted((r for r in rules if r.speedup.low is not None), key=lambda r: r.context_min)
        if len(known) < 2 or (known[0].speedup.estimate or 0.0) < 1.0:
            continue  # where nothing gains, nothing fades
        short, long = known[0], known[-1]
        if _surely_below(long, short) and (worst is None or _loss(short, long) > _loss(*worst)):
            worst = short, long
    if worst is not None:
        short, long = worst
        yield Finding(
            code="fades_with_context",
            symptom="Gains vanish with long prompts.",
            evidence=f"{rule_label(short)}: {speed(short)}. {rule_label(long)}: {speed(long)}.",
            cause="Attention takes a growing share of a draft step, so c rises with the context.",
            remedy="Shorter drafts or deeper exits for long prompts, off below k = 2; the plan "
            "decides by context band already.",
        )


def _surely_below(one: Rule, other: Rule) -> bool:
    return (one.speedup.high or 0.0) < (other.speedup.low or 0.0)


def _loss(short: Rule, long: Rule) -> float:
    return (short.speedup.estimate or 0.0) - (long.speedup.estimate or 0.0)

"""A rule in one paragraph with every number, for `selfspec plan --explain TASK`."""

import difflib
from collections.abc import Iterable

from selfspec_cli.errors import ConfigError
from selfspec_cli.plan import text
from selfspec_cli.plan.batch_text import explain_batches
from selfspec_cli.plan.document import PlanDocument, Rule
from selfspec_cli.plan.rules import cell_of, key_of_rule


def explain_task(plan: PlanDocument, task: str) -> list[str]:
    """Return one paragraph a rule of a task, in the order of the plan.

    Raises:
        ConfigError: the plan has no such task; near names are told.
    """
    found = [explain(rule) for rule in plan.rules if rule.task == task]
    if found:
        return found
    tasks = sorted({rule.task for rule in plan.rules})
    near = difflib.get_close_matches(task, tasks, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"Tasks: {', '.join(tasks) or 'none'}."
    raise ConfigError(f"the plan has no task {task!r}", where="--explain", hint=hint)


def explain(rule: Rule) -> str:
    """Return a rule with every number it holds."""
    state = "ON" if rule.enabled else "OFF"
    parts = [
        f"{key_of_rule(rule).label}: {state}, {rule.reason}.",
        *_speedups(rule),
        *_acceptance(rule),
        *_tail(rule),
        *explain_batches(rule),
        _traffic(rule),
        *(f"Guard: {guard.text}." for guard in rule.guards),
    ]
    return " ".join(parts)


def _speedups(rule: Rule) -> Iterable[str]:
    cell = cell_of(rule)
    if cell is None:
        return
    requests = text.count(rule.evidence_requests or 0, "request")
    yield (
        f"Cell {text.cell(cell)}: cross-fitted speedup {text.interval(rule.speedup)} over "
        f"{requests} (evidence: {rule.evidence}), on its own requests "
        f"{text.number(rule.in_sample_speedup)}, median request "
        f"{text.number(rule.median_request_speedup)}, with prefill "
        f"{text.number(rule.request_speedup)}; runner-up {rule.runner_up or text.MISSING}; "
        f"each request at its own best cell {text.number(rule.oracle_speedup)}."
    )
    if rule.measured_speedup.estimate is not None:
        agrees = "confirmed" if rule.confirmed else "contradicted"
        yield f"Measured {text.interval(rule.measured_speedup)}: {agrees}."
    else:
        yield "Not confirmed by real decodes."


def _acceptance(rule: Rule) -> Iterable[str]:
    layer = rule.drafter.exit_layer
    if layer is None:
        return
    yield (
        f"At L = {layer} you need acceptance {text.number(rule.break_even_acceptance)}, you have "
        f"{text.number(rule.acceptance_rate_tested)} (accepted / tested)."
    )
    if rule.gain_at:
        gains = ", ".join(
            f"{g.speedup:.2f} at {g.acceptance:g} ({text.cell((g.exit_layer, g.draft_length))})"
            for g in rule.gain_at
        )
        yield f"Were more drafts accepted, the best cell would bring {gains}."
    if rule.textbook is not None:
        book = rule.textbook
        yield (
            f"The textbook formula says {text.number(book.formula_speedup)}, with its usual "
            f"discount of 0.8 {text.number(book.discounted_speedup)}; here "
            f"{text.number(book.discount)} of the formula is left."
        )


def _tail(rule: Rule) -> Iterable[str]:
    if rule.slow_share is None:
        return
    yield (
        f"{text.percent(rule.slow_share)} of requests would take over 1.05 times as long (at most "
        f"{text.percent(rule.slow_share_high)}); P99 of request time "
        f"{text.number(rule.request_p99_ratio)} times plain, P99 between tokens "
        f"{_milliseconds(rule.gap_p99_s)}."
    )


def _traffic(rule: Rule) -> str:
    groups = text.count(rule.num_requests, "request")
    return (
        f"{groups} worth {text.number(rule.effective_requests, 1)} equal ones in the evidence, "
        f"{rule.num_tokens} tokens, {text.percent(rule.token_share)} of the log's tokens, "
        f"{text.percent(rule.time_share)} of its decode time; window {rule.window}."
    )


def _milliseconds(seconds: float | None) -> str:
    return text.MISSING if seconds is None else f"{1000.0 * seconds:.1f} ms"

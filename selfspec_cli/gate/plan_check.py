"""Is a plan possible? What no measurement can have written is refused, not judged."""

from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from selfspec_cli.errors import PlanError, StorageError
from selfspec_cli.plan.decide_check import check_plan
from selfspec_cli.plan.document import Interval, PlanDocument, Rule
from selfspec_cli.plan.files import PLAN_FILE, plan_data, read_plan
from selfspec_cli.storage import RunDir

_ROUNDING = 1e-9
_SHARES = (
    "slow_share", "slow_share_high", "token_share", "time_share", "acceptance_rate_tested",
)  # fmt: skip
_POSITIVE = ("break_even_acceptance", "request_p99_ratio", "in_sample_speedup", "request_speedup")
_COUNTS = ("num_requests", "evidence_requests", "effective_requests", "num_tokens")


def read_own_plan(run: RunDir) -> PlanDocument:
    """Return the plan of a run, which is its own and can be true.

    Raises:
        StorageError: the run has no plan.
        PlanError: the plan is torn, another run's, or says what cannot be.
    """
    file = run.artefact(PLAN_FILE)
    again = f"selfspec plan {run.path} -o {file}"
    if not file.exists():
        raise StorageError(
            "the run has no plan, and the plan is what is judged",
            where=str(file),
            hint=f"Write it: {again}",
        )
    plan = read_plan(file)
    refuse_nonsense(plan, file)
    if plan.measurement_hash != run.measurement_hash:
        raise PlanError(
            f"measurement_hash: {plan.measurement_hash[:12]}, the run's is "
            f"{run.measurement_hash[:12]}: this is the plan of another run",
            where=str(file),
            hint=f"Write the run's own: {again}",
        )
    return plan


def refuse_nonsense(plan: PlanDocument, file: Path) -> None:
    """Refuse a plan that contradicts itself, as one edited by hand may.

    Args:
        plan: as `read_plan` returned it.
        file: where it lies, for messages.

    Raises:
        PlanError: names the file and the field.
    """
    check_plan(plan_data(plan), str(file))
    for field, what in _problems(plan):
        raise PlanError(
            f"{field}: {what}",
            where=str(file),
            hint="Make the plan again with `selfspec plan RUN -o FILE`.",
        )


def _problems(plan: PlanDocument) -> Iterator[tuple[str, str]]:
    yield from _head_problems(plan)
    for number, rule in enumerate(plan.rules):
        for field, what in _rule_problems(rule, plan.model.num_layers):
            yield f"rules.{number}.{field}", what


def _head_problems(plan: PlanDocument) -> Iterator[tuple[str, str]]:
    if plan.model.num_layers < 1:
        yield "model.num_layers", f"{plan.model.num_layers}, a model has layers"
    try:
        date.fromisoformat(plan.traces.date)
    except ValueError:
        yield "traces.date", f"{plan.traces.date!r} is no day such as 2026-01-31"
    enabled = sum(rule.enabled for rule in plan.rules)
    if plan.total.num_enabled != enabled:
        yield "total.num_enabled", f"{plan.total.num_enabled}, but {enabled} rules are enabled"
    if plan.total.num_buckets != len(plan.rules):
        yield "total.num_buckets", f"{plan.total.num_buckets}, but there are {len(plan.rules)}"
    claims = plan.verdict in ("enable", "enable some")
    if claims != (enabled > 0):
        yield "verdict", f"{plan.verdict!r}, but {enabled} rules are enabled"
    if not plan.settings.margin >= 0:
        yield "settings.margin", f"{plan.settings.margin:g} lies below 0"


def _rule_problems(rule: Rule, num_layers: int) -> Iterator[tuple[str, str]]:
    numbers: Mapping[str, Any] = dict(rule)
    yield from _cell_problems(rule, num_layers)
    yield from _interval_problems("speedup", rule.speedup)
    yield from _interval_problems("measured_speedup", rule.measured_speedup)
    for at, entry in enumerate(rule.by_batch):
        yield from _interval_problems(f"by_batch.{at}.speedup", entry.speedup)
    for name in _SHARES:
        value = numbers[name]
        if value is not None and not 0.0 <= value <= 1.0 + _ROUNDING:
            yield name, f"{value:g} lies outside 0 to 1"
    for name in _POSITIVE:
        if numbers[name] is not None and numbers[name] <= 0:
            yield name, f"{numbers[name]:g} is not above 0"
    for name in _COUNTS:
        if numbers[name] is not None and numbers[name] < 0:
            yield name, f"{numbers[name]:g} lies below 0"


def _cell_problems(rule: Rule, num_layers: int) -> Iterator[tuple[str, str]]:
    layer = rule.drafter.exit_layer
    if layer is not None and not 1 <= layer < num_layers:
        yield "drafter.exit_layer", f"{layer} of a model of {num_layers} layers"
    if rule.draft.length is not None and rule.draft.length < 1:
        yield "draft.length", f"{rule.draft.length} drafts nothing"
    if rule.context_max is not None and rule.context_max <= rule.context_min:
        yield "context_max", f"{rule.context_max} does not lie above {rule.context_min}"
    if not 0.0 <= rule.temperature_min <= rule.temperature_max:
        yield "temperature_max", f"{rule.temperature_max:g} lies below {rule.temperature_min:g}"


def _interval_problems(name: str, found: Interval) -> Iterator[tuple[str, str]]:
    for end in ("low", "estimate", "high"):
        value = getattr(found, end)
        if value is not None and value <= 0:
            yield f"{name}.{end}", f"{value:g} is not above 0"
    low, middle, high = found.low, found.estimate, found.high
    if (low is None) != (high is None):
        yield name, "one end of the interval is missing"
    elif low is not None and high is not None:
        if low > high:
            yield f"{name}.low", f"{low:g} lies above its high {high:g}"
        elif middle is None or not low - _ROUNDING <= middle <= high + _ROUNDING:
            told = "missing" if middle is None else f"{middle:g}"
            yield f"{name}.estimate", f"{told}, outside its interval {low:g} to {high:g}"

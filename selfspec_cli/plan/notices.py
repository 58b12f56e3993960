"""Warnings of a plan: what a reader must know before trusting it. Pure functions of its parts."""

from collections.abc import Mapping, Sequence

from selfspec_cli.plan import text
from selfspec_cli.plan.batch_text import measured_only
from selfspec_cli.plan.by_batch import DECODED_BATCH
from selfspec_cli.plan.document import Rule
from selfspec_cli.plan.document_origin import OWN_COSTS
from selfspec_cli.plan.edges import edge_warnings
from selfspec_cli.plan.guards import MAX_FLOOR_RATIO
from selfspec_cli.plan.inputs import PlanInputs
from selfspec_cli.plan.rules import Basis


def warnings_of(rules: Sequence[Rule], basis: Basis) -> list[str]:
    """Return the plan's warnings, the gravest first."""
    inputs = basis.inputs
    return [
        *_unstable(basis),
        *_foreign_costs(inputs),
        *_batches(inputs.costs.batch_sizes),
        *_left_out(inputs.left_out),
        *_pricing(inputs),
        *_bandwidth(inputs),
        *_labels(inputs),
        *_windows(rules),
        *edge_warnings(basis),
    ]


def _unstable(basis: Basis) -> list[str]:
    found = []
    costs, base = basis.inputs.costs, basis.judge.base_batch
    shaky = [(size, law) for size, laws in basis.judge.unstable.items() for law in sorted(laws)]
    for size, law in shaky:
        spread = costs.by_batch[size][law].relative_spread()
        where = "" if size == base else f" at batch {size}"
        found.append(
            f"timing of the {law} law{where} is unstable: plain steps vary by "
            f"{text.percent(spread['ar'])}, rounds by {text.percent(spread['round'])} between "
            "blocks; no verdict rests on it. Measure again on a quiet machine."
        )
    return found


def _foreign_costs(inputs: PlanInputs) -> list[str]:
    source = inputs.facts.measured_on.costs
    if source.source == OWN_COSTS:
        return []
    return [
        f"priced with the costs of {source.source} (engine {source.engine or 'unknown'}), not with "
        "those of this run; acceptance is this run's"
    ]


def _batches(sizes: Sequence[int]) -> list[str]:
    found = []
    if len(sizes) == 1:
        found.append(measured_only(sizes))
    if sizes[0] != DECODED_BATCH:
        found.append(
            f"rules are decided at batch {sizes[0]}; real decodes run one request at a time, so "
            "they confirm none of them"
        )
    return found


def _left_out(left_out: Mapping[str, int]) -> list[str]:
    return [
        f"{text.count(number, 'path')} left out: {reason.replace('_', ' ')}"
        for reason, number in left_out.items()
        if number
    ]


def _pricing(inputs: PlanInputs) -> list[str]:
    found = []
    for law, fit in sorted(inputs.costs.fits.items()):
        if fit.mode == "whole_rounds":
            found.append(
                f"parts do not add up to rounds under the {law} law (median error "
                f"{text.percent(fit.cost_model_error)}); whole measured rounds price the cells "
                "that were timed"
            )
        if fit.cost_model_error is None:
            found.append(f"no whole round was timed under the {law} law to check the costs")
    return found


def _bandwidth(inputs: PlanInputs) -> list[str]:
    ratio = inputs.facts.measured_on.costs.floor_ratio
    if ratio is None or ratio <= MAX_FLOOR_RATIO:
        return []
    return [
        f"a plain step takes {ratio:.1f} times the bandwidth floor, so decoding does not wait for "
        "memory here; on a machine where it does, speculation has more room"
    ]


def _labels(inputs: PlanInputs) -> list[str]:
    if inputs.facts.traces.task_labels:
        return []
    return ["one bucket: no task labels found, use --task-from"]


def _windows(rules: Sequence[Rule]) -> list[str]:
    partial = sum(rule.window == "partial" for rule in rules)
    if not partial:
        return []
    return [
        f"{partial} of {text.count(len(rules), 'bucket')} may write more than twice as much as was "
        "observed (window: partial); acceptance changes along the output"
    ]

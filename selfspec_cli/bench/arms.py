"""The arms of a bench: what each decodes with, for one request or one batch."""

from collections.abc import Sequence

from selfspec_cli.buckets import BucketKey
from selfspec_cli.plan.decide import Plan
from selfspec_cli.plan.document import PlanDocument, Rule
from selfspec_cli.records import PreparedRequest
from selfspec_cli.replay.decode import Cell

AR, PLAN, FORCED = "ar", "plan", "forced"
GENERATE, LOOKUP, EARLY_EXIT = "generate", "prompt_lookup", "early_exit_hf"
RIVALS = (GENERATE, LOOKUP, EARLY_EXIT)
"""Arms of transformers' own `generate`: its plain decoding is the baseline of the other two."""


def plan_cell(
    decider: Plan, request: PreparedRequest, temperature: float, batch_size: int = 1
) -> Cell | None:
    """Return what the plan tells a server to decode a request with; None is plain decoding.

    The budget counts where the request states one, as it does for a server.
    """
    sampling = request.sampling
    decision = decider.decide(
        task=request.task,
        context_tokens=request.prompt_tokens,
        temperature=temperature,
        batch_size=batch_size,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        min_tokens=sampling.min_tokens,
        max_tokens=request.stated_max_tokens,
    )
    if decision.exit_layer is None or decision.draft_length is None:
        return None
    return Cell(decision.exit_layer, decision.draft_length)


def batch_plan_cell(
    decider: Plan, requests: Sequence[PreparedRequest], temperature: float, batch_size: int
) -> Cell | None:
    """Return the cell that the plan gives every one of the requests; None where any has another."""
    cells = {plan_cell(decider, request, temperature, batch_size) for request in requests}
    return cells.pop() if len(cells) == 1 else None


def forced_cell(plan: PlanDocument, bucket: BucketKey) -> Cell | None:
    """Return the cell of the bucket's rule though it be off, else the best one for all traffic.

    Of several temperatures of the latter the nearest speaks. None where a plan names no cell.
    """
    own = [cell for rule in plan.rules if _of(rule, bucket) and (cell := _cell(rule))]
    if own:
        return own[0]
    best = min(
        plan.global_, key=lambda one: abs(one.temperature - bucket.temperature), default=None
    )
    return None if best is None else Cell(best.exit_layer, best.draft_length)


def _of(rule: Rule, bucket: BucketKey) -> bool:
    band = (rule.task, rule.context_min, rule.context_max)
    here = (bucket.task, bucket.context_min, bucket.context_max)
    return band == here and rule.temperature_min == bucket.temperature


def _cell(rule: Rule) -> Cell | None:
    layer, length = rule.drafter.exit_layer, rule.draft.length
    return None if layer is None or length is None else Cell(layer, length)

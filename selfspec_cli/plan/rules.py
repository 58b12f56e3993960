"""One rule of the plan, with every number a person may ask for."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from selfspec_cli.analysis.evidence import Cell
from selfspec_cli.buckets import BucketKey
from selfspec_cli.plan import text, what_it_takes
from selfspec_cli.plan.by_batch import Subject, by_batch
from selfspec_cli.plan.document import Draft, Drafter, Guard, Interval, Rule
from selfspec_cli.plan.guards import disabling, guards_of
from selfspec_cli.plan.inputs import PlanInputs
from selfspec_cli.plan.judgement import TOO_FEW_DRAFTED, Judge
from selfspec_cli.plan.parents import Ruling, rule_on
from selfspec_cli.plan.pools import Pool, Pools
from selfspec_cli.plan.traffic import in_bucket, laws_of
from selfspec_cli.plan.window import window_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Basis:
    """What all rules of a plan are made from."""

    inputs: PlanInputs
    paths: pd.DataFrame
    """Path table."""
    pools: Pools
    judge: Judge


def make_rule(key: BucketKey, basis: Basis) -> Rule:
    """Return the rule of one bucket, before temperatures are joined and decodes confirm it."""
    paths = in_bucket(basis.paths, key)
    own = basis.pools.own.get(key)
    if own is None:
        return _unpriced_rule(key, paths, basis)
    ruling = rule_on(own, basis.pools.parents_of(key), basis.judge)
    guards = guards_of(
        paths,
        ruling.pool.evidence.request_speedup,
        basis.judge.settings.threshold,
        basis.inputs.facts.measured_on.costs.floor_ratio,
    )
    base = _base(key, paths, basis).model_copy(update=_numbers(own, ruling, basis))
    return _guarded(_with_need(base), guards)


def _base(key: BucketKey, paths: pd.DataFrame, basis: Basis) -> Rule:
    """A rule that is off and knows only its bucket."""
    priced = paths.loc[paths["priced"]]
    tokens, times = _shares(priced, basis)
    return Rule(
        task=key.task,
        context_min=key.context_min,
        context_max=key.context_max,
        temperature_min=key.temperature,
        temperature_max=key.temperature,
        prompt_tokens_max=int(priced["prompt_tokens"].max()) if len(priced) else None,
        laws=laws_of(priced),
        enabled=False,
        drafter=Drafter(),
        draft=Draft(),
        speedup=Interval(),
        num_requests=int(paths["group_id"].nunique()),
        num_tokens=int(priced["tokens"].sum()),
        token_share=tokens,
        time_share=times,
        evidence="none",
        window=window_of(paths),
        reason="",
    )


def _shares(priced: pd.DataFrame, basis: Basis) -> tuple[float | None, float | None]:
    """Share of the log's output tokens and of its plain decode time; each request weighs once."""
    everything = basis.paths.loc[basis.paths["priced"]]

    def share(column: str) -> float | None:
        whole = float((everything["weight"] * everything[column]).sum())
        return float((priced["weight"] * priced[column]).sum()) / whole if whole > 0 else None

    return share("tokens"), share("ar_seconds")


def _unpriced_rule(key: BucketKey, paths: pd.DataFrame, basis: Basis) -> Rule:
    base = _base(key, paths, basis)
    if (paths["tokens"] == 0).all():
        reason = f"{TOO_FEW_DRAFTED}: no request asks for any output"
    else:
        reason = (
            f"none of its {text.count(len(paths), 'path')} can be priced: contexts beyond those "
            "timed, or a token without probability"
        )
    return base.model_copy(update={"reason": reason})


def _numbers(own: Pool, ruling: Ruling, basis: Basis) -> dict[str, object]:
    """Fields that rest on a pool; a cell is shown even where the rule is off."""
    found: dict[str, object] = {
        "enabled": ruling.enabled,
        "evidence": ruling.evidence,
        "requests_missing": ruling.missing,
        "reason": ruling.reason,
    }
    if ruling.cell is None:
        return found
    return found | cell_numbers(own, ruling.pool, ruling.cell, basis)


def _with_need(rule: Rule) -> Rule:
    """Say what it would take, where a rule is off and its acceptance is too low."""
    needed, observed = rule.break_even_acceptance, rule.acceptance_rate_tested
    if rule.enabled or needed is None or observed is None or observed >= needed:
        return rule
    told = f"at L = {rule.drafter.exit_layer} you need {needed:.2f}, you have {observed:.2f}"
    return rule.model_copy(update={"reason": f"{rule.reason}; {told}"})


def cell_numbers(
    own: Pool, pool: Pool, cell: Cell, basis: Basis, *, crossfitted: bool = True
) -> dict[str, object]:
    """Fields of a rule that speak of its cell.

    Args:
        own: the bucket's own requests: acceptance and costs are theirs.
        pool: whose evidence the rule rests on: speedups and the tail are its own.
        cell: (L, k), the pool's chosen cell.
        basis: of the plan.
        crossfitted: whether the rule rests on out-of-fold evidence; else on that of `cell`.
    """
    subject = Subject(own=own, pool=pool, cell=cell, crossfitted=crossfitted)
    found, facts, inputs = pool.evidence, own.cells[cell], basis.inputs
    tail = basis.judge.tail(pool, cell)
    layers = inputs.exit_layers
    acceptance = facts.tested_rate
    needed = what_it_takes.needed_acceptance(own, cell[0])
    num_layers = inputs.facts.model.num_layers
    estimate = found.interval.estimate
    return {
        "drafter": Drafter(exit_layer=cell[0]),
        "draft": Draft(length=cell[1]),
        "speedup": text.to_interval(found.interval),
        "in_sample_speedup": facts.speedup,
        "median_request_speedup": found.median_request_ratio,
        "request_speedup": found.request_speedup,
        "acceptance_rate_tested": acceptance,
        "break_even_acceptance": needed,
        "break_even_by_layer": what_it_takes.by_layer(own, layers),
        "gain_at": what_it_takes.gains(own, layers),
        "textbook": what_it_takes.textbook(acceptance, cell, num_layers, estimate),
        "slow_share": tail.slow_share,
        "slow_share_high": tail.slow_share_high,
        "request_p99_ratio": tail.p99_ratio,
        "gap_p99_s": tail.gap_p99_s,
        "oracle_speedup": own.evidence.oracle_speedup,
        "evidence_requests": found.num_groups,
        "effective_requests": found.effective_groups,
        "by_batch": by_batch(subject, basis.judge, inputs),
        **_runner_up(found.runner_up),
    }


def _runner_up(second: tuple[Cell, float] | None) -> dict[str, object]:
    if second is None:
        return {"runner_up": None, "runner_up_cell": None}
    cell, speedup = second
    return {"runner_up": f"{text.cell(cell)}: {speedup:.2f}", "runner_up_cell": list(cell)}


def _guarded(rule: Rule, guards: Sequence[Guard]) -> Rule:
    """Attach guards; one that disables switches the rule off and becomes its reason."""
    stops = [guard.text for guard in guards if disabling(guard)]
    update: dict[str, object] = {"guards": list(guards)}
    if stops and rule.enabled:
        update |= {"enabled": False, "reason": f"{'; '.join(stops)} ({rule.reason})"}
    return rule.model_copy(update=update)


def cell_of(rule: Rule) -> Cell | None:
    """Return (L, k) that a rule names; None where nothing is drafted."""
    if rule.drafter.exit_layer is None or rule.draft.length is None:
        return None
    return rule.drafter.exit_layer, rule.draft.length


def key_of_rule(rule: Rule) -> BucketKey:
    """Return the bucket of a rule; its temperature is the measured one."""
    return BucketKey(
        task=rule.task,
        context_min=rule.context_min,
        context_max=rule.context_max,
        temperature=rule.temperature_min,
    )

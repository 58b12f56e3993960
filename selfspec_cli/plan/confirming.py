"""What real decodes do to a plan: contradicted rules are disabled, or move to a confirmed cell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from selfspec_cli.analysis.confirmation import check_exact, check_law, summarise_confirm
from selfspec_cli.analysis.evidence import Cell
from selfspec_cli.buckets import BucketKey
from selfspec_cli.plan import text
from selfspec_cli.plan.by_batch import DECODED_BATCH
from selfspec_cli.plan.document import Interval, PlanDocument, Rule
from selfspec_cli.plan.judgement import passes
from selfspec_cli.plan.planner import assemble
from selfspec_cli.plan.pools import Pool, fixed_cell
from selfspec_cli.plan.rules import Basis, cell_numbers, cell_of, key_of_rule
from selfspec_cli.plan.what_it_takes import textbook
from selfspec_cli.storage import RunDir, read_table


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCell:
    """Measured speedup of one cell in one bucket, decode only."""

    task: str
    context_min: int
    """Smallest prompt of the bucket's band, tokens."""
    context_max: int | None
    """First length beyond the band; None where it is open."""
    temperature: float
    exit_layer: int
    draft_length: int
    speedup: Interval
    """Plain seconds ÷ speculative seconds of the same tokens, with its 95 % interval."""
    num_requests: int
    """Groups of requests decoded."""

    @property
    def bucket(self) -> BucketKey:
        """The bucket it was decoded in; other context edges make other buckets."""
        return BucketKey(
            task=self.task,
            context_min=self.context_min,
            context_max=self.context_max,
            temperature=self.temperature,
        )

    @property
    def cell(self) -> Cell:
        """(L, k)."""
        return self.exit_layer, self.draft_length

    @classmethod
    def of_run(cls, run: RunDir) -> list["MeasuredCell"]:
        """Return what a run's confirm.csv measured; nothing where there is none.

        Runs of earlier versions did not say which bucket a decode belonged to; those are passed
        over.

        Raises:
            StorageError: confirm.csv is torn.
            ExactnessError: its decodes, or those in batches, differed from plain decoding: no plan
                may rest on this run.
        """
        batches = run.artefact("confirm_batch.csv")
        if batches.exists():
            check_exact(read_table(batches), batches.name)
        path = run.artefact("confirm.csv")
        if not path.exists():
            return []
        table = read_table(path)
        check_exact(table)
        proof = run.manifest.get("stages", {}).get("confirm", {}).get("exactness")
        if proof is not None:
            check_law(proof)
        return cls.of_table(table) if {"task", "context_min"} <= set(table.columns) else []

    @classmethod
    def of_table(cls, confirm: pd.DataFrame) -> list["MeasuredCell"]:
        """Return one entry a (bucket, cell) of confirm.csv: ratios of sums over its requests."""
        return [
            cls(
                task=str(row["task"]),
                context_min=int(row["context_min"]),
                context_max=None if row["context_max"] is None else int(row["context_max"]),
                temperature=float(row["temperature"]),
                exit_layer=int(row["exit_layer"]),
                draft_length=int(row["draft_length"]),
                speedup=Interval(
                    estimate=row["measured_speedup"],
                    low=row["measured_speedup_low"],
                    high=row["measured_speedup_high"],
                ),
                num_requests=int(row["num_groups"]),
            )
            for row in _records(summarise_confirm(confirm))
        ]


def apply_confirmation(
    plan: PlanDocument, measured: Sequence[MeasuredCell], basis: Basis
) -> PlanDocument:
    """Return the plan after real decodes (METHOD.md §6).

    An enabled rule is contradicted if its cell measures below 1, or if the measured interval lies
    wholly below the predicted lower bound. It then moves to its runner-up, if that was decoded too
    and holds, or becomes disabled with both numbers as its reason. Only decodes of a rule's own
    bucket and cell speak of it; whatever was not decoded stays `confirmed: false`. Decodes run one
    request at a time, so they say nothing of a plan decided at a larger batch size. The total, the
    verdict and the ranges of temperature are computed again.

    Args:
        plan: as `draft_plan` returned it.
        measured: decoded cells, in any order.
        basis: what the plan was made from.
    """
    if not measured or basis.judge.base_batch != DECODED_BATCH:
        return plan
    return assemble([_confirmed(rule, measured, basis) for rule in plan.rules], basis)


def _confirmed(rule: Rule, measured: Sequence[MeasuredCell], basis: Basis) -> Rule:
    here = {m.cell: m for m in measured if m.bucket == key_of_rule(rule)}
    cell = cell_of(rule)
    if cell is None or cell not in here:
        return rule
    found = here[cell]
    seen = _with_measurement(rule, found, basis)
    wrong = contradicts(found.speedup, rule.speedup, enabled=rule.enabled)
    if not wrong or not rule.enabled:
        told = f"{rule.reason}; measured {_told(found)}"
        known = found.speedup.low is not None  # one group has no interval and confirms nothing
        return seen.model_copy(update={"confirmed": known and not wrong, "reason": told})
    second = None if rule.runner_up_cell is None else here.get(_pair(rule.runner_up_cell))
    moved = None if second is None else _moved(seen, second, basis)
    if moved is not None:
        return moved
    return seen.model_copy(
        update={"enabled": False, "confirmed": False, "reason": _contradiction(rule, found)}
    )


def contradicts(measured: Interval, predicted: Interval, *, enabled: bool) -> bool:
    """Whether a measured speedup speaks against a rule.

    Args:
        measured: speedup of its cell when really decoded.
        predicted: the rule's evidence.
        enabled: whether the rule claims a gain: a measurement below 1 contradicts that; one wholly
            above the prediction contradicts a rule that is off, which stays off, unconfirmed.
    """
    if measured.estimate is None:
        return False
    if enabled and measured.estimate < 1.0:
        return True
    if not enabled and passes_above(measured, predicted):
        return True
    if measured.high is None or predicted.low is None:
        return False
    return measured.high < predicted.low


def passes_above(measured: Interval, predicted: Interval) -> bool:
    """Whether a measured interval lies wholly above the predicted one: a refuted "no"."""
    low, high = measured.low, predicted.high
    return low is not None and high is not None and low > high


def _moved(rule: Rule, second: MeasuredCell, basis: Basis) -> Rule | None:
    """The rule at its runner-up; None if that does not hold.

    The runner-up's prediction is in-sample, so the decode itself must carry the proof: the lower
    bound measured must reach 1, the predicted one the threshold, and the tail and the veto hold.
    """
    own = basis.pools.own[key_of_rule(rule)]
    pool = _pool_of(rule, basis)
    cell, settings = second.cell, basis.judge.settings
    predicted = text.to_interval(fixed_cell(pool.times, cell))
    tail = basis.judge.tail(pool, cell)
    holds = (
        passes(second.speedup.low, 1.0)
        and passes(predicted.low, settings.threshold)
        and not contradicts(second.speedup, predicted, enabled=True)
        and (tail.slow_share is None or tail.slow_share <= settings.max_slow_share)
        and passes(own.cells[cell].speedup, 1.0)
    )
    if not holds:
        return None
    first = cell_of(rule)
    told = "" if first is None else f"{_contradiction(rule, None)}; moved to {text.cell(cell)}: "
    numbers = cell_numbers(own, pool, cell, basis, crossfitted=False) | {
        "speedup": predicted,
        "median_request_speedup": None,
        "request_speedup": None,
        "runner_up": None,
        "runner_up_cell": None,
        "reason": f"{told}predicted {text.interval(predicted)}, measured {_told(second)}",
    }
    return _with_measurement(rule.model_copy(update=numbers), second, basis).model_copy(
        update={"confirmed": True}
    )


def _with_measurement(rule: Rule, found: MeasuredCell, basis: Basis) -> Rule:
    num_layers = basis.inputs.facts.model.num_layers
    formula = textbook(rule.acceptance_rate_tested, found.cell, num_layers, found.speedup.estimate)
    return rule.model_copy(update={"measured_speedup": found.speedup, "textbook": formula})


def _pool_of(rule: Rule, basis: Basis) -> Pool:
    key = key_of_rule(rule)
    parent, everything = basis.pools.parents_of(key)
    return {"parent": parent, "all": everything}.get(rule.evidence, basis.pools.own[key])


def _contradiction(rule: Rule, found: MeasuredCell | None) -> str:
    cell = cell_of(rule)
    named = "" if cell is None else f"{text.cell(cell)} "
    seen = text.interval(rule.measured_speedup) if found is None else _told(found)
    return f"{named}measured {seen} where {text.interval(rule.speedup)} was predicted"


def _told(found: MeasuredCell) -> str:
    return f"{text.interval(found.speedup)} over {text.count(found.num_requests, 'request')}"


def _pair(cell: Sequence[int]) -> Cell:
    return cell[0], cell[1]


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows with None where a value is missing."""
    plain = frame.astype(object).where(frame.notna(), None)
    return [{str(key): value for key, value in row.items()} for row in plain.to_dict("records")]

"""Choose the cells to confirm once, and keep the choice in the manifest for a resumed run."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import pandas as pd

from selfspec_cli.analysis.confirm_choice import (
    ConfirmCell,
    Limits,
    Pair,
    Role,
    RuleCell,
    auto_budget,
    choose,
    with_buckets,
)
from selfspec_cli.buckets import BucketKey
from selfspec_cli.config import CalibrateConfig
from selfspec_cli.plan.document import PlanDocument, Rule
from selfspec_cli.storage import RunDir, read_table

STAGE = "confirm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The cells a run confirms, and the budget they were chosen within."""

    cells: tuple[ConfirmCell, ...]
    budget_s: float
    predicted_s: float
    num_left_out: int
    """Cells that the budget had no room for."""

    def by_path(self) -> dict[str, list[Pair]]:
        """(L, k) to decode on each path, in order of importance; a path has one bucket."""
        found: dict[str, list[Pair]] = {}
        for one in self.cells:
            for path_id in one.path_ids:
                found.setdefault(path_id, []).append(one.cell)
        return found

    def label(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Put task, context band and role in front of measured rows.

        Args:
            rows: path_id, exit_layer, draft_length and more, one row a decode.
        """
        labels = pd.DataFrame(
            {
                "task": one.bucket.task,
                "context_min": one.bucket.context_min,
                "context_max": one.bucket.context_max,
                "role": one.role,
                "path_id": path_id,
                "exit_layer": one.cell[0],
                "draft_length": one.cell[1],
            }
            for one in self.cells
            for path_id in one.path_ids
        ).astype({"context_max": "Int64"})
        keys = ["path_id", "exit_layer", "draft_length"]
        joined = rows.merge(labels, on=keys, how="left", validate="m:1")
        front = [name for name in labels.columns if name not in keys]
        return joined[[*front, *rows.columns]]

    def to_document(self) -> dict[str, Any]:
        """Plain values for the manifest."""
        return {
            "budget_s": self.budget_s,
            "predicted_s": self.predicted_s,
            "num_left_out": self.num_left_out,
            "cells": [
                {
                    "task": one.bucket.task,
                    "context_min": one.bucket.context_min,
                    "context_max": one.bucket.context_max,
                    "temperature": one.bucket.temperature,
                    "exit_layer": one.cell[0],
                    "draft_length": one.cell[1],
                    "role": one.role,
                    "path_ids": list(one.path_ids),
                }
                for one in self.cells
            ],
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Chosen":
        """The choice as `to_document` gave it."""
        cells = tuple(
            ConfirmCell(
                bucket=BucketKey(
                    task=one["task"],
                    context_min=one["context_min"],
                    context_max=one["context_max"],
                    temperature=one["temperature"],
                ),
                cell=(one["exit_layer"], one["draft_length"]),
                role=cast(Role, one["role"]),
                path_ids=tuple(one["path_ids"]),
            )
            for one in document["cells"]
        )
        names = ("budget_s", "predicted_s", "num_left_out")
        return cls(cells=cells, **{name: document[name] for name in names})


def choose_once(run: RunDir, config: CalibrateConfig, rules: Iterable[RuleCell]) -> Chosen:
    """Return the cells this run confirms: those it chose before it was stopped, or a new choice.

    A new choice is written into the manifest before anything is decoded. Decoding takes time that
    depends on the machine, so predicted seconds are held against the budget, not measured ones.

    Args:
        run: a run whose walk is done.
        config: its limits.
        rules: of the draft plan.
    """
    entry = run.manifest["stages"].get(STAGE, {})
    if "cells" in entry:
        return Chosen.from_document(entry)
    chosen = _choose(run, config, rules)
    run.set_stage(STAGE, "running", **chosen.to_document())
    return chosen


def _choose(run: RunDir, config: CalibrateConfig, rules: Iterable[RuleCell]) -> Chosen:
    walk = read_table(run.artefact("walk.parquet"))
    asked = config.confirm.budget_s
    budget = auto_budget(spent_seconds(run, walk)) if asked == "auto" else float(asked)
    limits = Limits(
        cells=config.confirm.cells,
        requests=config.confirm.requests,
        min_tokens=config.confirm.min_tokens,
        repeats=config.confirm.repeats,
        budget_s=budget,
        seed=config.seed,
    )
    usable = walk.loc[walk["exit_layer"].isin(run.manifest["measurement"]["exit_layers"])]
    requests = read_table(run.artefact("requests.parquet"))
    choice = choose(rules, with_buckets(usable, requests, config.context_edges), limits)
    return Chosen(
        cells=choice.cells,
        budget_s=budget,
        predicted_s=choice.predicted_s,
        num_left_out=choice.num_left_out,
    )


def spent_seconds(run: RunDir, walk: pd.DataFrame) -> float:
    """Return about how long the run has taken, from its files and so the same when resumed (s).

    A stage that recorded its `seconds` is taken at its word. Else observing counts every path's
    prefill and plain decode (in batches it takes less, with scoring more), costs every sample.
    """
    stages = run.manifest["stages"]
    paths = walk.drop_duplicates("path_id")
    predicted = {
        "observe": float(paths[["ar_seconds", "prefill_seconds"]].sum().sum()),
        "cost": float(read_table(run.artefact("cost.csv"), ["seconds"])["seconds"].sum()),
    }
    return sum(stages.get(name, {}).get("seconds", guess) for name, guess in predicted.items())


def rule_cells(plan: PlanDocument) -> list[RuleCell]:
    """Return what confirmation needs of a plan's rules; a rule without a cell is left out.

    A rule is confirmed at the temperature it was measured at, its `temperature_min`, wherever
    else it holds.
    """
    return [
        _rule_cell(rule, (rule.drafter.exit_layer, rule.draft.length))
        for rule in plan.rules
        if rule.drafter.exit_layer is not None and rule.draft.length is not None
    ]


def _rule_cell(rule: Rule, cell: Pair) -> RuleCell:
    second = rule.runner_up_cell
    return RuleCell(
        bucket=BucketKey(
            task=rule.task,
            context_min=rule.context_min,
            context_max=rule.context_max,
            temperature=rule.temperature_min,
        ),
        cell=cell,
        enabled=rule.enabled,
        time_share=rule.time_share or 0.0,
        runner_up=(second[0], second[1]) if second else None,
    )

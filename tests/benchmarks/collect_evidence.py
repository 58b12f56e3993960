"""Write evidence.json, what finished runs say, for the tables of README.md.

usage: python tests/benchmarks/collect_evidence.py OUT.json LABEL=RUN [LABEL=RUN ...]
"""

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from selfspec_cli.analysis.batch_confirmation import summarise_batch_confirm
from selfspec_cli.analysis.confirmation import median_and_worst_error, summarise_confirm
from selfspec_cli.buckets import context_label
from selfspec_cli.plan.document import PlanDocument
from selfspec_cli.plan.files import read_plan
from selfspec_cli.plan.inputs import load_plan_inputs
from selfspec_cli.storage import RunDir, read_table

SHOWN_LAYERS = (9, 15, 24)  # 30 %, 50 % and 80 % of the demo model
DEPTH = 15  # half of it; the damped twins are damped from here on
DRAFT = 4


def facts(label: str, folder: Path) -> dict[str, Any]:
    """Everything the tables show of one run."""
    run = RunDir.load(folder)
    plan = read_plan(folder / "plan.yaml")
    summary = summarise_confirm(read_table(folder / "confirm.csv"))
    median, worst = median_and_worst_error(summary)
    return {
        "label": label,
        "engine": plan.measured_on.engine,
        "num_requests": plan.traces.num_requests,
        "num_paths": run.manifest["stages"]["walk"]["paths"],
        "cells": run.manifest["stages"]["walk"]["cells"],
        "acceptance_at_15": acceptance(folder),
        **rules(plan),
        **largest(plan),
        "confirmed_cells": len(summary),
        "median_error": median,
        "worst_error": worst,
        **greedy(folder),
        "cost_error": plan.measured_on.costs.cost_model_error,
        "floor_ratio": plan.measured_on.costs.floor_ratio,
        "costs": costs(run),
        "confirmed": [cell(row) for row in summary.to_dict("records")],
        "batches": batches(plan),
        "batches_decoded": batches_decoded(folder),
    }


def batches(plan: PlanDocument) -> list[dict[str, Any]]:
    """The rule with most decode time at every measured batch size; empty where there is one."""
    rules = [rule for rule in plan.rules if rule.by_batch]
    if len(plan.batch_sizes) < 2 or not rules:
        return []
    rule = max(rules, key=lambda one: one.time_share or 0.0)
    tokens = {one.batch_size: one.tokens_per_s for one in plan.batches}
    return [
        {
            "rule": f"{rule.task}, T={rule.temperature_min:g}",
            "batch_size": at.batch_size,
            "plain_tokens_per_s": tokens.get(at.batch_size),
            "refill": at.speedup.model_dump(),
            "static": at.static_speedup,
            "waiting_share": at.waiting_share,
            "grouping_gain": at.grouping_gain,
            "best": at.best and [at.best.exit_layer, at.best.draft_length],
            "max_batch": rule.max_batch,
        }
        for at in rule.by_batch
    ]


def batches_decoded(folder: Path) -> list[dict[str, Any]]:
    """Real batches beside their predictions; empty where none was decoded."""
    path = folder / "confirm_batch.csv"
    if not path.exists():
        return []
    names = (
        "batch_size", "schedule", "temperature", "exit_layer", "draft_length",
        "predicted_speedup", "measured_speedup", "error",
    )  # fmt: skip
    table = summarise_batch_confirm(read_table(path))
    return [
        {name: None if pd.isna(row[name]) else row[name] for name in names}
        for row in table.to_dict("records")
    ]


def rules(plan: PlanDocument) -> dict[str, Any]:
    """What the plan decides."""
    kinds = ("own", "parent", "all", "none")
    on = [rule for rule in plan.rules if rule.enabled]
    return {
        "verdict": plan.verdict,
        "rules": len(plan.rules),
        "enabled": len(on),
        "by_evidence": {kind: sum(r.evidence == kind for r in plan.rules) for kind in kinds},
        "enabled_layers": sorted({rule.drafter.exit_layer for rule in on}),
        "decode_time_change": plan.total.decode_time_change.model_dump(),
        "sentence": plan.total.sentence,
    }


def largest(plan: PlanDocument) -> dict[str, Any]:
    """What the bucket with most decode time has, needs, and keeps of the textbook's speedup."""
    priced = [rule for rule in plan.rules if rule.textbook is not None]
    if not priced:
        return {"largest": None, "needed_at_15": None, "had_at_15": None, "textbook_left": None}
    rule = max(priced, key=lambda one: one.time_share or 0.0)
    at_15 = next((b for b in rule.break_even_by_layer if b.exit_layer == DEPTH), None)
    return {
        "largest": f"{rule.task}, T={rule.temperature_min:g}",
        "needed_at_15": at_15 and at_15.needed,
        "had_at_15": at_15 and at_15.observed,
        "textbook_left": rule.textbook and rule.textbook.discount,
    }


def acceptance(folder: Path) -> float | None:
    """Tested acceptance at L = 15, k = 1, over all paths."""
    walk = read_table(folder / "walk.parquet")
    chosen = walk.loc[(walk["exit_layer"] == DEPTH) & (walk["draft_length"] == 1)]
    tested = float(chosen["tested"].sum())
    return float(chosen["accepted"].sum()) / tested if tested else None


def greedy(folder: Path) -> dict[str, int]:
    """Greedy decodes and how many equal plain decoding."""
    table = read_table(folder / "confirm.csv")
    own = table.loc[table["temperature"] == 0.0, "exact"]
    return {"greedy_equal": int(own.eq(True).sum()), "greedy_decodes": len(own)}


def costs(run: RunDir) -> list[dict[str, float]]:
    """Greedy c and v of some layers at the median context of the run's prompts."""
    inputs = load_plan_inputs(run)
    surface = inputs.costs.surfaces["greedy"]
    context = float(inputs.requests["prompt_tokens"].median())
    layers = [layer for layer in SHOWN_LAYERS if layer in inputs.exit_layers]
    return [
        {
            "exit_layer": layer,
            "share": layer / surface.num_layers,
            "c": float(surface.draft_cost_ratio(layer, context)),
            "v4": float(surface.verify_cost_ratio(layer, DRAFT, context)),
        }
        for layer in layers
    ]


def cell(row: dict[Any, Any]) -> dict[str, Any]:
    """One cell that was decoded for real."""
    top = None if pd.isna(row["context_max"]) else int(row["context_max"])
    band = context_label(int(row["context_min"]), top)
    low, high = row["measured_speedup_low"], row["measured_speedup_high"]
    return {
        "bucket": f"{row['task']}, {band}, T={row['temperature']:g}",
        "exit_layer": int(row["exit_layer"]),
        "draft_length": int(row["draft_length"]),
        "role": row["role"],
        "predicted": float(row["predicted_speedup"]),
        "measured": {
            "estimate": float(row["measured_speedup"]),
            "low": None if pd.isna(low) else float(low),
            "high": None if pd.isna(high) else float(high),
        },
        "error": float(row["error"]),
    }


def main(out: str, *labelled: str) -> None:
    """Collect and write."""
    runs = [facts(label, Path(folder)) for label, folder in (one.split("=", 1) for one in labelled)]
    text = json.dumps({"runs": runs}, indent=1, allow_nan=False)
    Path(out).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

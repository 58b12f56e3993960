"""Predicted against measured speedup over cells spread over L, k, context, batch and twins.

usage: python tests/benchmarks/predictions.py OUT LABEL=MODEL [LABEL=MODEL ...] [--json FILE]

Run it again while it exits with 75 (`staged`). OUT is an existing folder; every model has a run
directory in it. A model's predictions are written to OUT/LABEL-predictions.json, and their hash
beside them, before its first cell is decoded; a file that is there is never written again.

Requests are short and long prompts of the sample trace. Cells are fixed here, not chosen by what
they promise: most are no good, and a prediction has to be right about those too.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from staged import Lines, Sitting, Stage, TimeUp, calibrated, sit, write_json

from selfspec_cli.analysis.batch_confirmation import (
    SCHEDULES,
    predict_refill,
    predict_static,
    summarise_batch_confirm,
    with_speedups,
)
from selfspec_cli.analysis.batch_costs import BatchCosts
from selfspec_cli.analysis.run_walk import run_coins
from selfspec_cli.calibrate.batch_confirm_cells import BatchCell
from selfspec_cli.calibrate.batch_confirm_stage import decode_cell
from selfspec_cli.config import CalibrateConfig, resolve_trace
from selfspec_cli.config.hashes import document_hash
from selfspec_cli.config.settings import ConfirmConfig
from selfspec_cli.replay.confirm import ConfirmPath, confirm_path
from selfspec_cli.replay.decode import Cell

LAYERS = "9,12,15,20,24"
ALONE = ((9, 2), (12, 6), (15, 4), (15, 8), (20, 3), (24, 5))  # (L, k) on short and long prompts
SAMPLED = ((12, 3), (15, 4), (20, 6))  # at T = 0.7, short prompts
BATCHED = ((4, (15, 4)), (8, (15, 3)), (8, (20, 2)))  # (B, (L, k)), both schedules, short prompts
SHORT, LONG = (40, 600), (1400, 3000)  # characters of a request
NUM_LONG, PATHS, ROWS = 4, 4, 2  # long requests; paths of a cell alone; paths a row of a batch
TEMPERATURE = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Todo:
    """One cell to predict and to decode."""

    name: str
    batch_size: int
    schedule: str
    """`alone` at one row."""
    temperature: float
    cell: tuple[int, int]
    path_ids: tuple[str, ...]


def main() -> None:
    """Work for one sitting."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("models", nargs="+", metavar="LABEL=MODEL")
    parser.add_argument("--layers", default=LAYERS)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--so-far", action="store_true", help="write tables, decode nothing")
    given = parser.parse_args()
    sit(given.seconds, lambda sitting: work(given, sitting))


def work(given: argparse.Namespace, sitting: Sitting) -> None:
    """Finish one model after the other, then the table."""
    trace = write_trace(given.out / "trace.jsonl", ROWS * max(batch for batch, _ in BATCHED) + 2)
    tables, facts = [], {}
    for label, model in (one.split("=", 1) for one in given.models):
        try:
            stage = calibrated(config_of(given, trace, label, model), so_far=given.so_far)
        except TimeUp:
            if not given.so_far:
                raise
            Lines().note(f"{label}: nothing measured yet")
            continue
        rows = measure(stage, given.out / f"{label}-predictions.json", sitting)
        tables.append(rows.assign(model=label))
        facts[label] = stage.run
    document = result(pd.concat(tables, ignore_index=True))
    write_json(given.json, next(iter(facts.values())), document)
    show(document)


def write_trace(path: Path, num_short: int) -> Path:
    """Short and long requests of the sample trace, in its order."""
    lines = resolve_trace("sample").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if SHORT[0] <= characters(line) <= SHORT[1]][:num_short]
    kept += [line for line in lines if LONG[0] <= characters(line) <= LONG[1]][:NUM_LONG]
    path.write_text("\n".join(kept) + "\n", encoding="utf-8")
    return path


def characters(line: str) -> int:
    """Length of a request's messages."""
    return sum(len(message["content"]) for message in json.loads(line)["messages"])


def config_of(given: argparse.Namespace, trace: Path, label: str, model: str) -> CalibrateConfig:
    """Observe and time; whatever is decoded for real is this benchmark's own."""
    return CalibrateConfig(
        model=model,
        traces=(str(trace),),
        out=str(given.out / f"run-{label}"),
        exit_layers=given.layers,
        temperatures=(0.0, TEMPERATURE),
        batch_sizes=(1, *sorted({batch for batch, _ in BATCHED})),
        engine=given.engine,
        max_tokens=given.tokens,
        continuations="regenerate",
        confirm=ConfirmConfig(cells=0),
        include_text=True,
    )


def measure(stage: Stage, file: Path, sitting: Sitting) -> pd.DataFrame:
    """Predict all, write and hash it, then decode; one row a cell."""
    todo = everything(stage)
    predicted = [predict(stage, one) for one in todo]
    hashed = written_once(file, todo, predicted)
    paths = {path.path_id: path for path in stage.paths()}
    rows = []
    for one, own in zip(todo, predicted, strict=True):
        if own is None:
            Lines().note(f"{one.name}: not priced")
            continue
        held = [paths[path_id] for path_id in one.path_ids]
        try:
            rows.append(decode_one(stage, one, held, own, sitting))
        except TimeUp:
            if stage.loaded is not None:
                raise
            Lines().note(f"{one.name}: not measured yet")
            continue
        Lines().note(f"{one.name}: {rows[-1]['error']:+.1%}")
    return pd.DataFrame(rows).assign(predictions_sha256=hashed)


def everything(stage: Stage) -> list[Todo]:
    """Every cell, each with its paths: those at T = 0 but for the sampled ones."""
    by_prompt = {t: paths_by_prompt(stage, t) for t in (0.0, TEMPERATURE)}
    short, long = by_prompt[0.0][:-NUM_LONG], by_prompt[0.0][-NUM_LONG:]
    found = [
        todo(1, "alone", 0.0, cell, paths)
        for paths in (spread(short, PATHS), long)
        for cell in ALONE
    ]
    sampled = spread(by_prompt[TEMPERATURE][:-NUM_LONG], PATHS)
    found += [todo(1, "alone", TEMPERATURE, cell, sampled) for cell in SAMPLED]
    for batch, cell in BATCHED:
        rows = spread(short, ROWS * batch)
        found += [todo(batch, schedule, 0.0, cell, rows) for schedule in SCHEDULES]
    return found


def todo(
    batch: int, schedule: str, temperature: float, cell: tuple[int, int], paths: Sequence[str]
) -> Todo:
    """A cell with a name that tells it from others."""
    name = f"B={batch} {schedule} T={temperature:g} L={cell[0]} k={cell[1]} on {paths[0]}"
    return Todo(
        name=name, batch_size=batch, schedule=schedule, temperature=temperature, cell=cell,
        path_ids=tuple(paths),
    )  # fmt: skip


def paths_by_prompt(stage: Stage, temperature: float) -> list[str]:
    """Paths with something to draft, by prompt length."""
    walk = stage.outcome.walk
    own = walk.loc[(walk["temperature"] == temperature) & (walk["committed"] > 0)]
    ordered = own.drop_duplicates("path_id").sort_values(["prompt_tokens", "path_id"])
    return list(ordered["path_id"])


def spread(paths: Sequence[str], count: int) -> list[str]:
    """`count` of them, evenly over the list, in an order that mixes lengths."""
    at = [int(i * len(paths) / count) for i in range(min(count, len(paths)))]
    chosen = [paths[i] for i in at]
    return [*chosen[::2], *chosen[1::2]]


def rows_of(stage: Stage, one: Todo) -> pd.DataFrame:
    """Walk rows of a cell's paths, in their order."""
    walk = stage.outcome.walk
    at = (walk["exit_layer"] == one.cell[0]) & (walk["draft_length"] == one.cell[1])
    return walk.loc[at].set_index("path_id", drop=False).loc[list(one.path_ids)]


def predict(stage: Stage, one: Todo) -> dict[str, float] | None:
    """Seconds of both sides; None where something was not timed."""
    rows, costs = rows_of(stage, one), stage.outcome.costs
    if one.schedule == "alone":
        sums = rows[["ar_seconds", "seconds"]].sum()
        return {"plain_seconds": float(sums["ar_seconds"]), "seconds": float(sums["seconds"])}
    if one.schedule == "refill":
        found = predict_refill(rows, costs.by_batch[one.batch_size], one.batch_size)
    else:
        layers = stage.prepared.observed_layers
        coins = {path.path_id: path for path in run_coins(stage.run, layers)}
        paths = [coins[path_id] for path_id in one.path_ids]
        by_rows = BatchCosts(surfaces=costs.of_law(str(rows["law"].iloc[0])))
        row = layers.index(one.cell[0])
        found = predict_static(paths, row, one.cell, by_rows, one.batch_size)
    return found.to_document() if found else None


def written_once(
    file: Path, todo: Sequence[Todo], predicted: Sequence[dict[str, float] | None]
) -> str:
    """Write predictions before anything is decoded; returns their hash.

    Raises:
        SystemExit: an earlier sitting predicted otherwise.
    """
    cells = [
        {
            "name": one.name, "path_ids": list(one.path_ids),
            "speedup": own["plain_seconds"] / own["seconds"] if own else None,
        }
        for one, own in zip(todo, predicted, strict=True)
    ]  # fmt: skip
    hashed = document_hash({"cells": cells})
    if not file.exists():
        document = {"sha256": hashed, "cells": cells}
        file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if json.loads(file.read_text(encoding="utf-8"))["sha256"] != hashed:
        raise SystemExit(f"{file} holds other predictions: they may not change once made")
    return hashed


def decode_one(
    stage: Stage,
    one: Todo,
    paths: Sequence[ConfirmPath],
    predicted: dict[str, float],
    sitting: Sitting,
) -> dict[str, Any]:
    """Decode a cell for real and put its measured speedup beside the predicted one."""
    measured = alone(stage, one, paths, sitting) if one.schedule == "alone" else None
    measured = measured or in_batches(stage, one, paths, predicted, sitting)
    speedup = predicted["plain_seconds"] / predicted["seconds"]
    rows = rows_of(stage, one)
    return {
        "batch_size": one.batch_size,
        "schedule": one.schedule,
        "temperature": one.temperature,
        "exit_layer": one.cell[0],
        "draft_length": one.cell[1],
        "num_requests": len(paths),
        "prompt_tokens": float(rows["prompt_tokens"].mean()),
        "predicted": speedup,
        **measured,
        "error": speedup / measured["measured"] - 1,
    }


def alone(
    stage: Stage, one: Todo, paths: Sequence[ConfirmPath], sitting: Sitting
) -> dict[str, float]:
    """Ratio of sums over paths, each decoded with all cells of its kind, interleaved."""
    wanted = SAMPLED if one.temperature > 0 else ALONE
    cells = [Cell(*cell) for cell in wanted]
    frames = []
    for path in paths:

        def decoded(path: ConfirmPath = path) -> pd.DataFrame:
            return pd.DataFrame(confirm_path(stage.setting, path, cells))

        table = stage.table(("alone", path.path_id, cells), decoded, sitting)
        check_exact(table)
        own = (table["exit_layer"] == one.cell[0]) & (table["draft_length"] == one.cell[1])
        frames.append(table.loc[own])
    rows = pd.concat(frames)
    priced = price_rounds(stage, one, rows)
    measured = float(rows["ar_seconds"].sum() / rows["seconds"].sum())
    plain = float(rows_of(stage, one)["ar_seconds"].sum())
    return {"measured": measured, "cost_error": plain / priced / measured - 1}


def price_rounds(stage: Stage, one: Todo, rows: pd.DataFrame) -> float:
    """Cost-model seconds of the rounds that really happened."""
    law = str(rows_of(stage, one)["law"].iloc[0])
    surface = stage.outcome.costs.surfaces[law]
    return sum(
        float(surface.round_seconds([one.cell[0]], drafted, contexts)[0].sum())
        for drafted, contexts in zip(rows["round_drafted"], rows["round_contexts"], strict=True)
    )


def check_exact(table: pd.DataFrame) -> None:
    """A speedup of other tokens is none."""
    greedy = table.loc[table["temperature"] == 0.0]
    if not (greedy["exact"].eq(True) | greedy["is_tie"].eq(True)).all():
        raise SystemExit(f"decodes differ from plain decoding:\n{greedy}")


def in_batches(
    stage: Stage,
    one: Todo,
    paths: Sequence[ConfirmPath],
    predicted: dict[str, float],
    sitting: Sitting,
) -> dict[str, float]:
    """The stage confirm_batch of a calibration, for this cell and schedule."""
    rows = rows_of(stage, one)
    law = str(rows["law"].iloc[0])
    document = {
        "batch_size": one.batch_size, "temperature": one.temperature, "law": law,
        "exit_layer": one.cell[0], "draft_length": one.cell[1], "path_ids": list(one.path_ids),
        "predicted": {one.schedule: predicted},
    }  # fmt: skip
    cell = BatchCell.from_document(document)
    costs = BatchCosts(surfaces=stage.outcome.costs.of_law(law))
    (schedule,) = cell.predicted

    def decoded() -> pd.DataFrame:
        row = decode_cell(stage.setting, paths, (cell, schedule), costs, 0)
        return with_speedups(pd.DataFrame([row]))

    table = stage.table(("batch", one.name), decoded, sitting)
    check_exact(table)
    summary = summarise_batch_confirm(table).iloc[0]
    return {name: float(summary[key]) for name, key in BATCH_FACTS.items()}


BATCH_FACTS = {"measured": "measured_speedup", "cost_error": "cost_error"}


def result(rows: pd.DataFrame) -> dict[str, Any]:
    """All cells of all models, and how far predictions are off."""
    by: list[tuple[str, Callable[[pd.DataFrame], pd.Series]]] = [
        ("model", lambda r: r["model"]),
        ("schedule", lambda r: r["schedule"]),
        ("batch_size", lambda r: r["batch_size"].astype(str)),
        ("temperature", lambda r: r["temperature"].astype(str)),
    ]
    cells = rows.drop(columns="predictions_sha256")
    return {
        "predictions_sha256": rows.groupby("model")["predictions_sha256"].first().to_dict(),
        "all": errors(rows),
        "by": {
            name: {str(key): errors(own) for key, own in rows.groupby(of(rows))}
            for name, of in by
        },
        "cells": cells.astype(object).where(cells.notna(), None).to_dict("records"),
    }  # fmt: skip


def errors(rows: pd.DataFrame) -> dict[str, float]:
    """Median and worst |predicted / measured - 1|, the same of the costs alone, and the sign."""
    found, cost = rows["error"].abs(), rows["cost_error"].abs()
    return {
        "cells": len(rows),
        "median_error": float(found.median()),
        "worst_error": float(found.max()),
        "mean_signed_error": float(rows["error"].mean()),
        "median_cost_error": float(cost.median()),
        "worst_cost_error": float(cost.max()),
    }


def show(document: dict[str, Any]) -> None:
    """Print the table."""
    for one in document["cells"]:
        print(f"{one['model']:>6} B={one['batch_size']} {one['schedule']:>6} "
              f"T={one['temperature']:g} L={one['exit_layer']:2d} k={one['draft_length']} prompt "
              f"{one['prompt_tokens']:4.0f}: predicted {one['predicted']:.3f} measured "
              f"{one['measured']:.3f} error {one['error']:+.1%}")  # fmt: skip
    parts = [("all", document["all"])]
    parts += [(f"{n} {k}", v) for n, own in document["by"].items() for k, v in own.items()]
    for name, own in parts:
        print(f"{name}: {own['cells']} cells, median {own['median_error']:.1%}, worst "
              f"{own['worst_error']:.1%}, mean {own['mean_signed_error']:+.1%}; costs alone "
              f"{own['median_cost_error']:.1%}, {own['worst_cost_error']:.1%}")  # fmt: skip


if __name__ == "__main__":
    main()

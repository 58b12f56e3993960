"""Rank the grid by observation and by decoding every cell: what each takes, and regret.

usage: python tests/benchmarks/ranking.py MODEL OUT [--json FILE] [--requests 2] [--tokens 24]

Run it again while it exits with 75 (`staged`). OUT is a run directory of its own.

Every cell is decoded on every request once, in the cheapest way there is: one prefill and two plain
decodes for all cells of a request and exit layer, cells on the very path that was observed (at
T > 0 with coins tossed beforehand), so all cells commit the same tokens. The best of hundreds of
single measurements looks good by luck alone. So the cells that measured best and the one that
observation chose are decoded again, several times and interleaved, and regret is what the choice
loses to the best of those second measurements; its interval is paired.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
from staged import Lines, Sitting, Stage, calibrated, sit, write_json

from selfspec_cli.analysis.intervals import ratio_interval
from selfspec_cli.analysis.run_walk import walk_paths
from selfspec_cli.config import CalibrateConfig, CostConfig
from selfspec_cli.config.settings import ConfirmConfig
from selfspec_cli.cost.clock import Clock
from selfspec_cli.engine.decoder import Decoder
from selfspec_cli.replay.confirm import ConfirmPath, path_job, path_policy, path_target_laws
from selfspec_cli.replay.decode import Cell, decode
from selfspec_cli.replay.observe import PathJob, observe
from selfspec_cli.storage import read_table

LAYERS = "9,11,12,13,14,15,16,17,18,20,22,24"
LENGTHS = "1-8"
TEMPERATURES = (0.0, 0.7, 1.0)
CONTENDERS = 4  # cells of each temperature that measured best, decoded again beside the chosen one
AGAIN = 6  # times
NEAR_BEST = 0.01  # predictions this close count as equal: smaller k, then smaller L, as in a plan
OBSERVE_TURNS = 3


def main() -> None:
    """Work for one sitting."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--trace", default="sample")
    parser.add_argument("--requests", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--layers", default=LAYERS)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--so-far", action="store_true", help="write tables, decode nothing")
    given = parser.parse_args()
    sit(given.seconds, lambda sitting: work(given, sitting))


def work(given: argparse.Namespace, sitting: Sitting) -> None:
    """Calibrate, decode every cell, decode the best again, time observation, write the result."""
    stage = calibrated(
        CalibrateConfig(
            model=given.model,
            traces=(given.trace,),
            out=str(given.out),
            exit_layers=given.layers,
            draft_lengths=LENGTHS,
            temperatures=TEMPERATURES,
            engine=given.engine,
            limit=given.requests,
            max_tokens=given.tokens,
            continuations="regenerate",
            confirm=ConfirmConfig(cells=0),
            cost=CostConfig(),
            include_text=True,
        ),
        so_far=given.so_far,
    )
    paths = stage.paths()
    everything = decode_everything(stage, paths, sitting)
    chosen = {t: choice(stage, t) for t in TEMPERATURES}
    again = decode_again(stage, paths, (everything, chosen), sitting)
    observed = stage.table("observe", lambda: observation_times(stage, paths), sitting)
    document = {
        "requests": given.requests,
        "paths": len(paths),
        "tokens": int(sum(len(path.tokens) - 1 for path in paths)),
        "cells": len(everything[["exit_layer", "draft_length", "temperature"]].drop_duplicates())
        - len(TEMPERATURES),
        "time": times(stage, everything, observed),
        "regret": [regret(everything, again, t, chosen[t]) for t in TEMPERATURES],
        "prediction": prediction(stage, everything),
    }
    write_json(given.json, stage.run, document)
    show(document)


def cells_of(stage: Stage) -> list[Cell]:
    """Every (L, k)."""
    return [Cell(n, k) for n in stage.prepared.exit_layers for k in stage.prepared.draft_lengths]


def decode_everything(stage: Stage, paths: Sequence[ConfirmPath], sitting: Sitting) -> pd.DataFrame:
    """One row a (path, cell), and two plain ones (L = 0) a path and exit layer."""
    frames = []
    for path in paths:
        for layer in stage.prepared.exit_layers:
            todo = [Cell(layer, k) for k in stage.prepared.draft_lengths]
            key = ("every", path.path_id, todo)
            frames.append(
                stage.table(key, lambda p=path, c=todo: decode_cells(stage, p, c, 0), sitting)
            )
        Lines().note(f"every cell: {path.path_id}")
    return pd.concat(frames, ignore_index=True)


def decode_cells(
    stage: Stage, path: ConfirmPath, cells: Sequence[Cell], repeat: int
) -> pd.DataFrame:
    """Decode cells on a path in random order, plainly before and after; one prefill for all."""
    setting, clock = stage.setting, Clock.for_device(stage.setting.loaded.view.device)
    laws = path_target_laws(setting, path)
    order: list[Cell | None] = list(cells)
    Random(f"{path.path_id}/{cells}/{repeat}").shuffle(order)
    state = Decoder(
        setting.loaded.view,
        path_job(setting, path),
        setting.policy(path.request, path.temperature),
        max_draft=max(cell.draft_length for cell in cells),
    )
    prefill = clock.span(state.prefill)
    if path.temperature > 0:
        state.output[:] = path.tokens[:1]
    rows = []
    for cell in [None, *order, None]:
        run = decode(state, path_policy(setting, path, laws, cell, repeat), cell, clock)
        rows.append(
            {
                "path_id": path.path_id,
                "group_id": path.request.group_id,
                "temperature": path.temperature,
                "exit_layer": cell.exit_layer if cell else 0,
                "draft_length": cell.draft_length if cell else 0,
                "repeat": repeat,
                "seconds": run.seconds,
                "committed": run.num_committed,
                "prefill_seconds": prefill,
            }
        )
    return pd.DataFrame(rows)


def choice(stage: Stage, temperature: float) -> tuple[int, int]:
    """The cell that observation ranks first: the walk's ratio of sums, near ties to smaller k."""
    sums = predicted(stage, temperature)
    best = sums.loc[sums["speedup"] >= sums["speedup"].max() * (1 - NEAR_BEST)]
    first = best.reset_index().sort_values(["draft_length", "exit_layer"]).iloc[0]
    return int(first["exit_layer"]), int(first["draft_length"])


def predicted(stage: Stage, temperature: float) -> pd.DataFrame:
    """Predicted speedup by (L, k)."""
    walk = stage.outcome.walk
    own = walk.loc[
        (walk["temperature"] == temperature) & walk["exit_layer"].isin(stage.prepared.exit_layers)
    ]
    sums = own.groupby(["exit_layer", "draft_length"])[["ar_seconds", "seconds"]].sum()
    return sums.assign(speedup=sums["ar_seconds"] / sums["seconds"])


def measured(rows: pd.DataFrame) -> pd.Series:
    """Speedup by (L, k): each path's plain mean beside its cells, ratio of sums over paths."""
    plain = rows.loc[rows["exit_layer"] == 0].groupby("path_id")["seconds"].mean()
    cells = rows.loc[rows["exit_layer"] > 0]
    per_path = cells.groupby(["exit_layer", "draft_length", "path_id"])["seconds"].mean()
    sums = per_path.groupby(["exit_layer", "draft_length"]).sum()
    return plain.sum() / sums


def decode_again(
    stage: Stage,
    paths: Sequence[ConfirmPath],
    found: tuple[pd.DataFrame, dict[float, tuple[int, int]]],
    sitting: Sitting,
) -> pd.DataFrame:
    """The cells that measured best and the chosen one, on every path, several times."""
    everything, chosen = found
    frames = []
    for path in paths:
        rows = everything.loc[everything["temperature"] == path.temperature]
        best = measured(rows).sort_values(ascending=False).index[:CONTENDERS]
        wanted = [Cell(*cell) for cell in dict.fromkeys([chosen[path.temperature], *best])]
        for repeat in range(1, AGAIN + 1):
            key = ("again", path.path_id, wanted, repeat)
            frames.append(
                stage.table(
                    key,
                    lambda p=path, c=wanted, r=repeat: decode_cells(stage, p, c, r),
                    sitting,
                )
            )
        Lines().note(f"best cells again: {path.path_id}")
    return pd.concat(frames, ignore_index=True)


def regret(
    everything: pd.DataFrame, again: pd.DataFrame, temperature: float, chosen: tuple[int, int]
) -> dict[str, Any]:
    """What the chosen cell loses at one temperature."""
    all_cells = measured(everything.loc[everything["temperature"] == temperature])
    second = again.loc[again["temperature"] == temperature]
    speedups = measured(second)
    best_once, best = all_cells.idxmax(), speedups.idxmax()
    return {
        "temperature": temperature,
        "chosen": list(chosen),
        "chosen_measured_once": float(all_cells.loc[chosen]),
        "best_measured_once": [*map(int, best_once), float(all_cells.max())],
        "median_cell": float(all_cells.median()),
        "best_over_median": float(speedups.max() / all_cells.median()),
        "chosen_again": float(speedups.loc[chosen]),
        "best_again": [*map(int, best), float(speedups.max())],
        "regret": float(1 - speedups.loc[chosen] / speedups.max()),
        "to_best_once": paired(second, chosen, tuple(map(int, best_once))),
        "to_best_again": paired(second, chosen, tuple(map(int, best))),
    }


def paired(
    rows: pd.DataFrame, chosen: tuple[int, int], other: tuple[int, int]
) -> dict[str, float | None]:
    """Chosen ÷ other seconds with its 95 % interval over (path, repeat) pairs."""
    table = rows.pivot_table(
        index=["path_id", "repeat"], columns=["exit_layer", "draft_length"], values="seconds"
    )
    pairs = np.array(["/".join(map(str, index)) for index in table.index])
    found = ratio_interval(table[chosen].to_numpy(), table[other].to_numpy(), pairs)
    return {"seconds_ratio": found.estimate, "low": found.low, "high": found.high}


def observation_times(stage: Stage, paths: Sequence[ConfirmPath]) -> pd.DataFrame:
    """Seconds to observe all paths, regenerated and recorded in turn, after one of each to warm."""
    jobs = {
        source: [
            PathJob(
                request=replace(path.request, completion_token_ids=path.tokens, finish="unknown"),
                temperature=path.temperature,
                source=source,
            )
            for path in paths
        ]
        for source in ("regenerated", "recorded")
    }
    clock, rows = Clock.for_device(stage.setting.loaded.view.device), []
    layers = stage.prepared.exit_layers
    batch = stage.prepared.config.observe_batch
    for turn in range(OBSERVE_TURNS + 1):
        for source, own in jobs.items():
            side_by_side = batch if source == "regenerated" else None
            seconds = clock.span(
                lambda j=own, r=side_by_side: observe(stage.setting, j, layers, rows=r)
            )
            rows.append({"source": source, "turn": turn, "seconds": seconds})
    return pd.DataFrame(rows).query("turn > 0")


def times(stage: Stage, everything: pd.DataFrame, observed: pd.DataFrame) -> dict[str, Any]:
    """Seconds of both ways, and their ratios."""
    cells = everything.loc[everything["exit_layer"] > 0]
    plain = everything.loc[everything["exit_layer"] == 0].groupby("path_id")["seconds"].mean()
    prefill = everything.groupby("path_id")["prefill_seconds"].mean()
    decoding = float(cells["seconds"].sum() + plain.sum() + prefill.sum())
    begin = time.perf_counter()
    walk_again(stage)
    walking = time.perf_counter() - begin
    costs = float(read_table(stage.run.artefact("cost.csv"), ["seconds"])["seconds"].sum())
    found: dict[str, Any] = {
        "every_cell_s": decoding,
        "walk_s": walking,
        "cost_samples_s": costs,
    }
    for source, own in observed.groupby("source"):
        seconds = statistics.median(own["seconds"])
        found[str(source)] = {
            "observe_s": seconds,
            "ratio": decoding / seconds,
            "ratio_with_walk": decoding / (seconds + walking),
            "ratio_with_walk_and_costs": decoding / (seconds + walking + costs),
            "spread": float(own["seconds"].max() / own["seconds"].min() - 1),
        }
    return found


def walk_again(stage: Stage) -> None:
    """Price every cell of every path from the run's files."""
    walk_paths(
        stage.run, stage.outcome.costs, stage.prepared.exit_layers, stage.prepared.draft_lengths
    )


def prediction(stage: Stage, everything: pd.DataFrame) -> dict[str, Any]:
    """How far all cells' predictions are from what was measured once, by temperature.

    At T = 0 rounds are known and the machine alone is in the error; above it, the luck of the
    coins of a single decode of a few requests is, too.
    """
    found = {}
    for temperature in TEMPERATURES:
        rows = everything.loc[everything["temperature"] == temperature]
        found[temperature] = (predicted(stage, temperature)["speedup"] / measured(rows) - 1).abs()
    every = pd.concat(found)
    return {
        "median_error": float(every.median()),
        "worst_error": float(every.max()),
        "by_temperature": {
            f"{t:g}": {"median_error": float(e.median()), "worst_error": float(e.max())}
            for t, e in found.items()
        },
    }


def show(document: dict[str, Any]) -> None:
    """Print the table."""
    found = document["time"]
    print(f"every cell of {document['cells']} on {document['requests']} requests: "
          f"{found['every_cell_s']:.0f} s")  # fmt: skip
    for source in ("regenerated", "recorded"):
        one = found[source]
        print(f"observing {source} text: {one['observe_s']:.2f} s, {one['ratio']:.0f} x cheaper, "
              f"{one['ratio_with_walk']:.0f} x with the walk, "
              f"{one['ratio_with_walk_and_costs']:.0f} x with the costs too")  # fmt: skip
    for one in document["regret"]:
        ratio, (layer, k, best) = one["to_best_again"], one["best_again"]
        print(f"T={one['temperature']:g}: chosen {one['chosen']} {one['chosen_again']:.3f}, best "
              f"[{layer}, {k}] {best:.3f}, regret {one['regret']:.1%}, seconds ratio "
              f"{shown(ratio)}; best / median cell {one['best_over_median']:.2f}")  # fmt: skip


def shown(ratio: dict[str, float | None]) -> str:
    """A ratio and its interval."""
    if ratio["low"] is None:
        return f"{ratio['seconds_ratio']:.3f}"
    return f"{ratio['seconds_ratio']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"


if __name__ == "__main__":
    main()

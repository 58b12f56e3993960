"""A small run on disk: made-up coins and seconds, walked, priced, planned by the real functions."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from selfspec_cli.analysis.confirmation import add_predictions
from selfspec_cli.analysis.costs import price
from selfspec_cli.analysis.grid import build_grid
from selfspec_cli.analysis.run_walk import walk_paths
from selfspec_cli.buckets import context_band
from selfspec_cli.plan.confirming import MeasuredCell, apply_confirmation
from selfspec_cli.plan.files import write_plan
from selfspec_cli.plan.inputs import load_plan_inputs
from selfspec_cli.plan.planner import basis_of, draft_plan
from selfspec_cli.plan.settings import PlanSettings
from selfspec_cli.storage import RunDir, read_table, write_table

DEPTH = 6
LAYERS = (2, 3, 4)
LENGTHS = (1, 2, 3, 4)
TEMPERATURES = (0.0, 0.7)
EDGES = (0, 512)
CONTEXTS = (32, 256, 1024)
SETTINGS = PlanSettings(min_requests=10, context_edges=EDGES)
TASKS = {"code": 0.95, "chat": 0.25}
"""Acceptance by task at the deepest exit layer; each layer less is a little worse."""
ALONE = {1: 2e-5}
"""Seconds that one more position costs a layer, by batch size."""
FADING = {1: 2e-5, 4: 3e-5, 8: 2e-4}
"""At batch 8 speculation does not pay any more."""
STEADY = {1: 2e-5, 4: 2e-6, 8: 1e-6}
"""Batches cost next to nothing: the gain stays."""
HOSTILE = {
    "</script><script>document.title='owned'</script>": 0.9,
    '<img src=x onerror="document.title=1">{{7*191}} ${7*191}': 0.5,
    "a\"b'c&d": 0.2,
    "=cmd|' /C calc'!A0": 0.2,
    "résumé 中文 \x1b[31m \u202e": 0.2,
    "../../escape": 0.2,
}
"""Task labels that attack a page, a spreadsheet, a terminal or a file system."""
BLOCK_PACE = (1.0, 1.01, 0.99, 1.005, 0.995)


def make_run(
    folder: Path,
    tasks: Mapping[str, float] = TASKS,
    *,
    requests_per_task: int = 14,
    tokens: int = 40,
    confirm: bool = True,
    seed: int = 1,
    temperatures: Sequence[float] = TEMPERATURES,
    settings: PlanSettings = SETTINGS,
    batches: Mapping[int, float] = ALONE,
) -> Path:
    """Write a complete run into `folder` and return it; `batches` as in `cost_rows`."""
    rng = np.random.default_rng(seed)
    run = RunDir.open(folder, "measured")
    begin(run, settings, temperatures)
    requests = _requests(tasks, requests_per_task, tokens)
    paths = _paths(requests, tokens, temperatures)
    write_table(requests, run.artefact("requests.parquet"))
    write_table(paths, run.artefact("paths.parquet"))
    seen = _observations(paths, requests.set_index("request_id")["task"].map(tasks), tokens, rng)
    write_table(seen, run.artefact("observations.parquet"))
    run.finish_stage(
        "observe", ["requests.parquet", "paths.parquet", "observations.parquet"],
        sources={"regenerated": len(paths)}, recorded_checks=[],
        output_window={"observed_tokens": tokens, "median_tokens": float(tokens),
                       "default_max_tokens": 128, "num_default_max_tokens": 0},
    )  # fmt: skip
    write_table(cost_rows(batches=batches), run.artefact("cost.csv"))
    floors = {str(context): 0.005 for context in CONTEXTS}
    run.finish_stage(
        "cost", ["cost.csv"], layer_kinds=["full"] * DEPTH,
        bandwidth={"read_bytes_per_s": 1e10, "floor_s": floors},
    )  # fmt: skip
    costs = price(read_table(run.artefact("cost.csv")), ["full"] * DEPTH)
    table, left_out = walk_paths(run, costs, LAYERS, LENGTHS)
    write_table(table, run.artefact("walk.parquet"))
    grid = build_grid(table, requests, costs.surfaces, EDGES, seed=0, by_batch=costs.by_batch)
    write_table(grid, run.artefact("grid.csv"))
    run.finish_stage("walk", ["walk.parquet", "grid.csv"], not_walked=left_out)
    if confirm:
        decoded = _confirm(table, requests, paths, rng)
        write_table(decoded, run.artefact("confirm.csv"))
        run.finish_stage("confirm", ["confirm.csv"], rows=len(decoded))
    run.record_read(
        read=len(requests) + 3,
        skipped={"malformed": {"rows": 3, "lines": ["log.jsonl:4", "log.jsonl:9"]}},
    )
    plan_run(folder, settings)
    return folder


def plan_run(folder: Path, settings: PlanSettings = SETTINGS) -> None:
    """Write plan.yaml as `selfspec plan` would."""
    run = RunDir.load(folder)
    basis = basis_of(load_plan_inputs(run), settings)
    measured = (
        MeasuredCell.of_table(read_table(run.artefact("confirm.csv")))
        if run.artefact("confirm.csv").exists()
        else []
    )
    plan = apply_confirmation(draft_plan(basis), measured, basis)
    write_plan(plan, run.artefact("plan.yaml"))


def begin(run: RunDir, settings: PlanSettings, temperatures: Sequence[float]) -> None:
    """Write the manifest's head."""
    run.begin(
        argv=["calibrate", "-m", "tiny", "-t", "log.jsonl", "-o", "run"],
        measurement={
            "exit_layers": list(LAYERS), "exit_layers_beyond": [], "draft_lengths": list(LENGTHS),
            "temperatures": list(temperatures),
        },
        config={
            "model": "tiny", "traces": ["log.jsonl"], "limit": 300, "seed": 0,
            "context_edges": list(settings.context_edges), "default_max_tokens": 128,
        },
        analysis_hash=settings.analysis_hash,
        provenance={
            "device": {"kind": "cpu", "processor": "Test", "cores": 2, "memory_bytes": 2**33},
            "libraries": {"torch": "2.0", "numpy": "2.0"},
            "model": {"name": "tiny", "config_sha256": "c" * 64, "tokenizer_sha256": "t" * 64,
                      "weights": []},
            "traces": {"files": [], "sha256": "f" * 64},
        },
        seeds={"run": 0},
        self_check_error=1e-7,
        dtype="float32",
        status="done",
    )  # fmt: skip


def _requests(tasks: Mapping[str, float], count: int, tokens: int) -> pd.DataFrame:
    rows = [
        {
            "request_id": f"{at}-{number}", "group_id": f"group-{at}-{number}", "task": task,
            "context_band": "0-511 tokens", "prompt_tokens": 40 + 3 * number,
            "max_tokens": tokens, "stated_max_tokens": tokens, "script": "latin",
            "temperature": None, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0,
            "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_tokens": 0, "law": "",
            "content_hash": f"{at}-{number}",
        }
        for at, task in enumerate(tasks)
        for number in range(count)
    ]  # fmt: skip
    return pd.DataFrame(rows).astype({"temperature": float})


def _paths(requests: pd.DataFrame, tokens: int, temperatures: Sequence[float]) -> pd.DataFrame:
    rows = [
        {
            "path_id": f"{request_id}|T={degrees:g}", "request_id": request_id,
            "temperature": degrees, "source": "regenerated", "completion_tokens": tokens,
            "finish": "length", "budget": tokens, "surprisal": None if degrees == 0 else 40.0,
            "entropy": None if degrees == 0 else 40.0,
            "varentropy": None if degrees == 0 else 40.0, "num_zero_prob": 0,
            "num_outside_truncation": 0, "num_argmax": tokens,
        }
        for request_id in requests["request_id"]
        for degrees in temperatures
    ]  # fmt: skip
    floats = dict.fromkeys(("temperature", "surprisal", "entropy", "varentropy"), float)
    return pd.DataFrame(rows).astype(floats)


def _observations(
    paths: pd.DataFrame, acceptance: pd.Series, tokens: int, rng: np.random.Generator
) -> pd.DataFrame:
    columns: dict[str, list[np.ndarray]] = {}
    for path in paths.to_dict("records"):
        for layer in LAYERS:
            mean = acceptance[path["request_id"]] * (1 - 0.06 * (LAYERS[-1] - layer))
            hit = rng.random(tokens - 1) < mean
            coins = np.where(hit, 1.0, 0.0 if path["temperature"] == 0 else 0.1 * mean)
            piece = {
                "path_id": np.full(len(hit), path["path_id"], dtype=object),
                "request_id": np.full(len(hit), path["request_id"], dtype=object),
                "temperature": np.full(len(hit), path["temperature"]),
                "position": np.arange(1, tokens, dtype=np.int32),
                "drafter": np.full(len(hit), "early_exit", dtype=object),
                "exit_layer": np.full(len(hit), layer, dtype=np.int32),
                "accept_given_path": coins.astype(np.float32),
                "accept_prob": coins.astype(np.float32),
                "is_argmax": hit,
            }
            for name, values in piece.items():
                columns.setdefault(name, []).append(values)
    return pd.DataFrame({name: np.concatenate(parts) for name, parts in columns.items()})


def cost_rows(
    laws: Sequence[str] = ("greedy", "sampled"), batches: Mapping[int, float] = ALONE
) -> pd.DataFrame:
    """cost.csv: six equal layers of a millisecond, little on top, so that L/N is nearly true.

    `batches` gives, by batch size, the seconds that one more position of one row costs a layer.
    """
    names = ["part", "law", "exit_layer", "positions", "context", "seconds"]
    blocks = [
        pd.DataFrame(_cells(laws, size, slope), columns=names).assign(block=block, batch=size)
        for size, slope in batches.items()
        for block in range(len(BLOCK_PACE))
    ]
    rows = pd.concat(blocks, ignore_index=True)
    pace = rows["block"].map(dict(enumerate(BLOCK_PACE)))
    return rows.assign(seconds=rows["seconds"] * pace, engine="eager")


def _cells(laws: Sequence[str], size: int, slope: float) -> list[tuple[object, ...]]:
    cells: list[tuple[object, ...]] = []
    widths = range(1, max(LENGTHS) + 2)
    more = slope * (size - 1)  # rows beyond the first, in a layer
    for law in laws:
        for context in CONTEXTS:
            grown = 1e-7 * context
            cells.append(("ar", law, np.nan, 1, context, DEPTH * (0.001 + grown + more) + 0.0004))
        cells += [("head", law, np.nan, m, np.nan, 0.0003 + 1e-5 * m) for m in widths]
        cells += [("accept", law, np.nan, m, np.nan, 1e-5) for m in widths]
        cells.append(("draw", law, np.nan, 1, np.nan, 2e-5))
    for m in widths:
        cells.append(("embed", "", np.nan, m, np.nan, 1e-5))
        for context in CONTEXTS:
            cells.append(("prep", "", np.nan, m, context, 1e-5))
            chain = DEPTH * (0.001 + 1e-7 * context + slope * (m * size - 1))
            cells.append(("layers/full", "", DEPTH, m, context, chain))
    return cells


def _confirm(
    walk: pd.DataFrame, requests: pd.DataFrame, paths: pd.DataFrame, rng: np.random.Generator
) -> pd.DataFrame:
    """Decodes of two cells on eight requests a bucket, two percent around their predictions."""
    rows = walk.merge(requests[["request_id", "task"]], on="request_id")
    rows = rows.loc[rows["exit_layer"].isin(LAYERS[1:]) & (rows["draft_length"] == 3)]
    first = rows.groupby(["task", "temperature", "exit_layer"], sort=False).head(8)
    bands = [context_band(int(prompt), EDGES) for prompt in first["prompt_tokens"]]
    noise = np.exp(rng.normal(0.0, 0.02, len(first)))
    greedy = first["temperature"].to_numpy() == 0.0
    measured = pd.DataFrame(
        {
            **{
                name: first[name].to_numpy()
                for name in (
                    "path_id", "request_id", "group_id", "task", "temperature", "exit_layer",
                    "draft_length", "prompt_tokens", "ar_seconds", "rounds", "drafted", "tested",
                    "accepted",
                )
            },
            "context_min": [low for low, _ in bands],
            "context_max": pd.array([high for _, high in bands], dtype="Int64"),
            "role": np.where(first["exit_layer"] == LAYERS[-1], "rule", "spread"),
            "committed": first["committed"].round().astype(int).to_numpy(),
            "seconds": first["seconds"].to_numpy() * noise,
            "priced_seconds": first["seconds"].to_numpy(),
            "exact": pd.array(np.where(greedy, True, None), dtype="boolean"),
            "is_tie": pd.array([None] * len(first), dtype="boolean"),
            "free_rounds": np.where(greedy, np.nan, first["rounds"]),
            "free_committed": np.where(greedy, np.nan, first["committed"]),
            "repeat": 0,
        }
    )  # fmt: skip
    return add_predictions(measured, walk)

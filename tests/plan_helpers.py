"""Runs with hand-made costs and coins, so that every speedup of a plan can be checked by hand.

The model has 4 layers that cost 0.25 s each, whatever the positions, and everything else is free:
a plain step takes 1 s, a round of k drafts at exit layer L takes 1 + k L/4 s. A path whose coins
are all 1 commits k + 1 tokens a round, one whose coins are all 0 commits one.
"""

from dataclasses import dataclass
from itertools import count

import numpy as np
import pandas as pd

from selfspec_cli.plan.inputs import load_plan_inputs
from selfspec_cli.plan.planner import build_plan
from selfspec_cli.plan.settings import PlanSettings
from selfspec_cli.records import EARLY_EXIT
from selfspec_cli.storage import RunDir, write_table

NUM_LAYERS = 4
KINDS = ("full",) * NUM_LAYERS
LENGTHS = (1, 2, 3)
FREE = 1e-9  # a cost that must be positive, and is nothing
CONTEXTS = (1, 4096)
STEADY = (1.0, 1.0, 1.0)
COLUMNS = (
    "block", "part", "law", "exit_layer", "positions", "context", "batch", "engine", "seconds",
)  # fmt: skip
SHAKY = (1.0, 1.5, 0.6)  # blocks of an unstable machine
ALL_ACCEPTED_K3 = 32 / 14  # 33 tokens: 32 plain steps of 1 s; 8 rounds of 1 + 3/4 s
FADING = {1: 1.0, 4: 1.5, 8: 3.0}
"""How much slower rounds are by batch size, the plain step of a batch always 1 s: L = 1, k = 3 with
every draft accepted then gains 2.29 alone, 1.52 in fours and 0.76 in eights."""
REFUSED_K3 = 32 / 54.5  # 29 rounds of 1.75 s, then the budget leaves 2, 1 and 0 drafts


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request of a hand-made log and its paths."""

    task: str = "code"
    accept: object = 1.0
    """Every coin; a number, or one number an exit layer."""
    tokens: int = 33
    prompt: int = 40
    own: float | None = None
    """Temperature the log states."""
    temperatures: tuple[float, ...] = (0.7,)
    max_tokens: int | None = None
    stated: int | None = None
    group: str | None = None
    finish: str = "length"
    top_p: float = 1.0
    presence_penalty: float = 0.0
    law: str = ""


def asks(number, **fields):
    return [Ask(**fields) for _ in range(number)]


def cost_rows(
    factors=STEADY,
    laws=("greedy", "sampled"),
    slower=1.0,
    prefill=None,
    top=CONTEXTS[1],
    batch=1,
):
    """Rows of cost.csv; `slower` multiplies draft and verification but not the plain step."""
    rows = []
    for block, factor in enumerate(factors):
        for part, law, layers, positions, context, seconds in _cells(laws, slower, prefill, top):
            rows.append(
                (block, part, law, layers, positions, context, batch, "eager", seconds * factor)
            )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def batch_rows(slower=FADING, **fields):
    """Rows of cost.csv at several batch sizes; `slower` by batch size."""
    sizes = [cost_rows(slower=factor, batch=size, **fields) for size, factor in slower.items()]
    return pd.concat(sizes, ignore_index=True)


def _cells(laws, slower, prefill, top):
    nothing = np.nan
    for context in (CONTEXTS[0], top):
        for law in laws:
            yield "ar", law, nothing, 1, context, 1.0
            if prefill is not None:
                yield "prefill", law, nothing, nothing, context, prefill
        for m in range(1, max(LENGTHS) + 2):
            yield "prep", None, nothing, m, context, FREE
            yield "layers/full", None, NUM_LAYERS, m, context, slower
    for m in range(1, max(LENGTHS) + 2):
        yield "embed", None, nothing, m, nothing, FREE
        for law in laws:
            yield "head", law, nothing, m, nothing, FREE
            yield "accept", law, nothing, m, nothing, FREE
    for law in laws:
        yield "draw", law, nothing, 1, nothing, FREE


def make_run(folder, requests, *, costs=None, layers=(1, 2, 3), beyond=(), facts=None):
    """Write the files of a finished calibration; returns the run."""
    observed = sorted({*layers, *beyond})
    tables = _tables(requests, observed)
    measurement = {
        "exit_layers": list(layers),
        "exit_layers_beyond": list(beyond),
        "draft_lengths": list(LENGTHS),
        "traces": "t" * 64,
    }
    run = RunDir.open(folder, "m" * 64, measurement=measurement)
    config = {"context_edges": [0, 512, 2048, 8192], "default_max_tokens": 128}
    provenance = {
        "device": {"kind": "cpu"},
        "libraries": {"numpy": "2"},
        "model": {"name": "tiny", "config_sha256": "c", "tokenizer_sha256": "t", "weights": []},
    }
    run.begin(
        measurement=measurement,
        config=config,
        provenance=provenance,
        dtype="float32",
        seeds={"run": 0},
        template_time="2026-01-31T10:00:00",
    )
    for name, table in tables.items():
        write_table(table, run.artefact(name))
    run.finish_stage("observe", list(tables))
    write_table(cost_rows() if costs is None else costs, run.artefact("cost.csv"))
    run.finish_stage("cost", ["cost.csv"], layer_kinds=list(KINDS), **(facts or {}))
    return run


def _tables(requests, layers):
    numbers = count()
    rows, paths, seen = [], [], []
    for ask in requests:
        name = f"r{next(numbers):03d}"
        rows.append(_request(name, ask))
        for temperature in ask.temperatures:
            path_id = f"{name}|T={temperature:g}"
            paths.append(_path(path_id, name, temperature, ask))
            seen.append(_observed(path_id, name, temperature, ask, layers))
    return {
        "requests.parquet": pd.DataFrame(rows).astype(
            {"temperature": float, "stated_max_tokens": "Int64"}
        ),
        "paths.parquet": pd.DataFrame(paths),
        "observations.parquet": pd.concat(seen, ignore_index=True),
    }


def _request(name, ask):
    return {
        "request_id": name,
        "group_id": ask.group or f"g-{name}",
        "task": ask.task,
        "context_band": "",
        "prompt_tokens": ask.prompt,
        "max_tokens": ask.tokens if ask.max_tokens is None else ask.max_tokens,
        "stated_max_tokens": ask.tokens if ask.stated is None else ask.stated,
        "temperature": np.nan if ask.own is None else ask.own,
        "top_p": ask.top_p,
        "top_k": 0,
        "repetition_penalty": 1.0,
        "presence_penalty": ask.presence_penalty,
        "frequency_penalty": 0.0,
        "min_tokens": 0,
        "law": ask.law,
        "content_hash": name,
    }


def _path(path_id, name, temperature, ask):
    return {
        "path_id": path_id,
        "request_id": name,
        "temperature": temperature,
        "source": "regenerated",
        "completion_tokens": ask.tokens,
        "finish": ask.finish,
        "budget": ask.tokens if ask.max_tokens is None else ask.max_tokens,
    }


def _observed(path_id, name, temperature, ask, layers):
    positions = max(ask.tokens - 1, 0)
    accept = np.broadcast_to(np.asarray(ask.accept, dtype=float), (len(layers),))
    return pd.DataFrame(
        {
            "path_id": [path_id] * positions * len(layers),
            "request_id": [name] * positions * len(layers),
            "temperature": temperature,
            "position": np.tile(np.arange(1, positions + 1), len(layers)),
            "drafter": EARLY_EXIT,
            "exit_layer": np.repeat(layers, positions),
            "accept_given_path": np.repeat(accept, positions),
        }
    )


def plan_run(run, **settings):
    """Plan of a run; thresholds as given, else the defaults."""
    return build_plan(load_plan_inputs(run), PlanSettings(**settings))


def plan_of(folder, requests, **settings):
    return plan_run(make_run(folder / "run", requests), **settings)


def one_rule(plan, task="code", temperature=0.7, context_min=0):
    (rule,) = [
        rule
        for rule in plan.rules
        if (rule.task, rule.temperature_min, rule.context_min) == (task, temperature, context_min)
    ]
    return rule

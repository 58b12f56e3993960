"""One decode step of ours against transformers' and against the memory's speed.

usage: python tests/benchmarks/step_speed.py [MODEL] [--only SECTION ...] [--quick]

Sections, each under two minutes on two quiet cores, kept in the result file beside the others:
  short, long  plain steps at context 256 and 1024: ours compiled and eager, `generate` with a
               dynamic and a static cache, the bandwidth floor; verification of 3, 5 and 9 positions
               by all layers
  parts        c, v and o of the cost stage's own parts
  profile      where the time of a plain step goes
  preparation  seconds to make the compiled engine, with an empty and with a filled cache folder
  batch        tokens a second of eight rows and of one
  rival        `generate` with a static cache and transformers' own compiled forward
  frozen       the same with weights frozen into the compiled code

Ratios are medians over pairs of runs that stood side by side, with quartiles.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peers import (
    CLOCK,
    GREEDY,
    RESULTS,
    Run,
    child,
    equal_prefix,
    generate,
    generate_step,
    interleaved,
    load_own,
    load_peer,
    milliseconds,
    new_decoder,
    pair_ratio,
    random_prompt,
    record,
    sample_prompts,
    spread,
    steps,
)
from speed_tables import step_speed_table
from transformers import CompileConfig

from selfspec_cli.analysis.cost_surface import CostSurface
from selfspec_cli.cost.bandwidth import bandwidth_floor_seconds, read_bandwidth
from selfspec_cli.cost.measure import measure_costs
from selfspec_cli.cost.plan import CostPlan
from selfspec_cli.engine.batch import BatchDecoder
from selfspec_cli.engine.decoder import Decoder, Job
from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.policies import make_policy
from selfspec_cli.engine.view import LayerView

POSITIONS = (3, 5, 9)  # of a verification: k + 1
SHARES = (0.3, 0.5, 0.8)  # of the layers: 9, 15 and 24 of the demo model's 30
COMPILE_CAP_S = 60.0
ROWS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is timed."""

    contexts: tuple[int, ...] = (256, 1024)
    pairs: tuple[int, ...] = (9, 5)
    """At each context."""
    tokens: int = 25
    """Output tokens of the longer `generate`; the shorter makes one."""
    blocks: int = 12
    starts: int = 2
    """Cold starts of the compiled engine, and as many warm ones."""
    batch_tokens: int = 33
    requests: int = 24
    """Of the sample trace, regenerated in a batch and one by one."""
    regenerations: int = 2
    compile_cap_s: float = COMPILE_CAP_S


QUICK = Size(
    contexts=(16, 24), pairs=(2, 2), tokens=5, blocks=10, starts=1, batch_tokens=6, requests=9,
    regenerations=2,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What is measured: a model under one of our engines."""

    model: str
    engine: Any
    size: Size


def steps_section(bench: Bench, at: int) -> dict[str, Any]:
    """Plain steps and verifications at one context, all interleaved."""
    own, eager = load_own(bench.model, bench.engine), load_own(bench.model, "eager")
    peer, context = load_peer(bench.model), bench.size.contexts[at]
    prompt, tokens = random_prompt(own.vocab_size, context), bench.size.tokens
    budget = max(tokens, *POSITIONS) + 1
    states = {
        "compiled": new_decoder(own, prompt, budget),
        "eager": new_decoder(eager, prompt, budget),
    }
    for state in states.values():
        state.prefill()
    lengths = (1, tokens)
    tasks: dict[str, Callable[[], Run]] = {
        "floor": partial(_floor, own, context),
        **{name: partial(steps, state, tokens - 1) for name, state in states.items()},
        "transformers": partial(generate_step, peer, prompt, lengths),
        "static": partial(
            generate_step,
            peer,
            prompt,
            lengths,
            cache_implementation="static",
            max_cache_len=context + tokens,
        ),
        **{f"verify{m}": partial(_verification, states["compiled"], m) for m in POSITIONS},
    }
    runs = interleaved(tasks, bench.size.pairs[at])
    steps_taken = runs["compiled"]
    return {
        "context": context,
        "engine": own.engine,
        "num_layers": own.num_layers,
        "ms": {name: milliseconds(own_runs) for name, own_runs in runs.items()},
        "over_compiled": {
            name: pair_ratio(own_runs, steps_taken)
            for name, own_runs in runs.items()
            if name not in ("floor", "compiled")
        },
        "compiled_over_floor": pair_ratio(steps_taken, runs["floor"]),
        "equal_tokens": {
            name: equal_prefix(steps_taken[0].tokens, runs[name][0].tokens)
            for name in ("eager", "transformers", "static")
        },
        "tokens": tokens,
    }


def _floor(view: LayerView, context: int) -> Run:
    bandwidth = read_bandwidth(view.device, CLOCK)
    return Run(seconds=bandwidth_floor_seconds(view, context, bandwidth), tokens=())


@torch.inference_mode()
def _verification(state: Decoder, positions: int) -> Run:
    """All layers, head and argmax over so many positions; the cache is put back."""
    view, token = state.view, state.output[-1]
    ids = torch.full((1, positions), token, device=view.device)

    def once() -> None:
        hidden = view.run(view.embed(ids, state.cache), state.cache, 0, view.num_layers)
        view.head(hidden[0]).argmax(-1).tolist()
        state.rewind(1)

    once()
    return Run(seconds=CLOCK.span(once, 4) / 4, tokens=())


def parts_section(bench: Bench) -> dict[str, Any]:
    """c, v and o from the cost stage's parts, one value a block."""
    view = load_own(bench.model, bench.engine)
    layers = tuple(sorted({max(1, round(share * view.num_layers)) for share in SHARES}))
    plan = CostPlan(
        exit_layers=layers,
        draft_lengths=(2, 4),
        contexts=bench.size.contexts,
        laws=(GREEDY,),
        blocks=bench.size.blocks,
    )
    rows = measure_costs(view, plan, CLOCK, seed=0)
    surfaces = [
        CostSurface.from_rows(own, layer_kinds=view.layer_kinds, law="greedy")
        for _, own in rows.groupby("block")
    ]
    contexts = [
        {
            "context": context,
            "plain_ms": spread([1e3 * float(one.ar_seconds(context)) for one in surfaces]),
            "c": {
                str(layer): spread([one.draft_cost_ratio(layer, context) for one in surfaces])
                for layer in layers
            },
            "v4": {
                str(layer): spread([one.verify_cost_ratio(layer, 4, context) for one in surfaces])
                for layer in layers
            },
            "o4": spread([one.overhead_ratio(layers[0], 4, context) for one in surfaces]),
        }
        for context in bench.size.contexts
    ]
    return {"num_layers": view.num_layers, "engine": view.engine, "contexts": contexts}


@torch.inference_mode()
def profile_section(bench: Bench) -> dict[str, Any]:
    """Where a plain step's time goes: its products alone, layers, head, masks, the rest."""
    view, context = load_own(bench.model, bench.engine), bench.size.contexts[0]
    state = new_decoder(view, random_prompt(view.vocab_size, context), 3)
    state.prefill()
    ids = torch.zeros(1, 1, dtype=torch.long)
    hidden = view.embed(ids, state.cache)
    prepared, kinds = view.prepare(hidden, [context]), range(view.num_layers)
    linears = [m for m in view.model.modules() if hasattr(m, "weight") and m.weight.dim() == 2]
    layer_linears = [(m, torch.randn(1, m.weight.shape[1])) for m in linears if _inside(view, m)]
    calls: dict[str, Callable[[], object]] = {
        "step": state.ar_step,
        "products": lambda: [module(x) for module, x in layer_linears],
        "layers": lambda: view.chain(hidden, state.cache, kinds, prepared),
        "head": lambda: view.head(hidden[0]),
        "masks": lambda: view.prepare(view.embed(ids, state.cache), [context]),
    }

    def timed(call: Callable[[], object]) -> Run:
        seconds = CLOCK.span(call)
        state.rewind(1)
        return Run(seconds=seconds, tokens=())

    pairs = 10 * bench.size.pairs[0]
    runs = interleaved({name: partial(timed, call) for name, call in calls.items()}, pairs, warm=2)
    return {
        "context": context,
        "engine": view.engine,
        "products": len(layer_linears),
        "layer_bytes": sum(m.weight.nbytes for m, _ in layer_linears),
        "step_bytes": view.step_bytes(),
        "ms": {name: milliseconds(own) for name, own in runs.items()},
    }


def _inside(view: LayerView, module: torch.nn.Module) -> bool:
    """Whether a module belongs to a layer."""
    return any(module is one for layer in view._layers for one in layer.modules())


def preparation_section(bench: Bench) -> dict[str, Any]:
    """Seconds from a loaded model to a proved compiled engine, in processes of their own."""
    found: dict[str, list[Any]] = {"cold": [], "warm": []}
    for _ in range(bench.size.starts):
        with tempfile.TemporaryDirectory() as folder:
            for name, taken in found.items():
                one = child(
                    __file__,
                    [bench.model, "--child", "prepare", "--engine", bench.engine],
                    limit_s=300.0,
                    TORCHINDUCTOR_CACHE_DIR=str(Path(folder) / "compiled"),
                )
                if one is None:
                    raise RuntimeError(f"a {name} start took more than 300 s")
                taken.append(one)
    return {
        "programs": found["cold"][0]["programs"],
        "engine": found["cold"][0]["engine"],
        **{f"{name}_s": spread([one["seconds"] for one in own]) for name, own in found.items()},
    }


def prepare(bench: Bench) -> dict[str, Any]:
    """Make the compiled engine once, in this process."""
    from selfspec_cli.engine.engines import choose_engine

    view, programs = load_own(bench.model, "eager"), []
    begin = time.perf_counter()
    chosen = choose_engine(view, bench.engine, rows=ROWS, told=lambda: programs.append(1))
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "programs": len(programs), "engine": chosen.view.engine}


def batch_section(bench: Bench) -> dict[str, Any]:
    """Tokens a second of eight rows and of one: plain steps alone, and whole regenerations."""
    view = load_own(bench.model, bench.engine, rows=ROWS)
    context, tokens = bench.size.contexts[0], bench.size.batch_tokens
    prompt = random_prompt(view.vocab_size, context)
    rows = {
        count: _batch(view, [(prompt[: context - at % 4], tokens) for at in range(count)], count)
        for count in (1, ROWS)
    }
    for batch in rows.values():
        batch.prefill()
    step_runs = interleaved(
        {str(count): partial(_batch_steps, batch, tokens - 2) for count, batch in rows.items()},
        bench.size.pairs[0],
    )
    requests = sample_prompts(bench.model, bench.size.requests, longest=8 * context)
    whole_runs = interleaved(
        {
            "prompts": partial(_regenerate, view, [(prompt, 1) for prompt, _ in requests], 1),
            **{str(count): partial(_regenerate, view, requests, count) for count in (1, ROWS)},
        },
        bench.size.regenerations,
        warm=0,
    )
    eight_rows = whole_runs[str(ROWS)][0]
    one, eight = whole_runs["1"][0].tokens, eight_rows.tokens
    return {
        "context": context,
        "rows": ROWS,
        "engine": view.engine,
        "step_ms": {count: milliseconds(own) for count, own in step_runs.items()},
        "steps_ratio": _rate_ratio(step_runs, ROWS),
        "regeneration_s": {
            count: spread([run.seconds for run in own]) for count, own in whole_runs.items()
        },
        "regeneration_ratio": _rate_ratio(whole_runs, 1),
        "decode_ratio": spread(
            [
                (single.seconds - prompt.seconds) / (batch.seconds - prompt.seconds)
                for single, batch, prompt in zip(
                    whole_runs["1"], whole_runs[str(ROWS)], whole_runs["prompts"], strict=True
                )
            ]
        ),
        "requests": len(requests),
        "mean_rows": (len(eight) - len(requests)) / eight_rows.passes,
        "prompt_tokens": sum(len(prompt) for prompt, _ in requests),
        "equal_tokens": sum(a == b for a, b in zip(one, eight, strict=True)),
        "all_tokens": len(one),
    }


def _rate_ratio(runs: dict[str, list[Run]], factor: int) -> dict[str, Any]:
    """Tokens a second of eight rows ÷ those of one; a run makes `factor` times the tokens."""
    pairs = zip(runs["1"], runs[str(ROWS)], strict=True)
    return spread([factor * one.seconds / eight.seconds for one, eight in pairs])


def _batch(
    view: LayerView, requests: Sequence[tuple[tuple[int, ...], int]], rows: int
) -> BatchDecoder:
    jobs = [Job(prompt=prompt, budget=budget) for prompt, budget in requests]
    policies = [
        make_policy(Processor(GREEDY, view.vocab_size, job.prompt), at)
        for at, job in enumerate(jobs)
    ]
    return BatchDecoder(view, jobs, policies, rows=rows)


def _batch_steps(batch: BatchDecoder, count: int) -> Run:
    seconds = CLOCK.span(batch.step, count)
    batch.rewind(1)
    return Run(seconds=seconds / count, tokens=())


def _regenerate(view: LayerView, requests: Sequence[tuple[tuple[int, ...], int]], rows: int) -> Run:
    """All requests to their budgets, refilling rows."""
    batch = _batch(view, requests, rows)

    passes = 0

    def whole() -> None:
        nonlocal passes
        batch.prefill()
        batch.refill()
        while batch.live:
            batch.step()
            batch.refill()
            passes += 1

    seconds = CLOCK.span(whole)
    tokens = tuple(token for own in batch.outputs for token in own)
    return Run(seconds=seconds, tokens=tokens, passes=passes)


def rival_section(bench: Bench, **environment: str) -> dict[str, Any]:
    """Transformers' own compiled forward, in a process that is ended when it takes too long."""
    cap = bench.size.compile_cap_s
    arguments = [bench.model, "--child", "rival", "--engine", bench.engine]
    arguments += ["--quick"] if bench.size is QUICK else []
    with tempfile.TemporaryDirectory() as folder:
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder) / "compiled")
        found = child(__file__, arguments, limit_s=2 * cap, **environment)
    section = {"compile_cap_s": cap, "limit_s": 2 * cap, "context": bench.size.contexts[0]}
    return {**section, "finished": found is not None, **(found or {})}


def rival(bench: Bench) -> dict[str, Any]:
    """Compile transformers' forward by its own switch, then time it beside ours."""
    own, peer = load_own(bench.model, bench.engine), load_peer(bench.model)
    context, tokens = bench.size.contexts[0], bench.size.tokens
    prompt = random_prompt(own.vocab_size, context)
    settings = CompileConfig(mode="default")
    settings._compile_all_devices = True
    options = {
        "cache_implementation": "static",
        "max_cache_len": context + tokens,
        "compile_config": settings,
    }
    begin = time.perf_counter()
    generate(peer, prompt, 3, **options)
    compile_s = time.perf_counter() - begin
    state = new_decoder(own, prompt, tokens + 1)
    state.prefill()
    tasks = {
        "compiled": partial(steps, state, tokens - 1),
        "rival": partial(generate_step, peer, prompt, (2, tokens), **options),
    }
    runs = interleaved(tasks, bench.size.pairs[0])
    return {
        "compile_s": compile_s,
        "ms": {name: milliseconds(taken) for name, taken in runs.items()},
        "over_compiled": pair_ratio(runs["rival"], runs["compiled"]),
        "equal_tokens": equal_prefix(runs["compiled"][0].tokens, runs["rival"][0].tokens),
    }


SECTIONS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "short": partial(steps_section, at=0),
    "long": partial(steps_section, at=1),
    "parts": parts_section,
    "profile": profile_section,
    "preparation": preparation_section,
    "batch": batch_section,
    "rival": rival_section,
    "frozen": partial(rival_section, TORCHINDUCTOR_FREEZING="1"),
}
CHILDREN: dict[str, Callable[[Bench], dict[str, Any]]] = {"prepare": prepare, "rival": rival}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the asked sections, print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--engine", choices=("compiled", "eager"), default="compiled")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--json", type=Path, default=RESULTS / "step_speed.json")
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    size = QUICK if given.quick else Size()
    bench = Bench(model=given.model, engine=given.engine, size=size)
    if given.child:
        print(json.dumps(CHILDREN[given.child](bench)))
        return
    for name in given.only:
        document = record(given.json, given.model, {name: SECTIONS[name](bench)})
    print(step_speed_table(document))


if __name__ == "__main__":
    main()

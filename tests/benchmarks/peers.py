"""What the speed benchmarks share: the two engines side by side, pairs, spread, result files.

Transformers always runs on a model object of its own: choosing an engine of ours changes the model
it is given, in place. Everything is greedy and without an end token, so that both sides make the
same number of tokens; tokens are compared, not assumed.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from selfspec_cli.cost.clock import Clock
from selfspec_cli.engine.decoder import Decoder, Job
from selfspec_cli.engine.engines import Engine
from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.load import LoadOptions, load_model, quiet_library, resolve_folder
from selfspec_cli.engine.policies import make_policy
from selfspec_cli.engine.view import LayerView
from selfspec_cli.provenance import collect, model_fingerprint
from selfspec_cli.records import Sampling

RESULTS = Path(__file__).resolve().parent / "results"
ROOT = Path(__file__).resolve().parents[2]
GREEDY = Sampling(temperature=0.0)
CLOCK = Clock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One timed decode."""

    seconds: float
    tokens: tuple[int, ...]
    """Output only."""
    drafted: tuple[int, ...] = ()
    """Drafts of each round."""
    passes: int = 0
    """Decode steps of a batch."""


def load_own(model: str, engine: Engine, *, rows: int = 1) -> LayerView:
    """View of a model object of its own under one of our engines."""
    quiet_library()
    return load_model(LoadOptions(model=model, engine=engine, rows=rows), exit_layers=[1]).view


def load_peer(model: str) -> Any:
    """The library's model, unchanged, that ends at the asked length only."""
    quiet_library()
    found = transformers.AutoModelForCausalLM.from_pretrained(
        resolve_folder(model), dtype=torch.float32
    )
    found.generation_config.eos_token_id = None
    found.generation_config.pad_token_id = 0
    return found.eval()


def random_prompt(vocab_size: int, length: int, seed: int = 0) -> tuple[int, ...]:
    """Token ids; a step costs the same whichever they are."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(3, vocab_size, (length,), generator=generator).tolist())


def sample_prompts(model: str, count: int, longest: int) -> list[tuple[tuple[int, ...], int]]:
    """(token ids, output budget) of requests of the sample trace, one a task in turn."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(resolve_folder(model))
    lines = (ROOT / "traces" / "sample.jsonl").read_text(encoding="utf-8").splitlines()
    by_task: dict[str, list[Any]] = {}
    for row in map(json.loads, lines):
        by_task.setdefault(row["task"], []).append(row)
    turns = max(map(len, by_task.values()))
    dealt = [own[turn] for turn in range(turns) for own in by_task.values() if turn < len(own)]
    encode = partial(tokenizer.apply_chat_template, add_generation_prompt=True, return_dict=False)
    encoded = ((tuple(encode(row["messages"])), row["max_tokens"]) for row in dealt)
    return list(itertools.islice((one for one in encoded if len(one[0]) <= longest), count))


def new_decoder(
    view: LayerView,
    prompt: tuple[int, ...],
    budget: int,
    *,
    max_draft: int = 0,
    law: Sampling = GREEDY,
) -> Decoder:
    """A decoder of ours without an end token."""
    target = Processor(law, view.vocab_size, prompt)
    job = Job(prompt=prompt, budget=budget)
    return Decoder(view, job, make_policy(target, 0, max_draft=max_draft), max_draft=max_draft)


def steps(state: Decoder, count: int) -> Run:
    """Plain steps of a decoder that holds x_0, which is put back there afterwards."""
    seconds = CLOCK.span(state.ar_step, count)
    tokens = tuple(state.output)
    state.rewind(1)
    return Run(seconds=seconds / count, tokens=tokens)


def generate(model: Any, prompt: tuple[int, ...], count: int, **options: Any) -> Run:
    """One whole `generate` of exactly so many tokens.

    Raises:
        RuntimeError: it made another number of tokens.
    """
    ids, made = torch.tensor([prompt]), []

    def call() -> None:
        made.append(model.generate(ids, max_new_tokens=count, do_sample=False, **options))

    with torch.inference_mode():
        seconds = CLOCK.span(call)
    tokens = tuple(made[0][0, len(prompt) :].tolist())
    if len(tokens) != count:
        raise RuntimeError(f"generate made {len(tokens)} tokens where {count} were asked for")
    return Run(seconds=seconds, tokens=tokens)


def generate_step(
    model: Any, prompt: tuple[int, ...], lengths: tuple[int, int], **options: Any
) -> Run:
    """Seconds a token of `generate`: two lengths' difference, so prompt and set-up cancel."""
    short, long = (generate(model, prompt, count, **options) for count in lengths)
    seconds = (long.seconds - short.seconds) / (lengths[1] - lengths[0])
    return Run(seconds=seconds, tokens=long.tokens)


def interleaved(
    tasks: Mapping[str, Callable[[], Run]], pairs: int, *, warm: int = 1
) -> dict[str, list[Run]]:
    """Run all tasks in turn, every second time backwards (ABBA); the first `warm` are dropped."""
    found: dict[str, list[Run]] = {name: [] for name in tasks}
    for number in range(warm + pairs):
        order = list(tasks.items())
        for name, call in order if number % 2 == 0 else order[::-1]:
            run = call()
            if number >= warm:
                found[name].append(run)
    return found


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median and quartiles (inclusive), and how many; a single value has no quartiles."""
    if not values:
        return {"median": None, "low": None, "high": None, "count": 0}
    if len(values) == 1:
        return {"median": values[0], "low": None, "high": None, "count": 1}
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": middle, "low": low, "high": high, "count": len(values)}


def pair_ratio(above: Sequence[Run], below: Sequence[Run]) -> dict[str, Any]:
    """Median and quartiles of the ratios of runs that stood side by side.

    A machine that slows down half-way moves both runs of a pair; it would move a ratio of medians.

    Raises:
        ValueError: runs without a partner.
    """
    return spread([a.seconds / b.seconds for a, b in zip(above, below, strict=True)])


def milliseconds(runs: Sequence[Run]) -> dict[str, Any]:
    """Median and quartiles in milliseconds."""
    return spread([1e3 * run.seconds for run in runs])


def equal_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens two outputs share from the start."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def record(path: Path, model: str | None, sections: Mapping[str, Any]) -> dict[str, Any]:
    """Put sections into a result file beside those of earlier runs; returns the whole document.

    Every section carries the machine it was measured on; libraries and model stand once.
    """
    document = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    facts = collect(model=model_fingerprint(resolve_folder(model)) if model else None)
    machine = {**facts["device"], "omp_num_threads": os.environ.get("OMP_NUM_THREADS")}  # type: ignore[dict-item]
    kept = {key: facts[key] for key in ("libraries", "platform", "model")}
    document = {**document, **kept}
    document.setdefault("sections", {})
    for name, section in sections.items():
        document["sections"][name] = {**section, "machine": machine}
    path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return document


def child(
    script: str, arguments: Sequence[str], *, limit_s: float, **environment: str
) -> Any | None:
    """What a script prints as JSON in a process of its own, None if it takes longer.

    Raises:
        RuntimeError: it failed.
    """
    path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    try:
        done = subprocess.run(
            [sys.executable, script, *arguments],
            check=False, capture_output=True, text=True, encoding="utf-8", timeout=limit_s,
            env={**os.environ, "PYTHONPATH": path, **environment},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0:
        raise RuntimeError(f"{Path(script).name} {' '.join(arguments)}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])

"""What steps and rounds cost on a GPU, with CUDA graphs and eagerly, beside the bandwidth.

usage: python tests/benchmarks/gpu_costs.py [--json OUT] [--minutes 6.5] [--tiny]

The model has the shape of Llama-3-8B and random weights in bfloat16: costs do not depend on values,
and nothing is downloaded. Costs are measured by the product's own cost measurement. Exactness is
checked in float32 on a small random model, rounds and ragged rows against plain eager decoding.
`--tiny` runs the whole script on a CPU in seconds, passes recorded by the tests' tracer. Every
stage is written when it ends; one that does not fit into the minutes says so in its place.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, LlamaConfig

from selfspec_cli.cost.alone import CostReport, measure_alone
from selfspec_cli.cost.bandwidth import bandwidth_floor_seconds, position_bytes, read_bandwidth
from selfspec_cli.cost.clock import Clock
from selfspec_cli.cost.memory import free_bytes
from selfspec_cli.cost.plan import CostPlan, with_default_rounds
from selfspec_cli.engine.batch import BatchDecoder
from selfspec_cli.engine.decoder import Job, decode_plain, decode_speculative
from selfspec_cli.engine.engines import by_graphs
from selfspec_cli.engine.exactness import compare_outputs, plain_gap
from selfspec_cli.engine.families import family_of
from selfspec_cli.engine.graphs import CudaRecorder, Recorder
from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.policies import GreedyPolicy
from selfspec_cli.engine.view import LayerView
from selfspec_cli.records import Sampling

LLAMA_3_8B = {
    "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "max_position_embeddings": 65536, "rope_theta": 500000.0, "tie_word_embeddings": False,
}  # fmt: skip
SMALL = {
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256,
    "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
GREEDY = Sampling(temperature=0.0)
CACHE_SHARE = 0.7  # of the memory left beside the weights, shared out among the batch sizes
BANDWIDTH_BYTES = 8 << 30  # long enough that starting and waiting do not count


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What is measured."""

    shape: dict[str, Any]
    dtype: torch.dtype
    exit_layers: tuple[int, ...]
    draft_lengths: tuple[int, ...]
    contexts: tuple[int, ...]
    batch_sizes: tuple[int, ...]


FULL = Wish(
    shape=LLAMA_3_8B,
    dtype=torch.bfloat16,
    exit_layers=(8, 16, 24),
    draft_lengths=(1, 4, 8),
    contexts=(1024, 8192, 32768),
    batch_sizes=(1, 8, 32),
)
TINY = Wish(
    shape={**SMALL, "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48},
    dtype=torch.float32,
    exit_layers=(1,),
    draft_lengths=(1, 2),
    contexts=(8,),
    batch_sizes=(1, 2),
)


class OutOfTimeError(Exception):
    """The minutes are over."""


@dataclass
class Book:
    """The document and how long there is to fill it."""

    out: Path | None
    deadline: float
    document: dict[str, Any] = field(default_factory=dict)

    def stage(self, name: str, make: Callable[[], Any]) -> None:
        """Fill one entry; what fails or takes too long says so in its place."""
        begin = time.monotonic()
        try:
            self.check()
            self.document[name] = make()
        except OutOfTimeError:
            self.document[name] = {"left_out": "no time was left"}
        except RuntimeError as error:
            self.document[name] = {"failed": str(error).partition("\n")[0]}
        self.document.setdefault("stage_seconds", {})[name] = time.monotonic() - begin
        print(f"{name}: {time.monotonic() - begin:.1f} s", flush=True)
        if self.out is not None:
            self.out.write_text(json.dumps(self.document, indent=1) + "\n", encoding="utf-8")

    def check(self, *_: int) -> None:
        """Stop a stage once the minutes are over."""
        if time.monotonic() > self.deadline:
            raise OutOfTimeError


def random_model(shape: dict[str, Any], dtype: torch.dtype, device: torch.device) -> Any:
    """A llama of a shape with seeded random weights, made on the device."""
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(LlamaConfig(**shape), dtype=dtype)
    return model.eval().requires_grad_(False)


def view_of(model: Any) -> LayerView:
    return LayerView(model, family_of(model.config.model_type))


def recorder_for(device: torch.device) -> Recorder:
    """CUDA graphs, or the tests' tracer on a CPU."""
    if device.type == "cuda":
        return CudaRecorder(device)
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))
    from traced_recorder import TracedRecorder

    return TracedRecorder()


def machine(device: torch.device) -> dict[str, Any]:
    found = {"torch": torch.__version__, "transformers": transformers.__version__,
             "device": device.type}  # fmt: skip
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        found |= {
            "name": about.name,
            "memory_bytes": about.total_memory,
            "cuda": torch.version.cuda,
        }
    return found


def costs(wish: Wish, view: LayerView, book: Book) -> dict[str, Any]:
    """Measure one engine; every number is seconds, or in units of a plain step there."""
    gc.collect()  # caches of the engine before
    if view.device.type == "cuda":
        torch.cuda.empty_cache()
    room = int(free_bytes(view.device) * CACHE_SHARE)
    many = max(1, sum(batch > 1 for batch in wish.batch_sizes))
    plan = with_default_rounds(
        CostPlan(
            exit_layers=wish.exit_layers,
            draft_lengths=wish.draft_lengths,
            contexts=wish.contexts,
            laws=(GREEDY,),
            batch_sizes=wish.batch_sizes,
            max_batch_tokens=room // many // sum(position_bytes(view)),
        )
    )
    report = measure_alone(view, plan, 0, progress=book.check)
    bandwidth = book.document["read_bandwidth_bytes_per_s"]
    return {
        "engine": view.engine,
        "left_out": {
            str(batch): {"contexts": contexts, "why": "the cache does not fit into the memory"}
            for batch, contexts in plan.left_out().items()
        },
        "sizes": [size for one in report.summaries for size in sizes(one, view, bandwidth)],
        "agreement": {
            str(one.batch): {"mode": one.mode, "cost_model_error": one.cost_model_error,
                             "ar_spread": one.ar_spread, "round_spread": one.round_spread}
            for one in report.summaries
        },
        "rounds": whole_rounds(report),
    }  # fmt: skip


def sizes(summary: Any, view: LayerView, bandwidth: float) -> list[dict[str, Any]]:
    """One entry a context of a batch size."""
    found = []
    for at in summary.contexts:
        floor = bandwidth_floor_seconds(view, at.context, bandwidth, summary.batch)
        found.append(
            {
                "batch": summary.batch,
                "context": at.context,
                "ar_seconds": at.ar_seconds,
                "floor_seconds": floor,
                "floor_ratio": at.ar_seconds / floor,
                "c": dict(zip(map(str, summary.exit_layers), at.draft_cost_ratio, strict=True)),
                "v": {
                    str(layer): dict(zip(map(str, summary.draft_lengths), row, strict=True))
                    for layer, row in zip(summary.exit_layers, at.verify_cost_ratio, strict=True)
                },
                "o": dict(zip(map(str, summary.draft_lengths), at.overhead_ratio, strict=True)),
            }
        )
    return found


def whole_rounds(report: CostReport) -> list[dict[str, Any]]:
    """Mean seconds of the whole rounds that were timed beside their parts."""
    rows = report.rows[report.rows["part"] == "round"]
    keys = ["batch", "exit_layer", "positions", "context"]
    means = rows.groupby(keys, as_index=False)["seconds"].mean()
    return [
        {"batch": int(r.batch), "exit_layer": int(r.exit_layer),
         "draft_length": int(r.positions) - 1, "context": int(r.context), "seconds": r.seconds}
        for r in means.itertuples()
    ]  # fmt: skip


def exactness(device: torch.device, tiny: bool) -> dict[str, Any]:
    """Tokens of replayed steps against plain eager decoding, float32; differences with the gap."""
    shape = {**SMALL, "num_hidden_layers": 2} if tiny else SMALL
    model = random_model(shape, torch.float32, device)
    with torch.no_grad():  # else the text is one token for ever
        for weight in model.parameters():
            weight.mul_(8.0 if weight.dim() > 1 else 1.0)
    view, lengths = view_of(model), (3, 9) if tiny else (3, 40, 17, 120)
    budget, cells = (12, [(1, 2)]) if tiny else (100, [(1, 2), (3, 4), (5, 8)])
    draw = torch.Generator().manual_seed(1)
    jobs = [
        Job(prompt=tuple(torch.randint(shape["vocab_size"], (n,), generator=draw).tolist()),
            budget=budget)
        for n in lengths
    ]  # fmt: skip
    plain = [decode_plain(view, job, policy(view, job)).output for job in jobs]
    chosen = by_graphs(view_of(model), recorder_for(device))
    outputs = {"plain": [decode_plain(chosen.view, j, policy(view, j)).output for j in jobs]}
    for layer, k in cells:
        outputs[f"L={layer} k={k}"] = [
            decode_speculative(chosen.view, j, policy(view, j), layer, k)[0].output for j in jobs
        ]
        outputs[f"L={layer} k={k}, ragged"] = ragged(chosen.view, jobs, layer, k)
    return {
        "engine": chosen.view.engine,
        "notices": chosen.notices,
        "runs": {name: judged(view, jobs, plain, found) for name, found in outputs.items()},
    }


def policy(view: LayerView, job: Job) -> GreedyPolicy:
    return GreedyPolicy(Processor(GREEDY, view.vocab_size, job.prompt))


def ragged(view: LayerView, jobs: list[Job], layer: int, k: int) -> list[list[int]]:
    """All jobs side by side in rounds."""
    batch = BatchDecoder(view, jobs, [policy(view, job) for job in jobs], max_draft=k)
    batch.prefill()
    while batch.live:
        batch.round(layer, k)
    return batch.outputs


def judged(
    view: LayerView, jobs: list[Job], plain: list[list[int]], found: list[list[int]]
) -> dict[str, Any]:
    """How many outputs equal plain decoding; the top-2 gap where one departs."""
    apart = []
    for job, want, got in zip(jobs, plain, found, strict=True):
        target = Processor(GREEDY, view.vocab_size, job.prompt)
        gap = partial(plain_gap, view, job.prompt, want, target=target)
        difference = compare_outputs(want, got, gap, view.dtype)
        if difference is not None:
            apart.append({"position": difference.position, "top2_gap": difference.top2_gap,
                          "is_tie": difference.is_tie})  # fmt: skip
    return {"equal": len(jobs) - len(apart), "decodes": len(jobs), "differences": apart}


def graphs(wish: Wish, model: Any, book: Book) -> dict[str, Any]:
    """Costs with recorded steps, and the memory they took."""
    chosen = by_graphs(view_of(model), recorder_for(model.device))
    found = costs(wish, chosen.view, book) | {"notices": chosen.notices}
    if model.device.type == "cuda":
        found["peak_memory_bytes"] = torch.cuda.max_memory_allocated(model.device)
    return found


def eager(wish: Wish, model: Any, book: Book) -> dict[str, Any]:
    """Costs of the library's layers as they are."""
    model.config._attn_implementation = "sdpa"
    return costs(wish, view_of(model), book)


def table(document: dict[str, Any]) -> None:
    """Print each size, graphs beside eager."""
    other = {(s["batch"], s["context"]): s for s in document["eager"].get("sizes", ())}
    for one in document["graphs"].get("sizes", ()):
        plain = other.get((one["batch"], one["context"]))
        times = f"{plain['ar_seconds'] / one['ar_seconds']:.2f} x eager" if plain else ""
        c = " ".join(f"c({layer})={value:.3f}" for layer, value in one["c"].items())
        middle = list(one["v"])[len(one["v"]) // 2]
        v = " ".join(f"v({middle},{k})={value:.3f}" for k, value in one["v"][middle].items())
        o = " ".join(f"o({k})={value:.3f}" for k, value in one["o"].items())
        print(f"batch {one['batch']:2d} context {one['context']:6d}: AR "
              f"{1e3 * one['ar_seconds']:.2f} ms = {one['floor_ratio']:.2f} x floor {times} "
              f"{c} {v} {o}")  # fmt: skip
    for name, run in document["exactness"].get("runs", {}).items():
        print(f"exact in float32, {name}: {run['equal']} of {run['decodes']}")


def main() -> None:
    """Measure, write JSON, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--minutes", type=float, default=6.5)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    if not given.tiny and not torch.cuda.is_available():
        sys.exit("no CUDA device here; --tiny tries the script out on a CPU")
    device, wish = (torch.device("cpu"), TINY) if given.tiny else (torch.device("cuda:0"), FULL)
    book = Book(out=given.json, deadline=time.monotonic() + 60 * given.minutes)
    book.document |= {"machine": machine(device), "shape": wish.shape, "dtype": str(wish.dtype),
                      "tiny": given.tiny}  # fmt: skip
    book.stage("exactness", lambda: exactness(device, given.tiny))
    num_bytes = 1 << 24 if given.tiny else BANDWIDTH_BYTES
    clock = Clock.for_device(device)
    book.stage(
        "read_bandwidth_bytes_per_s", lambda: read_bandwidth(device, clock, num_bytes=num_bytes)
    )
    model = random_model(wish.shape, wish.dtype, device)
    book.stage("graphs", lambda: graphs(wish, model, book))
    book.stage("eager", lambda: eager(wish, model, book))
    table(book.document)


if __name__ == "__main__":
    main()

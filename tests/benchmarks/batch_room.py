"""How much room a batch leaves to speculation: cost of verifying k + 1 tokens against one.

usage: python tests/benchmarks/batch_room.py [MODEL] [--json OUT]   (a minute on a quiet machine)

Parts are timed as chains over all layers, plain steps and verifications interleaved in blocks, and
put together as METHOD's round: v is L layers at one position, the others and the head at k + 1.
The gain is the textbook's closed form at a given acceptance with these measured costs: what a batch
could gain at best, since every row is taken to accept alike and none waits for another.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from selfspec_cli.analysis.closed_form import closed_form_speedup
from selfspec_cli.cost.clock import Clock
from selfspec_cli.engine.load import LoadOptions, load_model
from selfspec_cli.engine.view import LayerView

BATCHES = (1, 2, 4, 8, 16)
CONTEXT = 256  # tokens in every row's cache
DRAFT = 4
BLOCKS = 10
ACCEPTANCES = (0.7, 0.8, 0.9)


@torch.inference_mode()
def parts(view: LayerView, batch: int, positions: int) -> dict[str, Callable[[], object]]:
    """Calls that run all layers, and the head, over [batch, positions] at the context."""
    cache = view.new_cache(rows=batch, capacity=CONTEXT + positions)
    ids = torch.randint(0, view.vocab_size, (batch, CONTEXT))
    view.run(view.embed(ids, cache), cache, 0, view.num_layers)
    hidden = view.embed(ids[:, :positions], cache)
    held = [CONTEXT] * batch

    def layers() -> None:
        view.run(hidden, cache, 0, view.num_layers)
        cache.rollback(held)

    return {"layers": layers, "head": partial(view.head, hidden.reshape(batch * positions, -1))}


@torch.inference_mode()
def measure(view: LayerView) -> dict[tuple[int, int, str], list[float]]:
    """Seconds of every (batch, positions, part), one a block."""
    tasks = {
        (batch, positions, name): call
        for batch in BATCHES
        for positions in (1, DRAFT + 1)
        for name, call in parts(view, batch, positions).items()
    }
    clock, taken = Clock.for_device(view.device), {key: [] for key in tasks}
    for block in range(BLOCKS + 2):
        order = list(tasks.items())
        for key, call in order if block % 2 else order[::-1]:
            seconds = clock.span(call, repeats=2) / 2
            if block >= 2:  # the first two warm up
                taken[key].append(seconds)
    return taken


def row(taken: dict[tuple[int, int, str], list[float]], batch: int, share: float) -> dict[str, Any]:
    """One batch size: plain step, c, v and the gains, each a mean over blocks."""
    mean = {key: statistics.fmean(values) for key, values in taken.items() if key[0] == batch}
    one, more = mean[batch, 1, "layers"], mean[batch, DRAFT + 1, "layers"]
    plain = one + mean[batch, 1, "head"]
    draft = (share * one + mean[batch, 1, "head"]) / plain
    verify = (share * one + (1 - share) * more + mean[batch, DRAFT + 1, "head"]) / plain
    gains = {
        str(acceptance): float(
            closed_form_speedup(
                acceptance, DRAFT, draft_cost_ratio=draft, verify_cost_ratio=verify,
                overhead_ratio=0.0,
            )
        )
        for acceptance in ACCEPTANCES
    }  # fmt: skip
    steps = taken[batch, 1, "layers"]
    return {
        "batch": batch,
        "plain_ms": 1e3 * plain,
        "spread": statistics.stdev(steps) / statistics.fmean(steps),
        "c": draft,
        "v": verify,
        "gains": gains,
    }


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    view = load_model(LoadOptions(model=given.model)).view
    layer = view.num_layers // 2
    taken = measure(view)
    rows = [row(taken, batch, layer / view.num_layers) for batch in BATCHES]
    document = {"exit_layer": layer, "num_layers": view.num_layers, "draft_length": DRAFT,
                "context": CONTEXT, "rows": rows}  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for one in rows:
        gains = ", ".join(f"{a}: {gain:.2f}" for a, gain in one["gains"].items())
        print(f"B={one['batch']:2d} plain {one['plain_ms']:.1f} ms c {one['c']:.2f} "
              f"v({DRAFT}) {one['v']:.2f} gain at acceptance {gains}")  # fmt: skip


if __name__ == "__main__":
    main()

"""What a round costs beside its passes, o, by law and draft length.

usage: python tests/benchmarks/overhead.py [MODEL] [--quick]   (a minute on two quiet cores)

Real rounds stand beside plain steps, in turn. Inside a round every call of the model is timed, and
so is turning logits into laws and drafts: METHOD counts those to c and v. What a round takes beyond
them is o: acceptance, commit, rollback, all Python between. Beside it stands the `accept` part, by
which the cost stage prices o; both in plain steps, medians and quartiles.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import (
    CLOCK,
    GREEDY,
    RESULTS,
    load_own,
    new_decoder,
    random_prompt,
    record,
    spread,
)
from speed_tables import overhead_table

from selfspec_cli.analysis.cost_surface import CostSurface
from selfspec_cli.cost.measure import measure_costs
from selfspec_cli.cost.plan import CostPlan
from selfspec_cli.engine.decoder import Decoder
from selfspec_cli.engine.view import LayerView
from selfspec_cli.records import Sampling

LAWS = (GREEDY, Sampling(temperature=0.7), Sampling(temperature=0.7, top_p=0.9))
DRAFTS = (1, 2, 4, 8)
CONTEXT = 256


@dataclass(slots=True)
class Meter:
    """Adds up the seconds of calls; one inside another counts once."""

    seconds: float = 0.0
    depth: int = 0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        def call(*args: Any, **options: Any) -> Any:
            self.depth += 1
            begin = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self.depth -= 1
                if self.depth == 0:
                    self.seconds += time.perf_counter() - begin

        return call


class Metered:
    """Stands for an object, some of whose methods are timed."""

    def __init__(self, inner: Any, meter: Meter, names: Sequence[str]) -> None:
        self._inner = inner
        for name in names:
            setattr(self, name, meter.timed(getattr(inner, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def metered(state: Decoder) -> Meter:
    """Time everything of a decoder's rounds that METHOD counts to c or v."""
    meter = Meter()
    policy: Any = state.policy
    policy.target = Metered(policy.target, meter, ("laws", "greedy"))
    state.view = Metered(state.view, meter, ("embed", "run", "head"))  # type: ignore[assignment]
    state.policy = Metered(policy, meter, ("propose",))
    return meter


def rounds_of(view: LayerView, law: Sampling, context: int, k: int, pairs: int) -> dict[str, Any]:
    """Rounds of k drafts at half depth beside plain steps: times, and o."""
    prompt = random_prompt(view.vocab_size, context)
    state, plain = (new_decoder(view, prompt, k + 3, max_draft=k, law=law) for _ in range(2))
    meter = metered(state)
    layer = max(1, view.num_layers // 2)
    for one in (state, plain):
        one.prefill()
    taken = []
    for number in range(pairs + 2):
        steps_first = number % 2 == 0
        before = CLOCK.span(plain.ar_step) if steps_first else 0.0
        meter.seconds = 0.0
        whole = CLOCK.span(lambda: state.round(layer, k))
        passes = meter.seconds
        step = before if steps_first else CLOCK.span(plain.ar_step)
        state.rewind(1)
        plain.rewind(1)
        if number >= 2:  # the first two warm up
            taken.append((whole, passes, step))
    return {
        "draft_length": k,
        "exit_layer": layer,
        "step_ms": spread([1e3 * step for _, _, step in taken]),
        "round_ms": spread([1e3 * whole for whole, _, _ in taken]),
        "passes_ms": spread([1e3 * passes for _, passes, _ in taken]),
        "o": spread([(whole - passes) / step for whole, passes, step in taken]),
    }


def accept_parts(
    view: LayerView, context: int, blocks: int
) -> dict[str, dict[int, dict[str, Any]]]:
    """o as the cost stage prices it, one value a block, by law and draft length."""
    layer = max(1, view.num_layers // 2)
    plan = CostPlan(
        exit_layers=(layer,), draft_lengths=DRAFTS, contexts=(context,), laws=LAWS, blocks=blocks
    )
    rows = measure_costs(view, plan, CLOCK, seed=0)
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for law in (one.law_class for one in LAWS):
        surfaces = [
            CostSurface.from_rows(own, layer_kinds=view.layer_kinds, law=law)
            for _, own in rows.groupby("block")
        ]
        found[law] = {
            k: spread([one.overhead_ratio(layer, k, context) for one in surfaces]) for k in DRAFTS
        }
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--engine", choices=("compiled", "eager"), default="compiled")
    parser.add_argument("--quick", action="store_true", help="seconds, for a tiny model")
    parser.add_argument("--json", type=Path, default=RESULTS / "overhead.json")
    given = parser.parse_args(arguments)
    view = load_own(given.model, given.engine)
    context = 16 if given.quick else CONTEXT
    parts = accept_parts(view, context, blocks=10)
    laws = {
        law.law_class: [
            {
                **rounds_of(view, law, context, k, pairs=4 if given.quick else 20),
                "part": parts[law.law_class][k],
            }
            for k in DRAFTS
        ]
        for law in LAWS
    }
    section = {"context": context, "engine": view.engine, "laws": laws}
    print(overhead_table(record(given.json, given.model, {f"context {context}": section})))


if __name__ == "__main__":
    main()

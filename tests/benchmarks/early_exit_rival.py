"""Self-speculative decoding of ours against transformers' early exit at the same (L, k).

usage: python tests/benchmarks/early_exit_rival.py TWIN [--only L,k ...] [--quick]

TWIN: a damped twin of the demo model, whose exits agree with it often enough to be worth timing:
    python tests/instruments/damped_twin.py demo TWIN --from-layer 15 --epsilon 0.01

For each cell and prompt five decodes stand side by side: ours and theirs at (L, k), plain ones of
both, and ours again with eager layers, which shows what the algorithm alone gains. Times are those
between two output lengths, so prompts and set-up cancel. One cell is a minute or two on two quiet
cores and is kept in the result file beside the others.

What `generate(assistant_early_exit=L, num_assistant_tokens=k)` says of k is not used by the
library: a draft's length comes from the model's own generation configuration (20 tokens, ended by a
confidence below 0.4), so k and the rest are set there, and the passes are counted. Their first
round comes before the first token, ours after it: they make one more a prompt.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from peers import (
    CLOCK,
    RESULTS,
    Run,
    equal_prefix,
    generate,
    load_own,
    load_peer,
    new_decoder,
    pair_ratio,
    record,
    sample_prompts,
    spread,
)
from speed_tables import early_exit_table

from selfspec_cli.engine.view import LayerView


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is timed."""

    cells: tuple[tuple[int, int, int], ...] = ((9, 2, 4), (15, 4, 6), (24, 4, 6))
    """L, k and prompts; where drafts are poor theirs takes longest."""
    lengths: tuple[int, int] = (16, 56)
    """Output tokens between which time is taken."""
    longest_prompt: int = 320


QUICK = Size(cells=((1, 2, 2), (3, 2, 2)), lengths=(6, 14), longest_prompt=200)


@contextmanager
def held_draft(model: Any, draft_length: int) -> Iterator[None]:
    """Let the library's assistant draft exactly so many tokens in every round."""
    config = model.generation_config
    before = {name: getattr(config, name, None) for name in ("num_assistant_tokens",
              "num_assistant_tokens_schedule", "assistant_confidence_threshold")}  # fmt: skip
    config.num_assistant_tokens = draft_length
    config.num_assistant_tokens_schedule = "constant"
    config.assistant_confidence_threshold = 0.0
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)


@contextmanager
def counted_passes(model: Any) -> Iterator[list[tuple[int, int]]]:
    """(layers, positions) of every forward pass of a model, prompts included."""
    passes: list[tuple[int, int]] = []

    def note(module: Any, _args: Any, options: dict[str, Any]) -> None:
        passes.append((module.config.num_hidden_layers, options["input_ids"].shape[1]))

    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield passes
    finally:
        hook.remove()


def own_decode(view: LayerView, prompt: tuple[int, ...], cell: Any, budget: int) -> Run:
    """A whole decode of ours, prompt included; plain where `cell` is None."""
    state = new_decoder(view, prompt, budget, max_draft=cell[1] if cell else 0)
    drafted = []

    def whole() -> None:
        state.prefill()
        while state.finish is None:
            if cell is None:
                state.ar_step()
            else:
                drafted.append(state.round(*cell).num_drafted)

    seconds = CLOCK.span(whole)
    return Run(seconds=seconds, tokens=tuple(state.output), drafted=tuple(drafted))


def their_decode(model: Any, prompt: tuple[int, ...], cell: tuple[int, int], budget: int) -> Run:
    """A whole decode of theirs with an early exit.

    Raises:
        RuntimeError: some round drafted more than it was told to.
    """
    with counted_passes(model) as passes:
        run = generate(model, prompt, budget, assistant_early_exit=cell[0])
    drafted = drafts_by_round(passes, model.config.num_hidden_layers)
    if max(drafted) > cell[1]:
        raise RuntimeError(f"the library drafted {max(drafted)} tokens where k is {cell[1]}")
    return replace(run, drafted=tuple(drafted))


def between(decode: Callable[[int], Run], lengths: tuple[int, int]) -> Run:
    """Seconds a token between two output lengths, tokens of the longer."""
    short, long = (decode(length) for length in lengths)
    seconds = (long.seconds - short.seconds) / (lengths[1] - lengths[0])
    return replace(long, seconds=seconds)


def cell_section(
    views: dict[str, LayerView],
    peer: Any,
    prompts: Sequence[tuple[int, ...]],
    cell: tuple[int, int],
    lengths: tuple[int, int],
) -> dict[str, Any]:
    """One cell: ratios over prompts, tokens compared, rounds counted.

    Args:
        views: ours under the measured engine, and eager.
        peer: the library's model.
        prompts: token ids.
        cell: (L, k).
        lengths: output tokens between which time is taken.
    """
    taken: dict[str, list[Run]] = {}
    with held_draft(peer, cell[1]):
        for number, prompt in enumerate(prompts):
            tasks: dict[str, Callable[[int], Run]] = {
                "ours": partial(own_decode, views["own"], prompt, cell),
                "theirs": partial(their_decode, peer, prompt, cell),
                "own_plain": partial(own_decode, views["own"], prompt, None),
                "plain": partial(generate, peer, prompt),
                "eager": partial(own_decode, views["eager"], prompt, cell),
            }
            for call in tasks.values():
                call(4)  # warms up
            order = list(tasks.items())
            for name, call in order if number % 2 == 0 else order[::-1]:
                taken.setdefault(name, []).append(between(call, lengths))
    ratios = {
        "theirs_over_ours": ("theirs", "ours"),
        "plain_over_ours": ("plain", "ours"),
        "plain_over_theirs": ("plain", "theirs"),
        "own_plain_over_ours": ("own_plain", "ours"),
        "theirs_over_eager": ("theirs", "eager"),
        "plain_over_own_plain": ("plain", "own_plain"),
    }
    return {
        "exit_layer": cell[0],
        "draft_length": cell[1],
        "lengths": list(lengths),
        "prompt_tokens": [len(prompt) for prompt in prompts],
        "engine": views["own"].engine,
        "ms": {name: spread([1e3 * run.seconds for run in own]) for name, own in taken.items()},
        **{name: pair_ratio(taken[a], taken[b]) for name, (a, b) in ratios.items()},
        "rounds": {
            name: sum(count > 0 for run in taken[name] for count in run.drafted)
            for name in ("ours", "theirs")
        },
        "equal_tokens": sum(
            equal_prefix(one.tokens, other.tokens)
            for one, other in zip(taken["ours"], taken["theirs"], strict=True)
        ),
        "all_tokens": sum(len(run.tokens) for run in taken["ours"]),
    }


def drafts_by_round(passes: Sequence[tuple[int, int]], num_layers: int) -> list[int]:
    """Drafting passes before each pass of all layers; each makes one draft."""
    found, count = [], 0
    for layers, _ in passes:
        if layers == num_layers:
            found.append(count)
            count = 0
        else:
            count += 1
    return found


def cell_of(text: str) -> tuple[int, int]:
    """`15,4` as (15, 4)."""
    layer, draft = text.split(",")
    return int(layer), int(draft)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the asked cells, print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("twin", help="folder of a damped twin")
    parser.add_argument("--only", nargs="+", type=cell_of, metavar="L,k")
    parser.add_argument("--engine", choices=("compiled", "eager"), default="compiled")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--json", type=Path, default=RESULTS / "early_exit_rival.json")
    given = parser.parse_args(arguments)
    size = QUICK if given.quick else Size()
    views = {"own": load_own(given.twin, given.engine), "eager": load_own(given.twin, "eager")}
    peer = load_peer(given.twin)
    for *cell, count in size.cells:
        if given.only and tuple(cell) not in given.only:
            continue
        requests = sample_prompts(given.twin, count, size.longest_prompt)
        prompts = [prompt for prompt, _ in requests]
        section = cell_section(views, peer, prompts, (cell[0], cell[1]), size.lengths)
        document = record(given.json, given.twin, {f"{cell[0]},{cell[1]}": section})
    print(early_exit_table(document))


if __name__ == "__main__":
    main()

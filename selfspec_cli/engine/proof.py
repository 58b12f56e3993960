"""Prove at load that another engine's passes are those of the library's layers, at every depth.

Rows stand at different positions, and every kind of pass that a decode can make is made: one
position, several, and another number of several. What is run here is compiled or recorded here.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from selfspec_cli.engine.kv_cache import KVCache
from selfspec_cli.engine.selfcheck import RELATIVE_TOLERANCE
from selfspec_cli.engine.view import LayerView
from selfspec_cli.errors import SelfCheckError

ROWS = 3
PASSES = (1, 5, 2)  # positions of the passes after the prompts
LOGITS = 0  # key of the head's results, beside depths
States = Mapping[int, Tensor]
"""After each number of layers, and the logits: [rows, positions, H or V]."""
Runs = Mapping[str, Callable[[LayerView, Tensor], States]]
"""What is run with both engines, by a name for people."""


def runs(rows: int) -> Runs:
    """What a proof runs where at most `rows` rows are decoded side by side."""
    alone = {"alone": partial(states_in_rows, rows=1)}
    return alone if rows == 1 else {**alone, "in ragged rows": states_in_rows}


def states_in_rows(view: LayerView, tokens: Tensor, rows: int = ROWS) -> States:
    """Run `PASSES` in `rows` rows that stand at different positions of the same tokens [1, n]."""
    lengths = [max(1, tokens.shape[1] - sum(PASSES) - row) for row in range(rows)]
    cache = _filled(view, tokens, lengths)
    found: dict[int, list[Tensor]] = {depth: [] for depth in range(1, view.num_layers + 1)}
    logits: list[Tensor] = []
    done = 0
    for m in PASSES:
        ids = torch.cat([tokens[:, n + done : n + done + m] for n in lengths])
        view.ready(cache, range(view.num_layers), m)
        hidden = view.run(
            view.embed(ids, cache),
            cache,
            0,
            view.num_layers,
            # A recorded pass writes to the same memory every time.
            lambda depth, h: found[depth].append(h.clone()),
        )
        logits.append(view.head(hidden))
        done += m
    found[LOGITS] = logits  # compared last: a wrong layer is told by its depth
    return {depth: torch.cat(parts, dim=1) for depth, parts in found.items()}


def _filled(view: LayerView, tokens: Tensor, lengths: list[int]) -> KVCache:
    """A cache whose rows hold the first `lengths` tokens, each row run alone."""
    cache = view.new_cache(rows=len(lengths), capacity=tokens.shape[1])
    probe = view.new_cache(capacity=1)
    view.run(view.embed(tokens[:, :1], probe), probe, 0, view.num_layers)
    cache.reserve(probe)
    for row, length in enumerate(lengths):
        alone = cache.row(row)
        view.run(view.embed(tokens[:, :length], alone), alone, 0, view.num_layers)
    cache.activate(lengths)
    return cache


def check_states(reference: States, states: States, dtype: torch.dtype, how: str) -> None:
    """Compare states at every depth, and logits.

    Args:
        reference: of the eager engine.
        states: of the other one.
        dtype: of the model; sets the tolerance, relative to the largest value.
        how: they were run, for the message.

    Raises:
        SelfCheckError: they differ by more than rounding, in the place it names.
    """
    tolerance = RELATIVE_TOLERANCE.get(dtype, 6e-2)
    for depth, expected in reference.items():
        scale = float(expected.abs().max()) or 1.0
        error = float((states[depth] - expected).abs().max()) / scale
        if not error <= tolerance:  # NaN fails too
            where = "their logits" if depth == LOGITS else f"depth {depth}"
            raise SelfCheckError(
                f"layers {how} differ in {where} by {error:.3g} of the range "
                f"(tolerance {tolerance:g})"
            )

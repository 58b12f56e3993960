"""Speculative tokens against plain decoding: equal, a numeric tie, or a fault.

At temperature 0 both must give the same tokens. Verifying k+1 positions in one pass uses other
kernels than k+1 single steps, so where the plain decoder's two best logits nearly tie, rounding may
pick the other one; from there on the texts part. Such a row is listed as a tie, never as equal;
any other difference is a fault of the decoder.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from selfspec_cli.engine.decoder import PREFILL_CHUNK
from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.view import LayerView

TIE_TOLERANCE = {torch.float32: 1e-4, torch.float16: 6e-2, torch.bfloat16: 0.5}
"""Gap of the two best logits that rounding may turn, by dtype (logits). About the largest change of
any logit between one pass over nine positions and nine single steps of a real model of 30 layers
(7e-5, 7e-2, 0.58); the differences then seen had gaps up to a tenth of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """First position where speculative output is not the plain one."""

    position: int
    """Output tokens before it."""
    plain_token: int | None
    """None where the plain output had ended."""
    speculative_token: int | None
    """None where the speculative output had ended."""
    top2_gap: float
    """Best minus second best processed logit of plain decoding there (logits); infinite where only
    the lengths differ, which no rounding explains."""
    tolerance: float
    """Gap below which rounding may have chosen the other token (logits)."""

    @property
    def is_tie(self) -> bool:
        """Whether rounding explains it."""
        return self.top2_gap < self.tolerance

    def __str__(self) -> str:
        return (
            f"output position {self.position}: plain {self.plain_token}, speculative "
            f"{self.speculative_token}, top-2 gap {self.top2_gap:.3g} "
            f"({'a tie' if self.is_tie else 'not a tie'} at tolerance {self.tolerance:g})"
        )


def compare_outputs(
    plain: Sequence[int],
    speculative: Sequence[int],
    gap_at: Callable[[int], float],
    dtype: torch.dtype,
) -> Difference | None:
    """Return the first difference of two greedy outputs, or None where they are equal.

    Args:
        plain: committed tokens of plain decoding.
        speculative: committed tokens of speculative decoding of the same request.
        gap_at: top-2 gap of plain decoding at an output position; asked once, if at all.
        dtype: dtype of the model, which sets the tolerance.
    """
    shorter = min(len(plain), len(speculative))
    position = next((i for i in range(shorter) if plain[i] != speculative[i]), shorter)
    if position == len(plain) == len(speculative):
        return None
    return Difference(
        position=position,
        plain_token=plain[position] if position < len(plain) else None,
        speculative_token=speculative[position] if position < len(speculative) else None,
        top2_gap=gap_at(position) if position < shorter else float("inf"),
        tolerance=TIE_TOLERANCE.get(dtype, TIE_TOLERANCE[torch.bfloat16]),
    )


@torch.inference_mode()
def plain_gap(
    view: LayerView, prompt: Sequence[int], plain: Sequence[int], position: int, target: Processor
) -> float:
    """Best minus second best processed logit of plain decoding at an output position (logits).

    The prompt and the tokens before `position` are run again as plain decoding runs them.
    """
    cache = view.new_cache(capacity=len(prompt) + position)
    hidden = torch.empty(0)
    chunks = [prompt[at : at + PREFILL_CHUNK] for at in range(0, len(prompt), PREFILL_CHUNK)]
    for piece in [*chunks, *([token] for token in plain[:position])]:
        ids = torch.tensor([list(piece)], device=view.device)
        hidden = view.run(view.embed(ids, cache), cache, 0, view.num_layers)
    logits = target.processed(view.head(hidden[0, -1:]), plain[:position])
    best, second = logits[0].topk(2).values
    return float(best - second)

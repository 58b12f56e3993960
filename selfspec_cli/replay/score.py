"""Reduce layer states along a path to acceptance numbers, never storing positions x L x V.

For each output position the state after the last layer gives p, the state after layer L gives
q_L; what is kept is r = min(1, q(x)/p(x)), beta = sum of min(p, q), whether their argmax agree,
and the sums of the path-source test (METHOD.md §2, §3). All in float32 from upcast logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from selfspec_cli.engine.view import LayerView
from selfspec_cli.replay.exit_heads import Target, greedy, sampled, slack_of
from selfspec_cli.replay.setting import Laws

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

MAX_CHUNK = 64  # positions scored at once; a law is [64, V]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Scores of n consecutive output positions at E exits.

    At temperature 0 the laws are one-hot: r and beta are 1 where the argmax agree, else 0, and
    surprisal, entropy and varentropy are missing (NaN).
    """

    accept_given_path: Floats
    """[E, n]; NaN where p(x) = 0."""
    accept_prob: Floats
    """[E, n]."""
    is_argmax: Bools
    """[E, n]: the exit's most likely token is the target's."""
    surprisal: Floats
    """[n], nats; NaN where p(x) = 0."""
    entropy: Floats
    """[n], nats."""
    varentropy: Floats
    """[n], nats squared."""
    zero_prob: Bools
    """[n]: the target gives the path's token no probability."""
    outside_truncation: Bools
    """[n]: the request's own top-k or top-p cut the path's token off, by more than rounding."""
    path_is_argmax: Bools
    """[n]: the path's token is the target's most likely, ties within tolerance."""

    @staticmethod
    def join(parts: Sequence["Scores"]) -> "Scores":
        """Concatenate consecutive stretches of one path."""
        names = Scores.__dataclass_fields__
        arrays = {n: np.concatenate([getattr(p, n) for p in parts], axis=-1) for n in names}
        return Scores(**arrays)


@torch.inference_mode()
def score(
    view: LayerView, states: Tensor, tokens: Sequence[int], before: Sequence[int], laws: Laws
) -> Scores:
    """Score the states that predict `tokens`.

    Args:
        view: the model.
        states: [E + 1, n, H]: after each exit layer, and after all N layers last.
        tokens: n output tokens; state i predicts token i.
        before: output tokens before them.
        laws: the request's processing.
    """
    parts = []
    for at in range(0, len(tokens), MAX_CHUNK):
        piece = tokens[at : at + MAX_CHUNK]
        chunk = states[:, at : at + len(piece)]
        parts.append(_score_chunk(view, chunk, piece, [*before, *tokens[:at]], laws))
    return Scores.join(parts)


def _score_chunk(
    view: LayerView, states: Tensor, tokens: Sequence[int], before: Sequence[int], laws: Laws
) -> Scores:
    n, drafted = len(tokens), tokens[:-1]  # row i of a law follows `before` and the first i tokens
    x = torch.tensor(list(tokens), device=states.device)  # [n]
    edits = laws.target.edits(before, drafted, n, states.device)  # those of the draft law, too
    logits = view.head(states[-1])  # [n, V]
    logits = logits if edits is None else edits.apply(logits)
    top = logits.argmax(dim=-1)
    if laws.target.sampling.temperature == 0.0:
        target = Target(law=logits, top=top, tokens=x)
        return _greedy(view, target, greedy(view, states[:-1], target, edits))
    p = laws.target.law_of(logits)
    px = p.gather(1, x[:, None])[:, 0]
    zero = px <= 0
    outside = torch.zeros_like(zero)
    if laws.target.sampling.truncated and bool(zero.any()):
        outside = zero & laws.target.cut_by_truncation(logits, x, slack_of(view))
    del logits
    entropy, varentropy = _moments(p)
    target = Target(law=p, top=top, tokens=x)
    given, prob, agree = sampled(view, states[:-1], target, laws.draft, edits)
    return Scores(
        accept_given_path=_numpy(torch.where(zero, torch.nan, given)),
        accept_prob=_numpy(prob),
        is_argmax=_numpy(agree),
        surprisal=_numpy(torch.where(zero, torch.nan, -px.log())),
        entropy=_numpy(entropy),
        varentropy=_numpy(varentropy),
        zero_prob=_numpy(zero),
        outside_truncation=_numpy(outside),
        path_is_argmax=_numpy(top == x),
    )


def _moments(p: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy and varentropy [n] of laws [n, V]."""
    log_p = p.clamp(min=torch.finfo(p.dtype).tiny).log_()
    weighted = p * log_p
    entropy = -weighted.sum(dim=-1)
    varentropy = weighted.mul_(log_p).sum(dim=-1) - entropy.square()
    return entropy, varentropy.clamp(min=0)


def _greedy(view: LayerView, target: Target, agree: Tensor) -> Scores:
    """Scores at temperature 0, from processed logits and where the exits agree [E, n]."""
    behind = target.law.amax(dim=-1) - target.law.gather(1, target.tokens[:, None])[:, 0]
    n, same = len(target.tokens), _numpy(agree.float())
    missing = np.full(n, np.nan, dtype=np.float32)
    return Scores(
        accept_given_path=same,
        accept_prob=same,
        is_argmax=_numpy(agree),
        surprisal=missing,
        entropy=missing,
        varentropy=missing,
        zero_prob=np.zeros(n, dtype=bool),
        outside_truncation=np.zeros(n, dtype=bool),
        path_is_argmax=_numpy(behind <= slack_of(view)),
    )


def _numpy(values: Tensor) -> npt.NDArray[Any]:
    return values.cpu().numpy()

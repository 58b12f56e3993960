"""Reduce layer states along a path to acceptance numbers, never storing positions x L x V.

For each output position the state after the last layer gives p, the state after layer L gives
q_L; what is kept is r = min(1, q(x)/p(x)), beta = sum of min(p, q), whether their argmax agree,
and the sums of the path-source test (METHOD.md §2, §3). All in float32 from upcast logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from selfspec_cli.engine.exactness import TIE_TOLERANCE
from selfspec_cli.engine.view import LayerView
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
    if laws.target.sampling.temperature == 0.0:
        return _greedy_chunk(view, states, tokens, before, laws)
    x = torch.tensor(list(tokens), device=states.device)[:, None]  # [n, 1]
    drafted = tokens[:-1]  # row i of a law follows `before` and the first i tokens
    logits = view.head(states[-1])
    p = laws.target.laws(logits, before, drafted)  # [n, V]
    px, top = p.gather(1, x)[:, 0], p.argmax(dim=-1)
    zero = px <= 0
    outside = torch.zeros_like(zero)
    if laws.target.sampling.truncated and bool(zero.any()):
        processed = laws.target.processed(logits, before, drafted)
        outside = zero & laws.target.cut_by_truncation(processed, x[:, 0], _slack(view))
    given, prob, agree = [], [], []
    for state in states[:-1]:
        q = laws.draft.laws(view.head(state), before, drafted)
        r = (q.gather(1, x)[:, 0] / px).clamp(max=1.0)
        given.append(torch.where(zero, torch.nan, r))
        prob.append(torch.minimum(p, q).sum(dim=-1))
        agree.append(q.argmax(dim=-1) == top)
    log_p = p.clamp(min=torch.finfo(p.dtype).tiny).log()
    entropy = -(p * log_p).sum(dim=-1)
    return Scores(
        accept_given_path=_numpy(given, len(tokens)),
        accept_prob=_numpy(prob, len(tokens)),
        is_argmax=_numpy(agree, len(tokens)).astype(bool),
        surprisal=torch.where(zero, torch.nan, -px.log()).cpu().numpy(),
        entropy=entropy.cpu().numpy(),
        varentropy=((p * log_p.square()).sum(dim=-1) - entropy.square()).clamp(min=0).cpu().numpy(),
        zero_prob=zero.cpu().numpy(),
        outside_truncation=outside.cpu().numpy(),
        path_is_argmax=(top == x[:, 0]).cpu().numpy(),
    )


def _greedy_chunk(
    view: LayerView, states: Tensor, tokens: Sequence[int], before: Sequence[int], laws: Laws
) -> Scores:
    n, drafted = len(tokens), tokens[:-1]
    logits = laws.target.processed(view.head(states[-1]), before, drafted)
    top = logits.argmax(dim=-1)
    x = torch.tensor(list(tokens), device=states.device)[:, None]
    behind = logits.amax(dim=-1) - logits.gather(1, x)[:, 0]
    agree = [laws.draft.greedy(view.head(state), before, drafted) == top for state in states[:-1]]
    same = _numpy(agree, n)
    missing = np.full(n, np.nan, dtype=np.float32)
    return Scores(
        accept_given_path=same,
        accept_prob=same,
        is_argmax=same.astype(bool),
        surprisal=missing,
        entropy=missing,
        varentropy=missing,
        zero_prob=np.zeros(n, dtype=bool),
        outside_truncation=np.zeros(n, dtype=bool),
        path_is_argmax=(behind <= _slack(view)).cpu().numpy(),
    )


def _slack(view: LayerView) -> float:
    """Logits this close may be ordered either way by two kernels."""
    return TIE_TOLERANCE.get(view.dtype, TIE_TOLERANCE[torch.bfloat16])


def _numpy(rows: Sequence[Tensor], n: int) -> Floats:
    if not rows:
        return np.empty((0, n), dtype=np.float32)
    return torch.stack(list(rows)).float().cpu().numpy()

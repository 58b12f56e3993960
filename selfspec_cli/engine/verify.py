"""Accept a prefix of the drafted tokens and pick the one token that follows. Pure functions.

p is the target's law, q the law each draft was really drawn from (GLOSSARY.md). All randomness
arrives as uniforms, so equal inputs give equal rounds.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from selfspec_cli.errors import ShapeError

SUM_TOLERANCE = 1e-4  # of a law's total; float32 sums over 150,000 tokens stay within 1e-5


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of one round before EOS and budget cut it."""

    num_accepted: int
    """Drafted tokens kept, 0..k."""
    next_token: int
    kind: Literal["recovered", "bonus"]
    """Drawn from the residual after a rejection, or from p after full acceptance."""


def draw(law: Tensor, uniform: float) -> int:
    """Return the token at quantile `uniform` in [0, 1) of an unnormalised law [V].

    Inverse CDF in float64; a token of zero weight is never returned.
    """
    cdf = torch.cumsum(law, dim=-1, dtype=torch.float64)
    token = int(torch.searchsorted(cdf, uniform * cdf[-1], right=True))
    if token >= law.shape[-1]:  # uniform · total rounded up to total
        token = int(law.nonzero()[-1])
    return token


def residual(target_law: Tensor, draft_law: Tensor) -> Tensor:
    """Return max(0, p - q) [V], or p where that is empty or not finite (p = q up to rounding)."""
    rest = (target_law - draft_law).clamp(min=0)
    total = float(rest.sum())
    return rest if 0.0 < total < float("inf") else target_law


def verify(
    draft_tokens: Tensor, draft_laws: Tensor, target_laws: Tensor, uniforms: Tensor
) -> Verdict:
    """Accept a prefix of the draft by rejection sampling and draw the token that follows it.

    Args:
        draft_tokens: int64 [k]. Proposed token ids.
        draft_laws: float [k, V]. Law each proposal was drawn from (q).
        target_laws: float [k+1, V]. Target law at the same positions plus one (p).
        uniforms: float64 [k+1] in [0, 1). The last one draws the next token.

    Returns:
        The verdict; its committed tokens follow p exactly whatever q is.

    Raises:
        ShapeError: lengths disagree; the message gives the shapes.
        ValueError: a law does not sum to 1, or a drafted token has q = 0.

    Source: Leviathan et al. 2023, arXiv 2211.17192, algorithm 1.
    Departs: k = 0 is allowed and yields a bonus token; an empty residual falls back to p.
    """
    k = draft_tokens.shape[0]
    _check(draft_tokens, draft_laws, target_laws, uniforms)
    rows = torch.arange(k, device=draft_tokens.device)
    q = draft_laws[rows, draft_tokens].double()
    p = target_laws[rows, draft_tokens].double()
    if bool((q <= 0).any()):
        raise ValueError(f"a drafted token has q = 0: q = {q.tolist()}")
    rejected = (uniforms[:k].to(p.device) * q >= p).nonzero()
    last = float(uniforms[k])
    if rejected.numel() == 0:
        return Verdict(k, draw(target_laws[k], last), "bonus")
    a = int(rejected[0, 0])
    return Verdict(a, draw(residual(target_laws[a], draft_laws[a]), last), "recovered")


def verify_greedy(draft_tokens: Tensor, target_tokens: Tensor) -> Verdict:
    """Accept drafts while they equal the target's argmax; temperature 0 has its own branch.

    Args:
        draft_tokens: int64 [k].
        target_tokens: int64 [k+1]. Argmax of the processed target law, ties to the lowest id.

    Raises:
        ShapeError: lengths disagree.
    """
    k = draft_tokens.shape[0]
    if target_tokens.shape[0] != k + 1:
        raise ShapeError(f"{k} drafts need {k + 1} target tokens, got {target_tokens.shape[0]}")
    differs = (draft_tokens != target_tokens[:k]).nonzero()
    a = int(differs[0, 0]) if differs.numel() else k
    return Verdict(a, int(target_tokens[a]), "recovered" if a < k else "bonus")


def _check(tokens: Tensor, draft: Tensor, target: Tensor, uniforms: Tensor) -> None:
    k = tokens.shape[0]
    fits = draft.shape[0] == k and target.shape[0] == uniforms.shape[0] == k + 1
    if not fits or draft.shape[-1] != target.shape[-1]:
        raise ShapeError(
            f"{k} drafts with draft laws {tuple(draft.shape)}, target laws "
            f"{tuple(target.shape)} and {uniforms.shape[0]} uniforms do not fit together"
        )
    totals = torch.cat([draft.sum(-1), target.sum(-1)])
    if bool(((totals - 1).abs() > SUM_TOLERANCE).any()) or not bool(totals.isfinite().all()):
        raise ValueError(f"laws do not sum to 1: totals {totals.tolist()}")

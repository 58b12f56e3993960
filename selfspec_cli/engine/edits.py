"""What a request's penalties, bans and masks do to the logits of some output positions.

All of it depends on the tokens before each position and none of it on the model, so it is worked
out once and applied to the logits of as many exits as are asked for. Only the tokens that occur
are touched: C of them, not V.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selfspec_cli.errors import ModelError
from selfspec_cli.records import Sampling

TokenMask = Callable[[Sequence[int]], Tensor | None]
"""Output tokens so far to a bool mask [V] of allowed tokens, or None for all (a grammar)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a request asks for, whatever was generated."""

    sampling: Sampling
    prompt: Tensor
    """int64; the repetition penalty counts these tokens too."""
    eos_ids: Sequence[int]
    """Tokens that `min_tokens` forbids."""
    token_mask: TokenMask | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """Changes to the logits of m consecutive output positions, in the order they are applied."""

    sampling: Sampling
    tokens: Tensor
    """int64 [C], distinct: those that occur before any of the positions."""
    counts: Tensor
    """float32 [m, C]: how often each was generated before each position."""
    seen: Tensor
    """bool [m, C]: whether it occurs in the prompt or before the position."""
    banned: Sequence[int]
    """Tokens forbidden at the first `num_banned` positions."""
    num_banned: int
    allowed: Tensor | None
    """bool [m, V], or None for all."""
    first: int
    """Output position of the first row, for messages."""

    def apply(self, logits: Tensor) -> Tensor:
        """Change logits [..., m, V] in place and return them.

        Raises:
            ModelError: no token is left at a position.
        """
        for token, amount in self.sampling.logit_bias:
            logits[..., token] += amount
        if len(self.tokens):
            logits[..., self.tokens] = self._penalised(logits[..., self.tokens])
        if self.num_banned and self.banned:
            logits[..., : self.num_banned, list(self.banned)] = -torch.inf
        if self.allowed is not None:
            logits.masked_fill_(~self.allowed, -torch.inf)
        self._check(logits)
        return logits

    def _penalised(self, value: Tensor) -> Tensor:
        s, counts = self.sampling, self.counts.to(value.dtype)
        if s.repetition_penalty != 1.0:
            r = s.repetition_penalty
            value = torch.where(self.seen, torch.where(value < 0, value * r, value / r), value)
        if s.presence_penalty or s.frequency_penalty:
            value = value - s.frequency_penalty * counts - s.presence_penalty * (counts > 0)
        return value

    def _check(self, logits: Tensor) -> None:
        empty = ~(logits > -torch.inf).any(dim=-1)  # [..., m]
        if bool(empty.any()):
            row = int(empty.nonzero()[0, -1])
            raise ModelError(
                f"no token is allowed at output position {self.first + row}",
                hint="The token mask and min_tokens together forbid every token.",
            )


def edits_at(
    rules: Rules, output: Sequence[int], drafted: Sequence[int], m: int, device: torch.device
) -> Edits:
    """Edits of m positions.

    Args:
        rules: the request's.
        output: tokens before the drafts.
        drafted: row m-1-j follows `output` and all but the last j of these tokens.
        m: rows.
        device: of the logits.
    """
    done = len(drafted) - (m - 1)
    before = [*output, *drafted[:done]]  # of row 0
    tokens, counts, seen = _occurrences(rules, before, drafted[done:], device)
    return Edits(
        sampling=rules.sampling,
        tokens=tokens,
        counts=counts,
        seen=seen,
        banned=rules.eos_ids,
        num_banned=min(m, max(0, rules.sampling.min_tokens - len(before))),
        allowed=_allowed(rules.token_mask, before, drafted[done:], device),
        first=len(before),
    )


def _occurrences(
    rules: Rules, before: Sequence[int], later: Sequence[int], device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct tokens [C], their counts in the output and whether they were seen, both [m, C]."""
    s = rules.sampling
    repeats = s.repetition_penalty != 1.0
    prompt = rules.prompt.to(device) if repeats else rules.prompt.new_empty(0, device=device)
    made = torch.tensor([*before, *later], dtype=torch.long, device=device)
    if not (repeats or s.presence_penalty or s.frequency_penalty):
        made = made[:0]
    tokens, where = torch.cat([prompt, made]).unique(return_inverse=True)
    own = where[len(prompt) :]  # of the output
    counts = torch.zeros(len(later) + 1, len(tokens), device=device)
    counts[0] = torch.bincount(own[: len(before)], minlength=len(tokens))
    if len(own) > len(before):
        rows = torch.arange(1, len(later) + 1, device=device)
        counts[rows, own[len(before) :]] = 1.0  # one token more a row
    counts = counts.cumsum(dim=0)
    seen = counts > 0
    seen[:, where[: len(prompt)]] = True
    return tokens, counts, seen


def _allowed(
    mask: TokenMask | None, before: Sequence[int], later: Sequence[int], device: torch.device
) -> Tensor | None:
    if mask is None:
        return None
    rows = [mask([*before, *later[:i]]) for i in range(len(later) + 1)]
    some = next((row for row in rows if row is not None), None)
    if some is None:
        return None
    every = torch.ones_like(some)
    return torch.stack([every if row is None else row for row in rows]).to(device)

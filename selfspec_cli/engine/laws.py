"""Logits to laws, through one function for target, draft and plain decoding.

Order: logit bias, penalties, minimum length, token mask, temperature, top-k, top-p (that of
transformers and vLLM). Temperature 0 never reaches the softmax: `greedy` is its own branch.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from selfspec_cli.errors import ModelError
from selfspec_cli.records import Sampling

TINY_TEMPERATURE = 1e-30  # any law is one-hot (or a tie of equals) well above it

TokenMask = Callable[[Sequence[int]], Tensor | None]
"""Output tokens so far to a bool mask [V] of allowed tokens, or None for all (a grammar)."""


class Processor:
    """One request's own processing of logits, given the tokens before each position.

    Args:
        sampling: the request's parameters.
        vocab_size: V.
        prompt: prompt token ids (repetition penalty counts them).
        eos_ids: tokens that `min_tokens` forbids.
        token_mask: optional grammar hook.
        truncate: False leaves top-k and top-p out; a draft law may do so, losslessly.

    Attributes:
        unchanged: whether `processed` is the identity.
    """

    def __init__(
        self,
        sampling: Sampling,
        vocab_size: int,
        prompt: Sequence[int] = (),
        *,
        eos_ids: Sequence[int] = (),
        token_mask: TokenMask | None = None,
        truncate: bool = True,
    ) -> None:
        self.sampling, self.vocab_size = sampling, vocab_size
        self.eos_ids, self.token_mask, self.truncate = list(eos_ids), token_mask, truncate
        self._prompt = torch.tensor(list(prompt), dtype=torch.long)
        self.unchanged = not sampling.penalised and token_mask is None

    def greedy(self, logits: Tensor, output: Sequence[int], drafted: Sequence[int] = ()) -> Tensor:
        """Argmax of the processed logits [m, V] to int64 [m]; ties go to the lowest id."""
        return self.processed(logits, output, drafted).argmax(dim=-1)

    def laws(self, logits: Tensor, output: Sequence[int], drafted: Sequence[int] = ()) -> Tensor:
        """Laws float32 [m, V] at temperature > 0.

        Row m-1-j is the law after `output` and all but the last j tokens of `drafted`: with m = 1
        everything drafted so far counts, with m = k+1 row i counts the first i drafts.
        """
        scaled = self.processed(logits, output, drafted)
        top = scaled.amax(dim=-1, keepdim=True)
        # Max first: no overflow at a tiny T. Below float32's range T would be 0, and 0 / 0 NaN.
        scaled = (scaled - top) / max(self.sampling.temperature, TINY_TEMPERATURE)
        if self.truncate:
            scaled = _top_p(_top_k(scaled, self.sampling.top_k), self.sampling.top_p)
        return torch.softmax(scaled, dim=-1)

    def cut_by_truncation(self, processed: Tensor, tokens: Tensor, slack: float) -> Tensor:
        """Whether top-k or top-p cut each token off by more than rounding, bool [m].

        Args:
            processed: logits [m, V] of `processed`.
            tokens: int64 [m].
            slack: how far rounding may move a logit. A token counts as kept if it would be among
                the k, or the mass before it below p, without those it trails by at most this.
        """
        k, p = self.sampling.top_k, self.sampling.top_p
        temperature = max(self.sampling.temperature, TINY_TEMPERATURE)
        own = processed.gather(1, tokens[:, None])  # [m, 1]
        ahead = processed > own + slack  # [m, V]
        cut = torch.zeros(len(tokens), dtype=torch.bool, device=processed.device)
        if k > 0:
            cut |= ahead.sum(dim=-1) >= k
        if p < 1.0:
            scaled = (processed - processed.amax(dim=-1, keepdim=True)) / temperature
            law = torch.softmax(_top_k(scaled, k), dim=-1)
            # Moving every logit by `slack` moves a mass by at most slack / (2 T).
            cut |= (law * ahead).sum(dim=-1) >= p + slack / temperature
        return cut & torch.isfinite(own[:, 0])  # forbidden outright is another matter

    def processed(
        self, logits: Tensor, output: Sequence[int], drafted: Sequence[int] = ()
    ) -> Tensor:
        """Logits [m, V] after everything but temperature and truncation; rows as in `laws`."""
        if self.unchanged:
            return logits
        m = logits.shape[0]
        done = len(drafted) - (m - 1)
        rows = [self._one(logits[i], [*output, *drafted[: done + i]]) for i in range(m)]
        return torch.stack(rows)

    def _one(self, logits: Tensor, output: Sequence[int]) -> Tensor:
        s, row = self.sampling, logits.clone()
        for token, amount in s.logit_bias:
            row[token] += amount
        made = torch.tensor(list(output), dtype=torch.long, device=row.device)
        row = _penalise(row, self._prompt.to(row.device), made, s)
        if len(output) < s.min_tokens:
            row[self.eos_ids] = -torch.inf
        allowed = self.token_mask(output) if self.token_mask else None
        if allowed is not None:
            row = row.masked_fill(~allowed.to(row.device), -torch.inf)
        if not bool((row > -torch.inf).any()):
            raise ModelError(
                f"no token is allowed at output position {len(output)}",
                hint="The token mask and min_tokens together forbid every token.",
            )
        return row


def _penalise(row: Tensor, prompt: Tensor, made: Tensor, sampling: Sampling) -> Tensor:
    if sampling.repetition_penalty != 1.0:
        seen = torch.cat([prompt, made]).unique()
        value = row[seen]
        r = sampling.repetition_penalty
        row[seen] = torch.where(value < 0, value * r, value / r)
    if sampling.presence_penalty or sampling.frequency_penalty:
        counts = torch.bincount(made, minlength=row.shape[0]).to(row.dtype)
        row = row - sampling.frequency_penalty * counts - sampling.presence_penalty * (counts > 0)
    return row


def _top_k(logits: Tensor, k: int) -> Tensor:
    if k <= 0 or k >= logits.shape[-1]:
        return logits
    kth = logits.topk(k, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < kth, -torch.inf)


def _top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the smallest set of most likely tokens that reaches mass p; always at least one."""
    if p >= 1.0:
        return logits
    ordered, index = logits.sort(dim=-1, descending=True, stable=True)
    law = torch.softmax(ordered, dim=-1)
    before = law.cumsum(dim=-1) - law
    drop = (before >= p).scatter(-1, index, before >= p)
    drop.scatter_(-1, index[..., :1], False)
    return logits.masked_fill(drop, -torch.inf)

"""Logits to laws, through one function for target, draft and plain decoding.

Order: logit bias, penalties, minimum length, token mask, temperature, top-k, top-p (that of
transformers and vLLM). Temperature 0 never reaches the softmax: `greedy` is its own branch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from selfspec_cli.engine.edits import Edits, Rules, TokenMask, edits_at
from selfspec_cli.records import Sampling

TINY_TEMPERATURE = 1e-30  # any law is one-hot (or a tie of equals) well above it
NUCLEUS = (512, 8192)  # most likely tokens top-p is looked for among, before all are sorted


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
        self.truncate = truncate
        self._rules = Rules(
            sampling=sampling,
            prompt=torch.tensor(list(prompt), dtype=torch.long),
            eos_ids=tuple(i for i in eos_ids if 0 <= i < vocab_size),  # some checkpoints say -1
            token_mask=token_mask,
        )
        self.unchanged = not sampling.penalised and token_mask is None

    def greedy(self, logits: Tensor, output: Sequence[int], drafted: Sequence[int] = ()) -> Tensor:
        """Argmax of the processed logits [m, V] to int64 [m]; ties go to the lowest id."""
        return self.processed(logits, output, drafted).argmax(dim=-1)

    def laws(self, logits: Tensor, output: Sequence[int], drafted: Sequence[int] = ()) -> Tensor:
        """Laws float32 [m, V] at temperature > 0.

        Row m-1-j is the law after `output` and all but the last j tokens of `drafted`: with m = 1
        everything drafted so far counts, with m = k+1 row i counts the first i drafts.
        """
        return self.law_of(self.processed(logits, output, drafted))

    def law_of(self, processed: Tensor, *, overwrite: bool = False) -> Tensor:
        """Laws float32 [..., V] of logits of `processed`, which are spoilt if `overwrite`."""
        top = processed.amax(dim=-1, keepdim=True)
        # Max first: no overflow at a tiny T. Below float32's range T would be 0, and 0 / 0 NaN.
        scaled = processed.sub_(top) if overwrite else processed - top
        scaled.div_(max(self.sampling.temperature, TINY_TEMPERATURE))
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
        edits = self.edits(output, drafted, logits.shape[0], logits.device)
        return logits if edits is None else edits.apply(logits.clone())

    def edits(
        self, output: Sequence[int], drafted: Sequence[int], m: int, device: torch.device
    ) -> Edits | None:
        """What `processed` does to m rows, for the logits of several exits; None is nothing."""
        if self.unchanged:
            return None
        return edits_at(self._rules, output, drafted, m, device)


def _top_k(logits: Tensor, k: int) -> Tensor:
    if k <= 0 or k >= logits.shape[-1]:
        return logits
    kth = logits.topk(k, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < kth, -torch.inf)


def _top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the smallest set of most likely tokens that reaches mass p; always at least one.

    Equally likely tokens are taken in order of id. Sorting a vocabulary costs more than the head
    that made its logits, so only as many of the most likely tokens are sorted as are needed.
    """
    if p >= 1.0:
        return logits
    rows = logits.reshape(-1, logits.shape[-1])
    law, kept = torch.softmax(rows, dim=-1), torch.full_like(rows, -torch.inf)
    left = torch.arange(len(rows), device=rows.device)
    for size in (*(n for n in NUCLEUS if n < rows.shape[-1]), rows.shape[-1]):
        found, settled = _nucleus(rows[left], law[left], p, size)
        kept[left[settled]] = found[settled]
        left = left[~settled]
        if not len(left):
            break
    return kept.reshape(logits.shape)


def _nucleus(rows: Tensor, law: Tensor, p: float, size: int) -> tuple[Tensor, Tensor]:
    """Logits [m, V] cut to mass p among the `size` most likely tokens, and where that is all.

    It is all if a token above the least likely of them is dropped: so is then whatever is not
    above that one, here or outside.
    """
    whole = size == rows.shape[-1]
    near = torch.arange(size, device=rows.device).expand(len(rows), -1)
    if not whole:  # ids ascending here too, so that a stable sort takes ties by id
        near = rows.topk(size, dim=-1, sorted=False).indices.sort(dim=-1).values
    ordered, order = rows.gather(-1, near).sort(dim=-1, descending=True, stable=True)
    index = near.gather(-1, order)
    mass = law.gather(-1, index)
    before = mass.cumsum(dim=-1) - mass
    drop = before >= p
    drop[:, 0] = False
    least = ordered[:, -1:]
    settled = (drop & (ordered > least)).any(dim=-1) | torch.isneginf(least[:, 0]) | whole
    cut = torch.full_like(rows, -torch.inf)
    return cut.scatter_(-1, index, ordered.masked_fill(drop, -torch.inf)), settled

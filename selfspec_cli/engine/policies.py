"""Who chooses the tokens of a round: greedy, sampled.

A policy is asked three things: the next token of plain decoding, a draft, and the verdict on a
round's drafts. The decoder runs the model; the policy turns logits into tokens.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.verify import Verdict, draw, verify, verify_greedy


class Policy(Protocol):
    """Chooses tokens from logits; `output` are the tokens committed so far."""

    def choose(self, logits: Tensor, output: Sequence[int]) -> int:
        """Next token of plain decoding from target logits [1, V]."""

    def propose(self, logits: Tensor, output: Sequence[int], drafted: Sequence[int]) -> int:
        """Draft one token from draft logits [1, V] after `drafted`."""

    def settle(self, logits: Tensor, output: Sequence[int], drafted: Sequence[int]) -> Verdict:
        """Verdict on `drafted` [k] from target logits [k+1, V]."""


class GreedyPolicy:
    """Temperature 0: argmax of both processed laws, its own branch throughout."""

    def __init__(self, target: Processor, draft: Processor | None = None) -> None:
        self.target, self.draft = target, draft or target

    def choose(self, logits: Tensor, output: Sequence[int]) -> int:
        """Argmax of the processed target logits."""
        return int(self.target.greedy(logits, output)[0])

    def propose(self, logits: Tensor, output: Sequence[int], drafted: Sequence[int]) -> int:
        """Argmax of the processed draft logits."""
        return int(self.draft.greedy(logits, output, drafted)[0])

    def settle(self, logits: Tensor, output: Sequence[int], drafted: Sequence[int]) -> Verdict:
        """Accept while drafts equal the target's argmax."""
        target = self.target.greedy(logits, output, drafted)
        return verify_greedy(torch.tensor(drafted, device=target.device), target)


class SampledPolicy:
    """Temperature > 0: rejection sampling with the whole draft law kept until the round ends.

    Args:
        target: processing of the request.
        generator: the request's own source of randomness (CPU).
        max_draft: longest draft; sizes the one buffer of draft laws [max_draft, V].
        draft: processing of the draft law if it differs; lossless either way.
    """

    def __init__(
        self,
        target: Processor,
        generator: torch.Generator,
        *,
        max_draft: int = 0,
        draft: Processor | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.target, self.draft = target, draft or target
        self.generator = generator
        self._laws = torch.empty(max_draft, target.vocab_size, device=device)

    def uniforms(self, n: int) -> Tensor:
        """Draw float64 [n] in [0, 1)."""
        return torch.rand(n, generator=self.generator, dtype=torch.float64)

    def choose(self, logits: Tensor, output: Sequence[int]) -> int:
        """Draw from the target law."""
        return draw(self.target.laws(logits, output)[0], float(self.uniforms(1)))

    def propose(self, logits: Tensor, output: Sequence[int], drafted: Sequence[int]) -> int:
        """Draw from the draft law and keep that law."""
        law = self._laws[len(drafted)]
        law.copy_(self.draft.laws(logits, output, drafted)[0])
        return draw(law, float(self.uniforms(1)))

    def settle(self, logits: Tensor, output: Sequence[int], drafted: Sequence[int]) -> Verdict:
        """Rejection sampling against the laws the drafts were drawn from."""
        target = self.target.laws(logits, output, drafted)
        k = len(drafted)
        tokens = torch.tensor(drafted, device=target.device)
        return verify(tokens, self._laws[:k], target, self.uniforms(k + 1))


def make_policy(
    target: Processor,
    seed: int,
    *,
    max_draft: int = 0,
    draft: Processor | None = None,
    device: torch.device | str = "cpu",
) -> GreedyPolicy | SampledPolicy:
    """Return the policy of a request's temperature, seeded for itself alone."""
    if target.sampling.temperature == 0.0:
        return GreedyPolicy(target, draft)
    generator = torch.Generator().manual_seed(seed)
    return SampledPolicy(target, generator, max_draft=max_draft, draft=draft, device=device)

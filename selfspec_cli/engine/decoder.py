"""Plain and self-speculative decoding of one request over one cache (METHOD.md §1).

A round drafts with layers [0, L), keeps each exit state, and verifies all drafts with one pass of
layers [L, N) over those states. Layers [0, L) never see a drafted token twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from selfspec_cli.engine.limits import check_fits
from selfspec_cli.engine.policies import Policy
from selfspec_cli.engine.view import LayerView
from selfspec_cli.errors import ModelError
from selfspec_cli.records import Finish, Round

PREFILL_CHUNK = 512  # positions; bounds the memory of a long prompt's hidden states and masks


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to decode: a prompt, a budget and where to end."""

    prompt: tuple[int, ...]
    budget: int
    """Output tokens at most."""
    eos_ids: frozenset[int] = frozenset()
    stopped: Callable[[Sequence[int]], bool] | None = None
    """Whether the output so far ends in a stop string; asked once a committed token."""


class Decoder:
    """Decoding state of one request: cache, committed output, how it ended.

    Invariant between steps: every layer's cache holds prompt + output except the last token.
    """

    def __init__(self, view: LayerView, job: Job, policy: Policy, *, max_draft: int = 0) -> None:
        check_fits(view.config, len(job.prompt), job.budget)
        self.view, self.job, self.policy = view, job, policy
        self.cache = view.new_cache(capacity=len(job.prompt) + job.budget)
        self.output: list[int] = []
        self.finish: Finish | None = None if job.budget > 0 else "length"
        self._states = torch.empty(
            1, max_draft + 1, view.hidden_size, dtype=view.dtype, device=view.device
        )

    @torch.inference_mode()
    def prefill(self) -> None:
        """Run the prompt and commit x_0."""
        if self.finish is not None:
            return
        hidden = self._states
        for at in range(0, len(self.job.prompt), PREFILL_CHUNK):
            hidden = self._full(self.job.prompt[at : at + PREFILL_CHUNK])
        self.commit([self.policy.choose(self.view.head(hidden[0, -1:]), self.output)])

    @torch.inference_mode()
    def ar_step(self) -> None:
        """One autoregressive step: all N layers at one position, one committed token."""
        hidden = self._full(self.output[-1:])
        self.commit([self.policy.choose(self.view.head(hidden[0]), self.output)])

    @torch.inference_mode()
    def round(self, exit_layer: int, draft_length: int) -> Round:
        """Draft, verify, commit, roll back; returns the round's counts.

        The draft is shortened to what the budget can still use; with nothing left to draft the
        round is an autoregressive step.
        """
        context = len(self.job.prompt) + len(self.output) - 1
        k = min(draft_length, self.job.budget - len(self.output) - 1)
        if k <= 0:
            self.ar_step()
            return round_of(0, 0, 1, context)
        drafted = self._draft(exit_layer, k)
        deep = self.view.run(
            self._states[:, : k + 1], self.cache, exit_layer, self.view.num_layers
        )  # [1, k+1, H]
        verdict = self.policy.settle(self.view.head(deep[0]), self.output, drafted)
        a = verdict.num_accepted
        committed = self.commit([*drafted[:a], verdict.next_token])
        self._roll_back()
        return round_of(k, a, committed, context)

    def ready(self, exit_layer: int = 0, draft_length: int = 0) -> None:
        """Let the view prepare all that the rest of a decode takes; timing calls it before.

        Args:
            exit_layer: of the rounds.
            draft_length: of the rounds, 0 for plain decoding.
        """
        end = len(self.job.prompt) + self.job.budget
        for layers, positions in passes_of(self.view.num_layers, exit_layer, draft_length):
            self.view.ready(self.cache, layers, positions, end)

    def _draft(self, exit_layer: int, k: int) -> list[int]:
        drafted: list[int] = []
        token = self.output[-1]
        for i in range(k):
            logits = self.view.head(self._shallow(token, exit_layer, i))
            token = self.policy.propose(logits, self.output, drafted)
            drafted.append(token)
        self._shallow(token, exit_layer, k)  # the last draft was never an input of the draft
        return drafted

    def _shallow(self, token: int, exit_layer: int, i: int) -> torch.Tensor:
        """Layers [0, L) at one position; keeps and returns the exit state [1, H]."""
        ids = torch.tensor([[token]], device=self.view.device)
        hidden = self.view.run(self.view.embed(ids, self.cache), self.cache, 0, exit_layer)
        self._states[:, i] = hidden[:, 0]
        return self._states[:, i]

    def _full(self, tokens: Sequence[int]) -> torch.Tensor:
        ids = torch.tensor([list(tokens)], device=self.view.device)
        hidden = self.view.embed(ids, self.cache)
        return self.view.run(hidden, self.cache, 0, self.view.num_layers)  # [1, m, H]

    def rewind(self, num_output: int) -> None:
        """Go back to the first `num_output` committed tokens, at least one; nothing is copied.

        Timing repeats a step from the same state with it.
        """
        del self.output[num_output:]
        self.finish = finish_of(self.job, self.output)
        self._roll_back()

    def _roll_back(self) -> None:
        held = len(self.job.prompt) + len(self.output) - 1
        self.cache.rollback([held])
        if any(lengths != [held] for lengths in self.cache.lengths):
            raise RuntimeError(f"cache pointers {self.cache.lengths} are not all {held}")

    def commit(self, tokens: Sequence[int]) -> int:
        """Append tokens up to EOS, a stop string or the budget; returns how many.

        A step's last act; timing calls it by itself to price bookkeeping.
        """
        count, self.finish = extend(self.job, self.output, tokens)
        return count


def passes_of(num_layers: int, exit_layer: int, draft_length: int) -> list[tuple[range, int]]:
    """Layers and positions of the passes after the prompt; of plain decoding at draft length 0.

    A round with nothing left to draft is a plain step.
    """
    plain = (range(num_layers), 1)
    if draft_length == 0:
        return [plain]
    deep = (range(exit_layer, num_layers), draft_length + 1)
    return [plain, (range(exit_layer), 1), deep]


def extend(job: Job, output: list[int], tokens: Sequence[int]) -> tuple[int, Finish | None]:
    """Append tokens up to EOS, a stop string or the budget; returns how many and the end."""
    for count, token in enumerate(tokens, start=1):
        output.append(token)
        finish = finish_of(job, output)
        if finish is not None:
            return count, finish
    return len(tokens), None


def round_of(num_drafted: int, num_accepted: int, num_committed: int, context: int) -> Round:
    """Counts of a round whose verdict accepted so many drafts before EOS and budget cut it."""
    cut = num_committed <= num_accepted  # ended on an accepted token: no later one was tested
    return Round(
        num_drafted=num_drafted,
        num_tested=num_committed if cut else min(num_accepted + 1, num_drafted),
        num_accepted=min(num_accepted, num_committed),
        num_committed=num_committed,
        context=context,
    )


def finish_of(job: Job, output: Sequence[int]) -> Finish | None:
    """How the output has ended with its last token, or None if it goes on."""
    if output[-1] in job.eos_ids:
        return "eos"
    if job.stopped is not None and job.stopped(output):
        return "stop"
    return "length" if len(output) >= job.budget else None


def decode_plain(view: LayerView, job: Job, policy: Policy) -> Decoder:
    """Autoregressive decoding to the end; the baseline, with the same cache and laws."""
    state = Decoder(view, job, policy)
    state.prefill()
    while state.finish is None:
        state.ar_step()
    return state


def decode_speculative(
    view: LayerView, job: Job, policy: Policy, exit_layer: int, draft_length: int
) -> tuple[Decoder, list[Round]]:
    """Self-speculative decoding to the end at fixed (L, k).

    Raises:
        ModelError: L outside 1..N or k < 1.
    """
    if not 1 <= exit_layer <= view.num_layers:
        raise ModelError(
            f"exit layer {exit_layer} is outside 1..{view.num_layers}", where="exit_layer"
        )
    if draft_length < 1:
        raise ModelError(f"draft length {draft_length} is below 1", where="draft_length")
    state = Decoder(view, job, policy, max_draft=draft_length)
    state.prefill()
    rounds = []
    while state.finish is None:
        rounds.append(state.round(exit_layer, draft_length))
    return state, rounds

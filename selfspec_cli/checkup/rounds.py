"""Real sampled rounds, model and all, in the number format at hand.

Rounds are made in pairs from one state, many times over. Each token is held against the law that
the logits of its own verifying pass give, so rounding has no say in whether it follows that law.
Whether those logits are the model's is another question: some of them, after the first round's
rollback as well, are held against plain passes within the tolerance of the number format.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isnan

import torch
from torch import Tensor

from selfspec_cli.checkup.attempts import attempt
from selfspec_cli.checkup.placed import Tested, judge_places, place, ratio
from selfspec_cli.checkup.subject import Subject
from selfspec_cli.engine.batch import BatchDecoder
from selfspec_cli.engine.decoder import Job
from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.policies import SampledPolicy
from selfspec_cli.engine.selfcheck import RELATIVE_TOLERANCE
from selfspec_cli.engine.verify import Verdict
from selfspec_cli.records import Sampling
from selfspec_cli.replay.law_proof import FALSE_ALARM
from selfspec_cli.replay.setting import derive_seed

TEMPERATURE = 1.0
DRAFT_LENGTH = 2
ROWS = 48  # rounds side by side; with three positions each still one of the engine's short passes
NUM_ROUNDS = 2_592
COMPARED_ROWS = 6  # whose logits are held against plain passes, in both rounds
BUDGET = 2 * (DRAFT_LENGTH + 1) + 2  # x_0, two rounds, one token so that no draft is cut
COMMITTED, REPLACED, IN_ORDER, BONUS = (
    "drafted places of real rounds",
    "tokens that replaced a draft",
    "tokens that replaced a draft, by id",
    "tokens after a whole draft",
)
ALARM_LEVEL = FALSE_ALARM / 4  # of each of these four tests


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRounds:
    """What real rounds showed."""

    tested: tuple[Tested, ...]
    num_rounds: int
    error: float | None
    """Largest difference of a verifying pass from plain passes, of the logits' range."""
    faults: tuple[str, ...]
    """Why the decoder stopped, and what is wrong with those logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """One verifying pass."""

    output: tuple[int, ...]
    drafted: tuple[int, ...]
    logits: Tensor
    """[k + 1, V]"""


class _Watched(SampledPolicy):
    """Samples as ever, and notes where tokens lie in their laws.

    Attributes:
        places: by kind of token.
        passes: verifying passes, as long as `keeps`.
        num_rounds: verdicts given.
    """

    def __init__(
        self, target: Processor, seed: int, device: torch.device, *, keeps: bool = False
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        super().__init__(target, generator, max_draft=DRAFT_LENGTH, device=device)
        self.places: dict[str, list[float | None]] = defaultdict(list)
        self.passes: list[_Pass] = []
        self.keeps, self.num_rounds = keeps, 0
        self._spread = torch.Generator().manual_seed(derive_seed(seed, "spread"))
        self._drawn_from: list[Tensor] = []

    def propose(self, logits: Tensor, output: Sequence[int], drafted: Sequence[int]) -> int:
        """As ever; the law of the logits is kept apart from what the policy keeps."""
        self._drawn_from[len(drafted) :] = [self.draft.laws(logits, output, drafted)[0].clone()]
        return super().propose(logits, output, drafted)

    def settle(self, logits: Tensor, output: Sequence[int], drafted: Sequence[int]) -> Verdict:
        """As ever; then place each token that the round commits."""
        if self.keeps:
            self.passes.append(
                _Pass(output=tuple(output), drafted=tuple(drafted), logits=logits.clone())
            )
        laws = self.target.laws(logits, output, drafted).clone()
        verdict = super().settle(logits, output, drafted)
        self.num_rounds += 1
        a = verdict.num_accepted
        for i in range(min(a + 1, len(drafted))):
            token = drafted[i] if i < a else verdict.next_token
            self._note(COMMITTED, laws[i], token, ratio(laws[i], self._drawn_from[i]))
        if a == len(drafted):
            self._note(BONUS, laws[a], verdict.next_token, laws[a])
        else:
            self._replaced(laws[a], self._drawn_from[a], verdict.next_token)
        return verdict

    def _replaced(self, target: Tensor, draft: Tensor, token: int) -> None:
        rest = (target - draft).clamp(min=0)
        rest = rest if float(rest.sum()) > 0 else target  # p = q up to rounding
        self._note(REPLACED, rest, token, rest)
        if float(rest[token]) > 0:  # else told once
            self._note(IN_ORDER, rest, token, torch.arange(len(rest), device=rest.device))

    def _note(self, kind: str, law: Tensor, token: int, order: Tensor) -> None:
        spread = float(torch.rand((), generator=self._spread, dtype=torch.float64))
        self.places[kind].append(place(law, token, order, spread))


def num_batches(subject: Subject) -> int:
    """Batches of pairs of real rounds; fewer where a pass takes long."""
    return NUM_ROUNDS // (2 * ROWS) // (1 if subject.small else 2)


def real_rounds(subject: Subject, told: Callable[[], None]) -> RealRounds:
    """Make pairs of rounds from one state, and judge what they commit.

    Args:
        subject: model and cases.
        told: called after each batch.
    """
    processor = Processor(Sampling(temperature=TEMPERATURE), subject.view.vocab_size)
    starts = [prompt if len(prompt) > 1 else prompt * 2 for prompt in subject.prompts.values()]
    start = max(starts, key=lambda tokens: _contrast(subject, processor, tokens))
    seeds = [derive_seed(subject.seed, "round", row) for row in range(ROWS)]
    policies = [_Watched(processor, seed, subject.view.device) for seed in seeds]
    faults: list[str] = []
    attempt("real rounds", faults, lambda: _make(subject, policies, start, told))
    error = _largest_error(subject, policies, start[:-1])
    tolerance = RELATIVE_TOLERANCE.get(subject.view.dtype, 6e-2)
    if error is not None and not error <= tolerance:  # NaN differs too
        faults.append(
            f"logits of verifying passes differ from those of plain passes by {error:.3g} of "
            f"their range (tolerance {tolerance:g})"
        )
    return RealRounds(
        tested=tuple(_tested(policies)),
        num_rounds=sum(policy.num_rounds for policy in policies),
        error=error,
        faults=tuple(faults),
    )


def _tested(policies: Sequence[_Watched]) -> list[Tested]:
    found = []
    for kind in (COMMITTED, REPLACED, IN_ORDER, BONUS):
        places = [one for policy in policies for one in policy.places[kind]]
        tested = judge_places(kind, places, ALARM_LEVEL)
        found += [tested] if tested is not None else []
    return found


def _contrast(subject: Subject, processor: Processor, tokens: tuple[int, ...]) -> float:
    """Chi-square a draw of resampling rejected drafts from p after `tokens`.

    The fault hardest to see; a state is chosen where it shows.
    """
    states = states_after(subject, tokens)
    p, q = (
        processor.laws(subject.view.head(states[depth][-1:]), ())[0]
        for depth in (subject.num_layers, subject.exit_layers[0])
    )
    kept = torch.minimum(p, q)
    gap = (kept - kept.sum() * p) ** 2 / p.clamp(min=1.0 / NUM_ROUNDS)
    return float(gap.sum())


def states_after(subject: Subject, tokens: Sequence[int]) -> dict[int, Tensor]:
    """State [n, H] at every depth of one plain pass over `tokens`."""
    view, found = subject.view, dict[int, Tensor]()
    cache = view.new_cache(capacity=len(tokens))
    ids = torch.tensor([list(tokens)], device=view.device)

    def tap(depth: int, hidden: Tensor) -> None:
        found[depth] = hidden[0].clone()

    view.run(view.embed(ids, cache), cache, 0, view.num_layers, tap)
    return found


def _make(
    subject: Subject,
    policies: Sequence[_Watched],
    start: tuple[int, ...],
    told: Callable[[], None],
) -> tuple[str, ...]:
    """Make all rounds, each pair from the state after `start`; returns no faults of its own."""
    *prompt, first = start
    job = Job(prompt=tuple(prompt), budget=min(BUDGET, subject.budget))
    jobs = [job for _ in policies]
    batch = BatchDecoder(subject.view, jobs, policies, max_draft=DRAFT_LENGTH)
    batch.prefill()
    exits = subject.exit_layers[:-1]  # in turn: a deep one accepts whole drafts, a shallow one few
    for turn in range(num_batches(subject)):
        for at, policy in enumerate(policies):
            policy.keeps = turn == 0 and at < COMPARED_ROWS
        for output in batch.outputs:  # the same state for all: `first` in place of what was drawn
            output[:1] = [first]
        batch.rewind(1)
        for _ in range(2):
            if batch.live:
                batch.round(exits[turn % len(exits)], DRAFT_LENGTH)
        told()
    return ()


def _largest_error(
    subject: Subject, policies: Sequence[_Watched], prompt: tuple[int, ...]
) -> float | None:
    """Largest difference of kept logits from plain passes, of the range; None without any."""
    errors = []
    for seen in (one for policy in policies for one in policy.passes):
        states = states_after(subject, (*prompt, *seen.output, *seen.drafted))
        plain = subject.view.head(states[subject.num_layers][-len(seen.logits) :])
        scale = float(plain.abs().max()) or 1.0
        errors.append(float((seen.logits - plain).abs().max()) / scale)
    broken = [error for error in errors if isnan(error)]  # no maximum keeps it
    return max(broken or errors, default=None)

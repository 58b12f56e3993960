"""Proof at temperature > 0 that rounds commit tokens by the target's own law.

Two texts may differ there and both be right, so the law is tested. Laws of the model at positions
of its own text are drawn from 20,000 times each by the decoder's rule (`replay.law_proof`); and
real rounds, model and all, are made from one state many times over, their first token and the
token after an accepted draft being held against the laws of plain passes.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from selfspec_cli.checkup.records import Part
from selfspec_cli.checkup.subject import Subject
from selfspec_cli.engine.batch import BatchDecoder
from selfspec_cli.engine.decoder import Job, decode_plain
from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.policies import make_policy
from selfspec_cli.records import Sampling
from selfspec_cli.replay.law_proof import FALSE_ALARM, LawPair, chi_square_p, prove_law
from selfspec_cli.replay.setting import derive_seed

PART = Part(
    name="law",
    title="sampling: committed law",
    unit="p-value, which differs below the tolerance",
)
TEMPERATURES = (0.7, 1.0)
POSITIONS = 6  # at each temperature
ROUND_ROWS = 64  # rounds made side by side
NUM_ROUNDS = 2_560
REAL_TEMPERATURE = 1.0  # of the real rounds
ALARM_LEVEL = FALSE_ALARM / 2  # of each of the two tests of real rounds
ALARMS = len(TEMPERATURES) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tested:
    """One chi-square, or several at one level."""

    what: str
    smallest_p: float
    level: float
    disagreements: int = 0

    @property
    def fault(self) -> str:
        if self.disagreements:
            return (
                f"{self.what}: the decoder's verification decided {self.disagreements} draws "
                "otherwise than the rule"
            )
        if self.smallest_p < self.level:
            return (
                f"{self.what}: committed tokens do not follow p, p-value {self.smallest_p:.3g} "
                f"below {self.level:.3g}"
            )
        return ""


def num_batches(subject: Subject) -> int:
    """Batches of real rounds; fewer where a pass takes long."""
    return NUM_ROUNDS // ROUND_ROWS // (1 if subject.small else 2)


def law_steps(subject: Subject) -> int:
    """How many times `told` will be called at most."""
    return len(TEMPERATURES) + num_batches(subject)


@torch.inference_mode()
def prove_sampling(subject: Subject, told: Callable[[], None]) -> Part:
    """Test the law of committed tokens at two temperatures.

    Args:
        subject: model and cases.
        told: called after each temperature, and after each batch of real rounds.
    """
    tested: list[_Tested] = []
    shares: list[float] = []
    for temperature in TEMPERATURES:
        pairs = _pairs(subject, temperature)
        shares += [float(torch.minimum(pair.target, pair.draft).sum()) for pair in pairs]
        proof = prove_law(pairs, derive_seed(subject.seed, "verify", temperature))
        if proof.smallest_p is not None and proof.alarm_level is not None:
            what = f"{proof.positions} positions at T = {temperature:g}"
            tested.append(
                _Tested(
                    what=what,
                    smallest_p=proof.smallest_p,
                    level=proof.alarm_level,
                    disagreements=proof.disagreements,
                )
            )
        told()
    exact = subject.view.dtype == torch.float32
    if exact:  # elsewhere one pass over two positions rounds otherwise than two, which shows here
        tested += _real_rounds(subject, told)
    return _part(tested, shares, num_rounds=num_batches(subject) * ROUND_ROWS if exact else 0)


def _part(tested: Sequence[_Tested], shares: Sequence[float], *, num_rounds: int) -> Part:
    rounds, exact = f" and {num_rounds} real rounds" if num_rounds else "", num_rounds > 0
    alarm = FALSE_ALARM * (ALARMS if exact else len(TEMPERATURES))
    worst = min(tested, key=lambda one: one.smallest_p / one.level, default=None)
    accepted = f", {sum(shares) / len(shares):.0%} of drafts accepted" if shares else ""
    return replace(
        PART,
        cases=len(tested),
        value=worst.smallest_p if worst else None,
        tolerance=worst.level if worst else None,
        faults=tuple(one.fault for one in tested if one.fault),
        text=f"20,000 draws at {len(shares)} positions, T = 0.7 and 1.0{rounds}{accepted}; "
        f"chi-square, a lossless decoder fails with probability {alarm:.0e}",
    )


def _processor(subject: Subject, temperature: float) -> Processor:
    return Processor(Sampling(temperature=temperature), subject.view.vocab_size)


def _pairs(subject: Subject, temperature: float) -> list[LawPair]:
    """Laws p and q at positions of a text the model writes by itself, exits in rotation."""
    processor = _processor(subject, temperature)
    seed = derive_seed(subject.seed, "text", temperature)
    job = Job(prompt=subject.longest, budget=max(2, min(POSITIONS + 1, subject.budget)))
    text = decode_plain(subject.view, job, make_policy(processor, seed)).output
    states = _states(subject, (*subject.longest, *text[:-1]))
    exits = subject.exit_layers[:-1]
    pairs = []
    for t in range(1, len(text)):
        at = len(subject.longest) + t - 1
        inner = states[exits[t % len(exits)]][at : at + 1]
        last = states[subject.num_layers][at : at + 1]
        head = subject.view.head
        pairs.append(
            LawPair(
                target=processor.laws(head(last), text[:t])[0],
                draft=processor.laws(head(inner), text[:t])[0],
            )
        )
    return pairs


def _states(subject: Subject, tokens: Sequence[int]) -> dict[int, Tensor]:
    """State [n, H] at every depth of one plain pass over `tokens`."""
    view, found = subject.view, dict[int, Tensor]()
    cache = view.new_cache(capacity=len(tokens))
    ids = torch.tensor([list(tokens)], device=view.device)

    def tap(depth: int, hidden: Tensor) -> None:
        found[depth] = hidden[0].clone()

    view.run(view.embed(ids, cache), cache, 0, view.num_layers, tap)
    return found


def _real_rounds(subject: Subject, told: Callable[[], None]) -> list[_Tested]:
    """Rounds of one draft from the same state; the law of what each commits."""
    processor = _processor(subject, REAL_TEMPERATURE)
    start = max(
        (_start(subject, processor, prompt) for prompt in subject.prompts.values()),
        key=lambda one: one.contrast,
    )
    committed = _commit(subject, processor, start, told)
    own = Counter(tokens[0] for tokens in committed)
    found = [_tested("first token of real rounds", own, start.law)]
    followed = Counter(tokens[0] for tokens in committed if len(tokens) > 1)
    if followed:
        common = followed.most_common(1)[0][0]
        after = Counter(t[1] for t in committed if len(t) > 1 and t[0] == common)
        last = _states(subject, (*start.tokens, common))[subject.num_layers][-1:]
        law = processor.laws(subject.view.head(last), ())[0]
        found.append(_tested("token after an accepted draft", after, law))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """A state that rounds are made from."""

    tokens: tuple[int, ...]
    """Prompt and x_0."""
    law: Tensor
    """p of the next token, float32 [V]."""
    contrast: float
    """Chi-square a draw of resampling rejected drafts from p, the fault hardest to see."""


def _start(subject: Subject, processor: Processor, prompt: tuple[int, ...]) -> _Start:
    """The state after a prompt whose last token is x_0; a prompt of one token is also its x_0."""
    tokens = prompt if len(prompt) > 1 else prompt * 2
    states = _states(subject, tokens)
    p, q = (
        processor.laws(subject.view.head(states[depth][-1:]), ())[0]
        for depth in (subject.num_layers, subject.exit_layers[0])
    )
    kept = torch.minimum(p, q)
    gap = (kept - kept.sum() * p) ** 2 / p.clamp(min=1.0 / NUM_ROUNDS)
    return _Start(tokens=tokens, law=p, contrast=float(gap.sum()))


def _tested(what: str, counts: Counter[int], law: Tensor) -> _Tested:
    observed = torch.zeros(law.shape[0], dtype=torch.float64)
    for token, count in counts.items():
        observed[token] = count
    p_value = chi_square_p(observed.numpy(), law.double().cpu().numpy())
    total = sum(counts.values())
    return _Tested(what=f"{what} ({total} at T = 1)", smallest_p=p_value, level=ALARM_LEVEL)


def _commit(
    subject: Subject, processor: Processor, start: _Start, told: Callable[[], None]
) -> list[tuple[int, ...]]:
    """Tokens that each of many rounds at the shallowest exit commits from the same state."""
    *prompt, first = start.tokens
    jobs = [Job(prompt=tuple(prompt), budget=3) for _ in range(ROUND_ROWS)]
    seeds = [derive_seed(subject.seed, "round", row) for row in range(ROUND_ROWS)]
    device = subject.view.device
    policies = [make_policy(processor, seed, max_draft=1, device=device) for seed in seeds]
    batch = BatchDecoder(subject.view, jobs, policies, max_draft=1)
    batch.prefill()
    committed = []
    for _ in range(num_batches(subject)):
        for output in batch.outputs:  # the same state for all: `first` in place of what was drawn
            output[:1] = [first]
        batch.rewind(1)
        batch.round(subject.exit_layers[0], 1)
        committed += [tuple(output[1:]) for output in batch.outputs]
        told()
    return committed

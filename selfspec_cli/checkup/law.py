"""Proof at temperature > 0 that rounds commit tokens by the target's own law.

Two texts may differ there and both be right, so the law is tested. Laws of the model at positions
of its own text are drawn from 20,000 times each by the decoder's rule (`replay.law_proof`); and
real rounds, model and all, are made many times over from one state (`checkup.rounds`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from selfspec_cli.checkup.placed import Tested
from selfspec_cli.checkup.records import Part
from selfspec_cli.checkup.rounds import RealRounds, num_batches, real_rounds, states_after
from selfspec_cli.checkup.subject import Subject
from selfspec_cli.engine.decoder import Job, decode_plain
from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.policies import make_policy
from selfspec_cli.records import Sampling
from selfspec_cli.replay.law_proof import FALSE_ALARM, LawPair, prove_law
from selfspec_cli.replay.setting import derive_seed

PART = Part(
    name="law",
    title="sampling: committed law",
    unit="p-value, which differs below the tolerance",
)
TEMPERATURES = (0.7, 1.0)
POSITIONS = 6  # at each temperature
ALARMS = len(TEMPERATURES) + 1  # tests at `FALSE_ALARM` each


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
    tested: list[Tested] = []
    shares: list[float] = []
    for temperature in TEMPERATURES:
        pairs = _pairs(subject, temperature)
        shares += [float(torch.minimum(pair.target, pair.draft).sum()) for pair in pairs]
        proof = prove_law(pairs, derive_seed(subject.seed, "verify", temperature))
        if proof.smallest_p is not None and proof.alarm_level is not None:
            what = f"{proof.positions} positions at T = {temperature:g}"
            tested.append(
                Tested(
                    what=what,
                    smallest_p=proof.smallest_p,
                    level=proof.alarm_level,
                    disagreements=proof.disagreements,
                )
            )
        told()
    made = real_rounds(subject, told)
    return _part([*tested, *made.tested], shares, made)


def _part(tested: Sequence[Tested], shares: Sequence[float], made: RealRounds) -> Part:
    worst = min(tested, key=lambda one: one.smallest_p / one.level, default=None)
    accepted = f", {sum(shares) / len(shares):.0%} of drafts accepted" if shares else ""
    error = "" if made.error is None else f" (logits off by {made.error:.2g} of their range)"
    return replace(
        PART,
        cases=len(tested),
        value=worst.smallest_p if worst else None,
        tolerance=worst.level if worst else None,
        faults=(*(one.fault for one in tested if one.fault), *made.faults),
        text=f"20,000 draws at {len(shares)} positions, T = 0.7 and 1.0, and {made.num_rounds} "
        f"real rounds{error}{accepted}; chi-square, a lossless decoder fails with probability "
        f"{FALSE_ALARM * ALARMS:.0e}",
    )


def _processor(subject: Subject, temperature: float) -> Processor:
    return Processor(Sampling(temperature=temperature), subject.view.vocab_size)


def _pairs(subject: Subject, temperature: float) -> list[LawPair]:
    """Laws p and q at positions of a text the model writes by itself, exits in rotation."""
    processor = _processor(subject, temperature)
    seed = derive_seed(subject.seed, "text", temperature)
    job = Job(prompt=subject.longest, budget=max(2, min(POSITIONS + 1, subject.budget)))
    text = decode_plain(subject.view, job, make_policy(processor, seed)).output
    states = states_after(subject, (*subject.longest, *text[:-1]))
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

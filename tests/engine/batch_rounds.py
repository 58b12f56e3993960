"""Run jobs in rounds side by side and one by one, for comparison."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from selfspec_cli.engine.batch import BatchDecoder
from selfspec_cli.engine.decoder import Decoder, Job
from selfspec_cli.engine.policies import Policy
from selfspec_cli.engine.view import LayerView
from selfspec_cli.records import Round

Policies = Callable[[], list[Policy]]
"""Makes one fresh policy a job: sampled ones hold a generator."""


@dataclass
class Made:
    """Of each job: tokens, end, rounds."""

    outputs: list[list[int]] = field(default_factory=list)
    finishes: list[str | None] = field(default_factory=list)
    rounds: list[list[Round]] = field(default_factory=list)

    def differences(self, other: "Made") -> list[str]:
        """Which jobs differ, with tokens and rounds of both."""
        return [
            f"job {at}: {mine} != {theirs}"
            for at, (mine, theirs) in enumerate(zip(self._jobs(), other._jobs(), strict=True))
            if mine != theirs
        ]

    def _jobs(self):
        return list(zip(self.outputs, self.finishes, self.rounds, strict=True))


def alone(view: LayerView, jobs: Sequence[Job], policies: Policies, cell) -> Made:
    """Each job by itself with `Decoder`; cell None is plain decoding."""
    made = Made()
    for job, policy in zip(jobs, policies(), strict=True):
        state, rounds = Decoder(view, job, policy, max_draft=cell[1] if cell else 0), []
        state.prefill()
        while state.finish is None:
            rounds.append(state.round(*cell)) if cell else state.ar_step()
        made.outputs.append(state.output)
        made.finishes.append(state.finish)
        made.rounds.append(rounds)
    return made


def together(
    view: LayerView, jobs, policies: Policies, cell, *, rows=None, kind=BatchDecoder
) -> Made:
    """All jobs in one batch, rows refilled as long as jobs wait."""
    batch = kind(view, jobs, policies(), max_draft=cell[1] if cell else 0, rows=rows)
    made = Made(rounds=[[] for _ in jobs])
    batch.prefill()
    batch.refill()
    while batch.live:
        if cell:
            for job, own in batch.round(*cell).items():
                made.rounds[job].append(own)
        else:
            batch.step()
        batch.refill()
    made.outputs, made.finishes = batch.outputs, batch.finishes
    return made

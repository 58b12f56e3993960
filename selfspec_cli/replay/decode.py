"""Decode one request for real: timed on its observed path, or freely."""

from collections.abc import Sequence
from dataclasses import dataclass

from selfspec_cli.cost.clock import Stopwatch
from selfspec_cli.engine.decoder import Decoder, Job
from selfspec_cli.engine.policies import Policy
from selfspec_cli.records import Finish, Round
from selfspec_cli.replay.setting import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """One decode: what came out, in which rounds, in how many seconds."""

    tokens: tuple[int, ...]
    finish: Finish
    rounds: tuple[Round, ...]
    """Empty for plain decoding."""
    prefill_seconds: float
    """From the prompt to x_0, on an empty cache."""
    seconds: float
    """From x_0 to the last committed token; 0 tokens after x_0 take 0 seconds."""


@dataclass(frozen=True, slots=True)
class Cell:
    """An exit layer and a draft length; None stands for plain decoding wherever cells are."""

    exit_layer: int
    draft_length: int


def decode(
    setting: Setting, job: Job, policy: Policy, cell: Cell | None, clock: Stopwatch
) -> Decoded:
    """Decode a job to its end, plainly or in rounds of a cell, timing prefill and decode apart."""
    max_draft = cell.draft_length if cell else 0
    state = Decoder(setting.loaded.view, job, policy, max_draft=max_draft)
    prefill_seconds = clock.span(state.prefill)
    rounds: list[Round] = []

    def steps() -> None:
        while state.finish is None:
            if cell is None:
                state.ar_step()
            else:
                rounds.append(state.round(cell.exit_layer, cell.draft_length))

    seconds = clock.span(steps)
    return Decoded(
        tokens=tuple(state.output),
        finish=state.finish or "unknown",
        rounds=tuple(rounds),
        prefill_seconds=prefill_seconds,
        seconds=seconds,
    )


def round_totals(rounds: Sequence[Round]) -> dict[str, int]:
    """Sums of the rounds' counts, under the names of the run's files."""
    return {
        "rounds": len(rounds),
        "drafted": sum(r.num_drafted for r in rounds),
        "tested": sum(r.num_tested for r in rounds),
        "accepted": sum(r.num_accepted for r in rounds),
        "committed": sum(r.num_committed for r in rounds),
    }

"""Decode one request for real and time it: plainly, or in rounds of a cell."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from selfspec_cli.cost.clock import Stopwatch
from selfspec_cli.engine.decoder import Decoder
from selfspec_cli.engine.policies import Policy
from selfspec_cli.records import Finish, Round


@dataclass(frozen=True, slots=True)
class Cell:
    """An exit layer and a draft length; None stands for plain decoding wherever cells are."""

    exit_layer: int
    draft_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """One decode from x_0 on: what came out, in which rounds, in how many seconds."""

    tokens: tuple[int, ...]
    """Output, x_0 included."""
    finish: Finish
    rounds: tuple[Round, ...]
    """Empty for plain decoding."""
    seconds: float
    """From x_0 to the last committed token; an output of one token takes none."""

    @property
    def num_committed(self) -> int:
        """Tokens after x_0, which those seconds made."""
        return len(self.tokens) - 1


def decode(
    state: Decoder,
    policy: Policy,
    cell: Cell | None,
    clock: Stopwatch,
    told: Callable[[], object] = lambda: None,
) -> Decoded:
    """Decode from x_0 to the end with a policy of its own; the prompt stays in the cache.

    The state is rewound first, so that one prefill serves every cell of a request. `told` is called
    before the first step and after each step or round, within the time taken.
    """
    state.rewind(1)
    state.policy = policy
    state.ready(*(cell.exit_layer, cell.draft_length) if cell else ())
    rounds: list[Round] = []

    def steps() -> None:
        told()
        while state.finish is None:
            if cell is None:
                state.ar_step()
            else:
                rounds.append(state.round(cell.exit_layer, cell.draft_length))
            told()

    seconds = clock.span(steps)
    return Decoded(
        tokens=tuple(state.output),
        finish=state.finish or "unknown",
        rounds=tuple(rounds),
        seconds=seconds,
    )


def round_totals(rounds: Sequence[Round]) -> dict[str, int]:
    """Sums of the rounds' counts, under the names of the run's files."""
    return {
        "rounds": len(rounds),
        "drafted": sum(r.num_drafted for r in rounds),
        "tested": sum(r.num_tested for r in rounds),
        "accepted": sum(r.num_accepted for r in rounds),
    }

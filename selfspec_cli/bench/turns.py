"""Take the turns of a bench, one request or batch each, and keep what is done if it ends early.

A turn decodes with every arm, so whatever is kept compares all arms over the same requests. The
turns go repeat by repeat, so that a drifting machine slows all arms alike.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from selfspec_cli.bench.choose import Chosen, Item, Limits
from selfspec_cli.bench.measure import Bench, Found, measure_request
from selfspec_cli.bench.measure_batch import Batch, measure_batch
from selfspec_cli.bench.taken import INTERRUPTED, Taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request alone, or one batch, in one repeat."""

    items: tuple[Item, ...]
    batch: Batch | None
    """None for a request alone."""
    repeat: int

    def take(self, bench: Bench) -> Found:
        """Decode with every arm."""
        if self.batch is not None:
            return measure_batch(bench, self.batch, self.repeat)
        return measure_request(bench, self.items[0], self.repeat)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What the turns found."""

    found: tuple[Found, ...]
    taken: Taken
    signal: BaseException | None
    """What stopped it and is still to be raised, once the results are safe."""


def turns_of(chosen: Chosen, batches: Sequence[Batch], limits: Limits) -> tuple[Turn, ...]:
    """Return all turns in their order.

    Args:
        chosen: requests, decoded alone where 1 is a batch size.
        batches: decoded after them.
        limits: repeats and batch sizes.
    """
    alone = chosen.items if 1 in limits.batch_sizes else ()
    return tuple(
        turn
        for repeat in range(limits.repeats)
        for turn in (
            *(Turn(items=(item,), batch=None, repeat=repeat) for item in alone),
            *(Turn(items=own.items, batch=own, repeat=repeat) for own in batches),
        )
    )


def take_turns(bench: Bench, turns: Sequence[Turn], told: Callable[[Turn], object]) -> Done:
    """Take the turns; a signal ends them early, and what was done is returned with it.

    Args:
        bench: what decodes.
        turns: of `turns_of`.
        told: called after each turn.

    Raises:
        BaseException: a signal before the first turn was done.
    """
    found: list[Found] = []
    signal: BaseException | None = None
    try:
        for turn in turns:
            found.append(turn.take(bench))
            told(turn)
    except Exception:
        raise
    except BaseException as stop:  # Ctrl-C and SIGTERM are no errors: hours of decoding are kept
        if not found:
            raise
        signal = stop
    stopped = None if signal is None else INTERRUPTED
    return Done(found=tuple(found), taken=_taken(turns, len(found), stopped), signal=signal)


def _taken(turns: Sequence[Turn], done: int, stopped: str | None) -> Taken:
    return Taken(
        requests=_requests(turns[:done]),
        planned_requests=_requests(turns),
        turns=done,
        planned_turns=len(turns),
        stopped=stopped if done < len(turns) else None,
    )


def _requests(turns: Sequence[Turn]) -> int:
    """Different requests of these turns."""
    return len({(one.request.request_id, one.bucket) for turn in turns for one in turn.items})

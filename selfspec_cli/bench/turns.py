"""Take the turns of a bench, one request or batch each; what is done stays if it ends early.

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
class Window:
    """The time that the turns have."""

    begin_ns: int
    """Reading of the bench's clock before the warm-up, whose time counts too."""
    budget_s: float
    planned_s: float
    """What it should take, from `begin_ns` to the end of the last turn."""


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


def take_turns(
    bench: Bench, turns: Sequence[Turn], window: Window, told: Callable[[Turn], object]
) -> Done:
    """Take the turns until their time is spent, at least one.

    A signal ends them early, and what was done is returned with it.

    Args:
        bench: what decodes.
        turns: of `turns_of`.
        window: the time that they have.
        told: called after each turn.

    Raises:
        BaseException: a signal before the first turn was done.
    """
    found: list[Found] = []
    signal: BaseException | None = None
    try:
        for turn in turns:
            if found and _spent_s(bench, window) >= window.budget_s:
                break
            found.append(turn.take(bench))
            told(turn)
    except Exception:
        raise
    except BaseException as stop:  # Ctrl-C and SIGTERM are no errors: hours of decoding are kept
        if not found:
            raise
        signal = stop
    spent = f"the time budget of {window.budget_s:g} s is spent"
    stopped = spent if signal is None else INTERRUPTED
    taken = Taken(
        requests=_requests(turns[: len(found)]),
        planned_requests=_requests(turns),
        turns=len(found),
        planned_turns=len(turns),
        stopped=stopped if len(found) < len(turns) else None,
        planned_s=window.planned_s,
        took_s=_spent_s(bench, window),
    )
    return Done(found=tuple(found), taken=taken, signal=signal)


def _spent_s(bench: Bench, window: Window) -> float:
    return (bench.clock.read_ns() - window.begin_ns) * 1e-9


def _requests(turns: Sequence[Turn]) -> int:
    """Different requests of these turns."""
    return len({(one.request.request_id, one.bucket) for turn in turns for one in turn.items})

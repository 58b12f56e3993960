"""Decode requests with every arm, interleaved, and note what each took.

Alone (batch size 1) all our arms of a request share one prompt pass a repeat; plain decoding runs
first and last, the others between in a seeded shuffled order. In batches the requests of a bucket
run through B rows that are refilled. At temperature 0 our arms must write what plain decoding
writes. At temperature > 0 they decode freely, so the arms' texts differ and only the time per
committed token compares; arms of the same cell have the same coins and write the same text.
"""

import itertools
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from selfspec_cli.bench.arms import AR, EARLY_EXIT, FORCED, LOOKUP, PLAN, RIVALS
from selfspec_cli.bench.choose import Item
from selfspec_cli.bench.memory import Memory
from selfspec_cli.bench.rivals import LOOKUP_TOKENS, RivalJob, RivalRun, Rivals
from selfspec_cli.cost.clock import Clock
from selfspec_cli.engine.decoder import Decoder
from selfspec_cli.engine.exactness import Difference
from selfspec_cli.records import Round
from selfspec_cli.replay.confirm import first_difference
from selfspec_cli.replay.decode import Cell, Decoded, decode, round_totals
from selfspec_cli.replay.setting import Setting, derive_seed

COLUMNS = (
    "task", "context_min", "context_max", "temperature", "batch_size", "arm", "repeat",
    "request_id", "group_id", "exit_layer", "draft_length", "prompt_tokens", "committed",
    "prefill_seconds", "seconds", "request_seconds", "rounds", "drafted", "tested", "accepted",
    "rounds_by_accepted", "gap_max_s", "gap_p50_s", "exact", "peak_memory_bytes", "engine", "order",
)  # fmt: skip
"""Columns of bench.csv; a row lacks what is not known of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What decodes, and what it is timed and weighed with."""

    setting: Setting
    clock: Clock
    memory: Memory
    rivals: Rivals | None

    @property
    def engine(self) -> str:
        """Name of our engine."""
        return self.setting.loaded.view.engine

    def library_decodes(self, item: Item) -> bool:
        """Whether the library's own arms decode a request too."""
        rivals = self.rivals
        return rivals is not None and rivals.supports(item.request, item.bucket.temperature)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Rows of bench.csv and every greedy output that was not the plain one."""

    rows: tuple[dict[str, Any], ...]
    differences: tuple[tuple[dict[str, Any], Difference], ...]
    """The row, and where its output departs."""


@dataclass(frozen=True, slots=True)
class _Timed:
    """One decode of ours."""

    run: Decoded
    stamps: tuple[int, ...]
    """Nanoseconds: when decoding began and after each step."""
    peak: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """One request in one repeat: its prompt is in the cache."""

    bench: Bench
    item: Item
    repeat: int
    state: Decoder
    prefill_seconds: float

    def decode(self, cell: Cell | None) -> _Timed:
        """Decode from x_0 on, plainly or with a cell."""
        bench, item, stamps = self.bench, self.item, list[int]()
        policy = bench.setting.policy(
            item.request,
            item.bucket.temperature,
            *(cell, self.repeat),
            max_draft=cell.draft_length if cell else 0,
        )
        cache = self.state.cache
        run, peak = bench.memory.watch(
            lambda: decode(
                self.state, policy, cell, bench.clock, lambda: stamps.append(bench.clock.read_ns())
            ),
            bench.memory.reckoned(cache.rows, cache.capacity),
        )
        return _Timed(run, tuple(stamps), peak)


def bucket_columns(item: Item) -> dict[str, Any]:
    """Return the columns that name a row's bucket."""
    key = item.bucket
    return {
        "task": key.task,
        "context_min": key.context_min,
        "context_max": key.context_max,
        "temperature": key.temperature,
    }


def measure_request(bench: Bench, item: Item, repeat: int) -> Found:
    """Decode one request alone with every arm that it has.

    Args:
        bench: what decodes.
        item: the request and its cells.
        repeat: each has coins and an order of its own.
    """
    session = _begin(bench, item, repeat)
    before = session.decode(None)
    rows: list[dict[str, Any]] = []
    differences = []
    for order, arm in enumerate(_order(bench, item, repeat), start=1):
        if arm in RIVALS:
            row = _rival_row(session, arm)
        else:
            cell = item.plan if arm == PLAN else item.forced
            made = session.decode(cell)
            row = _own_row(session, (arm, cell), [made])
            other = _difference(session, before.run, made.run)
            row["exact"] = None if item.bucket.temperature > 0 else other is None
            differences += [(row, other)] if other is not None else []
        if row is not None:
            rows.append(row | {"order": order})
    plain = _own_row(session, (AR, None), [before, session.decode(None)]) | {"order": 0}
    return Found(rows=(plain, *rows), differences=tuple(differences))


def _begin(bench: Bench, item: Item, repeat: int) -> _Session:
    setting, request = bench.setting, item.request
    longest = max((cell.draft_length for cell in (item.plan, item.forced) if cell), default=0)
    policy = setting.policy(request, item.bucket.temperature, "x_0", repeat)
    state = Decoder(setting.loaded.view, setting.job(request), policy, max_draft=longest)
    return _Session(
        bench=bench,
        item=item,
        repeat=repeat,
        state=state,
        prefill_seconds=bench.clock.span(state.prefill),
    )


def _order(bench: Bench, item: Item, repeat: int) -> list[str]:
    """Arms between the plain runs, shuffled by a seed of the request's own."""
    arms = [PLAN, *([FORCED] if item.forced else [])]
    rivals = bench.rivals
    if rivals is not None and bench.library_decodes(item):
        arms += [arm for arm in RIVALS if arm not in rivals.refused]
    key = f"{item.request.request_id}/{item.bucket.temperature}/{repeat}/{bench.setting.seed}"
    random.Random(key).shuffle(arms)
    return arms


def _difference(session: _Session, plain: Decoded, run: Decoded) -> Difference | None:
    """Where greedy output departs from the plain one; None at T > 0, where texts may differ."""
    if session.item.bucket.temperature > 0:
        return None
    request = session.item.request
    return first_difference(session.bench.setting, request, plain.tokens, run.tokens)


def _head(session: _Session, arm: str) -> dict[str, Any]:
    request = session.item.request
    return dict.fromkeys(COLUMNS) | {
        **bucket_columns(session.item),
        "batch_size": 1,
        "arm": arm,
        "repeat": session.repeat,
        "request_id": request.request_id,
        "group_id": request.group_id,
        "prompt_tokens": request.prompt_tokens,
    }


def _own_row(
    session: _Session, arm: tuple[str, Cell | None], made: Sequence[_Timed]
) -> dict[str, Any]:
    """A row of ours; times of several decodes of the same arm are their means."""
    name, cell = arm
    first, gaps = made[0].run, [_gaps(one.stamps) for one in made]
    seconds = statistics.fmean(one.run.seconds for one in made)
    return _head(session, name) | {
        "committed": first.num_committed,
        "prefill_seconds": session.prefill_seconds,
        "seconds": seconds,
        "request_seconds": session.prefill_seconds + seconds,
        **round_columns(cell, first.rounds),
        "gap_max_s": _mean([max(own) for own in gaps if own]),
        "gap_p50_s": _mean([statistics.median(own) for own in gaps if own]),
        "peak_memory_bytes": made[0].peak,
        "engine": session.bench.engine,
    }


def round_columns(cell: Cell | None, rounds: Sequence[Round]) -> dict[str, Any]:
    """Return the cell and the counts of its rounds; missing for plain decoding, which has none.

    Args:
        cell: decoded with.
        rounds: all of them; those that had nothing left to draft are no part of the histogram.
    """
    names = ("exit_layer", "draft_length", "rounds", "drafted", "tested", "accepted")
    if cell is None:
        return dict.fromkeys((*names, "rounds_by_accepted"))
    counts = [0] * (cell.draft_length + 1)
    for one in rounds:
        if one.num_drafted:
            counts[one.num_accepted] += 1
    return {
        "exit_layer": cell.exit_layer,
        "draft_length": cell.draft_length,
        **round_totals(rounds),
        "rounds_by_accepted": " ".join(map(str, counts)),
    }


def _rival_row(session: _Session, arm: str) -> dict[str, Any] | None:
    """A row of the library's; None where the model does not support the arm."""
    bench, item, rivals = session.bench, session.item, session.bench.rivals
    if rivals is None:
        return None
    layer = item.forced.exit_layer if item.forced else None
    key = (item.request.request_id, item.bucket.temperature, arm, session.repeat)
    job = RivalJob(
        arm=arm,
        request=item.request,
        temperature=item.bucket.temperature,
        exit_layer=layer,
        seed=derive_seed(bench.setting.seed, *key),
    )
    run, peak = rivals.watch(lambda: rivals.run(job, bench.clock))
    if run is None or not run.deliveries:
        return None
    return _head(session, arm) | {
        "exit_layer": layer if arm == EARLY_EXIT else None,
        "draft_length": LOOKUP_TOKENS if arm == LOOKUP else None,
        **_rival_times(run),
        "peak_memory_bytes": peak,
        "engine": "transformers",
    }


def _rival_times(run: RivalRun) -> dict[str, Any]:
    """Times by delivery; the first one of a drafting arm may hold more than x_0."""
    times = [at * 1e-9 for at, _ in run.deliveries]
    gaps = [late - early for early, late in itertools.pairwise(times)]
    return {
        "committed": len(run.tokens) - 1,
        "prefill_seconds": times[0],
        "seconds": run.seconds - times[0],
        "request_seconds": run.seconds,
        "gap_max_s": max(gaps, default=None),
        "gap_p50_s": statistics.median(gaps) if gaps else None,
    }


def _gaps(stamps: Sequence[int]) -> list[float]:
    """Seconds between deliveries of tokens; the first counts from x_0."""
    return [(late - early) * 1e-9 for early, late in itertools.pairwise(stamps)]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None

"""How long a bench should take: every arm's own pace, from one request timed just before.

The probe tells what this machine takes now; how that grows with the prompt and the batch size is
the run's measurement (prefills of cost.csv, plain steps of the plan), or in proportion where it
has none. Acceptance differs between requests, so a prediction is good to a factor, not to a digit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from selfspec_cli.bench.choose import Chosen, Item, Limits
from selfspec_cli.bench.subject import Subject
from selfspec_cli.storage import read_table

COST_FILE = "cost.csv"
_PLAIN_DECODES = 2  # before the other arms, and after them


@dataclass(frozen=True, slots=True)
class Pace:
    """What one arm takes."""

    prefill_s: float
    """Of the probe's prompt."""
    token_s: float
    """Decode time an output token after the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paces:
    """What the probe found."""

    prompt_tokens: int
    """Of the probe's prompt."""
    plain: Pace
    drafted: Pace
    """Our arms where they speculate; the prompt is shared with plain decoding."""
    rivals: Mapping[str, Pace]
    """The library's arms; each reads the prompt itself."""
    overhead_s: float
    """Of one turn, beyond what its decodes take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How times grow from the probe to other requests."""

    prompts: tuple[tuple[float, float], ...] = ()
    """(prompt tokens, prefill seconds) of the run, ascending; in proportion without any."""
    steps: Mapping[int, float]
    """Plain step over that of batch 1, by batch size; where missing, rows share nothing."""
    median_tokens: float | None = None
    """Output tokens of the log's median request."""

    def prefill(self, tokens: int, of: int) -> float:
        """Time of a prompt of `tokens` over that of one of `of` tokens."""
        return self._prefill(tokens) / self._prefill(of)

    def _prefill(self, tokens: int) -> float:
        if not self.prompts:
            return float(max(tokens, 1))
        sizes, seconds = zip(*self.prompts, strict=True)
        longer = max(1.0, tokens / sizes[-1])  # beyond the longest measured: in proportion
        return float(np.interp(tokens, sizes, seconds)) * longer

    def step(self, batch_size: int) -> float:
        """Time of a plain step of a batch over that of one row."""
        return self.steps.get(batch_size, float(batch_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Predicts the time of requests with all their arms."""

    paces: Paces
    growth: Growth
    setup_s: float
    """Taken by the warm-up and the probe."""
    supports: Callable[[Item], bool]
    """Whether the library's arms decode it too."""

    def item_s(self, item: Item, batch_size: int) -> float:
        """Seconds of one request with every arm in one repeat, alone or as its share of a batch."""
        paces, request = self.paces, item.request
        prompt = self.growth.prefill(request.prompt_tokens, paces.prompt_tokens)
        most, median = request.max_tokens, self.growth.median_tokens
        tokens = max((most if median is None else min(most, median)) - 1, 0)
        decodes = self._decodes(item) * tokens
        if batch_size > 1:  # each arm reads the prompts again
            passes = _PLAIN_DECODES + 1 + (item.forced is not None)
            share = self.growth.step(batch_size) / batch_size
            return passes * paces.plain.prefill_s * prompt + decodes * share
        own = paces.plain.prefill_s * prompt + decodes + paces.overhead_s
        if not self.supports(item):
            return own
        rivals = (one.prefill_s * prompt + one.token_s * tokens for one in paces.rivals.values())
        return own + sum(rivals)

    def _decodes(self, item: Item) -> float:
        """Seconds an output token, of our arms together."""
        plain, drafted = self.paces.plain.token_s, self.paces.drafted.token_s
        plan = plain if item.plan is None else drafted
        return _PLAIN_DECODES * plain + plan + (0.0 if item.forced is None else drafted)


def growth_of(subject: Subject) -> Growth:
    """Return what the plan and its run measured of how times grow.

    Raises:
        StorageError: the run's cost.csv cannot be read.
    """
    plan = subject.plan
    timed = {one.batch_size: one.ar_step_s for one in plan.batches if one.ar_step_s}
    alone = timed.get(1) or plan.measured_on.costs.ar_step_s
    return Growth(
        prompts=() if subject.run is None else _prompts(subject.run / COST_FILE),
        steps={size: step / alone for size, step in timed.items()} if alone else {},
        median_tokens=plan.traces.output_window.median_tokens,
    )


def _prompts(path: Path) -> tuple[tuple[float, float], ...]:
    if not path.is_file():
        return ()
    table = read_table(path)
    if not {"part", "positions", "batch", "seconds"} <= set(table.columns):
        return ()
    own = table.loc[(table["part"] == "prefill") & (table["batch"] == 1) & (table["seconds"] > 0)]
    found = own.groupby("positions", sort=True)["seconds"].median()
    pairs = zip(found.index.to_numpy(dtype=float), found.to_numpy(dtype=float), strict=True)
    return tuple((float(tokens), float(seconds)) for tokens, seconds in pairs)


def within_budget(chosen: Chosen, estimate: Estimate, limits: Limits) -> Chosen:
    """Return the first of the chosen requests that fit the time budget together, at least one.

    They are taken in their order, in turn over the buckets, up to the first that does not fit:
    passing over long ones would favour short ones.

    Args:
        chosen: all that could be decoded.
        estimate: of their times.
        limits: the budget, repeats and batch sizes.
    """
    kept: list[Item] = []
    spent = estimate.setup_s
    counts = {bucket: len(items) for bucket, items in chosen.by_bucket().items()}
    for item in chosen.items:
        sizes = [size for size in limits.batch_sizes if size <= counts[item.bucket]]
        seconds = limits.repeats * sum(estimate.item_s(item, size) for size in sizes)
        if kept and spent + seconds > limits.budget_s:
            break
        kept.append(item)
        spent += seconds
    left_out, notes = len(chosen.items) - len(kept), chosen.notes
    if left_out:
        notes = (
            *notes,
            f"{left_out} of {len(chosen.items)} requests are left out: the budget of "
            f"{limits.budget_s:g} s is used up with {spent:.3g} s; more with --budget-s",
        )
    return Chosen(items=tuple(kept), notes=notes, num_left_out=left_out)


def planned_s(
    estimate: Estimate, alone: Sequence[Item], batches: Sequence[tuple[int, Sequence[Item]]]
) -> float:
    """Return the seconds of one repeat, without the setup.

    Args:
        estimate: of their times.
        alone: requests decoded alone.
        batches: (batch size, its requests).
    """
    own = sum(estimate.item_s(item, 1) for item in alone)
    return own + sum(estimate.item_s(item, size) for size, items in batches for item in items)

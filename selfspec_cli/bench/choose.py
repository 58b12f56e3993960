"""Which requests are decoded: up to N a bucket, in turn over the buckets, within a budget."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from selfspec_cli.bench.arms import forced_cell, plan_cell
from selfspec_cli.bench.subject import Subject
from selfspec_cli.buckets import BucketKey, bucket_of
from selfspec_cli.records import PreparedRequest
from selfspec_cli.replay.decode import Cell
from selfspec_cli.replay.setting import temperatures_of

DECODES = 4  # plain before and after, the plan's, forced
RIVAL_DECODES = 3
MIN_BUDGET = 2  # output tokens: the first comes with the prompt, and nothing is decoded after it


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A request at a temperature, and what it is decoded with alone."""

    bucket: BucketKey
    request: PreparedRequest
    plan: Cell | None
    """None where the plan says plain decoding."""
    forced: Cell | None
    """None where the plan names no cell at all."""
    predicted_s: float
    """Of all its decodes, alone and in batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What is decoded, and sentences about what is not."""

    items: tuple[Item, ...]
    notes: tuple[str, ...]
    num_left_out: int
    """(request, temperature) pairs that fit the number a bucket, and not the budget."""

    @property
    def predicted_s(self) -> float:
        """Seconds that decoding should take."""
        return sum(item.predicted_s for item in self.items)

    def by_bucket(self) -> dict[BucketKey, list[Item]]:
        """Items by bucket, in the order of buckets."""
        found: dict[BucketKey, list[Item]] = {}
        for item in sorted(self.items, key=lambda one: one.bucket):
            found.setdefault(item.bucket, []).append(item)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is decoded."""

    requests: int
    """Requests a bucket."""
    budget_s: float
    repeats: int
    batch_sizes: tuple[int, ...]
    seed: int
    rivals: bool = True


def choose_items(subject: Subject, requests: Sequence[PreparedRequest], limits: Limits) -> Chosen:
    """Choose requests by a seeded hash, one a group and bucket, in turn over the buckets.

    The first of each bucket come first, so that a small budget leaves no bucket out for another's
    sake. Their time is predicted from the plan's plain step and the log's median output; prompts
    are not counted. The first request is always kept. Length plays no part.
    """
    waiting = _by_bucket(subject, requests, limits)
    turns = [
        own[turn]
        for turn in range(max(map(len, waiting.values()), default=0))
        for own in waiting.values()
        if turn < len(own)
    ]
    kept: list[Item] = []
    spent = 0.0
    for item in turns:
        if kept and spent + item.predicted_s > limits.budget_s:
            continue
        kept.append(item)
        spent += item.predicted_s
    left_out = len(turns) - len(kept)
    notes = _notes(subject, requests, limits, (left_out, len(turns), spent))
    return Chosen(items=tuple(kept), notes=notes, num_left_out=left_out)


def _notes(
    subject: Subject,
    requests: Sequence[PreparedRequest],
    limits: Limits,
    told: tuple[int, int, float],
) -> tuple[str, ...]:
    left_out, total, spent = told
    notes = []
    short = sum(request.max_tokens < MIN_BUDGET for request in requests)
    if short:
        notes.append(f"{short} requests allow fewer than {MIN_BUDGET} output tokens: not decoded")
    if left_out:
        notes.append(
            f"{left_out} of {total} requests are left out: the budget of {limits.budget_s:g} s is "
            f"used up with {spent:.0f} s; more with --budget-s"
        )
    if subject.plan.measured_on.costs.ar_step_s is None:
        notes.append("the plan knows no time of a plain step: no time could be predicted")
    return tuple(notes)


def _by_bucket(
    subject: Subject, requests: Sequence[PreparedRequest], limits: Limits
) -> dict[BucketKey, list[Item]]:
    """Candidates by bucket, drawn and at most as many as are wanted."""
    found: dict[BucketKey, list[Item]] = {}
    groups: dict[BucketKey, set[str]] = {}
    for request in sorted(requests, key=lambda one: _hash(limits.seed, one.request_id)):
        if request.max_tokens < MIN_BUDGET:
            continue
        for temperature in temperatures_of(request, subject.temperatures):
            item = _item(subject, request, temperature, limits)
            taken = groups.setdefault(item.bucket, set())
            if request.group_id not in taken and len(taken) < limits.requests:
                taken.add(request.group_id)
                found.setdefault(item.bucket, []).append(item)
    return {bucket: found[bucket] for bucket in sorted(found)}


def _item(subject: Subject, request: PreparedRequest, temperature: float, limits: Limits) -> Item:
    bucket = bucket_of(
        task=request.task,
        prompt_tokens=request.prompt_tokens,
        temperature=temperature,
        edges=subject.plan.settings.context_edges,
    )
    return Item(
        bucket=bucket,
        request=request,
        plan=plan_cell(subject.decider, request, temperature),
        forced=forced_cell(subject.plan, bucket),
        predicted_s=_predicted(subject, request, limits, temperature),
    )


def _predicted(
    subject: Subject, request: PreparedRequest, limits: Limits, temperature: float
) -> float:
    """Plain time of the log's median output, times the decodes of every batch size and repeat."""
    plan = subject.plan
    median = plan.traces.output_window.median_tokens
    tokens = request.max_tokens if median is None else min(request.max_tokens, median)
    timed = {one.batch_size: one.ar_step_s for one in plan.batches}
    alone = plan.measured_on.costs.ar_step_s or 0.0
    total = 0.0
    for size in limits.batch_sizes:
        step = timed.get(size) or alone * size  # not timed: rows share nothing at worst
        rivals = RIVAL_DECODES if size == 1 and limits.rivals and temperature == 0 else 0
        total += step / size * tokens * (DECODES + rivals)
    return total * limits.repeats


def cells_of(items: Iterable[Item]) -> set[Cell]:
    """Every cell that some item is decoded with."""
    return {cell for item in items for cell in (item.plan, item.forced) if cell is not None}


def _hash(seed: int, request_id: str) -> str:
    return hashlib.sha256(f"{seed}/{request_id}".encode()).hexdigest()

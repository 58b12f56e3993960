"""Which requests are decoded: up to N a bucket, in turn over the buckets."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from selfspec_cli.bench.arms import forced_cell, plan_cell
from selfspec_cli.bench.subject import Subject
from selfspec_cli.buckets import BucketKey, bucket_of
from selfspec_cli.records import PreparedRequest
from selfspec_cli.replay.decode import Cell
from selfspec_cli.replay.setting import temperatures_of

RivalsAt = Literal["greedy", "all", "none"]
"""Requests that the library's own arms decode: at temperature 0, at any, none."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What is decoded, and sentences about what is not."""

    items: tuple[Item, ...]
    notes: tuple[str, ...]
    num_left_out: int = 0
    """(request, temperature) pairs that fit the number a bucket, and not the time budget."""

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
    rivals: RivalsAt = "greedy"


def choose_items(subject: Subject, requests: Sequence[PreparedRequest], limits: Limits) -> Chosen:
    """Choose requests by a seeded hash, one a group and bucket, in turn over the buckets.

    The first of each bucket come first, so that a small time budget leaves no bucket out for
    another's sake. Length plays no part.
    """
    waiting = _by_bucket(subject, requests, limits)
    turns = tuple(
        own[turn]
        for turn in range(max(map(len, waiting.values()), default=0))
        for own in waiting.values()
        if turn < len(own)
    )
    short = sum(request.max_tokens < MIN_BUDGET for request in requests)
    note = f"{short} requests allow fewer than {MIN_BUDGET} output tokens: not decoded"
    return Chosen(items=turns, notes=(note,) if short else ())


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
            item = _item(subject, request, temperature)
            taken = groups.setdefault(item.bucket, set())
            if request.group_id not in taken and len(taken) < limits.requests:
                taken.add(request.group_id)
                found.setdefault(item.bucket, []).append(item)
    return {bucket: found[bucket] for bucket in sorted(found)}


def _item(subject: Subject, request: PreparedRequest, temperature: float) -> Item:
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
    )


def cells_of(items: Iterable[Item]) -> set[Cell]:
    """Every cell that some item is decoded with."""
    return {cell for item in items for cell in (item.plan, item.forced) if cell is not None}


def _hash(seed: int, request_id: str) -> str:
    return hashlib.sha256(f"{seed}/{request_id}".encode()).hexdigest()

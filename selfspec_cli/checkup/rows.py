"""Proof at temperature 0 that rows of a ragged batch commit what each prompt does alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from selfspec_cli.checkup.attempts import attempt
from selfspec_cli.checkup.greedy import GAP, parting
from selfspec_cli.checkup.records import Listed, Part, with_differences
from selfspec_cli.checkup.subject import Subject
from selfspec_cli.engine.batch import BatchDecoder
from selfspec_cli.engine.decoder import Job
from selfspec_cli.replay.decode import Cell

PART = Part(name="batch", title="greedy: rows = alone", unit=GAP)
ROWS = 3  # side by side, as many as the engine's own proof has
JOBS = 5  # more than rows, so that rows are refilled
DRAFT_LENGTH = 4


def prove_batch(
    subject: Subject, plain: Mapping[int, tuple[int, ...]], told: Callable[[], None]
) -> Part:
    """Rows plainly and in rounds, refilled as they end, against each prompt decoded alone.

    Args:
        subject: model and cases.
        plain: of `greedy.plain_outputs`.
        told: called after each batch.
    """
    lengths = sorted(subject.prompts, reverse=True)[:JOBS]
    cells = batch_cells(subject)
    faults: list[str] = []
    listed: list[Listed] = []
    for cell in cells:
        how = "plain rows" if cell is None else f"rows at L = {cell.exit_layer}, k = {DRAFT_LENGTH}"
        attempt(how, faults, partial(_batch, subject, lengths, plain, cell, listed))
        told()
    part = replace(
        PART,
        cases=len(cells) * len(lengths),
        tolerance=subject.tolerance,
        faults=tuple(faults),
        text=f"{len(lengths)} prompts of {lengths[-1]} to {lengths[0]} tokens, {ROWS} rows at a "
        "time and refilled, plainly and in rounds",
    )
    return with_differences(part, listed)


def batch_cells(subject: Subject) -> tuple[Cell | None, ...]:
    """Plain rows, rounds at the middle exit, rounds at L = N."""
    layers = (subject.middle, subject.num_layers)
    return (None, *(Cell(exit_layer=at, draft_length=DRAFT_LENGTH) for at in layers))


def _batch(
    subject: Subject,
    lengths: Sequence[int],
    plain: Mapping[int, tuple[int, ...]],
    cell: Cell | None,
    listed: list[Listed],
) -> list[str]:
    """Decode all prompts in one batch, each with a budget of its own; lists where tokens part."""
    budgets = [max(2, subject.budget - 2 * at) for at in range(len(lengths))]
    jobs = [
        Job(prompt=subject.prompts[length], budget=budget)
        for length, budget in zip(lengths, budgets, strict=True)
    ]
    batch = BatchDecoder(
        subject.view,
        jobs,
        [subject.policy() for _ in jobs],
        max_draft=cell.draft_length if cell else 0,
        rows=min(ROWS, len(jobs)),
    )
    batch.prefill()
    batch.refill()
    while batch.live:
        if cell is None:
            batch.step()
        else:
            batch.round(cell.exit_layer, cell.draft_length)
        batch.refill()
    for length, job, output in zip(lengths, jobs, batch.outputs, strict=True):
        found = parting(subject, job.prompt, plain[length][: job.budget], output)
        if found is not None:
            how = "plain row" if cell is None else f"row at L = {cell.exit_layer}"
            listed.append(Listed(where=f"{how}, prompt of {length}", difference=found))
    return []

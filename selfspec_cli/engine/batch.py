"""Decoding of several requests at once, plainly or in rounds, each row exactly as if alone.

Nothing is padded: each prompt is run alone into its own row of the cache, then one pass serves all
rows, each at its own write pointer. Rows with the same prompt, one request at several temperatures,
share one run of it. A round accepts per row: what a row wrote beyond its own pointer, because it
accepted less or drafts less than the longest draft of the round, is never visible and overwritten.
A row that ends leaves: later passes run over fewer rows, or its place goes to a waiting request.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from selfspec_cli.engine.decoder import (
    PREFILL_CHUNK,
    Job,
    extend,
    finish_of,
    passes_of,
    round_of,
)
from selfspec_cli.engine.limits import check_fits
from selfspec_cli.engine.policies import Policy
from selfspec_cli.engine.row_policies import choose_rows, propose_rows, settle_rows
from selfspec_cli.engine.seats import Seats
from selfspec_cli.engine.view import LayerView
from selfspec_cli.records import Finish, Round

Tap = Callable[[int, Tensor], None]
PromptTap = Callable[[int, int, Tensor], None]


class BatchDecoder:
    """Decode numbered jobs, some side by side, the others waiting for a row.

    Invariant between passes: every layer's cache holds, in the row of each running job, its prompt
    + output except the last token. The running jobs hold the first rows when a pass begins.

    Args:
        view: the model.
        jobs: what to decode.
        policies: one a job.
        max_draft: longest draft of any round.
        rows: how many jobs run side by side; all of them unless given.

    Attributes:
        outputs: committed tokens of each job.
        finishes: how each job ended, None while it runs or waits.

    Raises:
        ModelError: a job's prompt and budget exceed the model's positions, or a prompt is empty.
    """

    def __init__(
        self,
        view: LayerView,
        jobs: Sequence[Job],
        policies: Sequence[Policy],
        *,
        max_draft: int = 0,
        rows: int | None = None,
    ) -> None:
        for job in jobs:
            check_fits(view.config, len(job.prompt), job.budget)
        self.view, self.jobs, self.policies, self.max_draft = view, jobs, policies, max_draft
        self.outputs: list[list[int]] = [[] for _ in jobs]
        self.finishes: list[Finish | None] = [None if job.budget > 0 else "length" for job in jobs]
        count = len(jobs) if rows is None else rows
        # A row that may draft less than the longest draft of a round writes beyond its budget.
        capacity = max(len(job.prompt) + job.budget for job in jobs) + max_draft
        self.cache = view.new_cache(rows=count, capacity=capacity)
        self._states = torch.empty(
            count, max_draft + 1, view.hidden_size, dtype=view.dtype, device=view.device
        )
        self._limit = view.max_positions
        self._seats = Seats(count, (at for at, job in enumerate(jobs) if job.budget > 0))
        self._active: list[int] = []  # jobs the cache's pointers stand for, by row

    @property
    def running(self) -> list[int]:
        """Jobs by row of the next pass."""
        return self._seats.running()

    @property
    def live(self) -> list[int]:
        """Jobs that run now, ascending."""
        return sorted(self.running)

    @property
    def num_waiting(self) -> int:
        """Jobs that have not had a row."""
        return len(self._seats.waiting)

    @torch.inference_mode()
    def prefill(self, tap: PromptTap | None = None) -> None:
        """Run each distinct prompt of the first rows once and commit each job's x_0.

        `tap(job, depth, hidden)` sees the last prompt position's state [1, 1, H] by depth.
        """
        self._begin(tap)

    @torch.inference_mode()
    def refill(self, tap: PromptTap | None = None) -> int:
        """Give rows whose job ended to waiting jobs and run their prompts; returns how many began.

        A job that ends with its x_0 makes room for the next. `tap` as in `prefill`.
        """
        begun = 0
        while self._seats.waiting and self._seats.free():
            self._seats.fill()
            begun += self._begin(tap)
        return begun

    @torch.inference_mode()
    def step(self, tap: Tap | None = None) -> None:
        """One token for every running job.

        `tap(depth, hidden [n, 1, H])` sees all rows; `running`, read before the step, tells whose.
        """
        running = self._gather()
        if not running:
            return
        ids = self._ids([self.outputs[job][-1] for job in running])
        embedded = self.view.embed(ids, self.cache)
        hidden = self.view.run(embedded, self.cache, 0, self.view.num_layers, tap)
        tokens = choose_rows(*self._asked(running, self.view.head(hidden[:, 0])))
        self.commit(running, [[token] for token in tokens])

    @torch.inference_mode()
    def round(self, exit_layer: int, draft_length: int) -> dict[int, Round]:
        """One round of every running job; returns each job's counts.

        Each job's draft is shortened to what its budget can still use, and one with nothing left
        to draft takes its token of plain decoding out of the same pass.

        The pass is as long as the longest draft, for all rows. Where that would take a row beyond
        the model's positions every draft is shortened: other rounds, the same law of the text.

        Raises:
            ValueError: drafts may be longer than `max_draft`.
        """
        if draft_length > self.max_draft:
            raise ValueError(
                f"drafts of {draft_length} where at most {self.max_draft} were planned"
            )
        running = self._gather()
        contexts = [self._held(job) for job in running]
        lengths = self._lengths(running, draft_length)
        k = max(lengths, default=0)
        if k == 0:
            self.step()
            made = [round_of(0, 0, 1, context) for context in contexts]
            return dict(zip(running, made, strict=True))
        drafted = self._draft(running, exit_layer, lengths)
        states = self._states[: len(running), : k + 1]
        deep = self.view.run(states, self.cache, exit_layer, self.view.num_layers)  # [n, k+1, H]
        verdicts = settle_rows(*self._asked(running, self.view.head(deep)), drafted)
        kept = [v.num_accepted for v in verdicts]
        committed = self.commit(
            running,
            [[*d[:a], v.next_token] for d, a, v in zip(drafted, kept, verdicts, strict=True)],
        )
        counts = zip(lengths, kept, committed, contexts, strict=True)
        return {job: round_of(*own) for job, own in zip(running, counts, strict=True)}

    @torch.inference_mode()
    def ready(self, exit_layer: int = 0, draft_length: int = 0) -> None:
        """Let the view prepare all that the jobs running now may take; timing calls it before.

        Args:
            exit_layer: of the rounds.
            draft_length: of the rounds, 0 for plain decoding.
        """
        ends = [len(self.jobs[job].prompt) + self.jobs[job].budget for job in self._gather()]
        for layers, positions in passes_of(self.view.num_layers, exit_layer, draft_length):
            if ends:
                self.view.ready(self.cache, layers, positions, max(ends))

    def rewind(self, num_output: int) -> None:
        """Take every job back to its first `num_output` tokens, at least one; nothing is copied.

        Timing repeats a step from the same state with it.

        Raises:
            ValueError: a job waits, or the row of one that ended was taken by another.
        """
        places = self._seats.places
        if any(job.budget > 0 and at not in places for at, job in enumerate(self.jobs)):
            raise ValueError(f"{len(self.jobs)} jobs cannot be rewound, the rows hold {places}")
        for job, output in enumerate(self.outputs):
            if output:
                del output[num_output:]
                self._end(job, finish_of(self.jobs[job], output))
        self._active = []
        self._gather()

    def _begin(self, tap: PromptTap | None) -> int:
        """Run the prompts of jobs that have a row and no output; returns how many jobs began."""
        if self.cache.keys[0] is None:
            self._reserve()
        groups = self._rows_by_prompt()
        for prompt, rows in groups.items():
            jobs = [job for row in rows if (job := self._seats.job_in(row)) is not None]
            hidden = self._run_prompt(prompt, rows[0], _last(tap, jobs) if tap else None)
            self.cache.copy_row(rows[0], rows[1:], len(prompt))
            logits = self.view.head(hidden[0, -1:])
            for job in jobs:
                token = self.policies[job].choose(logits, self.outputs[job])
                self._end(job, extend(self.jobs[job], self.outputs[job], [token])[1])
        self._active = []  # pointers are set anew
        return sum(map(len, groups.values()))

    def _rows_by_prompt(self) -> dict[tuple[int, ...], list[int]]:
        rows: dict[tuple[int, ...], list[int]] = {}
        for row in range(self.cache.rows):
            job = self._seats.job_in(row)
            if job is not None and not self.outputs[job]:
                rows.setdefault(self.jobs[job].prompt, []).append(row)
        return rows

    def _run_prompt(self, prompt: tuple[int, ...], row: int, tap: Tap | None) -> Tensor:
        """Run a prompt into a row; returns the states [1, m, H] of its last chunk."""
        alone, hidden = self.cache.row(row), torch.empty(0)
        final = max(0, (len(prompt) - 1) // PREFILL_CHUNK * PREFILL_CHUNK)
        for at in range(0, len(prompt), PREFILL_CHUNK):
            ids = torch.tensor([prompt[at : at + PREFILL_CHUNK]], device=self.view.device)
            embedded = self.view.embed(ids, alone)
            seen = tap if at == final else None
            hidden = self.view.run(embedded, alone, 0, self.view.num_layers, seen)
        return hidden

    def _reserve(self) -> None:
        probe = self.view.new_cache(capacity=1)
        ids = torch.tensor([self.jobs[0].prompt[:1]], device=self.view.device)
        self.view.run(self.view.embed(ids, probe), probe, 0, self.view.num_layers)
        self.cache.reserve(probe)

    def _lengths(self, running: Sequence[int], draft_length: int) -> list[int]:
        """Drafts of each row: at most what its budget and the model's positions leave."""
        k = draft_length
        if self._limit is not None:
            k = min(k, self._limit - 1 - max(map(self._held, running), default=0))
        left = [self.jobs[job].budget - len(self.outputs[job]) - 1 for job in running]
        return [max(0, min(k, own)) for own in left]

    def _draft(
        self, running: Sequence[int], exit_layer: int, lengths: Sequence[int]
    ) -> list[list[int]]:
        drafted: list[list[int]] = [[] for _ in running]
        tokens = [self.outputs[job][-1] for job in running]
        for i in range(max(lengths)):
            logits = self.view.head(self._shallow(tokens, exit_layer, i))
            propose_rows(*self._asked(running, logits), drafted, lengths)
            tokens = [own[-1] if own else token for own, token in zip(drafted, tokens, strict=True)]
        self._shallow(tokens, exit_layer, max(lengths))  # the last drafts were no inputs yet
        return drafted

    def _shallow(self, tokens: Sequence[int], exit_layer: int, i: int) -> Tensor:
        """Layers [0, L) at one position of each row; keeps and returns the exit states [n, H]."""
        embedded = self.view.embed(self._ids(tokens), self.cache)
        hidden = self.view.run(embedded, self.cache, 0, exit_layer)
        self._states[: len(tokens), i] = hidden[:, 0]
        return hidden[:, 0]

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor(tokens, device=self.view.device)[:, None]  # [n, 1]

    def _asked(
        self, running: Sequence[int], logits: Tensor
    ) -> tuple[list[Policy], Tensor, list[list[int]]]:
        """What policies are asked with: themselves, the logits, the outputs so far."""
        policies = [self.policies[job] for job in running]
        return policies, logits, [self.outputs[job] for job in running]

    def commit(self, running: Sequence[int], tokens: Sequence[Sequence[int]]) -> list[int]:
        """Extend each running job's output and roll every row back; returns how many were kept.

        A pass's last act; timing calls it by itself to price bookkeeping.

        Args:
            running: jobs by row of the pass.
            tokens: what each of them commits unless it ends before.
        """
        counts = []
        for job, own in zip(running, tokens, strict=True):
            count, finish = extend(self.jobs[job], self.outputs[job], own)
            self._end(job, finish)
            counts.append(count)
        self.cache.rollback([self._held(job) for job in running])
        return counts

    def _end(self, job: int, finish: Finish | None) -> None:
        """Note how a job stands; one that ended leaves its row."""
        self.finishes[job] = finish
        if finish is None:
            self._seats.come_back(job)
        else:
            self._seats.leave(job)

    def _held(self, job: int) -> int:
        """Positions of a job that the cache holds between passes."""
        return len(self.jobs[job].prompt) + len(self.outputs[job]) - 1

    def _gather(self) -> list[int]:
        """Close up the rows and set the cache's pointers if need be; returns the jobs by row."""
        for source, target in self._seats.moves():
            job = self._seats.places[source]
            if job is not None:
                self.cache.copy_row(source, [target], self._held(job))
            self._seats.move(source, target)
        running = self._seats.running()
        if running != self._active:
            self.cache.activate([self._held(job) for job in running])
            self._active = running
        return running


def _last(tap: PromptTap, jobs: Sequence[int]) -> Tap:
    def each(depth: int, hidden: Tensor) -> None:
        for job in jobs:
            tap(job, depth, hidden[:, -1:])

    return each

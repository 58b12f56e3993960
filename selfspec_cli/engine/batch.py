"""Plain decoding of several requests at once, each row exactly as if it ran alone.

Rows differ in prompt length; nothing is padded: each prompt is run alone into its own row of the
cache, then one step serves all rows, each at its own write pointer. Rows with the same prompt, one
request at several temperatures, share one run of it. A finished row stays in place with its pointer
held until the last one ends.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from selfspec_cli.engine.decoder import PREFILL_CHUNK, Job, finish_of
from selfspec_cli.engine.limits import check_fits
from selfspec_cli.engine.policies import Policy
from selfspec_cli.engine.view import LayerView
from selfspec_cli.records import Finish

Tap = Callable[[int, Tensor], None]


class BatchDecoder:
    """B rows decoded side by side.

    Attributes:
        outputs: committed tokens of each row.
        finishes: how each row ended, None while it goes on.

    Raises:
        ModelError: a row's prompt and budget exceed the model's positions, or a prompt is empty.
    """

    def __init__(self, view: LayerView, jobs: Sequence[Job], policies: Sequence[Policy]) -> None:
        for job in jobs:
            check_fits(view.config, len(job.prompt), job.budget)
        self.view, self.jobs, self.policies = view, jobs, policies
        capacity = max(len(job.prompt) + job.budget for job in jobs)
        self.cache = view.new_cache(rows=len(jobs), capacity=capacity)
        self.outputs: list[list[int]] = [[] for _ in jobs]
        self.finishes: list[Finish | None] = [None if job.budget > 0 else "length" for job in jobs]

    @property
    def live(self) -> list[int]:
        """Rows that go on."""
        return [row for row, finish in enumerate(self.finishes) if finish is None]

    @torch.inference_mode()
    def prefill(self, tap: Callable[[int, int, Tensor], None] | None = None) -> None:
        """Run each distinct prompt once and commit each row's x_0.

        `tap(row, depth, hidden)` sees the last prompt position's state [1, 1, H] by depth.
        """
        self._reserve()
        for prompt, rows in self._rows_by_prompt().items():
            hidden = self._run_prompt(prompt, rows, tap)
            self.cache.copy_row(rows[0], rows[1:], len(prompt))
            logits = self.view.head(hidden[0, -1:])
            for row in rows:
                self._commit(row, logits)
        self._hold()

    def _rows_by_prompt(self) -> dict[tuple[int, ...], list[int]]:
        rows: dict[tuple[int, ...], list[int]] = {}
        for row in self.live:
            rows.setdefault(self.jobs[row].prompt, []).append(row)
        return rows

    def _run_prompt(
        self,
        prompt: tuple[int, ...],
        rows: Sequence[int],
        tap: Callable[[int, int, Tensor], None] | None,
    ) -> Tensor:
        """Run a prompt into the first of `rows`; returns the states [1, m, H] of its last chunk."""
        alone, hidden = self.cache.row(rows[0]), torch.empty(0)
        final = max(0, (len(prompt) - 1) // PREFILL_CHUNK * PREFILL_CHUNK)
        for at in range(0, len(prompt), PREFILL_CHUNK):
            ids = torch.tensor([prompt[at : at + PREFILL_CHUNK]], device=self.view.device)
            seen = _last(tap, rows) if tap is not None and at == final else None
            embedded = self.view.embed(ids, alone)
            hidden = self.view.run(embedded, alone, 0, self.view.num_layers, seen)
        return hidden

    def _reserve(self) -> None:
        probe = self.view.new_cache(capacity=1)
        ids = torch.tensor([self.jobs[0].prompt[:1]], device=self.view.device)
        self.view.run(self.view.embed(ids, probe), probe, 0, self.view.num_layers)
        self.cache.reserve(probe)

    @torch.inference_mode()
    def step(self, tap: Tap | None = None) -> None:
        """One token for every live row; `tap(depth, hidden [B, 1, H])` sees all rows."""
        # A row without any output has no budget; what it runs over is never used.
        ids = torch.tensor(
            [[out[-1] if out else 0] for out in self.outputs], device=self.view.device
        )
        embedded = self.view.embed(ids, self.cache)
        hidden = self.view.run(embedded, self.cache, 0, self.view.num_layers, tap)
        live = self.live
        logits = self.view.head(hidden[live, 0])  # [live, V]
        for at, row in enumerate(live):
            self._commit(row, logits[at : at + 1])
        self._hold()

    def _commit(self, row: int, logits: Tensor) -> None:
        output = self.outputs[row]
        output.append(self.policies[row].choose(logits, output))
        self.finishes[row] = finish_of(self.jobs[row], output)

    def _hold(self) -> None:
        """Set every row's pointer to prompt + output - 1; a finished row's last write is undone."""
        held = [
            len(job.prompt) + len(output) - 1
            for job, output in zip(self.jobs, self.outputs, strict=True)
        ]
        for layer in range(self.view.num_layers):
            self.cache.lengths[layer] = list(held)


def _last(tap: Callable[[int, int, Tensor], None], rows: Sequence[int]) -> Tap:
    def each(depth: int, hidden: Tensor) -> None:
        for row in rows:
            tap(row, depth, hidden[:, -1:])

    return each

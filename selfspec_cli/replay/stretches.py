"""Layer states of the rows of a batch, each over its latest output positions, until scored."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from selfspec_cli.engine.view import LayerView

STATE_BYTES = 64 << 20  # of kept layer states per batch, before they are scored


class Stretches:
    """Room for the states of `rows` jobs at a few depths, [E + 1, rows, stretch, H].

    A job takes a slot with its first state and keeps it until it is released. Jobs of a batch
    begin and end apart, so each has a column of its own.

    Args:
        view: the model.
        depths: numbers of layers after which states are kept; E exits and N.
        rows: jobs that hold states at once.
        longest: positions of a stretch, fewer where states are large.
    """

    def __init__(self, view: LayerView, depths: Sequence[int], rows: int, longest: int) -> None:
        size = len(depths) * rows * view.hidden_size * view.dtype.itemsize
        self.stretch = max(1, min(longest, STATE_BYTES // size))
        self._index = {depth: at for at, depth in enumerate(depths)}
        self._held = torch.empty(
            len(depths), rows, self.stretch, view.hidden_size, dtype=view.dtype, device=view.device
        )
        self._free = list(range(rows))
        self._slots: dict[int, int] = {}
        self._counts: dict[int, int] = {}  # states held of each job

    @property
    def jobs(self) -> list[int]:
        """Jobs that have a slot."""
        return list(self._slots)

    @property
    def is_full(self) -> bool:
        """Whether no further job finds a slot."""
        return not self._free

    def is_complete(self, job: int) -> bool:
        """Whether a job's stretch must be taken before its next state."""
        return self._counts[job] == self.stretch

    def begin(self, job: int) -> None:
        """Give a job a slot, with its first column open for `put_first`."""
        self._slots[job], self._counts[job] = self._free.pop(), 1

    def put_first(self, job: int, depth: int, hidden: Tensor) -> None:
        """Keep a job's first state [1, 1, H] if its depth is wanted."""
        at = self._index.get(depth)
        if at is not None:
            self._held[at, self._slots[job], 0] = hidden[0, 0]

    def writer(self, jobs: Sequence[int]) -> Callable[[int, Tensor], None]:
        """Open the next column of each job; returns what keeps its states [len(jobs), 1, H]."""
        slots = torch.tensor([self._slots[job] for job in jobs], device=self._held.device)
        columns = torch.tensor([self._counts[job] for job in jobs], device=self._held.device)
        for job in jobs:
            self._counts[job] += 1

        def put(depth: int, hidden: Tensor) -> None:
            at = self._index.get(depth)
            if at is not None:
                self._held[at, slots, columns] = hidden[:, 0]

        return put

    def take(self, job: int) -> Tensor:
        """States [E + 1, m, H] of a job since it was last taken; its next go over them."""
        count, self._counts[job] = self._counts[job], 0
        return self._held[:, self._slots[job], :count]

    def release(self, job: int) -> None:
        """Give a job's slot to the next that begins."""
        self._free.append(self._slots.pop(job))
        del self._counts[job]

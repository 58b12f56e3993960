"""Which job each row of a batch belongs to, who waits, and who moves when one leaves."""

from collections import deque
from collections.abc import Iterable


class Seats:
    """Rows of a batch and the jobs in them; knows no tokens and no tensors.

    A job that leaves keeps its row, with what it holds, until another takes it.

    Attributes:
        places: job by row, None where there never was one or it moved away.
        waiting: jobs that have not had a row, in order.
    """

    def __init__(self, rows: int, jobs: Iterable[int]) -> None:
        self.places: list[int | None] = [None] * rows
        self.waiting = deque(jobs)
        self._left: set[int] = set()
        self.fill()

    def fill(self) -> None:
        """Give each free row to the next waiting job."""
        for row in range(len(self.places)):
            if self.waiting and self.job_in(row) is None:
                self.places[row] = self.waiting.popleft()

    def leave(self, job: int) -> None:
        """Free the row of a job that ended."""
        self._left.add(job)

    def come_back(self, job: int) -> None:
        """Undo `leave`; the job's row must still be its own."""
        self._left.discard(job)

    def job_in(self, row: int) -> int | None:
        """Job that runs in a row, None where the row is free."""
        job = self.places[row]
        return None if job in self._left else job

    def free(self) -> int:
        """Rows without a running job."""
        return sum(self.job_in(row) is None for row in range(len(self.places)))

    def moves(self) -> list[tuple[int, int]]:
        """Pairs (from, to) of rows after which running jobs hold the first rows.

        Each free row before the last running job takes the last one: at most one a job that left.
        """
        taken = [row for row in range(len(self.places)) if self.job_in(row) is not None]
        free = [row for row in range(len(taken)) if self.job_in(row) is None]
        return list(zip(reversed(taken), free, strict=False))

    def move(self, source: int, target: int) -> None:
        """Seat the job of one row in another; the first is free then."""
        self.places[target], self.places[source] = self.places[source], None

    def running(self) -> list[int]:
        """Running jobs by row, as they will be seated after `moves`."""
        jobs = [self.job_in(row) for row in range(len(self.places))]
        for source, target in self.moves():
            jobs[target], jobs[source] = jobs[source], None
        return [job for job in jobs if job is not None]

"""Whether a pool's own evidence enables its cell: pass, fail or no verdict (METHOD.md §5)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from selfspec_cli.analysis.evidence import Cell, Evidence
from selfspec_cli.analysis.intervals import MIN_EFFECTIVE_GROUPS, RatioInterval
from selfspec_cli.analysis.tail import SLOW_FACTOR, Tail, request_tail
from selfspec_cli.analysis.walk import PathCoins
from selfspec_cli.plan import text
from selfspec_cli.plan.document import Check
from selfspec_cli.plan.inputs import PlanInputs
from selfspec_cli.plan.pools import Pool
from selfspec_cli.plan.settings import PlanSettings

NUM_WALKS = 200  # coin-sampled walks a request for the tail
_ROUNDING = 1e-9  # "equal passes" must survive the rounding of 1 + margin
TOO_FEW_DRAFTED = "too few drafted tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a pool's evidence says."""

    status: Check
    reason: str
    """With the numbers, without a full stop."""
    tail: Tail | None
    """Of the pool's cell; None where nothing is drafted."""


class Judge:
    """Judges pools by their own evidence; remembers tails, which take the longest."""

    def __init__(self, inputs: PlanInputs, settings: PlanSettings) -> None:
        self.settings = settings
        self._inputs = inputs
        self.base_batch = inputs.costs.batch_sizes[0]
        """Batch size at which rules are decided."""
        self.unstable: Mapping[int, frozenset[str]] = {
            size: frozenset(law for law, surface in surfaces.items() if surface.unstable)
            for size, surfaces in inputs.costs.by_batch.items()
        }
        """By batch size, laws whose timing varies too much between blocks for any verdict."""
        self._tails: dict[tuple[frozenset[str], Cell, int], Tail] = {}

    def judge(self, pool: Pool) -> Judgement:
        """Return whether the pool's evidence enables its cell."""
        cell = pool.evidence.cell
        if cell is None or not pool.drafts:
            return Judgement(status="no_verdict", reason=TOO_FEW_DRAFTED, tail=None)
        tail = self.tail(pool, cell)
        silent = self.silence(pool.evidence.interval, pool.laws, self.base_batch)
        if silent is not None:
            return Judgement(status="no_verdict", reason=silent, tail=tail)
        failed = self._failure(pool.evidence, cell, tail)
        if failed is not None:
            return Judgement(status="fail", reason=failed, tail=tail)
        told = f"{_evidence_text(pool.evidence, cell)}; {self._needed} is asked"
        return Judgement(status="pass", reason=told, tail=tail)

    def tail(self, pool: Pool, cell: Cell, batch_size: int | None = None) -> Tail:
        """Return the tail of a cell over the pool's paths.

        Args:
            pool: the requests.
            cell: (L, k).
            batch_size: B of a batch that is refilled, of which the pool has paths; None for the
                base.
        """
        size = self.base_batch if batch_size is None else batch_size
        path_ids = pool.at_batch[size].path_ids
        at = (path_ids, cell, size)
        if at not in self._tails:
            inputs = self._inputs
            self._tails[at] = request_tail(
                self._paths(path_ids, cell, size),
                cell,
                inputs.observed_layers,
                inputs.costs.by_batch[size],
                inputs.prefill_seconds,
                num_walks=NUM_WALKS,
                seed=inputs.seed,
            )
        return self._tails[at]

    def _paths(self, path_ids: frozenset[str], cell: Cell, batch_size: int) -> list[PathCoins]:
        """Paths to sample, with k more tokens of budget each where other rows run beside them.

        A round of a refilled batch drafts k whatever one's own budget leaves (`at_batch`): more
        budget prices that, and the rounds end where they ended, since a path's last token is
        committed by the same round whether it was drafted or not.
        """
        spare = cell[1] if batch_size > 1 else 0
        mine = [path for path in self._inputs.coins if path.path_id in path_ids]
        return [replace(path, budget=path.budget + spare) for path in mine] if spare else mine

    @property
    def _needed(self) -> str:
        return f"a lower bound of {self.settings.threshold:g}"

    def silence(self, found: RatioInterval, laws: frozenset[str], batch_size: int) -> str | None:
        """Return why evidence supports no verdict, or None.

        Args:
            found: the cross-fitted speedup.
            laws: law classes of its requests.
            batch_size: at which it was priced.
        """
        least = self.settings.min_requests
        if found.num_groups < least:
            missing = text.count(least - found.num_groups, "more request")
            return f"only {found.num_groups} of {least} requests, needs {missing}"
        shaky = sorted(laws & self.unstable[batch_size])
        if shaky:
            return f"timing of the {', '.join(shaky)} law is unstable, so no verdict rests on it"
        if found.low is None:
            return "the costs were timed too few times to say how certain they are"
        if not found.supports_verdict:
            return (
                f"its {found.num_groups} requests differ so much in length that they are worth "
                f"{text.number(found.effective_groups, 1)} equal ones, "
                f"{MIN_EFFECTIVE_GROUPS:g} are needed"
            )
        return None

    def _failure(self, evidence: Evidence, cell: Cell, tail: Tail) -> str | None:
        """Why a pool with enough evidence stays off, or None."""
        if not passes(evidence.interval.low, self.settings.threshold):
            return f"{_evidence_text(evidence, cell)}; {self._needed} is asked"
        slow = self.slow(tail)
        return None if slow is None else f"{_evidence_text(evidence, cell)}, but {slow}"

    def slow(self, tail: Tail) -> str | None:
        """Return what is said against a tail; None where it holds."""
        limit = self.settings.max_slow_share
        if tail.slow_share is None or tail.slow_share <= limit:
            return None
        return (
            f"{text.percent(tail.slow_share)} of requests would take over {SLOW_FACTOR:g} times "
            f"as long, at most {text.percent(limit)} may"
        )


def passes(low: float | None, threshold: float) -> bool:
    """Whether a lower bound reaches the threshold; equal passes, missing does not."""
    return low is not None and low >= threshold - _ROUNDING


def _evidence_text(evidence: Evidence, cell: Cell) -> str:
    value = text.interval(text.to_interval(evidence.interval))
    return f"{text.cell(cell)} reaches {value} over {text.count(evidence.num_groups, 'request')}"

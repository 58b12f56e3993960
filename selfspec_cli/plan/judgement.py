"""Whether a pool's own evidence enables its cell: pass, fail or no verdict (METHOD.md §5)."""

from dataclasses import dataclass
from typing import Literal

from selfspec_cli.analysis.evidence import Cell, Evidence
from selfspec_cli.analysis.intervals import MIN_EFFECTIVE_GROUPS
from selfspec_cli.analysis.tail import SLOW_FACTOR, Tail, request_tail
from selfspec_cli.plan import text
from selfspec_cli.plan.inputs import PlanInputs
from selfspec_cli.plan.pools import Pool
from selfspec_cli.plan.settings import PlanSettings

NUM_WALKS = 200  # coin-sampled walks a request for the tail
_ROUNDING = 1e-9  # "equal passes" must survive the rounding of 1 + margin
Status = Literal["pass", "fail", "no_verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a pool's evidence says."""

    status: Status
    reason: str
    """With the numbers, without a full stop."""
    tail: Tail | None
    """Of the pool's cell; None where nothing is drafted."""


class Judge:
    """Judges pools by their own evidence; remembers tails, which take the longest."""

    def __init__(self, inputs: PlanInputs, settings: PlanSettings) -> None:
        self.settings = settings
        self._inputs = inputs
        surfaces = inputs.costs.surfaces
        self.unstable = frozenset(law for law, surface in surfaces.items() if surface.unstable)
        """Laws whose timing varies too much between blocks for any verdict."""
        self._tails: dict[tuple[frozenset[str], Cell], Tail] = {}

    def judge(self, pool: Pool) -> Judgement:
        """Return whether the pool's evidence enables its cell."""
        cell = pool.evidence.cell
        if cell is None or not pool.drafts:
            return Judgement(status="no_verdict", reason="too few drafted tokens", tail=None)
        tail = self.tail(pool, cell)
        silent = self._silence(pool)
        if silent is not None:
            return Judgement(status="no_verdict", reason=silent, tail=tail)
        failed = self._failure(pool.evidence, cell, tail)
        if failed is not None:
            return Judgement(status="fail", reason=failed, tail=tail)
        told = f"{_evidence_text(pool.evidence, cell)}; {self._needed} is asked"
        return Judgement(status="pass", reason=told, tail=tail)

    def tail(self, pool: Pool, cell: Cell) -> Tail:
        """Return the tail of a cell over the pool's paths."""
        at = (pool.path_ids, cell)
        if at not in self._tails:
            inputs = self._inputs
            prefill = inputs.prefill_seconds
            self._tails[at] = request_tail(
                [path for path in inputs.coins if path.path_id in pool.path_ids],
                cell,
                inputs.observed_layers,
                inputs.costs.surfaces,
                prefill,
                num_walks=NUM_WALKS,
                seed=inputs.seed,
            )
        return self._tails[at]

    @property
    def _needed(self) -> str:
        return f"a lower bound of {self.settings.threshold:g}"

    def _silence(self, pool: Pool) -> str | None:
        """Why the evidence supports no verdict, or None."""
        evidence, least = pool.evidence, self.settings.min_requests
        if evidence.num_groups < least:
            missing = text.count(least - evidence.num_groups, "more request")
            return f"only {evidence.num_groups} of {least} requests, needs {missing}"
        shaky = sorted(pool.laws & self.unstable)
        if shaky:
            return f"timing of the {', '.join(shaky)} law is unstable, so no verdict rests on it"
        if evidence.interval.low is None:
            return "the costs were timed too few times to say how certain they are"
        if not evidence.supports_verdict:
            return (
                f"its {evidence.num_groups} requests differ so much in length that they are worth "
                f"{text.number(evidence.effective_groups, 1)} equal ones, "
                f"{MIN_EFFECTIVE_GROUPS:g} are needed"
            )
        return None

    def _failure(self, evidence: Evidence, cell: Cell, tail: Tail) -> str | None:
        """Why a pool with enough evidence stays off, or None."""
        if not passes(evidence.interval.low, self.settings.threshold):
            return f"{_evidence_text(evidence, cell)}; {self._needed} is asked"
        limit = self.settings.max_slow_share
        if tail.slow_share is not None and tail.slow_share > limit:
            share = text.percent(tail.slow_share)
            return (
                f"{_evidence_text(evidence, cell)}, but {share} of requests would take over "
                f"{SLOW_FACTOR:g} times as long, at most {text.percent(limit)} may"
            )
        return None


def passes(low: float | None, threshold: float) -> bool:
    """Whether a lower bound reaches the threshold; equal passes, missing does not."""
    return low is not None and low >= threshold - _ROUNDING


def _evidence_text(evidence: Evidence, cell: Cell) -> str:
    value = text.interval(text.to_interval(evidence.interval))
    return f"{text.cell(cell)} reaches {value} over {text.count(evidence.num_groups, 'request')}"

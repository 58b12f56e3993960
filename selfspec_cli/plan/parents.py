"""Which evidence a bucket rests on: its own, its parent's, all tasks', or none.

Temperatures are never pooled: parents are the task at the same temperature, then all tasks there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from selfspec_cli.analysis.evidence import Cell
from selfspec_cli.plan import text
from selfspec_cli.plan.document import Evidence as EvidenceName
from selfspec_cli.plan.judgement import TOO_FEW_DRAFTED, Judge, Judgement
from selfspec_cli.plan.pools import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """The decision on a bucket before its guards are asked."""

    pool: Pool
    """Whose evidence it is; the bucket's own where there is none."""
    judgement: Judgement
    enabled: bool
    evidence: EvidenceName
    missing: int
    """Groups of requests the bucket lacks to rest on its own."""
    reason: str

    @property
    def cell(self) -> Cell | None:
        """(L, k) to write; None where nothing is drafted."""
        return self.pool.evidence.cell if self.pool.drafts else None


def rule_on(own: Pool, parents: Sequence[Pool], judge: Judge) -> Ruling:
    """Decide on one bucket.

    Args:
        own: the bucket.
        parents: the task at this temperature, then all tasks at this temperature.
        judge: of evidence.
    """
    verdict = judge.judge(own)
    if not own.drafts or own.evidence.cell is None:
        reason = f"{TOO_FEW_DRAFTED}: no request leaves room to draft"
        return _none(own, verdict, 0, reason)
    missing = max(0, judge.settings.min_requests - own.evidence.num_groups)
    if missing == 0:
        if verdict.status == "no_verdict":
            return _none(own, verdict, 0, verdict.reason)
        return Ruling(
            pool=own,
            judgement=verdict,
            enabled=verdict.status == "pass",
            evidence="own",
            missing=0,
            reason=verdict.reason,
        )
    for parent in parents:
        found = judge.judge(parent)
        if found.status != "no_verdict":
            return _inherit(own, parent, found, missing, verdict.reason)
    others = "; ".join(f"{p.name}: {judge.judge(p).reason}" for p in parents)
    return _none(own, verdict, missing, f"{verdict.reason}; no parent has a verdict ({others})")


def _inherit(own: Pool, parent: Pool, found: Judgement, missing: int, thin: str) -> Ruling:
    """Use a parent's cell; a bucket that its own few requests say is slower stays off (veto)."""
    passed = found.status == "pass"
    slower = vetoed(own, parent.evidence.cell)
    reason = f"{thin}; {parent.name} is {'on' if passed else 'off'}: {found.reason}"
    if passed and slower:
        mine = None if parent.evidence.cell is None else own.cells[parent.evidence.cell].speedup
        reason += f", but this bucket's own requests reach {text.number(mine)} with that cell"
    return Ruling(
        pool=parent,
        judgement=found,
        enabled=passed and not slower,
        evidence="parent" if parent.level == "parent" else "all",
        missing=missing,
        reason=reason,
    )


def vetoed(own: Pool, cell: Cell | None) -> bool:
    """Whether a thin bucket's own ratio of sums at its parent's cell lies below 1."""
    mine = None if cell is None else own.cells[cell].speedup
    return mine is None or mine < 1.0


def _none(own: Pool, verdict: Judgement, missing: int, reason: str) -> Ruling:
    return Ruling(
        pool=own,
        judgement=verdict,
        enabled=False,
        evidence="none",
        missing=missing,
        reason=reason,
    )

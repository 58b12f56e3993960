"""Is the output unchanged? Only decodes prove it; their absence is no proof."""

import pandas as pd

from selfspec_cli.gate.evidence import GateEvidence
from selfspec_cli.gate.verdict import Check, Outcome
from selfspec_cli.report.format import NOT_KNOWN, known

NAME = "exactness"
_PROVE = "Calibrate again with confirm.cells above 0 in the config: its decodes are the proof."
_BROKEN = "Do not roll out; this is a bug or an unsupported model."


def exactness_checks(evidence: GateEvidence) -> list[Check]:
    """Return whether greedy output was equal and sampled rounds followed the target's law.

    Only what the plan enables needs proof; a difference anywhere fails.

    Args:
        evidence: of the run.
    """
    greedy = any(rule.temperature_min == 0.0 for rule in evidence.enabled)
    sampled = any(rule.temperature_max > 0.0 for rule in evidence.enabled)
    found = [_greedy(evidence), _law(evidence)]
    asked = (greedy, sampled)
    return [
        check
        for check, needed in zip(found, asked, strict=True)
        if needed or check.outcome == "fail"
    ]


def _greedy(evidence: GateEvidence) -> Check:
    tables = [table for table in (evidence.confirm, evidence.confirm_batch) if table is not None]
    rows = pd.concat([table.loc[table["temperature"] == 0.0, ["exact", "is_tie"]]
                      for table in tables]) if tables else pd.DataFrame()  # fmt: skip
    if rows.empty:
        return _proof("no_verdict", "greedy", 0, "no greedy decode was compared")
    equal = int(rows["exact"].eq(True).sum())
    wrong = int((~rows["exact"].eq(True) & ~rows["is_tie"].eq(True)).sum())
    ties = len(rows) - equal - wrong
    told = f"{equal} of {len(rows)} greedy decodes equal plain decoding, {ties} differ by a tie"
    outcome: Outcome = "fail" if wrong else "pass" if equal else "no_verdict"
    return _proof(outcome, "greedy", equal, f"{told}, {wrong} differ" if wrong else told)


def _law(evidence: GateEvidence) -> Check:
    proof = evidence.facts("stages", "confirm", "exactness")
    passed = proof.get("passed")
    if passed not in (True, False):
        return _proof("no_verdict", "sampled", None, "the law of sampled rounds was not tested")
    told = (
        f"{proof.get('positions')} positions with {proof.get('draws')} draws: smallest p "
        f"{_short(proof.get('smallest_p'))}, alarm below {_short(proof.get('alarm_level'))}"
    )
    return _proof("pass" if passed else "fail", "sampled", proof.get("positions"), told)


def _short(value: object) -> str:
    return f"{value:.2g}" if isinstance(value, int | float) and known(value) else NOT_KNOWN


def _proof(outcome: Outcome, subject: str, value: object, told: str) -> Check:
    steps = {"pass": "", "fail": _BROKEN, "no_verdict": _PROVE}
    number = float(value) if isinstance(value, int | float) else None
    return Check(
        name=NAME, outcome=outcome, subject=subject, value=number, text=told,
        next_step=steps[outcome],
    )  # fmt: skip

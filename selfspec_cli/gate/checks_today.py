"""Is the plan still true here and today? Fingerprints and age."""

from datetime import date

from selfspec_cli.gate.evidence import GateEvidence
from selfspec_cli.gate.today import (
    Today,
    device_differences,
    library_differences,
    model_revision,
)
from selfspec_cli.gate.verdict import Check, Outcome
from selfspec_cli.plan.files import PLAN_FILE
from selfspec_cli.report.format import plural

NAME = "fingerprints"
_AGAIN = "Calibrate again, or serve what the plan was measured with."
_HERE = "Run the gate on the machine the plan was measured on, or calibrate here."
_GIVE = "Give the folder of the model that is served: -m MODEL."


def fingerprint_checks(evidence: GateEvidence, now: Today) -> list[Check]:
    """Return model, tokenizer, libraries and device of the plan against today's.

    Another device is no failure: what does not rest on times is still judged.

    Args:
        evidence: of the run.
        now: today's facts.
    """
    libraries = library_differences(evidence, now)
    away = device_differences(evidence, now)
    known = sum(version is not None for version in evidence.plan.measured_on.libraries.values())
    same = f"all {known} libraries are of the plan's versions"
    outcome: Outcome = "fail" if libraries else "pass" if known else "no_verdict"
    return [
        _model(evidence, now),
        _tokenizer(evidence, now),
        _check("libraries", outcome, "; ".join(libraries) or same, _AGAIN),
        _check("device", "no_verdict" if away else "pass", away or "the plan's own machine", _HERE),
        *_plan(evidence),
    ]


def _plan(evidence: GateEvidence) -> list[Check]:
    """Numbers of a plan that was written by hand are no evidence, however possible they look."""
    if not evidence.plan_replaced:
        return []
    step = f"Write it again: selfspec plan {evidence.path} -o {evidence.path / PLAN_FILE}"
    told = "plan.yaml is not the file that selfspec wrote: its hash differs from the manifest's"
    return [_check("plan", "no_verdict", told, step)]


def _model(evidence: GateEvidence, now: Today) -> Check:
    then = evidence.plan.model.revision
    if now.model is None or then is None:
        told = f"the model {evidence.plan.model.id} was not looked at"
        return _check("model", "no_verdict", told, _GIVE, optional=True)
    found = model_revision(now.model)
    if found == then:
        return _check("model", "pass", f"configuration and weights are {then[:12]}", "")
    told = f"configuration and weights are {found[:12]}, the plan's {then[:12]}"
    return _check("model", "fail", told, _AGAIN)


def _tokenizer(evidence: GateEvidence, now: Today) -> Check:
    then = evidence.plan.model.tokenizer_hash
    override = evidence.plan.model.tokenizer_override
    found = None if now.model is None else now.model.get("tokenizer_sha256")
    if override is not None or then is None or found is None:
        told = "the tokenizer was not looked at"
        if override is not None:
            told = f"the plan used the tokenizer {override} in place of the model's own"
        return _check("tokenizer", "no_verdict", told, _GIVE, optional=True)
    if found == then:
        return _check("tokenizer", "pass", f"its files are {then[:12]}", "")
    told = f"its files are {str(found)[:12]}, the plan's {then[:12]}"
    return _check("tokenizer", "fail", told, _AGAIN)


def _check(
    subject: str, outcome: Outcome, told: str, step: str, *, optional: bool = False
) -> Check:
    return Check(
        name=NAME,
        outcome=outcome,
        subject=subject,
        text=told,
        next_step="" if outcome == "pass" else step,
        optional=optional,
    )


def age_check(evidence: GateEvidence, now: Today, max_days: float) -> Check:
    """Return the days since the measurement against the largest number of them.

    Args:
        evidence: of the run.
        now: today's facts.
        max_days: equal passes.
    """
    measured = date.fromisoformat(evidence.plan.traces.date)
    days = (now.day - measured).days
    outcome: Outcome = "pass" if days <= max_days else "fail"
    ago = f"measured {plural(days, 'day')} ago ({measured.isoformat()})"
    told = f"{ago}, at most {max_days:g} are allowed"
    if days < -1:  # a day either way is a matter of time zones
        outcome, told = "no_verdict", f"measured on {measured.isoformat()}, which is yet to come"
    step = {"pass": "", "fail": "Calibrate again on traffic of today.",
            "no_verdict": "Set this machine's clock."}[outcome]  # fmt: skip
    return Check(
        name="age", outcome=outcome, value=float(days), limit=max_days, text=told, next_step=step
    )

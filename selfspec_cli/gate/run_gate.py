"""All checks of a gate over one run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from selfspec_cli.errors import ConfigError
from selfspec_cli.gate.checks_memory import memory_checks
from selfspec_cli.gate.checks_plan import break_even_checks, enough_checks, floor_checks
from selfspec_cli.gate.checks_prediction import prediction_comparisons, regret_comparisons
from selfspec_cli.gate.checks_proof import exactness_checks
from selfspec_cli.gate.checks_tail import p99_comparisons
from selfspec_cli.gate.checks_timing import Comparison, judge, timing_comparisons
from selfspec_cli.gate.checks_today import age_check, fingerprint_checks
from selfspec_cli.gate.compare import compare_runs
from selfspec_cli.gate.drift import drift_checks
from selfspec_cli.gate.evidence import GateEvidence, read_evidence
from selfspec_cli.gate.fail_on import FailOn, baseline_checks
from selfspec_cli.gate.holm import FAMILY_LEVEL
from selfspec_cli.gate.rules import CheckRule, GateRules
from selfspec_cli.gate.today import Today, device_differences, today
from selfspec_cli.gate.verdict import Check, GateReport

_ORDER = {"fail": 0, "no_verdict": 2, "pass": 4}
_Checks = Callable[[], Sequence[Check]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    """What a gate is asked beside its rules."""

    model: Path | None = None
    """Folder of today's model; None: the run's own, where it still lies there."""
    traffic: Path | None = None
    """A run of today's traffic."""
    baseline: Path | None = None
    """A run that is held to be good, on the same traces."""
    fail_on: tuple[FailOn, ...] = ()
    """Losses allowed against the baseline, beside the standing ones."""
    today: Today | None = None
    """Date, machine and libraries; None: as found."""


def run_gate(run: Path, rules: GateRules, options: GateOptions | None = None) -> GateReport:
    """Hold the rules against a run's files.

    Args:
        run: the run directory.
        rules: checks and limits.
        options: today's model and traffic.

    Raises:
        SelfspecError: a run, plan, model folder or second run that cannot be read.
    """
    asked = options or GateOptions()
    evidence = read_evidence(run)
    now = asked.today or today(evidence, asked.model)
    checks = [
        *_nothing(evidence, rules),
        *_judged(evidence, rules, asked, now),
        *_against_baseline(run, asked),
    ]
    away = device_differences(evidence, now)
    if away:
        checks = [_elsewhere(check, away) for check in checks]
    ordered = sorted(checks, key=lambda check: _ORDER[check.outcome] + _lighter(check))
    notes = _notes(rules, checks, nothing_on=not evidence.enabled)
    return GateReport(run=str(run), checks=tuple(ordered), notes=notes)


def _judged(
    evidence: GateEvidence, rules: GateRules, asked: GateOptions, now: Today
) -> list[Check]:
    judged = judge(_family(evidence, rules), _level(asked))
    checks = [_with_policy(check, rules.rule(check.name)) for check in judged]
    for name, make in _others(evidence, rules, asked, now).items():
        rule = rules.rule(name)
        if rule.enabled:
            checks.extend(_with_policy(check, rule) for check in make())
    return checks


def _level(asked: GateOptions) -> float:
    """Half of the false alarms for a family each: own limits, and the baseline's."""
    return FAMILY_LEVEL if asked.baseline is None else FAMILY_LEVEL / 2


def _against_baseline(run: Path, asked: GateOptions) -> Sequence[Check]:
    if asked.baseline is None:
        return ()
    if asked.baseline.resolve() == run.resolve():
        raise ConfigError(
            "is the run itself, which cannot fall behind itself",
            where=f"--baseline {asked.baseline}",
            hint="Give a run that is held to be good, on the same traces.",
        )
    return baseline_checks(compare_runs(asked.baseline, run), asked.fail_on, _level(asked))


def _family(evidence: GateEvidence, rules: GateRules) -> list[Comparison]:
    """All comparisons of times that the rules ask for."""
    found = timing_comparisons(evidence, rules)
    if rules.request_p99.enabled:
        found.extend(p99_comparisons(evidence, rules.request_p99.max_ratio))
    error, regret = rules.prediction_error, rules.regret
    if error.enabled:
        found.extend(prediction_comparisons(evidence, error.max_median, error.max_worst))
    if regret.enabled:
        found.extend(regret_comparisons(evidence, regret.max_regret))
    return found


def _others(
    evidence: GateEvidence, rules: GateRules, asked: GateOptions, now: Today
) -> Mapping[str, _Checks]:
    """Checks that are not comparisons of times with a test, by the name of their rule."""
    return {
        "acceptance_break_even": lambda: break_even_checks(evidence),
        "acceptance_floor": lambda: floor_checks(evidence, rules.acceptance_floor.min_acceptance),
        "memory": lambda: memory_checks(evidence, rules.memory),
        "exactness": lambda: exactness_checks(evidence),
        "enough_requests": lambda: enough_checks(evidence, rules.enough_requests.min_requests),
        "fingerprints": lambda: fingerprint_checks(evidence, now),
        "age": lambda: [age_check(evidence, now, rules.age.max_days)],
        "drift": lambda: drift_checks(evidence, asked.traffic, rules.drift),
    }


def _with_policy(check: Check, rule: CheckRule) -> Check:
    """Put what the rule says of failures and silence on a check."""
    return replace(
        check,
        warns_only=rule.on_fail == "warn",
        optional=check.optional or rule.on_no_verdict == "note",
    )


def _nothing(evidence: GateEvidence, rules: GateRules) -> list[Check]:
    """Where no rule is on there is nothing to roll out, which is no pass unless rules say so."""
    if evidence.enabled:
        return []
    total = len(evidence.plan.rules)
    return [
        Check(
            name="nothing_enabled",
            outcome=rules.nothing_enabled,
            value=0.0,
            text=f"the plan enables 0 of {total} buckets ({evidence.plan.verdict}): "
            "there is nothing to roll out",
            next_step=""
            if rules.nothing_enabled == "pass"
            else "Keep plain decoding; "
            "`nothing_enabled: pass` in the rules lets such a plan through.",
        )
    ]


def _elsewhere(check: Check, away: str) -> Check:
    """A verdict on times, taken back on another machine than the plan's."""
    if not check.timing:
        return check
    return replace(
        check,
        outcome="no_verdict",
        text=f"not judged on this machine ({away}); {check.text}",
        next_step="Run the gate on the machine the plan was measured on, or calibrate here.",
    )


def _lighter(check: Check) -> int:
    """Warnings after failures, optional silence after the other."""
    return int(check.warns or (check.outcome == "no_verdict" and check.optional))


def _notes(rules: GateRules, checks: Sequence[Check], *, nothing_on: bool) -> tuple[str, ...]:
    names = [name for name in GateRules.model_fields if name != "nothing_enabled"]
    left_out = [name for name in names if not rules.rule(name).enabled]
    told = {check.name for check in checks}
    unasked = [name for name in names if name not in told and name not in left_out]
    found = []
    if any(check.timing for check in checks):
        found.append(
            f"timing comparisons together fail by chance in at most {100 * FAMILY_LEVEL:g} % of "
            "runs whose limits hold (Holm)"
        )
    if unasked:
        why = "the plan enables no rule" if nothing_on else "the run holds nothing"
        found.append(f"not judged, {why} that they could speak of: {', '.join(unasked)}")
    if left_out:
        found.append(f"left out by the rules: {', '.join(left_out)}")
    return tuple(found)

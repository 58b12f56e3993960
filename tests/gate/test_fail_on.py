"""METRIC:LIMIT: what parses, what is refused, and what fails, passes or stays open."""

import math

import numpy as np
import pandas as pd
import pytest

from selfspec_cli.errors import ConfigError
from selfspec_cli.gate.compare import Comparison, Row
from selfspec_cli.gate.fail_on import baseline_checks, checks_against, parse_fail_on
from selfspec_cli.gate.pairing import CostError, Paired, paired_speedup
from selfspec_cli.gate.verdict import GateReport
from selfspec_cli.report.differing import Difference


@pytest.mark.parametrize(
    ("text", "name", "loss", "relative"),
    [
        ("speedup:-3%", "speedup", 0.03, True),
        ("speedup:3%", "speedup", 0.03, True),
        ("speedup:0.05", "speedup", 0.05, False),
        (" measured : -.5 % ", "measured", 0.005, True),
        ("acceptance:-0.02", "acceptance", 0.02, False),
        ("acceptance:-5%", "acceptance", 0.05, True),
        ("p99:+5%", "p99", 0.05, True),
        ("p99:2e-1", "p99", 0.2, False),
        ("p99:150%", "p99", 1.5, True),
        ("speedup:0", "speedup", 0.0, False),
        ("speedup:+0%", "speedup", 0.0, True),
    ],
)
def test_parses(text, name, loss, relative):
    limit = parse_fail_on(text)
    assert (limit.metric.name, limit.relative) == (name, relative)
    assert limit.loss == pytest.approx(loss, abs=1e-15)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("speedup", "METRIC:LIMIT"),
        ("", "METRIC:LIMIT"),
        ("speedups:-3%", "Did you mean speedup?"),
        ("Acceptance:-3%", "Did you mean acceptance?"),
        ("qqq:-3%", "Known: speedup, measured, acceptance, p99."),
        ("speedup:", "no limit"),
        ("speedup:nan", "no limit"),
        ("speedup:inf", "no limit"),
        ("speedup:-inf%", "no limit"),
        ("speedup:1e999", "not finite"),
        ("p99:1e999%", "not finite"),
        ("speedup:--3%", "no limit"),
        ("speedup:3%%", "no limit"),
        ("speedup:-3%:x", "no limit"),
        ("speedup:0x10", "no limit"),
        ("speedup:\u0663%", "no limit"),
        ("speedup:+3%", "gets worse downwards, and +3% allows a gain"),
        ("acceptance:+0.02", "Write acceptance:-0.02."),
        ("p99:-5%", "gets worse upwards"),
        ("speedup:-100%", "all of it may be lost"),
        ("acceptance:-1", "all of it may be lost"),
    ],
)
def test_refused_with_a_hint(text, told):
    with pytest.raises(ConfigError) as error:
        parse_fail_on(text)
    assert error.value.exit_code == 2
    assert told in str(error.value), str(error.value)
    assert f"--fail-on {text}" in str(error.value)


def _ratio(estimate, sd=0.005, *, base=1.2, effective=30.0, degrees=29.0):
    return Paired(
        kind="ratio", estimate=estimate, base=base, new=base * estimate,
        low=estimate * math.exp(-2 * sd), high=estimate * math.exp(2 * sd), sd=sd,
        degrees=degrees, num_groups=31, effective_groups=effective,
    )  # fmt: skip


def _gap(estimate, sd=0.005, base=0.8, effective=30.0):
    return Paired(
        kind="difference", estimate=estimate, base=base, new=base + estimate,
        low=estimate - 2 * sd, high=estimate + 2 * sd, sd=sd,
        degrees=29.0, num_groups=31, effective_groups=effective,
    )  # fmt: skip


def _row(label="all", **numbers):
    fields = {"speedup": None, "measured": None, "acceptance": None, "p99": None, **numbers}
    return Row(
        label=label, num_pairs=31, num_groups=31, base_rule="off", new_rule="off",
        seconds_ratio=None, **fields,
    )  # fmt: skip


def _comparison(total, *rows, foreign=()):
    return Comparison(
        base="a", new="b", rows=rows, total=total, foreign_timing=foreign, other_differences=(),
        num_base_only=0, num_new_only=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "numbers", "outcome"),
    [
        ("speedup:-3%", {"speedup": _ratio(1.0)}, "pass"),
        ("speedup:-3%", {"speedup": _ratio(0.98)}, "pass"),
        ("speedup:-3%", {"speedup": _ratio(0.97)}, "pass"),
        ("speedup:-3%", {"speedup": _ratio(0.965)}, "no_verdict"),
        ("speedup:-3%", {"speedup": _ratio(0.95)}, "fail"),
        ("speedup:-3%", {"speedup": _ratio(0.95, effective=7.9)}, "no_verdict"),
        ("speedup:-3%", {"speedup": _ratio(1.0, sd=0.2)}, "no_verdict"),
        ("speedup:-3%", {"speedup": None}, "no_verdict"),
        ("speedup:0.06", {"speedup": _ratio(0.955)}, "pass"),
        ("speedup:0.06", {"speedup": _ratio(0.92)}, "fail"),
        ("acceptance:-0.02", {"acceptance": _gap(-0.015)}, "pass"),
        ("acceptance:-0.02", {"acceptance": _gap(-0.025)}, "no_verdict"),
        ("acceptance:-0.02", {"acceptance": _gap(-0.05)}, "fail"),
        ("acceptance:-10%", {"acceptance": _gap(-0.05)}, "pass"),
        ("p99:+5%", {"p99": _ratio(1.04)}, "pass"),
        ("p99:+5%", {"p99": _ratio(1.055)}, "no_verdict"),
        ("p99:+5%", {"p99": _ratio(1.10)}, "fail"),
        ("p99:+5%", {"p99": _ratio(0.5)}, "pass"),
        ("p99:0.6", {"p99": _ratio(1.10)}, "pass"),
    ],
)
def test_outcomes(text, numbers, outcome):
    (check,) = checks_against(_comparison(_row(**numbers)), [text])
    assert check.outcome == outcome, check
    assert bool(check.next_step) == (outcome != "pass")
    assert GateReport(run="b", checks=(check,)).exit_code == {"pass": 0, "fail": 1}.get(outcome, 3)


def test_equal_to_the_limit_passes():
    (check,) = checks_against(_comparison(_row(speedup=_ratio(0.97, sd=0.0))), ["speedup:-3%"])
    assert check.outcome == "pass"
    assert check.limit == pytest.approx(0.97)
    (check,) = checks_against(_comparison(_row(speedup=_ratio(0.9695, sd=0.0))), ["speedup:-3%"])
    assert check.outcome == "fail", "no noise at all: every group lost more than is allowed"


def test_rounding_is_no_loss():
    """Another engine moves coins by parts in a million, in every group alike."""
    comparison = _comparison(_row(speedup=_ratio(1 - 2e-6, sd=0.0), acceptance=_gap(-2e-6, 1e-9)))
    checks = checks_against(comparison, ["speedup:0%", "acceptance:0"])
    assert [check.outcome for check in (*checks, *baseline_checks(comparison))] == ["pass"] * 4


def test_the_default_does_not_take_noise_for_a_loss():
    """A loss within the noise passes by default; asked for with 0 %, it stays open."""
    comparison = _comparison(_row(speedup=_ratio(0.997), acceptance=_gap(-0.003)))
    assert [check.outcome for check in baseline_checks(comparison)] == ["pass", "pass"]
    (check,) = checks_against(comparison, ["speedup:0%"])
    assert check.outcome == "no_verdict"
    wide = _comparison(_row(speedup=_ratio(1.0, sd=0.04), acceptance=_gap(0.0, sd=0.04)))
    checks = baseline_checks(wide)
    assert [check.outcome for check in checks] == ["no_verdict"] * 2
    assert "cost.blocks" in checks[0].next_step
    assert "more requests" in checks[1].next_step
    lost = _comparison(_row(speedup=_ratio(0.98), acceptance=_gap(-0.02)))
    assert [check.outcome for check in baseline_checks(lost)] == ["fail", "fail"]


def test_more_comparisons_ask_for_more_certainty():
    """Holm: a loss that fails alone stays open among forty comparisons that hold."""
    lost = _row("lost", speedup=_ratio(0.9855))
    alone = checks_against(_comparison(_row(), lost), ["speedup:0%"])
    assert [check.outcome for check in alone] == ["no_verdict", "fail"]
    others = [_row(f"b{n}", speedup=_ratio(1.0)) for n in range(40)]
    many = checks_against(_comparison(_row(), lost, *others), ["speedup:0%"])
    assert not any(check.fails for check in many)
    together = baseline_checks(_comparison(_row(), lost, *others), ["speedup:-1%", "p99:5%"])
    assert len(together) == 4 * 42
    assert not any(check.fails for check in together)


def test_thin_buckets_do_not_leave_the_gate_without_a_verdict():
    thin = _row("thin", speedup=_ratio(0.8, effective=3.0))
    comparison = _comparison(_row(speedup=_ratio(1.0)), thin)
    checks = checks_against(comparison, ["speedup:-3%"])
    assert [(c.subject, c.outcome, c.optional) for c in checks] == [
        ("", "pass", False), ("thin", "no_verdict", True),
    ]  # fmt: skip
    assert GateReport(run="b", checks=checks).exit_code == 0


def test_other_hardware_leaves_timings_open_and_judges_acceptance():
    foreign = (Difference(key="device.gpu", base="A", new="B"),)
    row = _row(speedup=_ratio(0.5), acceptance=_gap(-0.3))
    checks = baseline_checks(_comparison(row, foreign=foreign))
    assert [(c.outcome, c.timing) for c in checks] == [("no_verdict", True), ("fail", False)]
    assert "other hardware: not judged" in checks[0].text
    assert "device.gpu" in checks[0].next_step


def test_an_absolute_loss_of_everything_is_refused():
    comparison = _comparison(_row(speedup=_ratio(1.0), acceptance=_gap(0.0, base=0.3)))
    for text in ("speedup:1.2", "acceptance:0.3"):
        with pytest.raises(ConfigError, match="all of it may be lost"):
            checks_against(comparison, [text])
    small = _row("small", acceptance=_gap(0.0, base=0.01))
    checks = checks_against(_comparison(_row(acceptance=_gap(0.0)), small), ["acceptance:-0.02"])
    assert [check.outcome for check in checks] == ["pass", "pass"], "a poor bucket is no error"


def _same_program_twice(rng, *, know_costs):
    """Two runs of one program: own timing blocks each, the same requests, three buckets."""
    blocks = rng.normal(0.0, 0.03, (2, 10))
    pace = np.exp(blocks.mean(axis=1))
    sds = blocks.std(axis=1, ddof=1) / math.sqrt(10)
    costs = [CostError(log_sd=float(sd), degrees=9.0) for sd in sds] if know_costs else []
    frames = []
    for bucket in range(3):
        ar = rng.lognormal(0.0, 0.5, 20)
        seconds = ar / rng.uniform(0.9, 1.5, 20)
        noise = np.exp(rng.normal(0.0, 0.003, (2, 20)))
        frames.append(
            pd.DataFrame(
                {
                    "group_id": [f"{bucket}-{n}" for n in range(20)],
                    "base_ar": ar,
                    "new_ar": ar,
                    "base_seconds": seconds * pace[0] * noise[0],
                    "new_seconds": seconds * pace[1] * noise[1],
                }
            )
        )
    rows = [_row(str(n), speedup=paired_speedup(f, costs)) for n, f in enumerate(frames)]
    return _comparison(_row(speedup=paired_speedup(pd.concat(frames), costs)), *rows)


def _failures(draws, *, know_costs):
    rng = np.random.default_rng(20)
    found = 0
    for _ in range(draws):
        checks = baseline_checks(_same_program_twice(rng, know_costs=know_costs))
        found += any(check.fails for check in checks)
    return found


def test_the_same_program_twice_fails_hardly_ever():
    """120 seeded resamplings of timing blocks; 0.5 % each: more than 4 fail once in 2,500 seeds."""
    assert _failures(120, know_costs=True) <= 4


def test_without_the_errors_of_costs_the_same_program_would_fail():
    """The broken twin: requests alone do not say how certain a timing is."""
    found = _failures(30, know_costs=False)
    assert found > 8, f"{found} of 30"

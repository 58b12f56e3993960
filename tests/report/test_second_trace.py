"""A second trace beside a plan's own: acceptance paired by bucket, and no verdict of thin air."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from report_runs import make_run
from scipy import stats

from selfspec_cli.errors import ComparisonError, StorageError
from selfspec_cli.report.diagnose import diagnose
from selfspec_cli.report.finding_traffic import row_text
from selfspec_cli.report.second_run import second_walk
from selfspec_cli.report.second_trace import FALSE_ALARM, compare_traffic
from selfspec_cli.report.tables import read_run

RUNS = 120


@pytest.fixture(scope="module")
def rule(tiny_run):
    """An enabled rule, to be copied to other buckets."""
    return next(rule for rule in read_run(tiny_run).plan.rules if rule.enabled)


def bucket(rule, task, context_min=0, context_max=512):
    place = {"task": task, "context_min": context_min, "context_max": context_max}
    return rule.model_copy(update=place)


def rows(rule, accepted, tested, prefix="g"):
    """Walk rows of a rule's bucket, one group each."""
    n = len(accepted)
    return pd.DataFrame(
        {
            "task": rule.task, "prompt_tokens": rule.context_min + 1,
            "temperature": rule.temperature_min, "exit_layer": rule.drafter.exit_layer,
            "draft_length": rule.draft.length, "group_id": [f"{prefix}{i}" for i in range(n)],
            "accepted": np.asarray(accepted, dtype=float),
            "tested": np.broadcast_to(np.asarray(tested, dtype=float), n),
        }
    )  # fmt: skip


def test_acceptance_above_the_second_trace_is_said_with_its_interval(rule):
    code, chat = bucket(rule, "code"), bucket(rule, "chat")
    wave = 4 * (np.arange(12) % 3)
    cells = [(one, rows(one, 176 + wave, 200)) for one in (code, chat)]
    there = pd.concat([rows(code, 116 + wave, 200), rows(chat, 176 + wave, 200)])
    found = {row.task: row for row in compare_traffic(cells, there)}
    assert found["code"].outcome == "above"
    assert found["code"].difference == pytest.approx(0.30)
    text = row_text(found["code"])
    assert text.startswith("code, T=0: 90 % (89 to 91 %; 12 requests) here, 60 % (58 to 62 %; 12")
    assert "+30 points (26 to 34): above" in text, text
    assert found["chat"].outcome == "not_above"
    assert found[None].difference == pytest.approx(0.15)
    back = {row.task: row for row in compare_traffic([(code, rows(code, 116 + wave, 200))], there)}
    assert list(back) == ["code"], "one row is all there is"


def test_less_acceptance_here_than_there_is_not_above(rule):
    (row,) = compare_traffic([(rule, rows(rule, [20] * 12, 50))], rows(rule, [45] * 12, 50))
    assert row.outcome == "not_above"
    assert row.difference == pytest.approx(-0.5)


def test_another_mix_of_bands_is_no_difference(rule):
    """Short prompts accept 90 %, long ones 50 %, in both traces; there, most are long. Sums over
    the bands would be 86 % against 54 %."""
    short, long = bucket(rule, "code"), bucket(rule, "code", 512, None)
    wave = np.arange(24) % 3 - 1
    cells = [(short, rows(short, 450 + wave, 500)), (long, rows(long, 50 + wave[:12], 100, "l"))]
    there = pd.concat([rows(short, 90 + wave[:12], 100), rows(long, 250 + wave, 500, "l")])
    (row,) = compare_traffic(cells, there)
    assert row.num_paired == 2
    assert row.difference == pytest.approx(0.0, abs=1e-9)
    assert row.outcome == "not_above"


@pytest.mark.parametrize(
    ("why", "accepted", "other", "reason"),
    [
        ("three requests there", [45] * 12, [25] * 3, "no bucket has 4 requests in both runs"),
        ("seven requests there", [45] * 12, [25] * 7, "7.0 requests' worth of evidence, 8 needed"),
        ("seven requests here", [45] * 7, [25] * 12, "7.0 requests' worth of evidence, 8 needed"),
        ("two kinds of requests", [45] * 12, [50, 34] * 6, "difference is too wide"),
        ("nothing there", [45] * 12, [], "the second run tested no draft in these buckets"),
    ],
)
def test_thin_evidence_is_no_verdict(rule, why, accepted, other, reason):
    (row,) = compare_traffic([(rule, rows(rule, accepted, 50))], rows(rule, other, 50))
    assert row.outcome == "no_verdict", why
    assert reason in row.reason
    assert reason in row_text(row)


def test_one_long_request_is_not_twelve(rule):
    """Eleven of twelve requests hold a hundredth of the drafts: worth one request."""
    tested = np.array([5000] + [5] * 11)
    (row,) = compare_traffic([(rule, rows(rule, 0.9 * tested, tested))], rows(rule, [25] * 12, 50))
    assert row.outcome == "no_verdict"
    assert "1.0 requests' worth" in row.reason


def test_requests_that_all_accept_everything_claim_no_certainty(rule):
    (row,) = compare_traffic([(rule, rows(rule, [3] * 12, 3))], rows(rule, [3] * 12, 3))
    assert row.high - row.low > 0.05, row
    assert row.offline.low < 0.98, "36 drafts do not prove 100 %"


def test_a_cell_that_was_not_walked_there_has_no_partner(rule):
    there = rows(rule, [25] * 12, 50).assign(exit_layer=1)
    (row,) = compare_traffic([(rule, rows(rule, [45] * 12, 50))], there)
    assert (row.outcome, row.num_paired, row.num_buckets) == ("no_verdict", 0, 1)
    assert compare_traffic([], there) == ()


def sample(rng, rule, count):
    """Requests whose acceptance differs between them, with outputs of 20 to 120 drafts."""
    tested = rng.integers(20, 120, count)
    return rows(rule, rng.binomial(tested, rng.beta(6, 2, count)), tested)


def test_equal_traffic_is_called_above_at_the_stated_rate(rule):
    """120 pairs of traces of one law, two tasks of 10 to 24 requests: in at most 1 % some interval
    lies above zero, so more than 5 have a probability below 0.2 %. Drafts taken one by one lie
    there in one pair of twenty or more."""
    rng, alarms, naive = np.random.default_rng(8), 0, 0
    rules = [bucket(rule, task) for task in ("code", "chat")]
    for _ in range(RUNS):
        sides = [[sample(rng, one, int(rng.integers(10, 25))) for one in rules] for _ in range(2)]
        found = compare_traffic(list(zip(rules, sides[0], strict=True)), pd.concat(sides[1]))
        alarms += any(row.low > 0 for row in found)
        one, two = (pd.concat(side)[["accepted", "tested"]].sum() for side in sides)
        rates = [part["accepted"] / part["tested"] for part in (one, two)]
        error = np.sqrt(
            sum(r * (1 - r) / n["tested"] for r, n in zip(rates, (one, two), strict=True))
        )
        naive += (rates[0] - rates[1]) / error > stats.norm.isf(FALSE_ALARM / 3)
    assert alarms <= 5, f"{alarms} of {RUNS}"
    assert naive > RUNS / 20, f"only {naive} by the broken twin"


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    """The tasks of the tiny run, where code has become harder; of the same model."""
    folder = tmp_path_factory.mktemp("runs") / "later"
    tasks = {"code": 0.5, "chat": 0.25}
    return make_run(folder, tasks, requests_per_task=10, seed=4, confirm=False)


def test_doctor_names_the_second_trace(tiny_run, second):
    found = diagnose(tiny_run, traffic=second)
    codes = {finding.code: finding.evidence for finding in found.findings}
    assert codes["traffic_accepts_less"].startswith("later: code, T=0"), codes
    assert {row.outcome for row in found.traffic.rows} == {"above"}
    assert all(row.task in ("code", None) for row in found.traffic.rows), "chat is off"
    same = diagnose(tiny_run, traffic=tiny_run)
    assert same.findings == diagnose(tiny_run).findings
    assert {row.difference for row in same.traffic.rows} == {0.0}


def changed(run, folder, edit):
    """A copy of a run with another manifest."""
    copy = shutil.copytree(run, folder)
    file = copy / "manifest.json"
    manifest = json.loads(file.read_text(encoding="utf-8"))
    edit(manifest)
    file.write_text(json.dumps(manifest), encoding="utf-8")
    return copy


@pytest.mark.parametrize(
    ("key", "edit"),
    [
        ("config_sha256 is cccccccccccc",
         lambda m: m["provenance"]["model"].update(config_sha256="d" * 64)),
        ("tokenizer_sha256 is tttttttt",
         lambda m: m["provenance"]["model"].update(tokenizer_sha256=None)),
        ("weights is ", lambda m: m["provenance"]["model"].update(weights=[{"name": "b"}])),
        ("dtype is float32 in the first run and bfloat16 in the second",
         lambda m: m.update(dtype="bfloat16")),
        ("tokenizer is not known in the first run and x in the second (and chat_template)",
         lambda m: m["measurement"].update(chat_template="other.jinja", tokenizer="x")),
    ],
)  # fmt: skip
def test_a_run_of_another_model_is_refused_by_the_key_that_differs(tiny_run, tmp_path, key, edit):
    other = changed(tiny_run, tmp_path / "other", edit)
    with pytest.raises(ComparisonError) as caught:
        diagnose(tiny_run, traffic=other)
    assert key in str(caught.value)
    assert "--traffic" in str(caught.value)


def test_other_temperatures_tasks_or_limits_are_no_other_model(tiny_run, tmp_path):
    other = changed(
        tiny_run, tmp_path / "other", lambda m: m["measurement"].update(temperatures=[0.0], limit=5)
    )
    assert diagnose(tiny_run, traffic=other).traffic is not None


def test_a_second_run_that_ended_before_its_walk_is_refused(tiny_run, tmp_path):
    other = shutil.copytree(tiny_run, tmp_path / "other")
    (other / "walk.parquet").unlink()
    with pytest.raises(StorageError, match=r"no walk\.parquet"):
        second_walk(other, read_run(tiny_run).manifest)


def test_a_second_run_needs_no_plan(tiny_run, tmp_path):
    other = shutil.copytree(tiny_run, tmp_path / "other")
    (other / "plan.yaml").unlink()
    assert diagnose(tiny_run, traffic=other).traffic == replace(
        diagnose(tiny_run, traffic=tiny_run).traffic, source="other"
    )

"""`selfspec doctor`: what it prints, how it refuses, and that a server's counts are read."""

import json

import pytest
from checkpoints import run_cli
from report_runs import STEADY, make_run

from selfspec_cli.report.production import read_production
from selfspec_cli.report.view import build_view

PROMETHEUS = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="a{b}"} 600.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="a{b}"} 4e2 1700000000
vllm:spec_decode_num_draft_tokens_total{engine="0"} 3000.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 1500.0 # {trace="x"} 1.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 900.0
"""


@pytest.fixture(scope="module")
def poor(tmp_path_factory):
    """A task that does not pay."""
    return make_run(tmp_path_factory.mktemp("runs") / "poor", {"chat": 0.25})


def test_it_prints_what_report_and_summary_show(poor, capsys):
    assert run_cli("doctor", poor, "--json") == 0
    document = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    codes = [finding["code"] for finding in document["findings"]]
    assert codes == [finding.code for finding in build_view(poor).findings]
    assert codes[0] == "low_acceptance"
    assert run_cli("doctor", poor) == 0
    text = capsys.readouterr().out
    assert text.startswith("1. Too few drafted tokens are accepted. [low_acceptance]")
    parts = [text.index(f"{name}: ") for name in ("evidence", "cause", "remedy")]
    assert parts == sorted(parts)


def test_no_findings_are_said_in_words(tmp_path, capsys):
    well = make_run(tmp_path / "well", {"code": 0.93, "json": 0.9}, seed=3, batches=STEADY)
    assert run_cli("doctor", well) == 0
    assert capsys.readouterr().out.startswith("No findings")


def test_hostile_labels_are_shown_as_text(tmp_path, capsys):
    run = make_run(tmp_path / "run", {"[red]\x1b[31m": 0.25}, requests_per_task=3, tokens=12)
    assert run_cli("doctor", run) == 0
    text = capsys.readouterr().out
    assert "\x1b[31m" not in text
    assert "[red]" in text


def test_counts_of_a_server_are_read_and_summed(tmp_path):
    file = tmp_path / "metrics.prom"
    file.write_text(PROMETHEUS, encoding="utf-8")
    found = read_production(file)
    assert (found.rounds, found.drafted, found.accepted) == (1000, 3000, 1500)
    other = tmp_path / "counts.json"
    other.write_text('{"rounds": 10, "drafted": 30, "accepted": 12.0, "more": 1}', encoding="utf-8")
    assert read_production(other).accepted == 12


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.json", '{"rounds": 10, "drafted": 30}', "accepted is missing"),
        ("a.json", '{"rounds": 10, "drafted": 30, "accepted": 31}', "accepted is 31, more than"),
        ("a.json", '{"rounds": 10, "drafted": 30, "accepted": -1}', "accepted is -1, not a whole"),
        ("a.json", '{"rounds": 10, "drafted": 30, "accepted": true}', "accepted is True"),
        ("a.json", '{"rounds": 0, "drafted": 0, "accepted": 0}', "rounds is 0"),
        ("a.json", '{"rounds": 10, "drafted": 3, "accepted": 1}', "drafted is 3, fewer than"),
        ("a.json", '{"rounds": 10, "drafted": NaN, "accepted": 1}', "NaN"),
        ("a.json", '{"rounds": "ten", "drafted": 30, "accepted": 1}', "rounds is 'ten'"),
        ("a.json", "[1, 2]", "holds no object"),
        ("a.json", '{"rounds": 10', "a.json"),
        ("a.prom", "", "vllm:spec_decode_num_drafts_total is missing"),
        ("a.prom", PROMETHEUS.replace("1500.0", "NaN"), "accepted_tokens_total is nan"),
        ("a.prom", PROMETHEUS.replace("3000.0", "many"), "draft_tokens_total is 'many'"),
        ("a.prom", PROMETHEUS.replace("3000.0", "0.5"), "draft_tokens_total is 0.5"),
    ],
)
def test_counts_that_cannot_be_are_refused_by_file_and_field(
    poor, tmp_path, capsys, name, text, says
):
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    assert run_cli("doctor", poor, "--metrics", file) == 2
    error = capsys.readouterr().err
    assert says in error
    assert name in error
    assert "Traceback" not in error


@pytest.mark.parametrize("broken", ["nothing", "no manifest", "torn plan", "torn table"])
def test_a_folder_that_holds_no_whole_run_is_refused(tmp_path, capsys, broken):
    run = tmp_path / "run"
    if broken != "nothing":
        make_run(run, {"chat": 0.25}, requests_per_task=3, tokens=12)
    torn = {"no manifest": "manifest.json", "torn plan": "plan.yaml", "torn table": "confirm.csv"}
    if broken == "no manifest":
        (run / "manifest.json").unlink()
    elif broken in torn:
        file = run / torn[broken]
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert run_cli("doctor", run) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert torn.get(broken, "run") in error


def test_production_far_below_the_run_is_told_by_the_command(tmp_path, capsys):
    well = make_run(tmp_path / "well", {"code": 0.93}, seed=3, batches=STEADY)
    rows = {rule.draft.length for rule in build_view(well).plan.rules}
    length = min(rows)
    counts = {"rounds": 1000, "drafted": 1000 * length, "accepted": 300 * length}
    file = tmp_path / "counts.json"
    file.write_text(json.dumps(counts), encoding="utf-8")
    assert run_cli("doctor", well, "--metrics", file, "-q") == 0
    assert "[production_accepts_less]" in capsys.readouterr().out


def test_a_missing_metrics_file_is_named(poor, tmp_path, capsys):
    assert run_cli("doctor", poor, "--metrics", tmp_path / "none.prom") == 2
    assert "none.prom" in capsys.readouterr().err


def test_a_second_trace_is_shown_row_by_row(poor, tmp_path, capsys):
    later = make_run(tmp_path / "later", {"chat": 0.1}, seed=5, confirm=False)
    assert run_cli("doctor", poor, "--traffic", later, "--json") == 0
    document = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert document["traffic"]["source"] == "later"
    outcomes = {row["task"]: row["outcome"] for row in document["traffic"]["rows"]}
    assert set(outcomes) == {"chat", None}
    assert "traffic_accepts_less" in [finding["code"] for finding in document["findings"]]
    assert run_cli("doctor", poor, "--traffic", later) == 0
    text = capsys.readouterr().out
    assert "Tested acceptance at the plan's cells, here and in later:" in text
    assert "points" in text.split("here and in later:")[1]
    assert run_cli("doctor", poor, "--json") == 0
    assert json.loads(capsys.readouterr().out)["traffic"] is None


def test_a_second_trace_of_another_model_is_refused(poor, tmp_path, capsys):
    other = make_run(tmp_path / "other", {"chat": 0.25}, requests_per_task=3, tokens=12)
    file = other / "manifest.json"
    file.write_text(file.read_text(encoding="utf-8").replace("t" * 64, "u" * 64), encoding="utf-8")
    assert run_cli("doctor", poor, "--traffic", other) == 2
    error = capsys.readouterr().err
    assert "cannot be compared: tokenizer_sha256 is tttttttttt" in error
    assert "Traceback" not in error
    assert run_cli("doctor", poor, "--traffic", tmp_path / "none") == 2
    assert "none" in capsys.readouterr().err

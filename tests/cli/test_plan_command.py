"""`selfspec plan`: again from files, in a moment, without torch."""

import json
import os
import subprocess
import sys

import pytest
from plan_helpers import Ask, asks, cost_rows, make_run

from selfspec_cli.plan.decide import Plan
from selfspec_cli.plan.files import read_plan
from selfspec_cli.storage import file_sha256, write_table

PROGRAM = """
import sys

class Blocked:
    def find_spec(self, name, *rest):
        if name.split(".")[0] in ("torch", "transformers"):
            raise ModuleNotFoundError(name + " is blocked")

sys.meta_path.insert(0, Blocked())
from selfspec_cli.cli.app import main
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Task code pays (2.29), task math loses (0.81), task tiny has three requests."""
    log = [*asks(20), *asks(20, task="math", accept=0.0), *asks(3, task="tiny")]
    return make_run(tmp_path_factory.mktemp("runs") / "run", log)


def start(repo, *argv):
    """The program in an interpreter where torch cannot be imported."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, argv)],
        env={**os.environ, "PYTHONPATH": str(repo), "NO_COLOR": "1", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )


def planned(repo, *argv):
    done = start(repo, *argv, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_broken_twin_the_blocked_program_cannot_calibrate(repo, run, tmp_path):
    """Else the tests here would pass although nothing is blocked."""
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"id": "a", "prompt": "b"}\n')
    done = start(repo, "calibrate", "-m", "demo", "-t", trace, "-o", tmp_path / "run")
    assert "torch is blocked" in done.stderr, done.stderr


def test_it_prints_rules_and_a_closing_sentence(repo, run):
    done = start(repo, "plan", run.path)
    assert done.returncode == 0, done.stderr
    assert "code" in done.stdout
    assert "2.29 (2.29-2.29)" in done.stdout
    assert "verdict: enable some; decode time -" in done.stdout.splitlines()[-1]
    assert "plan.yaml" not in {p.name for p in run.path.iterdir()}, "nothing is written without -o"


def test_json_is_one_document_and_follows_the_flags(repo, run):
    base = planned(repo, "plan", run.path)
    strict = planned(repo, "plan", run.path, "--margin", "1.5", "--min-requests", "21")
    assert base["verdict"] == "enable some"
    assert (strict["settings"]["margin"], strict["settings"]["min_requests"]) == (1.5, 21)
    assert strict["verdict"] == "do not enable"
    assert strict["measurement_hash"] == base["measurement_hash"]
    assert strict["analysis_hash"] != base["analysis_hash"]


def test_the_file_is_a_plan_a_server_can_ask(repo, run, tmp_path):
    out = tmp_path / "plan.yaml"
    done = start(repo, "plan", run.path, "-o", out)
    assert done.returncode == 0, done.stderr
    assert f"written to {out}" in done.stdout
    asked = Plan.load(out).decide(task="code", context_tokens=40, temperature=0.7)
    assert (asked.enabled, asked.exit_layer, asked.draft_length) == (True, 1, 3)
    assert not Plan.load(out).decide(task="math", context_tokens=40, temperature=0.7).enabled


def test_explain_tells_every_number_of_a_task(repo, run):
    done = start(repo, "plan", run.path, "--explain", "math")
    assert done.returncode == 0, done.stderr
    told = " ".join(done.stdout.split())
    for part in (
        "math, 0-511 tokens, T=0.7: OFF",
        "cross-fitted speedup 0.81 (0.81-0.81) over 20 requests (evidence: own)",
        "At L = 1 you need acceptance 0.25, you have 0.00",
        "the best cell would bring 1.31 at 0.6 (L=",
        "100 % of requests would take over 1.05 times as long",
        "Not confirmed by real decodes",
    ):
        assert part in told, told


def test_an_unknown_task_is_named_with_a_near_one(repo, run):
    done = start(repo, "plan", run.path, "--explain", "cod")
    assert done.returncode == 2
    assert "Did you mean code?" in done.stderr
    assert done.stdout == ""


def test_costs_of_another_machine(repo, run, tmp_path):
    other = tmp_path / "fast.csv"
    write_table(cost_rows(slower=3.0), other)
    document = planned(repo, "plan", run.path, "--cost", other)
    assert document["measured_on"]["costs"]["source"] == "fast.csv"
    assert document["verdict"] == "do not enable", "2.29 / 3 < 1"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--margin", "nan"], "--margin"),
        (["--margin", "-0.1"], "--margin"),
        (["--min-requests", "1"], "--min-requests"),
        (["--cost", "none.csv"], "the file is missing"),
        (["-o", "plan.txt"], "a plan is a .yaml or .json file"),
        (["-o", "no/such/folder/plan.yaml"], "the folder does not exist"),
    ],
)
def test_wrong_flags_are_input_errors(repo, run, argv, says):
    done = start(repo, "plan", run.path, *argv)
    assert done.returncode == 2, done.stdout
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_that_is_no_run(repo, tmp_path):
    done = start(repo, "plan", tmp_path)
    assert (done.returncode, "not a run directory" in done.stderr) == (2, True), done.stderr


def test_a_file_that_is_no_plan_is_left_alone(repo, run, tmp_path):
    mine = tmp_path / "notes.yaml"
    mine.write_text("shopping: [milk]\n")
    done = start(repo, "plan", run.path, "-o", mine)
    assert done.returncode == 2
    assert "holds no plan" in done.stderr
    assert mine.read_text() == "shopping: [milk]\n"


def test_the_runs_own_plan_changes_only_when_asked_and_stays_in_the_manifest(repo, tmp_path):
    run = make_run(tmp_path / "run", asks(20))
    own = run.path / "plan.yaml"
    assert start(repo, "plan", run.path, "-o", own).returncode == 0
    before = own.read_bytes()
    assert start(repo, "plan", run.path, "--margin", "2").returncode == 0
    assert own.read_bytes() == before
    assert start(repo, "plan", run.path, "--margin", "2", "-o", own).returncode == 0
    assert read_plan(own).verdict == "do not enable"
    manifest = json.loads((run.path / "manifest.json").read_text())
    assert manifest["artefacts"]["plan.yaml"]["sha256"] == file_sha256(own)


def test_real_decodes_of_the_run_are_applied_but_not_to_another_machine(repo, tmp_path):
    run = make_run(tmp_path / "run", asks(20))
    write_table(confirm_rows(), run.artefact("confirm.csv"))
    rule = planned(repo, "plan", run.path)["rules"][0]
    assert not rule["enabled"], rule["reason"]
    assert rule["measured_speedup"]["estimate"] == pytest.approx(0.5)
    other = tmp_path / "other.csv"
    write_table(cost_rows(), other)
    elsewhere = planned(repo, "plan", run.path, "--cost", other)["rules"][0]
    assert (elsewhere["enabled"], elsewhere["confirmed"]) == (True, False)


def confirm_rows():
    """Eight decodes of the rule's cell that took twice as long as plain decoding."""
    import pandas as pd

    row = {
        "task": "code", "context_min": 0, "context_max": 512, "temperature": 0.7,
        "exit_layer": 1, "draft_length": 3, "role": "rule", "prompt_tokens": 40, "committed": 32,
        "ar_seconds": 32.0, "seconds": 64.0, "rounds": 8, "drafted": 24, "tested": 24,
        "accepted": 24, "exact": None, "first_difference": None, "top2_gap": None, "is_tie": None,
        "free_rounds": 8, "free_drafted": 24, "free_tested": 24, "free_accepted": 24,
        "free_committed": 32, "repeat": 0, "prefill_seconds": 1.0, "priced_seconds": 14.0,
        "predicted_ar_seconds": 32.0, "predicted_seconds": 14.0, "predicted_rounds": 8.0,
        "predicted_tested": 24.0, "predicted_accepted": 24.0, "predicted_prefill_seconds": 1.0,
    }  # fmt: skip
    names = [f"r{i:03d}" for i in range(8)]
    rows = [{"path_id": f"{n}|T=0.7", "request_id": n, "group_id": f"g-{n}", **row} for n in names]
    return pd.DataFrame(rows)


def test_help_and_refusals_load_nothing_heavy(repo, tmp_path):
    code = (
        "import sys\n"
        "from selfspec_cli.cli.app import _run\n"
        "print(_run(sys.argv[1:]), *[n for n in ('torch', 'pandas', 'scipy') if n in sys.modules])"
    )
    for argv in (["plan", "--help"], ["plan", str(tmp_path)]):
        done = subprocess.run(
            [sys.executable, "-c", code, *argv],
            env={**os.environ, "PYTHONPATH": str(repo)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.splitlines()[-1].strip() in ("0", "2"), done.stdout + done.stderr


def test_a_label_with_control_characters_is_shown_not_obeyed(repo, tmp_path):
    run = make_run(tmp_path / "run", [Ask(task="a\x1b[31m[bold]b")])
    done = start(repo, "plan", run.path, "--explain", "a\x1b[31m[bold]b")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "[bold]" in done.stdout


def test_at_eighty_columns_only_a_tasks_name_is_cut(tmp_path):
    """As the other tables do: an ellipsis, one line a rule, no number lost."""
    import io

    from plan_helpers import plan_run
    from rich.console import Console

    from selfspec_cli.cli.plan_output import rules_table

    task = "summarise the minutes of a long meeting"
    table = rules_table(plan_run(make_run(tmp_path / "run", asks(20, task=task))))
    sink = io.StringIO()
    Console(file=sink, width=80).print(table)
    (row,) = [line for line in sink.getvalue().splitlines() if "summarise" in line]
    assert "…" in row or "..." in row, row
    for part in ("0-511", "0.7", "yes", "1,3", "2.29 (2.29-2.29)", "20", "own"):
        assert part in row, f"{part} is lost: {row}"


def test_several_batch_sizes_are_one_line_and_in_the_explanation(repo, tmp_path):
    from plan_helpers import batch_rows

    run = make_run(tmp_path / "run", asks(20))
    other = tmp_path / "server.csv"
    write_table(batch_rows(), other)
    done = start(repo, "plan", run.path, "--cost", other, "--explain", "code")
    assert done.returncode == 0, done.stderr
    told = " ".join(done.stdout.split())
    assert "Speculation pays up to batch 4 in 1 bucket; measured at 1, 4, 8." in told
    assert "8: 0.76x (0.76-0.76) (fail)" in told
    alone = " ".join(start(repo, "plan", run.path).stdout.split())
    assert "warning: measured at batch 1 only" in alone

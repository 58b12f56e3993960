"""Cases of groups B and D at the doors that read a run: gate, compare, doctor, plan, report, bench.

Each is one kind of failure met in neighbouring projects; `tests/cases.md` names them.
"""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest
import typer
from checkpoints import run_cli
from report_runs import make_run

from selfspec_cli.cli.app import app

PROGRAM = "from selfspec_cli.cli.app import main; main()"
LABELS = {"résumé": 0.9, "re\u0301sume\u0301": 0.5, "中文": 0.5, "a\x1b[31mb": 0.5, "=1+1": 0.2}
COMMANDS = typer.main.get_command(app).commands
READERS = (
    ("gate", "RUN"), ("compare", "RUN", "RUN"), ("doctor", "RUN"), ("plan", "RUN"),
    ("report", "RUN"),
)  # fmt: skip
"""Commands that answer from files alone."""
NO_TOKENS = {"code": 0.9}


def strict(text):
    """Read JSON as strict readers do."""

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "run", requests_per_task=12, tokens=24)


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "labelled"
    return make_run(folder, LABELS, requests_per_task=3, tokens=12)


@pytest.fixture(scope="module")
def undrafted(tmp_path_factory):
    """Outputs of one token: nothing was drafted, acceptance is 0/0."""
    folder = tmp_path_factory.mktemp("runs") / "undrafted"
    return make_run(folder, NO_TOKENS, requests_per_task=3, tokens=1, confirm=False)


def filled(argv, run):
    return [str(run) if word == "RUN" else word for word in argv]


@pytest.mark.parametrize("argv", READERS, ids=[argv[0] for argv in READERS])
def test_d16_json_of_a_run_without_a_draft_is_strict(argv, undrafted, capsys):
    """D16: acceptance of 0/0 is null in every document; the gate is not passed."""
    code = run_cli(*filled(argv, undrafted), "--json")
    said = capsys.readouterr()
    assert code in {0, 1, 3}, said.err
    document = strict(said.out)
    assert isinstance(document, dict), f"one document, found {type(document).__name__}"
    if argv[0] == "gate":
        assert code != 0, "nothing was shown to hold, so nothing may pass"


def test_the_strict_reader_refuses_what_python_writes():
    with pytest.raises(AssertionError, match="NaN is no JSON"):
        strict(json.dumps({"acceptance": float("nan")}))


@pytest.mark.parametrize("argv", READERS, ids=[argv[0] for argv in READERS])
def test_d17_labels_in_an_ascii_locale_end_nothing(argv, labelled, repo):
    """D17: any label, a locale of ASCII, a pipe: an answer, and no raw escape on stdout."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *filled(argv, labelled)],
        env={**os.environ, "PYTHONPATH": str(repo), "LC_ALL": "C", "PYTHONUTF8": "0",
             "PYTHONCOERCECLOCALE": "0"},
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode in {0, 1, 3}, done.stderr.decode("ascii", "replace")[-1500:]
    assert b"Traceback" not in done.stderr
    assert b"\x1b" not in done.stdout, done.stdout[:400]
    assert done.stdout.strip()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_d13_no_flag_is_completed_from_its_first_letters(name, capsys):
    """D13: every long flag of every command, its last letter missing."""
    flags = {flag for parameter in COMMANDS[name].params for flag in parameter.opts
             if flag.startswith("--")}  # fmt: skip
    for flag in sorted(flags):
        short = flag[:-1]
        if short in flags or short == "--":
            continue
        code = run_cli(name, short)
        said = capsys.readouterr().err
        assert code == 2, f"{name} {short}: exit code {code}"
        assert "No such option" in said, f"{name} {short}: {said}"


@pytest.mark.parametrize("out", ["none/there", "file"])
@pytest.mark.parametrize("argv", [("report", "RUN"), ("plan", "RUN")], ids=["report", "plan"])
def test_d04_an_output_that_cannot_be_is_refused_at_once(argv, out, run, tmp_path, capsys):
    """D04: a missing parent, a file in the way; what lies there stays."""
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    begin = time.process_time()
    code = run_cli(*filled(argv, run), "-o", tmp_path / out)
    seconds = time.process_time() - begin
    said = capsys.readouterr()
    assert code == 2, said.err
    assert str(tmp_path / out) in said.err.replace("\n", "")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
    assert seconds < 10, f"{seconds:.1f} s to say it"


@pytest.mark.parametrize("argv", READERS, ids=[argv[0] for argv in READERS])
def test_d06_a_run_that_was_stopped_is_not_taken_as_complete(argv, run, tmp_path, capsys):
    """D06: a run without walk and plan is refused by name, never judged, planned or explained."""
    stopped = shutil.copytree(run, tmp_path / "stopped")
    for name in ("plan.yaml", "confirm.csv", "grid.csv", "walk.parquet"):
        (stopped / name).unlink(missing_ok=True)
    manifest = json.loads((stopped / "manifest.json").read_text(encoding="utf-8"))
    manifest["status"] = "running"
    for name in ("plan.yaml", "confirm.csv", "grid.csv", "walk.parquet"):
        manifest["artefacts"].pop(name, None)
    for stage in ("walk", "confirm", "plan"):
        manifest["stages"].pop(stage, None)
    (stopped / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    code = run_cli(*filled(argv, stopped))
    said = capsys.readouterr()
    assert code == 2, f"exit code {code}: {said.out[-500:]}"
    assert str(stopped) in said.err.replace("\n", ""), said.err
    assert "enabled: true" not in said.out


def test_b07_a_run_against_itself_is_one_and_breaks_no_limit(run, capsys):
    """B07: the null test of a comparison reports 1.00 and fails nothing."""
    code = run_cli(
        "compare", run, run, "--fail-on", "speedup:-3%", "--fail-on", "acceptance:-0.02", "--json"
    )
    document = strict(capsys.readouterr().out)
    assert code in {0, 3}, json.dumps(document)[:2000]


@pytest.mark.parametrize("name", ["D_dup.yaml", "D_unknown.yaml", "D_sci.yaml", "D_gate_nan.yaml"])
def test_d11_d13_d14_rules_of_the_collection_are_input_errors(name, shared, run, capsys):
    """D11, D13, D14: no gate runs on rules that it does not know to the last key."""
    code = run_cli("gate", run, "--rules", shared / "cases" / "inputs" / "open" / name)
    said = capsys.readouterr()
    assert code == 2, f"{name}: exit code {code}\n{said.out}"
    assert said.out == ""
    wanted = {
        "D_dup.yaml": ("gate.min_speedup", "lines 2 and 4"),
        "D_unknown.yaml": ("draft_lenghts",),
        "D_sci.yaml": ("min_requests",),
        "D_gate_nan.yaml": ("gate",),
    }[name]
    told = " ".join(said.err.split())
    assert name in told, told
    assert [words for words in wanted if words not in told] == [], told


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ("speedup:\n  min_speedup: 1.05\n  min_speedup: 0.5\n", "lines 2 and 3"),
        ("speedup:\n  min_speedupp: 1.2\n", "min_speedupp"),
        ("speedup:\n  min_speedup: .nan\n", "min_speedup"),
        ("speedup:\n  min_speedup: -1\n", "min_speedup"),
        ("speedup:\n  min_speedup: .inf\n", "min_speedup"),
        ("acceptance_floor:\n  min_acceptance: '0.6'\n", "min_acceptance"),
    ],
)
def test_d11_d13_d14_bad_rules_name_their_key(rules, told, run, tmp_path, capsys):
    file = tmp_path / "rules.yaml"
    file.write_text(rules, encoding="utf-8")
    code = run_cli("gate", run, "--rules", file)
    said = capsys.readouterr()
    assert code == 2, f"exit code {code}: {said.out}"
    assert "rules.yaml" in said.err
    assert told in " ".join(said.err.split()), said.err


def test_d09_limits_in_scientific_notation_are_numbers(run, tmp_path, capsys):
    """D09: 2e0 and 1.0e-1 mean two and a tenth, whatever YAML 1.1 says; the same verdict."""
    found = []
    for most, least in (("1.0e-1", "2e0"), ("0.1", "2")):
        file = tmp_path / "rules.yaml"
        file.write_text(
            f"slow_share: {{max_share: {most}}}\nenough_requests: {{min_requests: {least}}}\n",
            encoding="utf-8",
        )
        code = run_cli("gate", run, "--rules", file, "--json")
        document = strict(capsys.readouterr().out)
        found.append((code, document["checks"]))
    assert found[0] == found[1]


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_d14_a_limit_on_the_command_line_is_a_number(value, run, capsys):
    assert run_cli("gate", run, "--min-speedup", value) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "min_speedup" in said or "min-speedup" in said, said

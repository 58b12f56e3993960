"""`selfspec gate`: exit codes, what it prints, and that it needs no torch."""

import io
import json
import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from gate_runs import change_manifest, change_plan, copy_of, passing_run
from rich.console import Console

from selfspec_cli.cli.app import _run
from selfspec_cli.cli.gate_output import print_gate, verdict_line
from selfspec_cli.gate.verdict import Check, GateReport
from selfspec_cli.provenance import device_fingerprint, library_fingerprint

PROBE = """
import sys
from selfspec_cli.cli.app import main
try:
    main(sys.argv[1:])
finally:
    heavy = ("torch", "transformers", "matplotlib", "pandas")
    print("loaded:", *[name for name in heavy if name in sys.modules], file=sys.stderr)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A passing run of this machine and day, and rules with room for its 14 requests."""
    folder = passing_run(tmp_path_factory.mktemp("command") / "run")
    here = {
        "device": {key: value for key, value in device_fingerprint().items() if "torch" not in key},
        "libraries": library_fingerprint(),
    }
    (folder.parent / "rules.yaml").write_text("enough_requests: {min_requests: 10}")
    day = datetime.now(UTC).date().isoformat()

    def edit(plan):
        plan["measured_on"].update(here)
        plan["traces"].update(date=day)

    return change_plan(folder, edit)


def selfspec(repo, *argv):
    return subprocess.run(
        [sys.executable, "-c", PROBE, *map(str, argv)],
        env={**os.environ, "PYTHONPATH": str(repo), "COLUMNS": "100"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def recorder():
    return Console(width=100, record=True, file=io.StringIO())


def refuse(constant):
    raise ValueError(constant)


def test_help_has_an_example_and_loads_nothing(repo):
    done = selfspec(repo, "gate", "--help")
    assert done.returncode == 0
    assert "selfspec gate reports/quickstart" in done.stdout
    assert done.stderr.split("loaded:")[1].split() == []


def test_pass_on_the_plans_machine_without_torch(repo, run):
    done = selfspec(repo, "gate", run, "--rules", run.parent / "rules.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "torch" not in done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("PASS: 0 failed, 0 without a verdict, ")
    assert last.endswith("Next: Roll the plan out.")


def in_process(*argv):
    return _run([str(part) for part in argv])


def test_fail_and_no_verdict_have_their_codes(run, capsys):
    rules = run.parent / "rules.yaml"
    assert in_process("gate", run, "--rules", rules, "--min-speedup", "3", "-q") == 1
    assert in_process("gate", run, "-q") == 3, "the default asks for 20 requests, there are 14"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "0", "fast"])
def test_an_impossible_limit_is_bad_input(run, capsys, value):
    assert in_process("gate", run, "--min-speedup", value) == 2
    assert "--min-speedup" in capsys.readouterr().err


def test_other_bad_input_names_what_is_wrong(run, capsys, tmp_path):
    assert in_process("gate", tmp_path) == 2
    assert "manifest.json" in capsys.readouterr().err
    assert in_process("gate", run, "-m", tmp_path) == 2
    assert "config.json" in capsys.readouterr().err
    assert in_process("gate", run, "--traffic", tmp_path) == 2
    assert in_process("gate", run, "--concurrency", "0") == 2
    assert in_process("gate", run, "--rules", tmp_path / "none.yaml") == 2
    assert "none.yaml" in capsys.readouterr().err


def test_json_is_one_strict_document(run, tmp_path, capsys):
    other = change_manifest(copy_of(run, tmp_path), lambda m: m.pop("footprint"))
    code = in_process("gate", other, "--json", "--rules", run.parent / "rules.yaml")
    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert (found["outcome"], found["exit_code"]) == ("pass", code), found
    memory = next(check for check in found["checks"] if check["name"] == "memory")
    assert (memory["outcome"], memory["value"]) == ("no_verdict", None)


def test_failures_come_first_and_the_table_fits_a_screen():
    """60 buckets, a third of them failing: at most 40 lines at 100 columns."""
    checks = [
        Check(
            name="speedup", outcome="fail" if at % 3 == 0 else "pass", subject=f"task {at}",
            value=1.0, low=0.9, high=1.1, limit=1.05, text="1.00x (0.90-1.10)", next_step="Off.",
        )
        for at in range(60)
    ]  # fmt: skip
    report = GateReport(
        run="run", checks=tuple(sorted(checks, key=lambda check: check.outcome)), notes=("a note",)
    )
    console = recorder()
    print_gate(report, console)
    lines = console.export_text().splitlines()
    assert len(lines) <= 40
    assert "fail" in lines[2]
    assert "8 more" in "\n".join(lines)
    assert verdict_line(report) == ("FAILED: 20 failed, 0 without a verdict, 40 passed. Next: Off.")


def test_markup_in_a_task_is_text():
    check = Check(name="speedup", outcome="fail", subject="[red]a[/red]", text="x", next_step="")
    console = recorder()
    print_gate(GateReport(run="run", checks=(check,)), console)
    assert "[red]a[/red]" in console.export_text()

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
    assert last.endswith(" notes. Next: Read the notes, then roll out.")


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


def _of_every_kind():
    """A check a state, each with a long bucket, a test after its numbers and a next step."""
    told = "1.00x (0.90-1.10), a lower bound of 1.05 is asked"
    long = "summarization, 512-2047 tokens, T=0 to below 0.7"
    fields = {"subject": long, "value": 1.0, "low": 0.9, "high": 1.1, "limit": 1.05}

    def check(name, outcome, **more):
        step = {} if outcome == "pass" else {"next_step": f"Mend what {name} says, here or there."}
        return Check(name=name, outcome=outcome, text=f"{told}; p 1", **{**fields, **step, **more})

    return (
        check("speedup", "fail"),
        check("acceptance_floor", "fail", warns_only=True),
        check("request_p99", "no_verdict"),
        check("measured_speedup", "no_verdict", optional=True),
        check("acceptance_break_even", "pass"),
        *(check("slow_share", "no_verdict") for _ in range(17)),
    )


@pytest.mark.parametrize("width", [80, 120])
def test_every_row_has_number_interval_limit_and_next_step(width):
    """Nothing is cut on a narrow screen or in a pipe: rows of each state are read back whole."""
    console = Console(width=width, record=True, file=io.StringIO())
    print_gate(GateReport(run="run", checks=_of_every_kind()), console)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    lines = [line.rstrip() for line in text.splitlines()]
    indent = lines[0].index("found")
    rows, names = [], []
    for line in lines[1:]:
        if line.startswith("FAILED"):
            break
        if line[:indent].strip():
            names.append(line[:indent].split()[-1])
            rows.append("")
        rows[-1] += " " + line[indent:].strip()
    whole = dict(zip(names, rows, strict=True))
    for name in ("speedup", "acceptance_floor", "request_p99", "measured_speedup"):
        assert "1.00x (0.90-1.10), a lower bound of 1.05 is asked" in whole[name], whole
        assert f"Next: Mend what {name} says, here or there." in whole[name], whole
        assert "summarization, 512-2047 tokens, T=0 to below 0.7" in whole[name], whole
    assert whole["acceptance_break_even"].endswith("a lower bound of 1.05 is asked"), whole
    assert whole["slow_share"].strip() == "... and 15 more; all of them: --json"
    assert "…" not in text


def test_a_pass_tells_of_what_was_not_judged():
    """ "0 without a verdict" beside open notes would read as if everything had been judged."""
    passed = Check(name="age", outcome="pass", text="measured today")
    open_ = Check(name="memory", outcome="no_verdict", text="not known", optional=True)
    report = GateReport(run="run", checks=(open_, open_, passed))
    assert verdict_line(report) == (
        "PASS: 0 failed, 0 without a verdict, 1 passed, 2 notes. Next: Read the notes, then roll "
        "out."
    )
    whole = GateReport(run="run", checks=(passed,))
    assert verdict_line(whole).endswith("1 passed. Next: Roll the plan out.")


def test_many_buckets_of_one_check_hide_no_other():
    """Twin of a table cut at its first 12 rows: the last failing check is still in it."""
    checks = [
        *(Check(name="speedup", outcome="fail", text="slow", subject=f"b{n}") for n in range(30)),
        Check(name="exactness", outcome="fail", text="2 differ"),
    ]
    console = recorder()
    print_gate(GateReport(run="run", checks=tuple(checks)), console)
    text = console.export_text()
    assert "2 differ" in text
    assert "24 more" in text


def test_markup_in_a_task_is_text():
    check = Check(name="speedup", outcome="fail", subject="[red]a[/red]", text="x", next_step="")
    console = recorder()
    print_gate(GateReport(run="run", checks=(check,)), console)
    assert "[red]a[/red]" in console.export_text()

"""A bench stopped by a signal keeps every request that all its arms decoded, and says so."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bench_helpers import OWN, RIVALS, bench, document, rows

import selfspec_cli.bench.turns as turns_module
from selfspec_cli.cli.app import _InterruptedError

REPO = Path(__file__).resolve().parents[2]
# The signal arrives at the start of the turn after `TURNS`, in the middle of the program's work.
CHILD = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
import selfspec_cli.bench.turns as turns
real, calls = turns.measure_request, []
def counted(*args):
    calls.append(args)
    if len(calls) == {turns} + 1:
        os.kill(os.getpid(), {number})
    return real(*args)
turns.measure_request = counted
from selfspec_cli.cli.app import main
main()
"""


def stopped(number: signal.Signals, turns: int, *argv: object) -> subprocess.CompletedProcess:
    """The real program in an interpreter of its own, stopped after so many turns."""
    code = CHILD.format(turns=turns, number=int(number))
    return subprocess.run(  # its exit code is what is tested
        [sys.executable, "-c", code, "bench", *map(str, argv)],
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_sigterm_keeps_what_every_arm_decoded_and_ends_with_143(
    calibrated_run, model, trace, tmp_path
):
    flags = ("-m", model, "-t", trace, "-o", tmp_path / "out", "--requests", 3, "-q", "--json")
    ended = stopped(signal.SIGTERM, 5, calibrated_run, *flags)
    assert ended.returncode == 143, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "terminated; what was measured by then is in" in ended.stderr, ended.stderr
    table, told = rows(tmp_path / "out"), document(tmp_path / "out")
    pairs = table[["request_id", "temperature"]].drop_duplicates()
    assert len(pairs) == 5, f"{len(pairs)} requests kept of the 5 that every arm decoded"
    for key, own in table.groupby(["request_id", "temperature"]):
        wanted = {*OWN, *(RIVALS if key[1] == 0 else ())}
        assert set(own["arm"]) == wanted, f"{key} is kept with arms {sorted(own['arm'])} only"
    # 2 tasks, 2 temperatures, 3 requests each
    counts = [told[name] for name in ("num_requests_measured", "num_requests", "num_turns")]
    assert (told["partial"], told["stopped"], counts) == (True, "interrupted", [5, 12, 12])
    shown = json.loads(ended.stdout)
    assert shown["partial"] is True
    assert shown["answer"].startswith("Partial, 5 of 12 requests: plan "), shown["answer"]
    said = "PARTIAL, interrupted: 5 of 12 requests were measured with every arm."
    for name in ("bench.html", "bench.md"):
        assert said in (tmp_path / "out" / name).read_text(encoding="utf-8"), f"{name} hides it"


def stop_in_turn(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Ctrl-C in the middle of turn `number`, the first being 1."""
    real, calls = turns_module.measure_request, []

    def counted(*args):
        calls.append(args)
        if len(calls) == number:
            raise _InterruptedError  # what the program makes of SIGINT
        return real(*args)

    monkeypatch.setattr(turns_module, "measure_request", counted)


def test_ctrl_c_in_the_second_repeat_counts_turns_too(
    calibrated_run, model, trace, tmp_path, monkeypatch, capsys
):
    stop_in_turn(monkeypatch, 7)
    flags = ("-o", tmp_path, "--requests", 1, "--repeats", 2)
    assert bench(calibrated_run, model, trace, *flags) == 130
    said = " ".join(capsys.readouterr().out.split())
    turns = "(6 of 8 turns of requests, batches and repeats)"
    assert f"PARTIAL, interrupted: 4 of 4 requests were measured with every arm {turns}" in said
    sizes = rows(tmp_path).groupby("repeat").size().to_dict()
    assert set(sizes) == {0, 1}, f"rows by repeat: {sizes}"
    assert sizes[1] < sizes[0], f"rows by repeat: {sizes}"


def test_nothing_measured_yet_writes_nothing(
    calibrated_run, model, trace, tmp_path, monkeypatch, capsys
):
    stop_in_turn(monkeypatch, 1)
    flags = ("-o", tmp_path / "out", "--requests", 1)
    assert bench(calibrated_run, model, trace, *flags) == 130
    shown = capsys.readouterr()
    said = "interrupted; no request was measured with every arm yet; nothing was written"
    assert said in shown.err, shown.err
    assert shown.out == ""
    assert not (tmp_path / "out").exists(), sorted((tmp_path / "out").iterdir())


def test_a_whole_bench_is_not_called_partial(calibrated_run, model, trace, tmp_path, capsys):
    assert bench(calibrated_run, model, trace, "-o", tmp_path, "--requests", 1) == 0
    told = document(tmp_path)
    assert (told["partial"], told["stopped"]) == (False, None)
    assert told["num_turns"] == told["num_turns_measured"] == told["num_requests"] == 4
    assert "partial" not in capsys.readouterr().out.lower()

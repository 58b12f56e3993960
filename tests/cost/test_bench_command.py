"""`selfspec bench -m MODEL --only cost` from the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cost_helpers import tiny_model

from selfspec_cli.cli.app import _run
from selfspec_cli.cli.bench_output import spread
from selfspec_cli.storage import read_document, read_table

SMALL = ("--only", "cost", "--contexts", "16,64", "--draft-lengths", "1,3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint without a tokenizer: costs need no text."""
    folder = tmp_path_factory.mktemp("model")
    tiny_model().save_pretrained(folder)
    return folder


def bench(*words: object) -> int:
    return _run(["bench", *map(str, words)])


def test_it_prints_ratios_floor_and_words_and_writes_both_files(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "costs"
    assert bench("-m", folder, *SMALL, "-o", out) == 0
    shown, told = capsys.readouterr()
    for word in ("c(L)", "v(1+1)", "v(3+1)", "L/N", "bandwidth floor", "greedy", "sampled"):
        assert word in shown, f"{word!r} is not in:\n{shown}"
    assert "timing parts" in told
    assert len(told.splitlines()) <= 5, told
    assert sorted(path.name for path in out.iterdir()) == ["cost.csv", "cost_fit.json"]
    rows = read_table(out / "cost.csv")
    assert set(rows["law"].dropna()) - {""} == {"greedy", "sampled"}
    assert sorted(rows["block"].unique()) == list(range(10))
    fits = read_document(out / "cost_fit.json")
    assert {law: len(fit["rounds"]) for law, fit in fits.items()} == {"greedy": 12, "sampled": 12}


def test_batch_sizes_have_lines_of_their_own(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "costs"
    words = ("-m", folder, *SMALL, "--temperatures", "0", "--batch-size", "1,3", "-o", out, "-q")
    assert bench(*words) == 0
    shown = capsys.readouterr().out
    assert "greedy law, context 16, by batch" in shown, shown
    assert "tokens/s" in shown
    lines = [line.split() for line in shown.splitlines()]
    batches = [line for line in lines if len(line) == 8 and line[0] in ("1", "3")]
    assert len(batches) == 4, f"two contexts × two batch sizes in:\n{shown}"
    for batch, step_ms, rate, *_ in batches:
        assert float(rate) == pytest.approx(1e3 * int(batch) / float(step_ms), rel=0.02), lines
    rows = read_table(out / "cost.csv")
    assert set(rows["batch"]) == {1, 3}
    fits = read_document(out / "cost_fit.json")
    assert set(fits) == {"greedy", "by_batch"}
    assert len(fits["by_batch"]["3"]["greedy"]["rounds"]) == 6


def test_the_engine_that_was_timed_is_told(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compiled was asked for and cannot be had: one notice, and the other's name everywhere."""

    def no_compiler(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch._inductor, "standalone_compile", no_compiler)
    out = tmp_path / "costs"
    words = ("-m", folder, *SMALL, "--temperatures", "0", "--engine", "compiled", "-o", out)
    assert bench(*words, "--json") == 0
    shown, told = capsys.readouterr()
    assert json.loads(shown)["engine"] == "linear_kernel"
    assert set(read_table(out / "cost.csv")["engine"]) == {"linear_kernel"}
    assert told.count("compiled layers cannot be used here (no compiler)") == 1, told
    assert told.count("compiling layer program 1;") == 1, told


def test_json_is_one_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("-m", folder, *SMALL, "--temperatures", "0.7", "--json", "-q") == 0
    shown, told = capsys.readouterr()
    document = json.loads(shown)
    assert told == "", f"--quiet said {told!r}"
    assert set(document["laws"]) == {"sampled"}
    at = document["laws"]["sampled"]["contexts"][1]
    assert at["context"] == 64
    # 6 layers, 30 % to 80 %: L = 2, 3, 4; k = 1, 3
    assert [len(at["draft_cost_ratio"]), len(at["verify_cost_ratio"][0])] == [3, 2]
    assert at["floor_ratio"] > 0
    assert document["read_bandwidth_bytes_per_s"] > 0
    assert document["engine"] == "eager", "auto compiles no model as small as this"
    assert [document["seed"], document["num_blocks"]] == [0, 10]
    assert [document["batch_sizes"], document["batches"]] == [[1], {}]
    assert at["tokens_per_s"] == pytest.approx(1 / at["ar_seconds"])
    assert "backwards" in document["order"], "the order of timing belongs to the output (B07)"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("-m", "demo"), "no run or plan is given"),
        (("-m", "demo", "--only", "speed"), "--only: unknown part 'speed'"),
        (("RUN", "-m", "demo", "--only", "cost"), "takes a model, no run or plan"),
        (("--only", "cost"), "no model is given"),
        (("-m", "FOLDER", *SMALL, "--contexts", "16,157"), "exceed the model's 160 positions"),
        (("-m", "FOLDER", *SMALL, "--contexts", "0"), "contexts"),
        (("-m", "FOLDER", *SMALL, "--exit-layers", "6"), "outside 1..5"),
        (("-m", "FOLDER", *SMALL, "--draft-lengths", "0-3"), "draft length 0"),
        (("-m", "FOLDER", *SMALL, "--temperatures", "trace"), "no trace"),
        (("-m", "FOLDER", *SMALL, "--temperatures", "-1"), ">= 0"),
        (("-m", "FOLDER", *SMALL, "--batch-size", "0,4"), "--batch-size: batch size 0"),
        (("-m", "FOLDER", *SMALL, "--batch-size", "many"), "is not a range"),
        (("-m", "FOLDER", *SMALL, "--dtype", "int3"), "unknown dtype"),
        (("-m", "FOLDER", *SMALL, "--device", "abacus"), "abacus"),
        (("-m", "FOLDER", *SMALL, "--engine", "fast"), "--engine: unknown engine 'fast'"),
        (("-m", "./no-such-folder", *SMALL), "no such folder"),
    ],
)
def test_what_cannot_be_measured_is_said_with_exit_code_2(
    folder: Path, words: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = bench(*(folder if word == "FOLDER" else word for word in words))
    shown, told = capsys.readouterr()
    assert code == 2, f"exit code {code}: {told}"
    assert shown == ""
    assert named in told, told


def test_a_runs_folder_is_not_touched(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "manifest.json").write_text("{}", encoding="utf-8")
    assert bench("-m", folder, *SMALL, "-o", tmp_path) == 2
    assert "holds a run" in capsys.readouterr().err
    assert bench("-m", folder, *SMALL, "-o", tmp_path / "missing" / "out") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys; from selfspec_cli.cli import bench; "
        "heavy = 'torch numba pandas transformers'; "
        "sys.exit(any(name in sys.modules for name in heavy.split()))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == 0, "importing the command loads a heavy library"


@pytest.mark.parametrize(
    ("count", "shown", "want"),
    [(16, 6, [0, 3, 6, 9, 12, 15]), (3, 6, [0, 1, 2]), (1, 3, [0]), (8, 3, [0, 4, 7])],
)
def test_tables_show_the_ends_and_evenly_between(count: int, shown: int, want: list[int]) -> None:
    assert spread(count, shown) == want

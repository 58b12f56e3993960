"""The script that waits for a GPU runs from end to end, tried out on a CPU."""

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def document(repo, tmp_path_factory):
    out = tmp_path_factory.mktemp("gpu") / "gpu.json"
    done = subprocess.run(
        [repo / "tests/benchmarks/gpu.sh", out, "--tiny"],
        env={**os.environ, "PYTHON": sys.executable},
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "x floor" in done.stdout, done.stdout[-2000:]
    return json.loads(out.read_text(encoding="utf-8"))


@pytest.mark.parametrize("engine", ["graphs", "eager"])
def test_every_size_has_its_costs(document, engine):
    found = document[engine]
    assert found["engine"] == {"graphs": "compiled", "eager": "eager"}[engine]
    assert [(one["batch"], one["context"]) for one in found["sizes"]] == [(1, 8), (2, 8)]
    for one in found["sizes"]:
        assert one["ar_seconds"] > one["floor_seconds"] > 0
        assert one["floor_ratio"] == pytest.approx(one["ar_seconds"] / one["floor_seconds"])
        assert 0 < one["c"]["1"] < 2, f"c = {one['c']}"
        assert set(one["v"]["1"]) == set(one["o"]) == {"1", "2"}
    assert {(one["batch"], one["draft_length"]) for one in found["rounds"]} >= {(1, 1), (2, 1)}


def test_every_kind_of_decode_is_judged_for_exactness(document):
    runs = document["exactness"]["runs"]
    assert set(runs) == {"plain", "L=1 k=2", "L=1 k=2, ragged"}
    unequal = {name: run for name, run in runs.items() if run["equal"] != run["decodes"]}
    assert not unequal, f"{unequal}"


def test_a_machine_without_a_gpu_is_told_so(repo):
    done = subprocess.run(
        [sys.executable, repo / "tests/benchmarks/gpu_costs.py"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(repo)},
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    assert "no CUDA device here" in done.stderr
    assert "Traceback" not in done.stderr

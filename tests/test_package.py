"""The package as users get it: a wheel in an empty environment, and the two set-up commands."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections import Counter

import pytest

from selfspec_cli.config import load_config, preset_names, resolve_trace, sample_names

NUM_SAMPLE = 161
TEMPLATES = ("report.html.j2", "style.css")
PROBE = """
import json, sys
import selfspec_cli
from selfspec_cli.config import load_config, preset_names, resolve_trace, sample_names
config = load_config("quickstart", {"model": "demo", "traces": ["sample"], "out": "run"})
print(json.dumps({
    "package": selfspec_cli.__file__,
    "presets": preset_names(),
    "samples": sample_names(),
    "rows": len(resolve_trace("sample").read_bytes().splitlines()),
    "limit": config.limit,
}))
"""


def run(*command, cwd):
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def wheel(repo, tmp_path_factory):
    """The wheel, built from a copy so that no stale build folder takes part."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("selfspec_cli", "configs", "traces"):
        shutil.copytree(
            repo / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(repo / name, source / name)
    run(
        sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index",
        "--no-build-isolation", "-w", target, source, cwd=target,
    )  # fmt: skip
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory):
    """An empty environment with only the wheel; its libraries are lent by this interpreter."""
    environment = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=environment)
    python = environment / "bin" / "python"
    run(
        sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps",
        "--no-index", wheel, cwd=environment,
    )  # fmt: skip
    (site,) = environment.glob("lib/python*/site-packages")
    # A path file lends the libraries but not an editable selfspec: its finder is not started.
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment


def test_presets_and_sample_work_from_an_installed_wheel(installed, repo, tmp_path):
    answer = json.loads(run(installed / "bin" / "python", "-c", PROBE, cwd=tmp_path))
    assert str(repo) not in answer["package"], "the checkout was used, not the wheel"
    assert answer["presets"] == list(preset_names())
    assert answer["samples"] == list(sample_names())
    assert answer["rows"] == NUM_SAMPLE, answer["rows"]
    assert (
        answer["limit"]
        == load_config("quickstart", {"model": "x", "traces": "x", "out": "x"}).limit
    )
    assert list(tmp_path.iterdir()) == []


def test_every_module_of_the_checkout_is_in_the_wheel(wheel, repo):
    names = set(run(sys.executable, "-m", "zipfile", "-l", wheel, cwd=repo).split())
    for path in (repo / "selfspec_cli").rglob("*.py"):
        assert str(path.relative_to(repo)) in names, f"{path.name} is not in the wheel"
    assert {"selfspec_cli/py.typed", "selfspec_cli/data/configs/default.yaml"} <= names
    assert {f"selfspec_cli/report/templates/{name}" for name in TEMPLATES} <= names
    assert "selfspec_cli/bench/templates/bench.html.j2" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_constraints_pin_every_dependency_exactly(repo):
    lines = (repo / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    project = tomllib.loads((repo / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["dev"], *extras["demo"]]
    normal = {re.sub(r"[-_.]+", "-", name).lower() for name in pins}
    for requirement in wanted:
        name = re.match(r"[A-Za-z0-9._-]+", requirement)[0]
        assert re.sub(r"[-_.]+", "-", name).lower() in normal, f"{name} is not pinned"
    assert pins["torch"] == "2.13.0"
    assert not any("://" in line or "+cpu" in line for line in lines)


def test_readme_names_both_commands_and_the_makefile_has_them(repo):
    readme, makefile = ((repo / name).read_text() for name in ("README.md", "Makefile"))
    for target in ("test", "calibrate"):
        assert f"make {target}" in readme
        assert re.search(rf"^{target}: \$\(READY\)", makefile, re.MULTILINE), target
    assert (repo / ".ci" / "run").stat().st_mode & 0o111, ".ci/run is not executable"


def test_sample_trace_fills_three_buckets_and_leaves_others_thin():
    """Buckets by task, temperature and whether the prompt is long; words stand for tokens."""
    rows = [json.loads(line) for line in resolve_trace("sample").read_bytes().splitlines()]
    assert len({row["id"] for row in rows}) == len(rows) == NUM_SAMPLE >= 144
    assert len({json.dumps(row["messages"]) for row in rows}) == len(rows), "a prompt twice"
    assert {row["temperature"] for row in rows} == {0, 0.7}
    budgets = [row["max_tokens"] for row in rows]
    assert min(budgets) >= 32, min(budgets)
    assert max(budgets) <= 96, max(budgets)
    assert 48 <= sum(budgets) / len(budgets) <= 56, sum(budgets) / len(budgets)
    words = [len(json.dumps(row["messages"], ensure_ascii=False).split()) for row in rows]
    pairs = zip(rows, words, strict=True)
    counts = Counter((row["task"], n > 300, row["temperature"]) for row, n in pairs)
    assert sum(n >= 24 for n in counts.values()) >= 3, counts
    assert sum(3 <= n < 20 for n in counts.values()) >= 2, counts
    assert sorted(words)[-3] > 1500, f"words of the three longest prompts: {sorted(words)[-3:]}"


def test_sample_trace_is_read_without_a_skipped_row():
    from selfspec_cli.trace import read_traces

    read = read_traces([resolve_trace("sample")])
    num = len(read.requests)
    assert num == NUM_SAMPLE, f"{num} of {NUM_SAMPLE}, skipped: {read.skips}"


def test_installed_program_calibrates_demo_on_sample_with_a_preset(
    installed, tiny_checkpoint, tmp_path
):
    """`-m demo -t sample -c quickstart` in a folder of its own; the demo model's place in the
    user's cache holds a tiny checkpoint here, so that nothing is downloaded."""
    from selfspec_cli.engine.demo import FOLDER

    cache = tmp_path / "cache"
    shutil.copytree(tiny_checkpoint, cache / "selfspec" / FOLDER)
    folder = tmp_path / "anywhere"
    folder.mkdir()
    done = subprocess.run(
        [
            installed / "bin" / "selfspec", "calibrate", "-m", "demo", "-t", "sample",
            "-c", "quickstart", "-o", "run", "--limit", "6", "--max-tokens", "4",
            "--draft-lengths", "1,2", "--json", "-q",
        ],
        cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": ""},
    )  # fmt: skip
    assert done.returncode == 3, done.stderr  # a plan, but six requests are no evidence
    assert json.loads(done.stdout)["read"]["read"] == NUM_SAMPLE
    assert (folder / "run" / "report.html").exists()
    assert (folder / "run" / "grid.csv").exists()

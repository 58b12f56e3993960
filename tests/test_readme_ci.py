"""The CI workflow of the README works: its YAML is parsed, its `run` steps are executed.

Every step but the installation is executed for real by `bash -e`, as the runner does, in a folder
with two made-up runs at the paths that the workflow names, measured on another machine with
today's libraries; the demo model's cache holds a random GPT-2. The installation is checked for
syntax and executed too, in a fresh clone and a fresh environment that takes dependencies from this
one, and the program it installs is started.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from report_runs import make_run

from selfspec_cli.engine.demo import FOLDER
from selfspec_cli.provenance import library_fingerprint
from selfspec_cli.storage import read_document, write_document

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = (
    f'#!/bin/sh\nexec {sys.executable} -c "from selfspec_cli.cli.app import main; main()" "$@"\n'
)


def workflow(text):
    """The only YAML block of a README that has jobs."""
    (found,) = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.S) if "jobs:" in block]
    return yaml.safe_load(found)


def steps_of(document):
    """Steps (name, script) that run a script, in order."""
    return [
        (step["name"], step["run"])
        for job in document["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]


WORKFLOW = workflow((ROOT / "README.md").read_text(encoding="utf-8"))
STEPS = steps_of(WORKFLOW)
INSTALL = [(name, script) for name, script in STEPS if "pip install" in script]
OTHERS = [step for step in STEPS if step not in INSTALL]


def run_step(script, folder, **environment):
    """Execute a step as the runner does: bash, ending at the first command that fails."""
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder, env={**os.environ, **WORKFLOW["env"], "GITHUB_ACTIONS": "true", **environment},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout's folder with the two runs that the workflow reads."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "reports").mkdir()
    first, *others = (folder / name for name in WORKFLOW["env"].values())
    make_run(first, {"code": 0.95}, requests_per_task=12, tokens=24)
    _measured_with_todays_libraries(first)
    for other in others:
        shutil.copytree(first, other)
    return folder


def _measured_with_todays_libraries(run):
    manifest = read_document(run / "manifest.json")
    plan = read_document(run / "plan.yaml")
    manifest["provenance"]["libraries"] = library_fingerprint()
    plan["measured_on"]["libraries"] = library_fingerprint()
    write_document(plan, run / "plan.yaml")
    write_document(manifest, run / "manifest.json")


@pytest.fixture(scope="module")
def environment(tmp_path_factory, tiny_checkpoint):
    """`selfspec` on PATH, and the demo model in the cache."""
    place = tmp_path_factory.mktemp("runner")
    program = place / "bin" / "selfspec"
    program.parent.mkdir()
    program.write_text(PROGRAM, encoding="utf-8")
    program.chmod(0o755)
    shutil.copytree(tiny_checkpoint, place / "cache" / "selfspec" / FOLDER)
    return {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(place / "cache"),
        "GITHUB_STEP_SUMMARY": str(place / "summary.md"),
    }


def test_the_workflow_has_what_it_claims():
    assert len(INSTALL) == 1, [name for name, _ in STEPS]
    scripts = " ".join(script for _, script in OTHERS)
    for command in ("verify", "gate", "compare", "doctor", "report"):
        assert f"selfspec {command}" in scripts, f"no step runs {command}"
    uses = [step["uses"] for job in WORKFLOW["jobs"].values() for step in job["steps"]
            if "uses" in step]  # fmt: skip
    assert [use.split("@")[0] for use in uses] == [
        "actions/checkout", "actions/setup-python", "actions/upload-artifact"
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "script"), STEPS, ids=[name for name, _ in STEPS])
def test_every_step_is_a_shell_script(name, script):
    done = subprocess.run(["bash", "-n", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{name}: {done.stderr}"


@pytest.fixture(scope="module")
def ran(checkout, environment):
    """Every step but the installation, executed once, in order."""
    return {name: run_step(script, checkout, **environment) for name, script in OTHERS}


@pytest.mark.parametrize("name", [name for name, _ in OTHERS])
def test_step_runs(name, ran):
    done = ran[name]
    assert done.returncode == 0, f"{name}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr


def test_artefacts_that_are_uploaded_exist(ran, checkout):
    """The files named by the last step are those that the steps before it write."""
    assert len(ran) == len(OTHERS)
    paths = WORKFLOW["jobs"]["gate"]["steps"][-1]["with"]["path"].split()
    missing = [path for path in paths if not (checkout / path).exists()]
    assert not missing, missing
    suite = ElementTree.parse(checkout / "gate.xml").getroot()
    assert len(list(suite.iter("testcase"))) > 5
    assert (checkout / "report" / "report.html").stat().st_size > 10_000


def test_a_gate_that_fails_stops_the_workflow(checkout, environment, tmp_path):
    """The twin: `|| test $? -eq 3` lets a missing verdict pass, no failure and no bad input."""
    (script,) = [script for name, script in OTHERS if name == "Gate"]
    run = Path(shutil.copytree(checkout / WORKFLOW["env"]["RUN"], tmp_path / "run"))
    plan = read_document(run / "plan.yaml")
    plan["measured_on"]["libraries"]["torch"] = "0.0"
    write_document(plan, run / "plan.yaml")
    assert run_step(script, tmp_path, **environment, RUN=str(run)).returncode == 1
    done = run_step(script, tmp_path, **environment, RUN=str(tmp_path / "nowhere"))
    assert done.returncode != 0, done.stdout
    assert "nowhere" in done.stderr


def test_the_installation_in_a_fresh_clone(tmp_path):
    """Only dependencies come from this environment; the package is built and installed anew."""
    # Asked as a program of its own: looking for pip in this process would make setuptools unusable
    # in it, and with it the compiler.
    no_pip = subprocess.run(
        [sys.executable, "-m", "pip", "--version"], check=False, capture_output=True
    )
    if not (ROOT / ".git").exists() or no_pip.returncode:
        pytest.skip("no git checkout here, or no pip")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    mine = [path for path in sys.path if path.endswith("site-packages")]
    (site / "borrowed.pth").write_text("\n".join(mine), encoding="utf-8")
    ((_, script),) = INSTALL
    path = f"{tmp_path / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = run_step(script, clone, PATH=path, PIP_NO_BUILD_ISOLATION="false")
    assert done.returncode == 0, done.stderr
    told = run_step("command -v selfspec && selfspec --version", tmp_path, PATH=path)
    assert told.stdout.split()[0] == str(tmp_path / "venv" / "bin" / "selfspec"), told.stdout
    assert "selfspec" in told.stdout.splitlines()[-1], told.stderr

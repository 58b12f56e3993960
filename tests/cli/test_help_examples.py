"""Every command's help has an example, and every example runs as it stands.

They run in a folder laid out as a user's: runs under `reports/`, the demo model in the cache. What
is put in place of the real thing is listed here and nowhere else:

- the demo model's cache folder holds a random GPT-2 of 4 layers, so `-m demo` and `demo-model`
  need no download;
- `-t sample` is a trace of 12 short requests that fit that model;
- a run that an example reads is one of made-up costs and coins, or, where the command decodes with
  the run's model, what the example of `calibrate` wrote.
"""

import itertools
import re
import shlex
import shutil

import pytest
import typer
from checkpoints import run_cli, trace_rows, write_trace
from report_runs import make_run

from selfspec_cli.cli.app import app
from selfspec_cli.engine.demo import FOLDER

EXAMPLE = re.compile(r"^\s*Example: (selfspec .+?)\s*$", re.MULTILINE)
RUNS = "reports/"
OUTPUTS = ("-o", "--out", "--junit")
DECODES = ("bench",)
"""Commands that need the run's own model, not made-up numbers."""
GOOD = {"calibrate": {0, 3}, "gate": {0, 1, 3}, "compare": {0, 1, 3}}
"""Exit codes that answer the question; 0 alone elsewhere. 2 is never one."""


def commands_of(program: typer.Typer) -> dict[str, str]:
    """Help text by command; a group's commands are named `group command`."""
    found = {}
    whole = typer.main.get_command(program)
    for name, command in whole.commands.items():
        inner = getattr(command, "commands", None)
        if inner is None:
            found[name] = command.help or ""
        else:
            found |= {f"{name} {child}": own.help or "" for child, own in inner.items()}
    return found


def examples_of(help_text: str) -> list[str]:
    """Examples of one command, each a whole command line."""
    return EXAMPLE.findall(help_text)


COMMANDS = commands_of(app)
EXAMPLES = [(name, line) for name, text in COMMANDS.items() for line in examples_of(text)]


def inputs_of(argv: list[str]) -> list[str]:
    """Run directories that a command line reads: under `reports/`, and not where it writes."""
    before = [None, *argv]
    return [word for at, word in enumerate(argv)
            if word.startswith(RUNS) and before[at] not in OUTPUTS]  # fmt: skip


@pytest.fixture(scope="module")
def cache(tmp_path_factory, tiny_checkpoint):
    """A user's cache folder that holds a small model under the demo model's name."""
    folder = tmp_path_factory.mktemp("cache")
    shutil.copytree(tiny_checkpoint, folder / "selfspec" / FOLDER)
    return folder


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    return write_trace(
        tmp_path_factory.mktemp("traces") / "sample.jsonl",
        trace_rows(12, max_tokens=8, temperature=0.0),
    )


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "made-up")


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory, cache, sample):
    """What the example of `calibrate` leaves; the folder is that of a user."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "reports").mkdir()
    (line,) = examples_of(COMMANDS["calibrate"])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(cache))
        code = run_cli(*words_of(line, sample))
    assert code in GOOD["calibrate"], f"{line}: exit code {code}"
    return folder / "reports" / "quickstart"


@pytest.fixture
def home(tmp_path, monkeypatch, cache):
    """The folder an example is typed in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    (tmp_path / "reports").mkdir()
    return tmp_path


def words_of(line, sample):
    """Words of an example after `selfspec`, the sample trace replaced."""
    words = shlex.split(line, comments=True)[1:]
    return [str(sample) if word == "sample" else word for word in words]


def test_every_command_has_an_example():
    without = [name for name, text in COMMANDS.items() if not examples_of(text)]
    assert without == [], f"{len(without)} of {len(COMMANDS)} commands have no example"
    assert len(COMMANDS) >= 6, list(COMMANDS)


@pytest.mark.parametrize("width", ["80", "120"])
def test_help_flows_with_the_screen(width, capsys, monkeypatch):
    """Twin of a docstring shown as it is written: "...comes first; writes nothing. A run" and a
    line of two words. Every line of a paragraph but its last must have no room for the next word.
    """
    monkeypatch.setenv("COLUMNS", width)
    for name in COMMANDS:
        assert run_cli(*name.split(), "--help") == 0
        lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
        prose = lines[: next(at for at, line in enumerate(lines) if line.startswith("╭"))]
        for line, following in itertools.pairwise(prose):
            if line and following:
                word = following.split()[0]
                room = int(width) - 2 - len(line)
                assert len(word) + 1 > room, f"{name}: {line!r} has room for {word!r}"


def test_examples_call_their_own_command():
    wrong = [line for name, line in EXAMPLES if not line.startswith(f"selfspec {name}")]
    assert wrong == []


def test_a_command_without_example_would_be_seen():
    """The twin: an example that is only promised, or of a command that is none, is not found."""
    program = typer.Typer()

    @program.command()
    def told() -> None:
        """Do it.

        Example: selfspec told --now
        """

    @program.command()
    def silent() -> None:
        """Do it too. Example: soon."""

    found = {name: examples_of(text) for name, text in commands_of(program).items()}
    assert found == {"told": ["selfspec told --now"], "silent": []}


def test_an_example_that_does_not_run_would_be_seen(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_cli("report", "reports/nowhere") == 2
    assert run_cli("report", "--no-such-flag") == 2
    assert "no-such-flag" in capsys.readouterr().err.lower()


@pytest.mark.parametrize(("name", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_example_runs(name, line, home, capsys, request, sample):
    if name == "calibrate":  # run once, for those that need what it leaves
        run = request.getfixturevalue("calibrated")
        assert {"plan.yaml", "report.html"} <= {file.name for file in run.iterdir()}
        return
    argv = words_of(line, sample)
    for run in dict.fromkeys(inputs_of(argv)):  # compare may name one twice
        decodes = name.split()[0] in DECODES
        source = request.getfixturevalue("calibrated" if decodes else "made_up")
        shutil.copytree(source, home / run)
    code = run_cli(*argv)
    said = capsys.readouterr()
    assert code in GOOD.get(name.split()[0], {0}), f"exit code {code}: {said.err[-2000:]}"
    assert "Traceback" not in said.err
    assert (said.out + said.err).strip(), "an example that says nothing teaches nothing"


def test_b09_bench_invents_no_text(home, calibrated, capsys):
    """B09: an empty trace is an input error, named; nothing is decoded in its place."""
    (home / "empty.jsonl").write_text("\n", encoding="utf-8")
    code = run_cli("bench", calibrated, "-m", "demo", "-t", "empty.jsonl", "-o", "out")
    said = capsys.readouterr()
    assert code == 2, said.out
    assert said.out == ""
    assert "empty.jsonl" in said.err, said.err
    assert not (home / "out" / "bench.csv").exists()


def test_every_command_is_in_the_table_of_the_readme(repo):
    table = (repo / "README.md").read_text(encoding="utf-8")
    missing = [name for name in COMMANDS if f"| `selfspec {name}" not in table]
    assert missing == []

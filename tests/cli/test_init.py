"""`selfspec init`: the file it writes is a config, and nothing of the user's is lost."""

import os
import re
import subprocess
import sys
import time

import pytest
import yaml
from checkpoints import run_cli

from selfspec_cli.config import load_config
from selfspec_cli.errors import ConfigError

SET = {"model": "m/n", "traces": ["a.jsonl"], "out": "run"}


def _set_keys(text: str, values=SET) -> str:
    """The file as a person leaves it who took three # away and wrote values."""
    for key, value in values.items():
        text, count = re.subn(rf"^# {key}: .*?( +#|$)", f"{key}: {value} #", text, flags=re.M)
        assert count == 1, f"{count} lines to set {key} on"
    return text


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_file_loads_back_as_the_defaults_once_three_keys_are_set(here, capsys):
    assert run_cli("init", "mine.yaml") == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert "selfspec calibrate -c ./mine.yaml" in told.err
    file = here / "mine.yaml"
    file.write_text(_set_keys(file.read_text(encoding="utf-8")), encoding="utf-8")
    assert load_config("./mine.yaml") == load_config(None, SET)


def test_file_as_written_takes_the_three_keys_from_flags(here):
    run_cli("init", "mine.yaml")
    assert load_config("./mine.yaml", SET) == load_config(None, SET)
    with pytest.raises(ConfigError, match="model is not given"):
        load_config("./mine.yaml")


def test_every_key_of_the_defaults_is_there_with_a_comment(here, repo):
    run_cli("init", "mine.yaml")
    text = (here / "mine.yaml").read_text(encoding="utf-8")
    default = (repo / "configs" / "default.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(text) == yaml.safe_load(default)
    bare = [line for line in text.splitlines() if line.strip() and "#" not in line]
    assert bare == [], f"lines without a comment: {bare}"
    assert text.splitlines()[1].endswith("selfspec calibrate -c ./mine.yaml")
    assert "-c default" not in text, "the head still tells how to use the preset"


def test_minus_writes_to_stdout_and_makes_no_file(here, capsys):
    assert run_cli("init", "-") == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(_set_keys(text))["model"] == "m/n"
    assert list(here.iterdir()) == []


def test_existing_file_is_kept_without_force(here, capsys):
    file = here / "mine.yaml"
    file.write_text("limit: 5\n", encoding="utf-8")
    assert run_cli("init", "mine.yaml") == 2
    assert "mine.yaml: exists already" in (told := capsys.readouterr().err)
    assert "--force" in told
    assert file.read_text(encoding="utf-8") == "limit: 5\n"
    assert run_cli("init", "mine.yaml", "--force") == 0
    assert yaml.safe_load(file.read_text(encoding="utf-8"))["limit"] == 300
    assert [path.name for path in here.iterdir()] == ["mine.yaml"], "something else was left"


@pytest.mark.parametrize(
    ("name", "says"), [("none/mine.yaml", "Create the folder first"), ("", "is a folder")]
)
def test_place_that_takes_no_file_is_one_message(name, says, here, capsys):
    assert run_cli("init", name) == 2
    told = capsys.readouterr().err
    assert says in told
    assert "Traceback" not in told
    assert list(here.iterdir()) == []


def test_file_called_like_a_preset_is_named_as_a_file(here, capsys):
    """`-c quickstart` is the preset; the advice must reach the file."""
    assert run_cli("init", "quickstart") == 0
    assert "-c ./quickstart" in capsys.readouterr().err
    assert load_config("./quickstart", SET).temperatures == (0.0, 0.7)
    assert load_config("quickstart", SET).temperatures == "trace"


def test_missing_argument_is_wrong_usage(here, capsys):
    assert run_cli("init") == 2
    assert "FILE" in capsys.readouterr().err


def test_help_shows_one_command_that_runs(here, capsys):
    assert run_cli("init", "--help") == 0
    (argument,) = re.findall(r"Example: selfspec init (\S+)", capsys.readouterr().out)
    assert run_cli("init", argument) == 0
    assert (here / argument).is_file()


def test_it_starts_in_a_second_without_torch(here, repo):
    """Best of three: a busy machine makes single starts slow, the work itself is what counts."""
    code = (
        "import sys; from selfspec_cli.cli.app import _run; code = _run(['init', '-']);"
        "heavy = {'torch', 'transformers', 'pandas', 'numpy'} & set(sys.modules);"
        "print('loaded', *heavy, file=sys.stderr); sys.exit(code)"
    )
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(repo)},
            capture_output=True,
            text=True,
            check=False,
        )
        seconds.append(time.perf_counter() - begin)
        assert (done.returncode, done.stderr) == (0, "loaded\n")
        assert "exit_layers: 30%-80%" in done.stdout
    assert min(seconds) < 1, f"best of 3 starts took {min(seconds):.2f} s"

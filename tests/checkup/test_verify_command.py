"""`selfspec verify`: what it prints, its exit codes, how it refuses."""

import json

import pytest
from checkpoints import random_model, run_cli, save_checkpoint

from selfspec_cli.checkup import cache, law, layers, rows
from selfspec_cli.checkup.greedy import GREEDY, LIBRARY
from selfspec_cli.engine.view import LayerView

TITLES = [
    part.title
    for part in (layers.SELF_CHECK, layers.ENGINE, cache.PART, GREEDY, LIBRARY, rows.PART, law.PART)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    model = random_model("gpt2", gain=8.0, num_hidden_layers=2)
    return save_checkpoint(model, tmp_path_factory.mktemp("verify") / "gpt2")


def test_a_row_a_part_the_verdict_and_the_gpu_line(folder, capsys):
    code = run_cli("verify", "-m", folder, "--device", "cpu", "--dtype", "float32")
    out, err = capsys.readouterr()
    assert code == 0, out + err
    for title in TITLES:
        (row,) = [line for line in out.splitlines() if line.strip().startswith(title)]
        assert "proved" in row, row
    assert "proved: no difference in" in out
    assert "gpt2, 2 layers, float32 on cpu, eager engine, seed 0" in out
    assert "GPU: untested on GPU (no run of selfspec has decoded on one yet)" in out
    assert f"{GREEDY.title}: started" in err, "progress belongs on stderr"


def test_json_is_one_strict_document_and_quiet_is_quiet(folder, capsys, monkeypatch):
    """On a broken twin, whose undefined numbers are null and whose exit code is 1."""
    monkeypatch.setattr(LayerView, "head", lambda self, hidden: self._head(hidden).float())
    code = run_cli("verify", "-m", folder, "--device", "cpu", "--json", "-q")
    out, err = capsys.readouterr()
    assert code == 1
    document = json.loads(out, parse_constant=pytest.fail)
    assert document["schema_version"] >= 1
    assert document["outcome"] == "differs"
    first, *others = document["parts"]
    assert first["name"] == "self_check"
    assert "exit layer" in first["faults"][0]
    assert {part["outcome"] for part in others} == {"refused"}
    assert {part["seconds"] for part in others} == {None}
    assert "started" not in err


def test_what_differs_is_printed_with_place_and_amount(folder, capsys, monkeypatch):
    monkeypatch.setattr(LayerView, "head", lambda self, hidden: self._head(hidden).float())
    assert run_cli("verify", "-m", folder, "--device", "cpu", "-q") == 1
    out = capsys.readouterr().out
    assert "differs, layers = the model's: gpt2: logits at exit layer" in out
    assert "differs: 1 faults in self_check; not exact here" in out
    assert "not tried: the layers are not the model's" in out
    assert "proved" not in out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--dtype", "float8"), "unknown dtype 'float8'"),
        (("--engine", "fast"), "unknown engine 'fast'"),
        (("--device", "abacus"), "unknown device 'abacus'"),
        (("--seed", "-1"), "--seed"),
    ],
    ids=["a-dtype", "an-engine", "a-place", "a-seed"],
)
def test_a_wrong_option_is_refused(folder, capsys, options, says):
    assert run_cli("verify", "-m", folder, *options) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert "Traceback" not in err


@pytest.mark.parametrize("config", ['{"model_type": "mamba"}', "{", '{"model_type": "llama"}'])
def test_a_foreign_or_broken_model_is_refused_in_one_message(tmp_path, capsys, config):
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    assert run_cli("verify", "-m", tmp_path, "--device", "cpu", "-q") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("error: ") == 1
    assert str(tmp_path) in err
    assert "Traceback" not in err


def test_help_has_an_example_and_the_exit_codes(capsys):
    assert run_cli("verify", "--help") == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Example: selfspec verify -m demo" in said
    assert "0 proved, 1 differs (where, by how much), 2 refused" in said

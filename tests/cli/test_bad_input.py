"""One clear message, exit code 2, nothing half-written: every wrong input of `calibrate`."""

import gzip
import json
import shutil

import pytest
from checkpoints import run_cli, trace_rows, write_trace

LAYERS = ("--exit-layers", "1-3", "--draft-lengths", "1,2")


@pytest.fixture
def try_to(tmp_path, tiny_checkpoint, capsys):
    """Run calibrate with a good trace, model and folder unless told otherwise; returns stderr.

    Checks what holds for every wrong input: code 2, one message, no traceback, no run folder.
    """
    trace = write_trace(tmp_path / "good.jsonl", trace_rows(4, max_tokens=6))
    run = tmp_path / "run"

    def attempt(*more, model=tiny_checkpoint, traces=trace, out=run):
        before = sorted(tmp_path.rglob("*"))
        capsys.readouterr()
        code = run_cli("calibrate", "-m", model, "-t", traces, "-o", out, *LAYERS, *more)
        stdout, stderr = capsys.readouterr()
        assert code == 2, f"exit code {code}: {stderr}"
        assert stdout == "", "results went to stdout although there are none"
        assert "Traceback" not in stderr
        assert stderr.lower().count("error:") + stderr.count("╭─ Error") == 1, stderr
        assert not run.exists(), f"half-written: {sorted(run.iterdir())}"
        assert sorted(tmp_path.rglob("*")) == before, "files appeared or went"
        return " ".join(stderr.replace("│", " ").split())

    return attempt


def test_the_good_input_is_good(tmp_path, tiny_checkpoint, capsys):
    """Control: without anything wrong the same command gets as far as its estimate."""
    trace = write_trace(tmp_path / "good.jsonl", trace_rows(4, max_tokens=6))
    code = run_cli(
        "calibrate", "-m", tiny_checkpoint, "-t", trace, "-o", tmp_path / "run", *LAYERS,
        "--dry-run",
    )  # fmt: skip
    assert code == 0, capsys.readouterr().err


def test_a_missing_trace(try_to, tmp_path):
    said = try_to(traces=tmp_path / "gone.jsonl")
    assert "gone.jsonl" in said
    assert "no such trace file" in said


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"\n\n  \n", "no"),
        (gzip.compress(b'{"id":"a","prompt":"b"}\n' * 50)[:-12], "cut off"),
        (bytes(range(256)) * 8, ""),
        (b"\x93NUMPY\x01\x00v\x00" + bytes(200), ""),
    ],
    ids=["empty", "blank", "torn", "binary", "array"],
)
def test_a_trace_that_holds_nothing(try_to, tmp_path, data, says):
    (tmp_path / "bad.jsonl").write_bytes(data)
    said = try_to(traces=tmp_path / "bad.jsonl")
    assert "bad.jsonl" in said, f"the file is not named: {said}"
    assert says in said, said


def test_a_misspelt_key_of_the_config(try_to, tmp_path):
    (tmp_path / "c.yaml").write_text("limit: 3\ndraft_lenghts: 1-4\n")
    said = try_to("-c", tmp_path / "c.yaml")
    assert "c.yaml:2" in said
    assert "unknown key 'draft_lenghts'" in said
    assert "Did you mean draft_lengths?" in said


def test_a_misspelt_flag(try_to):
    said = try_to("--draft-lenghts", "1-4")
    assert "--draft-lenghts" in said
    assert "--draft-lengths" in said, "the near flag is not named"


def test_a_flag_is_never_completed_from_its_first_letters(try_to):
    assert "--draft-len" in try_to("--draft-len", "1-4")


def test_an_unknown_family(try_to, tmp_path, tiny_checkpoint):
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "mamba")
    config = {"model_type": "mamba", "num_hidden_layers": 4, "hidden_size": 16, "vocab_size": 264}
    (folder / "config.json").write_text(json.dumps(config))
    said = try_to(model=folder)
    assert "'mamba'" in said
    assert "llama" in said, "the supported families are not listed"


def test_a_family_that_even_the_library_does_not_know(try_to, tmp_path, tiny_checkpoint):
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "new")
    (folder / "config.json").write_text(json.dumps({"model_type": "brandnew"}))
    said = try_to(model=folder)
    assert "brandnew" in said
    assert str(folder) in said


@pytest.mark.parametrize(
    ("flag", "value", "known"),
    [
        ("--continuations", "foo", "regenerate"),
        ("--sweep", "foo", "decode"),
        ("--engine", "foo", "eager"),
        ("--device", "tpu", "cpu"),
        ("--dtype", "int3", "bfloat16"),
    ],
)
def test_an_unknown_method(try_to, flag, value, known):
    said = try_to(flag, value)
    assert flag in said
    assert value in said
    assert known in said, "what is known is not named"


def test_a_model_of_one_layer(try_to, tmp_path, tiny_checkpoint):
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "one")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"n_layer": 1}))
    said = try_to("--exit-layers", "30%-80%", model=folder)
    assert "1 decoder layer" in said
    assert str(folder) in said


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        ("10%-20%", "selects no layer"),
        ("4", "outside 1..3"),
        ("7-9", "outside 1..3"),
        ("0", "outside 1.."),
        ("-1", "not a range"),
        ("3-1", "runs nowhere"),
        ("some", "not a range"),
    ],
)
def test_an_exit_range_that_selects_nothing(try_to, layers, says):
    said = try_to("--exit-layers", layers)
    assert says in said, said


@pytest.mark.parametrize(
    ("lengths", "says"), [("0", "outside 1..64"), ("0-4", "outside 1..64"), ("2,x", "not a range")]
)
def test_a_draft_of_no_tokens(try_to, lengths, says):
    said = try_to("--draft-lengths", lengths)
    assert says in said
    assert "--draft-lengths" in said


@pytest.mark.parametrize("temperature", ["-0.5", "nan", "inf", "0,nan", "warm"])
def test_a_temperature_that_is_none(try_to, temperature):
    said = try_to("--temperatures", temperature)
    assert "--temperatures" in said
    assert temperature.removeprefix("0,") in said


def test_cells_at_the_traces_own_temperatures_cannot_all_be_decoded(try_to):
    said = try_to("--sweep", "decode", "--temperatures", "trace")
    assert "--temperatures trace" in said
    assert "--sweep walk" in said


@pytest.mark.parametrize("size", ["0", "-2", "1,1000", "large", "2.5"])
def test_a_batch_size_that_cannot_be_priced(try_to, size):
    """A40: refused before any model work."""
    said = try_to("--batch-size", size)
    assert "--batch-size" in said
    assert "outside 1..256" in said or "is not a range" in said, said


@pytest.mark.parametrize("rule", ["argmax", "typical"])
def test_a_lossy_rule_is_refused_with_its_reason(try_to, tmp_path, rule):
    (tmp_path / "c.yaml").write_text(f"limit: 3\nacceptance: {rule}\n")
    said = try_to("-c", tmp_path / "c.yaml")
    assert "c.yaml:2" in said
    assert "changes what the model writes" in said
    assert "blander" in said, "it does not say why"
    assert "rejection" in said


def test_a_demo_model_that_was_never_fetched(try_to, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said = try_to(model="demo")
    assert "-m demo" in said
    assert "selfspec demo-model" in said


def test_a_model_folder_that_is_not_there(try_to, tmp_path):
    said = try_to(model=tmp_path / "nothing")
    assert "no such folder" in said
    assert "nothing" in said


def test_nothing_given(capsys):
    assert run_cli("calibrate") == 2
    said = capsys.readouterr().err
    for wanted in ("-m:", "model", "traces", "out"):
        assert wanted in said, said


def test_an_unknown_preset(try_to):
    said = try_to("-c", "quickstrat")
    assert "quickstrat" in said
    assert "quickstart" in said, "the near preset is not named"


@pytest.mark.parametrize(
    ("flag", "value"), [("--limit", "0"), ("--max-tokens", "0"), ("--seed", "-1")]
)
def test_counts_out_of_range(try_to, flag, value):
    said = try_to(flag, value)
    assert flag in said
    assert value in said


def test_text_where_a_number_is_meant(try_to):
    assert "--limit" in try_to("--limit", "many")


def test_recorded_text_that_the_trace_does_not_hold(try_to):
    said = try_to("--continuations", "recorded", "--dry-run")
    assert "--continuations recorded" in said
    assert "auto" in said


def test_chats_for_a_tokenizer_without_a_template(try_to, tmp_path, tiny_checkpoint):
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "base")
    for name in ("chat_template.jinja",):
        (folder / name).unlink(missing_ok=True)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    chats = [{"id": "a", "messages": [{"role": "user", "content": "hello"}]}]
    said = try_to(model=folder, traces=write_trace(tmp_path / "chat.jsonl", chats))
    assert "no chat template" in said
    assert "--chat-template FILE" in said

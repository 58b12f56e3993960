"""Where a fast engine or a device cannot be had: one notice or one message, the right exit code."""

import os
import shutil
import subprocess
import sys
import warnings

import pytest
import torch
from checkpoints import random_model, run_cli, save_checkpoint

from selfspec_cli.cli import app
from selfspec_cli.cost import alone
from selfspec_cli.engine import compiled, layer_programs
from selfspec_cli.engine.decoder import Decoder
from selfspec_cli.engine.graphs import GraphNotice

FALLBACK = "decoding with the library's layers over the linear kernel: compiled layers cannot"
COST = ("--only", "cost", "--contexts", "32", "--exit-layers", "1", "--draft-lengths", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    model = random_model("llama", num_hidden_layers=2)
    return save_checkpoint(model, tmp_path_factory.mktemp("fallbacks") / "llama")


def _no_compiler(*_args, **_options):
    raise RuntimeError("No working C++ compiler found in config: (None, 'g++')")


def _no_memory(*_args, **_options):
    raise MemoryError


@pytest.mark.parametrize("quiet", [(), ("-q",), ("-q", "--json")], ids=["loud", "quiet", "json"])
@pytest.mark.parametrize(
    ("fails", "why"),
    [(_no_compiler, "No working C++ compiler"), (_no_memory, "MemoryError")],
    ids=["compiler", "memory"],
)
def test_a_compiler_that_fails_is_told_once_and_the_run_goes_on(
    folder, capsys, monkeypatch, fails, why, quiet
):
    monkeypatch.setattr(layer_programs.torch._inductor, "standalone_compile", fails)
    asked = ("-m", folder, "--device", "cpu", "--engine", "compiled")
    assert run_cli("bench", *asked, *COST, "--temperatures", "0", *quiet) == 0
    out, err = capsys.readouterr()
    assert err.count(FALLBACK) == 1, err
    assert why in err
    assert out.strip(), "the run must go on to its result"
    if quiet:
        assert len(err.strip().splitlines()) == 1, err


def test_neither_compiler_nor_kernel_is_one_notice_too(folder, capsys, monkeypatch):
    monkeypatch.setattr(layer_programs.torch._inductor, "standalone_compile", _no_compiler)
    monkeypatch.setattr(compiled, "kernel", lambda: None)
    asked = ("-m", folder, "--device", "cpu", "--engine", "compiled", "-q")
    assert run_cli("bench", *asked, *COST, "--temperatures", "0") == 0
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert said.startswith("decoding with the eager engine: compiled layers cannot be used here")


@pytest.mark.parametrize("device", ["meta", "mps", "xpu", "cuda:99"])
@pytest.mark.parametrize(
    "command",
    [("verify",), ("bench", "--only", "cost", "--contexts", "32")],
    ids=["verify", "bench"],
)
def test_a_device_that_is_not_here_is_refused(folder, capsys, device, command):
    kind = getattr(torch, device.partition(":")[0], None)
    if kind is not None and getattr(kind, "is_available", lambda: False)() and ":" not in device:
        pytest.skip(f"this machine has {device}")
    assert run_cli(*command, "-m", folder, "--device", device, "-q") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: --device: ")
    assert len(err.strip().splitlines()) == 2, "a message and a hint"


def test_a_compile_cache_that_cannot_be_made_is_refused(folder, tmp_path):
    """Importing the compiler makes the folder, so this takes a process of its own."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    place = tmp_path / "file" / "programs"
    program = "from selfspec_cli.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "verify", "-m", str(folder), "-q"],
        env={**os.environ, app.COMPILE_CACHE: str(place)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"error: {app.COMPILE_CACHE}: ")
    assert "Traceback" not in done.stderr


def test_only_our_own_warnings_reach_the_screen(capsys, monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", app._show_own)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = app._show_own
        warnings.warn("distutils was imported before setuptools", UserWarning, stacklevel=1)
        warnings.warn("decoding with the eager engine from here on", GraphNotice, stacklevel=1)
    assert capsys.readouterr().err == "decoding with the eager engine from here on\n"


@pytest.mark.parametrize("size", [0, 3000])
def test_a_cut_weight_file_is_refused(folder, tmp_path, capsys, size):
    """As an interrupted download leaves it."""
    place = shutil.copytree(folder, tmp_path / "cut")
    with (place / "model.safetensors").open("r+b") as file:
        file.truncate(size)
    assert run_cli("verify", "-m", place, "--device", "cpu", "-q") == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: -m {place}: transformers cannot load the model here")


SHORT = "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"


@pytest.mark.parametrize("command", [("verify",), ("bench", *COST)], ids=["verify", "bench"])
def test_too_little_memory_is_a_message_and_no_finding(folder, capsys, monkeypatch, command):
    """A decoder that ran out of memory was not shown to be wrong: 2, not 1."""

    def twin(*_args, **_options):
        raise RuntimeError(SHORT)

    monkeypatch.setattr(Decoder, "ar_step", twin)
    monkeypatch.setattr(alone, "read_bandwidth", twin)
    assert run_cli(*command, "-m", folder, "--device", "cpu", "-q") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "too little memory" in err
    assert "can't allocate memory: you tried to allocate 9 bytes" in err
    assert len(err.strip().splitlines()) == 2, "a message and a hint"


def test_another_error_of_the_program_is_not_called_short_memory(folder, monkeypatch):
    def twin(*_args, **_options):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(alone, "read_bandwidth", twin)
    with pytest.raises(RuntimeError, match="shapes differ"):
        run_cli("bench", *COST, "-m", folder, "--device", "cpu", "-q")

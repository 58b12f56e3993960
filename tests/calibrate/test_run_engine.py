"""The engine of a run: recorded in every file that costs depend on, and never mixed."""

import pandas as pd
import pytest
import torch
import yaml
from calibrate_helpers import FINISHED, LIGHT, command, manifest
from checkpoints import run_cli

import selfspec_cli.calibrate.observe_stage as stage
from selfspec_cli.engine.load import LoadOptions, load_model
from selfspec_cli.storage import read_table

compiler = torch._inductor.standalone_compile


def no_compiler(*_, **__):
    raise RuntimeError("no compiler")


def interrupted_after(batches: int):
    real, seen = stage.observe, []

    def observe(*arguments):
        if len(seen) == batches:
            raise KeyboardInterrupt
        seen.append(1)
        return real(*arguments)

    return observe


def run_with(monkeypatch, compile_program, argv) -> int:
    with monkeypatch.context() as patch:
        patch.setattr(torch._inductor, "standalone_compile", compile_program)
        return run_cli(*argv)


def test_a_run_keeps_the_engine_it_began_with(
    tiny_checkpoint, long_trace, tmp_path, monkeypatch, capsys
):
    """Begun with compiled layers: refused without a compiler, ended with one, told everywhere."""
    argv = command(
        tiny_checkpoint,
        long_trace,
        tmp_path,
        "--engine",
        "compiled",
        "--limit",
        6,
        config_text=LIGHT,
    )
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(stage, "observe", interrupted_after(1))
        assert run_with(patch, compiler, argv) == 130
    assert manifest(run)["engine"] == "compiled"
    kept = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    capsys.readouterr()
    assert run_with(monkeypatch, no_compiler, argv) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "begun with the compiled engine, and this is the linear_kernel one" in told
    assert "--fresh" in told
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == kept

    assert run_with(monkeypatch, compiler, argv) in FINISHED
    assert manifest(run)["notices"] == []
    costs = read_table(run / "cost.csv")
    assert set(costs["engine"]) == {"compiled"}
    plan = yaml.safe_load((run / "plan.yaml").read_text(encoding="utf-8"))
    assert plan["measured_on"]["engine"] == "compiled"
    assert plan["measured_on"]["costs"]["engine"] == "compiled"

    mixed = tmp_path / "mixed.csv"
    pd.concat([costs, costs.assign(engine="eager")]).to_csv(mixed, index=False)
    assert run_cli("plan", run, "--cost", mixed, "-o", tmp_path / "plan.yaml") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "several engines were timed: compiled, eager" in told
    assert not (tmp_path / "plan.yaml").exists()


@pytest.mark.parametrize("engine", ["auto", "eager"])
def test_a_small_model_is_not_compiled_unless_asked(tiny_checkpoint, engine, monkeypatch):
    monkeypatch.setattr(torch._inductor, "standalone_compile", no_compiler)
    loaded = load_model(LoadOptions(model=str(tiny_checkpoint), engine=engine, rows=8))
    assert (loaded.view.engine, loaded.notices) == ("eager", ())


def test_a_fallback_is_one_notice_of_the_loaded_model(tiny_checkpoint, monkeypatch):
    monkeypatch.setattr(torch._inductor, "standalone_compile", no_compiler)
    told = []
    loaded = load_model(
        LoadOptions(model=str(tiny_checkpoint), engine="compiled"), told=lambda: told.append(1)
    )
    assert loaded.view.engine == "linear_kernel"
    assert len(told) == 1, f"{len(told)} programs were begun"
    assert len(loaded.notices) == 1, loaded.notices
    assert "no compiler" in loaded.notices[0]

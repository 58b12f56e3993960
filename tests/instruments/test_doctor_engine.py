"""Faults injected into the engine are named by `doctor`; a sound engine is accused of none.

Every run is a real calibration of a tiny model whose late layers add little, on a virtual clock.
"""

import faulty_engine
import pytest
import torch
from checkpoints import random_model, run_cli, save_checkpoint, trace_rows, write_trace
from damped_twin import damp
from faulty_engine import Faulty

from selfspec_cli.calibrate.progress import Silent
from selfspec_cli.calibrate.run import calibrate, prepare_run
from selfspec_cli.config import load_config
from selfspec_cli.errors import ExactnessError
from selfspec_cli.report.diagnose import diagnose

CONFIG = """
exit_layers: 1,2
draft_lengths: 2,3
temperatures: 0
engine: eager
context_edges: [0]
cost: {blocks: 10, warmup: 1, contexts: [8, 100]}
plan: {min_requests: 10}
confirm: {cells: 2, requests: 6, min_tokens: 8}
"""
FAULTS = {
    "exits_skip_the_norm": "chance_level",
    "rollback_off_by_one": "greedy_mismatch",
    "drafts_start_one_token_early": "accepts_fewer",
    "head_outweighs_the_layers": "draft_step_slow",
    "slow_verification": "verify_slow",
    "slow_rounds": "overhead_share",
    "slow_draft_steps": "draft_step_slow",
    "slower_when_decoding": "pace_changed",
}


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """A model whose exits agree with it in 19 of 20 tokens, and 12 requests of one kind."""
    folder = tmp_path_factory.mktemp("faults")
    model = random_model()
    with torch.no_grad():  # signs that only the norm undoes: without it exits know nothing
        signs = torch.randn(model.transformer.ln_f.weight.shape, generator=seeded()).sign()
        model.transformer.ln_f.weight.mul_(signs)
    damp(model, 1, 0.03)
    rows = [{**row, "task": "story"} for row in trace_rows(12, max_tokens=24)]
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    save_checkpoint(model, folder / "model")
    return folder, write_trace(folder / "t.jsonl", rows)


def seeded():
    return torch.Generator().manual_seed(5)


def measured(material, fault, monkeypatch, **options):
    """Folder of the run that calibrate made with a faulty engine."""
    folder, trace = material
    out = folder / "-".join([fault, *options])
    given = {"model": str(folder / "model"), "traces": [str(trace)], "out": str(out), **options}
    with monkeypatch.context() as patch:
        getattr(faulty_engine, fault)(Faulty(patch))
        prepared = prepare_run(load_config(str(folder / "config.yaml"), given))
        try:
            calibrate(prepared, Silent())
        except ExactnessError:
            assert fault == "rollback_off_by_one", "greedy output differed"
    return out


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_engine_is_named(material, fault, monkeypatch):
    found = diagnose(measured(material, fault, monkeypatch)).findings
    codes = {finding.code: finding.evidence for finding in found}
    assert FAULTS[fault] in codes, codes
    others = set(FAULTS.values()) - {FAULTS[fault]}
    assert not others & set(codes), f"{fault} is taken for {others & set(codes)}: {codes}"


def test_a_sound_engine_is_not_accused(material, monkeypatch):
    found = diagnose(measured(material, "none", monkeypatch)).findings
    expected = {"longer_drafts", "one_batch_size"}  # 97 % accepted at k = 3, batch 1 only
    assert {finding.code for finding in found} <= expected, found


def test_sampling_is_not_accused(material, monkeypatch):
    """Free decodes draw their own tokens, so they accept more or less than the walk by chance;
    the false alarm of that comparison is 0.1 %, with this seed there is none."""
    run = measured(material, "none", monkeypatch, temperatures="0.7")
    found = {finding.code: finding.evidence for finding in diagnose(run).findings}
    assert not set(FAULTS.values()) & set(found), found
    assert "sampled_law_differs" not in found


def test_a_run_that_differed_is_read_without_a_plan(material, monkeypatch, capsys):
    run = measured(material, "rollback_off_by_one", monkeypatch)
    assert not (run / "plan.yaml").exists(), "the premise: the run ended before its plan"
    capsys.readouterr()
    assert run_cli("doctor", run, "-q") == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("1. Greedy output differs from plain decoding. [greedy_mismatch]")
    assert "incomplete" in shown.err
    assert not (run / "plan.yaml").exists(), "reading wrote a plan"

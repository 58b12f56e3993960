"""Input cases that only a whole run can decide; ids of the cases stand in the names."""

import json
import random
import shutil

import pytest
from calibrate_helpers import FINISHED, command, manifest
from checkpoints import random_model, run_cli, save_checkpoint, trace_rows, write_trace

from selfspec_cli.analysis.confirmation import summarise_confirm
from selfspec_cli.plan.files import read_plan
from selfspec_cli.storage import read_table

SMALL = """
exit_layers: 1,3
draft_lengths: 2
confirm: {cells: 4, requests: 2, min_tokens: 4}
"""


def calibrate(model, trace, folder, config=SMALL, *more):
    """Run; returns the run's folder."""
    folder.mkdir(exist_ok=True)
    assert run_cli(*command(model, trace, folder, *more, config_text=config)) in FINISHED
    return folder / "run"


def pooled(run, temperature):
    grid = read_table(run / "grid.csv")
    return grid.loc[(grid["evidence"] == "all") & (grid["temperature"] == temperature)]


def test_b09_random_prompts_leave_the_others_acceptance_alone(tiny_checkpoint, tmp_path):
    """B09: 200 random bytes as prompts beside ordinary rows. Each task's numbers come from its own
    replayed rows: the ordinary ones are the same with and without the random ones beside them.
    """
    rng = random.Random(3)
    ordinary = [row | {"task": "control"} for row in trace_rows(5, max_tokens=10)]
    noise = [
        {"id": f"noise{i}", "task": "noise", "max_tokens": 10,
         "prompt_token_ids": [rng.randrange(4, 260) for _ in range(200)]}
        for i in range(3)
    ]  # fmt: skip
    alone = calibrate(tiny_checkpoint, write_trace(tmp_path / "a.jsonl", ordinary), tmp_path / "a")
    both = calibrate(
        tiny_checkpoint, write_trace(tmp_path / "b.jsonl", [*ordinary, *noise]), tmp_path / "b"
    )
    rates = ["exit_layer", "temperature", "acceptance_rate_tested", "block_efficiency"]
    frames = []
    for run in (alone, both):
        grid = read_table(run / "grid.csv").query("task == 'control' and evidence == 'own'")
        frames.append(grid[rates].reset_index(drop=True))
    assert len(frames[0]) == 4
    assert (frames[0] - frames[1]).abs().max().max() < 1e-5, frames
    observed = read_table(both / "observations.parquet")
    assert set(observed["request_id"]) == {r["id"] for r in (*ordinary, *noise)}, "invented rows"
    costs = read_table(both / "cost.csv")
    assert "request_id" not in costs.columns, "costs are synthetic and say nothing of requests"


def test_b09_an_empty_trace_is_an_input_error(tiny_checkpoint, tmp_path, capsys):
    (tmp_path / "t.jsonl").write_text("")
    assert run_cli(*command(tiny_checkpoint, tmp_path / "t.jsonl", tmp_path)) == 2
    assert "t.jsonl" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("sweep", ["walk", "decode"])
def test_b11_without_a_second_token_acceptance_is_missing(tiny_checkpoint, tmp_path, capsys, sweep):
    """B11: budgets of 0 and 1, and EOS as the first token: nothing can be drafted."""
    rows = trace_rows(4, max_tokens=1)
    rows[0]["max_tokens"] = 0
    rows[1] |= {"max_tokens": 5, "logit_bias": {"1": 100}}
    config = SMALL + f"sweep: {sweep}\n"
    trace = write_trace(tmp_path / "t.jsonl", rows)
    capsys.readouterr()
    run = calibrate(tiny_checkpoint, trace, tmp_path, config)
    said = " ".join(capsys.readouterr().out.split())
    assert "No verdict" in said
    assert "nan" not in said
    for rule in read_plan(run / "plan.yaml").rules:
        assert not rule.enabled
        assert "too few drafted tokens" in rule.reason, rule.reason
        assert rule.acceptance_rate_tested is None
    grid = read_table(run / "grid.csv")
    assert len(grid) > 0, "the requests themselves are counted"
    for name in ("acceptance_rate_tested", "acceptance_rate_drafted", "predicted_speedup"):
        assert grid[name].isna().all(), f"{name}: {grid[name].tolist()}"
    assert read_table(run / "acceptance.csv").empty
    assert manifest(run)["status"] == "done"
    assert (
        run_cli(*command(tiny_checkpoint, trace, tmp_path, "--json", config_text=config))
        in FINISHED
    )
    document = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert document["best"] == []
    assert document["cells"] == 0


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A tiny llama of 6 layers: drafting at 5 of 6 cannot pay on a CPU."""
    model = random_model("llama", hidden_size=32, num_hidden_layers=6)
    return save_checkpoint(model, tmp_path_factory.mktemp("llama") / "llama")


def test_b16_drafting_that_cannot_pay_measures_below_one(llama, tmp_path, capsys):
    """B16: the number is shown as measured; the closed form stands beside it in grid.csv.

    The median over decodes is judged: a single one may be hit by another program's burst.
    """
    config = """
exit_layers: 5
draft_lengths: 4,8
confirm: {cells: 4, requests: 4, min_tokens: 4, repeats: 2}
"""
    trace = write_trace(tmp_path / "t.jsonl", trace_rows(6, max_tokens=24))
    capsys.readouterr()
    run = calibrate(llama, trace, tmp_path, config)
    out = " ".join(capsys.readouterr().out.split())
    summary = summarise_confirm(read_table(run / "confirm.csv"))
    assert len(summary) == 4
    for row in summary.loc[summary["role"] == "rule"].to_dict("records"):
        assert f"{row['measured_speedup']:.2f}x" in out, "the measured number is not shown"
    assert not any(rule.enabled for rule in read_plan(run / "plan.yaml").rules)
    measured = read_table(run / "confirm.csv")
    ratio = measured["ar_seconds"] / measured["seconds"]
    medians = ratio.groupby([measured["temperature"], measured["draft_length"]]).median()
    assert medians.max() < 1, f"drafting 5 of 6 layers seems to pay: {medians.to_dict()}"
    grid = read_table(run / "grid.csv")
    assert grid["closed_form_speedup"].notna().all()
    greedy = measured.loc[measured["temperature"] == 0.0]
    assert greedy["exact"].eq(True).all(), "both sides made the same tokens"


def test_a12_a_static_cache_setting_is_ignored_with_one_notice(llama, tmp_path, capsys):
    """A12: the run uses its own cache, says so once, and stays lossless."""
    folder = shutil.copytree(llama, tmp_path / "static")
    settings = json.loads((folder / "generation_config.json").read_text())
    settings["cache_implementation"] = "static"
    (folder / "generation_config.json").write_text(json.dumps(settings))
    trace = write_trace(tmp_path / "t.jsonl", trace_rows(4, max_tokens=8))
    argv = command(folder, trace, tmp_path, config_text=SMALL.replace("1,3", "2,5"))
    argv.remove("-q")
    capsys.readouterr()
    assert run_cli(*argv) in FINISHED
    out, err = capsys.readouterr()
    assert err.count("cache_implementation") == 1, err
    assert "greedy decodes equal plain decoding" in " ".join(out.split())
    written = manifest(tmp_path / "run")
    assert any("cache_implementation" in text for text in written["notices"])
    eos = settings["eos_token_id"]
    assert written["eos_token_ids"] == (sorted(eos) if isinstance(eos, list) else [eos])


@pytest.fixture
def cases(shared):
    return shared / "cases" / "inputs" / "open"


def test_c01_a_template_that_refuses_system_turns_skips_those_rows(
    tiny_checkpoint, tmp_path, cases, capsys
):
    """C01: one row runs, two are skipped with the template's own reason, all is counted."""
    template = cases / "templates" / "no_system.jinja"
    capsys.readouterr()
    run = calibrate(
        tiny_checkpoint, cases / "C_system_role.jsonl", tmp_path, SMALL,
        "--chat-template", template,
    )  # fmt: skip
    out = " ".join(capsys.readouterr().out.split())
    assert "Read 3 rows = 1 used + 2 left out" in out, out
    assert "chat template" in out
    assert read_table(run / "requests.parquet")["request_id"].tolist() == ["sys-1"]
    read = manifest(run)["read"]
    assert (read["read"], read["used"]) == (3, 1)
    lines = ["C_system_role.jsonl:1", "C_system_role.jsonl:3"]
    assert read["skipped"] == {"chat template refused": {"rows": 2, "lines": lines}}


def test_c09_prompts_past_the_position_table_are_skipped(tiny_checkpoint, tmp_path, cases, capsys):
    """C09: 256 positions; the first two rows run in full, the other two never reach the model."""
    capsys.readouterr()
    run = calibrate(tiny_checkpoint, cases / "C_too_long.jsonl", tmp_path)
    out = " ".join(capsys.readouterr().out.split())
    assert "Read 4 rows = 2 used + 2 left out" in out, out
    assert "over length" in out
    paths = read_table(run / "paths.parquet").query("temperature == 0")
    assert set(paths["request_id"]) == {"len-200", "len-255"}
    lengths = dict(zip(paths["request_id"], paths["completion_tokens"], strict=True))
    assert lengths["len-255"] == 1
    assert lengths["len-200"] <= 16

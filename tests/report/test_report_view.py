"""The view: built from a run's files, equal to what those files say."""

import json
import shutil
from dataclasses import replace

import pandas as pd
import pytest
from report_runs import LAYERS, LENGTHS, make_run

from selfspec_cli.analysis.grid import base_batch
from selfspec_cli.errors import PlanError, RunDirError, StorageError
from selfspec_cli.report.figure_view import COSTS, MAP, MEASURED, POSITIONS
from selfspec_cli.report.figure_view import LAYERS as BY_LAYER
from selfspec_cli.report.figure_view import LENGTHS as ACCEPTED
from selfspec_cli.report.verdict import next_command
from selfspec_cli.report.view import build_view
from selfspec_cli.storage import read_table


def test_map_equals_grid_csv_to_the_last_digit(tiny_view, tiny_run):
    """The report prices only the roll-ups; they must be those of the whole grid's base batch."""
    grid = base_batch(read_table(tiny_run / "grid.csv"))
    pooled = grid.loc[grid["evidence"] == "all"].set_index(
        ["temperature", "exit_layer", "draft_length"]
    )
    table = tiny_view.figure(MAP).table
    assert len(table) == 2 * len(LAYERS) * len(LENGTHS)
    for cell in table.to_dict("records"):
        row = pooled.loc[(cell["temperature"], cell["exit_layer"], cell["draft_length"])]
        for name in ("predicted_speedup", "predicted_speedup_low", "predicted_speedup_high"):
            assert cell[name] == row[name], f"{name}: {cell[name]} here, {row[name]} in grid.csv"


def test_chosen_cells_are_those_of_the_plan(tiny_view):
    table = tiny_view.figure(MAP).table
    chosen = table.loc[table["chosen"], ["temperature", "exit_layer", "draft_length"]]
    assert {tuple(cell) for cell in chosen.to_numpy().tolist()} == {
        (cell.temperature, cell.exit_layer, cell.draft_length) for cell in tiny_view.plan.global_
    }


def test_acceptance_is_that_of_the_observations(tiny_view, tiny_run):
    seen = read_table(tiny_run / "observations.parquet")
    table = tiny_view.figure(BY_LAYER).table
    for row in table.to_dict("records"):
        same = (seen["temperature"] == row["temperature"]) & (
            seen["exit_layer"] == row["exit_layer"]
        )
        mean = seen.loc[same, "accept_prob"].mean()
        assert row["accept_prob_mean"] == pytest.approx(mean, rel=1e-5)
        assert row["low"] < mean < row["high"]
        assert row["needed"] is not pd.NA


def test_positions_are_read_at_the_plans_layer(tiny_view):
    table = tiny_view.figure(POSITIONS).table
    assert list(table["output_from"].unique()) == [1, 33], "40 tokens reach the second stretch"
    best = {cell.temperature: cell.exit_layer for cell in tiny_view.plan.global_}
    assert dict(zip(table["temperature"], table["exit_layer"], strict=True)) == best


def test_cost_curves_lie_beside_what_is_usually_assumed(tiny_view):
    table = tiny_view.figure(COSTS).table.set_index("quantity")
    draft = table.loc["draft_cost_ratio"]
    assert (draft["reference"] == draft["exit_layer"] / 6).all()
    assert (draft["value"] > draft["reference"]).all(), "the head costs time too"
    assert (table.loc["verify_cost_ratio", "reference"] == 1.0).all()
    steps = table.loc["ar_step_s"]
    assert (steps["reference"] == 0.005).all()
    assert steps["value"].between(0.006, 0.008).all()


def test_every_decoded_cell_is_compared(tiny_view, tiny_run):
    table = tiny_view.figure(MEASURED).table
    confirm = read_table(tiny_run / "confirm.csv")
    keys = ["task", "temperature", "exit_layer", "draft_length"]
    assert len(table) == len(confirm[keys].drop_duplicates()) == 8
    one = confirm.loc[
        (confirm["task"] == "code") & (confirm["temperature"] == 0.7) & (confirm["exit_layer"] == 4)
    ]
    row = table.loc[
        (table["task"] == "code") & (table["temperature"] == 0.7) & (table["exit_layer"] == 4)
    ].iloc[0]
    assert row["measured_speedup"] == pytest.approx(one["ar_seconds"].sum() / one["seconds"].sum())
    assert row["measured_speedup_low"] < row["measured_speedup"] < row["measured_speedup_high"]


def test_lengths_of_a_bucket_add_up_to_one(tiny_view):
    table = tiny_view.figure(ACCEPTED).table
    sums = table.groupby(["task", "temperature"])["share"].sum()
    assert len(sums) == len(tiny_view.plan.rules)
    assert sums.to_numpy() == pytest.approx(1.0), sums.to_dict()


def test_verdict_carries_the_plans_numbers(tiny_view):
    verdict, total = tiny_view.verdict, tiny_view.plan.total
    assert verdict.tone == "some"
    assert verdict.buckets == f"{total.num_enabled} of {total.num_buckets}" == "2 of 4"
    assert verdict.saved_estimate == -total.decode_time_change.estimate > 0.05
    assert f"{100 * verdict.saved_estimate:.0f} %" in verdict.sentence
    assert verdict.next_command == "selfspec gate tiny"
    off = total.model_copy(update={"num_enabled": 0})
    nothing = tiny_view.plan.model_copy(update={"total": off, "verdict": "do not enable"})
    assert next_command(nothing, {}, "tiny") == "selfspec plan tiny --explain chat"


def test_takes_are_the_buckets_that_are_off(tiny_view):
    assert [take.label.split(",")[0] for take in tiny_view.takes] == ["chat", "chat"]
    for take in tiny_view.takes:
        assert take.gap == pytest.approx(take.needed - take.observed)
        assert take.gap > 0
        assert take.gain_at(0.8).speedup > take.gain_at(0.6).speedup
        assert take.gain_at(0.5) is None


def test_rules_come_by_decode_time(tiny_view):
    shares = [row.rule.time_share for row in tiny_view.rules]
    assert shares == sorted(shares, reverse=True)


def test_rows_read_are_accounted_for(tiny_view):
    inputs = tiny_view.inputs
    assert (inputs.read, inputs.used, sum(entry.rows for entry in inputs.skipped)) == (31, 28, 3)
    assert inputs.skipped[0].lines == ("log.jsonl:4", "log.jsonl:9")
    assert (inputs.recorded, inputs.regenerated) == (0, 56)


def test_a_run_without_confirmation_says_so(tmp_path):
    run = make_run(tmp_path / "run", {"code": 0.9}, requests_per_task=4, tokens=12, confirm=False)
    view = build_view(run)
    assert view.confirmation is None
    assert "put to the test" in view.figure(MEASURED).absent
    assert view.verdict.tone == "unknown", "4 requests are too few"


def test_nothing_drafted_is_no_error(tmp_path):
    """D16: outputs of one token have no rounds; everything is undefined, nothing is 0 or NaN."""
    run = make_run(tmp_path / "run", {"code": 0.9}, requests_per_task=3, tokens=1, confirm=False)
    view = build_view(run)
    assert view.plan.verdict == "no verdict"
    assert all(figure.absent for figure in view.figures if figure.name != COSTS), [
        (figure.name, len(figure.table)) for figure in view.figures
    ]


def test_a_run_without_a_plan_names_the_command(own_run):
    (own_run / "plan.yaml").unlink()
    with pytest.raises(StorageError, match="no plan yet") as caught:
        build_view(own_run)
    assert "selfspec plan" in caught.value.hint


def test_a_broken_plan_is_told(own_run):
    (own_run / "plan.yaml").write_text("schema_version: 1\n", encoding="utf-8")
    with pytest.raises(PlanError):
        build_view(own_run)


def test_a_folder_without_a_run_is_told(tmp_path):
    with pytest.raises(RunDirError, match="not a run directory"):
        build_view(tmp_path)


def test_tables_that_were_never_written_cost_their_figures_only(own_run):
    written = json.loads((own_run / "manifest.json").read_text(encoding="utf-8"))
    for name in ("observations.parquet", "confirm.csv", "cost.csv"):
        (own_run / name).unlink()
        del written["artefacts"][name]
    (own_run / "manifest.json").write_text(json.dumps(written), encoding="utf-8")
    view = build_view(own_run)
    absent = {figure.name for figure in view.figures if figure.absent}
    assert absent == {BY_LAYER, POSITIONS, COSTS, MEASURED}
    assert all(figure.absent.endswith(".") for figure in view.figures if figure.absent)


def test_a_file_that_was_written_and_is_gone_is_named(own_run):
    """A report without it would look whole: figures and findings would vanish without a word."""
    (own_run / "walk.parquet").unlink()
    with pytest.raises(StorageError, match=r"walk\.parquet: this file of the run is gone"):
        build_view(own_run)


def test_a_moved_run_reads_the_same(own_run, tmp_path, tiny_view):
    moved = shutil.copytree(own_run, tmp_path / "elsewhere")
    view = build_view(moved)
    assert [row.label for row in view.rules] == [row.label for row in tiny_view.rules]
    assert view.verdict.sentence == tiny_view.verdict.sentence


def test_exactness_says_what_was_proved_and_what_was_not(tiny_view):
    """A law that was not tested is not called proved; one that fails is not called followed."""
    seen = tiny_view.confirmation
    tested = replace(seen, law_positions=6, law_passed=True, law_false_alarm=1e-4)
    assert "accepted and replaced drafts follow the model's law at 6 positions" in tested.exactness
    assert "false alarm 1e-04" in tested.exactness
    assert "DO NOT follow" in replace(tested, law_passed=False).exactness
    untested = replace(tested, law_positions=0, law_passed=None)
    assert untested.exactness.endswith("no sampled law to test")
    assert "31 of 32 greedy decodes" in replace(seen, greedy_equal=31, greedy_ties=1).exactness

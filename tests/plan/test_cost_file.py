"""Costs of another machine: what is checked, what is left out, and whose costs a plan names."""

import pytest
from plan_helpers import ALL_ACCEPTED_K3, Ask, asks, cost_rows, make_run, one_rule, plan_run

from selfspec_cli.errors import CostRangeError, StorageError
from selfspec_cli.plan.inputs import load_plan_inputs
from selfspec_cli.plan.planner import build_plan
from selfspec_cli.plan.settings import PlanSettings
from selfspec_cli.storage import write_table


def cost_file(folder, rows, name="other.csv"):
    write_table(rows, folder / name)
    return folder / name


def plan_with(run, path, **settings):
    return build_plan(load_plan_inputs(run, path), PlanSettings(**settings))


def test_a_machine_whose_layers_cost_twice_as_much_pays_half(tmp_path):
    """Plain step still 1 s, a layer 0.5 s: k = 3 at L = 1 takes 3.5 s for 4 tokens."""
    run = make_run(tmp_path / "run", asks(20))
    plan = plan_with(run, cost_file(tmp_path, cost_rows(slower=2.0)))
    rule = one_rule(plan)
    assert rule.speedup.estimate == pytest.approx(ALL_ACCEPTED_K3 / 2, rel=1e-6)
    assert one_rule(plan_run(run)).speedup.estimate == pytest.approx(ALL_ACCEPTED_K3, rel=1e-6)


def test_the_plan_says_whose_costs_it_used(tmp_path):
    run = make_run(tmp_path / "run", asks(20))
    foreign = plan_with(run, cost_file(tmp_path, cost_rows(slower=2.0))).measured_on.costs
    own = plan_run(run).measured_on.costs
    assert (own.source, foreign.source) == ("this run", "other.csv")
    assert own.sha256 != foreign.sha256
    assert foreign.bandwidth_floor_s is None, "the floor of this machine says nothing of the other"


def test_foreign_costs_warn_and_change_no_hash_of_the_measurement(tmp_path):
    run = make_run(tmp_path / "run", asks(20))
    plan = plan_with(run, cost_file(tmp_path, cost_rows()))
    assert any("priced with the costs of other.csv" in warning for warning in plan.warnings)
    assert plan.measurement_hash == plan_run(run).measurement_hash


def test_requests_beyond_the_foreign_contexts_are_left_out_never_extrapolated(tmp_path):
    run = make_run(tmp_path / "run", [*asks(20), Ask(prompt=600), Ask(prompt=470)])
    path = cost_file(tmp_path, cost_rows(top=500))
    inputs = load_plan_inputs(run, path)
    assert dict(inputs.left_out)["contexts_beyond_those_timed"] == 2, "600, and 470 + 31 > 500"
    assert set(inputs.walk["prompt_tokens"]) == {40}


def test_costs_that_cover_nothing_are_refused(tmp_path):
    run = make_run(tmp_path / "run", asks(3, prompt=600))
    with pytest.raises(CostRangeError, match="no observed path can be priced") as caught:
        load_plan_inputs(run, cost_file(tmp_path, cost_rows(top=500)))
    assert "other.csv" in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (cost_rows(laws=("greedy",)), "no plain step was timed for the law sampled"),
        (cost_rows().assign(part="ar"), "no layer of kind full was timed"),
        (cost_rows().query("not (positions > 3)"), "up to 2 drafted tokens at batch 1, this run"),
        (cost_rows().replace({"exit_layer": {4: 24}}), "24 layers of kind full were timed"),
    ],
)
def test_what_lacks_is_named(tmp_path, rows, says):
    run = make_run(tmp_path / "run", asks(2))
    with pytest.raises(CostRangeError, match=says) as caught:
        load_plan_inputs(run, cost_file(tmp_path, rows))
    assert "other.csv" in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (cost_rows().drop(columns="seconds"), "column seconds is missing"),
        (cost_rows().assign(seconds=-1.0), "not a positive number of seconds"),
        (cost_rows().query("part != 'head'"), "the part head was not timed"),
    ],
)
def test_a_torn_cost_file_is_refused(tmp_path, rows, says):
    run = make_run(tmp_path / "run", asks(2))
    with pytest.raises(StorageError, match=says) as caught:
        load_plan_inputs(run, cost_file(tmp_path, rows))
    assert "other.csv" in str(caught.value)


def test_a_missing_file_and_a_run_directory_in_its_place(tmp_path):
    run = make_run(tmp_path / "run", asks(2))
    with pytest.raises(StorageError, match="missing"):
        load_plan_inputs(run, tmp_path / "none.csv")
    with pytest.raises(StorageError, match="unknown table format"):
        load_plan_inputs(run, run.path)


def test_a_run_that_is_not_finished_cannot_be_planned(tmp_path):
    run = make_run(tmp_path / "run", asks(2))
    run.set_stage("cost", "running")
    with pytest.raises(StorageError, match="the stage cost of this run is not complete"):
        load_plan_inputs(run)


@pytest.mark.parametrize("status", ["running", "incomplete"])
def test_a_run_stopped_before_its_walk_cannot_be_planned(tmp_path, status):
    """Broken twin: the same files of a run that ended are planned."""
    run = make_run(tmp_path / "run", asks(20))
    run.update(status="done")
    assert build_plan(load_plan_inputs(run), PlanSettings()).total.num_enabled > 0
    run.update(status=status)
    with pytest.raises(StorageError, match="the stage walk of this run is not complete") as caught:
        load_plan_inputs(run)
    assert caught.value.exit_code == 2
    assert "`selfspec calibrate` command again; it goes on from where" in str(caught.value)


def test_the_own_costs_walk_again_where_the_walk_table_is_missing(tmp_path):
    """walk.parquet holds nothing that observations and costs do not."""
    run = make_run(tmp_path / "run", asks(20))
    fresh = load_plan_inputs(run)
    write_table(fresh.walk, run.artefact("walk.parquet"))
    stored = load_plan_inputs(run)
    assert build_plan(stored, PlanSettings()) == build_plan(fresh, PlanSettings())

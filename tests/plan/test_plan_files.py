"""plan.yaml on disk: exact names, no NaN, one schema."""

import json
import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from plan_helpers import Ask, asks, plan_of
from pydantic import ValidationError

from selfspec_cli.errors import PlanError, StorageError
from selfspec_cli.plan.decide import Plan
from selfspec_cli.plan.document import Interval
from selfspec_cli.plan.files import (
    committed_schema,
    plan_data,
    plan_schema,
    read_plan,
    write_plan,
)

LABELS = ("../../escape", "a/b", "con", ".", "\0", "A", "a", "x" * 300)
"""D03: eight labels that would make bad file names."""


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    log = [*asks(20), *asks(2, task="one", tokens=1)]
    return plan_of(tmp_path_factory.mktemp("plan"), log)


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_a_plan_comes_back_as_it_was_written(plan, tmp_path, suffix):
    path = tmp_path / f"plan{suffix}"
    write_plan(plan, path)
    assert read_plan(path) == plan


def test_d03_labels_stay_apart_and_exact(tmp_path):
    """D03. Eight labels, eight buckets, nothing written outside the folder."""
    out = tmp_path / "deep" / "out"
    out.mkdir(parents=True)
    plan = plan_of(out, [Ask(task=label) for label in LABELS])
    write_plan(plan, out / "plan.yaml")
    back = yaml.safe_load((out / "plan.yaml").read_text(encoding="utf-8"))
    assert sorted(rule["task"] for rule in back["rules"]) == sorted(LABELS)
    assert {p.name for p in out.iterdir()} == {"run", "plan.yaml"}
    assert {p.name for p in tmp_path.iterdir()} == {"deep"}
    asked = Plan.load(out / "plan.yaml").decide(task="a/b", context_tokens=40, temperature=0.7)
    assert asked.rule["task"] == "a/b"


@given(task=st.text(st.characters(codec="utf-8"), max_size=20))
def test_any_task_name_round_trips(plan, tmp_path_factory, task):
    path = tmp_path_factory.mktemp("t") / "plan.yaml"
    named = plan.rules[0].model_copy(update={"task": task})
    write_plan(plan.model_copy(update={"rules": [named]}), path)
    assert read_plan(path).rules[0].task == task
    assert Plan.load(path).rules[0]["task"] == task


@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_any_number_round_trips_as_a_number(plan, tmp_path_factory, value):
    path = tmp_path_factory.mktemp("n") / "plan.yaml"
    rule = plan.rules[0].model_copy(update={"in_sample_speedup": value})
    write_plan(plan.model_copy(update={"rules": [rule]}), path)
    read = yaml.safe_load(path.read_text(encoding="utf-8"))["rules"][0]["in_sample_speedup"]
    assert type(read) is float
    assert read == value


def test_d16_missing_is_null_and_nothing_is_nan(plan, tmp_path):
    """D16. The bucket of one-token requests has no acceptance: null, not NaN, 0 or 1."""
    path = tmp_path / "plan.yaml"
    write_plan(plan, path)
    text = path.read_text(encoding="utf-8").lower()
    assert ".nan" not in text
    assert ".inf" not in text
    (thin,) = [r for r in yaml.safe_load(text)["rules"] if r["task"] == "one"]
    assert thin["acceptance_rate_tested"] is None
    write_plan(plan, tmp_path / "plan.json")

    def refuse(constant):
        raise AssertionError(f"{constant} in JSON")

    json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"), parse_constant=refuse)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_d16_a_document_refuses_nan(value):
    with pytest.raises(ValidationError):
        Interval(estimate=value)


def test_the_committed_schema_is_the_documents_own():
    """Mend with: write_document(plan_schema(), Path('selfspec_cli/plan/plan.schema.json'))."""
    assert committed_schema() == json.loads(json.dumps(plan_schema()))


def test_the_schema_describes_what_is_written(plan):
    schema = committed_schema()
    data = plan_data(plan)
    assert set(data) == set(schema["properties"])
    assert set(schema["required"]) <= set(data)
    assert set(data["rules"][0]) == set(schema["$defs"]["Rule"]["properties"])
    assert schema["properties"]["schema_version"]["const"] == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema_version": 7}, "schema version 7"),
        ({"verdict": "maybe"}, "verdict"),
        ({"surprise": 1}, "surprise"),
        ({"total": None}, "total"),
    ],
)
def test_another_document_is_refused_with_the_field(plan, tmp_path, change, says):
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump({**plan_data(plan), **change}), encoding="utf-8")
    with pytest.raises(PlanError, match=says):
        read_plan(path)


def test_a_list_or_a_missing_file_is_no_plan(tmp_path):
    (tmp_path / "list.yaml").write_text("- 1\n", encoding="utf-8")
    with pytest.raises(PlanError, match="mapping"):
        read_plan(tmp_path / "list.yaml")
    with pytest.raises(StorageError, match="missing"):
        read_plan(tmp_path / "none.yaml")

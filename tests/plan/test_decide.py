"""`Plan.decide`: everything not calibrated is off with a reason, and nothing heavy is imported."""

import math
import os
import subprocess
import sys

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from plan_helpers import Ask, asks, plan_of

from selfspec_cli.errors import PlanError
from selfspec_cli.plan.decide import Plan
from selfspec_cli.plan.files import plan_data, write_plan

BLOCKED = ("pandas", "pydantic", "numpy", "torch", "scipy", "pyarrow", "rich", "typer")
PROGRAM = """
import sys
for name in {blocked!r}:
    sys.modules[name] = None
{extra}
from selfspec_cli.plan.decide import Plan
found = Plan.load(sys.argv[1]).decide(task="code", context_tokens=40, temperature=0.7)
print(found.enabled, found.exit_layer, found.draft_length)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Task code: on at 0.3 and 0.7 (L=1, k=3) under top_p 0.9, on at 0; task slow is off."""
    folder = tmp_path_factory.mktemp("plan")
    log = [
        *asks(20, temperatures=(0.0, 0.3, 0.7), top_p=0.9),
        *asks(20, task="slow", accept=0.0),
        Ask(task="slow", prompt=100),
        *asks(20, task="long", prompt=9000 - 5500),
        *asks(20, task="open", prompt=3000),
    ]
    path = folder / "plan.yaml"
    write_plan(plan_of(folder, log), path)
    return path


@pytest.fixture(scope="module")
def plan(file):
    return Plan.load(file)


def ask(plan, **fields):
    base = {"task": "code", "context_tokens": 40, "temperature": 0.7, "top_p": 0.9}
    return plan.decide(**{**base, **fields})


def test_a_calibrated_request_gets_its_cell(plan):
    found = ask(plan)
    assert (found.enabled, found.exit_layer, found.draft_length) == (True, 1, 3), found.reason
    assert found.rule["task"] == "code"


def test_between_two_temperatures_that_agree_the_cell_holds(plan):
    assert ask(plan, temperature=0.5).exit_layer == 1
    assert ask(plan, temperature=0.3).exit_layer == 1


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"task": "poem"}, "'poem' was not observed"),
        ({"task": None}, "was not observed"),
        ({"temperature": 0.71}, "temperature 0.71 lies outside those measured here: 0, 0.3, 0.7"),
        ({"temperature": -0.1}, "out of range"),
        ({"context_tokens": 39}, "outside the 40 to 3500 that were measured"),
        ({"context_tokens": 3501}, "outside the 40 to 3500"),
        ({"context_tokens": 600}, "not observed at 600 tokens"),
        ({"top_p": 1.0}, "top_p 1 was not calibrated"),
        ({"top_k": 50}, "top_k 50 was not calibrated"),
        ({"repetition_penalty": 1.1}, "repetition_penalty 1.1 was not calibrated"),
        ({"presence_penalty": 0.5}, "presence_penalty 0.5 was not calibrated"),
        ({"frequency_penalty": 0.5}, "frequency_penalty 0.5 was not calibrated"),
        ({"min_tokens": 5}, "min_tokens 5 was not calibrated"),
        ({"batch_size": 2}, "batch size 2 was not calibrated"),
        ({"batch_size": 0}, "out of range"),
        ({"max_tokens": 19}, "max_tokens 19 is below 20"),
        ({"temperature": math.nan}, "temperature nan is not a number"),
        ({"context_tokens": math.inf}, "context_tokens inf is not a number"),
        ({"top_p": "0.9"}, "top_p '0.9' is not a number"),
        ({"max_tokens": math.nan}, "max_tokens nan is not a number"),
    ],
)
def test_whatever_was_not_calibrated_is_off_with_its_reason(plan, fields, says):
    found = ask(plan, **fields)
    assert not found.enabled
    assert (found.exit_layer, found.draft_length) == (None, None)
    assert says in found.reason, found.reason


def test_a_disabled_rule_gives_its_own_reason(plan):
    found = plan.decide(task="slow", context_tokens=40, temperature=0.7)
    assert not found.enabled
    assert found.reason == found.rule["reason"]
    assert "reaches" in found.reason


def test_truncation_does_not_matter_at_temperature_zero(plan):
    """The most likely token survives any top-p and top-k; penalties still matter."""
    assert ask(plan, temperature=0.0, top_p=1.0, top_k=7).enabled
    assert not ask(plan, temperature=0.0, presence_penalty=1.0).enabled


def test_max_tokens_of_twenty_is_enough(plan):
    assert ask(plan, max_tokens=20).enabled


def test_an_open_band_ends_at_the_longest_prompt_of_its_own_task(tmp_path):
    log = [*asks(20, prompt=3000), *asks(20, task="long", prompt=3500)]
    document = plan_data(plan_of(tmp_path, log, context_edges=(0, 2048)))
    plan = Plan.of_document(document)
    assert plan.decide(task="code", context_tokens=3000, temperature=0.7).enabled
    found = plan.decide(task="code", context_tokens=3001, temperature=0.7)
    assert "exceed the longest observed here, 3000" in found.reason


def test_all_parameters_of_a_law_belong_together(tmp_path):
    """top_p 0.9 was seen, presence 0.5 was seen; never both."""
    log = [*asks(15, top_p=0.9), *asks(15, presence_penalty=0.5, law="penalised")]
    from plan_helpers import cost_rows, make_run, plan_run

    run = make_run(tmp_path / "run", log, costs=cost_rows(laws=("sampled", "penalised")))
    plan = Plan.of_document(plan_data(plan_run(run)))
    base = {"task": "code", "context_tokens": 40, "temperature": 0.7}
    assert plan.decide(**base, top_p=0.9).enabled
    assert plan.decide(**base, presence_penalty=0.5).enabled
    assert not plan.decide(**base, top_p=0.9, presence_penalty=0.5).enabled


anything = st.one_of(
    st.floats(), st.integers(-10, 10**9), st.none(), st.booleans(), st.text(max_size=3)
)


@given(task=anything, context=anything, temperature=anything, batch=anything, top=anything)
def test_a_loaded_plan_never_raises(plan, task, context, temperature, batch, top):
    found = plan.decide(
        task=task,
        context_tokens=context,
        temperature=temperature,
        batch_size=batch,
        top_p=top,
        max_tokens=context,
    )
    assert found.reason
    assert found.enabled is (found.exit_layer is not None)


@given(
    context=st.integers(1, 6000),
    temperature=st.floats(0, 2),
    top_p=st.sampled_from([0.9, 1.0]),
)
def test_enabled_only_where_an_enabled_rule_covers_the_request(plan, context, temperature, top_p):
    """Checked against the rules themselves, without the reader's own look-up."""
    found = plan.decide(task="code", context_tokens=context, temperature=temperature, top_p=top_p)
    covering = [
        rule
        for rule in plan.rules
        if rule["task"] == "code"
        and rule["enabled"]
        and rule["context_min"] <= context < (rule["context_max"] or math.inf)
        and rule["temperature_min"] <= temperature <= rule["temperature_max"]
        and (temperature == 0 or top_p == 0.9)
        and 40 <= context <= 3500
    ]
    assert found.enabled is bool(covering), (context, temperature, found.reason)


def run_blocked(repo, file, extra=""):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(blocked=BLOCKED, extra=extra), file],
        env={**os.environ, "PYTHONPATH": str(repo)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_works_where_only_the_standard_library_and_yaml_are_installed(repo, file, tmp_path):
    plain = tmp_path / "plain.yaml"
    text = file.read_text(encoding="utf-8").replace("top_p: 0.9", "top_p: 1.0")
    plain.write_text(text, encoding="utf-8")
    done = run_blocked(repo, plain)
    assert (done.returncode, done.stdout.strip()) == (0, "True 1 3"), done.stderr


def test_broken_twin_the_blocked_program_fails_once_it_needs_pydantic(repo, file):
    """Else the test above could pass although nothing is blocked."""
    done = run_blocked(repo, file, "import selfspec_cli.plan.files")
    assert done.returncode != 0
    assert "ModuleNotFoundError" in done.stderr


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(schema_version=3), "schema version 3, this reader knows 1 and 2"),
        (lambda d: d.pop("rules"), "torn"),
        (lambda d: d["rules"][0].pop("enabled"), "enabled is missing"),
        (lambda d: d["rules"][0].update(enabled="yes"), "enabled is 'yes'"),
        (lambda d: d["rules"][0].update(context_min=True), "context_min is True"),
        (lambda d: d["rules"][0]["drafter"].pop("exit_layer"), "without an exit layer"),
        (lambda d: d["rules"][0]["draft"].update(length=0), "without an exit layer"),
        (lambda d: d["rules"][0].update(laws=[{"top_p": "all"}]), "laws holds"),
        (lambda d: d["rules"].insert(0, "all on"), "a rule is a mapping"),
    ],
)
def test_a_broken_plan_is_refused_with_its_place(file, tmp_path, change, says):
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    change(data)
    broken = tmp_path / "broken.yaml"
    broken.write_text(yaml.safe_dump(data), encoding="utf-8")
    with pytest.raises(PlanError, match=says) as caught:
        Plan.load(broken)
    assert "broken.yaml" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"a: [", b"\xff\xfe\x00", b"- 1\n", b"{a: &x [*x]}"])
def test_a_file_that_is_no_plan_is_refused(tmp_path, content):
    path = tmp_path / "p.yaml"
    path.write_bytes(content)
    with pytest.raises(PlanError):
        Plan.load(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(PlanError, match="cannot be read"):
        Plan.load(tmp_path / "none.yaml")


def test_numbers_beyond_any_float_are_refused_not_raised(plan):
    found = ask(plan, context_tokens=10**400)
    assert not found.enabled
    assert "is not a number" in found.reason


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda data: data["traces"].update(prompt_tokens_min="12"), "prompt_tokens_min is '12'"),
        (lambda data: data["rules"][0]["laws"][0].update(top_p=math.nan), "laws holds"),
    ],
)
def test_a_plan_with_an_odd_number_is_no_plan(file, spoil, says):
    """A NaN top_p would equal every top_p: nothing differs from it by more than the tolerance."""
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    spoil(data)
    with pytest.raises(PlanError, match=says):
        Plan.of_document(data)

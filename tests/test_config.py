import math
import re
from fractions import Fraction

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from selfspec_cli.config import (
    CalibrateConfig,
    analysis_hash,
    beyond_exit_layers,
    load_config,
    measurement_document,
    measurement_hash,
    parse_temperatures,
    preset_names,
    preset_path,
    resolve_draft_lengths,
    resolve_exit_layers,
    resolve_trace,
)
from selfspec_cli.config.hashes import ANALYSIS_KEYS, PLACE_KEYS
from selfspec_cli.errors import EXIT_INPUT, ConfigError, LossyRuleError

NEEDED = {"model": "demo", "traces": ["sample"], "out": "run"}


def config(**overrides):
    return load_config(None, {**NEEDED, **overrides})


def leaves(model=CalibrateConfig, prefix=""):
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from leaves(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, field


def message(error):
    text = str(error.value)
    assert error.value.exit_code == EXIT_INPUT, error.value.exit_code
    assert "Traceback" not in text
    assert "pydantic" not in text.lower(), text
    return text


# --- presets ------------------------------------------------------------------------------------


def test_the_three_presets_are_found():
    assert set(preset_names()) >= {"default", "quickstart", "rigorous"}


@pytest.mark.parametrize("name", ["default", "quickstart", "rigorous"])
def test_preset_loads(name):
    assert load_config(name, NEEDED).model == "demo"


def test_default_preset_states_exactly_the_defaults():
    assert load_config("default", NEEDED) == config()


def test_every_key_is_documented_in_code_and_in_the_default_preset():
    text = preset_path("default").read_text(encoding="utf-8")
    for dotted, field in leaves():
        assert field.description, f"{dotted} has no description"
        key = dotted.rpartition(".")[2]
        line = re.search(rf"^#? *{key}:.*#.+", text, re.MULTILINE)
        assert line, f"{dotted} has no commented line in default.yaml"


def test_quickstart_lowers_no_default():
    """A preset that lowered the timing blocks or the sample would silently weaken every verdict."""
    path = preset_path("quickstart")
    given_keys = set(yaml.safe_load(path.read_text(encoding="utf-8")))
    assert given_keys == {"temperatures"}, given_keys
    quick, usual = load_config("quickstart", NEEDED), config()
    assert quick.model_copy(update={"temperatures": usual.temperatures}) == usual


def test_rigorous_lowers_nothing():
    rigorous, usual = load_config("rigorous", NEEDED), config()
    assert rigorous.limit >= usual.limit
    assert rigorous.cost.blocks >= usual.cost.blocks
    assert rigorous.confirm.cells >= usual.confirm.cells
    assert rigorous.draft_lengths == usual.draft_lengths


def test_flags_win_over_the_file_and_absent_flags_do_not():
    loaded = load_config("rigorous", {**NEEDED, "limit": 7, "default_max_tokens": None})
    assert (loaded.limit, loaded.default_max_tokens) == (7, 256)


def test_flag_of_a_section_leaves_its_other_keys():
    loaded = load_config("rigorous", {**NEEDED, "cost.blocks": 12})
    assert (loaded.cost.blocks, loaded.cost.warmup) == (12, 5)


def test_config_is_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        config().limit = 3


def test_sample_resolves_and_other_names_are_paths():
    assert resolve_trace("sample").name == "sample.jsonl"
    assert resolve_trace("sample").is_file()
    assert str(resolve_trace("./sample")) == "sample"


# --- what is wrong is explained -----------------------------------------------------------------


def test_unknown_key_names_path_line_and_nearest(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("limit: 3\ndraft_lenghts: [2, 4]\ncost:\n  block: 12\n")
    with pytest.raises(ConfigError) as error:
        load_config(file, NEEDED)
    text = message(error)
    assert "c.yaml:2: unknown key 'draft_lenghts'" in text, text
    assert "c.yaml:4: unknown key 'cost.block'" in text, text
    assert "Did you mean cost.blocks?" in text, text


def test_case_unknown_key_of_the_collection(shared):
    with pytest.raises(ConfigError) as error:
        load_config(shared / "cases/inputs/open/D_unknown.yaml", NEEDED)
    text = message(error)
    assert "D_unknown.yaml:1: unknown key 'draft_lenghts'" in text, text
    assert "Did you mean draft_lengths?" in text, text


def test_repeated_key_names_dotted_key_and_both_lines(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("cost:\n  blocks: 10\n  warmup: 3\n  blocks: 20\n")
    with pytest.raises(ConfigError) as error:
        load_config(file, NEEDED)
    text = message(error)
    assert "'cost.blocks' is given twice, on lines 2 and 4" in text, text


def test_case_repeated_key_of_the_collection(shared):
    with pytest.raises(ConfigError, match=r"'gate\.min_speedup' .* lines 2 and 4"):
        load_config(shared / "cases/inputs/open/D_dup.yaml", NEEDED)


def test_unknown_preset_lists_presets_and_the_nearest():
    with pytest.raises(ConfigError, match=r"Did you mean quickstart\? Presets: default, quick"):
        load_config("quikstart", NEEDED)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"limit: [1\n", r"c\.yaml:2: not valid YAML"),
        (b"limit: 3\nmodel: \xe9\n", r"c\.yaml:2: not UTF-8"),
        (b"- 1\n- 2\n", r"c\.yaml: a config is a mapping of keys, this is a list"),
        (b"? [1, 2]\n: 3\n", r"c\.yaml:1: a key must be plain text"),
        (b"cost: null\n", r"c\.yaml:1: cost: "),
        (b"limit: 2.5\n", r"c\.yaml:1: limit: "),
        (b"limit: true\n", r"c\.yaml:1: limit: "),
        (b"cost:\n  blocks: 9\n", r"c\.yaml:2: cost\.blocks: .*10 .*got 9"),
        (b"temperatures: [0.7, .nan]\n", r"c\.yaml:1: temperatures: temperature nan"),
    ],
)
def test_bad_file_names_line_and_key(tmp_path, content, expected):
    file = tmp_path / "c.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=expected):
        load_config(file, NEEDED)


def test_missing_file_is_an_input_error(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml: the file is missing"):
        load_config(tmp_path / "none.yaml", NEEDED)


@pytest.mark.parametrize("key", ["model", "traces", "out"])
def test_missing_required_value_names_its_option(key):
    with pytest.raises(ConfigError, match=rf"{key} is not given\n  Give -{key[0]}"):
        load_config(None, {**NEEDED, key: None})


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("temperatures", "nan", r"--temperatures: temperature nan .*\n.*0 is greedy"),
        ("temperatures", "inf", "--temperatures: temperature inf"),
        ("temperatures", [0.7, -0.5], r"temperature -0\.5 is not a finite number >= 0"),
        ("temperatures", [], "no temperature is given"),
        ("temperatures", "warm", "'warm' is not a temperature"),
        ("temperatures", [True], "True is not a temperature"),
        ("draft_lengths", "0", r"--draft-lengths: draft length 0 is outside 1\.\.64"),
        ("draft_lengths", "0-4", "draft length 0"),
        ("draft_lengths", "4-2", "4 comes after 2"),
        ("draft_lengths", "1-8+0", "a step of 0"),
        ("draft_lengths", "", "'' is not a range"),
        ("draft_lengths", "-3", "'-3' is not a range"),
        ("exit_layers", "0-4", "--exit-layers: exit layer 0 is outside"),
        ("exit_layers", "80%-30%", "'80%-30%' is not a share"),
        ("exit_layers", "30%-180%", "'30%-180%' is not a share"),
        ("exit_layers", "abc", "'abc' is not a range"),
        ("batch_sizes", "0", r"--batch-size: batch size 0 is outside 1\.\.256"),
        ("batch_sizes", "1,4,300", "batch size 300 is outside"),
        ("batch_sizes", "", "--batch-size: '' is not a range"),
        ("batch_sizes", "some", "'some' is not a range"),
        ("batch_sizes", "8-4", "8 comes after 4"),
        ("batch_sizes", [], "--batch-size: '' is not a range"),
        ("batch_sizes", [1, 2.5], r"\[1, 2\.5\] is no batch size"),
        ("batch_sizes", True, "True is no batch size"),
        ("engine", "fast", "--engine: input should be 'auto', 'compiled' or 'eager'"),
        ("limit", 0, "--limit: .*greater than or equal to 1"),
        ("max_tokens", -239, "--max-tokens: .*got -239"),
        ("cost.blocks", 3, r"--cost-blocks: .*greater than or equal to 10"),
        ("cost.contexts", [64, 32], "ascending"),
        ("context_edges", [512, 2048], "start at 0"),
        ("traces", [], "--?t.*: "),
    ],
)
def test_bad_value_names_option_and_reason(key, value, expected):
    with pytest.raises(ConfigError, match=expected) as error:
        config(**{key: value})
    message(error)


@pytest.mark.parametrize("rule", ["argmax", "typical"])
def test_lossy_acceptance_is_refused_with_its_reason(rule):
    with pytest.raises(LossyRuleError) as error:
        config(acceptance=rule)
    text = message(error)
    assert "changes what the model writes" in text, text
    assert "samples" in text, text


# --- ranges -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "num_layers", "expected"),
    [
        ("30%-80%", 30, tuple(range(9, 25))),
        ("30%-80%", 6, (2, 3, 4)),
        ("33.4%-50%", 3, ()),
        ("9-24", 30, tuple(range(9, 25))),
        ("9-24+3", 30, (9, 12, 15, 18, 21, 24)),
        ("9,12,15", 30, (9, 12, 15)),
        ("15, 9,9-11", 30, (9, 10, 11, 15)),
        ("10%-50%+2", 20, (2, 4, 6, 8, 10)),
    ],
)
def test_exit_layers_of_the_grammar(spec, num_layers, expected):
    if expected:
        assert resolve_exit_layers(spec, num_layers) == expected
    else:
        with pytest.raises(ConfigError, match=rf"{spec}.* selects no layer of a model with 3"):
            resolve_exit_layers(spec, num_layers)


@given(low=st.integers(1, 99), high=st.integers(1, 99), num_layers=st.integers(2, 200))
def test_share_of_depth_is_ceil_to_floor(low, high, num_layers):
    """Percentages are exact: 70 % of 10 layers is 7, not a rounded 7.000000001 -> 8."""
    low, high = sorted((low, high))
    expected = [
        layer for layer in range(1, num_layers)
        if Fraction(low, 100) <= Fraction(layer, num_layers) <= Fraction(high, 100)
    ]  # fmt: skip
    if expected:
        assert list(resolve_exit_layers(f"{low}%-{high}%", num_layers)) == expected
    else:
        with pytest.raises(ConfigError, match="selects no layer"):
            resolve_exit_layers(f"{low}%-{high}%", num_layers)


def test_float_rounding_would_lose_a_layer():
    """The broken twin of the test above: ceil in floats drops the layer that lies on the edge."""
    assert math.ceil(0.07 * 100) == 8, "floats round 7 % of 100 up here"
    assert resolve_exit_layers("7%-9%", 100) == (7, 8, 9)


@pytest.mark.parametrize(
    ("spec", "num_layers", "expected"),
    [
        ("30%-80%", 30, (7, 8, 25, 26)),  # 9..24
        ("30%-80%", 4, (1,)),  # 2..3: one layer below, none above
        ("10%-90%", 10, ()),  # 1..9: the range is all there is
        ("30%-80%+4", 30, (7, 8, 22, 23)),  # 9, 13, 17, 21
        ("9-24", 30, ()),
        ("9,12", 30, ()),
    ],
)
def test_layers_beyond_a_share_lie_next_to_it(spec, num_layers, expected):
    """Numbers written out are the user's own choice; a share is only where one looks first."""
    assert beyond_exit_layers(spec, num_layers) == expected
    assert not set(expected) & set(resolve_exit_layers(spec, num_layers))


@pytest.mark.parametrize("spec", ["0", "6", "7", "1-6"])
def test_layer_outside_the_model_names_the_valid_range(spec):
    with pytest.raises(ConfigError, match=r"outside 1\.\.5 for a model with 6 layers"):
        resolve_exit_layers(spec, 6)


def test_full_depth_only_where_asked():
    assert resolve_exit_layers("1-6", 6, allow_full=True) == (1, 2, 3, 4, 5, 6)
    with pytest.raises(ConfigError, match=r"outside 1\.\.6"):
        resolve_exit_layers("7", 6, allow_full=True)


@pytest.mark.parametrize("spec", ["30%-80%", "1"])
def test_one_layer_model_cannot_exit_early(spec):
    with pytest.raises(ConfigError, match="1 layer"):
        resolve_exit_layers(spec, 1)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [("1-8", tuple(range(1, 9))), ("1-8+2", (1, 3, 5, 7)), ("4,1,2,2", (1, 2, 4)), ("3", (3,))],
)
def test_draft_lengths_of_the_grammar(spec, expected):
    assert resolve_draft_lengths(spec) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("trace", "trace"),
        ("0.7,0", (0.0, 0.7)),
        ([1, 0.0, 0, -0.0], (0.0, 1.0)),
        (0.5, (0.5,)),
        ("1e-1", (0.1,)),
    ],
)
def test_temperatures(value, expected):
    assert parse_temperatures(value) == expected


def test_minus_zero_is_zero():
    assert math.copysign(1.0, parse_temperatures("-0.0")[0]) == 1.0


@pytest.mark.parametrize("written", ["1,4,8", "8,1, 4,4", [1, 4, 8], ["1", 4, "8"]])
def test_batch_sizes_ascend_and_the_smallest_is_the_base(written):
    assert config(batch_sizes=written).batch_sizes == (1, 4, 8)
    assert config(batch_sizes=4).batch_sizes == (4,)


def test_only_the_rigorous_preset_prices_larger_batches():
    """Each size costs time; without one the plan says that it was measured at batch 1 only."""
    found = {name: load_config(name, NEEDED).batch_sizes for name in preset_names()}
    assert found == {"default": (1,), "quickstart": (1,), "rigorous": (1, 4, 8)}


@pytest.mark.parametrize("written", ["4", 4, [4]])
def test_range_may_be_text_number_or_list(written):
    assert config(draft_lengths=written).draft_lengths == "4"


def test_scientific_count_is_read_as_a_whole_number(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("limit: 1e3\ntemperatures: [0, 7e-1, 1.0e0]\n")
    loaded = load_config(file, NEEDED)
    assert (loaded.limit, loaded.temperatures) == (1000, (0.0, 0.7, 1.0))


# --- hashes -------------------------------------------------------------------------------------

CHANGED = {
    "model": "other", "traces": ["other.jsonl"], "device": "cpu", "dtype": "bfloat16",
    "engine": "eager", "seed": 1, "exit_layers": "1-3", "draft_lengths": "1-4",
    "temperatures": "0.5", "limit": 5, "max_tokens": 9, "default_max_tokens": 64,
    "continuations": "regenerate", "sweep": "decode", "observe_batch": 2,
    "chat_template": "x.jinja", "device_map": "auto", "tokenizer": "tok",
    "draft_truncation": "none", "cost.blocks": 11,
    "cost.contexts": [32, 64], "cost.warmup": 3, "confirm.cells": 3, "confirm.requests": 5,
    "confirm.min_tokens": 8, "confirm.repeats": 2, "confirm.budget_s": 60, "include_text": True,
    "task_from": "file", "batch_sizes": "1,4",
}  # fmt: skip


@pytest.mark.parametrize("key", sorted(CHANGED))
def test_measurement_hash_moves_with_every_measurement_key(key):
    assert measurement_hash(config(**{key: CHANGED[key]})) != measurement_hash(config()), key


def test_every_key_is_measurement_analysis_or_place():
    sections = {name for name, _ in leaves() if name.partition(".")[0] in ANALYSIS_KEYS}
    missing = {name for name, _ in leaves()} - {*CHANGED, *ANALYSIS_KEYS, *PLACE_KEYS, *sections}
    assert missing == {"acceptance"}, missing  # it has one value only


def test_place_and_analysis_keys_leave_the_measurement():
    moved = config(out="elsewhere", context_edges=[0, 100], **{"plan.margin": 0.1})
    assert measurement_hash(moved) == measurement_hash(config())
    assert analysis_hash(moved) != analysis_hash(config())
    assert analysis_hash(config(out="elsewhere")) == analysis_hash(config())


def test_equal_settings_written_differently_are_one_measurement():
    one = config(draft_lengths="1-4", temperatures="0.7,0")
    two = config(draft_lengths=[1, 2, 3, 4], temperatures=[0, 0.7])
    assert measurement_hash(one) == measurement_hash(two)


def test_facts_replace_the_words_they_resolve():
    """A trace that moved is the same measurement; one that changed in place is another."""
    here, there = config(traces=["a/t.jsonl"]), config(traces=["b/t.jsonl"])
    assert measurement_hash(here, {"traces": "h1"}) == measurement_hash(there, {"traces": "h1"})
    assert measurement_hash(here, {"traces": "h1"}) != measurement_hash(here, {"traces": "h2"})
    named, share = {"exit_layers_beyond": []}, {"exit_layers_beyond": [7, 8]}
    assert measurement_hash(here, named) != measurement_hash(here, share), "other layers observed"
    with pytest.raises(KeyError, match="context_edges"):
        measurement_document(here, {"context_edges": [0]})


def test_measurement_hash_is_stable_across_versions():
    """Golden: a change here makes every existing run refuse to resume; do it on purpose only."""
    assert measurement_hash(config()) == (
        "fd62001216810032803e95561375fde68cd7db0423471461ded90878927c25cb"
    )

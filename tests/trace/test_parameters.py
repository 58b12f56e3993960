"""Sampling parameters: what is out of range or cannot be applied never runs."""

import math

import pytest

from selfspec_cli.records import Sampling
from selfspec_cli.trace.parameters import (
    read_max_tokens,
    read_sampling,
    read_stop,
    read_temperature,
    refuse_unsupported,
)
from selfspec_cli.trace.rows import RowRefusedError


def test_read_sampling_of_absent_and_null_is_off():
    names = ("temperature", "top_p", "top_k", "repetition_penalty", "logit_bias", "min_tokens")
    assert read_sampling({}) == read_sampling(dict.fromkeys(names)) == Sampling()


@pytest.mark.parametrize(
    ("top_k", "expected"), [(-1, 0), (0, 0), (None, 0), (1, 1), (10**5, 10**5)]
)
def test_read_sampling_top_k_has_three_spellings_of_off(top_k, expected):
    assert read_sampling({"top_k": top_k}).top_k == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", -0.5),
        ("temperature", "0.7"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_p", math.nan),
        ("top_k", -2),
        ("top_k", 2.5),
        ("top_k", "50"),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.nan),
        ("presence_penalty", math.inf),
        ("frequency_penalty", "1"),
        ("min_tokens", -1),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"1": math.nan}),
        ("logit_bias", {"1": 1, "01": 2}),
        ("logit_bias", [1]),
    ],
)
def test_read_sampling_refuses_naming_the_field(name, value):
    with pytest.raises(RowRefusedError) as caught:
        read_sampling({name: value})
    assert caught.value.reason == f"invalid {name}"


def test_read_sampling_reads_every_parameter():
    row = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.3,
        "min_tokens": 8,
        "logit_bias": {"40": -100, "7": 1.5},
    }
    expected = {**row, "logit_bias": ((7, 1.5), (40, -100.0))}
    assert read_sampling(row) == Sampling(**expected)


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (16.0, 16), (1, 1), (None, None)])
def test_read_max_tokens(value, expected):
    assert read_max_tokens({"max_tokens": value}) == expected


def test_read_max_tokens_prefers_the_newer_name():
    assert read_max_tokens({"max_tokens": 5, "max_completion_tokens": 8}) == 8


def test_read_temperature_is_none_where_the_trace_does_not_say():
    assert read_temperature({}) is None
    assert read_temperature({"temperature": 0}) == 0.0


@pytest.mark.parametrize(
    ("value", "expected"), [(None, ()), ([], ()), ("a", ("a",)), (["b", "a"], ("b", "a"))]
)
def test_read_stop(value, expected):
    assert read_stop({"stop": value}) == expected


@pytest.mark.parametrize("value", ["", ["a", ""], [1], 3, {"a": 1}])
def test_read_stop_refuses(value):
    with pytest.raises(RowRefusedError, match="invalid stop"):
        read_stop({"stop": value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("guided_json", {"type": "object"}),
        ("guided_whatever", "x"),
        ("response_format", {"type": "json_object"}),
        ("typical_p", 0.9),
        ("min_p", 0.05),
        ("min_p", math.nan),
        ("no_repeat_ngram_size", 2),
        ("bad_words", ["no"]),
        ("stop_token_ids", [3]),
        ("ignore_eos", True),
        ("do_sample", False),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function"}),
        ("chat_template_kwargs", {"enable_thinking": False}),
        ("num_beams", 4),
    ],
)
def test_refuse_unsupported_names_the_parameter(name, value):
    with pytest.raises(RowRefusedError) as caught:
        refuse_unsupported({name: value})
    assert caught.value.reason == "unsupported parameter"
    assert name in caught.value.detail


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("guided_json", None),
        ("response_format", {"type": "text"}),
        ("typical_p", 1.0),
        ("min_p", 0),
        ("bad_words", []),
        ("ignore_eos", False),
        ("do_sample", True),
        ("tool_choice", "auto"),
        ("seed", 7),
        ("logprobs", True),
        ("n", 1),
        ("stream", True),
        ("anything", {"nested": [1, None]}),
    ],
)
def test_refuse_unsupported_lets_neutral_values_pass(name, value):
    refuse_unsupported({name: value})


@pytest.mark.parametrize(("n", "reason"), [(3, "n > 1"), (0, "invalid n"), ("3", "invalid n")])
def test_refuse_unsupported_does_not_expand_rows(n, reason):
    with pytest.raises(RowRefusedError) as caught:
        refuse_unsupported({"n": n})
    assert caught.value.reason == reason

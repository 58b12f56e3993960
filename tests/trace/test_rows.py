"""One line to one JSON object, and checked fields."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfspec_cli.trace.lines import Line
from selfspec_cli.trace.rows import RowRefusedError, finite, integer, label, parse_row, show


def line(data: bytes, *, terminated: bool = True) -> Line:
    return Line(number=1, data=data, terminated=terminated)


@pytest.mark.parametrize(
    ("data", "terminated", "reason"),
    [
        (b'{"a": 1', True, "malformed"),
        (b'{"a": 1', False, "torn last line"),
        (b"[1, 2]", True, "malformed"),
        (b"[1, 2]", False, "malformed"),
        (b"null", True, "malformed"),
        (b"what", False, "malformed"),
        (b'{"a": "caf\xe9"}', True, "not UTF-8"),
        (b'{"a": "caf\xe9"}', False, "not UTF-8"),
        (b'{"a": "caf\xc3', False, "torn last line"),
        (b'{"a": "\\ud800"}', True, "malformed"),
        (b'{"a": "\\ud800", "b": NaN}', True, "malformed"),
        (b'{"a": ' + b"[" * 100_000, True, "malformed"),
        (b'{"a": NaN, "b": ' + b"[" * 100_000, True, "malformed"),
        (b'{"a": "\x00"}', True, "malformed"),
    ],
)
def test_parse_row_refuses_with_a_countable_reason(data, terminated, reason):
    with pytest.raises(RowRefusedError) as caught:
        parse_row(line(data, terminated=terminated))
    assert caught.value.reason == reason, f"{data[:40]!r}: {caught.value}"


def test_parse_row_takes_nan_so_that_its_field_can_be_named():
    assert str(parse_row(line(b'{"a": NaN, "b": [1, null]}'))) == "{'a': nan, 'b': [1, None]}"


def test_refused_line_does_not_repeat_its_text():
    with pytest.raises(RowRefusedError) as caught:
        parse_row(line(b'{"prompt": "my secret'))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "1", None, [1], 10**400])
def test_finite_gives_none_for_what_is_not_a_finite_number(value):
    assert finite(value) is None


def test_finite_has_no_negative_zero():
    assert str(finite(-0.0)) == "0.0"


@pytest.mark.parametrize(("value", "expected"), [(16.0, 16), (0, 0), (None, None)])
def test_integer_takes_whole_floats(value, expected):
    assert integer({"m": value}, ("m",), low=0) == expected


@pytest.mark.parametrize("value", [16.5, -1, "16", True, float("nan"), 2**31, 1e400])
def test_integer_refuses_by_the_spelling_used(value):
    with pytest.raises(RowRefusedError, match="invalid max_completion_tokens"):
        integer({"max_completion_tokens": value}, ("max_tokens", "max_completion_tokens"), low=0)


@settings(deadline=None)
@given(st.text(min_size=1))
def test_label_is_kept_exactly(text):
    assert label({"task": text}, ("task",)) == text


@settings(deadline=None)
@given(st.text(), st.integers(0, 200))
def test_show_is_one_short_ascii_line(text, repeats):
    shown = show(text * repeats)
    assert shown.isascii()
    assert shown.isprintable()
    assert len(shown) <= 63, f"{len(shown)} characters"

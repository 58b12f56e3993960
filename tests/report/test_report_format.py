"""Numbers and labels as text."""

import math

import numpy as np
import pandas as pd
import pytest

from selfspec_cli.report import format as text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.123, "12 %"), (1.0, "100 %"), (0.0, "0 %"), (-0.0, "0 %"), (-0.0004, "0.0 %"),
        (0.0042, "0.4 %"), (-0.12, "-12 %"), (None, "n/a"), (math.nan, "n/a"), (math.inf, "n/a"),
        (np.float32(0.5), "50 %"), (pd.NA, "n/a"),
    ],
)  # fmt: skip
def test_percent_never_prints_minus_zero_or_nan(value, shown):
    assert text.percent(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1.0, "1.0"), (0.1 + 0.2, "0.30000000000000004"), (np.float64(1.5), "1.5"), (7, "7"),
     (np.int64(7), "7"), (None, ""), (math.nan, ""), (-math.inf, "")],
)  # fmt: skip
def test_exact_keeps_every_digit_and_leaves_undefined_empty(value, shown):
    assert text.exact(value) == shown


def test_ratios_come_with_their_interval_or_without():
    assert text.ratio_with_interval(1.094, 1.032, 1.16) == "1.09x (1.03-1.16)"
    assert text.ratio_with_interval(1.094, None, 1.16) == "1.09x"
    assert text.ratio_with_interval(None, 1.0, 1.1) == "n/a"
    assert text.percent_interval(0.081, 0.149) == "8 to 15 %"
    assert text.percent_interval(None, 0.1) == ""


def test_counts_and_nouns_agree():
    assert [text.plural(n, "bucket") for n in (0, 1, 12345)] == [
        "0 buckets", "1 bucket", "12,345 buckets",
    ]  # fmt: skip


def test_labels_show_what_cannot_be_printed():
    assert text.shown("a\x1b[31mb\n\x00") == "a\\x1b[31mb\\n\\x00"
    assert text.shown("\u202eabc") == "\\u202eabc", "a direction mark must not reorder the line"
    assert text.shown("résumé 中文") == "résumé 中文"
    assert text.shown("x" * 50, 10) == "xxxxxxx..."

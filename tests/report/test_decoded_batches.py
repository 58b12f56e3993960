"""Batches decoded for real stand beside their prices in every page, from new files and old ones."""

import pandas as pd
import pytest

from selfspec_cli.report.decoded_batches import decoded_batches
from selfspec_cli.report.markdown import render_markdown
from selfspec_cli.report.page import render_page
from selfspec_cli.report.view import build_view
from selfspec_cli.storage import write_table

ROW = {
    "batch_size": 4, "temperature": 0.0, "law": "greedy", "exit_layer": 4, "draft_length": 3,
    "repeat": 0, "num_requests": 12, "committed": 600, "rounds": 180, "plain_seconds": 6.0,
    "seconds": 5.0, "plain_full_seconds": 4.8, "plain_full_committed": 576, "full_seconds": 3.2,
    "full_committed": 560, "full_rounds": 160, "priced_plain_seconds": 6.0, "priced_seconds": 5.0,
    "predicted_plain_seconds": 6.3, "predicted_seconds": 4.5, "exact": True, "is_tie": None,
}  # fmt: skip
"""Refill: 4.8 s of 576 steps make 5 s of 600; 3.2 s of 160 rounds make 3.6 s of 180: 1.39."""


@pytest.fixture
def table():
    """One cell in both schedules; static took 6 s and 5 s: 1.20."""
    rows = [{**ROW, "schedule": "refill"}, {**ROW, "schedule": "static"}]
    return pd.DataFrame(rows)


def test_numbers_by_hand(table):
    refill, static = decoded_batches(table)
    assert refill.measured_speedup == pytest.approx(5.0 / 3.6)
    assert static.measured_speedup == pytest.approx(1.2)
    assert refill.predicted_speedup == pytest.approx(1.4)
    assert (refill.signed_error, static.signed_error) == ("+0.8 %", "+16.7 %")
    assert refill.output == "as plain decoding"


def test_a_file_of_an_earlier_version_has_no_measured_refill(table):
    """Without `full_rounds` nothing says how far the full phase came: missing, not wrong."""
    refill, static = decoded_batches(table.drop(columns=["full_rounds", "is_tie"]))
    assert refill.measured_speedup is None
    assert refill.signed_error == "n/a"
    assert static.measured_speedup == pytest.approx(1.2)


def test_output_that_differs_is_shouted(table):
    (found, _) = decoded_batches(table.assign(exact=False))
    assert found.output == "DIFFERS from plain decoding"
    (sampled, _) = decoded_batches(table.assign(temperature=0.7, exact=None))
    assert sampled.output == "n/a", "at T > 0 there is nothing to compare token by token"


def test_nothing_decoded_is_no_table(tiny_view):
    assert decoded_batches(None) == decoded_batches(pd.DataFrame()) == ()
    assert tiny_view.decoded_batches == ()
    assert 'class="decoded"' not in render_page(tiny_view, {})
    assert "decoded in batches" not in render_markdown(tiny_view)


def test_both_pages_show_predicted_against_measured(own_run, table):
    write_table(table, own_run / "confirm_batch.csv")
    view = build_view(own_run)
    page = render_page(view, {})
    assert page.count('<tr class="decoded"') == 2
    assert 'data-schedule="static" data-batch-size="4" data-predicted-speedup="1.4"' in page
    assert "<td>1.39x</td>" in page
    text = render_markdown(view)
    assert "| refill | 4 | L=4, k=3, T=0 | 1.40x | 1.39x | +0.8 % | as plain decoding |" in text
    assert "| static | 4 | L=4, k=3, T=0 | 1.40x | 1.20x | +16.7 % | as plain decoding |" in text

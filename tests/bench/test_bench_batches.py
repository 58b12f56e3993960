"""Speedups of whole batches: the repeat is the unit, and fewer than three say nothing."""

import re

import numpy as np
import pytest
from bench_tables import bench_table, decode, whole_batch

from selfspec_cli.analysis.intervals import jackknife_ratios
from selfspec_cli.bench import words
from selfspec_cli.bench.document import summary_document
from selfspec_cli.bench.markdown import render_markdown
from selfspec_cli.bench.page import render
from selfspec_cli.bench.sheet import summary_sheet
from selfspec_cli.bench.summary import summarise
from selfspec_cli.buckets import BucketKey

CHAT = BucketKey(task="chat", context_min=0, context_max=None, temperature=0.0)


def repeats(plain, fast, **more):
    """Rows of one bucket: both arms' seconds by repeat."""
    rows = []
    for repeat, (before, own) in enumerate(zip(plain, fast, strict=True)):
        rows.append(whole_batch(seconds=before, repeat=repeat, **more))
        rows.append(whole_batch(arm="plan", seconds=own, repeat=repeat, **more))
    return rows


def of(rows, bucket=CHAT, traffic=None):
    summary = summarise(bench_table(rows), None, traffic=traffic)
    return summary.total("plan", 8) if bucket is None else summary.line(bucket, "plan", 8)


def test_the_interval_is_the_jackknife_over_repeats():
    found = of(repeats((2.0, 2.2, 2.4, 2.0), (1.0, 1.0, 1.3, 1.1))).speedup
    assert found.estimate == pytest.approx(8.6 / 4.4)
    left = np.log([6.6 / 3.4, 6.4 / 3.4, 6.2 / 3.1, 6.6 / 3.3])
    assert found.log_sd == pytest.approx(np.sqrt(3 / 4 * ((left - left.mean()) ** 2).sum()))
    assert found.num_groups == 4
    assert found.low < found.estimate < found.high


@pytest.mark.parametrize(("n", "known"), [(1, False), (2, False), (3, True)])
def test_an_interval_needs_three_repeats(n, known):
    line = of(repeats([2.0 + i / 10 for i in range(n)], [1.0] * n))
    assert (line.speedup.low is not None) == known, f"{n} repeats: {line.speedup}"
    assert line.speedup.estimate == pytest.approx(2.0 + (n - 1) / 20), "the ratio stays"


def test_no_verdict_rests_on_repeats_of_the_same_requests():
    line = of(repeats([2.0 + i / 100 for i in range(12)], [1.0] * 12))
    assert line.speedup.low > 1.9
    assert words.verdict(line.speedup) == words.FASTER, "what as many requests would say"
    assert words.says(line) == words.NO_VERDICT


def test_a_drift_of_the_machine_is_no_difference():
    """Both arms slow down alike from repeat to repeat; unpaired, the interval would be wide."""
    plain = np.array([1.0, 2.0, 4.0, 8.0])
    found = of(repeats(plain, plain / [1.49, 1.5, 1.51, 1.5])).speedup
    assert 1.45 < found.low < 1.5 < found.high < 1.55, f"{found.low:.2f}-{found.high:.2f}"


def test_totals_take_a_repeat_over_all_buckets_and_only_whole_ones():
    code = BucketKey(task="code", context_min=0, context_max=512, temperature=0.0)
    other = {"task": "code", "context_max": 512}
    chat = repeats((2.0, 2.2, 2.1, 50.0), (1.0, 1.1, 1.0, 1.0))
    rows = [*chat, *repeats((1.0, 1.0, 1.2), (2.0, 2.1, 2.0), **other)]
    traffic = {CHAT: 240.0, code: 240.0}
    found = of(rows, None, traffic).speedup
    assert found.estimate == pytest.approx((6.3 + 3.2) / (3.1 + 6.1)), "a fourth repeat of one"
    assert (found.num_groups, found.low is not None) == (3, True)
    two = [*chat, *repeats((1.0, 1.0), (2.0, 2.1), **other)]
    assert of(two, None, traffic).speedup.low is None, "code was decoded twice"


def test_every_form_shows_the_interval_and_what_it_rests_on():
    rows = [decode("r"), decode("r", arm="plan", seconds=0.8)]
    rows += repeats((2.0, 2.2, 2.1), (1.0, 1.1, 1.0))
    summary = summarise(bench_table(rows), None)
    found = summary.line(CHAT, "plan", 8).speedup
    shown = f"{found.estimate:.2f}x ({found.low:.2f}-{found.high:.2f})"
    facts = " ".join(words.facts(summary))
    assert f"Batch 8: plain 38.1 tokens/s, plan {shown}." in facts
    assert "of whole batches over repeats of the same requests, timing alone" in facts
    sheet = summary_sheet(summary)
    own = sheet.loc[(sheet["batch_size"] == 8) & (sheet["arm"] == "plan")].iloc[0]
    assert (own["speedup_low"], own["speedup_high"]) == (found.low, found.high)
    assert (own["interval_over"], own["num_groups"], own["verdict"]) == ("repeats", 3, "no verdict")
    lines = [one for one in summary_document(summary)["lines"] if one["batch_size"] == 8]
    assert [one["speedup"]["low"] for one in lines] == [1.0, found.low]
    text = re.sub(r"\s+", " ", render(summary))
    assert f"<td>{shown}</td>" in text, "the page hides the interval"
    assert "over repeats of the same requests, from 3 repeats on" in text
    rate = f"{240 / 3.1:.1f}"
    cells = [re.sub(r"\s+", "", line) for line in render_markdown(summary).splitlines()]
    assert any(f"|{rate}|{shown.replace(' ', '')}|" in line for line in cells), cells
    few = summarise(bench_table(repeats((2.0, 2.0), (1.0, 1.1))), None)
    assert "whole batches need 3 repeats for one (--repeats)" in " ".join(words.facts(few))


@pytest.mark.parametrize("n", [3, 5])
def test_intervals_of_equal_arms_miss_1_in_few_benches(n):
    """400 benches: 5 % is aimed at, 20 expected, 34 allowed (z = 3.2)."""
    rng = np.random.default_rng(n)
    seconds = rng.lognormal(sigma=0.1, size=(n, 400, 2))

    def misses(factor):
        found = jackknife_ratios(seconds[..., 0] * factor, seconds[..., 1])
        return int(((found.low > 1.0) | (found.high < 1.0)).sum())

    first = of(repeats(*seconds[:, 0].T)).speedup
    found = jackknife_ratios(seconds[..., 0], seconds[..., 1])
    assert (first.low, first.high) == pytest.approx((found.low[0], found.high[0]))
    assert misses(1.0) <= 34, f"{misses(1.0)} of 400 intervals of equal arms miss 1"
    # Broken twin: an arm twice as fast must be seen.
    assert misses(2.0) >= 340, f"only {misses(2.0)} of 400 saw an arm twice as fast"

"""Repeated n-grams of sampled output: counted as they should be, judged only by pairs."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from selfspec_cli.analysis.repeats import compare_repeats, num_repeated, sign_exchange_p
from selfspec_cli.report.evidence import gather
from selfspec_cli.report.finding_repeats import FALSE_ALARM, repeats_more
from selfspec_cli.report.tables import read_run

RUNS = 400
STATES = 24


@pytest.fixture(scope="module")
def evidence(tiny_run):
    """Of a run as earlier versions wrote it, without counts of n-grams."""
    tables, empty = read_run(tiny_run), pd.DataFrame()
    return gather(tables, {"by_layer": empty, "measured": empty, "grid": empty}, ())


def decodes(free, plain, ngrams=50, **columns):
    """Rows of confirm.csv, one request each."""
    n = len(free)
    rows = pd.DataFrame(
        {
            "path_id": [f"r{i}|T=0.7" for i in range(n)], "group_id": [f"g{i}" for i in range(n)],
            "temperature": 0.7, "role": "rule", "exit_layer": 2, "draft_length": 3, "repeat": 0,
            "ngrams": ngrams, "free_repeated": free, "plain_repeated": plain,
        }
    )  # fmt: skip
    return rows.assign(**columns)


def found(evidence, table):
    return [one.evidence for one in repeats_more(replace(evidence, decodes=table))]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], 0), ([7, 7, 7], 0), ([7, 7, 7, 7], 0), ([7] * 10, 6), ([1, 2, 3, 4, 1, 2, 3, 4], 1),
        ([1, 2, 3, 4, 9, 1, 2, 3, 5], 0), ([1, 2] * 6, 7), (list(range(40)), 0),
    ],
)  # fmt: skip
def test_repeated_ngrams_counted_by_hand(tokens, expected):
    assert num_repeated(tokens) == expected


def test_both_texts_are_counted_over_the_length_of_the_shorter():
    """A text against its own beginning repeats no more; counted whole, it would seem to."""
    text = [1, 2, 3, 4, 5, 6, *[8] * 30]
    counts = compare_repeats(text, text[:12])
    assert (counts.ngrams, counts.repeated, counts.plain_repeated) == (9, 2, 2)
    assert num_repeated(text) / 33 > 2 / 9, "the premise: the whole text has a higher rate"
    assert compare_repeats(text, text[:3]).ngrams == 0


def test_the_p_value_of_exchanged_signs():
    assert sign_exchange_p([0.1] * 8) == 1 / 256
    assert sign_exchange_p([0.0] * 8) == 1.0
    assert sign_exchange_p([]) == 1.0
    assert sign_exchange_p([-0.1] * 8) == 1.0
    assert sign_exchange_p([0.3, -0.1]) == 0.5, "two of four patterns reach 0.2"
    given = np.linspace(-0.7, 1.0, 40)
    normal = stats.norm.sf(given.sum() / np.sqrt((given**2).sum()))
    many = sign_exchange_p(given)
    assert many == pytest.approx(normal, rel=0.2), f"{many:.4f}, the normal law has {normal:.4f}"


def test_circles_are_told_with_both_rates(evidence):
    (text,) = found(evidence, decodes([20] * 9, [1] * 9))
    assert text.startswith("40 % of its 4-grams came before in the same text, 2 % in plain text")
    assert "9 paths" in text
    assert "9 requests; p 0.002, 0.005 is the limit" in text


@pytest.mark.parametrize(
    ("why", "table"),
    [
        ("seven requests are too few", decodes([20] * 7, [1] * 7)),
        ("three points are no circle", decodes([20] * 30, [18.5] * 30)),
        ("plain text repeats more", decodes([1] * 30, [20] * 30)),
        ("greedy outputs are equal", decodes([20] * 30, [1] * 30, temperature=0.0)),
        ("recorded text is of another law", decodes([20] * 30, [1] * 30, source="recorded")),
        ("one request in 30 runs in circles", decodes([40, *[0] * 29], [0] * 30)),
        ("30 decodes of one conversation", decodes([20] * 30, [1] * 30, group_id="g")),
        ("30 decodes of one path", decodes([20] * 30, [1] * 30, path_id="p", group_id="g")),
        ("outputs are too short", decodes([0] * 30, [0] * 30, ngrams=0)),
        ("nothing was decoded freely", decodes([np.nan] * 30, [np.nan] * 30, ngrams=np.nan)),
        ("nothing was decoded", pd.DataFrame()),
    ],
)
def test_thin_or_foreign_evidence_is_no_finding(evidence, why, table):
    assert found(evidence, table) == [], why


def test_a_run_of_an_earlier_version_is_read_and_not_judged(evidence):
    assert "ngrams" not in evidence.decodes
    assert len(evidence.decodes) > 0
    assert found(evidence, evidence.decodes) == []


def test_the_decode_of_the_rule_is_the_pair(evidence):
    """The runner-up's decodes of the same path are no further pairs, in whatever order."""
    rule, other = decodes([20] * 9, [1] * 9), decodes([1] * 9, [1] * 9, role="runner_up")
    other = other.assign(exit_layer=1)
    assert found(evidence, pd.concat([other, rule], ignore_index=True))
    swapped = [other.assign(role="rule"), rule.assign(role="runner_up")]
    assert not found(evidence, pd.concat(swapped, ignore_index=True))


def texts(rng, count, length):
    """Of a chain that loves to go in circles: from each state one step has 0.8 to 0.97."""
    follows = rng.integers(0, STATES, STATES)
    stay = rng.uniform(0.8, 0.97, count)  # of each request, both of its texts
    rows = np.empty((length, 2, count), dtype=np.int64)
    rows[0] = rng.integers(0, STATES, count)
    for at in range(1, length):
        jump = rng.random((2, count)) >= stay
        rows[at] = np.where(jump, rng.integers(0, STATES, (2, count)), follows[rows[at - 1]])
    ends = rng.geometric(0.02, (2, count)).clip(max=length)
    return [[rows[: ends[side, i], side, i].tolist() for side in (0, 1)] for i in range(count)]


def test_sound_runs_are_accused_at_the_stated_rate(evidence):
    """400 runs of 8 to 24 requests, both texts of one law that repeats a lot: at most 0.5 % are
    accused, so more than 6 has a probability below 0.5 %. A test that takes every n-gram for an
    observation of its own accuses one run in twenty or more."""
    rng, alarms, naive = np.random.default_rng(6), 0, 0
    for _ in range(RUNS):
        pairs = [compare_repeats(*two) for two in texts(rng, int(rng.integers(8, 25)), 60)]
        table = decodes(
            [one.repeated for one in pairs],
            [one.plain_repeated for one in pairs],
            [one.ngrams for one in pairs],
        )
        alarms += len(found(evidence, table))
        n, free, plain = table[["ngrams", "free_repeated", "plain_repeated"]].sum()
        pooled = (free + plain) / (2 * n)
        z = (free - plain) / np.sqrt(2 * n * pooled * (1 - pooled))
        naive += stats.norm.sf(z) <= FALSE_ALARM
    assert alarms <= 6, f"{alarms} of {RUNS} sound runs accused"
    assert naive > RUNS / 20, f"only {naive} by the broken twin: the chain does not repeat enough"

"""Confirming cells on a path: what is decoded, how often, and what a row says."""

import functools
from dataclasses import astuple, replace

import numpy as np
import pytest
from checkpoints import random_model
from replay_helpers import requests, setting_of, view_of

from selfspec_cli.analysis.confirm_choice import CELLS_PER_BASELINE
from selfspec_cli.engine.view import LayerView
from selfspec_cli.replay.confirm import ConfirmPath, confirm_path
from selfspec_cli.replay.decode import Cell
from selfspec_cli.replay.observe import PathJob, observe

EXITS = (1, 3)
CELLS = [Cell(layer, k) for layer in EXITS for k in (1, 3)]


class Steps:
    """A clock that tells how many passes of the whole model or of a part were made."""

    def __init__(self, view: LayerView) -> None:
        self.calls = 0
        self.spans = []
        self.view = view

    def span(self, step, repeats=1):
        step()
        self.spans.append(len(self.spans) + 1)
        return float(len(self.spans))


@functools.cache
def setting(eos=None):
    model = random_model("gpt2", vocab_size=32, num_attention_heads=1, gain=16.0)
    return setting_of(view_of(model), eos=eos, seed=2)


def subject(temperature, budget=12, **changes):
    one = requests(1, budget, tokens=(3, 32))[0]
    job = PathJob(request=one, temperature=temperature, source="regenerated")
    path = observe(setting(), [job], EXITS)[0]
    given = {
        layer: (0.0, *path.scores.accept_given_path[row, 1:].tolist())
        for row, layer in enumerate(EXITS)
    }
    made = ConfirmPath(
        path_id=job.path_id, request=one, temperature=temperature, tokens=path.tokens,
        budget=budget, accept_given_path=given,
    )  # fmt: skip
    return replace(made, **changes)


def test_greedy_rows_equal_plain_decoding_and_need_no_free_decode():
    rows = confirm_path(setting(), subject(0.0), CELLS)
    assert len(rows) == len(CELLS)
    for row in rows:
        assert row["exact"] is True
        assert row["first_difference"] is None
        assert row["free_rounds"] is None
        assert row["committed"] == 11
        assert row["rounds"] == len(row["round_drafted"]) == len(row["round_contexts"])
        assert row["drafted"] == sum(row["round_drafted"])
        assert row["round_contexts"][0] == row["prompt_tokens"]


def test_sampled_rows_hold_the_path_and_a_free_decode_of_their_own():
    rows = confirm_path(setting(), subject(1.0), CELLS)
    for row in rows:
        assert row["exact"] is None, "texts at T > 0 are equal in law only"
        assert row["committed"] == 11
        assert row["free_committed"] == 11
        assert row["accepted"] + row["rounds"] >= 11, "each round adds at most one token of its own"
    free = [row["free_rounds"] for row in rows]
    assert free != [row["rounds"] for row in rows], "free decodes repeat the script"


def test_free_text_is_counted_beside_the_path():
    """A path of one token over and over has 9 4-grams of which 8 came before; free text of this
    model has its own. At temperature 0 texts are equal, so there is nothing to count."""
    loop = subject(1.0, tokens=(5,) * 12)
    rows = confirm_path(setting(), loop, CELLS)
    assert {(row["ngrams"], row["plain_repeated"]) for row in rows} == {(9, 8)}
    assert max(row["free_repeated"] for row in rows) < 8, "free text was taken from the path"
    greedy = confirm_path(setting(), subject(0.0), CELLS)
    assert {row["ngrams"] for row in greedy} == {None}


def test_a_cell_is_compared_with_the_plain_runs_around_it():
    """Times of a clock that counts its readings: prefill, plain, three cells, plain, the rest."""
    clock = Steps(setting().loaded.view)
    rows = confirm_path(setting(), subject(0.0), CELLS, clock=clock)
    assert len(clock.spans) == 1 + 1 + len(CELLS) + -(-len(CELLS) // CELLS_PER_BASELINE)
    assert [row["seconds"] for row in rows] == [3, 4, 5, 7]
    assert [row["ar_seconds"] for row in rows] == [(2 + 6) / 2] * 3 + [(6 + 8) / 2]
    assert {row["prefill_seconds"] for row in rows} == {1.0}


def test_repeats_shuffle_the_cells_and_toss_new_coins():
    rows = confirm_path(setting(), subject(1.0, budget=16), CELLS, repeats=3)
    orders = [
        tuple((row["exit_layer"], row["draft_length"]) for row in rows if row["repeat"] == i)
        for i in range(3)
    ]
    assert len(rows) == 3 * len(CELLS)
    assert len(set(orders)) > 1, f"always the order {orders[0]}"
    for cell in CELLS:
        own = [row for row in rows if (row["exit_layer"], row["draft_length"]) == astuple(cell)]
        starts = {tuple(row["round_contexts"]) for row in own}
        assert len(starts) > 1, f"{cell}: the same coins in every repeat"


def test_the_same_seed_decodes_the_same_rounds():
    first, again = (confirm_path(setting(), subject(1.0), CELLS, repeats=2) for _ in range(2))
    timing = {"seconds", "ar_seconds", "prefill_seconds"}
    plain = [[{k: v for k, v in row.items() if k not in timing} for row in rows]
             for rows in (first, again)]  # fmt: skip
    assert plain[0] == plain[1]


@pytest.mark.parametrize("length", [5, 9])
def test_a_recorded_text_that_just_stops_is_decoded_to_its_end(length):
    """Logs cut the stop string off, so such a path ends without EOS and before its budget."""
    whole = subject(1.0, budget=20)
    short = replace(
        whole,
        tokens=whole.tokens[:length],
        accept_given_path={e: r[:length] for e, r in whole.accept_given_path.items()},
    )
    for row in confirm_path(setting(), short, CELLS):
        assert row["committed"] == length - 1, row


def test_predictions_need_not_be_given_at_temperature_zero():
    rows = confirm_path(setting(), subject(0.0, accept_given_path={}), CELLS)
    assert np.isfinite([row["seconds"] for row in rows]).all()

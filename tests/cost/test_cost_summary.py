"""What a person reads: ratios in plain steps, the floor, and honest words about noise."""

import json

import pandas as pd
import pytest

from selfspec_cli.analysis.cost_fit import fit_correction
from selfspec_cli.analysis.cost_surface import CostSurface
from selfspec_cli.cost.summary import CostSummary, findings, summarise
from selfspec_cli.storage.documents import plain_data

KINDS = ("full_attention",) * 10
AR_S = 0.020
ROWS = [  # part, exit_layer, positions, context, seconds: a plain step of 20 ms
    ("ar", None, 1, 64, AR_S),
    ("embed", None, 1, None, 0.0001),
    ("prep", None, 1, 64, 0.0002),
    ("prep", None, 3, 64, 0.0003),
    ("layers/full_attention", 10, 1, 64, 0.010),
    ("layers/full_attention", 10, 3, 64, 0.018),
    ("head", None, 1, None, 0.008),
    ("head", None, 3, None, 0.012),
    ("draw", None, 1, None, 0.0016),
    ("accept", None, 1, None, 0.0001),
    ("accept", None, 3, None, 0.0010),
]
DRAFT_S = 0.0001 + 0.0002 + 0.4 * 0.010 + 0.008 + 0.0016  # L = 4
VERIFY_S = 0.0001 + 0.0002 + 0.4 * 0.010 + 0.0003 + 0.6 * 0.018 + 0.012  # L = 4, k = 2
LAW_FREE = ("embed", "prep", "layers/full_attention")


def cost_rows(factors: list[float], rounds: list[tuple] | None = None) -> pd.DataFrame:
    """Rows of cost.csv, each block slower by its factor."""
    columns = ["block", "part", "law", "exit_layer", "positions", "context", "batch", "engine"]
    rows = [
        (block, part, "" if part in LAW_FREE else "sampled", *cell, 1, "eager", seconds * factor)
        for block, factor in enumerate(factors)
        for part, *cell, seconds in [*ROWS, *(rounds or [])]
    ]
    return pd.DataFrame(rows, columns=[*columns, "seconds"])


def summary_of(frame: pd.DataFrame, floor: float | None = 0.016) -> CostSummary:
    surface = CostSurface.from_rows(frame, layer_kinds=KINDS, law="sampled")
    fit = fit_correction(surface, frame)
    floors = {64: floor}
    return summarise(surface, fit, exit_layers=(4, 8), draft_lengths=(1, 2), floors=floors)


def test_ratios_are_those_of_the_parts() -> None:
    summary = summary_of(cost_rows([1.0] * 10))
    (at,) = summary.contexts
    assert at.draft_cost_ratio[0] == pytest.approx(DRAFT_S / AR_S)
    assert at.verify_cost_ratio[0][1] == pytest.approx(VERIFY_S / AR_S)
    assert at.overhead_ratio[1] == pytest.approx(0.001 / AR_S)
    assert at.floor_ratio == pytest.approx(1.25)
    assert summary.draft_excess(at)[0] == pytest.approx(DRAFT_S / AR_S / 0.4)
    assert summary.verify_excess(at)[0][1] == pytest.approx(VERIFY_S / AR_S - 1)
    assert summary.ar_spread == pytest.approx(0.0, abs=1e-12)


def test_noise_between_blocks_is_said_in_words() -> None:
    """Blocks of ± 15 % are unstable, of ± 5 % are not."""
    calm, rough = ([1 - size, 1 + size] * 5 for size in (0.05, 0.15))
    told = " ".join(findings(summary_of(cost_rows(calm))))
    assert "unstable" not in told
    assert "stable: plain steps vary by 5.3%" in told
    told = " ".join(findings(summary_of(cost_rows(rough))))
    assert "unstable: plain steps vary by 15.8%" in told
    assert "no verdict should rest on it" in told


@pytest.mark.parametrize(("floor", "said"), [(0.016, "has room"), (0.010, "less room")])
def test_a_step_near_the_floor_has_room(floor: float, said: str) -> None:
    told = findings(summary_of(cost_rows([1.0] * 10), floor))
    assert any(said in sentence for sentence in told), told


def test_several_rows_make_their_tokens_together() -> None:
    """Four rows in 20 ms are 200 tokens a second; of the textbook only one row is told."""
    frame = cost_rows([1.0] * 10).assign(batch=4)
    surface = CostSurface.from_rows(frame, layer_kinds=KINDS, law="sampled", batch=4)
    fit = fit_correction(surface, frame)
    summary = summarise(surface, fit, exit_layers=(4,), draft_lengths=(2,), floors={64: 0.01})
    assert summary.batch == 4
    assert summary.contexts[0].tokens_per_s == pytest.approx(4 / AR_S)
    assert summary.to_document()["batch"] == 4
    told = findings(summary)
    assert not any("textbook" in sentence or "floor" in sentence for sentence in told), told
    assert any("stable" in sentence for sentence in told), told


def test_without_bandwidth_nothing_is_said_about_it() -> None:
    summary = summary_of(cost_rows([1.0] * 10), None)
    assert summary.contexts[0].floor_ratio is None
    assert not any("floor" in sentence for sentence in findings(summary))


def test_without_whole_rounds_agreement_is_not_claimed() -> None:
    summary = summary_of(cost_rows([1.0] * 10))
    assert summary.cost_model_error is None
    assert any("nothing says that the parts add up" in s for s in findings(summary))


def round_rows(scale: float) -> list[tuple]:
    """Whole rounds of the parts' sum times `scale`."""
    surface = CostSurface.from_rows(cost_rows([1.0] * 2), layer_kinds=KINDS, law="sampled")
    cells = [(layer, k) for layer in range(2, 9) for k in (1, 2)]
    return [
        ("round", L, k + 1, 64, scale * float(surface.round_seconds([L], k, 64)[0]))
        for L, k in cells
    ]


@pytest.mark.parametrize(("scale", "mode"), [(1.0, "parts"), (1.3, "corrected")])
def test_a_correction_that_works_is_applied(scale: float, mode: str) -> None:
    summary = summary_of(cost_rows([1.0] * 10, round_rows(scale)))
    (at,) = summary.contexts
    assert summary.mode == mode
    assert at.draft_cost_ratio[0] == pytest.approx(scale * DRAFT_S / AR_S, rel=1e-6)
    assert summary.cost_model_error == pytest.approx(0.0, abs=1e-6)


def test_a_correction_that_fails_is_not_applied() -> None:
    rounds = [
        (*row[:-1], row[-1] * (0.5 if number % 2 else 1.8))
        for number, row in enumerate(round_rows(1.0))
    ]
    summary = summary_of(cost_rows([1.0] * 10, rounds))
    assert summary.mode == "whole_rounds"
    assert summary.contexts[0].draft_cost_ratio[0] == pytest.approx(DRAFT_S / AR_S)
    assert any("time the cells that matter whole" in s for s in findings(summary))


def test_the_document_is_plain_and_complete() -> None:
    document = plain_data(summary_of(cost_rows([1.0] * 10)).to_document())
    again = json.loads(json.dumps(document, allow_nan=False))
    (at,) = again["contexts"]
    assert at["verify_cost_over_one_step"][0][1] == pytest.approx(VERIFY_S / AR_S - 1)
    assert at["draft_cost_over_layer_share"][0] == pytest.approx(DRAFT_S / AR_S / 0.4)
    assert again["cost_model_error"] is None

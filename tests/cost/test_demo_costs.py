"""On real weights the parts add up to whole rounds (slow: a minute on the demo model)."""

import time

import pytest
from cost_helpers import GREEDY, SAMPLED

from selfspec_cli.analysis.cost_fit import fit_correction
from selfspec_cli.analysis.cost_surface import CostSurface
from selfspec_cli.cost.clock import Clock
from selfspec_cli.cost.measure import measure_costs
from selfspec_cli.cost.plan import CostPlan, default_rounds
from selfspec_cli.engine.load import LoadOptions, load_model
from selfspec_cli.errors import ModelError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fits() -> dict:
    """Timed by this thread's processor time: other work on the machine waits outside of it."""
    try:
        view = load_model(LoadOptions(model="demo"), exit_layers=[30]).view
    except ModelError as error:
        pytest.skip(str(error))
    layers, lengths, contexts = (9, 15, 21, 24), (1, 2, 4, 6), (64, 512)
    plan = CostPlan(
        exit_layers=layers,
        draft_lengths=lengths,
        contexts=contexts,
        laws=(GREEDY, SAMPLED),
        rounds=default_rounds(layers, lengths, contexts),
    )
    frame = measure_costs(view, plan, Clock(read_ns=time.thread_time_ns), 0)
    surfaces = {
        law: CostSurface.from_rows(frame, layer_kinds=view.layer_kinds, law=law)
        for law in ("greedy", "sampled")
    }
    return {law: fit_correction(surface, frame) for law, surface in surfaces.items()}


@pytest.mark.parametrize("law", ["greedy", "sampled"])
def test_parts_of_the_demo_model_add_up_to_its_rounds(fits: dict, law: str) -> None:
    """Median error over 12 rounds of the plain sum, no correction, at most 5 %.

    Seen: 1 to 3 %. A noisy machine could push it over; no probability is claimed.
    """
    errors = [one.parts_error for one in fits[law].rounds]
    assert len(errors) == 12
    middle = sorted(abs(error) for error in errors)[5:7]
    median = sum(middle) / 2
    assert median <= 0.05, f"median {median:.1%}, signed {[f'{e:+.1%}' for e in errors]}"

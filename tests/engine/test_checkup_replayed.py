"""The parts of `verify` over the engine that a GPU gets, replayed on a CPU."""

from dataclasses import replace

import pytest
from checkpoints import random_model
from traced_recorder import TracedRecorder

from selfspec_cli.checkup import rounds
from selfspec_cli.checkup.cache import prove_cache
from selfspec_cli.checkup.greedy import plain_outputs
from selfspec_cli.checkup.rows import prove_batch
from selfspec_cli.checkup.subject import make_subject
from selfspec_cli.engine.families import family_of
from selfspec_cli.engine.graphs import GraphView
from selfspec_cli.engine.kv_cache import KVCache
from selfspec_cli.engine.view import LayerView


@pytest.fixture(scope="module")
def subject():
    model = random_model("llama", gain=8.0, num_hidden_layers=2)
    view = GraphView(model, family_of("llama"), TracedRecorder())
    return replace(make_subject(view, seed=0), small=False)  # few cases: tracing takes a second


def test_replayed_passes_are_proved_part_by_part(subject, monkeypatch):
    """Its caches have room beyond what is asked for; that is no fault."""
    monkeypatch.setattr(rounds, "NUM_ROUNDS", 2 * 2 * rounds.ROWS)
    cache = prove_cache(subject, lambda: None)
    assert cache.outcome == "proved", cache.faults
    batch = prove_batch(subject, plain_outputs(subject), lambda: None)
    assert batch.outcome == "proved", batch.faults
    made = rounds.real_rounds(subject, lambda: None)
    assert made.faults == ()
    assert made.error < 1e-4, f"logits off by {made.error} of their range"
    assert subject.view.failure is None


def test_replayed_passes_over_a_cache_that_never_refuses_are_found(subject, monkeypatch):
    """Twin: a cache that grows with what is written."""

    class Grows(KVCache):
        @property
        def capacity(self):
            return 512

        @capacity.setter
        def capacity(self, _value):
            """Keep to itself."""

    real = LayerView.new_cache
    monkeypatch.setattr(
        GraphView,
        "new_cache",
        lambda self, *, rows=1, capacity: (
            Grows(self.num_layers, rows=rows, capacity=capacity)
            if rows == 1
            else real(self, rows=rows, capacity=capacity)
        ),
    )
    assert "held an output that takes" in "\n".join(prove_cache(subject, lambda: None).faults)

"""What memory grows with, against the bytes that a real cache and real parameters take."""

import pytest
import torch
from tiny import NAMES, tiny_view

from selfspec_cli.engine.footprint import footprint

ROWS, CAPACITY = 2, 16


@torch.inference_mode()
def cache_bytes(view):
    cache = view.new_cache(rows=ROWS, capacity=CAPACITY)
    hidden = view.embed(torch.ones(ROWS, 3, dtype=torch.long), cache)
    view.run(hidden, cache, 0, view.num_layers)
    return sum(t.numel() * t.element_size() for t in (*cache.keys, *cache.values))


@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_those_of_the_cache_and_the_parameters(name):
    view = tiny_view(name)
    found = footprint(view)
    assert found["kv_bytes_per_token"] * ROWS * CAPACITY == cache_bytes(view), found
    stored = {p.data_ptr(): p.numel() * p.element_size() for p in view.model.parameters()}
    assert found["weights_bytes"] == sum(stored.values()), "tied weights count once"
    assert found["logits_bytes_per_position"] == 4 * view.vocab_size

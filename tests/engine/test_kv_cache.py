"""The cache: write pointers, rollback without copies, ragged rows, capacity."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfspec_cli.engine.kv_cache import KVCache

PROPERTY = settings(deadline=None, derandomize=True)
LAYERS, HEADS, DIM = 2, 2, 3


def _states(rows: int, m: int, first: float) -> torch.Tensor:
    """[rows, heads, m, dim]; each position holds its own number."""
    numbers = first + torch.arange(m, dtype=torch.float32)
    return numbers[None, None, :, None].expand(rows, HEADS, m, DIM).contiguous()


def _written(cache: KVCache, m: int, first: float = 0.0) -> KVCache:
    for layer in range(LAYERS):
        cache.update(_states(cache.rows, m, first), -_states(cache.rows, m, first), layer)
    return cache


def _held(cache: KVCache, layer: int = 0) -> list[float]:
    keys = cache.keys[layer]
    return keys[0, 0, : cache.lengths[layer][0], 0].tolist()


@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_a10_rollback_keeps_exactly_that_many(size):
    """Sizes 0, 1, n-1, n of a cache of 3; 0 means empty, not everything."""
    cache = _written(KVCache(LAYERS, capacity=8), 3)
    cache.rollback([size])
    assert cache.lengths == [[size]] * LAYERS
    assert _held(cache) == [0.0, 1.0, 2.0][:size]
    assert cache.get_seq_length() == size


@pytest.mark.parametrize("size", [5, 4, -1, -3])
def test_a10_rollback_beyond_what_is_held_is_refused(size):
    cache = _written(KVCache(LAYERS, capacity=8), 3)
    with pytest.raises(ValueError, match=r"layer 0 holds \[3\] positions"):
        cache.rollback([size])
    assert cache.lengths == [[3]] * LAYERS, "a refused rollback moved a pointer"


def test_rollback_below_a_layer_that_lags_is_refused():
    cache = _written(KVCache(LAYERS, capacity=8), 3)
    cache.update(_states(1, 2, 3.0), _states(1, 2, 3.0), 0)  # a draft ran ahead in layer 0
    with pytest.raises(ValueError, match=r"layer 1 holds \[3\]"):
        cache.rollback([4])
    assert cache.lengths == [[5], [3]]


def test_rollback_copies_nothing_and_the_next_write_overwrites():
    cache = _written(KVCache(LAYERS, capacity=8), 5)
    at = [t.data_ptr() for t in (*cache.keys, *cache.values)]
    cache.rollback([2])
    keys, values = cache.update(_states(1, 2, 90.0), _states(1, 2, 90.0), 0)
    assert keys[0, 0, :, 0].tolist() == [0.0, 1.0, 90.0, 91.0]
    assert values[0, 0, :, 0].tolist() == [0.0, -1.0, 90.0, 91.0]
    assert [t.data_ptr() for t in (*cache.keys, *cache.values)] == at


@pytest.mark.parametrize("m", [4, 9])
def test_write_beyond_the_capacity_is_refused(m):
    cache = _written(KVCache(LAYERS, capacity=6), 3)
    with pytest.raises(IndexError, match=f"of 6 positions asked to hold {3 + m}"):
        cache.update(_states(1, m, 3.0), _states(1, m, 3.0), 0)
    assert cache.lengths == [[3]] * LAYERS


def test_ragged_rows_write_at_their_own_pointers():
    cache = _written(KVCache(1 + 1, rows=3, capacity=10), 4)
    cache.rollback([1, 4, 2])
    keys, _ = cache.update(_states(3, 2, 50.0), _states(3, 2, 50.0), 0)
    assert keys.shape[2] == 6, "keys reach to the longest row"
    assert cache.lengths[0] == [3, 6, 4]
    rows = [keys[row, 1, : cache.lengths[0][row], 2].tolist() for row in range(3)]
    assert rows == [[0, 50, 51], [0, 1, 2, 3, 50, 51], [0, 1, 50, 51]]


def test_ragged_write_beyond_the_capacity_of_one_row_is_refused():
    cache = _written(KVCache(LAYERS, rows=2, capacity=5), 4)
    cache.rollback([1, 4])
    with pytest.raises(IndexError, match="of 5 positions asked to hold 6"):
        cache.update(_states(2, 2, 0.0), _states(2, 2, 0.0), 0)


def test_rows_that_take_no_part_are_neither_written_nor_returned():
    cache = _written(KVCache(LAYERS, rows=3, capacity=10), 4)
    cache.activate([4, 2])
    assert cache.active == 2
    for m, first in ((2, 50.0), (1, 60.0)):
        keys, values = cache.update(_states(2, m, first), -_states(2, m, first), 0)
    assert keys.shape == values.shape == (2, HEADS, 7, DIM)
    assert keys[0, 0, :, 0].tolist() == [0, 1, 2, 3, 50, 51, 60]
    assert values[1, 0, :5, 0].tolist() == [0, -1, -50, -51, -60]
    assert cache.lengths == [[7, 5], [4, 2]]
    assert cache.keys[0][2, 0, :, 0].tolist() == [0, 1, 2, 3, 0, 0, 0, 0, 0, 0]
    cache.activate([4, 4, 4])
    assert cache.lengths == [[4, 4, 4]] * LAYERS


@pytest.mark.parametrize("lengths", [[0, 0, 0], [9, 0], [-1]])
def test_pointers_that_fit_no_row_are_refused(lengths):
    cache = _written(KVCache(LAYERS, rows=2, capacity=8), 3)
    with pytest.raises(ValueError, match="do not fit 2 rows of 8 positions"):
        cache.activate(lengths)
    assert cache.lengths == [[3, 3]] * LAYERS


MOVES = st.lists(
    st.tuples(st.integers(1, 4), st.lists(st.integers(0, 4), min_size=3, max_size=3)), max_size=10
)


@PROPERTY
@given(MOVES)
def test_ragged_rows_are_lists_each_of_its_own(moves):
    """Three rows against Python lists: append m numbers to each, drop what each one likes."""
    cache, models, number = KVCache(LAYERS, rows=3, capacity=64), [[], [], []], 0.0
    for m, drops in moves:
        _written(cache, m, number)
        for model, dropped in zip(models, drops, strict=True):
            model += [number + i for i in range(m)]
            del model[max(0, len(model) - dropped) :]
        number += m
        cache.rollback([len(model) for model in models])
        for row, model in enumerate(models):
            assert cache.keys[1][row, 0, : len(model), 0].tolist() == model, f"row {row}"


def test_rows_of_a_batch_share_its_memory():
    probe = _written(KVCache(LAYERS, capacity=1), 1)
    cache = KVCache(LAYERS, rows=2, capacity=6)
    cache.reserve(probe)
    cache.row(1).update(_states(1, 3, 7.0), _states(1, 3, 7.0), 0)
    assert cache.keys[0][1, 0, :3, 0].tolist() == [7.0, 8.0, 9.0]
    assert float(cache.keys[0][0].abs().max()) == 0.0, "another row was written"
    assert cache.lengths == [[0, 0]] * LAYERS, "pointers of the batch are its owner's"


def test_row_and_reserve_before_any_buffer_are_refused():
    with pytest.raises(ValueError, match="layer 0 has no buffer"):
        KVCache(LAYERS, rows=2, capacity=4).row(0)
    with pytest.raises(ValueError, match="template layer 0"):
        KVCache(LAYERS, capacity=4).reserve(KVCache(LAYERS, capacity=1))


def test_memory_is_counted_in_bytes():
    cache = KVCache(LAYERS, capacity=8)
    assert cache.allocated_bytes() == 0
    assert _written(cache, 3).allocated_bytes() == 2 * LAYERS * HEADS * 8 * DIM * 4


def test_masked_slots_hold_zeros_so_they_cannot_turn_a_product_into_nan():
    cache = _written(KVCache(LAYERS, capacity=64), 1)
    assert float(cache.values[0][:, :, 1:].abs().max()) == 0.0


@PROPERTY
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), max_size=12))
def test_any_order_of_writes_and_rollbacks_is_a_list(moves):
    """The cache against a Python list: append m numbers, drop the last d."""
    cache, model, number = KVCache(LAYERS, capacity=64), [], 0.0
    for m, dropped in moves:
        _written(cache, m, number)
        model += [number + i for i in range(m)]
        number += m
        keep = max(0, len(model) - dropped)
        del model[keep:]
        cache.rollback([keep])
        assert _held(cache, 0) == _held(cache, 1) == model

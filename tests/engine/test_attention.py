"""Packed attention is the library's attention; keys that query heads share are not copied."""

import copy
from types import SimpleNamespace

import pytest
import torch
from tiny import N, prompts, tiny_model, tiny_view, view_of
from torch import nn
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

from selfspec_cli.engine import attention
from selfspec_cli.engine.attention import PACKED, additive, packed_attention, use_packed_attention

SPAN, WIDTH = 23, 12


def case(heads, key_heads, m, rows=2, seed=0):
    """Queries, keys and values as a layer hands them over: transposed views, a part of a cache."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(rows, m, heads, WIDTH, generator=generator).transpose(1, 2)
    key, value = (
        torch.randn(rows + 1, key_heads, SPAN + 9, WIDTH, generator=generator)[:rows, :, :SPAN]
        for _ in range(2)
    )
    module = SimpleNamespace(num_key_value_groups=heads // key_heads, is_causal=True)
    return module, query, key, value


def ragged_mask(rows, m, seed=0):
    """Rows at different positions, [rows, 1, m, SPAN] bool: each sees what is written, no more."""
    starts = torch.tensor([5, SPAN - m, 9, 0][:rows])
    positions = starts[:, None] + torch.arange(m)
    return (torch.arange(SPAN) <= positions[..., None])[:, None]


@torch.inference_mode()
def by_hand(query, key, value, mask, scaling):
    """Softmax over the visible, in float64, with every head's keys repeated."""
    groups = query.shape[1] // key.shape[1]
    keys, values = (repeat_kv(t, groups).double() for t in (key, value))
    scores = query.double() @ keys.mT * scaling
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return (scores.softmax(-1) @ values).transpose(1, 2)


@pytest.mark.parametrize(("heads", "key_heads"), [(4, 2), (9, 3), (8, 1), (4, 4)])
@pytest.mark.parametrize("m", [1, 2, 5])
@pytest.mark.parametrize("kind", ["bool", "added"])
def test_it_is_attention(heads, key_heads, m, kind):
    """Against float64 and the library's function: shared heads, ragged rows, either mask."""
    rows, scaling = 3, 0.31
    module, *tensors = case(heads, key_heads, m, rows)
    seen = ragged_mask(rows, m)
    mask = seen if kind == "bool" else additive(seen, torch.float32)
    with torch.inference_mode():
        got, weights = packed_attention(module, *tensors, mask, scaling=scaling)
        library, _ = sdpa_attention_forward(module, *tensors, mask, scaling=scaling)
    assert weights is None
    assert got.shape == (rows, m, heads, WIDTH)
    assert got.is_contiguous()
    exact = by_hand(*tensors, seen, scaling)
    for name, other in (("float64", exact), ("the library", library)):
        worst = float((got - other).abs().max())
        assert worst < 1e-5, f"differs from {name} by {worst:.3g}"


@pytest.mark.parametrize("m", [1, 4])
def test_without_a_mask_it_is_the_librarys(m):
    """One position sees all; several from position 0 on are causal."""
    module, query, key, value = case(6, 2, m)
    key, value = (key, value) if m == 1 else (key[:, :, :m], value[:, :, :m])
    seen = None if m == 1 else torch.ones(m, m, dtype=torch.bool).tril()
    with torch.inference_mode():
        got, _ = packed_attention(module, query, key, value, None, scaling=0.2)
    worst = float((got - by_hand(query, key, value, seen, 0.2)).abs().max())
    assert worst < 1e-5, f"differs by {worst:.3g}"


def test_one_mask_for_all_rows_is_spread_over_them():
    module, *tensors = case(4, 2, 3, rows=2)
    seen = ragged_mask(1, 3)
    with torch.inference_mode():
        got, _ = packed_attention(module, *tensors, seen, scaling=0.2)
    worst = float((got - by_hand(*tensors, seen, 0.2)).abs().max())
    assert worst < 1e-5, f"differs by {worst:.3g}"


def test_heads_grouped_the_other_way_are_caught():
    """The twin takes heads 0, 2 to share keys where 0, 1 do."""
    module, query, key, value = case(4, 2, 3)
    other = query[:, [0, 2, 1, 3]]
    seen = ragged_mask(2, 3)
    with torch.inference_mode():
        twin, _ = packed_attention(module, other, key, value, seen, scaling=0.3)
    worst = float((twin[:, :, [0, 2, 1, 3]] - by_hand(query, key, value, seen, 0.3)).abs().max())
    assert worst > 0.1, f"differs by {worst:.3g} only"


def test_a_mask_repeated_position_by_position_is_caught(monkeypatch):
    """The twin repeats each position's mask, [p0 p0 p1 p1], where heads lie one after the other."""
    module, *tensors = case(4, 2, 3)
    seen = ragged_mask(2, 3)

    class Twin(torch.Tensor):
        def repeat(self, *times):
            return self.repeat_interleave(times[2], dim=2)

    with torch.inference_mode():
        twin, _ = packed_attention(module, *tensors, seen.as_subclass(Twin), scaling=0.3)
    worst = float((twin - by_hand(*tensors, seen, 0.3)).abs().max())
    assert worst > 0.1, f"differs by {worst:.3g} only"


def test_an_added_mask_hides_what_a_bool_mask_hides():
    """No row's softmax is NaN, and hidden positions weigh exactly nothing, in every dtype."""
    seen = ragged_mask(2, 4)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        mask = additive(seen, dtype)
        assert mask.dtype == dtype
        weights = (torch.randn(seen.shape).to(dtype) + mask).softmax(-1)
        assert bool((weights[~seen] == 0).all()), dtype
        assert bool(weights.isfinite().all())


def test_only_models_on_sdpa_take_it():
    """gemma2's softcap needs the library's eager attention."""
    config = SimpleNamespace(_attn_implementation="sdpa")
    assert use_packed_attention(config)
    assert config._attn_implementation == PACKED
    other = SimpleNamespace(_attn_implementation="eager")
    assert not use_packed_attention(other)
    assert other._attn_implementation == "eager"


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt_neox_parallel"])
def test_a_model_gives_the_same_states_with_it(name, monkeypatch):
    """Whole model, several positions after a prompt, beyond the window; the library finds it."""
    asked = []
    real = nn.functional.scaled_dot_product_attention

    def counted(query, *args, **more):
        asked.append(tuple(query.shape))
        return real(query, *args, **more)

    model = copy.deepcopy(tiny_model(name))
    use_packed_attention(model.config)
    ids = torch.tensor([prompts(range(17, 18))[0]])
    found = {}
    for kind, view in (("library", tiny_view(name)), ("packed", view_of(model))):
        cache = view.new_cache(capacity=20)
        with torch.inference_mode(), monkeypatch.context() as patch:
            view.run(view.embed(ids[:, :13], cache), cache, 0, N)
            patch.setattr(attention.nn.functional, "scaled_dot_product_attention", counted)
            found[kind] = view.run(view.embed(ids[:, 13:], cache), cache, 0, N)
    worst = float((found["packed"] - found["library"]).abs().max())
    assert worst < 1e-4 * float(found["library"].abs().max()), f"differs by {worst:.3g}"
    groups = 1 if name.startswith("gpt_neox") else 2
    heads = 4 // groups
    assert asked[N:] == [(1, heads, groups * 4, asked[N][3])] * N, "keys were repeated"

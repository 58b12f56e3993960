"""The layer-range view against the library: exits, embeddings, windows, blocks, attention kinds."""

import copy

import pytest
import torch
from tiny import COMMON, CONFIGS, NAMES, WINDOW, N, build, prompts, tiny_model, tiny_view, view_of
from transformers.masking_utils import create_sliding_window_causal_mask

from selfspec_cli.engine.families import FAMILIES, family_of
from selfspec_cli.engine.selfcheck import check_view, truncated_model
from selfspec_cli.engine.view import LayerView
from selfspec_cli.errors import FamilyError, ModelError

PROMPT = prompts(range(34, 35))[0]
IDS = torch.tensor([PROMPT])


def _run(view: LayerView, ids: torch.Tensor, start: int, stop: int, pieces: list[int]):
    """Layers [start, stop) over ids in pieces of these lengths; returns states [1, n, H]."""
    cache = view.new_cache(capacity=ids.shape[1])
    with torch.inference_mode():
        parts = [
            view.run(view.embed(piece, cache), cache, start, stop)
            for piece in ids.split(pieces, dim=1)
        ]
    return torch.cat(parts, dim=1)


def _exit_logits(view: LayerView, exit_layer: int, pieces: list[int] | None = None):
    states = _run(view, IDS, 0, exit_layer, pieces or [IDS.shape[1]])
    with torch.inference_mode():
        return view.head(states)[0]


def _library_logits(view: LayerView, exit_layer: int) -> torch.Tensor:
    with torch.inference_mode():
        return truncated_model(view, exit_layer)(input_ids=IDS, use_cache=False).logits[0]


def _rebuilt_with_layers(name: str, exit_layer: int) -> torch.nn.Module:
    """The same checkpoint as an L-layer model made by the library from a config with L layers."""
    settings = {**COMMON, **CONFIGS[name], "num_hidden_layers": exit_layer}
    short = build(**settings)
    whole = tiny_model(name).state_dict()
    short.load_state_dict({key: whole[key] for key in short.state_dict()})
    return short


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("exit_layer", range(1, N + 1))
def test_a18_exit_logits_are_those_of_the_model_built_with_fewer_layers(name, exit_layer):
    """Oracle O2, with the layers counted by the library itself; so also A24 and A26."""
    ours = _exit_logits(tiny_view(name), exit_layer)
    with torch.inference_mode():
        library = _rebuilt_with_layers(name, exit_layer)(input_ids=IDS).logits[0]
    error = float((ours - library).abs().max())
    assert error <= 1e-5 * float(library.abs().max()), f"{name}, L={exit_layer}: {error:.3g}"


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2"])
def test_a18_head_without_the_norm_would_be_seen(name):
    view = tiny_view(name)
    with torch.inference_mode():
        bare = view.model.get_output_embeddings()(_run(view, IDS, 0, 3, [IDS.shape[1]]))[0]
    same = float((bare.argmax(-1) == _library_logits(view, 3).argmax(-1)).float().mean())
    assert same < 0.9, f"{name}: a head without norm agrees in {same:.3f} of the positions"


def test_a20_draft_logits_are_softcapped():
    view = tiny_view("gemma2")
    cap = view.config.final_logit_softcapping
    capped = _exit_logits(view, 3)
    assert float(capped.abs().max()) < cap, f"|logit| {float(capped.abs().max())} >= cap {cap}"
    with torch.inference_mode():
        bare = view.model.lm_head(view.model.model.norm(_run(view, IDS, 0, 3, [IDS.shape[1]])))[0]
    assert torch.equal(bare.argmax(-1), capped.argmax(-1)), "greedy cannot see a missing cap"
    assert float((bare - capped).abs().max()) > 0.5, "a missing cap would not be seen here either"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a22_embedded_states_are_the_librarys_bit_for_bit(name, dtype):
    model = copy.deepcopy(tiny_model(name)).to(dtype)
    view = view_of(model)
    with torch.inference_mode():
        ours = view.embed(IDS, view.new_cache(capacity=IDS.shape[1]))
        library = model(input_ids=IDS, output_hidden_states=True).hidden_states[0]
    assert torch.equal(ours, library), f"{name}: {float((ours - library).abs().max()):.3g} off"


def test_a24_neox_layouts_give_different_models():
    """Else the two cases of A24 would be one."""
    parallel, sequential = (tiny_view(f"gpt_neox_{kind}") for kind in ("parallel", "sequential"))
    gap = (_exit_logits(parallel, 3) - _exit_logits(sequential, 3)).abs().max()
    assert float(gap) > 0.1, f"logits differ by only {float(gap):.3g}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pieces", [[1] * 34, [6, 5, 5, 9, 9], [1, 8, 9, 1, 15], [20, 1, 9, 4]])
def test_cached_pieces_are_one_pass(name, pieces):
    """Blocks of k+1 positions, single steps and prefill chunks give one pass's logits."""
    view = tiny_view(name)
    error = (_exit_logits(view, N, pieces) - _exit_logits(view, N)).abs().max()
    assert float(error) < 1e-4, f"{name}, pieces {pieces}: {float(error):.3g}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("exit_layer", [1, 3, 5])
def test_layer_ranges_compose(name, exit_layer):
    """[0, L) one position at a time, then [L, N) in one block, is the whole model."""
    view = tiny_view(name)
    cache = view.new_cache(capacity=IDS.shape[1])
    with torch.inference_mode():
        early = torch.cat(
            [view.run(view.embed(one, cache), cache, 0, exit_layer) for one in IDS.split(1, dim=1)],
            dim=1,
        )
        late = view.head(view.run(early, cache, exit_layer, N))[0]
        library = view.model(input_ids=IDS).logits[0]
    assert cache.lengths == [[34]] * N
    error = float((late - library).abs().max())
    assert error < 1e-4, f"{name}, L={exit_layer}: {error:.3g}"


@pytest.mark.parametrize("name", NAMES)
def test_rolled_back_and_extended_cache_is_a_fresh_one(name):
    """Write 10 positions of other tokens, roll back to 20, go on: as if they had never been."""
    view = tiny_view(name)
    cache = view.new_cache(capacity=IDS.shape[1])
    with torch.inference_mode():
        view.run(view.embed(IDS[:, :20], cache), cache, 0, N)
        view.run(view.embed(IDS.flip(1)[:, :10], cache), cache, 0, N)
        cache.rollback([20])
        again = view.head(view.run(view.embed(IDS[:, 20:], cache), cache, 0, N))[0]
    error = float((again - _exit_logits(view, N)[20:]).abs().max())
    assert error < 1e-4, f"{name}: {error:.3g}"


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "mistral", "phi3"])
def test_local_layers_see_the_window_and_no_more(name):
    """Changing a token outside every window of one local layer leaves its output as it was."""
    view = tiny_view(name)
    local = view.layer_kinds.index("sliding_attention")
    assert local == 0
    changed = IDS.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 200
    gap = (_run(view, IDS, 0, 1, [34]) - _run(view, changed, 0, 1, [34]))[0].abs().amax(-1)
    touched = gap.nonzero().flatten().tolist()
    assert touched == list(range(5, 5 + WINDOW)), f"positions touched by token 5: {touched}"


@pytest.mark.parametrize("name", NAMES)
def test_eager_attention_gives_the_same_logits(name):
    model = copy.deepcopy(tiny_model(name))
    model.set_attn_implementation("eager")
    view = view_of(model)
    with torch.inference_mode():
        library = model(input_ids=IDS).logits[0]
    for pieces in ([34], [12, 9, 9, 4], [30, 1, 1, 1, 1]):
        error = float((_exit_logits(view, N, pieces) - library).abs().max())
        assert error < 1e-4, f"{name}, pieces {pieces}: {error:.3g}"


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_taps_see_every_depth_once(name):
    view = tiny_view(name)
    seen = {}
    cache = view.new_cache(capacity=IDS.shape[1])
    with torch.inference_mode():
        hidden = view.embed(IDS, cache)
        view.run(hidden, cache, 0, N, lambda depth, state: seen.__setitem__(depth, state.clone()))
        library = view.model(input_ids=IDS, output_hidden_states=True).hidden_states
    assert sorted(seen) == list(range(1, N + 1))
    for depth in range(1, N):  # the library's last entry is after the norm
        error = float((seen[depth] - library[depth]).abs().max())
        assert error < 1e-4, f"{name}, depth {depth}: {error:.3g}"


@pytest.mark.parametrize("name", ["qwen2", "gemma2", "gemma3", "mistral", "phi3"])
@pytest.mark.parametrize(("start", "m"), [(0, 34), (6, 5), (7, 1), (20, 9), (33, 1)])
def test_window_masks_are_the_librarys(name, start, m):
    """Of a whole pass, and its rows for blocks about and beyond the window's edge.

    Local layers keep all positions here (a rollback may reach behind the edge), so a block's mask
    has one column for each position so far; the library's own cache would hold the last 8 only.
    """
    view = tiny_view(name)
    hidden = torch.zeros(1, 34, view.hidden_size)
    whole = create_sliding_window_causal_mask(
        config=view.config, inputs_embeds=hidden, attention_mask=None, cache=None
    )
    prepared = view.prepare(hidden[:, :m], [start])
    ours = prepared.by_kind["sliding_attention"]["attention_mask"]
    expected = whole[0, 0, start : start + m, : start + m]
    visible = expected if expected.dtype == torch.bool else expected == 0  # eager adds -inf
    if ours is None:
        assert bool(visible.all()), f"{int((~visible).sum())} hidden places are shown"
    else:
        assert torch.equal(ours[0, 0], expected)
    assert int(visible.sum(-1).max()) == min(WINDOW, start + m)


KINDS = {
    "qwen2": "GGGLLL",
    "gemma2": "LGLGLG",
    "gemma3": "LLGLLG",
    "mistral": "LLLLLL",
    "phi3": "LLLLLL",
    "granite": "GGGGGG",
}


@pytest.mark.parametrize("name", KINDS)
def test_layers_are_local_or_global_as_configured(name):
    """Letters: L is a local layer, G one that sees everything."""
    letters = {"sliding_attention": "L", "full_attention": "G"}
    kinds = "".join(letters[kind] for kind in tiny_view(name).layer_kinds)
    assert kinds == KINDS[name]


@pytest.mark.parametrize("name", ["mistral", "phi3", "qwen2"])
def test_without_a_window_all_layers_are_global(name):
    """Most checkpoints of these families have none; exits are right then too."""
    model = build(**{**COMMON, **CONFIGS[name], "sliding_window": None})
    view = view_of(model)
    assert set(view.layer_kinds) == {"full_attention"}
    assert check_view(view) < 1e-5


def test_gemma3_turns_local_and_global_layers_by_other_tables():
    """Else a view with one table for all would be right by luck."""
    prepared = tiny_view("gemma3").prepare(torch.zeros(1, 34, 40), [0])
    local, everywhere = (
        prepared.by_kind[kind]["position_embeddings"][0]
        for kind in ("sliding_attention", "full_attention")
    )
    gap = float((local - everywhere).abs().max())
    assert gap > 0.5, f"cosines differ by only {gap:.3g}"


@pytest.mark.parametrize("model_type", ["mamba", "bert", "gemma3n", "no_such_family"])
def test_family_outside_the_table_is_refused_by_name(model_type):
    with pytest.raises(FamilyError, match=f"'{model_type}' is not supported") as refused:
        family_of(model_type)
    assert all(known in str(refused.value) for known in (*FAMILIES, "gemma3,"))


def test_near_names_are_suggested():
    with pytest.raises(FamilyError, match="Did you mean a qwen3 checkpoint"):
        family_of("qwen33")


def test_unknown_layer_kinds_are_refused():
    model = build(**{**COMMON, **CONFIGS["gemma2"]})
    view_of(model)
    model.config.layer_types = ["full_attention"] * (N - 1) + ["chunked_attention"]
    with pytest.raises(ModelError, match="chunked_attention"):
        view_of(model)


def test_step_bytes_count_layers_norm_and_head():
    view = tiny_view("llama")
    model = view.model
    parts = (*model.model.layers, model.model.norm, model.lm_head)
    expected = sum(p.numel() * 4 for part in parts for p in part.parameters())
    assert view.step_bytes() == expected
    assert view.step_bytes() < sum(p.numel() * 4 for p in model.parameters()), "embedding counted"

"""The self-check passes where the table is right and refuses an entry wrong in any one flag."""

import dataclasses

import pytest
import torch
from tiny import COMMON, CONFIGS, NAMES, N, build, prompts, tiny_model, tiny_view

from selfspec_cli.engine.families import Family, family_of
from selfspec_cli.engine.selfcheck import RELATIVE_TOLERANCE, check_view, truncated_model
from selfspec_cli.engine.view import LayerView
from selfspec_cli.errors import ModelError, SelfCheckError

WIDE_WINDOW = 40  # wider than the prompt that the check uses where nothing asks for more


@pytest.mark.parametrize("name", NAMES)
def test_every_exit_of_every_family_passes(name):
    error = check_view(tiny_view(name))
    assert 0 < error < 1e-5, f"{name}: relative error {error:.3g} over all exits"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_passes_within_its_tolerance(name, dtype):
    model = build(**{**COMMON, **CONFIGS[name]}).to(dtype)
    error = check_view(LayerView(model, family_of(model.config.model_type)), [1, 3, N])
    assert error < RELATIVE_TOLERANCE[dtype], f"{name} {dtype}: {error:.3g}"


WRONG = {
    "embed": ("gpt2", "transformer.wpe"),
    "embed_of_another_family": ("llama", "gpt_neox.embed_in"),
    "position_embed": ("gpt2", ""),
    "position_embed_added": ("llama", "model.embed_tokens"),
    "rotary": ("llama", ""),
    "rotary_of_another_module": ("gpt_neox_parallel", "gpt_neox.final_layer_norm"),
    "layers": ("llama", "model.rotary_emb"),
    "layers_of_another_family": ("llama", "transformer.h"),
    "norm": ("llama", "model.layers.0.input_layernorm"),
    "norm_of_another_family": ("llama", "transformer.ln_f"),
    "head": ("qwen3", "model.embed_tokens"),
    "head_without_weight": ("qwen3", "model"),
    "cache_argument": ("llama", "layer_past"),
    "cache_argument_of_neox": ("gpt_neox_sequential", "cache"),
    "mixed_attention": ("gemma2", False),
    "mixed_attention_of_qwen2": ("qwen2", False),
    "windowed": ("mistral", False),
    "windowed_of_phi3": ("phi3", False),
    "rotary_by_kind": ("gemma3", False),
    "rotary_by_kind_of_one_table": ("qwen2", True),
    "embed_multiplier": ("granite", ""),
    "embed_multiplier_of_another_place": ("granite", "residual_multiplier"),
    "logit_divisor": ("granite", ""),
    "logit_divisor_of_another_place": ("granite", "attention_multiplier"),
    "logit_softcap": ("gemma2", ""),
    "logit_softcap_of_attention": ("gemma2", "attn_logit_softcapping"),
    "logit_softcap_missing_in_config": ("llama", "final_logit_softcapping"),
}


def _flag(case: str) -> str:
    fields = [field.name for field in dataclasses.fields(Family)]
    return max((name for name in fields if case.startswith(name)), key=len)


@pytest.mark.parametrize("case", WRONG)
def test_wrong_flag_is_refused(case):
    name, value = WRONG[case]
    model = tiny_model(name)
    entry = dataclasses.replace(family_of(model.config.model_type), **{_flag(case): value})
    with pytest.raises(ModelError) as refused:
        check_view(LayerView(model, entry))
    assert str(refused.value).strip(), "the refusal says nothing"


def test_each_flag_of_the_table_has_a_wrong_entry():
    flags = {field.name for field in dataclasses.fields(Family)} - {"model_type"}
    assert {_flag(case) for case in WRONG} == flags


def test_refusal_names_exit_position_and_error():
    entry = dataclasses.replace(family_of("llama"), norm="model.layers.0.input_layernorm")
    with pytest.raises(SelfCheckError, match=r"exit layer \d of 6 .* position \d+ .*tolerance"):
        check_view(LayerView(tiny_model("llama"), entry))


class BlindToWindow(LayerView):
    """Twin: knows which layers are local, and shows them everything."""

    def _mask(self, kind, starts, hidden):
        return super()._mask("full_attention", starts, hidden)


class EmbeddedTwice(LayerView):
    """Twin: multiplies by the root of the width what the embedding module has scaled already."""

    def embed(self, token_ids, cache):
        return super().embed(token_ids, cache) * self.hidden_size**0.5


@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
def test_a22_embedding_scaled_twice_is_refused(name):
    model = tiny_model(name)
    with pytest.raises(SelfCheckError, match="differ from the library's"):
        check_view(EmbeddedTwice(model, family_of(model.config.model_type)))


def _wide_gemma2() -> torch.nn.Module:
    return build(**{**COMMON, **CONFIGS["gemma2"], "sliding_window": WIDE_WINDOW})


def test_prompt_is_longer_than_the_sliding_window():
    """A view that ignores the window is right on a short prompt, so the check needs a long one."""
    blind = BlindToWindow(_wide_gemma2(), family_of("gemma2"))
    short = torch.tensor(prompts(range(12, 13)))
    long = torch.tensor(prompts(range(WIDE_WINDOW + 8, WIDE_WINDOW + 9)))
    gaps = {}
    with torch.inference_mode():
        for ids in (short, long):
            cache = blind.new_cache(capacity=ids.shape[1])
            ours = blind.head(blind.run(blind.embed(ids, cache), cache, 0, N))
            gaps[ids.shape[1]] = float((ours - blind.model(input_ids=ids).logits).abs().max())
    assert gaps[12] < 1e-4, f"logit errors by length: {gaps}"
    assert gaps[WIDE_WINDOW + 8] > 1e-2, f"logit errors by length: {gaps}"
    with pytest.raises(SelfCheckError, match="exit layer"):
        check_view(blind)


def test_unmarked_local_layers_are_refused_beyond_a_wide_window():
    """An entry that forgets the flag has no local layers; the window must still set the length."""
    entry = dataclasses.replace(family_of("gemma2"), mixed_attention=False)
    with pytest.raises(SelfCheckError, match="differ from the library's"):
        check_view(LayerView(_wide_gemma2(), entry))


@pytest.mark.parametrize("name", NAMES)
def test_model_is_untouched_by_the_check(name):
    model = tiny_model(name)
    check_view(tiny_view(name))
    assert model.config.num_hidden_layers == N
    assert truncated_model(tiny_view(name), 2).config.num_hidden_layers == 2
    assert model.config.num_hidden_layers == N, "a truncated copy changed the loaded model"


def test_non_finite_logits_are_refused():
    model = build(**{**COMMON, **CONFIGS["llama"]})
    with torch.no_grad():
        model.model.layers[3].mlp.down_proj.weight[0, 0] = float("nan")
    with pytest.raises(SelfCheckError, match="not finite"):
        check_view(LayerView(model, family_of("llama")))


class HeadWithoutNorm(LayerView):
    """Twin: reads exits by the head alone. Its text stays right, so only this check sees it."""

    def head(self, hidden):
        return self._head(hidden).float()


@pytest.mark.parametrize(
    "name", ["llama", "qwen2", "qwen3", "gemma3", "mistral", "phi3", "granite", "gpt2"]
)
def test_head_without_the_norm_is_refused(name):
    model = tiny_model(name)
    with pytest.raises(SelfCheckError, match="differ from the library's"):
        check_view(HeadWithoutNorm(model, family_of(model.config.model_type)))


class PositionsOneLate(LayerView):
    """Twin: counts positions from one."""

    def _positions(self, starts, m):
        return super()._positions([start + 1 for start in starts], m)


def test_positions_counted_from_one_are_refused_where_they_are_learned():
    """Rotary angles depend on differences only, so a learned table is what can tell."""
    with pytest.raises(SelfCheckError, match="differ from the library's"):
        check_view(PositionsOneLate(tiny_model("gpt2"), family_of("gpt2")))

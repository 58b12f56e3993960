"""Tiny random models of every family of the table, and twins of them that accept more or less.

Nothing is downloaded. Weights are the library's random start (seeded) with two changes: every
vector gets noise, so a norm or bias that is left out shows; every matrix is enlarged, so greedy
text is not constant. 264 rows of vocabulary stand for 260 real tokens and 4 rows of padding.
"""

import copy
import functools

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from selfspec_cli.engine.families import family_of
from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.policies import GreedyPolicy
from selfspec_cli.engine.view import LayerView
from selfspec_cli.records import Sampling

N = 6  # layers
V = 264  # rows of the head
REAL_TOKENS = 260  # the other four rows are padding of the vocabulary
WINDOW = 8  # of local layers

COMMON = {
    "vocab_size": V,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "num_hidden_layers": N,
    "num_attention_heads": 4,
    "max_position_embeddings": 160,
}
GATED = {"hidden_size": 40, "intermediate_size": 72, "num_key_value_heads": 2}
HEADS = {"head_dim": 12, "tie_word_embeddings": False}
NEOX = {"hidden_size": 48, "intermediate_size": 96, "rotary_pct": 0.5}

CONFIGS: dict[str, dict[str, object]] = {
    "llama": {"model_type": "llama", **GATED, "tie_word_embeddings": False},
    "qwen2": {
        "model_type": "qwen2",
        **GATED,
        "tie_word_embeddings": False,
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": 3,  # the layers below are global
    },
    "qwen3": {"model_type": "qwen3", **GATED, **HEADS},
    "gemma2": {
        "model_type": "gemma2",
        **GATED,
        **HEADS,
        "query_pre_attn_scalar": 12,
        "sliding_window": WINDOW,
        "final_logit_softcapping": 6.0,
        "attn_logit_softcapping": 30.0,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        **GATED,
        **HEADS,
        "query_pre_attn_scalar": 12,
        "sliding_window": WINDOW,
        "sliding_window_pattern": 3,  # every third layer is global, with another rotary base
    },
    "mistral": {"model_type": "mistral", **GATED, **HEADS, "sliding_window": WINDOW},
    "phi3": {
        "model_type": "phi3",
        **GATED,
        "tie_word_embeddings": False,
        "sliding_window": WINDOW,
        "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.8},
    },
    "granite": {
        "model_type": "granite",
        **GATED,
        "tie_word_embeddings": False,
        "embedding_multiplier": 5.0,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.2,
        "logits_scaling": 3.0,
    },
    "gpt2": {"model_type": "gpt2", "hidden_size": 32, "tie_word_embeddings": False},
    "gpt_neox_parallel": {"model_type": "gpt_neox", **NEOX, "use_parallel_residual": True},
    "gpt_neox_sequential": {"model_type": "gpt_neox", **NEOX, "use_parallel_residual": False},
}
NAMES = tuple(CONFIGS)
ENLARGE = 12.0
NOISE = 0.2

OUTPUT_PROJECTIONS = {
    # A norm follows each projection here and would undo a factor, so the norm is scaled instead.
    "gemma2": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "gemma3_text": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "gpt2": ("attn.c_proj", "mlp.c_proj"),
    "gpt_neox": ("attention.dense", "mlp.dense_4h_to_h"),
}
USUAL_PROJECTIONS = ("self_attn.o_proj", "mlp.down_proj")


def build(model_type: str, seed: int = 7, **config: object) -> nn.Module:
    """Random float32 model of a family, in evaluation mode, without an EOS of its own."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        settings = AutoConfig.for_model(model_type, **config)
        model = AutoModelForCausalLM.from_config(settings).float().eval()
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(NOISE * torch.randn(parameter.shape, generator=noise))
            else:
                parameter.mul_(ENLARGE)
    model.requires_grad_(False)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


@functools.cache
def tiny_model(name: str) -> nn.Module:
    """The model of `CONFIGS[name]`; shared by all tests, so never changed by one."""
    return build(**{**COMMON, **CONFIGS[name]})


def view_of(model: nn.Module) -> LayerView:
    return LayerView(model, family_of(model.config.model_type))


@functools.cache
def tiny_view(name: str) -> LayerView:
    return view_of(tiny_model(name))


def damp(model: nn.Module, first_layer: int, epsilon: float) -> nn.Module:
    """A copy whose layers from `first_layer` on add only epsilon of what they did.

    As epsilon falls, an exit at `first_layer` agrees with the whole model more and more.
    """
    twin = copy.deepcopy(model)
    family = family_of(model.config.model_type)
    layers = functools.reduce(getattr, family.layers.split("."), twin)
    with torch.no_grad():
        for layer in list(layers)[first_layer:]:
            for path in OUTPUT_PROJECTIONS.get(family.model_type, USUAL_PROJECTIONS):
                for parameter in functools.reduce(getattr, path.split("."), layer).parameters():
                    if parameter.dim() == 1 and "gemma" in family.model_type:
                        parameter.copy_(epsilon * (1 + parameter) - 1)  # its norms scale by 1 + w
                    else:
                        parameter.mul_(epsilon)
    return twin


@functools.cache
def damped_view(name: str, first_layer: int = 3, epsilon: float = 0.3) -> LayerView:
    return view_of(damp(tiny_model(name), first_layer, epsilon))


def prompts(lengths: range, seed: int = 3) -> list[tuple[int, ...]]:
    """One random prompt a length, of real tokens that are not special."""
    generator = torch.Generator().manual_seed(seed)
    return [
        tuple(torch.randint(3, REAL_TOKENS, (n,), generator=generator).tolist()) for n in lengths
    ]


def greedy_policy(
    view: LayerView, prompt: tuple[int, ...] = (), **sampling: object
) -> GreedyPolicy:
    return GreedyPolicy(Processor(Sampling(temperature=0.0, **sampling), view.vocab_size, prompt))


def library_greedy(model: nn.Module, prompt: tuple[int, ...], budget: int, **options: object):
    """`model.generate(do_sample=False)`: the new tokens."""
    ids = torch.tensor([prompt], device=model.device)
    with torch.inference_mode():
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=budget,
            **options,
        )
    return made[0, len(prompt) :].tolist()

"""One small table entry a model family: where its parts live, and nothing else.

An entry is data. The layers, masks and rotary tables are the library's own; an entry only says
under which attribute each part is found and which of the library's conventions applies. Whether
an entry is right is not believed but checked at load (`selfcheck`).
"""

import difflib
from dataclasses import dataclass

from selfspec_cli.errors import FamilyError


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Attribute paths and flags of one family; paths start at the causal-LM object."""

    model_type: str
    embed: str = "model.embed_tokens"
    """Token embedding, with the family's own scaling inside it."""
    position_embed: str = ""
    """Learned positions added to the embedding; empty for rotary families."""
    rotary: str = "model.rotary_emb"
    """Module that makes (cos, sin) for positions; empty if there is none."""
    layers: str = "model.layers"
    norm: str = "model.norm"
    head: str = "lm_head"
    cache_argument: str = "cache"
    """Name under which a layer takes the KV cache."""
    mixed_attention: bool = False
    """Layers differ in their mask; `config.layer_types` says which layer has which."""
    windowed: bool = False
    """All layers are local where `config.sliding_window` is set."""
    rotary_by_kind: bool = False
    """The rotary module makes another table for each mask kind."""
    embed_multiplier: str = ""
    """Config attribute of a factor on the embedding that the embedding module does not apply."""
    logit_divisor: str = ""
    """Config attribute that the head's output is divided by."""
    logit_softcap: str = ""
    """Config attribute of the cap c in c·tanh(logits / c); empty if there is none."""


FAMILIES = {
    family.model_type: family
    for family in (
        Family(model_type="llama"),
        Family(model_type="qwen2", mixed_attention=True),
        Family(model_type="qwen3", mixed_attention=True),
        Family(
            model_type="gemma2",
            mixed_attention=True,
            logit_softcap="final_logit_softcapping",
        ),
        Family(
            model_type="gemma3_text",
            mixed_attention=True,
            rotary_by_kind=True,
            logit_softcap="final_logit_softcapping",
        ),
        Family(model_type="mistral", windowed=True),
        Family(model_type="phi3", windowed=True),
        Family(
            model_type="granite",
            embed_multiplier="embedding_multiplier",
            logit_divisor="logits_scaling",
        ),
        Family(
            model_type="gpt2",
            embed="transformer.wte",
            position_embed="transformer.wpe",
            rotary="",
            layers="transformer.h",
            norm="transformer.ln_f",
        ),
        Family(
            model_type="gpt_neox",
            embed="gpt_neox.embed_in",
            rotary="gpt_neox.rotary_emb",
            layers="gpt_neox.layers",
            norm="gpt_neox.final_layer_norm",
            cache_argument="layer_past",
        ),
    )
}


COMPOSITE = {"gemma3": "gemma3_text"}
"""Checkpoints that hold a family of the table as their text part, by their own model type."""


def family_of(model_type: str, where: str = "") -> Family:
    """Return the table entry for a `config.model_type`, or that of its text part.

    Args:
        model_type: of the checkpoint.
        where: where it was found, for the message.

    Raises:
        FamilyError: the family is not in the table; the message names near ones and all known.
    """
    found = FAMILIES.get(COMPOSITE.get(model_type, model_type))
    if found is not None:
        return found
    known = sorted({*FAMILIES, *COMPOSITE})
    near = difflib.get_close_matches(model_type, known, n=1, cutoff=0.5)
    guess = f" Did you mean a {near[0]} checkpoint?" if near else ""
    raise FamilyError(
        f"model family '{model_type}' is not supported",
        where=where,
        hint=f"Supported families: {', '.join(known)}.{guess}",
    )

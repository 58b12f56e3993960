"""The longest context a model decodes exactly, and the one message for a request beyond it."""

from typing import Any

from selfspec_cli.errors import ModelError


def rotary_switch(config: Any) -> int | None:
    """Context (tokens) beyond which the model's rotary factors are others, None if there is none.

    With `longrope` a pass that reaches beyond this length turns all its positions by the long
    factors, and one that does not by the short ones. Keys cached before are then wrong for what
    follows, and a block that straddles the length is turned unlike single steps; so nothing is
    decoded across it.
    """
    tables = getattr(config, "rope_parameters", None) or {}
    kinds = [tables, *(part for part in tables.values() if isinstance(part, dict))]
    found = [
        int(part["original_max_position_embeddings"])
        for part in kinds
        if part.get("rope_type") == "longrope"
    ]
    return min(found, default=None)


def context_limit(config: Any) -> int | None:
    """Most tokens of prompt and output together, None if the configuration does not say.

    Args:
        config: a transformers configuration of a causal LM.
    """
    stated = (getattr(config, "max_position_embeddings", None), rotary_switch(config))
    return min((int(limit) for limit in stated if limit is not None), default=None)


def limit_reason(config: Any) -> str:
    """What `context_limit` counts, for messages: `positions`, or why there are so few."""
    switch = rotary_switch(config)
    if switch is None or context_limit(config) != switch:
        return "positions"
    return "positions before its rotary factors switch (longrope)"


def limit_notice(config: Any) -> str | None:
    """One sentence for people where rotary factors limit the context below the stated positions."""
    switch, limit = rotary_switch(config), context_limit(config)
    if switch is None or limit != switch or switch == config.max_position_embeddings:
        return None
    return (
        f"the model's rotary factors switch beyond {switch} tokens (longrope): requests whose "
        f"prompt and output exceed {switch} tokens are not decoded, "
        f"though it has {config.max_position_embeddings} positions"
    )


def check_fits(config: Any, prompt_tokens: int, budget: int) -> None:
    """Refuse what cannot be decoded, before any pass.

    Args:
        config: the model's configuration.
        prompt_tokens: tokens of the prompt.
        budget: output tokens at most.

    Raises:
        ModelError: the prompt is empty, or prompt and budget exceed the context limit; the message
            gives all three numbers.
    """
    limit = context_limit(config)
    if limit is not None and prompt_tokens + budget > limit:
        raise ModelError(
            f"prompt of {prompt_tokens} and {budget} output tokens exceed the model's "
            f"{limit} {limit_reason(config)}"
        )
    if prompt_tokens == 0:
        raise ModelError("a prompt of zero tokens cannot be decoded")

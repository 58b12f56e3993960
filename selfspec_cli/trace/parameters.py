"""Sampling parameters of a row, validated: a wrong law must never run as if it were the right one.

A parameter that would change the law (or the prompt) and that we cannot apply makes the row
unusable; one without influence on the tokens (`seed`, `stream`, `logprobs`) is ignored.
"""

from selfspec_cli.records import Sampling
from selfspec_cli.trace.rows import Row, RowRefusedError, finite, integer, number, show

MAX_TOKENS_NAMES = ("max_completion_tokens", "max_tokens", "max_new_tokens")
_MIN_TOKENS_NAMES = ("min_tokens", "min_new_tokens")
_SMALLEST_POSITIVE = 5e-324

_NEUTRAL: dict[str, tuple[object, ...]] = {
    # Values that leave the law alone; null, false, and empty text, lists, maps always do.
    "min_p": (0,),
    "typical_p": (1,),
    "top_a": (0,),
    "tfs": (1,),
    "tfs_z": (1,),
    "mirostat": (0,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "no_repeat_ngram_size": (0,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
    "dynatemp_range": (0,),
    "smoothing_factor": (0,),
    "penalty_alpha": (0,),
    "encoder_repetition_penalty": (1,),
    "guidance_scale": (1,),
    "num_beams": (1,),
    "do_sample": (True,),
    "add_generation_prompt": (True,),
    "tool_choice": ("auto", "none"),
    "response_format": ("text", {"type": "text"}),
    "bad_words": (),
    "bad_words_ids": (),
    "allowed_token_ids": (),
    "stop_token_ids": (),
    "suppress_tokens": (),
    "ignore_eos": (),
    "use_beam_search": (),
    "logits_processors": (),
    "structured_outputs": (),
    "json_schema": (),
    "grammar": (),
    "regex": (),
    "ebnf": (),
    "structural_tag": (),
    "suffix": (),
    "continue_final_message": (),
    "chat_template": (),
    "chat_template_kwargs": (),
    "truncate_prompt_tokens": (),
    "prompt_embeds": (),
}
_GUIDED = "guided_"  # vLLM's older prefix of every grammar parameter
_REFUSED_FALSE = frozenset({"do_sample", "add_generation_prompt"})  # false is what changes these


def refuse_unsupported(row: Row) -> None:
    """Pass if no parameter of the row asks for something that cannot be applied.

    Raises:
        RowRefusedError: `unsupported parameter`, naming it; `n > 1`; `invalid n`.
    """
    for name, value in row.items():
        if name in _NEUTRAL or name.startswith(_GUIDED):
            _refuse_active(name, value)
    for name in ("n", "best_of"):
        copies = integer(row, (name,), low=1)
        if copies is not None and copies > 1:
            raise RowRefusedError("n > 1", f"{name} is {copies}; rows are not expanded")


def _refuse_active(name: str, value: object) -> None:
    off = value is None or value in ("", [], {}) or (value is False and name not in _REFUSED_FALSE)
    if not off and value not in _NEUTRAL.get(name, ()):
        raise RowRefusedError("unsupported parameter", f"{name} = {show(value)}")


def read_temperature(row: Row) -> float | None:
    """Return the temperature (0 is greedy), or None where the trace does not say.

    Raises:
        RowRefusedError: `invalid temperature` for NaN, infinity, a negative number or text.
    """
    return number(row, "temperature", low=0.0)


def read_max_tokens(row: Row) -> int | None:
    """Return the budget of output tokens (0 is kept), or None where it is absent or null.

    Raises:
        RowRefusedError: `invalid max_tokens` (or the alias used) if negative, fractional or text.
    """
    return integer(row, MAX_TOKENS_NAMES, low=0)


def read_sampling(row: Row) -> Sampling:
    """Return how the row turns logits into a law; absent and null mean "off", never a default.

    `top_k` -1, 0 and null are the three spellings of "no filter" in use.

    Raises:
        RowRefusedError: `invalid NAME` of the first parameter that is out of range.
    """
    temperature = read_temperature(row)
    top_p = number(row, "top_p", low=_SMALLEST_POSITIVE, high=1.0)
    repetition = number(row, "repetition_penalty", low=_SMALLEST_POSITIVE)
    return Sampling(
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=max(integer(row, ("top_k",), low=-1) or 0, 0),
        repetition_penalty=1.0 if repetition is None else repetition,
        presence_penalty=number(row, "presence_penalty") or 0.0,
        frequency_penalty=number(row, "frequency_penalty") or 0.0,
        min_tokens=integer(row, _MIN_TOKENS_NAMES, low=0) or 0,
        logit_bias=_logit_bias(row.get("logit_bias")),
    )


def _logit_bias(value: object) -> tuple[tuple[int, float], ...]:
    if value is None or value == []:
        return ()
    if not isinstance(value, dict):
        raise RowRefusedError("invalid logit_bias", show(value))
    amounts: dict[int, float] = {}
    for key in value:
        token_id = int(key) if key.isascii() and key.isdecimal() else -1
        amount = finite(value[key])
        if token_id < 0 or token_id in amounts or amount is None:
            raise RowRefusedError("invalid logit_bias", f"{show(key)}: {show(value[key])}")
        amounts[token_id] = amount
    return tuple(sorted(amounts.items()))


def read_stop(row: Row) -> tuple[str, ...]:
    """Return the stop strings, in the order given.

    Raises:
        RowRefusedError: `invalid stop` if it is not text or a list of texts that are not empty.
    """
    value = row.get("stop")
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(t, str) and t for t in texts):
        raise RowRefusedError("invalid stop", show(value))
    return tuple(texts)

"""Every reported quantity: what it is called, in which unit, over which denominator, and why.

Labels, CSV columns, legends and help text come from here. Rules: a rate's name states its
denominator; `_s` seconds, `_tokens`, `_bytes`; `num_` a count, `_ratio` dimensionless, fractions
in [0, 1]; what is undefined is missing. p is the target, q the draft, k the draft length, L the
exit layer, A accepted, D drafted, G committed tokens, R rounds.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Better = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One entry of the registry."""

    name: str
    """Code name and column name."""
    symbol: str
    """Letter of the field; empty if there is none."""
    unit: str
    """`s`, `tokens`, `layers`, `count`, `ratio`, `fraction`, `nats`, `bytes`."""
    denominator: str
    """What it is per; empty for a total or a length."""
    better: Better | None
    """Direction that is better for the user; None where neither is."""
    definition: str
    source: str
    """Where the definition stands; empty if it is this project's own."""


def quantity(name: str) -> Quantity:
    """Return a quantity by its code name.

    Raises:
        KeyError: unknown name; the message lists the nearest.
    """
    try:
        return QUANTITIES[name]
    except KeyError:
        near = difflib.get_close_matches(name, QUANTITIES, n=3)
        told = f"; near: {', '.join(near)}" if near else ""
        raise KeyError(f"no quantity {name!r} in the registry{told}") from None


_LEVIATHAN = "Leviathan et al. 2023, arXiv 2211.17192"
_Entry = tuple[str, str, str, str, Better | None, str, str]

# name, symbol, unit, denominator, better, definition, source
_SETTINGS: tuple[_Entry, ...] = (
    ("exit_layer", "L", "layers", "", None,
     "Decoder layers run before the head; a count: L = 8 runs layers 0..7.", ""),
    ("draft_length", "k", "tokens", "round", None,
     "Tokens the draft is asked for per round, at least 1.", ""),
    ("temperature", "T", "ratio", "", None,
     "Divides the logits of both laws; 0 means the most likely token.", ""),
    ("batch_size", "B", "count", "", None, "Requests decoded together.", ""),
    ("batch", "B", "count", "", None, "Rows in a timed pass.", ""),
    ("context_min", "", "tokens", "", None, "Smallest prompt of the bucket's context band.", ""),
    ("context_max", "", "tokens", "", None,
     "First prompt length beyond the bucket's context band; missing where the band is open.", ""),
    ("prompt_tokens", "", "tokens", "", None, "Length of the prompt, template included.", ""),
    ("max_tokens", "", "tokens", "", None, "Budget of output tokens of a request.", ""),
    ("completion_tokens", "", "tokens", "", None,
     "Length of the observed path, EOS included.", ""),
    ("position", "t", "tokens", "", None,
     "Index in the output, from 0 for the token that prefill yields.", ""),
    ("positions", "m", "tokens", "", None, "Positions fed to a timed part at once.", ""),
    ("context", "", "tokens", "", None, "Tokens in the cache before a pass or round.", ""),
    ("block", "", "count", "", None,
     "Timing block: one interleaved turn of every part and of plain decoding.", ""),
)  # fmt: skip

_COUNTS: tuple[_Entry, ...] = (
    ("num_requests", "M", "count", "", "higher", "Requests that the row rests on.", ""),
    ("num_tokens", "", "tokens", "", "higher", "Output tokens that the row rests on.", ""),
    ("num_rounds", "R", "count", "", None,
     "Rounds: one draft phase and one target pass each.", ""),
    ("rounds", "R", "count", "", "lower",
     "Rounds of a request; from the walk, their exact expectation.", ""),
    ("num_drafted", "D", "tokens", "", None, "Tokens proposed; only the budget cuts k.", ""),
    ("num_tested", "", "tokens", "", None,
     "Drafted tokens compared with the target: A + 1 if one was rejected, else A.", ""),
    ("num_accepted", "A", "tokens", "", "higher",
     "Drafted tokens kept before the first rejection.", ""),
    ("num_committed", "G", "tokens", "", None,
     "Tokens that entered the output, after EOS, stop strings and the budget.", ""),
    ("drafted", "D", "tokens", "", None, "Expected drafted tokens of a request, from the walk.",
     ""),
    ("tested", "", "tokens", "", None, "Expected tested tokens of a request, from the walk.", ""),
    ("accepted", "A", "tokens", "", "higher",
     "Expected accepted tokens of a request, from the walk.", ""),
    ("committed", "G", "tokens", "", None,
     "Tokens that rounds add to the output of a request; the first comes from prefill.", ""),
    ("rounds_by_drafted", "", "count", "", None,
     "Expected rounds that draft 0, 1, .., k tokens; with their contexts any cost re-prices them.",
     ""),
    ("context_by_drafted", "", "tokens", "", None,
     "Sum over those rounds of the context each starts at.", ""),
    ("rounds_by_accepted", "", "count", "", None,
     "Expected rounds that accept 0, 1, .., k tokens.", ""),
    ("num_zero_prob", "", "tokens", "", "lower",
     "Path tokens to which the target gives no probability.", ""),
    ("num_outside_truncation", "", "tokens", "", "lower",
     "Path tokens that the request's own top-k or top-p cut off by more than rounding.", ""),
    ("num_argmax", "", "tokens", "", None, "Path tokens that are the target's most likely.", ""),
)  # fmt: skip

_ACCEPTANCE: tuple[_Entry, ...] = (
    ("accept_prob", "β", "fraction", "position", "higher",
     "sum over x of min(p(x), q(x)); for the mean of one position only.", _LEVIATHAN),
    ("accept_given_path", "r", "fraction", "position", "higher",
     "min(1, q(x_t) / p(x_t)) at the path's own token: the walk's coin. At T = 0: 1 if both laws "
     "have the same most likely token, else 0.", ""),
    ("is_argmax", "", "fraction", "position", "higher",
     "1 if draft and target have the same most likely token.", ""),
    ("acceptance_rate_tested", "α", "fraction", "tested tokens", "higher",
     "Accepted ÷ tested. Independent of k only if acceptance is i.i.d.", _LEVIATHAN),
    ("acceptance_rate_drafted", "", "fraction", "drafted tokens", "higher",
     "Accepted ÷ drafted: share of draft work that was useful. Falls as k grows, so never "
     "comparable across k.", ""),
    ("accept_at_joint", "a_i", "fraction", "rounds", "higher",
     "Share of rounds in which draft position i was accepted.", ""),
    ("accept_at_cond", "c_i", "fraction", "rounds that accepted position i - 1", "higher",
     "Acceptance at position i given acceptance at i - 1.", ""),
    ("mean_accepted_tokens", "Ā", "tokens", "rounds", "higher",
     "Accepted ÷ rounds, without the target's own token.", ""),
    ("block_efficiency", "τ", "tokens", "rounds", "higher",
     "1 + accepted ÷ rounds: tokens a target pass yields before trimming, the target's token "
     "included.", _LEVIATHAN),
    ("tokens_per_round", "", "tokens", "rounds", "higher",
     "Committed ÷ rounds: after trimming, what wall time sees.", ""),
    ("break_even_acceptance", "α*", "fraction", "tested tokens", "lower",
     "Acceptance at which the predicted speedup is 1.", ""),
)  # fmt: skip

_COSTS: tuple[_Entry, ...] = (
    ("seconds", "", "s", "", "lower", "Measured or predicted time of the row.", ""),
    ("ar_seconds", "", "s", "", "lower",
     "Time of plain (autoregressive) decoding of the same tokens, prefill excluded.", ""),
    ("prefill_seconds", "", "s", "", "lower", "Time from the prompt to the first token.", ""),
    ("ar_step_s", "", "s", "step", "lower",
     "Time of one plain decoding step at the stated context and batch.", ""),
    ("bandwidth_floor_s", "", "s", "step", "lower",
     "Bytes read per plain step ÷ measured read bandwidth: no step is faster.", ""),
    ("read_bandwidth", "", "bytes/s", "", "higher", "Measured read bandwidth of the memory.", ""),
    ("bytes_per_step", "", "bytes", "step", "lower",
     "Weights and cache a plain step reads.", ""),
    ("draft_cost_ratio", "c", "ratio", "plain step", "lower",
     "Time of one draft token ÷ one plain step, same context and device; L/N ignores the head.",
     _LEVIATHAN),
    ("verify_cost_ratio", "v", "ratio", "plain step", "lower",
     "Time of one verification at k drafted tokens ÷ one plain step; usually assumed 1.", ""),
    ("overhead_ratio", "o", "ratio", "plain step", "lower",
     "Rest of a round (accepting, rolling back, Python) ÷ one plain step.", ""),
    ("cost_model_error", "", "ratio", "measured round", "lower",
     "Median |parts added up ÷ whole round measured - 1| over held-out rounds.", ""),
    ("block_spread", "", "ratio", "mean over blocks", "lower",
     "Standard deviation of the timing blocks ÷ their mean; above 0.10 no verdict rests on it.",
     ""),
)  # fmt: skip

_SPEED: tuple[_Entry, ...] = (
    ("predicted_speedup", "ŝ", "ratio", "predicted seconds", "higher",
     "Plain seconds ÷ speculative seconds from the walk and the measured costs, summed over "
     "requests, decoding only.", ""),
    ("predicted_speedup_low", "", "ratio", "predicted seconds", "higher",
     "Lower end of the 95 % interval of the predicted speedup.", ""),
    ("predicted_speedup_high", "", "ratio", "predicted seconds", "higher",
     "Upper end of the 95 % interval of the predicted speedup.", ""),
    ("predicted_request_speedup", "", "ratio", "predicted seconds", "higher",
     "As the predicted speedup, with the prefill on both sides.", ""),
    ("closed_form_speedup", "", "ratio", "round", "higher",
     "(1 - α^(k+1)) / ((1 - α)(kc + v + o)): a cross-check for i.i.d. acceptance, never used to "
     "decide.", _LEVIATHAN),
    ("textbook_speedup", "", "ratio", "round", "higher",
     "The closed form with c = L/N, v = 1 and o = 0: what an uncosted formula promises.",
     _LEVIATHAN),
    ("measured_speedup", "s", "ratio", "measured seconds", "higher",
     "Plain seconds ÷ speculative seconds for the same tokens, cache and kernels, prefill "
     "excluded.", ""),
    ("measured_request_speedup", "", "ratio", "measured seconds", "higher",
     "As the measured speedup, with the prefill on both sides.", ""),
    ("signed_error", "", "ratio", "measured speedup", None,
     "Predicted ÷ measured speedup - 1.", ""),
    ("predicted_slow_share", "", "fraction", "sampled walks", "lower",
     "Share of sampled walks whose request takes over 1.05 × its own plain time.", ""),
    ("predicted_p99_ratio", "", "ratio", "plain P99", "lower",
     "99th percentile of request time ÷ that of plain decoding; missing below 300 requests.", ""),
)  # fmt: skip

_EVIDENCE: tuple[_Entry, ...] = (
    ("surprisal", "", "nats", "", None, "Sum of -ln p(x_t) over the path.", ""),
    ("entropy", "", "nats", "", None, "Sum of the target law's entropy over the path.", ""),
    ("varentropy", "", "nats²", "", None,
     "Sum of the variance of -ln p(x) under the target's law over the path.", ""),
    ("path_z", "z", "ratio", "standard error", None,
     "sum(surprisal - entropy) / sqrt(sum varentropy): how far recorded text is from the "
     "target's own.", ""),
    ("path_excess", "", "nats", "tokens", None,
     "sum(surprisal - entropy) / tokens of recorded text.", ""),
    ("peak_memory_bytes", "", "bytes", "", "lower", "Largest resident memory of the stage.", ""),
)  # fmt: skip

_FIELDS = ("name", "symbol", "unit", "denominator", "better", "definition", "source")
QUANTITIES: Mapping[str, Quantity] = MappingProxyType(
    {
        entry[0]: Quantity(**dict(zip(_FIELDS, entry, strict=True)))  # type: ignore[arg-type]
        for entry in (*_SETTINGS, *_COUNTS, *_ACCEPTANCE, *_COSTS, *_SPEED, *_EVIDENCE)
    }
)
"""The registry by name, in reading order."""

"""Requests as read to requests as the model sees them: token ids, a budget, a recorded path.

Everything that can rule a request out is decided here, before any weights are loaded.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from selfspec_cli.errors import TraceError
from selfspec_cli.records import UNLABELLED, Finish, PreparedRequest, Request, Skip
from selfspec_cli.trace.encode import NO_TEMPLATE, Encoder, TokenizerLike
from selfspec_cli.trace.rows import RowRefusedError
from selfspec_cli.trace.script import prompt_script
from selfspec_cli.trace.skips import describe_skips

DEFAULT_MAX_TOKENS = 128  # output tokens where the trace sets no budget (METHOD.md §3)

_NOTES = {
    "max_tokens_defaulted": "no max_tokens in the trace, {default} was used",
    "max_tokens_capped": "max_tokens was cut to {cap}",
    "temperature_missing": "no temperature in the trace",
    "unlabelled": "no task label, all of these share the bucket unlabelled",
    "zero_budget": "max_tokens is 0, nothing is generated",
    "completion_cut": "recorded answer was cut to the budget",
    "completion_cut_at_eos": "recorded answer went on after EOS and was cut there",
    "eos_appended": "recorded answer ended by itself, EOS was added",
    "reencoding_differs": "recorded text and recorded token ids disagree, the ids are used",
    "recount_differs": "recorded text re-encodes to another number of tokens than was logged, "
    "of {recounted} compared",
}
ONE_BUCKET = "one bucket: no task labels found, use --task-from"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """Limits of the model and choices of the user."""

    max_context: int | None = None
    """Positions the model has, prompt and output together (tokens); None if it has no limit."""
    context_unit: str = "positions"
    """What `max_context` counts, in words for the reason of a skip."""
    max_tokens_cap: int | None = None
    """Largest budget of output tokens; larger ones are cut to it."""
    default_max_tokens: int = DEFAULT_MAX_TOKENS
    """Budget of requests whose trace has none (tokens)."""
    chat_template: str | None = None
    """Text of a Jinja template that replaces the tokenizer's own."""
    template_time: datetime | None = None
    """What a template that prints the date takes for now; None: the real time."""
    vocab_size: int | None = None
    """Rows of the model's embedding; ids at or above it are refused. May exceed the tokenizer's."""
    eos_token_ids: tuple[int, ...] = ()
    """Ids that end an answer; empty for the tokenizer's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Requests ready for the model, in reading order."""

    requests: tuple[PreparedRequest, ...]
    skips: tuple[Skip, ...]
    notes: tuple[str, ...]
    """Sentences for people, with counts."""
    counts: Mapping[str, int]
    """`read`, `prepared`, `skipped`, `recounted` (answers whose logged number of tokens was
    compared), and one count for each kind of note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Preparer:
    encoder: Encoder
    options: PrepareOptions
    eos: tuple[int, ...]
    """The first one is written where an answer ended by itself."""
    counts: Counter[str]


def prepare(
    requests: Sequence[Request], tokenizer: TokenizerLike, options: PrepareOptions
) -> Prepared:
    """Encode requests and drop those the model cannot run.

    `group_id` is the conversation where the trace names one, else a hash of the prompt ids, so that
    repeats of one prompt share a group. A recorded answer that finished with `stop`, and no stop
    strings set, ends with EOS. It is cut to the budget of output tokens: a prefix of a sample is a
    sample.

    Args:
        requests: as read from traces.
        tokenizer: a transformers tokenizer.
        options: limits of the model and choices of the user.

    Raises:
        TraceError: no request can be used; says so first where all of them lack a chat template.
    """
    if options.chat_template is not None and not options.chat_template.strip():
        raise TraceError("the chat template is empty", where="--chat-template")
    encoder = Encoder(
        tokenizer=tokenizer,
        chat_template=options.chat_template,
        template_time=options.template_time,
    )
    _refuse_without_template(requests, encoder)
    preparer = _Preparer(
        encoder=encoder, options=options, eos=_eos_ids(tokenizer, options), counts=Counter()
    )
    ready: list[PreparedRequest] = []
    skips: list[Skip] = []
    for request in requests:
        try:
            ready.append(_prepare_one(request, preparer))
        except RowRefusedError as refusal:
            skip = Skip(reason=refusal.reason, source=request.source, detail=refusal.detail)
            skips.append(skip)
    if not ready:
        details = f": {describe_skips(skips)}" if skips else ""
        first = next((skip.detail for skip in skips if skip.detail), "")
        raise TraceError(f"no request of the trace can be used{details}", hint=first)
    return _collect(ready, skips, preparer)


def _collect(ready: list[PreparedRequest], skips: list[Skip], preparer: _Preparer) -> Prepared:
    counts, options = preparer.counts, preparer.options
    limits = {
        "default": options.default_max_tokens,
        "cap": options.max_tokens_cap,
        "recounted": counts["recounted"],
    }
    totals = {"read": len(ready) + len(skips), "prepared": len(ready), "skipped": len(skips)}
    told = {"unlabelled": ONE_BUCKET} if counts["unlabelled"] == len(ready) else {}
    return Prepared(
        requests=tuple(ready),
        skips=tuple(skips),
        notes=tuple(
            f"{text.format(**limits)}: {counts[name]}" if name not in told else told[name]
            for name, text in _NOTES.items()
            if counts[name]
        ),
        counts=totals | {name: counts[name] for name in ("recounted", *_NOTES)},
    )


def _refuse_without_template(requests: Sequence[Request], encoder: Encoder) -> None:
    if encoder.has_template or not requests or any(r.messages is None for r in requests):
        return
    raise TraceError(
        f"{NO_TEMPLATE}: the tokenizer has none and every request of the trace is a chat",
        hint="give one with --chat-template FILE",
    )


def _eos_ids(tokenizer: TokenizerLike, options: PrepareOptions) -> tuple[int, ...]:
    """Return the ids that end an answer, the tokenizer's own first: it ends a chat turn."""
    own = tokenizer.eos_token_id
    given = options.eos_token_ids or (() if own is None else (own,))
    return tuple(sorted(given, key=lambda token_id: token_id != own))


def _prepare_one(request: Request, preparer: _Preparer) -> PreparedRequest:
    prompt_ids = preparer.encoder.prompt_ids(request)
    tally: Counter[str] = Counter()
    budget = _budget(request, preparer.options, tally)
    _refuse_too_long(len(prompt_ids), budget, preparer.options)
    completion_ids, finish = _completion(request, preparer, budget, tally)
    _refuse_unknown_ids(request, prompt_ids + (completion_ids or ()), preparer.options.vocab_size)
    tally["temperature_missing"] += request.temperature is None
    tally["unlabelled"] += request.task is None
    preparer.counts.update(tally)  # only now: a row that is skipped counts as nothing else
    prompt_hash = _sha256(prompt_ids)
    return PreparedRequest(
        request_id=request.request_id,
        group_id=request.group_id or prompt_hash,
        task=UNLABELLED if request.task is None else request.task,
        prompt_token_ids=prompt_ids,
        completion_token_ids=completion_ids,
        finish=finish,
        temperature=request.temperature,
        sampling=request.sampling,
        max_tokens=budget,
        stop=request.stop,
        content_hash=_sha256([prompt_hash, request.temperature, asdict(request.sampling)]),
        source=request.source,
        stated_max_tokens=request.max_tokens,
        script=prompt_script(request),
    )


def _budget(request: Request, options: PrepareOptions, tally: Counter[str]) -> int:
    """Return the budget of output tokens after the documented default and the cap."""
    budget = options.default_max_tokens if request.max_tokens is None else request.max_tokens
    tally["max_tokens_defaulted"] += request.max_tokens is None
    if options.max_tokens_cap is not None and budget > options.max_tokens_cap:
        budget = options.max_tokens_cap
        tally["max_tokens_capped"] += 1
    tally["zero_budget"] += budget == 0
    return budget


def _refuse_too_long(prompt_tokens: int, budget: int, options: PrepareOptions) -> None:
    limit = options.max_context
    if limit is not None and prompt_tokens + budget > limit:
        needed = f"{prompt_tokens} prompt + {budget} output tokens"
        raise RowRefusedError("over length", f"{needed} against {limit} {options.context_unit}")


def _refuse_unknown_ids(request: Request, ids: tuple[int, ...], vocab_size: int | None) -> None:
    if vocab_size is None:
        return
    largest = max((*ids, *(token_id for token_id, _ in request.sampling.logit_bias)))
    if largest >= vocab_size:
        raise RowRefusedError("token id out of range", f"{largest}, vocabulary {vocab_size}")


def _completion(
    request: Request, preparer: _Preparer, budget: int, tally: Counter[str]
) -> tuple[tuple[int, ...] | None, Finish]:
    """Return the recorded path within the budget and why it ends there; None if not recorded."""
    ids = _recorded_ids(request, preparer.encoder, tally)
    if ids is None:
        return None, request.finish
    eos, finish = preparer.eos, request.finish
    end = next((i + 1 for i, token_id in enumerate(ids) if token_id in eos), None)
    if end is not None:
        tally["completion_cut_at_eos"] += end < len(ids)
        ids, finish = ids[:end], "eos"
    elif eos and (finish == "eos" or (finish == "stop" and not request.stop)):
        tally["eos_appended"] += 1
        ids, finish = (*ids, eos[0]), "eos"
    if len(ids) > budget:
        tally["completion_cut"] += 1
        ids, finish = ids[:budget], "length"
    return ids, finish


def _recorded_ids(
    request: Request, encoder: Encoder, tally: Counter[str]
) -> tuple[int, ...] | None:
    exact = request.completion_token_ids
    if request.completion is None:
        return exact
    encoded = tuple(encoder.text_ids(request.completion))
    if exact is None:
        _compare_count(len(encoded), request, tally)
        return encoded
    tally["reencoding_differs"] += encoded not in (exact, exact[:-1])  # ids may end with EOS
    return exact


def _compare_count(num_encoded: int, request: Request, tally: Counter[str]) -> None:
    """Count where the server made another number of tokens of the same text (METHOD.md §3)."""
    logged = request.logged_completion_tokens
    if logged is None:
        return
    # Servers differ in whether they count the token that ended the answer, which is no text.
    ending = 0 if request.finish == "length" else 1
    tally["recounted"] += 1
    tally["recount_differs"] += not num_encoded <= logged <= num_encoded + ending


def _sha256(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()

"""The range grammar: `9-24`, `9-24+3`, `9,12,15`, and `30%-80%` for layers."""

import math
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

from selfspec_cli.errors import ConfigError

NUM_BEYOND = 2  # layers observed on each side of a range given as a share of the depth
MAX_BATCH = 256
GRAMMAR = "Write 9-24, 9-24+3 or 9,12,15"
_ITEM = re.compile(r"(\d{1,6})(?:-(\d{1,6})(?:\+(\d{1,6}))?)?")
_SHARE = re.compile(r"(\d{1,3}(?:\.\d+)?)%-(\d{1,3}(?:\.\d+)?)%(?:\+(\d{1,6}))?")


def parse_range(spec: str, where: str) -> tuple[int, ...]:
    """Return the whole numbers a range names, ascending, each once.

    Args:
        spec: comma-separated items `a`, `a-b` (both ends in) or `a-b+step`.
        where: key or option, for messages.

    Raises:
        ConfigError: not in the grammar, or it runs backwards.
    """
    numbers: set[int] = set()
    for item in spec.split(","):
        match = _ITEM.fullmatch(item.strip())
        if match is None:
            raise ConfigError(f"{spec!r} is not a range", where=where, hint=f"{GRAMMAR}.")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        numbers.update(_steps(first, last, match[3], spec, where))
    return tuple(sorted(numbers))


def resolve_draft_lengths(spec: str, where: str = "draft_lengths") -> tuple[int, ...]:
    """Return the draft lengths k that `spec` names (tokens, ascending).

    Raises:
        ConfigError: not in the grammar, a k below 1, or one above 64 (the cost stage times every
            number of positions up to k + 1, and no such draft pays).
    """
    lengths = parse_range(spec, where)
    if lengths[0] < 1 or lengths[-1] > 64:
        wrong = lengths[0] if lengths[0] < 1 else lengths[-1]
        raise ConfigError(
            f"draft length {wrong} is outside 1..64",
            where=where,
            hint="A round drafts at least one token; plain decoding is measured anyway.",
        )
    return lengths


def parse_batch_sizes(value: object, where: str = "batch_sizes") -> tuple[int, ...]:
    """Return the batch sizes that `value` names (rows, ascending, each once).

    Args:
        value: text in the grammar of ranges, such as `1,4,8`, a whole number, or a list of such.
        where: key or option, for messages.

    Raises:
        ConfigError: not in the grammar, or a size outside 1..256.
    """
    items = value if isinstance(value, list | tuple) else [value]
    if any(isinstance(item, bool) or not isinstance(item, str | int) for item in items):
        raise ConfigError(f"{value!r} is no batch size", where=where, hint="Write 1 or 1,4,8.")
    sizes = parse_range(",".join(map(str, items)), where)
    if sizes[0] < 1 or sizes[-1] > MAX_BATCH:
        wrong = sizes[0] if sizes[0] < 1 else sizes[-1]
        raise ConfigError(
            f"batch size {wrong} is outside 1..{MAX_BATCH}",
            where=where,
            hint="Write 1 or 1,4,8; rules are decided at the first, the others say how far they "
            "hold.",
        )
    return sizes


def check_exit_layers(spec: str, where: str = "exit_layers") -> None:
    """Raise ConfigError if `spec` is wrong whatever the model's number of layers."""
    if _SHARE.fullmatch(spec.strip()) is None:
        _exit_layers_from(parse_range(spec, where), 10**6, 10**6, where)
    else:
        _share_layers(spec, 10**6, where)


def resolve_exit_layers(
    spec: str, num_layers: int, *, allow_full: bool = False, where: str = "exit_layers"
) -> tuple[int, ...]:
    """Return the exit layers L that `spec` names for a model (counts of layers, ascending).

    `a%-b%` means ceil(a N / 100) .. floor(b N / 100).

    Args:
        spec: a range, or a share of the depth.
        num_layers: N, decoder layers of the model.
        allow_full: let L = N through (draft equals target; for decoder tests, never to calibrate).
        where: key or option, for messages.

    Raises:
        ConfigError: not in the grammar, outside the valid range (which is named), nothing
            selected, or a model with too few layers to exit early.
    """
    highest = num_layers if allow_full else num_layers - 1
    if highest < 1:
        raise ConfigError(
            f"the model has {num_layers} layer(s), too few to exit early",
            where=where,
            hint="Self-speculation needs a model of at least 2 layers.",
        )
    if _SHARE.fullmatch(spec.strip()) is None:
        return _exit_layers_from(parse_range(spec, where), num_layers, highest, where)
    layers = _share_layers(spec, num_layers, where)
    if not layers:
        raise ConfigError(
            f"{spec!r} selects no layer of a model with {num_layers}",
            where=where,
            hint=f"Widen the share, or name layers within 1..{highest}.",
        )
    return _exit_layers_from(layers, num_layers, highest, where)


def beyond_exit_layers(spec: str, num_layers: int) -> tuple[int, ...]:
    """Return layers just outside a share of the depth, observed to see whether it cuts a peak.

    Two below and two above, as far as 1..N-1 goes (counts of layers, ascending). Whoever named
    layers by number fixed the range: none then.

    Args:
        spec: what `resolve_exit_layers` takes.
        num_layers: N, decoder layers of the model.

    Raises:
        ConfigError: as `resolve_exit_layers`.
    """
    inside = resolve_exit_layers(spec, num_layers)
    if _SHARE.fullmatch(spec.strip()) is None:
        return ()
    below = range(max(1, inside[0] - NUM_BEYOND), inside[0])
    above = range(inside[-1] + 1, min(num_layers - 1, inside[-1] + NUM_BEYOND) + 1)
    return (*below, *above)


def parse_temperatures(
    value: object, where: str = "temperatures"
) -> tuple[float, ...] | Literal["trace"]:
    """Return temperatures, ascending and each once, or the word `trace`.

    Args:
        value: `trace`, a number, a list of numbers, or text such as `0,0.7`.
        where: key or option, for messages.

    Raises:
        ConfigError: empty, not a number, not finite, or negative.
    """
    if value == "trace":
        return "trace"
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, Sequence):
        items = [items]
    if not items:
        raise _bad_temperature("no temperature is given", where)
    return tuple(sorted({_temperature(item, where) for item in items}))


def _temperature(item: object, where: str) -> float:
    try:
        if isinstance(item, bool) or not isinstance(item, str | int | float):
            raise TypeError
        number = float(item) + 0.0  # -0.0 becomes 0.0: one greedy bucket, not two
    except (TypeError, ValueError, OverflowError) as error:
        raise _bad_temperature(f"{item!r} is not a temperature", where) from error
    if not math.isfinite(number) or number < 0:
        raise _bad_temperature(f"temperature {number} is not a finite number >= 0", where)
    return number


def _bad_temperature(what: str, where: str) -> ConfigError:
    return ConfigError(what, where=where, hint="Write 0,0.7 or trace; 0 is greedy decoding.")


def _steps(first: int, last: int, step: str | None, spec: str, where: str) -> range:
    width = 1 if step is None else int(step)
    if width < 1 or last < first:
        wrong = "a step of 0" if width < 1 else f"{first} comes after {last}"
        raise ConfigError(f"{spec!r} runs nowhere: {wrong}", where=where, hint=f"{GRAMMAR}.")
    return range(first, last + 1, width)


def _share_layers(spec: str, num_layers: int, where: str) -> tuple[int, ...]:
    match = _SHARE.fullmatch(spec.strip())
    if match is None:
        raise ConfigError(f"{spec!r} is not a share", where=where, hint="Write 30%-80%.")
    low, high = Fraction(match[1]), Fraction(match[2])
    if not 0 <= low <= high <= 100:
        raise ConfigError(
            f"{spec!r} is not a share of the depth", where=where, hint="Write 30%-80%."
        )
    first, last = math.ceil(low * num_layers / 100), math.floor(high * num_layers / 100)
    return tuple(_steps(first, last, match[3], spec, where)) if first <= last else ()


def _exit_layers_from(
    layers: tuple[int, ...], num_layers: int, highest: int, where: str
) -> tuple[int, ...]:
    outside = [layer for layer in layers if not 1 <= layer <= highest]
    if outside:
        named = ", ".join(map(str, outside[:5]))
        model = f" for a model with {num_layers} layers" if num_layers < 10**6 else ""
        limit = f"1..{highest}" if num_layers < 10**6 else "1.."
        raise ConfigError(
            f"exit layer {named} is outside {limit}{model}",
            where=where,
            hint="An exit layer is a count: L = 8 runs the first 8 layers.",
        )
    return layers

"""Numbers and labels as text, for every page of the report; the only place that makes percents.

Undefined is "n/a". Plain ASCII, so that a terminal of any locale can print it.
"""

import math
from numbers import Integral, Real
from typing import Any

NOT_KNOWN = "n/a"


def known(value: Any) -> bool:
    """Whether `value` is a real number: not missing, NaN, infinite or a truth value."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def number(value: float | None, digits: int = 2) -> str:
    """Return a number with fixed decimals: `0.71`."""
    return f"{value:.{digits}f}" if value is not None and known(value) else NOT_KNOWN


def ratio(value: float | None) -> str:
    """Return a speedup: `1.07x`."""
    return f"{value:.2f}x" if value is not None and known(value) else NOT_KNOWN


def percent(value: float | None, digits: int | None = None) -> str:
    """Return a fraction as percent: 0.123 is `12 %`; below 1 % with a decimal unless told."""
    if value is None or not known(value):
        return NOT_KNOWN
    if digits is None:
        digits = 1 if 0.0 < abs(value) < 0.01 else 0
    text = f"{100 * value:.{digits}f}"
    return f"{text.removeprefix('-') if float(text) == 0 else text} %"  # never -0 %


def interval(low: float | None, high: float | None, digits: int = 2) -> str:
    """Return the ends of an interval of a ratio: `1.03-1.16`; empty if an end is missing."""
    if low is None or high is None or not (known(low) and known(high)):
        return ""
    return f"{low:.{digits}f}-{high:.{digits}f}"


def ratio_with_interval(value: float | None, low: float | None, high: float | None) -> str:
    """Return a speedup with its interval: `1.09x (1.03-1.16)`."""
    ends = interval(low, high)
    return f"{ratio(value)} ({ends})" if ends and known(value) else ratio(value)


def percent_interval(low: float | None, high: float | None) -> str:
    """Return the ends of an interval of a fraction: `8 to 15 %`; empty if an end is missing."""
    if low is None or high is None or not (known(low) and known(high)):
        return ""
    return f"{percent(low, 0).removesuffix(' %')} to {percent(high, 0)}"


def count(value: float | None) -> str:
    """Return a count with thousands apart: `12,345`."""
    return f"{value:,.0f}" if value is not None and known(value) else NOT_KNOWN


def milliseconds(value: float | None) -> str:
    """Return seconds as milliseconds: 0.0123 is `12.3 ms`."""
    return f"{1000 * value:.3g} ms" if value is not None and known(value) else NOT_KNOWN


def exact(value: Any) -> str:
    """Return a number for a machine, every digit kept; empty where it is undefined."""
    if not known(value):
        return ""
    return str(int(value)) if isinstance(value, Integral) else repr(float(value))


def plural(value: int, noun: str) -> str:
    """Return a count with its noun: `1 bucket`, `3 buckets`."""
    return f"{count(value)} {noun}" if value == 1 else f"{count(value)} {noun}s"


def shown(text: object, longest: int | None = None) -> str:
    r"""Return a label for people: what cannot be printed as an escape such as `\x1b`.

    Args:
        text: anything a trace or a template may hold.
        longest: cut to this many characters, the last then an ellipsis of three dots.
    """
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))
    return line if longest is None or len(line) <= longest else line[: longest - 3] + "..."

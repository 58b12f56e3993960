"""Keys on which two runs differ, in words, and the refusal that names the first of them."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from selfspec_cli.errors import ComparisonError
from selfspec_cli.provenance import differences
from selfspec_cli.report.format import shown

_LONGEST = 60
_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A key on which two runs differ."""

    key: str
    base: str
    new: str

    @property
    def text(self) -> str:
        """`key: base | new`."""
        return f"{self.key}: {self.base} | {self.new}"


def differing(base: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return the keys on which two mappings differ, in the order of the first.

    Args:
        base: facts of the first run; mappings inside are compared key by key.
        new: the same facts of the second.
    """
    order = {key: number for number, key in enumerate(base)}
    found = sorted(differences(base, new), key=lambda entry: order[entry[0].split(".")[0]])
    return tuple(Difference(key=key, base=_value(one), new=_value(two)) for key, one, two in found)


def refuse_different(found: Sequence[Difference], *, where: str, hint: str) -> None:
    """Refuse two runs that differ on a key they must share.

    Args:
        found: of `differing`; empty: nothing happens.
        where: the runs, or the option that named one.
        hint: what to do next.

    Raises:
        ComparisonError: names the first key that differs, with both values, and the rest.
    """
    if not found:
        return
    first, rest = found[0], found[1:]
    more = f" (and {', '.join(other.key for other in rest)})" if rest else ""
    raise ComparisonError(
        f"cannot be compared: {first.key} is {first.base} in the first run and {first.new} in the "
        f"second{more}",
        where=where,
        hint=hint,
    )


def _value(value: object) -> str:
    """A value for people; one that is too long shows a digest, so that two never look alike."""
    if value is None:
        return "not known"
    text = shown(value)
    if len(text) <= _LONGEST:
        return text
    if _HEX.fullmatch(text):
        return text[:12]
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{shown(text, _LONGEST - 20)} (sha256 {digest})"

"""What `selfspec verify` found: one frozen part a proof, and the exit code of them all."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from selfspec_cli.engine.exactness import Difference
from selfspec_cli.errors import EXIT_DIFFERS, EXIT_INPUT, EXIT_OK
from selfspec_cli.storage.documents import plain_data

Outcome = Literal["proved", "differs", "refused"]
PartName = Literal["self_check", "engine", "cache", "greedy", "library", "batch", "law"]
MAX_TIE_SHARE = 0.5
"""Share of a part's outputs that may part at near-ties; with more, all logits are so close that
the tolerance would excuse any decoder."""
GPU_UNTESTED = "GPU: untested on GPU (no run of selfspec has decoded on one yet)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One output that is not the plain one, and in which case."""

    where: str
    """Exit layer, draft length and prompt of the case."""
    difference: Difference

    def __str__(self) -> str:
        return f"{self.where}: {self.difference}"

    def to_document(self) -> dict[str, object]:
        """Plain values."""
        found = self.difference
        return {
            "where": self.where,
            "position": found.position,
            "plain_token": found.plain_token,
            "other_token": found.speculative_token,
            "top2_gap": found.top2_gap,
            "tolerance": found.tolerance,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One proof: what was tried, its number, and what went wrong."""

    name: PartName
    title: str
    cases: int = 0
    """How many cases were tried."""
    value: float | None = None
    """Worst number seen, in `unit`; None where nothing was measured."""
    tolerance: float | None = None
    unit: str = ""
    text: str = ""
    """One sentence: what was tried."""
    faults: tuple[str, ...] = ()
    """What differs, where and by how much."""
    ties: tuple[Listed, ...] = ()
    """Outputs that part where the plain decoder's two best logits nearly tie."""
    refusal: str = ""
    """Why it was not tried; empty where it was."""
    seconds: float | None = None

    @property
    def outcome(self) -> Outcome:
        """A fault differs; a part that was not tried is refused, never proved."""
        if self.faults:
            return "differs"
        return "refused" if self.refusal or not self.cases else "proved"

    def to_document(self) -> dict[str, object]:
        """Plain values."""
        return {
            "name": self.name,
            "outcome": self.outcome,
            "cases": self.cases,
            "value": self.value,
            "unit": self.unit,
            "tolerance": self.tolerance,
            "seconds": self.seconds,
            "text": self.text,
            "faults": list(self.faults),
            "numeric_ties": [tie.to_document() for tie in self.ties],
            "refusal": self.refusal or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckupReport:
    """All parts, and what they were proved on."""

    model: str
    """As given."""
    family: str
    num_layers: int
    dtype: str
    device: str
    """Device the model ran on, with its name where it has one."""
    on_gpu: bool
    engine: str
    """Whose kernels ran; empty where it did not come to that."""
    notices: tuple[str, ...]
    seed: int
    parts: tuple[Part, ...]

    @property
    def outcome(self) -> Outcome:
        """Differs if any part does; proved only if every part is."""
        found = {part.outcome for part in self.parts}
        if "differs" in found:
            return "differs"
        return "proved" if found == {"proved"} else "refused"

    @property
    def exit_code(self) -> int:
        """0 proved, 1 differs, 2 refused."""
        codes = {"proved": EXIT_OK, "differs": EXIT_DIFFERS, "refused": EXIT_INPUT}
        return codes[self.outcome]

    @property
    def gpu_line(self) -> str:
        """Whether what is said here holds for a GPU."""
        if self.on_gpu:
            return f"GPU: tested on this machine's GPU by this run ({self.device})"
        return GPU_UNTESTED

    @property
    def num_ties(self) -> int:
        """Outputs that part from the plain ones within the tolerance."""
        return sum(len(part.ties) for part in self.parts)

    def to_document(self) -> dict[str, object]:
        """Plain values; undefined numbers are None."""
        document = {
            "model": self.model,
            "family": self.family,
            "num_layers": self.num_layers,
            "dtype": self.dtype,
            "device": self.device,
            "gpu": self.gpu_line,
            "engine": self.engine or None,
            "notices": list(self.notices),
            "seed": self.seed,
            "outcome": self.outcome,
            "num_numeric_ties": self.num_ties,
            "parts": [part.to_document() for part in self.parts],
        }
        plain = plain_data(document)
        assert isinstance(plain, dict)  # a mapping gives a mapping
        return plain


def with_differences(part: Part, found: Sequence[Listed]) -> Part:
    """Sort differing outputs into near-ties, which are listed, and faults; the widest gap counts.

    Args:
        part: the part so far.
        found: every output that is not the plain one.
    """
    ties = tuple(one for one in found if one.difference.is_tie)
    wrong = tuple(str(one) for one in found if not one.difference.is_tie)
    gaps = [one.difference.top2_gap for one in found]
    part = replace(part, ties=ties, value=max(gaps, default=part.value))
    if len(ties) > MAX_TIE_SHARE * part.cases:
        many = f"{len(ties)} of {part.cases} outputs part at near-ties, too many to prove anything"
        part = replace(part, refusal=f"{many} at tolerance {part.tolerance}")
    return replace(part, faults=(*part.faults, *wrong))

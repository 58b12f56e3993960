"""Where a token lies in the law that it should follow, and whether many tokens do follow theirs.

The distribution function of a token's own law at the token, spread evenly over the token's mass, is
uniform in [0, 1) whatever the law is, if the token follows it. So tokens of thousands of rounds,
each with the logits of its own pass in any number format, make one histogram that must be flat.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

BINS = 20
MIN_EXPECTED = 10  # tokens a bin; with fewer bins than two nothing is tested


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """One chi-square, or several at one level."""

    what: str
    smallest_p: float
    level: float
    disagreements: int = 0
    impossible: int = 0
    """Tokens that their law never gives."""

    @property
    def fault(self) -> str:
        """What is wrong, empty where nothing is."""
        if self.disagreements:
            return (
                f"{self.what}: the decoder's verification decided {self.disagreements} draws "
                "otherwise than the rule"
            )
        if self.impossible:
            return f"{self.what}: {self.impossible} tokens have no probability there, p-value 0"
        if self.smallest_p < self.level:
            return (
                f"{self.what}: committed tokens do not follow p, p-value {self.smallest_p:.3g} "
                f"below {self.level:.3g}"
            )
        return ""


def place(law: Tensor, token: int, order: Tensor, spread: float) -> float | None:
    """Return the place of a token in its law, in [0, 1); None where the law never gives it.

    Args:
        law: unnormalised [V].
        token: id.
        order: [V], what tokens are put in order by; equal ones count as one. Any order makes
            honest places uniform; a good one puts those side by side that a fault prefers.
        spread: uniform in [0, 1).
    """
    if float(law[token]) <= 0:
        return None
    weights = law.double()
    before = float(weights[order < order[token]].sum())
    own = float(weights[order == order[token]].sum())
    return (before + spread * own) / float(weights.sum())


def ratio(target: Tensor, draft: Tensor) -> Tensor:
    """Return p / q [V], infinite where q is 0: what acceptance goes by."""
    return torch.where(draft > 0, target / draft, torch.inf)


def judge_places(what: str, places: Sequence[float | None], level: float) -> Tested | None:
    """Chi-square of places over equal bins; None where there are too few to test.

    Args:
        what: these tokens, for the message.
        places: of `place`.
        level: p-value below which they do not follow their laws.
    """
    found = [one for one in places if one is not None]
    impossible, bins = len(places) - len(found), min(BINS, len(found) // MIN_EXPECTED)
    if bins < 2 and not impossible:
        return None
    counts, _ = np.histogram(found, bins=max(bins, 1), range=(0.0, 1.0))
    p_value = 0.0 if impossible else float(stats.chisquare(counts).pvalue)
    return Tested(
        what=f"{what} ({len(places)} at T = 1)",
        smallest_p=p_value,
        level=level,
        impossible=impossible,
    )

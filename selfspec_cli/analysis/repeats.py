"""How often a text repeats its own n-grams, and whether one of two texts surely does so more.

Source: seq-rep-n, Welleck et al. 2020 (Neural text generation with unlikelihood training), §6: one
less the share of distinct n-grams. Paired test by exchanging signs: Good 2005 (Permutation,
parametric and bootstrap tests of hypotheses), chapter 3; a sampled p-value counts the data as one
of the exchanges (Phipson & Smyth 2010).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NGRAM = 4  # tokens: shorter ones come twice in ordinary text, longer ones miss short loops
MOST_ENUMERATED = 14  # differences whose sign patterns are all tried: 16,384
NUM_SAMPLED = 20_000

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """N-grams of two texts in a window of the same length, and those that came before in it."""

    ngrams: int
    """Of either text; 0 where the shorter one has fewer than n tokens."""
    repeated: int
    plain_repeated: int


def num_repeated(tokens: Sequence[int], n: int = NGRAM) -> int:
    """Return how many n-grams of a text are equal to an earlier one of it.

    Args:
        tokens: token ids.
        n: tokens of an n-gram, at least 1.
    """
    grams = [tuple(tokens[at : at + n]) for at in range(len(tokens) - n + 1)]
    return len(grams) - len(set(grams))


def compare_repeats(tokens: Sequence[int], plain: Sequence[int], n: int = NGRAM) -> Repeats:
    """Count the repeats of two texts of one request over the length of the shorter.

    The later part of a text repeats more, for it has more to repeat; so the longer text is cut,
    and texts of one law stay exchangeable.

    Args:
        tokens: token ids that rounds wrote.
        plain: token ids that plain decoding wrote.
        n: tokens of an n-gram.
    """
    window = min(len(tokens), len(plain))
    return Repeats(
        ngrams=max(window - n + 1, 0),
        repeated=num_repeated(tokens[:window], n),
        plain_repeated=num_repeated(plain[:window], n),
    )


def sign_exchange_p(differences: npt.ArrayLike, seed: int = 0) -> float:
    """Return the one-sided p-value that the sum of paired differences is this large by chance.

    Exact, whatever the law of a text is, where both members of each pair follow the same law: then
    each difference is as likely with the other sign. It cannot be below 2^-m with m differences
    that are not 0; without any it is 1.

    Args:
        differences: of independent pairs, float64 [m]; finite.
        seed: of the patterns drawn where m is above MOST_ENUMERATED.
    """
    given = np.asarray(differences, dtype=np.float64)
    given = given[given != 0.0]
    limit = float(given.sum()) - 1e-9 * float(np.abs(given).sum())  # equal up to rounding
    if len(given) == 0:
        return 1.0
    if len(given) <= MOST_ENUMERATED:
        return float((_patterns(len(given)) @ given >= limit).mean())
    rng = np.random.default_rng(seed)
    signs = rng.choice(np.array([-1.0, 1.0]), size=(NUM_SAMPLED, len(given)))
    return float((1 + (signs @ given >= limit).sum()) / (1 + NUM_SAMPLED))


def _patterns(m: int) -> Floats:
    """All patterns of m signs, float64 [2^m, m]."""
    bits = (np.arange(2**m)[:, None] >> np.arange(m)) & 1
    return np.asarray(1.0 - 2.0 * bits, dtype=np.float64)

"""Traffic of today against the traffic that was calibrated: mix of buckets, lengths of prompts.

A distance over its limit fails only where it is larger than chance makes it: the requests of both
are dealt again into two piles of the same sizes, and few piles may lie as far apart.

Source: permutation test of a distance, Good 2005, chapter 3; the p-value counts the data as one of
the permutations (Phipson & Smyth 2010).
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from selfspec_cli.buckets import context_band
from selfspec_cli.errors import StorageError
from selfspec_cli.gate.evidence import GateEvidence
from selfspec_cli.gate.rules import DriftRule
from selfspec_cli.gate.verdict import Check, Outcome
from selfspec_cli.storage import RunDir, read_table

NAME = "drift"
LEVEL = 0.0025  # of each of the two distances: 0.5 % together
NUM_DEALS = 2000
_COLUMNS = ("request_id", "task", "prompt_tokens", "temperature")
_AGAIN = "Calibrate again on traffic of today."
_MORE = "Give more requests of today's traffic."
_GIVE = "Give a run of today's traffic: --traffic RUN."
Numbers = npt.NDArray[np.int64]
Distance = Callable[[Numbers, Numbers], float]


def drift_checks(evidence: GateEvidence, traffic: Path | None, rule: DriftRule) -> list[Check]:
    """Return how far today's requests lie from those of the run, by mix and by length.

    Args:
        evidence: of the run.
        traffic: a run of today's traffic; None: nothing to compare with.
        rule: limits.

    Raises:
        SelfspecError: `traffic` is no run, or its requests cannot be read.
    """
    now = None if traffic is None else _requests(traffic)
    then = evidence.requests
    if now is None or then is None or not len(now) or not len(then):
        sizes = f"{0 if then is None else len(then)} requests then, "
        told = "no traffic of today was given" if now is None else f"{sizes}{len(now)} today"
        return [Check(name=NAME, outcome="no_verdict", text=told, next_step=_GIVE, optional=True)]
    edges = evidence.plan.settings.context_edges
    mix = _codes(
        [_bucket(row, edges) for row in _rows(then)], [_bucket(r, edges) for r in _rows(now)]
    )
    lengths = (_lengths(then), _lengths(now))
    return [
        _check("bucket mix", total_variation, mix, rule.max_mix_distance),
        _check("prompt lengths", kolmogorov_smirnov, lengths, rule.max_length_distance),
    ]


def _requests(path: Path) -> pd.DataFrame:
    file = RunDir.load(path).artefact("requests.parquet")
    if not file.exists():
        raise StorageError("the run has no requests", where=str(file))
    return read_table(file, _COLUMNS)


def _rows(requests: pd.DataFrame) -> list[tuple[str, int, float]]:
    temperatures = requests["temperature"].astype(float).fillna(-1.0)  # -1: the request states none
    return list(
        zip(requests["task"].astype(str), requests["prompt_tokens"].astype(int), temperatures,
            strict=True)
    )  # fmt: skip


def _bucket(row: tuple[str, int, float], edges: list[int]) -> tuple[object, ...]:
    task, prompt, degrees = row
    return (task, context_band(prompt, edges), degrees)


def _codes(
    first: list[tuple[object, ...]], second: list[tuple[object, ...]]
) -> tuple[Numbers, Numbers]:
    numbers = {bucket: code for code, bucket in enumerate(dict.fromkeys([*first, *second]))}
    one = np.array([numbers[bucket] for bucket in first], dtype=np.int64)
    return one, np.array([numbers[bucket] for bucket in second], dtype=np.int64)


def _lengths(requests: pd.DataFrame) -> Numbers:
    return requests["prompt_tokens"].to_numpy(dtype=np.int64)


def total_variation(first: Numbers, second: Numbers) -> float:
    """Return half the summed differences of two shares by code, in [0, 1].

    Args:
        first: bucket codes, [n].
        second: bucket codes, [m].
    """
    size = int(max(first.max(), second.max())) + 1
    shares = [np.bincount(codes, minlength=size) / len(codes) for codes in (first, second)]
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def kolmogorov_smirnov(first: Numbers, second: Numbers) -> float:
    """Return the largest difference of two empirical distribution functions, in [0, 1].

    Args:
        first: prompt lengths, tokens [n].
        second: prompt lengths, tokens [m].
    """
    points = np.union1d(first, second)
    below = [np.searchsorted(np.sort(x), points, side="right") / len(x) for x in (first, second)]
    return float(np.abs(below[0] - below[1]).max())


def permutation_p(distance: Distance, piles: tuple[Numbers, Numbers], seed: int = 0) -> float:
    """Return how seldom chance alone puts two piles of these sizes as far apart.

    Args:
        distance: of two piles.
        piles: the observed ones.
        seed: of the deals.
    """
    found, everything = distance(*piles), np.concatenate(piles)
    rng, size = np.random.default_rng(seed), len(piles[0])
    as_far = 0
    for _ in range(NUM_DEALS):
        dealt = rng.permutation(everything)
        as_far += distance(dealt[:size], dealt[size:]) >= found - 1e-12
    return (as_far + 1) / (NUM_DEALS + 1)


def _check(subject: str, distance: Distance, piles: tuple[Numbers, Numbers], limit: float) -> Check:
    value = distance(*piles)
    told = f"distance {value:.2f}, at most {limit:g} is allowed"
    told += f"; {len(piles[0])} requests then and {len(piles[1])} today"
    outcome: Outcome = "pass"
    if value > limit + 1e-9:
        p = permutation_p(distance, piles)
        outcome = "fail" if p <= LEVEL else "no_verdict"
        told += f"; p {p:.2g}, a failure needs {LEVEL:g}"
    return Check(
        name=NAME,
        outcome=outcome,
        subject=subject,
        value=value,
        limit=limit,
        text=told,
        next_step={"pass": "", "fail": _AGAIN, "no_verdict": _MORE}[outcome],
    )

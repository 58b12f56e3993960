"""Simulated buckets whose cells all have the same, known true speedup.

The hardest case for a planner: the 128 cells of a default grid (16 exit layers, 8 draft lengths),
none better than another, all exactly at `truth`; whatever looks better is luck. Requests come in
groups of one to four turns that share how easy they are; each request has its own acceptance at
every layer, and its expected seconds follow from the closed form, which is exact for constant
acceptance. The cost of each cell is set so that the ratio of expectations equals `truth`.
"""

from functools import cache

import numpy as np

from selfspec_cli.analysis.closed_form import tokens_per_round
from selfspec_cli.analysis.evidence import BucketTimes

LAYERS = tuple(range(9, 25))
DRAFT_LENGTHS = tuple(range(1, 9))
CELLS = tuple((layer, k) for layer in LAYERS for k in DRAFT_LENGTHS)
MEAN_LOGIT = 0.5  # acceptance about 0.6
# Standard deviations of the logit of acceptance: of a group at all layers and at one layer, of a
# request in it likewise. Ratios of requests then vary by 10 % (k = 1) to 30 % (k = 8) and those of
# two layers correlate by 0.7; the demo model on public chat shows 0.8, a damped twin 0.2 to 0.9.
GROUP_SD, GROUP_LAYER_SD, REQUEST_SD, REQUEST_LAYER_SD = 0.50, 0.35, 0.30, 0.20
LENGTHS = {
    "bounded": lambda rng, size: rng.integers(32, 129, size).astype(float),
    "lognormal": lambda rng, size: 64.0 * rng.lognormal(0.0, 1.0, size),
    "Pareto": lambda rng, size: 32.0 * (1.0 + rng.pareto(1.5, size)),
}
"""Plain steps of a request: up to a cap of 128; long tailed; with infinite variance."""


@cache
def _expected_rounds():
    """Expected rounds a step by cell, [C]: the mean of 1 / tokens a round over requests."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    sd = np.sqrt(GROUP_SD**2 + GROUP_LAYER_SD**2 + REQUEST_SD**2 + REQUEST_LAYER_SD**2)
    alpha = 1.0 / (1.0 + np.exp(-(MEAN_LOGIT + sd * nodes)))
    return np.array([weights @ (1 / tokens_per_round(alpha, k)) / weights.sum() for _, k in CELLS])


def simulate_bucket(rng, num_groups, truth, lengths="bounded", *, cost_sd=0.0, cost_rho=0.0):
    """One bucket of `num_groups` groups; plain steps cost 1 s.

    `truth` is one speedup or one a cell. Measured costs are off by a factor of log standard error
    `cost_sd`, correlated by `cost_rho` between cells.
    """
    turns = np.minimum(rng.geometric(0.5, num_groups), 4)
    group = np.repeat(np.arange(num_groups), turns)
    size, layers = len(group), len(LAYERS)
    logit = (
        MEAN_LOGIT
        + rng.normal(0, GROUP_SD, (num_groups, 1))[group]
        + rng.normal(0, GROUP_LAYER_SD, (num_groups, layers))[group]
        + rng.normal(0, REQUEST_SD, (size, 1))
        + rng.normal(0, REQUEST_LAYER_SD, (size, layers))
    )
    steps = LENGTHS[lengths](rng, size)
    rounds = steps[:, None, None] / _tokens(1.0 / (1.0 + np.exp(-logit)))
    shared, own = rng.normal(), rng.normal(size=len(CELLS))
    error = cost_sd * (np.sqrt(cost_rho) * shared + np.sqrt(1 - cost_rho) * own)
    seconds = np.zeros((num_groups, len(CELLS)))
    np.add.at(seconds, group, rounds.reshape(size, -1))
    return BucketTimes(
        groups=np.array([f"g{i:05d}" for i in range(num_groups)]),
        ar=np.bincount(group, steps, num_groups),
        seconds=seconds / (np.asarray(truth) * _expected_rounds()) * np.exp(error),
        cells=CELLS,
        cost_log_sd=np.full(len(CELLS), cost_sd),
        prefill=None,
    )


def _tokens(alpha):
    """Tokens a round for k = 1..8, [..., K]: sums of powers."""
    powers = alpha[..., None] ** np.arange(1, DRAFT_LENGTHS[-1] + 1)
    return 1.0 + powers.cumsum(axis=-1)

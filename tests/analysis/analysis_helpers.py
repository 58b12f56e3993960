"""Small hand-made costs and paths shared by the tests of this folder."""

from functools import cache

import numpy as np
import pandas as pd

from selfspec_cli.analysis.cost_surface import CostSurface
from selfspec_cli.analysis.walk import PathCoins

PROMPT = 40
KINDS = ("local", "full", "local", "full", "local", "full")  # N = 6
ACCEPT_S = 0.02
LAW_FACTOR = {"greedy": 1.0, "sampled": 1.5, "truncated": 2.0}  # of head and draw
CONTEXTS = (16, 128, 512)
POSITIONS = tuple(range(1, 10))
BLOCK_FACTORS = (1.0, 1.1, 0.9)  # a block is fast or slow as a whole; the mean is 1


def _part_seconds(part, positions, context, law):
    """Hand costs in seconds: what the goldens of these tests are computed from."""
    factor = LAW_FACTOR.get(law, 1.0)
    return {
        "embed": 0.01 * positions,
        "prep": 0.001 * positions + 0.0001 * context,
        "layers/local": 3 * (0.5 + 0.1 * positions),
        "layers/full": 3 * (1.0 + 0.2 * positions + 0.001 * context),
        "head": factor * (0.3 + 0.1 * positions),
        "draw": factor * 0.05,
        "accept": ACCEPT_S,
    }[part]


def ar_cost(context, law="sampled"):
    """A plain step in seconds: embed + prep + six layers + head + draw at one position."""
    parts = ("embed", "prep", "layers/local", "layers/full", "head", "draw")
    return sum(_part_seconds(part, 1, context, law) for part in parts)


def _cells(law):
    for context in CONTEXTS:
        yield "ar", law, np.nan, 1, context, ar_cost(context, law)
        for m in POSITIONS:
            yield "prep", "", np.nan, m, context, _part_seconds("prep", m, context, law)
            for kind in ("layers/local", "layers/full"):
                yield kind, "", 3, m, context, _part_seconds(kind, m, context, law)
    for m in POSITIONS:
        yield "embed", "", np.nan, m, np.nan, _part_seconds("embed", m, 0, law)
        yield "head", law, np.nan, m, np.nan, _part_seconds("head", m, 0, law)
        yield "accept", law, np.nan, m, np.nan, ACCEPT_S
    yield "draw", law, np.nan, 1, np.nan, _part_seconds("draw", 1, 0, law)


def cost_rows(laws=("greedy", "sampled"), factors=BLOCK_FACTORS):
    """Rows of cost.csv; law-free parts appear once."""
    rows = dict.fromkeys(cell for law in laws for cell in map(_key, _cells(law)))
    columns = ["part", "law", "exit_layer", "positions", "context", "seconds"]
    cells = pd.DataFrame(list(rows), columns=columns)
    blocks = [
        cells.assign(block=block, seconds=cells["seconds"] * factor)
        for block, factor in enumerate(factors)
    ]
    return pd.concat(blocks, ignore_index=True).assign(batch=1, engine="eager")


def _key(cell):
    """NaN != NaN would keep duplicates of law-free parts apart."""
    return tuple(None if isinstance(v, float) and np.isnan(v) else v for v in cell)


def make_surface(rows=None, law="sampled"):
    if rows is None:
        return _standard_surface(law)
    return CostSurface.from_rows(rows, layer_kinds=KINDS, law=law)


@cache
def _standard_surface(law):
    return CostSurface.from_rows(cost_rows(), layer_kinds=KINDS, law=law)


def make_path(coins, *, budget=None, prompt=PROMPT, name="p0", temperature=0.7, law=""):
    coins = np.atleast_2d(np.asarray(coins, dtype=np.float64)).copy()
    coins[:, 0] = np.nan
    return PathCoins(
        path_id=name,
        request_id=f"r-{name}",
        group_id=f"g-{name}",
        temperature=temperature,
        prompt_tokens=prompt,
        budget=coins.shape[1] if budget is None else budget,
        coins=coins,
        law=law,
    )


def random_paths(seed, count=12, exits=4, longest=70):
    """Paths of mixed length, prompt and spare budget, with U-shaped coins."""
    rng = np.random.default_rng(seed)
    paths = []
    for i in range(count):
        n = int(rng.integers(1, longest))
        coins = rng.beta(0.8, 0.6, size=(exits, n))
        spare = int(rng.choice([0, 0, 1, 5, 100]))
        prompt = int(rng.integers(20, 400))
        paths.append(make_path(coins, budget=n + spare, prompt=prompt, name=f"p{i:02d}"))
    return paths

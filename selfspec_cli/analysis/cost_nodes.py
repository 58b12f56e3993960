"""Sums of measured parts on the measured contexts: the arrays behind a cost surface."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from selfspec_cli.analysis.cost_parts import Floats, PartSamples, PartTable, part_table
from selfspec_cli.errors import CostRangeError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Nodes:
    """Mean seconds on the knots (measured contexts), before any correction."""

    knots: Floats  # [C] tokens
    ar: Floats  # [C]
    draft: Floats  # [N+1, C], row 0 is meaningless and NaN
    verify: Floats  # [N+1, k_max+1, C]
    accept: Floats  # [k_max+1, C]
    between: float  # s, in each draft step and verification: what a plain step has beyond its parts


def build_nodes(samples: PartSamples, kinds: tuple[str, ...]) -> Nodes:
    """Add up the means of the parts on every context where all of them were measured.

    Timed one by one, parts find their code and weights warmer than inside a step: 4 % of a compiled
    plain step are missing in their sum. A plain step is a draft step through all layers and one
    token committed, so the two say how much, by the median context; each draft step and each
    verification carries it once, as each runs the head once.

    Args:
        samples: parts by block.
        kinds: kind of each of the N layers, in order.

    Raises:
        StorageError: a part was not timed.
        CostRangeError: the parts share no context.
    """
    names = ("ar", "embed", "prep", "head", "draw", "accept")
    tables = {name: part_table(samples, name) for name in names}
    layers = {kind: part_table(samples, f"layers/{kind}") for kind in dict.fromkeys(kinds)}
    knots = _common_knots([*tables.values(), *layers.values()])
    wide = [tables["prep"], tables["head"], tables["accept"], *layers.values()]
    widths = range(1, min(int(table.positions[-1]) for table in wide) + 1)
    counts = _counts_below(kinds)  # [N+1, kinds]
    chains = np.stack([[t.at(m, knots) for m in widths] for t in layers.values()])  # [kinds, m, C]
    head = np.stack([tables["head"].at(m, knots) for m in widths])  # [m, C]
    prep = np.stack([tables["prep"].at(m, knots) for m in widths])
    lower = counts @ chains[:, 0] + tables["embed"].at(1, knots) + prep[0]  # [N+1, C]
    upper = np.einsum("lk,kmc->lmc", counts[-1] - counts, chains)  # [N+1, m, C]
    draft = lower + head[0] + tables["draw"].at(1, knots)
    accept = np.stack([tables["accept"].at(m, knots) for m in widths])
    ar = tables["ar"].at(1, knots)
    between = max(0.0, float(np.median(ar - (draft[-1] + accept[0]))))  # below 0: noise
    draft[0] = np.nan
    return Nodes(
        knots=knots,
        ar=ar,
        draft=draft + between,
        verify=lower[:, None] + upper + prep + head + between,
        accept=accept,
        between=between,
    )


def _common_knots(tables: Sequence[PartTable]) -> Floats:
    """Contexts measured for some part and inside the range of all."""
    measured = [table.contexts for table in tables if len(table.contexts)]
    low, high = max(c[0] for c in measured), min(c[-1] for c in measured)
    knots = np.unique(np.concatenate(measured))
    knots = knots[(knots >= low) & (knots <= high)]
    if len(knots) == 0:
        raise CostRangeError("the parts share no measured context", where="cost.csv")
    return knots


def _counts_below(kinds: tuple[str, ...]) -> Floats:
    """Layers of each kind in [0, L), L = 0..N: float64 [N+1, kinds]."""
    names = list(dict.fromkeys(kinds))
    rows = [[Counter(kinds[:depth])[name] for name in names] for depth in range(len(kinds) + 1)]
    return np.array(rows, dtype=np.float64)


def round_nodes(nodes: Nodes, scale: float, offset: float) -> Floats:
    """Return seconds of a round, float64 [N+1, k_max+1, C]: scale * parts + offset (s)."""
    ks = np.arange(nodes.verify.shape[1])[:, None]  # [k_max+1, 1]
    rounds = scale * (ks * nodes.draft[:, None] + nodes.verify + nodes.accept) + offset
    # k' = 0 is a measured plain step and its bookkeeping: the correction of rounds is not for it.
    rounds[:, 0] = nodes.ar + nodes.accept[0]
    return rounds


def with_knots(nodes: Nodes, contexts: Floats) -> Nodes:
    """Add contexts inside the range as knots, so that whole rounds keep their own context."""
    inside = contexts[(contexts >= nodes.knots[0]) & (contexts <= nodes.knots[-1])]
    knots = np.unique(np.concatenate([nodes.knots, inside]))

    def spread(values: Floats) -> Floats:
        flat = values.reshape(-1, values.shape[-1])
        rows = [np.interp(knots, nodes.knots, row) for row in flat]
        return np.array(rows).reshape(*values.shape[:-1], len(knots))

    return Nodes(
        knots=knots,
        ar=spread(nodes.ar),
        draft=spread(nodes.draft),
        verify=spread(nodes.verify),
        accept=spread(nodes.accept),
        between=nodes.between,
    )


def replace_whole(rounds: Floats, knots: Floats, whole: PartSamples) -> None:
    """Overwrite nodes [N+1, k_max+1, C] in place inside the contexts each (L, k) was timed at."""
    layers = whole.cells["exit_layer"].to_numpy(dtype=np.int64)
    positions = whole.cells["positions"].to_numpy(dtype=np.int64)
    contexts = whole.cells["context"].to_numpy(dtype=np.float64)
    seconds = whole.seconds.mean(axis=1)
    for layer, width in sorted(set(zip(layers.tolist(), positions.tolist(), strict=True))):
        chosen = np.flatnonzero((layers == layer) & (positions == width))
        chosen = chosen[np.argsort(contexts[chosen])]
        at = contexts[chosen]
        inside = (knots >= at[0]) & (knots <= at[-1])
        rounds[layer, width - 1, inside] = np.interp(knots[inside], at, seconds[chosen])

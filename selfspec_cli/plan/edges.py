"""Is the best cell at the edge of what was swept? Then the sweep may have cut the peak."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from selfspec_cli.plan import text
from selfspec_cli.plan.inputs import PlanInputs
from selfspec_cli.plan.pools import Pool
from selfspec_cli.plan.rules import Basis

MAX_NAMES = 3  # buckets named in a warning


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """An end of a swept range at which a bucket's best cell sits."""

    what: str
    """`exit layer` or `draft length`."""
    side: str
    """`first` or `last`."""
    value: int


def edge_warnings(basis: Basis) -> list[str]:
    """Return one warning an edge: whose best cell is there, and what lies beyond.

    Asked of every bucket with enough requests of its own and of all tasks at each temperature: the
    best cell of a few requests is noise. Nothing is said where layers beyond the edge were observed
    and none of them is better, nor where the range cannot go on (one layer, one draft token, the
    last layer but one).
    """
    found: dict[Edge, list[tuple[Pool, str]]] = defaultdict(list)
    for pool in _asked(basis):
        for edge in _edges(pool, basis.inputs):
            told = _beyond(pool, edge, basis.inputs)
            if told is not None:
                found[edge].append((pool, told))
    return [_warning(edge, found[edge]) for edge in sorted(found, key=lambda e: (e.what, e.value))]


def _asked(basis: Basis) -> list[Pool]:
    least = basis.judge.settings.min_requests
    own = [pool for pool in basis.pools.own.values() if pool.evidence.num_groups >= least]
    return [*own, *basis.pools.all.values()]


def _edges(pool: Pool, inputs: PlanInputs) -> list[Edge]:
    cell = pool.evidence.cell
    if cell is None or not pool.drafts:
        return []
    deepest = inputs.facts.model.num_layers - 1
    found = []
    # A range of one value was not swept: whoever asked for it knows that nothing lies beside it.
    if len(inputs.observed_layers) > 1:
        found += _ends("exit layer", cell[0], inputs.exit_layers, deepest)
    if len(inputs.draft_lengths) > 1:
        found += _ends("draft length", cell[1], inputs.draft_lengths, None)
    return found


def _ends(what: str, value: int, swept: Sequence[int], limit: int | None) -> list[Edge]:
    found = []
    if value == min(swept) and value > 1:
        found.append(Edge(what=what, side="first", value=value))
    if value == max(swept) and (limit is None or value < limit):
        found.append(Edge(what=what, side="last", value=value))
    return found


def _beyond(pool: Pool, edge: Edge, inputs: PlanInputs) -> str | None:
    """What lies beyond the edge; None where it was looked at and is no better."""
    outside = [
        layer
        for layer in inputs.exit_layers_beyond
        if (layer < edge.value if edge.side == "first" else layer > edge.value)
    ]
    if edge.what != "exit layer" or not outside:
        return "nothing was observed beyond it"
    rows = inputs.walk.loc[
        inputs.walk["exit_layer"].isin(outside) & inputs.walk["path_id"].isin(pool.path_ids)
    ]
    sums = rows.groupby(["exit_layer", "draft_length"])[["ar_seconds", "seconds"]].sum()
    ratios = sums["ar_seconds"] / sums["seconds"]
    inside = max(facts.speedup or 0.0 for facts in pool.cells.values())
    if ratios.empty or not float(ratios.max()) > inside:
        return None
    layer, k = ratios.index[int(ratios.to_numpy().argmax())]
    return (
        f"{text.cell((layer, k))}, beyond it, would bring {ratios.max():.2f} instead of "
        f"{inside:.2f}"
    )


def _warning(edge: Edge, found: Sequence[tuple[Pool, str]]) -> str:
    """Pools with the same story are named together."""
    stories: dict[str, list[str]] = defaultdict(list)
    for pool, told in found:
        stories[told].append(pool.name)
    told = "; ".join(f"{_names(names)}: {story}" for story, names in stories.items())
    return f"the best cell is at the {edge.side} {edge.what} swept, {edge.value} ({told})"


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return " / ".join(names[:MAX_NAMES]) + more

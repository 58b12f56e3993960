"""Costs of batches for the tests of this folder: hand-made surfaces and a linear law of passes."""

import numpy as np
from analysis_helpers import KINDS, cost_rows

from selfspec_cli.analysis.cost_surface import CostSurface


def batch_surface(batch_size, law="sampled", rows=None, factor=None):
    """A batch of B rows costs 1 + 0.1 (B - 1) times one row."""
    rows = cost_rows() if rows is None else rows
    scale = 1 + 0.1 * (batch_size - 1) if factor is None else factor
    scaled = rows.assign(seconds=rows["seconds"] * scale, batch=batch_size)
    return CostSurface.from_rows(scaled, layer_kinds=KINDS, law=law, batch=batch_size)


def batch_surfaces(*sizes):
    laws = ("greedy", "sampled")
    return {size: {law: batch_surface(size, law) for law in laws} for size in sizes}


class LinearCosts:
    """A round of k drafts takes 1 + 0.3 k + 0.05 rows + 0.001 context seconds; a step has no k."""

    def round_seconds(self, exit_layer, draft_length, contexts, rows):
        return 1.0 + 0.3 * draft_length + 0.05 * rows + 0.001 * np.asarray(contexts)

    def ar_seconds(self, contexts, rows):
        return 1.0 + 0.05 * rows + 0.001 * np.asarray(contexts)

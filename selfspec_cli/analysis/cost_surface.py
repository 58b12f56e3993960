"""The cost surface: seconds of any round from measured parts, never extrapolated.

    draft_step(L) = embed(1) + prep(1) + layers[0, L)(1) + head(1) + draw + between
    verify(L, k)  = embed(1) + prep(1) + layers[0, L)(1)
                    + prep(k+1) + layers[L, N)(k+1) + head(k+1) + between
    round(L, k)   = k * draft_step(L) + verify(L, k) + accept(k+1)
    round(L, 0)   = ar + accept(1)
    between       = ar - (draft_step(N) without it + accept(1)), at least 0

all at one context, the number of tokens in the cache before the round's first input. A range of
layers is counted by kind, because local and global attention cost differently. Means over blocks;
piecewise linear between measured contexts. A prompt's prefill comes before the first round and is
kept apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from selfspec_cli.analysis.cost_nodes import (
    Nodes,
    build_nodes,
    replace_whole,
    round_nodes,
    with_knots,
)
from selfspec_cli.analysis.cost_parts import (
    PREFILL_PART,
    ROUND_PART,
    Floats,
    Ints,
    PartSamples,
    check_contexts,
    prefill_curve,
    read_samples,
    select_rows,
)
from selfspec_cli.errors import CostRangeError

UNSTABLE_SPREAD = 0.10  # sd over blocks / mean above which no verdict may rest on the costs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostSurface:
    """Seconds of plain steps and rounds for one law, batch size and engine."""

    law: str
    batch: int
    engine: str | None
    """None where the file held only one."""
    layer_kinds: tuple[str, ...]
    """Kind of each of the N layers, in order."""
    samples: PartSamples
    scale: float
    """Factor of the correction fitted to whole rounds; 1 without correction."""
    offset: float
    """Seconds a round added by the correction; 0 without."""
    whole: PartSamples | None
    """Whole rounds that replace the sum of parts, or None."""
    whole_error: Floats | None
    """Standard error of each of them (s), in their order; NaN where timed once."""
    prefill: tuple[Floats, Floats] | None
    """Timed prompt lengths (tokens) and seconds, [C] each; None where no prefill was timed."""
    _nodes: Nodes
    _rounds: Floats
    """float64 [N+1, k_max+1, C], all corrections applied."""

    @classmethod
    def from_rows(
        cls,
        frame: pd.DataFrame,
        *,
        layer_kinds: Sequence[str],
        law: str,
        batch: int = 1,
        engine: str | None = None,
    ) -> "CostSurface":
        """Build the surface of one (law, batch, engine) from the rows of cost.csv.

        Rows of part `round` are whole measured rounds and are ignored here. Prefill is timed in
        few blocks, so it is no part of one, and at batch size 1 whatever `batch` is: a batch's
        prompts are run one by one.

        Raises:
            StorageError: columns or parts are missing, or no block timed every part.
            CostRangeError: this law or batch was not measured.
        """
        rows = select_rows(frame, law=law, batch=batch, engine=engine)
        samples = read_samples(rows.loc[~rows["part"].isin([ROUND_PART, PREFILL_PART])])
        nodes = build_nodes(samples, tuple(layer_kinds))
        return cls(
            law=law,
            batch=batch,
            engine=engine,
            layer_kinds=tuple(layer_kinds),
            samples=samples,
            scale=1.0,
            offset=0.0,
            whole=None,
            whole_error=None,
            prefill=prefill_curve(frame if engine is None else frame[frame["engine"] == engine]),
            _nodes=nodes,
            _rounds=round_nodes(nodes, 1.0, 0.0),
        )

    @property
    def num_layers(self) -> int:
        """Layers of the target, N."""
        return len(self.layer_kinds)

    @property
    def max_draft_length(self) -> int:
        """Largest k whose verification (k+1 positions) was measured."""
        return int(self._rounds.shape[1]) - 1

    @property
    def context_range(self) -> tuple[float, float]:
        """Smallest and largest context (tokens) at which every part was measured."""
        return float(self._nodes.knots[0]), float(self._nodes.knots[-1])

    def ar_seconds(self, contexts: npt.ArrayLike) -> Floats:
        """Return seconds of one plain decoding step at each context, in the shape of `contexts`.

        Raises:
            CostRangeError: a context lies outside the measured range.
        """
        low, high, share = self._locate(contexts)
        return (1 - share) * self._nodes.ar[low] + share * self._nodes.ar[high]

    def prefill_seconds(self, prompt_tokens: npt.ArrayLike) -> Floats | None:
        """Return seconds of prompts' prefill (the prompt run and x_0 drawn), in their shape.

        Attention grows faster than the prompt, so between two timed lengths the straight line is a
        little too high.

        Args:
            prompt_tokens: prompt lengths, template included (tokens).

        Returns:
            None where no prefill was timed.

        Raises:
            CostRangeError: a length lies outside the timed range.
        """
        if self.prefill is None:
            return None
        asked, (lengths, seconds) = np.asarray(prompt_tokens, dtype=np.float64), self.prefill
        check_contexts("prefill", lengths, asked)
        return np.asarray(np.interp(asked, lengths, seconds))

    def round_seconds(
        self, exit_layers: npt.ArrayLike, drafted: npt.ArrayLike, contexts: npt.ArrayLike
    ) -> Floats:
        """Return seconds of a round for every exit layer.

        Args:
            exit_layers: L, int [E].
            drafted: k' of each round (tokens); 0 is a plain step plus its bookkeeping.
            contexts: tokens in the cache before the round; broadcasts with `drafted`.

        Returns:
            float64 [E, *broadcast(drafted, contexts)].

        Raises:
            CostRangeError: an L, k' or context lies outside the measured range.
        """
        layers = self._checked_layers(exit_layers)
        lengths = self._checked_lengths(drafted)
        low, high, share = self._locate(contexts)
        lengths, low, high, share = np.broadcast_arrays(lengths, low, high, share)
        nodes = self._rounds[layers]  # [E, k_max+1, C]
        return (1 - share) * nodes[:, lengths, low] + share * nodes[:, lengths, high]

    @property
    def between_seconds(self) -> float:
        """Seconds a plain step takes beyond its parts; in every draft step and verification."""
        return self._nodes.between

    def draft_cost_ratio(self, exit_layer: int, context: float) -> float:
        """Return c(L): one draft step ÷ one plain step at the same context."""
        (layer,) = self._checked_layers([exit_layer])
        return self.scale * self._interpolate(self._nodes.draft[layer], context) / self._ar(context)

    def verify_cost_ratio(self, exit_layer: int, draft_length: int, context: float) -> float:
        """Return v(L, k): one verification of k drafts ÷ one plain step at the same context."""
        (layer,) = self._checked_layers([exit_layer])
        (k,) = self._checked_lengths([draft_length])
        seconds = self._interpolate(self._nodes.verify[layer, k], context)
        return self.scale * seconds / self._ar(context)

    def overhead_ratio(self, exit_layer: int, draft_length: int, context: float) -> float:
        """Return o: whatever of a round is neither drafting nor verifying ÷ one plain step.

        So round = k c + v + o holds exactly, also after a correction; o then carries the offset.
        """
        whole = self.round_seconds([exit_layer], draft_length, context)[0] / self._ar(context)
        drafting = draft_length * self.draft_cost_ratio(exit_layer, context)
        return float(whole - drafting - self.verify_cost_ratio(exit_layer, draft_length, context))

    def corrected(self, scale: float, offset: float) -> "CostSurface":
        """Return the surface whose rounds (k' >= 1) are scale * parts + offset (s)."""
        return replace(self, scale=scale, offset=offset)._rebuilt()

    def with_whole_rounds(self, frame: pd.DataFrame) -> "CostSurface":
        """Return a surface that uses whole measured rounds where there are any.

        A timed (L, k) follows its own measurements between the smallest and largest context it
        was timed at, and the sum of parts elsewhere.

        Args:
            frame: rows of cost.csv; only part `round` of this law and batch is read. exit_layer is
                L, positions is k+1.
        """
        rounds = frame.loc[frame["part"] == ROUND_PART]
        rows = select_rows(rounds, law=self.law, batch=self.batch, engine=self.engine)
        # Rounds may be timed over several visits, so each cell keeps its own mean.
        keys = ["part", "exit_layer", "positions", "context"]
        cells = rows.groupby(keys)["seconds"].agg(["mean", "sem"]).reset_index()
        whole = read_samples(cells[keys].assign(seconds=cells["mean"], block=0))
        error = whole.cells.merge(cells, on=keys, how="left", validate="1:1")["sem"]
        return replace(self, whole=whole, whole_error=error.to_numpy(dtype=np.float64))._rebuilt()

    def resample(self, rng: np.random.Generator) -> "CostSurface":
        """Return the surface of blocks drawn with replacement, all parts of a block together.

        Whole rounds were timed by cell, some on later visits: each moves by its own error, which
        no other cell shares.
        """
        count = len(self.samples.blocks)
        order = rng.integers(0, count, size=count)
        # A stream of its own, whether used or not: laws drawn from one seed keep the same blocks.
        own = np.random.default_rng(rng.integers(2**63))
        drawn = replace(self, samples=self.samples.take(order))
        if self.whole is not None and self.whole_error is not None:
            moved = (
                self.whole.seconds
                + own.normal(0.0, 1.0, len(self.whole_error))[:, None] * (self.whole_error[:, None])
            )
            drawn = replace(drawn, whole=replace(self.whole, seconds=moved))
        return drawn._rebuilt()

    def relative_spread(self) -> dict[str, float]:
        """Return the spread over blocks (sd ÷ mean) of each part, and of whole totals.

        `round` is the median over (L, k, context) of the round as the sum of parts; `ar_worst` the
        worst measured context of a plain step; other keys are medians over a part's cells. NaN
        below 2 blocks.
        """
        spread = pd.Series(self.samples.relative_spread())
        parts = spread.groupby(self.samples.cells["part"].to_numpy())
        values = {str(name): float(value) for name, value in parts.median().items()}
        return {**values, "ar_worst": float(parts.max()["ar"]), "round": self._round_spread()}

    @property
    def unstable(self) -> bool:
        """Whether plain steps or rounds vary by more than 10 % between blocks, by their medians.

        Not the worst of eight contexts: from ten blocks that one passes 10 % by chance alone, and
        what one context's spread does to a bucket is in its interval.
        """
        spread = self.relative_spread()
        return max(spread["ar"], spread["round"]) > UNSTABLE_SPREAD

    def _round_spread(self) -> float:
        count = len(self.samples.blocks)
        if count < 2:
            return float("nan")
        singles = (self.samples.take(np.array([block])) for block in range(count))
        rounds = np.stack([round_nodes(self._of(one), 1.0, 0.0)[1:] for one in singles])
        return float(np.median(rounds.std(axis=0, ddof=1) / rounds.mean(axis=0)))

    def _of(self, samples: PartSamples) -> Nodes:
        return build_nodes(samples, self.layer_kinds)

    def _rebuilt(self) -> "CostSurface":
        nodes = self._of(self.samples)
        if self.whole is not None:
            nodes = with_knots(nodes, self.whole.cells["context"].to_numpy(dtype=np.float64))
        rounds = round_nodes(nodes, self.scale, self.offset)
        if self.whole is not None:
            replace_whole(rounds, nodes.knots, self.whole)
        return replace(self, _nodes=nodes, _rounds=rounds)

    def _ar(self, context: float) -> float:
        return float(self.ar_seconds(context))

    def _interpolate(self, values: Floats, context: float) -> float:
        check_contexts("the cost surface", self._nodes.knots, np.asarray(context))
        return float(np.interp(context, self._nodes.knots, values))

    def _locate(self, contexts: npt.ArrayLike) -> tuple[Ints, Ints, Floats]:
        """Knots below and above each context, and the share of the upper one."""
        asked, knots = np.asarray(contexts, dtype=np.float64), self._nodes.knots
        check_contexts("the cost surface", knots, asked)
        low = np.clip(np.searchsorted(knots, asked, side="right") - 1, 0, max(0, len(knots) - 2))
        high = np.minimum(low + 1, len(knots) - 1)
        width = np.where(high > low, knots[high] - knots[low], 1.0)
        return low, high, (asked - knots[low]) / width

    def _checked_layers(self, exit_layers: npt.ArrayLike) -> Ints:
        layers = np.atleast_1d(np.asarray(exit_layers, dtype=np.int64))
        if layers.size and not (layers.min() >= 1 and layers.max() <= self.num_layers):
            raise CostRangeError(
                f"exit layers {layers.min()} to {layers.max()} of a model with "
                f"{self.num_layers} layers"
            )
        return layers

    def _checked_lengths(self, drafted: npt.ArrayLike) -> Ints:
        lengths = np.asarray(drafted, dtype=np.int64)
        if lengths.size and not (lengths.min() >= 0 and lengths.max() <= self.max_draft_length):
            raise CostRangeError(
                f"verification was measured for 0 to {self.max_draft_length} drafted tokens, "
                f"asked for {lengths.min()} to {lengths.max()}",
                hint="measure more positions, or sweep shorter draft lengths",
            )
        return lengths

"""Two runs on the same traces, compared pair by pair: is the new one faster, and is it as right?

Speedups are compared rather than seconds: each run timed plain decoding beside its rounds, and a
machine that is in another mood moves both. Seconds are told beside it, without a verdict.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from selfspec_cli.errors import ComparisonError
from selfspec_cli.gate.comparable import (
    check_comparable,
    foreign_timing,
    other_differences,
    priced_otherwise,
)
from selfspec_cli.gate.pairing import CostError, Paired, paired_p99, paired_rate, paired_speedup
from selfspec_cli.gate.side import (
    CELL,
    Side,
    cost_errors,
    load_side,
    pricing_errors,
    pricing_jumps,
)
from selfspec_cli.plan import text
from selfspec_cli.plan.rules import cell_of
from selfspec_cli.plan.traffic import BUCKET, key_of
from selfspec_cli.report.differing import Difference

TOTAL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One bucket, or all of them; a number that cannot be known is None."""

    label: str
    """Of the bucket, cut as the new run's plan cuts it; `all` for the whole."""
    num_pairs: int
    """Paths that both runs observed."""
    num_groups: int
    base_rule: str
    """`L=3, k=2`, `off`, or `several` where it falls into several buckets of the base plan."""
    new_rule: str
    speedup: Paired | None
    """Speedup of the new plan ÷ that of the base plan, predicted from the costs of each run."""
    seconds_ratio: float | None
    """Decode seconds under the base plan ÷ those under the new one, each on its own machine."""
    measured: Paired | None
    """The same ratio as `speedup` of what both runs decoded, where both decoded their rule."""
    acceptance: Paired | None
    """Tested acceptance, new - base, both at the base rule's cell."""
    p99: Paired | None
    """P99 of predicted request time under the plan, new ÷ base; None below 300 pairs."""

    @property
    def rule_changed(self) -> bool:
        """Whether the two plans decide otherwise on this bucket."""
        return self.base_rule != self.new_rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The new run against the base run."""

    base: str
    new: str
    rows: tuple[Row, ...]
    """Buckets of the new plan, the largest share of plain decode time first."""
    total: Row
    """Over the whole log, each request weighing once."""
    foreign_timing: tuple[Difference, ...]
    """Why seconds do not compare (device, libraries, engine); empty if they do."""
    other_differences: tuple[Difference, ...]
    num_base_only: int
    """Paths that only the base run has."""
    num_new_only: int

    @property
    def timing_judged(self) -> bool:
        """Whether timings of the two runs may be judged against each other."""
        return not self.foreign_timing

    @property
    def changed(self) -> tuple[Row, ...]:
        """Buckets whose rule changed."""
        return tuple(row for row in self.rows if row.rule_changed)


def compare_runs(base: Path, new: Path) -> Comparison:
    """Compare two runs on the same traces; no model, no torch.

    Args:
        base: run directory of what is held to be good.
        new: run directory of the candidate.

    Raises:
        RunDirError: a path holds no run.
        StorageError: a file is missing or torn.
        PlanError: a plan is not its run's.
        ComparisonError: the runs did not read the same requests the same way.
    """
    return compare_sides(load_side(base), load_side(new))


def compare_sides(base: Side, new: Side) -> Comparison:
    """Compare two runs that were read already; as `compare_runs`."""
    check_comparable(base, new)
    pairs = _pairs(base, new)
    bucket = np.asarray(pairs.groupby(BUCKET, sort=True).ngroup(), dtype=np.int64)
    costs = _costs(base, new, pairs, bucket)
    rows = []
    for number in np.unique(bucket):
        mine = pairs.loc[bucket == number].assign(weight=1.0)
        label = key_of(mine.iloc[0].to_dict()).label
        share = float((pairs["weight"] * pairs["new_ar"])[bucket == number].sum())
        share = float(f"{share:.9g}")  # the order of a sum's terms must not order buckets
        rows.append((share, _row(label, mine, costs[int(number)], (base, new))))
    rows.sort(key=lambda entry: (-entry[0], entry[1].label))
    return Comparison(
        base=str(base.path),
        new=str(new.path),
        rows=tuple(row for _, row in rows),
        total=_row(TOTAL, pairs, costs[-1], (base, new)),
        foreign_timing=foreign_timing(base, new),
        other_differences=other_differences(base, new),
        num_base_only=len(base.paths) - len(pairs),
        num_new_only=len(new.paths) - len(pairs),
    )


def _pairs(base: Side, new: Side) -> pd.DataFrame:
    """One row a path of both runs, paired by its id whatever the order of the files."""
    kept = ["path_id", "rule", "on", *CELL, "optimism", "ar", "seconds", "prefill_seconds"]
    names = {name: f"base_{name}" for name in (*kept, "content_hash", "prompt_tokens")}
    del names["path_id"]
    old = base.paths[[*kept, "content_hash", "prompt_tokens"]].rename(columns=names)
    mine = [*kept, "content_hash", "prompt_tokens", "group_id", "weight", *BUCKET]
    given = {name: f"new_{name}" for name in kept if name != "path_id"}
    pairs = new.paths[mine].rename(columns=given).merge(old, on="path_id", validate="1:1")
    if pairs.empty:
        raise ComparisonError(
            "no request of the first run is in the second", where=f"{base.path} and {new.path}"
        )
    for name in ("content_hash", "prompt_tokens"):
        other = pairs.loc[pairs[name] != pairs[f"base_{name}"]]
        if len(other):
            row = other.iloc[0]
            raise ComparisonError(
                f"cannot be compared: {name} of {row['path_id']!r} is {row[f'base_{name}']!r} in "
                f"the first run and {row[name]!r} in the second",
                where=f"{base.path} and {new.path}",
            )
    return _corrected(pairs)


def _corrected(pairs: pd.DataFrame) -> pd.DataFrame:
    """Correct for cells chosen on these very requests, where the two plans differ.

    A cell held against itself needs no correction, whoever chose it.
    """
    moved = pairs["base_on"] != pairs["new_on"]
    for name in CELL:
        both = pairs["base_on"] & pairs["new_on"]
        moved |= both & (pairs[f"base_{name}"] != pairs[f"new_{name}"])
    for side in ("base", "new"):
        factor = pairs[f"{side}_optimism"].where(moved & pairs[f"{side}_on"], 1.0)
        pairs[f"{side}_seconds"] = pairs[f"{side}_seconds"] * factor
    return pairs.assign(moved=moved)


def _costs(base: Side, new: Side, pairs: pd.DataFrame, bucket: np.ndarray) -> list[list[CostError]]:
    """Errors of both runs' costs by bucket, and of all, last."""
    shared = base.cost_sha256 is not None and base.cost_sha256 == new.cost_sha256
    if shared and not pairs["moved"].any():
        return [[] for _ in range(int(bucket.max()) + 2)]  # one measurement prices both plans
    seen = [(run, _of_side(pairs, side)) for side, run in (("base", base), ("new", new))]
    found = [cost_errors(run, rows, bucket) for run, rows in seen]
    laws = priced_otherwise(base, new)
    if laws:
        jumps = [np.abs(pricing_jumps(run, rows, bucket, laws)) for run, rows in seen]
        most = np.sum(jumps, axis=0)
        for run, rows in seen:
            errors = pricing_errors(run, rows, bucket, laws)
            found.append([one.at_most(bound) for one, bound in zip(errors, most, strict=True)])
    return [list(errors) for errors in zip(*found, strict=True)]


def _of_side(pairs: pd.DataFrame, side: str) -> pd.DataFrame:
    names = {f"{side}_{name}": name for name in ("on", *CELL, "seconds")}
    return pairs[["path_id", "weight", *names]].rename(columns=names)


def _row(
    label: str, pairs: pd.DataFrame, costs: Sequence[CostError], sides: tuple[Side, Side]
) -> Row:
    base, new = sides
    weight = pairs["weight"].to_numpy(dtype=float)
    under_base = float((weight * pairs["base_seconds"]).sum())
    under_new = float((weight * pairs["new_seconds"]).sum())
    return Row(
        label=label,
        num_pairs=len(pairs),
        num_groups=int(pairs["group_id"].nunique()),
        base_rule=_rule(base, pairs["base_rule"]) if label != TOTAL else "",
        new_rule=_rule(new, pairs["new_rule"]) if label != TOTAL else "",
        speedup=paired_speedup(pairs, costs, weight),
        seconds_ratio=under_base / under_new if under_base > 0 and under_new > 0 else None,
        measured=_measured(pairs, base, new),
        acceptance=_acceptance(pairs, base, new),
        p99=_p99(pairs),
    )


def _rule(side: Side, numbers: pd.Series) -> str:
    told = set()
    for number in numbers.unique():
        rule = side.plan.rules[int(number)]
        cell = cell_of(rule)
        told.add(text.cell(cell) if rule.enabled and cell is not None else "off")
    return told.pop() if len(told) == 1 else "several"


def _acceptance(pairs: pd.DataFrame, base: Side, new: Side) -> Paired | None:
    """At the base rule's cell, or the new one's where the base plan has none."""
    wanted = pairs[["path_id"]].assign(
        **{name: pairs[f"base_{name}"].fillna(pairs[f"new_{name}"]) for name in CELL}
    )
    counts = ["accepted", "tested"]
    old, now = (side.at_cells(wanted)[counts] for side in (base, new))
    rows = pairs[["path_id", "group_id", "weight"]].set_index("path_id")
    rows = rows.join(old.add_prefix("base_"), how="inner").join(now.add_prefix("new_"), how="inner")
    if rows.empty:
        return None
    return paired_rate(rows, ("accepted", "tested"), rows["weight"].to_numpy())


def _measured(pairs: pd.DataFrame, base: Side, new: Side) -> Paired | None:
    """Decodes of one path under the rule of each plan, both on; those of a path are added up."""
    both = pairs.loc[pairs["base_on"] & pairs["new_on"]]
    if base.confirm is None or new.confirm is None or both.empty:
        return None
    old = _decoded(base.confirm, both, "base")
    now = _decoded(new.confirm, both, "new")
    rows = both[["path_id", "group_id"]].merge(old, on="path_id").merge(now, on="path_id")
    return paired_speedup(rows) if len(rows) else None


def _decoded(confirm: pd.DataFrame, pairs: pd.DataFrame, side: str) -> pd.DataFrame:
    wanted = pairs[["path_id"]].assign(**{name: pairs[f"{side}_{name}"] for name in CELL})
    rows = confirm[["path_id", *CELL, "ar_seconds", "seconds"]].merge(wanted, on=["path_id", *CELL])
    means = rows.groupby("path_id", sort=True)[["ar_seconds", "seconds"]].mean()
    names = {"ar_seconds": f"{side}_ar", "seconds": f"{side}_seconds"}
    return means.rename(columns=names).reset_index()


def _p99(pairs: pd.DataFrame) -> Paired | None:
    columns = {"group_id": pairs["group_id"]}
    for side in ("base", "new"):
        prefill = pairs[f"{side}_prefill_seconds"]
        columns[f"{side}_request"] = prefill + pairs[f"{side}_seconds"]
        columns[f"{side}_plain"] = prefill + pairs[f"{side}_ar"]
    return paired_p99(pd.DataFrame(columns))

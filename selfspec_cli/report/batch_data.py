"""What batch size does to each rule, as a table: the figure, its CSV and its HTML table."""

from typing import Any

import pandas as pd

from selfspec_cli.plan.document import AtBatch, PlanDocument, Rule
from selfspec_cli.report.rule_rows import by_traffic

_COUNTS = ("context_max", "best_exit_layer", "best_draft_length")


def batch_table(plan: PlanDocument) -> pd.DataFrame:
    """Return one row a (rule, batch size), the largest bucket first; empty below two sizes.

    `speedup` with `low` and `high` is the evidence for continuous refill; ar_step_s and
    plain_tokens_per_s are of plain decoding of the whole batch, the same for every rule.
    """
    if len(plan.batch_sizes) < 2:
        return pd.DataFrame()
    plain = {facts.batch_size: facts for facts in plan.batches}
    rows = []
    for rule in by_traffic(plan.rules):
        for entry in rule.by_batch:
            facts = plain.get(entry.batch_size)
            rows.append(
                {
                    **_bucket(rule),
                    **_entry(entry),
                    "ar_step_s": None if facts is None else facts.ar_step_s,
                    "plain_tokens_per_s": None if facts is None else facts.tokens_per_s,
                }
            )
    table = pd.DataFrame(rows)
    if table.empty:
        return table
    floats = [
        name
        for name, kind in table.dtypes.items()
        if pd.api.types.is_object_dtype(kind) and _numeric(name)
    ]
    return table.astype(dict.fromkeys(floats, float)).astype(dict.fromkeys(_COUNTS, "Int64"))


def _numeric(name: object) -> bool:
    return name not in ("task", "check", *_COUNTS)


def _bucket(rule: Rule) -> dict[str, Any]:
    return {
        "task": rule.task,
        "context_min": rule.context_min,
        "context_max": rule.context_max,
        "temperature": rule.temperature_min,
        "exit_layer": rule.drafter.exit_layer,
        "draft_length": rule.draft.length,
        "max_batch": rule.max_batch,
    }


def _entry(entry: AtBatch) -> dict[str, Any]:
    best = entry.best
    return {
        "batch_size": entry.batch_size,
        "check": entry.check,
        "speedup": entry.speedup.estimate,
        "low": entry.speedup.low,
        "high": entry.speedup.high,
        "static_speedup": entry.static_speedup,
        "waiting_share": entry.waiting_share,
        "grouping_gain": entry.grouping_gain,
        "best_exit_layer": None if best is None else best.exit_layer,
        "best_draft_length": None if best is None else best.draft_length,
        "best_speedup": None if best is None else best.speedup.estimate,
        "best_speedup_low": None if best is None else best.speedup.low,
        "best_speedup_high": None if best is None else best.speedup.high,
    }

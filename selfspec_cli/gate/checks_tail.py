"""Tail of request time: P99 over plain decoding's, with a test of how sure its excess is."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from selfspec_cli.gate.checks_timing import Comparison
from selfspec_cli.gate.evidence import GateEvidence, read_walk
from selfspec_cli.gate.holm import share_p_value
from selfspec_cli.plan.document import Rule
from selfspec_cli.report.format import ratio
from selfspec_cli.report.rule_rows import rule_label

NAME = "request_p99"
_ROUNDING = 1e-9  # equal passes
_BEYOND = 0.01  # share of requests beyond P99
_COLUMNS = (
    "path_id", "request_id", "temperature", "prompt_tokens", "exit_layer", "draft_length",
    "ar_seconds", "seconds", "prefill_seconds",
)  # fmt: skip


def p99_comparisons(evidence: GateEvidence, limit: float) -> Iterator[Comparison]:
    """Yield P99 of request time over plain decoding's, one comparison a bucket.

    The ratio of the plan passes at the limit. Beyond it, the test asks whether more than 1 % of
    the bucket's requests are expected to take longer than the limit times plain decoding's P99;
    that P99 is taken as known.

    Args:
        evidence: of the run.
        limit: largest ratio; equal passes.

    Raises:
        StorageError: walk.parquet, read where a ratio lies beyond the limit, is torn.
    """
    for rule in evidence.enabled:
        value = rule.request_p99_ratio
        holds = value is not None and value <= limit + _ROUNDING
        beyond = value is not None and not holds
        groups = rule.evidence_requests or 0
        yield Comparison(
            name=NAME,
            subject=rule_label(rule),
            value=value,
            limit=limit,
            p=_p_value(evidence, rule, limit) if beyond else (1.0 if holds else None),
            holds=holds,
            told=_told(value, limit),
            silence="" if value is not None else f"{groups} requests, 300 are needed",
        )


def _told(value: float | None, limit: float) -> str:
    if value is None:
        return f"P99 of request time is not known, at most {limit:g}x that of plain decoding"
    return f"P99 of request time is {ratio(value)} that of plain decoding, at most {limit:g}x"


def _p_value(evidence: GateEvidence, rule: Rule, limit: float) -> float | None:
    walk = read_walk(evidence.path, _COLUMNS)
    if walk is None or evidence.requests is None:
        return None
    times = _times(walk, evidence.requests, rule)
    if not len(times):
        return None
    plain, seconds = times["plain"].to_numpy(), times["spec"].to_numpy()
    slow = int((seconds > limit * np.quantile(plain, 1 - _BEYOND)).sum())
    return share_p_value(slow / len(times), len(times), _BEYOND)


def _times(walk: pd.DataFrame, requests: pd.DataFrame, rule: Rule) -> pd.DataFrame:
    """Request times of the rule's own bucket and cell: plain, spec (s), prefill in both."""
    walk = walk.merge(requests[["request_id", "task"]], on="request_id")
    top = np.inf if rule.context_max is None else rule.context_max
    low, high = rule.temperature_min, rule.temperature_max
    inside = (
        (walk["task"] == rule.task)
        & (walk["prompt_tokens"] >= rule.context_min)
        & (walk["prompt_tokens"] < top)
        & (walk["temperature"] >= low)
        & ((walk["temperature"] < high) | (low == high))
        & (walk["exit_layer"] == rule.drafter.exit_layer)
        & (walk["draft_length"] == rule.draft.length)
    )
    rows = walk.loc[inside].drop_duplicates("path_id")
    prefill = rows["prefill_seconds"].astype(float).fillna(0.0)
    return pd.DataFrame(
        {"plain": rows["ar_seconds"] + prefill, "spec": rows["seconds"] + prefill}
    ).dropna()

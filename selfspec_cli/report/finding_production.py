"""Acceptance of this run against what a server counted (`doctor --metrics`)."""

import math
from collections.abc import Iterator

import pandas as pd
from scipy import stats

from selfspec_cli.analysis.intervals import RatioInterval, ratio_interval
from selfspec_cli.report.finding_types import Evidence, Finding, Production
from selfspec_cli.report.format import number, percent, percent_interval, shown

LONGER = 1.25  # mean draft lengths further apart have rates that do not compare
LEVEL = 0.95
MIN_ROUNDS = 100


def accepts_less(evidence: Evidence) -> Iterator[Finding]:
    """Drafted tokens accepted: the run's at the plan's cells, surely above the server's."""
    production, rows = evidence.production, _planned(evidence)
    if production is None or rows.empty or production.rounds < MIN_ROUNDS:
        return
    own_length = rows["drafted"].sum() / max(rows["rounds"].sum(), 1e-9)
    length = production.drafted / production.rounds
    if own_length <= 0 or max(own_length / length, length / own_length) > LONGER:
        yield _not_comparable(production, length, own_length)
        return
    offline = ratio_interval(rows["accepted"], rows["drafted"], rows["group_id"], level=LEVEL)
    low, high = rate_interval(production)
    if offline.low is not None and offline.low > high:
        yield _found(production, (low, high), offline)


def _planned(evidence: Evidence) -> pd.DataFrame:
    """Walk rows of the rules that are on, or of all of them where none is."""
    used = [rows for rule, rows in evidence.cells if rule.enabled]
    parts = used or [rows for _, rows in evidence.cells]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def rate_interval(production: Production) -> tuple[float, float]:
    """Return the interval of accepted ÷ drafted over rounds.

    Tokens of a round are accepted or refused together, so a round counts as one observation in
    [0, 1], whose variance is at most p(1 - p): wide rather than narrow.
    """
    rate = production.accepted / production.drafted
    half = float(stats.norm.ppf((1 + LEVEL) / 2)) * math.sqrt(rate * (1 - rate) / production.rounds)
    return max(rate - half, 0.0), min(rate + half, 1.0)


def _found(production: Production, ends: tuple[float, float], offline: RatioInterval) -> Finding:
    rate = production.accepted / production.drafted
    return Finding(
        code="production_accepts_less",
        symptom="The server accepts fewer drafts than this run did at the plan's cells.",
        evidence=f"{shown(production.source, 60)}: {percent(rate)} of the drafted tokens "
        f"({percent_interval(*ends)}); here {percent(offline.estimate)} "
        f"({percent_interval(offline.low, offline.high)}).",
        cause="The traffic has changed (tasks, temperature, lengths), the log is no fair sample of "
        "it, or the server uses another exit layer or other weights.",
        remedy="Calibrate on a fresh log of the same server, and compare its bucket mix with the "
        "plan's.",
    )


def _not_comparable(production: Production, length: float, own: float) -> Finding:
    return Finding(
        code="production_drafts_differ",
        symptom="The server drafts other lengths than the plan, so acceptance does not compare.",
        evidence=f"{shown(production.source, 60)}: {number(length, 1)} drafted tokens a round; the "
        f"plan's cells draft {number(own, 1)}.",
        cause="The server runs another draft length than the plan's, or many rounds are plain "
        "steps.",
        remedy="Compare counts of a server that follows the plan.",
    )

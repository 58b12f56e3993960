"""Findings that single requests show: decodes beside the walk, and who got slower."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy import stats

from selfspec_cli.plan.document import Rule
from selfspec_cli.report.finding_types import Evidence, Finding
from selfspec_cli.report.format import number, percent, plural, ratio, shown
from selfspec_cli.report.rule_rows import rule_label

MIN_GROUPS = 4  # fewer have no spread worth a name
FEWER = 0.10  # acceptance points; positions off by one cost about twice that
FALSE_ALARM = 0.001  # of a sound run, one-sided, over groups of requests
PACE = 1.2  # costs and decodes of one machine agree within 4 % when it is left alone
FASTER, SLOWER = 1.05, 0.95  # a median gain worth having, a loss beyond the noise of a request
LISTED = 5  # requests named


def accepts_fewer(evidence: Evidence) -> Iterator[Finding]:
    """Real rounds accept surely less than the walk of the same paths at the same cells.

    Where the output differs too, less acceptance follows from that, and nothing is said here.
    """
    table = _decoded_and_walked(evidence.decodes)
    if len(table) < MIN_GROUPS or _output_differs(evidence.decodes):
        return
    walked = table["predicted_accepted"].sum() / table["predicted_tested"].sum()
    decoded = table["accepted"].sum() / table["tested"].sum()
    if walked - decoded > FEWER and walked - decoded > _margin(table):
        yield Finding(
            code="accepts_fewer",
            symptom="Real rounds accept fewer drafts than the same cells were predicted to.",
            evidence=f"{percent(decoded)} of the tested drafts against {percent(walked)} in the "
            f"walk of the same paths, over {plural(len(table), 'request')}.",
            cause="Drafts start from a wrong place: positions off by one, the last committed token "
            "is not the first input, or a stale exit state.",
            remedy="Compare the first drafted token of a round with the exit head's choice at that "
            "position of the recorded path; they must be the same.",
        )


def _output_differs(decodes: pd.DataFrame) -> bool:
    greedy = decodes.loc[decodes["temperature"] == 0.0]
    return bool((~greedy["exact"].eq(True) & ~greedy["is_tie"].eq(True)).any())


def _decoded_and_walked(decodes: pd.DataFrame) -> pd.DataFrame:
    """Counts by group: tested, accepted and both predicted; of free decodes at temperature > 0.

    A decode that follows an observed path is told what to accept, so it says nothing here. Text
    that was recorded elsewhere may be accepted otherwise than what this model writes itself.
    """
    wanted = ("predicted_tested", "predicted_accepted", "free_tested", "free_accepted")
    if decodes.empty or any(name not in decodes for name in wanted):
        return pd.DataFrame()
    if "source" in decodes:
        decodes = decodes.loc[decodes["source"] != "recorded"]
    greedy = decodes["temperature"] == 0.0
    counts = pd.DataFrame({name: decodes[name] for name in ("group_id", *wanted[:2])})
    for name in ("tested", "accepted"):
        counts[name] = decodes[name].where(greedy, decodes[f"free_{name}"]).astype(float)
    sums = counts.dropna().groupby("group_id").sum()
    return sums.loc[(sums["tested"] > 0) & (sums["predicted_tested"] > 0)]


def _margin(table: pd.DataFrame) -> float:
    """Half width of the difference of both rates: Student t over linearised group residuals."""
    n = len(table)
    parts = []
    for hit, tried in (("predicted_accepted", "predicted_tested"), ("accepted", "tested")):
        rate = table[hit].sum() / table[tried].sum()
        parts.append((table[hit] - rate * table[tried]) / table[tried].mean())
    error = float(np.std((parts[0] - parts[1]).to_numpy(), ddof=1) / np.sqrt(n))
    return float(stats.t.ppf(1 - FALSE_ALARM, n - 1)) * error


def pace_changed(evidence: Evidence) -> Iterator[Finding]:
    """Plain steps of the decodes against the same steps when costs were timed."""
    table = evidence.decodes
    if table.empty or "predicted_ar_seconds" not in table:
        return
    known = table.loc[(table["predicted_ar_seconds"] > 0) & (table["ar_seconds"] > 0)]
    if known.empty:
        return
    pace = float(np.exp(np.log(known["ar_seconds"] / known["predicted_ar_seconds"]).mean()))
    if max(pace, 1 / pace) > PACE:
        yield Finding(
            code="pace_changed",
            symptom="The machine changed its pace between timing costs and decoding.",
            evidence=f"Plain decoding took {number(pace)} times its predicted time over "
            f"{plural(len(known), 'decode')}; {PACE:g} is the limit.",
            cause="Other programs, a changing clock rate, heat, or other kernels in decoding than "
            "in timing.",
            remedy="Measure again on a quiet machine; times of this run do not transfer.",
        )


def slow_tail(evidence: Evidence) -> Iterator[Finding]:
    """Cells where the median request gains and too many others lose: names the slowest."""
    limit = evidence.plan.settings.max_slow_share
    found = []
    for rule, rows in evidence.cells:
        gains = _gains(rows)
        if len(gains) >= 2 * MIN_GROUPS and gains["gain"].median() >= FASTER:
            slow = gains.loc[gains["gain"] < SLOWER]
            if len(slow) > max(limit * len(gains), 1):
                found.append((rule, gains, slow))
    if found:
        yield _slow_tail(found)


def _slow_tail(found: list[tuple[Rule, pd.DataFrame, pd.DataFrame]]) -> Finding:
    rule, gains, slow = found[0]
    return Finding(
        code="slow_tail",
        symptom="The median request gets faster and the slowest ones slower.",
        evidence=f"{plural(len(found), 'bucket')}. {rule_label(rule)}, "
        f"L={rule.drafter.exit_layer}, k={rule.draft.length}: median "
        f"{ratio(gains['gain'].median())}, {len(slow)} of {plural(len(gains), 'request')} below "
        f"{ratio(SLOWER)}: {_listed(slow)}.",
        cause="Hard requests refuse most drafts and pay for them; easy ones carry the mean.",
        remedy="Split the bucket by task (--task-from) so that these are off; a smaller k loses "
        "less on them.",
    )


def _gains(rows: pd.DataFrame) -> pd.DataFrame:
    """Plain ÷ speculative seconds and tested acceptance of each request, the slowest first."""
    if rows.empty:
        return pd.DataFrame(columns=["gain", "rate"])
    names = ["ar_seconds", "seconds", "accepted", "tested"]
    sums = rows.groupby("request_id")[names].sum()
    sums = sums.loc[sums["seconds"] > 0]
    gain = sums["ar_seconds"] / sums["seconds"]
    rate = sums["accepted"] / sums["tested"].where(sums["tested"] > 0)
    return pd.DataFrame({"gain": gain, "rate": rate}).sort_values("gain", kind="stable")


def _listed(slow: pd.DataFrame) -> str:
    told = [
        f"{shown(name, 40)} ({ratio(row['gain'])}, {percent(row['rate'])} accepted)"
        for name, row in slow.head(LISTED).iterrows()
    ]
    more = len(slow) - len(told)
    return ", ".join(told) + (f" and {more} more" if more else "")

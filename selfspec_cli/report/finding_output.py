"""Findings about the output itself: it differs from plain decoding, or follows another law."""

from collections.abc import Iterator

import pandas as pd

from selfspec_cli.report.finding_types import Evidence, Finding
from selfspec_cli.report.format import number, plural, shown

LATE = 64  # tokens: a cache that is wrong from the first rollback shows before
MIN_LATE = 3  # decodes that differ, before their places are called a pattern


def output_differs(evidence: Evidence) -> Iterator[Finding]:
    """Greedy decodes that are not those of plain decoding, numeric ties aside."""
    table = _greedy(evidence.decodes)
    wrong = _wrong(table)
    if len(wrong):
        yield _late(table, wrong) if _is_late(table, wrong) else _early(table, wrong)
    batches = _wrong(_greedy(evidence.batch_decodes))
    if len(batches):
        yield _in_batches(evidence.batch_decodes, batches, alone=len(wrong) == 0)


def _greedy(table: pd.DataFrame) -> pd.DataFrame:
    return table if table.empty else table.loc[table["temperature"] == 0.0]


def _wrong(table: pd.DataFrame) -> pd.DataFrame:
    """The same rows that end a calibration (`check_exact`)."""
    if table.empty:
        return table
    return table.loc[~table["exact"].eq(True) & ~table["is_tie"].eq(True)]


def _places(wrong: pd.DataFrame) -> pd.Series:
    """Output positions of first differences; empty in files that did not keep them."""
    if "first_difference" not in wrong:
        return pd.Series(dtype=float)
    return wrong["first_difference"].dropna().astype(float)


def _is_late(table: pd.DataFrame, wrong: pd.DataFrame) -> bool:
    """Whether no decode differs early, and outputs that end early are all equal."""
    places = _places(wrong)
    if len(places) < max(MIN_LATE, len(wrong)) or places.min() < LATE:
        return False
    length = table.loc[places.index, "committed"]
    return bool((places > length / 2).mean() > 0.5)


def _early(table: pd.DataFrame, wrong: pd.DataFrame) -> Finding:
    return Finding(
        code="greedy_mismatch",
        symptom="Greedy output differs from plain decoding.",
        evidence=_told(table, wrong),
        cause="Rollback is off by one (a refused token stays in the cache, or an accepted one is "
        "lost), or drafts and verification see different positions.",
        remedy="Do not serve with it. Compare cache lengths with prompt + output - 1 after every "
        "round; `selfspec verify` checks the cache of this model.",
    )


def _late(table: pd.DataFrame, wrong: pd.DataFrame) -> Finding:
    return Finding(
        code="long_outputs_degrade",
        symptom="Greedy output differs from plain decoding, but only in long outputs.",
        evidence=_told(table, wrong),
        cause="Something that grows with the length: positions that drift, a sliding window that "
        "drops what a rollback needs again, or rounding that adds up in the cache.",
        remedy="Do not serve with it. Check positions and windowed layers beyond that length; try "
        "float32.",
    )


def _told(table: pd.DataFrame, wrong: pd.DataFrame) -> str:
    places, first = _places(wrong), wrong.iloc[0]
    where = (
        f"First differences at output positions {places.min():.0f} to {places.max():.0f} (median "
        f"{places.median():.0f}). "
        if len(places)
        else ""
    )
    cell = f"L={first['exit_layer']:.0f}, k={first['draft_length']:.0f}"
    refused = _refused(table, wrong)
    return (
        f"{len(wrong)} of {plural(len(table), 'greedy decode')} differ. {where}The first: "
        f"{shown(first['path_id'], 60)} at {cell}{_gap(first)}.{refused}"
    )


def _gap(row: pd.Series) -> str:
    gap = row.get("top2_gap")
    return "" if gap is None or pd.isna(gap) else f", top-2 gap {number(float(gap), 3)}"


def _refused(table: pd.DataFrame, wrong: pd.DataFrame) -> str:
    """Whether only decodes with a refused draft differ: those alone roll anything back."""
    if "tested" not in table or "accepted" not in table:
        return ""
    clean = table["tested"] == table["accepted"]
    if not clean.any() or clean.loc[wrong.index].any():
        return ""
    return f" All {clean.sum()} decodes without a refused draft are equal."


def _in_batches(table: pd.DataFrame, wrong: pd.DataFrame, *, alone: bool) -> Finding:
    sizes = ", ".join(f"{size:.0f}" for size in sorted(set(wrong["batch_size"])))
    single = " One request at a time, all decodes are equal." if alone else ""
    return Finding(
        code="batch_mismatch",
        symptom="Greedy output of a batch differs from plain decoding.",
        evidence=f"{len(wrong)} of {plural(len(table), 'decode')} in batches differ, at batch "
        f"sizes {sizes}.{single}",
        cause="Rows of different lengths share positions or masks, or one row's rollback moves "
        "another's.",
        remedy="Do not serve batches with it; decode one request at a time until it is mended.",
    )


def law_differs(evidence: Evidence) -> Iterator[Finding]:
    """Sampled rounds that commit another law than the model's."""
    proof = evidence.law_proof
    if proof.get("passed") is not False:
        return
    yield Finding(
        code="sampled_law_differs",
        symptom="Sampled output does not follow the model's own law.",
        evidence=f"Smallest chi-square p {proof['smallest_p']:.2g} over "
        f"{plural(int(proof['positions']), 'position')}, {proof['alarm_level']:.2g} is the limit "
        f"(false alarm in {proof['false_alarm']:.2g} of runs).",
        cause="A refused draft is replaced by a draw from p instead of max(0, p - q), or draft and "
        "target are processed differently (temperature, top-p, penalties).",
        remedy="Do not serve with it at temperature > 0.",
    )

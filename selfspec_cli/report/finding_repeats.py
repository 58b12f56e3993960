"""Finding: sampled text of rounds runs in circles where plain text of the same requests does not.

Greedy outputs are equal, so there is nothing to compare; at temperature > 0 runs keep counts of
repeated 4-grams, no text (`analysis.repeats`).
"""

from collections.abc import Iterator

import pandas as pd

from selfspec_cli.analysis.repeats import NGRAM, sign_exchange_p
from selfspec_cli.report.finding_types import Evidence, Finding
from selfspec_cli.report.format import percent, plural

MORE = 0.05  # of all n-grams: less is not seen by a reader
FALSE_ALARM = 0.005  # of a sound run, one-sided; 8 requests, what a cell decodes, can just show it
_COLUMNS = ("ngrams", "free_repeated", "plain_repeated")


def repeats_more(evidence: Evidence) -> Iterator[Finding]:
    """Repeated n-grams of free decodes surely above those of the paths of the same requests.

    Both follow one law if decoding is sound, so that signs of their differences can be exchanged.
    """
    pairs = _pairs(evidence.decodes)
    if pairs.empty:
        return
    rates = {name: pairs[name] / pairs["ngrams"] for name in _COLUMNS[1:]}
    difference = rates["free_repeated"] - rates["plain_repeated"]
    p = sign_exchange_p(difference.groupby(pairs["group_id"]).sum())
    if difference.mean() > MORE and p <= FALSE_ALARM:
        yield _found(pairs, rates["free_repeated"].mean(), rates["plain_repeated"].mean(), p)


def _pairs(decodes: pd.DataFrame) -> pd.DataFrame:
    """One free decode a path, at the rule's own cell if it was decoded.

    Further decodes are held against the same plain text, so they are no further pairs. A text that
    was recorded elsewhere need not follow this model's law. Runs of earlier versions kept nothing.
    """
    if decodes.empty or any(name not in decodes for name in _COLUMNS):
        return pd.DataFrame()
    rows = decodes.loc[decodes["temperature"] > 0].dropna(subset=list(_COLUMNS))
    if "source" in rows:
        rows = rows.loc[rows["source"] != "recorded"]
    rows = rows.loc[rows["ngrams"] > 0].assign(other=rows["role"] != "rule")
    order = ["path_id", "other", "exit_layer", "draft_length", "repeat"]
    chosen = rows.sort_values(order).drop_duplicates("path_id")
    return chosen.astype(dict.fromkeys(_COLUMNS, float))


def _found(pairs: pd.DataFrame, free: float, plain: float, p: float) -> Finding:
    return Finding(
        code="repeats_more",
        symptom="Sampled speculative output repeats itself more than plain output.",
        evidence=f"{percent(free)} of its {NGRAM}-grams came before in the same text, "
        f"{percent(plain)} in plain text of the same {plural(len(pairs), 'path')} and length "
        f"({plural(pairs['group_id'].nunique(), 'request')}; p {p:.2g}, {FALSE_ALARM:g} is the "
        "limit and the false alarm of a sound run).",
        cause="Drafts are not drawn from the law they are verified with (the likeliest token, or "
        "another temperature), or the verdict keeps drafts that it should refuse.",
        remedy="Do not serve with it at temperature > 0. Draw drafts from the same law that is "
        "kept for their verdict; `selfspec verify` tests the law of this model.",
    )

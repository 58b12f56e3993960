"""Small tables of real decodes, made by hand, with known right answers."""

import pandas as pd

EMPTY = {
    "exit_layer": None, "draft_length": None, "rounds": None, "drafted": None, "tested": None,
    "accepted": None, "rounds_by_accepted": None, "gap_max_s": None, "gap_p50_s": None,
    "exact": None, "peak_memory_bytes": None,
}  # fmt: skip


def decode(request_id, *, arm="ar", seconds=1.0, committed=10, prefill=0.5, **more):
    """One decode: 10 tokens after the first in one second unless told."""
    row = {
        "task": "chat", "context_min": 0, "context_max": None, "temperature": 0.0,
        "batch_size": 1, "arm": arm, "repeat": 0, "request_id": request_id,
        "group_id": request_id, "prompt_tokens": 20, "committed": committed,
        "prefill_seconds": prefill, "seconds": seconds, "request_seconds": prefill + seconds,
        "engine": "eager", "order": 0, **EMPTY,
    }  # fmt: skip
    return {**row, **more}


def whole_batch(*, arm="ar", seconds=1.0, committed=80, batch_size=8, **more):
    """One batch decoded together: no request, tokens and seconds only."""
    times = {"prefill_seconds": None, "request_seconds": None, "group_id": None}
    row = decode(None, arm=arm, seconds=seconds, committed=committed, batch_size=batch_size)
    return {**row, **times, **more}


def bench_table(rows):
    table = pd.DataFrame(rows, columns=list(decode("x")))
    return table.astype({"context_max": "Int64"})


def drafted(request_id, *, k=2, accepted, rounds, **more):
    """A decode of the plan's arm whose every round drafts k; `accepted` is the counts for 0..k."""
    taken = sum(a * n for a, n in enumerate(accepted))
    tested = sum(min(a + 1, k) * n for a, n in enumerate(accepted))
    assert sum(accepted) == rounds
    counts = {"rounds": rounds, "drafted": k * rounds, "tested": tested, "accepted": taken}
    text = " ".join(str(n) for n in accepted)
    given = {"arm": "plan", "exit_layer": 4, "draft_length": k, "rounds_by_accepted": text}
    return decode(request_id, **{**given, **counts, **more})

"""The summary as one document: the numbers of the tables, nothing undefined but null."""

import json
import math

from bench_tables import bench_table, decode, drafted, whole_batch

from selfspec_cli.bench.document import summary_document
from selfspec_cli.bench.sheet import summary_sheet
from selfspec_cli.bench.summary import summarise

FORMULA = "=1+1"


def rows():
    found = []
    for i in range(12):
        name, taken = f"r{i}", {"accepted": (2 + i % 2, 1, 4), "rounds": 7 + i % 2}
        found.append(decode(name, seconds=2.0 + i / 100, gap_max_s=0.3, peak_memory_bytes=900))
        found.append(drafted(name, seconds=1.0, exact=i > 0, **taken))
        found.append(decode(name, task=FORMULA))
        found.append(decode(name, task=FORMULA, arm="plan", seconds=1.7))
        for arm, seconds in (("generate", 3.0), ("prompt_lookup", 1.5)):
            found.append(decode(name, arm=arm, seconds=seconds))
    return [*found, whole_batch(), whole_batch(arm="plan", seconds=0.5)]


def told(table=None):
    summary = summarise(bench_table(rows() if table is None else table), 3.6)
    text = json.dumps(summary_document(summary), allow_nan=False)
    return json.loads(text), summary


def line(found, task, arm, batch_size=1):
    return next(
        one
        for one in found["lines"]
        if (one["bucket"]["task"], one["arm"], one["batch_size"]) == (task, arm, batch_size)
    )


def test_a_line_has_every_number_of_its_bucket_and_arm():
    found, _ = told()
    plan = line(found, "chat", "plan")
    # 12 requests: 2.00 to 2.11 s plainly and 1 s each with the plan, 10 tokens each.
    assert abs(plan["speedup"]["estimate"] - 2.055) < 1e-9
    assert plan["speedup"]["low"] < 2.055 < plan["speedup"]["high"]
    assert (plan["verdict"], plan["speedup"]["num_groups"]) == ("faster", 12)
    assert (plan["tokens_per_second"], plan["cost_per_1000_tokens"]) == (10.0, 0.1)
    assert plan["request_s"] == {"p50": 1.5, "p95": None, "p99": None, "num_values": 12}
    assert plan["first_token_s"]["p50"] == 0.5
    assert plan["equality"] == {"num_checked": 12, "num_differ": 1}
    assert plan["slower"] == {"num_compared": 12, "num_slower": 0, "requests": []}
    assert len(plan["accepted_lengths"]["share"]) == 3
    plain = line(found, "chat", "ar")
    assert (plain["longest_gap_s"]["p50"], plain["peak_memory_bytes"]) == (0.3, 900)
    assert (plain["verdict"], plain["slower"], plain["accepted_lengths"]) == (None, None, None)
    lookup = line(found, "chat", "prompt_lookup")
    assert lookup["own_speedup"]["estimate"] == 2.0
    slow = line(found, FORMULA, "plan")["slower"]
    assert slow["num_slower"] == len(slow["requests"]) == 12, "2.2 s of 1.5 s each"
    assert set(slow["requests"][0]) == {"request_id", "ratio", "reason", "evidence"}


def test_labels_are_exact_and_what_is_not_known_is_null():
    found, _ = told()
    tasks = {one["bucket"]["task"] for one in found["lines"]}
    assert tasks == {"chat", FORMULA}, "a document is no spreadsheet: labels stay as they are"
    whole = line(found, "chat", "plan", 8)
    assert whole["speedup"]["estimate"] == 2.0
    assert (whole["speedup"]["low"], whole["request_s"]["p50"]) == (None, None)
    assert all(one["bucket"] is None for one in found["totals"])
    empty, _ = told([])
    assert (empty["lines"], empty["totals"]) == ([], [])


def test_the_document_and_the_sheet_have_the_same_numbers():
    found, summary = told()
    sheet = summary_sheet(summary)
    lines = [*found["totals"], *found["lines"]]
    assert len(sheet) == len(lines) > 10
    pairs = {
        "tokens_per_second": lambda one: one["tokens_per_second"],
        "speedup_low": lambda one: one["speedup"]["low"],
        "request_p50_s": lambda one: one["request_s"]["p50"],
        "num_differ": lambda one: one["equality"]["num_differ"],
        "cost_per_1000_tokens": lambda one: one["cost_per_1000_tokens"],
    }
    for name, get in pairs.items():
        own = [None if math.isnan(value) else value for value in sheet[name].astype(float)]
        assert own == [get(one) for one in lines], f"{name} differs"

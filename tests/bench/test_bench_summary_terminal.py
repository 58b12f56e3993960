"""What `bench` prints: width, order, the answer last."""

import io

from bench_tables import bench_table, decode, whole_batch
from rich.console import Console

from selfspec_cli.bench.summary import summarise
from selfspec_cli.bench.terminal import MAX_BUCKETS, print_bench


def printed(rows, price=None, width=100):
    sink = io.StringIO()
    print_bench(summarise(bench_table(rows), price), Console(file=sink, width=width))
    return [line.rstrip() for line in sink.getvalue().splitlines()]


def many(buckets):
    rows = []
    for b in range(buckets):
        task = {"task": f"a long name of task number {b:02}", "context_min": 512}
        for i in range(3):
            plain = 2.0 + b + i / 10
            rows.append(decode(f"{b}-{i}", seconds=plain, **task))
            for arm, speed in (("plan", 1.25), ("forced", 0.9), ("generate", 0.6),
                               ("prompt_lookup", 0.5), ("early_exit_hf", 0.3)):  # fmt: skip
                more = {"draft_length": 2, **task} if arm in ("plan", "forced") else task
                rows.append(decode(f"{b}-{i}", arm=arm, seconds=plain / speed, **more))
        rows += [whole_batch(**task), whole_batch(arm="plan", seconds=2.0, **task)]
    return rows


def test_a_screen_of_100_columns_with_the_largest_buckets_first():
    lines = printed(many(10), price=3.6)
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 30, f"{len(lines)} lines are no screen"
    tasks = [line for line in lines if line.startswith("a long")]
    assert len(tasks) == MAX_BUCKETS
    assert "... and 2 more in bench.html" in lines
    assert all("1.25x" in line and "0.83x" in line for line in tasks), tasks[0]
    assert "Batch 8: plain 80.0 tokens/s, plan 0.50x." in lines


def test_80_columns_keep_names_numbers_and_slower():
    """The twin is one table whatever the width: it cut the arms' names and the last column."""
    lines = printed(many(3), price=3.6, width=80)
    assert max(map(len, lines)) <= 80
    for name in ("plain", "plan", "forced on", "HF lookup", "HF exit", "HF plain"):
        both = [line for line in lines[: lines.index("")] if line.startswith(f"{name} ")]
        assert len(both) == 2, f"{name}: {both}"
    heads = [line.split() for line in lines if line.startswith(("all buckets", "times", "task"))]
    assert [head[-1] for head in heads] == ["slower", "token", "slower"]
    tasks = [line for line in lines if line.startswith("a long name of ")]
    assert len(tasks) == 3
    assert all("1.25x (1.25-1.25)" in line and line.endswith("0/3") for line in tasks), tasks
    assert "…" not in "".join(lines)
    assert not any(line.startswith("times") for line in printed(many(3), price=3.6))


def test_the_last_line_says_what_the_plan_does():
    text = " ".join(" ".join(printed(many(2))).split())
    assert text.endswith(
        "plan 1.25x (1.25-1.25) of plain decoding over 2 buckets (no verdict); forced on everywhere"
        " 0.90x (0.90-0.90) (no verdict); transformers' prompt lookup 0.83x (0.83-0.83) of its own"
        " generate (no verdict); transformers' early exit 0.50x (0.50-0.50) of its own generate"
        " (no verdict)"
    )


def test_one_request_and_none():
    assert any("n/a" in line for line in printed([decode("a")]))
    assert "no verdict" in printed([])[-1]


def test_a_hostile_label_is_printed_as_text():
    lines = printed([decode("a", task="[red]x[/red]\x1b[31m\n"), decode("b", arm="x\x1by")])
    text = "\n".join(lines)
    assert "\x1b" not in text
    assert "[red]x[/red]" in text

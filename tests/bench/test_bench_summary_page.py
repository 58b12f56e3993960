"""bench.html and its files: what they say, and that no label becomes markup or a formula."""

import re

import pytest
from bench_tables import bench_table, decode, drafted, whole_batch
from page_tree import Tree

from selfspec_cli.bench.figures import LENGTHS, SPEEDUP
from selfspec_cli.bench.markdown import render_markdown
from selfspec_cli.bench.page import render, write_bench
from selfspec_cli.bench.summary import summarise
from selfspec_cli.errors import StorageError
from selfspec_cli.storage import read_table

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7*7 }}"
FORMULA = '=HYPERLINK("x")'


def rows_of(task="chat", *, gain=2.0, n=9, arms=("plan", "forced")):
    rows = []
    for i in range(n):
        plain, name = 2.0 + i / 100, f"{task}-{i}"
        rows.append(decode(name, task=task, seconds=plain))
        for arm in arms:
            taken = {"accepted": (2 + i % 2, 1, 4), "rounds": 7 + i % 2, "exact": True}
            rows.append(drafted(name, task=task, arm=arm, seconds=plain / gain, **taken))
    return rows


@pytest.fixture(scope="module")
def hostile():
    rows = [*rows_of(HOSTILE, gain=0.5), *rows_of(FORMULA), whole_batch(task=HOSTILE)]
    rows += [decode(f"{HOSTILE}-0", task=HOSTILE, arm='"><b> | y', engine="<i>e</i>")]
    return summarise(bench_table(rows), 3.6)


def test_hostile_labels_stay_text(hostile):
    text = render(hostile)
    tree = Tree(text)
    assert tree.open == []
    names = {tag for tag, _ in tree.tags}
    assert names.isdisjoint({"script", "img", "b", "i", "iframe", "object"}), names
    assert [a for _, a in tree.tags if any(key.startswith("on") for key in a)] == []
    assert "<script>alert(1)</script>" in tree.text
    assert "49" not in re.findall(r"onerror=alert\(2\)>(.{0,12})", tree.text)[0]
    ids = [a["id"] for _, a in tree.tags if "id" in a]
    assert len(ids) == len(set(ids))


def test_nothing_is_fetched(hostile):
    text = render(hostile)
    loads = [a.get("src") or a.get("href") or "" for _, a in Tree(text).tags]
    assert [link for link in loads if re.match(r"(https?:)?//", link)] == []
    assert "default-src 'none'" in text
    assert "url(http" not in text
    assert len(text) < 1_000_000, f"{len(text)} bytes"


def test_files_are_named_and_hold_the_numbers(hostile, tmp_path):
    files = write_bench(hostile, tmp_path / "bench")
    assert [str(file.relative_to(tmp_path / "bench")) for file in files] == [
        "bench.html", "bench.md", "bench_summary.csv",
        f"figures_bench/{SPEEDUP}.svg", f"figures_bench/{SPEEDUP}.csv",
        f"figures_bench/{LENGTHS}.svg", f"figures_bench/{LENGTHS}.csv",
        "figures_bench/slower_requests.csv",
    ]  # fmt: skip
    assert all(file.is_file() for file in files)
    sheet = read_table(files[2])
    assert len(sheet) == len(hostile.totals) + len(hostile.lines)
    slow = sheet.loc[(sheet["task"] == HOSTILE) & (sheet["arm"] == "plan")].iloc[0]
    assert (slow["speedup"], slow["num_slower"], slow["verdict"]) == (0.5, 9, "slower")
    assert slow["slower_no_gain_in_its_bucket"] == 9
    data = read_table(files[4])
    assert set(data["task"]) == {"all buckets", HOSTILE, f"'{FORMULA}"}
    lengths = read_table(files[6]).loc[lambda t: t["task"] == HOSTILE]
    assert lengths["share"].sum() == pytest.approx(1.0)


def test_no_cell_of_a_csv_is_a_formula(hostile, tmp_path):
    for file in write_bench(hostile, tmp_path / "bench"):
        if file.suffix == ".csv":
            cells = re.findall(r'(?:^|,)"?([=+@][^,\n]*)', file.read_text(encoding="utf-8"), re.M)
            assert cells == [], f"{file.name}: {cells[:3]}"


def test_markdown_has_every_arm_and_no_markup_of_labels(hostile):
    text = render_markdown(hostile)
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len({line.count(" | ") for line in rows}) == 1, "a label must not add a column"
    assert len(rows) == len(hostile.totals) + len(hostile.lines) + 1 + len(hostile.buckets)
    assert "| plan | 1 | 9 | 2.5 | 0.50x" in text, text[:600]
    assert "| plain decoding | 8 |  | 80.0 | 1 |" in text, "a whole batch has no n, not 0"


def test_the_verdict_is_the_plans_and_comes_first():
    def word(rows):
        text = render(summarise(bench_table(rows), None))
        return re.search(r'data-verdict="([^"]*)"', text)[1]

    assert word(rows_of()) == "Faster"
    assert word(rows_of(gain=0.5)) == "Slower"
    assert word(rows_of(n=3)) == "No verdict"
    assert word([]) == "No verdict"
    off = [decode(f"r{i}", arm=arm) for i in range(9) for arm in ("ar", "plan")]
    assert word(off) == "Speculation off"
    text = render(summarise(bench_table(rows_of()), None))
    assert text.index('id="verdict"') < text.index('id="arms"') < text.index('id="buckets"')


def test_numbers_of_the_page_are_those_of_the_summary():
    tree = Tree(render(summarise(bench_table(rows_of(n=60)), 3.6)))
    plan = [a for tag, a in tree.tags if tag == "tr" and a.get("data-arm") == "plan"]
    assert [float(a["data-speedup"]) for a in plan] == pytest.approx([2.0, 2.0])
    assert "Greedy output equals plain decoding (120 compared)" in tree.text
    assert "n = 60, needs 300" in render(summarise(bench_table(rows_of(n=60)), 3.6))


def test_a_whole_batch_shows_no_count_of_requests():
    """It is timed as one: "n 0" beside 80 tokens/s read as if nothing had been decoded."""
    text = render(summarise(bench_table([*rows_of(), whole_batch()]), None))
    row = re.search(r'<tr class="arm" data-arm="ar" data-batch="8".*?</tr>', text, re.DOTALL)[0]
    assert "<td>8</td><td></td><td></td><td></td><td>80.0</td>" in row, row
    assert "whole batches, which are timed as one and have no n" in text


def test_what_an_earlier_bench_left_is_removed(tmp_path):
    write_bench(summarise(bench_table(rows_of()), None), tmp_path)
    assert (tmp_path / "figures_bench" / f"{LENGTHS}.svg").exists()
    files = write_bench(summarise(bench_table([decode("a")]), None), tmp_path)
    left = {file.name for file in (tmp_path / "figures_bench").iterdir()}
    assert left == {"slower_requests.csv"}
    assert [file.name for file in files] == ["bench.html", "bench.md", "bench_summary.csv", *left]
    assert "nothing to compare" in files[0].read_text(encoding="utf-8")


def test_an_empty_bench_can_be_written(tmp_path):
    assert write_bench(summarise(bench_table([]), None), tmp_path)[0].stat().st_size > 1000


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    with pytest.raises(StorageError, match="cannot be made"):
        write_bench(summarise(bench_table([]), None), tmp_path / "no" / "where")

"""The page stays one small file at the size of a real run, and is built in seconds.

500 requests x 12 exit layers x 8 draft lengths x 4 temperatures. The run is walked and priced by
the real functions; only its requests are a fifth of that here, since the page does not grow with
requests but with rules, of which a page of 2,000 is made too: each request its own bucket at each
temperature, the most that 500 requests can give. `-m slow` builds the whole size.
"""

import os
import re
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import report_runs

from selfspec_cli.report.figure_view import MAP
from selfspec_cli.report.figures import draw
from selfspec_cli.report.page import render_page
from selfspec_cli.report.view import build_view
from selfspec_cli.report.write import write_files

LIMIT = 5_000_000  # bytes of report.html
TASKS = {"code": 0.95, "chat": 0.4, "math": 0.8, "rag": 0.7, "chat_zh": 0.2}
DEGREES = (0.0, 0.5, 0.7, 1.0)
MOST_RULES = 2000
PROGRAM = "from selfspec_cli.cli.app import main; main()"


def big_run(folder, per_task):
    """A run of 12 layers of 16, 8 draft lengths and 4 temperatures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_runs, "DEPTH", 16)
        patch.setattr(report_runs, "LAYERS", tuple(range(4, 16)))
        patch.setattr(report_runs, "LENGTHS", tuple(range(1, 9)))
        return report_runs.make_run(
            folder, TASKS, requests_per_task=per_task, tokens=16, temperatures=DEGREES,
            confirm=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def big_view(tmp_path_factory):
    return build_view(big_run(tmp_path_factory.mktemp("runs") / "big", 20))


def pictures_of(view):
    return {figure.name: draw(figure) for figure in view.figures if not figure.absent}


def check_offline(page):
    """Nothing is loaded from anywhere: no script, no address but relative links and data."""
    assert "<script" not in page
    loads = re.findall(r"""(?:src|href)=["']([^"']+)""", page)
    outside = [link for link in loads if not re.match(r"(data:|#|figures/|rules\.csv|plan)", link)]
    assert outside == [], outside[:5]


def test_a_page_that_loads_something_would_be_seen(big_view):
    page = render_page(big_view, {})
    with pytest.raises(AssertionError, match=r"cdn\.example"):
        check_offline(page.replace("</body>", '<img src="https://cdn.example/x.png"></body>'))


def test_a_page_of_every_cell_is_small(big_view):
    table = big_view.figure(MAP).table
    assert len(table) == 12 * 8 * 4, f"{len(table)} cells"
    page = render_page(big_view, pictures_of(big_view))
    size = len(page.encode())
    assert size < LIMIT / 5, f"{size} bytes for {len(big_view.rules)} rules"
    check_offline(page)


def test_two_thousand_rules_still_fit(big_view):
    """The most buckets of 500 requests, with long labels; twice the rules, no more bytes each."""
    pictures = pictures_of(big_view)
    many = enumerate(big_view.rules * (MOST_RULES // len(big_view.rules)))
    labels = [f"{'a long label ' * 8}{at}" for at in range(MOST_RULES)]
    rows = [replace(row, task=labels[at], label=labels[at]) for at, row in many]
    started = time.process_time()
    whole = len(render_page(replace(big_view, rules=tuple(rows)), pictures).encode())
    seconds = time.process_time() - started
    half = len(render_page(replace(big_view, rules=tuple(rows[::2])), pictures).encode())
    assert whole < LIMIT, f"{whole} bytes for {len(rows)} rules"
    assert whole < 2.2 * half, f"{whole} bytes for {len(rows)} rules, {half} for half of them"
    assert seconds < 20, f"{seconds:.1f} s for {len(rows)} rules"


def test_a_run_twice_as_large_has_a_page_of_the_same_size(big_view, tmp_path):
    """Requests are rows of tables, not of the page."""
    small = build_view(big_run(tmp_path / "half", 10))
    one, two = (len(render_page(view, pictures_of(view))) for view in (small, big_view))
    assert abs(two / one - 1) < 0.1, f"{one} bytes at 50 requests, {two} at 100"


@pytest.mark.slow
def test_the_whole_size_in_its_own_program(tmp_path, repo):
    """500 requests, as a user builds it: under 5 MB, in under a minute, without a network."""
    run = big_run(tmp_path / "run", 100)
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "report", str(run)],
        env={**os.environ, "PYTHONPATH": str(repo)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    seconds = time.monotonic() - started
    assert done.returncode == 0, done.stderr
    page = (run / "report.html").read_text(encoding="utf-8")
    assert len(page.encode()) < LIMIT, f"{len(page.encode())} bytes"
    assert seconds < 60, f"{seconds:.0f} s"
    check_offline(page)
    assert write_files(build_view(run), tmp_path / "again", ("html",)).files

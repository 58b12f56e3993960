"""bench.html in a headless Chromium: nothing to complain of, the verdict without scrolling."""

import pytest
from bench_tables import bench_table, decode, drafted
from report.browser import find_browser, open_page

from selfspec_cli.bench.page import write_bench
from selfspec_cli.bench.summary import summarise

BROWSER = find_browser()
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on PATH")

BOTTOM = "document.querySelector('#verdict p.sentence').getBoundingClientRect().bottom"
WIDTH = "document.documentElement.scrollWidth <= innerWidth"


def test_the_page_opens_in_silence_with_the_verdict_in_view(tmp_path):
    rows = []
    for i in range(9):
        name = {"task": f"<b>{'long label ' * 9}</b>", "seconds": 2.0 + i / 50}
        rows += [decode(f"r{i}", **name)]
        rows += [drafted(f"r{i}", accepted=(2, 1, 4), rounds=7, **{**name, "seconds": 1.0})]
    page = write_bench(summarise(bench_table(rows), 3.6), tmp_path)[0]
    with open_page(BROWSER, page.resolve().as_uri()) as opened:
        assert opened.complaints() == []
        assert [url for url in opened.requests() if not url.startswith(("file:", "data:"))] == []
        assert opened.evaluate(BOTTOM) < 720
        assert opened.evaluate(WIDTH) is True
        assert opened.evaluate("document.querySelectorAll('b').length") == 0

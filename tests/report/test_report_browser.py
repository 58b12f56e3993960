"""The report as a person sees it: opened in a headless Chromium, which must find nothing to say.

Any Chromium on PATH will do (Debian's package `chromium`); it is driven over its own debugging
pipe, so no further package is needed. Without one these tests are skipped. What it saw is kept
under `reports/ci/`, which is not committed.
"""

import base64
import json
import struct
from pathlib import Path

import pytest
from browser import find_browser, open_page

from selfspec_cli.analysis.grid import base_batch
from selfspec_cli.report.figure_view import BATCHES, MAP
from selfspec_cli.storage import read_document, read_table

BROWSER = find_browser()
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on PATH")

IN_WINDOW = """(() => {
  const box = document.querySelector('%s').getBoundingClientRect();
  return {top: box.top, bottom: box.bottom, left: box.left, right: box.right,
          height: innerHeight, width: innerWidth, scrolled: scrollY};
})()"""
CELLS = """[...document.querySelectorAll('#speedup_map td.cell')].map(cell => cell.dataset)
  .map(data => ({...data}))"""
RULES = "[...document.querySelectorAll('tr.rule')].map(row => ({...row.dataset}))"


def url_of(run: Path) -> str:
    return (run / "report.html").resolve().as_uri()


@pytest.fixture(scope="module")
def page(tiny_run):
    with open_page(BROWSER, url_of(tiny_run)) as opened:
        yield opened


def test_console_is_silent_and_nothing_else_is_fetched(page, tiny_run):
    assert page.complaints() == []
    assert page.requests() == [url_of(tiny_run)]


def test_a_page_that_breaks_would_be_heard(tiny_run, tmp_path):
    """The twin: a script and a picture from elsewhere are refused, and both complaints arrive."""
    text = (tiny_run / "report.html").read_text(encoding="utf-8")
    broken = tmp_path / "report.html"
    bad = '<img src="http://127.0.0.1:9/x.png"><script>document.title="owned"</script></body>'
    broken.write_text(text.replace("</body>", bad), encoding="utf-8")
    with open_page(BROWSER, broken.resolve().as_uri()) as opened:
        assert opened.evaluate("document.title") == "selfspec report: tiny"
        assert len(opened.complaints()) >= 2, opened.complaints()


def test_verdict_is_visible_without_scrolling(page):
    for part in (".verdict h1", ".verdict .sentence", ".verdict .tiles", ".verdict .next"):
        box = json.loads(json.dumps(page.evaluate(IN_WINDOW % part)))
        assert box["scrolled"] == 0
        assert 0 <= box["top"] < box["bottom"] <= box["height"] == 720, f"{part}: {box}"
        assert 0 <= box["left"] < box["right"] <= box["width"] == 1280, f"{part}: {box}"


@pytest.fixture(scope="module")
def artefacts(repo):
    """Where a CI job finds pictures."""
    folder = repo / "reports" / "ci"
    folder.mkdir(exist_ok=True)
    return folder


def test_a_laptops_window_shows_the_verdict_and_a_picture_of_it_is_kept(tiny_run, artefacts):
    with open_page(BROWSER, url_of(tiny_run), size=(1280, 800)) as opened:
        box = opened.evaluate(IN_WINDOW % ".verdict .next")
        opened.screenshot(artefacts / "report.png")
        assert opened.complaints() == []
    assert box["bottom"] <= box["height"] == 800, box
    picture = (artefacts / "report.png").read_bytes()
    assert struct.unpack(">II", picture[16:24]) == (1280, 800)
    assert len(picture) > 20_000, f"{len(picture)} bytes: an empty page"


def test_print_is_dark_on_white_and_fits_the_paper(tiny_run, artefacts):
    """A4 landscape without margins is 1032 pixels wide; the reader's own scheme is dark."""
    with open_page(BROWSER, url_of(tiny_run), size=(1032, 700), dark=True) as opened:
        opened.call("Emulation.setEmulatedMedia", media="print",
                    features=[{"name": "prefers-color-scheme", "value": "dark"}])  # fmt: skip
        ink, paper = opened.evaluate(
            "(style => [style.color, style.backgroundColor])(getComputedStyle(document.body))"
        )
        width = opened.evaluate("document.documentElement.scrollWidth")
        hidden = opened.evaluate(
            "[...document.querySelectorAll('details')]"
            ".every(node => getComputedStyle(node).display === 'none')"
        )
        wide = opened.evaluate(
            "[...document.querySelectorAll('table, figure, svg.plot')].filter(node => "
            "node.getBoundingClientRect().right > 1033).map(node => node.className.baseVal ?? "
            "node.className + node.innerText.slice(0, 40))"
        )
        printed = base64.b64decode(opened.call("Page.printToPDF", preferCSSPageSize=True)["data"])
    (artefacts / "report.pdf").write_bytes(printed)
    paper = "rgb(255, 255, 255)" if paper == "rgba(0, 0, 0, 0)" else paper
    assert _luminance(paper) > 0.95, paper
    assert _contrast(ink, paper) >= 7, f"{ink} on {paper}"
    assert width <= 1032, f"{width} pixels"
    assert wide == [], "cut off at the edge of the paper"
    assert hidden, "numbers behind a click are in the CSV, not on paper"
    assert printed.startswith(b"%PDF"), printed[:20]


PAPER = 703  # pixels: A4 landscape is 210 mm high, less two margins of 12 mm
TALL = """(() => { const plot = document.querySelector('#speedup_map svg.plot');
  plot.setAttribute('viewBox', '0 0 400 600'); plot.style.maxWidth = 'none';
  const height = () => document.querySelector('#speedup_map').getBoundingClientRect().height;
  const kept = height(); plot.style.maxHeight = 'none'; return [kept, height()]; })()"""


def test_a_tall_figure_fits_one_sheet_with_its_title_and_caption(tiny_run):
    """A map of 20 exit layers is taller than wide; without the limit it leaves its title behind."""
    with open_page(BROWSER, url_of(tiny_run), size=(1032, 700)) as opened:
        opened.call("Emulation.setEmulatedMedia", media="print")
        kept, twin = opened.evaluate(TALL)
    assert kept <= PAPER < twin, f"{kept:.0f} pixels, {twin:.0f} without the limit, of {PAPER}"


def test_page_is_no_wider_than_the_window(page):
    assert page.evaluate("document.documentElement.scrollWidth") == 1280


def test_one_row_a_rule_equal_to_the_plan(page, tiny_run):
    rows = page.evaluate(RULES)
    plan = read_document(tiny_run / "plan.yaml")
    by_bucket = {
        (rule["task"], rule["context_min"], rule["temperature_min"]): rule for rule in plan["rules"]
    }
    assert len(rows) == len(by_bucket) == 4
    for row in rows:
        rule = by_bucket[row["task"], int(row["contextMin"]), float(row["temperature"])]
        assert float(row["speedup"]) == rule["speedup"]["estimate"]
        assert int(row["exitLayer"]) == rule["drafter"]["exit_layer"]
        assert int(row["draftLength"]) == rule["draft"]["length"]
        assert row["enabled"] == str(rule["enabled"]).lower()


def test_cells_equal_grid_csv(page, tiny_run):
    grid = base_batch(read_table(tiny_run / "grid.csv"))
    keys = ["temperature", "exit_layer", "draft_length"]
    pooled = grid.loc[grid["evidence"] == "all"].set_index(keys)["predicted_speedup"]
    cells = page.evaluate(CELLS)
    assert len(cells) == len(pooled) == 24
    for cell in cells:
        key = (float(cell["temperature"]), int(cell["exitLayer"]), int(cell["draftLength"]))
        assert float(cell["predictedSpeedup"]) == pooled[key], key


def test_figures_are_drawn_with_captions(page, tiny_view):
    boxes = page.evaluate(
        "[...document.querySelectorAll('svg.plot')].map(plot => plot.getBoundingClientRect())"
        ".map(box => [box.width, box.height])"
    )
    assert len(boxes) >= 5
    assert all(width > 300 and height > 150 for width, height in boxes), boxes
    captions = page.evaluate(
        "[...document.querySelectorAll('figcaption')].map(caption => caption.innerText)"
    )
    assert captions[0].startswith(tiny_view.figure(BATCHES).caption)
    assert captions[1].startswith(tiny_view.figure(MAP).caption)


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_on_light_and_on_dark(tiny_run, dark):
    """Contrast of body text, notes and figure text against the paper: at least 4.5 (WCAG AA)."""
    parts = ["body", ".note", ".verdict .sentence", "svg.plot text", ".pill.on", ".pill.off"]
    script = f"""{json.dumps(parts)}.map(part => {{
      const node = document.querySelector(part), style = getComputedStyle(node);
      let back = node;
      while (back && getComputedStyle(back).backgroundColor === 'rgba(0, 0, 0, 0)')
        back = back.parentElement;
      return [part.includes('svg') ? style.fill : style.color,
              getComputedStyle(back ?? document.body).backgroundColor];
    }})"""
    with open_page(BROWSER, url_of(tiny_run), dark=dark) as opened:
        pairs = opened.evaluate(script)
    for part, (ink, paper) in zip(parts, pairs, strict=True):
        found = _contrast(ink, paper)
        assert found >= 4.5, f"{part}: {ink} on {paper} has {found:.2f}"


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_d01_a_hostile_page_stays_ours(hostile_run):
    """D01: title, elements and console as of any other run; labels are shown as they are."""
    with open_page(BROWSER, url_of(hostile_run)) as opened:
        assert opened.evaluate("document.title") == "selfspec report: hostile"
        foreign = "document.querySelectorAll('img, script, svg[onload], [onerror]').length"
        assert opened.evaluate(foreign) == 0
        assert opened.complaints() == []
        assert opened.requests() == [url_of(hostile_run)]
        text = opened.evaluate("document.body.innerText")
    assert "</script><script>document.title='owned'</script>" in text
    assert "{{7*191}} ${7*191}" in text
    assert "1337" not in text

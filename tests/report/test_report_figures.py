"""Pictures: drawn without a display, the same every time, and only where there is data."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace

import pandas as pd
import pytest

from selfspec_cli.report.draw_batches import draw_batches
from selfspec_cli.report.draw_shapes import draw_measured
from selfspec_cli.report.figure_style import inline_svg, standalone_svg
from selfspec_cli.report.figures import NO_PICTURES, draw
from selfspec_cli.report.write import write_files

REPORT = """
import sys
from selfspec_cli.cli.app import _run
sys.exit(_run(sys.argv[1:]))
"""


def run_report(repo, *argv, code=REPORT, drop=(), **environment):
    kept = {key: value for key, value in os.environ.items() if key not in drop}
    return subprocess.run(
        [sys.executable, "-c", code, "report", *map(str, argv)],
        env={**kept, "PYTHONPATH": str(repo), **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_every_figure_is_whole_xml_and_the_same_twice(tiny_view):
    for figure in tiny_view.figures:
        one, two = draw(figure), draw(figure)
        assert one == two, f"{figure.name} differs between two drawings"
        root = ET.fromstring(one.encode())
        assert root.tag.endswith("svg")
        assert "<dc:date>" not in one


def test_pictures_of_one_page_share_no_ids(tiny_view):
    seen = set()
    for figure in tiny_view.figures:
        body = inline_svg(draw(figure), figure.name, figure.alt)
        ids = {node.get("id") for node in ET.fromstring(body).iter() if node.get("id")}
        assert not seen & ids
        seen |= ids


def test_inline_pictures_follow_the_readers_theme(tiny_view):
    body = inline_svg(draw(tiny_view.figure("acceptance_by_layer")), "x", 'say "hi" <now>')
    assert "var(--ink)" in body
    assert "#24292f" not in body
    assert 'aria-label="say &quot;hi&quot; &lt;now&gt;"' in body
    assert 'fill="#ffffff"' in standalone_svg(draw(tiny_view.figure("acceptance_by_layer")))


def test_dollar_signs_and_foreign_letters_in_labels_draw(tiny_view):
    """A label with one dollar sign is a broken formula, and our font lacks Chinese letters."""
    lengths = tiny_view.figure("accepted_lengths")
    for label in ("$x", "a$b$c", "\\frac{", "<b>&", "résumé 中文", "\x1b[31m"):
        picture = draw(replace(lengths, table=lengths.table.assign(task=label)))
        ET.fromstring(picture.encode())
        assert "\x1b" not in picture


def test_single_points_and_missing_intervals_draw(tiny_view):
    """One layer, one length, one temperature, no interval: still a picture, no warning."""
    for figure in tiny_view.figures:
        table = figure.table
        few = table.drop_duplicates("quantity") if "quantity" in table else table.head(1)
        ends = [name for name in few.columns if name.endswith(("low", "high"))]
        bare = few.assign(**dict.fromkeys(ends, float("nan")))
        assert draw(replace(figure, table=bare)), figure.name


def test_an_absent_figure_leaves_no_file_and_one_sentence(own_run, tiny_view):
    figures = tuple(
        replace(figure, table=pd.DataFrame(), absent="There is no data for this.")
        if figure.name == "predicted_measured"
        else figure
        for figure in tiny_view.figures
    )
    write_files(replace(tiny_view, figures=figures), own_run, ["html", "csv"])
    names = {path.name for path in (own_run / "figures").iterdir()}
    assert not [name for name in names if name.startswith("predicted_measured")], names
    page = (own_run / "report.html").read_text(encoding="utf-8")
    assert "There is no data for this." in page
    assert page.count("<figure") == 6


def test_d08_a_window_backend_without_a_display_does_not_matter(repo, own_run):
    """D08: the backend named in the environment is never asked."""
    done = run_report(repo, own_run, "-q", drop=("DISPLAY",), MPLBACKEND="TkAgg")
    assert done.returncode == 0, done.stderr
    assert (own_run / "report.html").read_text(encoding="utf-8").count('class="plot"') == 7


@pytest.mark.parametrize("how", ["missing", "bad backend"])
def test_d08_without_matplotlib_only_pictures_are_lost(repo, own_run, how):
    """D08: a page with all numbers, a notice in it and on stderr."""
    code = "import sys; sys.modules['matplotlib'] = None\n" + REPORT
    (own_run / "figures" / "cost_curves.svg").write_text("old", encoding="utf-8")
    done = (
        run_report(repo, own_run, "-q", code=code)
        if how == "missing"
        else run_report(repo, own_run, "-q", MPLBACKEND="no-such-backend")
    )
    assert done.returncode == 0, done.stderr
    assert NO_PICTURES in done.stderr
    page = (own_run / "report.html").read_text(encoding="utf-8")
    assert NO_PICTURES in page
    assert page.count('class="plot"') == 0
    assert page.count("<figcaption>") == 7
    assert not list((own_run / "figures").glob("*.svg")), "a stale picture stayed"
    assert len(list((own_run / "figures").glob("*.csv"))) == 7


def test_names_of_many_buckets_do_not_cover_their_lines(tiny_view):
    """The legend of six buckets stands beside the axes; a narrow figure would put it inside."""
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    draw_batches(figure, tiny_view.figure("speedup_by_batch").table)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    names, data = axes.get_legend().get_window_extent(), axes.get_window_extent()
    assert names.x0 >= data.x1, f"names from {names.x0:.0f}, axes to {data.x1:.0f}"
    assert names.x1 <= figure.bbox.x1
    assert data.width > 0.5 * figure.bbox.width


def test_bars_of_measured_speedups_are_not_cut():
    from matplotlib.figure import Figure

    row = {"temperature": 0.0, "predicted_speedup": 1.2, "measured_speedup": 1.1}
    ends = {"predicted_speedup_low": 0.7, "predicted_speedup_high": 1.6,
            "measured_speedup_low": 0.8, "measured_speedup_high": 1.5}  # fmt: skip
    figure = Figure()
    draw_measured(figure, pd.DataFrame([{**row, **ends}]))
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    assert low < 0.7, f"axes from {low:.2f}"
    assert high > 1.6, f"axes to {high:.2f}"
    assert axes.get_ylim() == (low, high), "the diagonal must be one"
    bare = Figure()
    draw_measured(bare, pd.DataFrame([row]))
    assert bare.axes[0].get_xlim()[0] == pytest.approx(0.95), "without intervals 1 is still in it"

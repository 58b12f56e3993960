"""What `selfspec bench --only cost` prints: a table a law and context, and what they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from selfspec_cli.cost.alone import CostReport
    from selfspec_cli.cost.summary import ContextCosts, CostSummary

_SHOWN_LENGTHS = 3  # draft lengths a table shows: shortest, middle, longest
_SHOWN_LAYERS = 6  # c and v are straight lines in L between these; --json has all


def print_report(report: CostReport) -> None:
    """Print c(L), v(k+1), o and the floor for each law and context, then what they mean."""
    from selfspec_cli.cost.summary import findings

    console = Console(highlight=False, soft_wrap=True)
    console.print("In plain steps of the same law and context:")
    for summary in report.summaries:
        for at in summary.contexts:
            console.print(cost_table(summary, at))
            console.print(_step(at))
        for sentence in findings(summary):
            console.print(f"- {sentence}")
        console.print()
    blocks = report.rows["block"].nunique()
    console.print(
        f"{blocks} blocks in shuffled order (seed {report.seed}), every second one backwards; "
        f"memory is read at {report.read_bandwidth / 1e9:.1f} GB/s, a plain step reads "
        f"{report.step_bytes / 1e6:.0f} MB of weights"
    )


def cost_table(summary: CostSummary, at: ContextCosts) -> Table:
    """Return one law's costs at one context as a table, in plain steps."""
    shown = spread(len(summary.draft_lengths), _SHOWN_LENGTHS)
    lengths = [summary.draft_lengths[i] for i in shown]
    title = f"{summary.law} law, context {at.context}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("L", "c(L)", "L/N", "c ÷ L/N", *(f"v({k}+1)" for k in lengths)):
        table.add_column(name, justify="right")
    excess = summary.draft_excess(at)
    for row in spread(len(summary.exit_layers), _SHOWN_LAYERS):
        layer = summary.exit_layers[row]
        verify = (f"{at.verify_cost_ratio[row][i]:.2f}" for i in shown)
        share, c = layer / summary.num_layers, at.draft_cost_ratio[row]
        table.add_row(str(layer), f"{c:.3f}", f"{share:.3f}", f"{excess[row]:.2f}", *verify)
    overheads = (f"{at.overhead_ratio[i]:.3f}" for i in shown)
    table.add_section()
    table.add_row("o", "", "", "", *overheads)
    return table


def _step(at: ContextCosts) -> str:
    told = f"plain step at context {at.context}: {at.ar_seconds * 1e3:.2f} ms"
    if at.floor_seconds is None or at.floor_ratio is None:
        return told
    floor = f"{at.floor_ratio:.2f} × the bandwidth floor of {at.floor_seconds * 1e3:.2f} ms"
    return f"{told}, {floor}"


def spread(count: int, shown: int) -> list[int]:
    """Return up to `shown` indices of `count`, first and last included, evenly between."""
    if count <= shown:
        return list(range(count))
    return sorted({round(i * (count - 1) / (shown - 1)) for i in range(shown)})

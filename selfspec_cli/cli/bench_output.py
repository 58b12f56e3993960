"""What `selfspec bench` shows: a table on stdout, progress with its end in sight on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from selfspec_cli.cost.alone import CostReport
    from selfspec_cli.cost.summary import ContextCosts, CostSummary

_SHOWN_LENGTHS = 3  # draft lengths a table shows: shortest, middle, longest
_SHOWN_LAYERS = 6  # c and v are straight lines in L between these; --json has all


class Meter:
    """Progress on stderr: a bar with time left on a terminal, one line a stage elsewhere."""

    def __init__(self, *, quiet: bool) -> None:
        self.console = Console(stderr=True)
        self.quiet = quiet
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeRemainingColumn(),
            console=self.console,
            disable=quiet or not self.console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("timing", total=None)

    def stage(self, name: str) -> None:
        """Say what starts now."""
        if not self.quiet:
            self.console.print(name, highlight=False)

    def update(self, done: int, total: int) -> None:
        """Move the bar to `done` of `total` samples."""
        self._bar.update(self._task, completed=done, total=total)

    def __enter__(self) -> Self:
        """Show the bar."""
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        self._bar.stop()


def print_report(report: CostReport) -> None:
    """Print c(L), v(k+1), o and the floor for each law and context, then what they mean."""
    from selfspec_cli.cost.summary import findings

    console = Console()
    console.print("In plain steps of the same law and context:", highlight=False)
    for summary in report.summaries:
        for at in summary.contexts:
            console.print(cost_table(summary, at))
            console.print(_step(at), highlight=False, soft_wrap=True)
        for sentence in findings(summary):
            console.print(f"- {sentence}", highlight=False, soft_wrap=True)
        console.print()
    console.print(
        f"memory is read at {report.read_bandwidth / 1e9:.1f} GB/s; a plain step reads "
        f"{report.step_bytes / 1e6:.0f} MB of weights",
        highlight=False,
        soft_wrap=True,
    )


def cost_table(summary: CostSummary, at: ContextCosts) -> Table:
    """Return one law's costs at one context as a table, in plain steps."""
    shown = spread(len(summary.draft_lengths), _SHOWN_LENGTHS)
    lengths = [summary.draft_lengths[i] for i in shown]
    table = Table(title=f"{summary.law} law, context {at.context}", title_justify="left")
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

"""What `selfspec bench --only cost` prints: tables by law, context and batch, what they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from selfspec_cli.cost.alone import CostReport
    from selfspec_cli.cost.summary import ContextCosts, CostSummary

_SHOWN_LENGTHS = 3  # draft lengths a table shows: shortest, middle, longest
_BATCH_LAYERS = 2  # exit layers a line of a batch shows: the shallowest and the deepest
_SHOWN_LAYERS = 6  # c and v are straight lines in L between these; --json has all


def print_report(report: CostReport) -> None:
    """Print c(L), v(k+1), o and the floor for each law and context, then what they mean.

    Larger batch sizes follow as one line each below those of the base.
    """
    from selfspec_cli.cost.summary import findings

    console = Console(highlight=False, soft_wrap=True)
    console.print("In plain steps of the same law, context and batch:")
    base, *others = report.batch_sizes
    for summary in report.of_batch(base):
        for at in summary.contexts:
            console.print(cost_table(summary, at))
            console.print(_step(at))
        for sentence in findings(summary):
            console.print(f"- {sentence}")
        console.print()
    if others:
        _print_batches(report, console)
    blocks = report.rows["block"].nunique()
    engines = ", ".join(sorted(report.rows["engine"].unique()))
    console.print(
        f"{engines} engine, {blocks} blocks in shuffled order (seed {report.seed}), every second "
        f"one backwards; memory is read at {report.read_bandwidth / 1e9:.1f} GB/s, a plain step "
        f"reads {report.step_bytes / 1e6:.0f} MB of weights"
    )


def _print_batches(report: CostReport, console: Console) -> None:
    from selfspec_cli.cost.summary import findings

    laws = [summary.law for summary in report.of_batch(report.batch_sizes[0])]
    for law in laws:
        own = [summary for summary in report.summaries if summary.law == law]
        contexts = sorted({at.context for summary in own[1:] for at in summary.contexts})
        for context in contexts:
            console.print(batch_table(own, context))
        for summary in own[1:]:
            for sentence in findings(summary):
                console.print(f"- batch {summary.batch}: {sentence}")
        console.print()


def batch_table(summaries: list[CostSummary], context: int) -> Table:
    """Return one law's costs at one context, a row for each batch size timed there.

    Args:
        summaries: of the same law, by batch size.
        context: tokens in the cache.
    """
    first = summaries[0]
    layers = spread(len(first.exit_layers), _BATCH_LAYERS)
    lengths = spread(len(first.draft_lengths), _SHOWN_LENGTHS)
    middle_layer, middle_length = len(first.exit_layers) // 2, len(first.draft_lengths) // 2
    deep, long = first.exit_layers[middle_layer], first.draft_lengths[middle_length]
    table = Table(
        title=f"{first.law} law, context {context}, by batch (v at L = {deep}, o at k = {long})",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    c = (f"c({first.exit_layers[i]})" for i in layers)
    v = (f"v({first.draft_lengths[i]}+1)" for i in lengths)
    for name in ("batch", "step, ms", "tokens/s", *c, *v, "o"):
        table.add_column(name, justify="right")
    for summary in summaries:
        for at in summary.contexts:
            if at.context == context:
                table.add_row(
                    str(summary.batch),
                    f"{at.ar_seconds * 1e3:.2f}",
                    f"{at.tokens_per_s:.1f}",
                    *(f"{at.draft_cost_ratio[i]:.3f}" for i in layers),
                    *(f"{at.verify_cost_ratio[middle_layer][i]:.2f}" for i in lengths),
                    f"{at.overhead_ratio[middle_length]:.3f}",
                )
    return table


def cost_table(summary: CostSummary, at: ContextCosts) -> Table:
    """Return one law's costs at one context as a table, in plain steps."""
    shown = spread(len(summary.draft_lengths), _SHOWN_LENGTHS)
    lengths = [summary.draft_lengths[i] for i in shown]
    rows = f", {summary.batch} rows" if summary.batch > 1 else ""
    title = f"{summary.law} law, context {at.context}{rows}"
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

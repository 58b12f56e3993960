"""The view model: built once from a run's files, shown by every page alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from selfspec_cli.analysis.confirmation import median_and_worst_error, regrets, summarise_confirm
from selfspec_cli.plan.batch_text import batches_sentence
from selfspec_cli.plan.document import PlanDocument
from selfspec_cli.plan.document_origin import OWN_COSTS
from selfspec_cli.report import figure_view as views
from selfspec_cli.report.decoded_batches import DecodedBatch, decoded_batches
from selfspec_cli.report.evidence import gather, pooled_grid
from selfspec_cli.report.facts import InputFacts, input_facts, provenance
from selfspec_cli.report.figure_data import acceptance, rule_lengths
from selfspec_cli.report.figure_view import FigureView, make_figures
from selfspec_cli.report.finding_types import Finding
from selfspec_cli.report.findings import find
from selfspec_cli.report.format import plural
from selfspec_cli.report.rule_rows import RuleRow, rule_rows
from selfspec_cli.report.tables import read_run
from selfspec_cli.report.takes import Take, takes
from selfspec_cli.report.verdict import Verdict, make_verdict, next_command


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What real decoding said of the predictions."""

    num_cells: int
    median_error: float
    worst_error: float
    """Largest |predicted ÷ measured - 1|."""
    greedy_decodes: int
    greedy_equal: int
    greedy_ties: int
    """Decodes that differ only where the two best logits tie."""
    law_positions: int
    """Positions at which sampled drafts were held against the model's law; 0: none."""
    law_passed: bool | None
    law_false_alarm: float | None
    """Chance that a lossless run fails that test."""
    regret: float | None
    """Largest share of time a chosen cell loses to a better one measured; None: none beside it."""

    @property
    def exactness(self) -> str:
        """What was proved about the output, in one clause."""
        if not self.greedy_decodes:
            greedy = "no greedy decode to compare"
        elif self.greedy_equal == self.greedy_decodes:
            greedy = f"all {plural(self.greedy_decodes, 'greedy decode')} equal plain decoding"
        else:
            decodes = plural(self.greedy_decodes, "greedy decode")
            ties = plural(self.greedy_ties, "numeric tie")
            greedy = f"{self.greedy_equal} of {decodes} equal plain decoding, {ties}"
        if self.law_passed is None:
            return f"{greedy}; no sampled law to test"
        held = "follow" if self.law_passed else "DO NOT follow"
        return (
            f"{greedy}; accepted and replaced drafts {held} the model's law at "
            f"{plural(self.law_positions, 'position')} (chi-square, false alarm "
            f"{self.law_false_alarm:.0e})"
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReportView:
    """Everything a report shows; nothing here is computed by a page."""

    path: Path
    name: str
    """Name of the run's folder."""
    plan: PlanDocument
    verdict: Verdict
    rules: tuple[RuleRow, ...]
    takes: tuple[Take, ...]
    grid: pd.DataFrame
    """Rows of grid.csv that pool a temperature, computed again from the walk."""
    figures: tuple[FigureView, ...]
    findings: tuple[Finding, ...]
    inputs: InputFacts
    confirmation: Confirmation | None
    decoded_batches: tuple[DecodedBatch, ...]
    provenance: tuple[tuple[str, str], ...]
    next_command: str
    """As the verdict's, with the run's path as it was given: to be typed right here."""
    foreign_costs: bool
    """The plan was priced with another machine's costs than the figures."""

    @property
    def batches(self) -> str:
        """What batch size does to the plan, in one sentence."""
        told = batches_sentence(self.plan)
        return f"{told[0].upper()}{told[1:]}."

    @property
    def ceiling_note(self) -> str:
        """The oracle gap and the textbook's discount, in sentences."""
        return (
            f"With every request at its own best cell, or off, {self.verdict.ceiling} of the "
            f"decode time could be saved; this plan saves {self.verdict.saved_share}. The formula "
            "counts layers only (c = L/N, v = 1), and a popular rule keeps 80 % of it; speedup ÷ "
            "formula is what was left here."
        )

    def figure(self, name: str) -> FigureView:
        """Return a figure by its name.

        Raises:
            KeyError: unknown name.
        """
        found = {figure.name: figure for figure in self.figures}
        return found[name]


def build_view(path: Path) -> ReportView:
    """Build the view of a run from its files alone: no model, no torch.

    Args:
        path: the run directory.

    Raises:
        RunDirError: `path` holds no run.
        StorageError: plan.yaml is missing, or a file is torn or of another schema.
        PlanError: plan.yaml is no plan of this version.
    """
    tables = read_run(path)
    plan = tables.plan
    name = path.resolve().name
    grid = pooled_grid(tables)
    lengths = rule_lengths(tables)
    figures = make_figures(tables, grid, acceptance(tables), lengths)
    return ReportView(
        path=path,
        name=name,
        plan=plan,
        verdict=make_verdict(plan, tables.manifest, name),
        rules=rule_rows(plan.rules),
        takes=takes(plan),
        grid=grid,
        figures=figures,
        findings=find(gather(tables, _frames(figures, grid), lengths)),
        inputs=input_facts(tables),
        confirmation=_confirmation(tables.confirm, tables.stage("confirm")),
        decoded_batches=decoded_batches(tables.confirm_batch),
        provenance=provenance(tables),
        next_command=next_command(plan, tables.manifest, str(path)),
        foreign_costs=plan.measured_on.costs.source != OWN_COSTS,
    )


def _frames(figures: Sequence[FigureView], grid: pd.DataFrame) -> dict[str, pd.DataFrame]:
    tables = {figure.name: figure.table for figure in figures}
    return {"by_layer": tables[views.LAYERS], "measured": tables[views.MEASURED], "grid": grid}


def _confirmation(confirm: pd.DataFrame | None, stage: Mapping[str, Any]) -> Confirmation | None:
    if confirm is None or confirm.empty:
        return None
    summary = summarise_confirm(confirm)
    median, worst = median_and_worst_error(summary)
    greedy = confirm.loc[confirm["temperature"] == 0.0]
    law, lost = stage.get("exactness", {}), regrets(confirm)["regret"].dropna()
    return Confirmation(
        num_cells=len(summary),
        median_error=median,
        worst_error=worst,
        greedy_decodes=len(greedy),
        greedy_equal=int(greedy["exact"].eq(True).sum()),
        greedy_ties=int(greedy["is_tie"].eq(True).sum()),
        law_positions=int(law.get("positions", 0)),
        law_passed=law.get("passed"),
        law_false_alarm=law.get("false_alarm"),
        regret=float(lost.max()) if len(lost) else None,
    )

"""Write the tables of measured numbers in README.md from the committed result files.

usage: python tests/benchmarks/readme_numbers.py            rewrite README.md
       python tests/benchmarks/readme_numbers.py --check    exit 1 if README.md differs

The result files under tests/benchmarks/results/ come from `evidence.sh` (real runs, an hour), the
scripts named in README.md and `coverage_table.py` (simulation, a minute); nothing in the tables is
typed by hand.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from speed_tables import early_exit_table, growth_table, step_speed_table

HERE = Path(__file__).resolve().parent
README = HERE.parent.parent / "README.md"
RESULTS = HERE / "results"
BLOCK = re.compile(
    r"(?P<head><!-- numbers: (?P<name>[a-z_]+) -->\n).*?(?P<tail><!-- end -->)", re.S
)


def filled(text: str, results: Path = RESULTS) -> str:
    """README text with every block rendered from its result file.

    Raises:
        SystemExit: a block names a table or a result file that does not exist.
    """

    def render(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in TABLES:
            raise SystemExit(f"README.md asks for numbers: {name}; known: {', '.join(TABLES)}")
        file, table = TABLES[name]
        text = (results / file).read_text(encoding="utf-8")
        document = json.loads(text) if file.endswith(".json") else text
        return match["head"] + table(document) + match["tail"]

    return BLOCK.sub(render, text)


def evidence_table(document: Mapping[str, Any]) -> str:
    """One column a run: what the plan says, and how predictions compare with measurements."""
    runs = document["runs"]
    rows: Sequence[tuple[str, Callable[[Mapping[str, Any]], str]]] = (
        ("engine", lambda r: r["engine"]),
        ("requests, paths", lambda r: f"{r['num_requests']}, {r['num_paths']}"),
        ("cells priced, decodes to rank them", lambda r: f"{r['cells']}, 0"),
        ("tested acceptance at L = 15, k = 1", lambda r: number(r["acceptance_at_15"])),
        ("needed there to break even, largest bucket", lambda r: number(r["needed_at_15"])),
        ("left of the textbook's speedup, its best cell", lambda r: number(r["textbook_left"])),
        ("verdict", lambda r: r["verdict"]),
        ("rules on", lambda r: f"{r['enabled']} of {r['rules']}"),
        ("rules by evidence", lambda r: counts(r["by_evidence"])),
        ("exit layers of rules that are on", lambda r: listed(r["enabled_layers"])),
        ("decode time on this log", lambda r: change(r["decode_time_change"])),
        ("cells decoded for real", lambda r: str(r["confirmed_cells"])),
        ("predicted ÷ measured - 1, median", lambda r: percent(r["median_error"])),
        ("worst", lambda r: percent(r["worst_error"])),
        ("greedy decodes equal", lambda r: f"{r['greedy_equal']} of {r['greedy_decodes']}"),
        ("cost model error", lambda r: by_law(r["cost_error"])),
    )  # fmt: skip
    head = "| | " + " | ".join(run["label"] for run in runs) + " |"
    lines = [f"| {name} | " + " | ".join(tell(run) for run in runs) + " |" for name, tell in rows]
    return "\n".join([head, "|---" * (len(runs) + 1) + "|", *lines]) + "\n"


def predicted_table(document: Mapping[str, Any]) -> str:
    """Every cell decoded for real in every run."""
    lines = ["| run | bucket | L | k | predicted | measured | error |", "|---" * 7 + "|"]
    for run in document["runs"]:
        lines += [
            f"| {run['label']} | {cell['bucket']} | {cell['exit_layer']} | {cell['draft_length']} "
            f"| {cell['predicted']:.3f} | {interval(cell['measured'])} | {cell['error']:+.1%} |"
            for cell in run["confirmed"]
        ]
    return "\n".join(lines) + "\n"


def cost_table(document: Mapping[str, Any]) -> str:
    """What the textbook takes for granted, measured; a twin's costs are the demo model's."""
    lines = [
        "| run | L | L/N | c | v at k = 4 | plain step ÷ bandwidth floor |",
        "|---" * 6 + "|",
    ]
    for run in (one for one in document["runs"] if one["label"].startswith("demo")):
        lines += [
            f"| {run['label']} | {c['exit_layer']} | {c['share']:.2f} | {c['c']:.2f} "
            f"| {c['v4']:.2f} | {number(run['floor_ratio'])} |"
            for c in run["costs"]
        ]
    return "\n".join(lines) + "\n"


def coverage_table(document: Mapping[str, Any]) -> str:
    """Coverage of the evidence interval, false enabling; see coverage_table.py."""
    lines = [
        "| groups of requests | worth equal ones | output lengths | interval holds the truth "
        "| enabled at the threshold | enabled by the best lower bound in sample |",
        "|---" * 6 + "|",
    ]
    lines += [
        f"| {row['n']} | {row['effective']:.0f} | {row['lengths']} | {row['coverage']:.1%} "
        f"| {row['enabled']:.1%} | {row['enabled_naive']:.1%} |"
        for row in document["rows"]
    ]
    return "\n".join(lines) + "\n"


def printed(summary: str) -> str:
    """What the example run printed, as a block."""
    return f"```\n{summary.strip()}\n```\n"


def batch_table(document: Mapping[str, Any]) -> str:
    """One rule at each batch size: predicted for both ways of running a batch, and decoded."""
    lines = [
        "| run, rule | batch | plain tokens/s | continuous refill (95 %) | static "
        "| time lost waiting in static | best L, k "
        "| decoded for real: schedule, predicted, measured, error |",
        "|---" * 8 + "|",
    ]
    for run in document["runs"]:
        for row in run["batches"]:
            best = ", ".join(map(str, row["best"] or ())) or "n/a"
            lines.append(
                f"| {run['label']}, {row['rule']} | {row['batch_size']} "
                f"| {number(row['plain_tokens_per_s'], 0)} | {interval(row['refill'])} "
                f"| {number(row['static'])} | {percent(row['waiting_share'])} | {best} "
                f"| {decoded(run['batches_decoded'], row['batch_size'])} |"
            )
    return "\n".join(lines) + "\n"


def decoded(rows: Sequence[Mapping[str, Any]], batch_size: int) -> str:
    """Real batches of one size: `refill 1.05, 1.03, +1.9%`."""
    own = [row for row in rows if row["batch_size"] == batch_size and row["error"] is not None]
    return "; ".join(
        f"{row['schedule']} L={row['exit_layer']}, k={row['draft_length']}: "
        f"{number(row['predicted_speedup'])}, {number(row['measured_speedup'])}, "
        f"{row['error']:+.1%}"
        for row in own
    )


def ranking_table(document: Mapping[str, Any]) -> str:
    """Ranking by observation against decoding every cell, and what the choice then loses."""
    time = document["time"]
    lines = [
        "| temperature | chosen L, k | measured | best by measurement | measured | regret "
        "| time ratio of the two, paired (95 %) |",
        "|---" * 7 + "|",
    ]
    for row in document["regret"]:
        ratio = row["to_best_again"]
        lines.append(
            f"| {row['temperature']:g} | {row['chosen'][0]}, {row['chosen'][1]} "
            f"| {row['chosen_again']:.2f} | {row['best_again'][0]}, {row['best_again'][1]} "
            f"| {row['best_again'][2]:.2f} | {percent(row['regret'])} "
            f"| {ratio['seconds_ratio']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f}) |"
        )
    told = (
        f"Decoding all {document['cells']} cells of {document['requests']} requests took "
        f"{time['every_cell_s']:.0f} s; ranking them by observation "
        f"{time['regenerated']['ratio_with_walk']:.0f} times less with regenerated text and "
        f"{time['recorded']['ratio_with_walk']:.0f} times less with recorded text."
    )
    return "\n".join(lines) + f"\n\n{told}\n"


def predictions_table(document: Mapping[str, Any]) -> str:
    """Errors of the cells of `predictions.py`, all together and in groups."""
    groups = [("all", document["all"])]
    groups += [
        (f"{name} {value}" if name != "schedule" else value, one)
        for key, name in (("model", "twin"), ("batch_size", "batch"), ("schedule", "schedule"),
                          ("temperature", "T ="))
        for value, one in document["by"][key].items()
    ]  # fmt: skip
    lines = [
        "| cells | number | median error | worst | mean, signed "
        "| rounds that happened, priced: median error | worst |",
        "|---" * 7 + "|",
    ]
    lines += [
        f"| {name} | {one['cells']} | {percent(one['median_error'])} "
        f"| {percent(one['worst_error'])} | {one['mean_signed_error']:+.1%} "
        f"| {percent(one['median_cost_error'])} | {percent(one['worst_cost_error'])} |"
        for name, one in groups
    ]
    return "\n".join(lines) + "\n"


def number(value: float | None, digits: int = 2) -> str:
    """Two digits, or n/a."""
    return "n/a" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """One digit of a percent, or n/a."""
    return "n/a" if value is None else f"{value:.1%}"


def interval(value: Mapping[str, float | None]) -> str:
    """`1.08 (1.05-1.11)`."""
    if value["estimate"] is None:
        return "n/a"
    if value["low"] is None:
        return f"{value['estimate']:.3f}"
    return f"{value['estimate']:.3f} ({value['low']:.2f}-{value['high']:.2f})"


def change(value: Mapping[str, float | None]) -> str:
    """`-12 % (-15 to -8)`; a plan that is off everywhere changes nothing."""
    if value["estimate"] is None:
        return "n/a"
    if value["estimate"] == 0:
        return "unchanged"
    if value["low"] is None:
        return f"{value['estimate']:+.1%}"
    return f"{value['estimate']:+.1%} ({value['low']:+.1%} to {value['high']:+.1%})"


def by_law(errors: Mapping[str, float | None]) -> str:
    """`greedy 1.5%, sampled 0.9%`."""
    return listed(f"{law} {percent(error)}" for law, error in errors.items())


def counts(values: Mapping[str, int]) -> str:
    """`own 6, parent 20`."""
    return ", ".join(f"{name} {n}" for name, n in values.items() if n) or "none"


def listed(values: Any) -> str:
    """Values with commas, or a dash."""
    return ", ".join(map(str, values)) or "-"


TABLES: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "summary": ("summary.txt", printed),
    "evidence": ("evidence.json", evidence_table),
    "predicted": ("evidence.json", predicted_table),
    "costs": ("evidence.json", cost_table),
    "batch": ("evidence.json", batch_table),
    "coverage": ("coverage.json", coverage_table),
    "step_speed": ("step_speed.json", step_speed_table),
    "early_exit": ("early_exit_rival.json", early_exit_table),
    "ranking": ("ranking.json", ranking_table),
    "predictions": ("predictions.json", predictions_table),
    "growth": ("growth.json", growth_table),
}


def main(arguments: Sequence[str]) -> int:
    """Rewrite or check README.md."""
    text = README.read_text(encoding="utf-8")
    wanted = filled(text)
    if "--check" in arguments:
        if text != wanted:
            print("README.md differs from tests/benchmarks/results; run: make numbers")
        return int(text != wanted)
    README.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

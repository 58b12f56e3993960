"""Print, as Markdown, how honest the evidence interval is when nothing is worth enabling.

Every cell of every simulated bucket has a true speedup of exactly 1 + margin, so each enabled
bucket is a mistake. The last column is the usual way: choose the cell with the best lower bound,
and believe that bound.

usage: python tests/benchmarks/coverage_table.py [--json OUT] [--buckets N]
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simulated_buckets import simulate_bucket

from selfspec_cli.analysis.evidence import cross_fit
from selfspec_cli.analysis.intervals import jackknife_ratios

MARGIN = 0.05
SCENARIOS = (
    *(("bounded", n, 0.0, 0.0) for n in (12, 20, 50, 100)),
    *(("lognormal", n, 0.0, 0.0) for n in (12, 20, 50, 100)),
    *(("Pareto", n, 0.0, 0.0) for n in (20, 50)),
    ("bounded", 50, 0.02, 0.95),
    ("bounded", 50, 0.02, 0.0),
)
"""Output lengths, groups, log standard error of costs, its correlation between cells."""
NAMES = {
    "bounded": "32 to 128 tokens",
    "lognormal": "lognormal, σ = 1",
    "Pareto": "Pareto 1.5, no variance",
}


def measure(scenario, buckets):
    """One row of the table as a record of plain numbers."""
    lengths, groups, cost_sd, cost_rho = scenario
    rng = np.random.default_rng([groups, round(1000 * cost_sd), round(100 * cost_rho)])
    truth = 1.0 + MARGIN
    marks = []
    for _ in range(buckets):
        times = simulate_bucket(rng, groups, truth, lengths, cost_sd=cost_sd, cost_rho=cost_rho)
        evidence = cross_fit(times)
        low, high = evidence.interval.low, evidence.interval.high
        # Thin evidence is not refused here, so that nothing but luck decides.
        same = jackknife_ratios(times.ar[:, None], times.seconds, extra_log_sd=times.cost_log_sd)
        marks.append(
            (evidence.effective_groups, low <= truth <= high, low >= truth, same.low.max() >= truth)
        )
    effective, covered, enabled, naive = np.mean(marks, axis=0)
    costs = f"; costs off by {cost_sd:.0%}, ρ = {cost_rho:g} between cells" if cost_sd else ""
    return {
        "n": groups,
        "effective": round(float(effective), 1),
        "lengths": NAMES[lengths] + costs,
        "coverage": round(float(covered), 4),
        "enabled": round(float(enabled), 4),
        "enabled_naive": round(float(naive), 4),
    }


def markdown(rows):
    """The table for people."""
    lines = [
        "| groups | effective | output lengths | 95 % interval holds the truth | enabled, "
        "cross-fitted | enabled, best lower bound on the same requests |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['n']} | {row['effective']:.0f} | {row['lengths']} | {row['coverage']:.1%} "
        f"| {row['enabled']:.1%} | {row['enabled_naive']:.1%} |"
        for row in rows
    ]
    return "\n".join(lines)


def main(arguments=None):
    parser = argparse.ArgumentParser(description="coverage of the evidence interval")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--buckets", type=int, default=800, help="simulated buckets a row")
    options = parser.parse_args(arguments)
    rows = [measure(scenario, options.buckets) for scenario in SCENARIOS]
    if options.json is not None:
        document = {"buckets": options.buckets, "true_speedup": 1.0 + MARGIN, "rows": rows}
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        options.json.write_text(text, encoding="utf-8")
    print(markdown(rows))


if __name__ == "__main__":
    main()

"""How often a gate fails a run that differs from its baseline by noise alone.

usage: python tests/benchmarks/gate_repeats.py [--repeats 10] [--quick]   (half a minute a repeat)

The same small random model and the same requests are calibrated again and again, each into a run of
its own; nothing changes but the machine. Each run after the first is held against the one before it
(`gate --baseline`) with the default rules, and every comparison that fails is a false alarm. The
late half of the layers is damped, so that drafts are accepted and rules are on.
"""

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peers import RESULTS, ROOT, record

sys.path.insert(0, str(ROOT / "tests"))

from checkpoints import random_model, run_cli, save_checkpoint, trace_rows, write_trace

from selfspec_cli.gate.rules_file import load_rules
from selfspec_cli.gate.run_gate import GateOptions, run_gate

COMPARED = (
    "baseline speedup", "baseline acceptance", "speedup", "measured_speedup", "slow_share",
    "request_p99",
)  # fmt: skip
"""Checks that share the family-wise false-alarm rate; the others have limits of their own."""
DAMPING = 0.01
CONFIG = """\
temperatures: [0, 0.7]
confirm: {cells: 4, requests: 6, min_tokens: 8}
"""


def calibrate_all(folder: Path, repeats: int, *, requests: int, tokens: int) -> list[Path]:
    """Calibrate one model and trace `repeats` times; returns the run directories."""
    model = random_model(
        "llama", hidden_size=128, intermediate_size=384, num_attention_heads=4,
        num_key_value_heads=2, num_hidden_layers=8, vocab_size=2048, gain=6.0,
    )  # fmt: skip
    for layer in model.model.layers[4:]:
        layer.self_attn.o_proj.weight.mul_(DAMPING)
        layer.mlp.down_proj.weight.mul_(DAMPING)
    save_checkpoint(model, folder / "model")
    write_trace(folder / "trace.jsonl", trace_rows(requests, max_tokens=tokens))
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    runs = []
    for at in range(repeats):
        out = folder / f"run-{at}"
        argv = ("-m", folder / "model", "-t", folder / "trace.jsonl", "-o", out)
        code = run_cli("calibrate", *argv, "-c", folder / "config.yaml", "-q")
        if code not in (0, 3):
            raise SystemExit(f"repeat {at} ended with exit code {code}")
        runs.append(out)
    return runs


def judge(runs: Sequence[Path]) -> list[dict[str, Any]]:
    """Hold every run after the first against the one before; one row a pair."""
    rules, rows = load_rules("gate"), []
    for base, new in itertools.pairwise(runs):
        report = run_gate(new, rules, GateOptions(baseline=base))
        judged = [c for c in report.checks if c.name in COMPARED]
        rows.append(
            {
                "judged": len(judged),
                "failed": [f"{c.name} {c.subject}: {c.text}" for c in judged if c.fails],
                "undecided": sum(c.outcome == "no_verdict" for c in judged),
                "speedup": [
                    [c.value, c.low, c.high]
                    for c in judged
                    if c.name == "baseline speedup" and not c.subject
                ],
            }
        )
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Run, print a line a pair, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=10, help="runs after the first")
    parser.add_argument("--quick", action="store_true", help="2 repeats of few requests")
    parser.add_argument("--json", type=Path, default=RESULTS / "gate_repeats.json")
    asked = parser.parse_args(argv)
    repeats, requests, tokens = (2, 6, 12) if asked.quick else (asked.repeats, 44, 32)
    with tempfile.TemporaryDirectory() as folder:
        runs = calibrate_all(Path(folder), repeats + 1, requests=requests, tokens=tokens)
        rows = judge(runs)
    failures = sum(bool(row["failed"]) for row in rows)
    for at, row in enumerate(rows, 1):
        print(f"repeat {at}: {row['judged']} judged, {len(row['failed'])} failed, "
              f"{row['undecided']} undecided {json.dumps(row['speedup'])}")  # fmt: skip
    print(f"{failures} of {len(rows)} repeats failed")
    section = {"pairs": rows, "failures": failures, "quick": asked.quick}
    record(asked.json, None, {"repeats": section})


if __name__ == "__main__":
    main()

"""The table of the README: what the script prints is what it writes."""

import json
import os
import subprocess
import sys


def test_table_and_numbers_agree(repo, tmp_path):
    """Run by its command line, with few buckets."""
    out = tmp_path / "coverage.json"
    script = str(repo / "tests" / "benchmarks" / "coverage_table.py")
    done = subprocess.run(
        [sys.executable, script, "--buckets", "4", "--json", str(out)],
        check=False, capture_output=True, text=True, encoding="utf-8", timeout=120,
        env={**os.environ, "PYTHONPATH": str(repo), "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["buckets"] == 4
    lines = done.stdout.splitlines()[2:]
    assert len(lines) == len(document["rows"]) >= 8, done.stdout
    for line, row in zip(lines, document["rows"], strict=True):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        shares = [f"{row[name]:.1%}" for name in ("coverage", "enabled", "enabled_naive")]
        assert cells[0] == str(row["n"]), line
        assert cells[3:] == shares, line
        assert row["coverage"] * 4 in range(5), row  # a share of 4 buckets

"""Observation holds states and laws of a short stretch only, however long the output is."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_peak_memory_does_not_grow_with_the_output(repo):
    """8 times the tokens, under 5 % more memory; a twin that keeps all laws exceeds 5 %."""
    paths = os.pathsep.join(map(str, (repo, HERE.parent, HERE)))
    done = subprocess.run(
        [sys.executable, str(HERE / "memory_probe.py")],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    peaks = json.loads(done.stdout.splitlines()[-1])
    growth = peaks["many"] / peaks["few"] - 1
    assert growth < 0.05, f"peak memory grew by {growth:.1%}: {peaks}"
    twin = peaks["twin"] / peaks["few"] - 1
    assert twin > 0.05, f"keeping {peaks['kept']} laws shows as {twin:.1%} only: {peaks}"

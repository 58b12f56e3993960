"""Ctrl-C and SIGTERM: only a calibration is told to go on, since nothing else can."""

import os
import signal
import subprocess
import sys

import pytest

STOPPED = """
import os, signal, sys
import selfspec_cli.storage as storage
from selfspec_cli.cli.app import main
import selfspec_cli.config as config

def stop(*_, **__):
    os.kill(os.getpid(), {number})
    raise AssertionError("the signal did not arrive")

storage.RunDir.load = stop
config.load_config = stop
main(sys.argv[1:])
"""
GOES_ON, WITHOUT_FRESH = "the same command goes on from here", "without --fresh goes on from here"
ANEW = "the same command begins anew"


def stopped(repo, argv, number):
    """The program, to which `number` is sent as soon as it reads a run or its configuration."""
    done = subprocess.run(
        [sys.executable, "-c", STOPPED.format(number=int(number)), *argv],
        env={**os.environ, "PYTHONPATH": str(repo), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr.strip()


@pytest.mark.parametrize(
    ("argv", "number", "told"),
    [
        (["calibrate", "-m", "demo", "-t", "sample", "-o", "run"], signal.SIGINT, GOES_ON),
        (["calibrate", "-o", "run", "--fresh"], signal.SIGTERM, WITHOUT_FRESH),
        (["calibrate", "-o", "run", "--dry-run"], signal.SIGINT, ANEW),
        (["plan", "calibrate"], signal.SIGINT, ANEW),
        (["gate", "run"], signal.SIGTERM, ANEW),
        (["doctor", "run"], signal.SIGINT, ANEW),
    ],
)
def test_only_what_resumes_is_told_to_go_on(repo, argv, number, told):
    code, stderr = stopped(repo, argv, number)
    assert code == 128 + number, stderr
    word = "interrupted" if number == signal.SIGINT else "terminated"
    assert stderr.startswith(f"{word}; "), stderr
    assert stderr.endswith(told), stderr
    assert "Traceback" not in stderr

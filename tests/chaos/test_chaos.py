"""A few rounds of chaos, whose seeds make much happen in little time."""

import os
import pathlib
import subprocess
import sys

import pytest

CHAOS = pathlib.Path(__file__).resolve().parent / "chaos"
LIMIT = 1300  # seconds; the rounds have limits of their own


@pytest.mark.parametrize("seed", [1013, 1019, 1022])
def test_whatever_is_killed_the_job_ends_well_and_nothing_is_left(seed):
    muster = os.environ.get("MUSTER", str(CHAOS.parents[2] / "build" / "muster"))
    run = subprocess.run([sys.executable, CHAOS, "--rounds", "1", "--seed", str(seed), "--muster", muster],
                         capture_output=True, text=True, timeout=LIMIT)
    assert run.returncode == 0, run.stdout + run.stderr

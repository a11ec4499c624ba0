"""A few rounds of chaos, whose seeds make much happen in little time."""

import os
import pathlib
import subprocess
import sys

import pytest

CHAOS = pathlib.Path(__file__).resolve().parent / "chaos"
LIMIT = 1300  # seconds; the rounds have limits of their own


@pytest.mark.parametrize("seed, engine", [(1013, "off"), (1019, "off"), (1022, "off"), (5002, "on"), (5003, "on")])
def test_whatever_is_killed_the_job_ends_well_and_nothing_is_left(seed, engine):
    muster = os.environ.get("MUSTER", str(CHAOS.parents[2] / "build" / "muster"))
    run = subprocess.run([sys.executable, CHAOS, "--rounds", "1", "--seed", str(seed), "--engine", engine,
                          "--muster", muster], capture_output=True, text=True, timeout=LIMIT)
    assert run.returncode == 0, run.stdout + run.stderr

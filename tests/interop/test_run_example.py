"""A link named torchrun, first in PATH, and a script that was written for the original."""

import os
import re
import subprocess

import pytest

import harness
from rdzv_nodes import VERSIONS
from run_nodes import RUN_LIMIT, WORKERS


@pytest.mark.parametrize("which", VERSIONS)
def test_a_link_in_the_path_runs_an_ordinary_script(tmp_path, torch, which):
    harness.need_program()
    torch(which)  # skips where it is absent
    links = tmp_path / "bin"
    links.mkdir()
    (links / "torchrun").symlink_to(harness.program())
    python = os.path.dirname(harness.interpreter(which))
    environment = {**harness.quiet_environment(), "PATH": os.pathsep.join([str(links), python, os.environ["PATH"]])}
    losses = []
    for epochs in (2, 4):  # the second goes on where the first stopped
        words = ["torchrun", "--standalone", "--nproc_per_node=2", WORKERS / "example.py", str(epochs), "1", "--batch-size", "32"]
        done = subprocess.run(words, cwd=tmp_path, env=environment, timeout=2 * RUN_LIMIT, check=False,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        losses += [float(loss) for loss in re.findall(r"^epoch \d, 4 steps, loss ([\d.]+)$", done.stdout, re.MULTILINE)]
    assert len(losses) == 4 and losses == sorted(losses, reverse=True), losses

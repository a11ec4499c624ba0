"""Command lines at random, read by PyTorch's launcher and by ours: both take the same, or refuse for the same kind of reason."""

import json
import os
import pathlib
import random
import shlex
import subprocess

import pytest

import harness
from harness import NEW
from rdzv_nodes import VERSIONS

SEED = int(os.environ.get("MUSTER_SEED", "1"))
LINES = 500

# Reads a list of command lines and says for each what stock makes of it, up to its configuration.
STOCK = """
import contextlib, io, json, sys
import torch.distributed.run as run

def read(words):
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            config, _, args = run.config_from_args(run.parse_args(words))
        except SystemExit as end:
            if "ambiguous option" in said.getvalue():
                return "ambiguous"
            return "usage" if end.code else "help"
        except Exception as error:
            return type(error).__name__
    return [config.min_nodes, config.max_nodes, config.nproc_per_node, config.max_restarts, config.role, args]

print(json.dumps([read(words) for words in json.load(sys.stdin)]))
"""

VALUES = {
    "nnodes": ["1", "2", "1:2", "3:2", "0", "x", "1:2:3", "", ":", " 2 ", "-1", "1:x"],
    "nproc-per-node": ["1", "2", "x", "", "xpu", "cpu", " 3 ", "+2", "1_0"],
    "max-restarts": ["-1", "0", "3", "x", "1.5", "", "-x"],
    "rdzv-conf": ["", "a", "a=1", "=1", "a=,b", ",", " a=1 , b = 2 ", "a=1,"],
    "local-ranks-filter": ["", "0", "x", "0,1", "0,", " 1 ", "-1"],
    "redirects": ["0", "3", "4", "0:1", "0:1,", "a", "10:1", "1:3,0:2"],
    "tee": ["0", "1", "9", "0:5"],
    "shutdown-timeout": ["-1", "0", "5", "x"],
    "start-method": ["spawn", "fork", "foo", ""],
    "role": ["x", "", "a-b"],
    "logs-specs": ["q"],
}
FLAGS = ["-m", "--no-python", "--no_pyt", "--run-path", "--standalone", "--virtual-local-rank", "--standalone=1", "-mr3",
         "-t1", "-r", "--", "--nope", "-x", "-5"]


def one_line(rng):
    words = []
    for _ in range(rng.randint(0, 4)):
        if rng.random() < 0.3:
            words.append(rng.choice(FLAGS))
            continue
        name = rng.choice(list(VALUES))
        value = rng.choice(VALUES[name])
        spelled = name.replace("-", "_") if rng.random() < 0.4 else name
        words += [f"--{spelled}={value}"] if rng.random() < 0.6 else [f"--{spelled}", value]
    return words + rng.choice([["sh"], ["sh", "a", "--tee", "--", "b"], ["--", "sh", "--", "a"], ["sh", "--", "a"], []])


def ours(words):
    done = subprocess.run([harness.program(), "run", "--dry-run", *words], capture_output=True, text=True, check=False,
                          env=harness.quiet_environment({"OMP_NUM_THREADS": "1", "PYTHON_EXEC": "/bin/true"}))
    if done.returncode == 2:
        return "usage"
    if done.returncode != 0:
        return done.stderr.splitlines()[-1].split(": ")[1]
    lines = done.stdout.split("\n")
    values = {line.split()[0]: (line.split() + [""])[1] for line in lines if line.startswith("  ") and line.strip()}
    command = []
    if "--run-path" not in words:  # else the file stands behind code of ours
        command = shlex.split(lines[lines.index("command of the first worker:") + 1])[1:]
    return [int(values["min_nodes"]), int(values["max_nodes"]), int(values["nproc_per_node"]),
            int(values["max_restarts"]), values["role"], command]


def is_same(stock, mine, words):
    if stock == mine:
        return True
    # What stock refuses only when the workers are started, ours refuses at once.
    if mine == "FileNotFoundError" and isinstance(stock, list):
        return "--no-python" in words or "--no_pyt" in words
    return isinstance(stock, list) and isinstance(mine, list) and stock[:5] == mine[:5] and "--run-path" in words


def test_both_read_the_same_command_lines():
    harness.need_program()
    python = harness.interpreter(NEW)
    if not pathlib.Path(python).exists():
        harness.absent(f"PyTorch {NEW} is absent: there is no {python}")
    rng = random.Random(SEED)
    lines = [one_line(rng) for _ in range(LINES)]
    stock = subprocess.run([python, "-c", STOCK], input=json.dumps(lines), capture_output=True, text=True, check=False,
                           timeout=300, env=harness.quiet_environment({"OMP_NUM_THREADS": "1", "LOGLEVEL": "ERROR"}))
    assert stock.returncode == 0, stock.stderr
    differ, counted = [], {}
    for words, theirs in zip(lines, json.loads(stock.stdout)):
        kind = theirs if isinstance(theirs, str) else "taken"
        counted[kind] = counted.get(kind, 0) + 1
        if theirs == "ambiguous":  # by Python's age: older ones take two spellings for two options
            continue
        mine = ours(words)
        if not is_same(theirs, mine, words):
            differ.append((words, theirs, mine))
    assert not differ, f"MUSTER_SEED={SEED}: {differ[:5]}"
    assert all(counted.get(kind, 0) > 10 for kind in ("taken", "usage", "ValueError", "AssertionError")), counted


@pytest.mark.parametrize("which", VERSIONS)
def test_the_version_beside_the_interpreter_is_seen(torch, which, tmp_path):
    torch(which)  # skips where it is absent
    (tmp_path / "train.py").touch()
    shown = subprocess.run([harness.program(), "run", "--dry-run", tmp_path / "train.py"], capture_output=True, text=True,
                           check=True, env=harness.quiet_environment({"PYTHON_EXEC": harness.interpreter(which)})).stdout
    assert "TORCH_NCCL_ASYNC_ERROR_HANDLING=1" in shown
    assert (" NCCL_ASYNC_ERROR_HANDLING=1" in shown) == harness.is_older(which, "2.2"), shown

"""Shares a tensor with a child of its own through a file in /dev/shm that torch_shm_manager looks after.

    memory.py DIRECTORY [ignore]

Writes the names of what it shares to DIRECTORY/held.RANK, then waits for DIRECTORY/go.RANK and does what that says: `end`,
or `fail`, without any of Python's cleaning up.  SIGINT and SIGTERM kill it and its child at once; with `ignore`, not at all.

The tensor goes through a pipe, by the main thread: what a queue cannot send its own thread tells stderr and nobody else,
and both ends then wait for ever.  That happens where TMPDIR is long: the manager's socket is in there, and has 107 bytes.
"""

import json
import os
import pathlib
import re
import signal
import sys
import time

import torch
import torch.multiprocessing as multiprocessing

ANSWER_LIMIT = 60  # seconds
HOLD_LIMIT = 600


def receive(pipe, whose):
    if not pipe.poll(ANSWER_LIMIT):
        sys.exit(f"memory.py: nothing came from the {whose} within {ANSWER_LIMIT} s")
    return pipe.recv()


def hold(pipe, other_end):
    other_end.close()
    tensor = receive(pipe, "worker")
    pipe.send(tensor.sum().item())
    time.sleep(HOLD_LIMIT)


def shared():
    """What of /dev/shm is mapped here, by name."""
    return sorted(set(re.findall(r"/dev/shm/(torch_\S+)", pathlib.Path("/proc/self/maps").read_text())))


def main():
    directory, rank, ignore = pathlib.Path(sys.argv[1]), os.environ["RANK"], "ignore" in sys.argv[2:]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN if ignore else signal.SIG_DFL)
    multiprocessing.set_sharing_strategy("file_system")
    context = multiprocessing.get_context("fork")
    pipe, other_end = context.Pipe()
    child = context.Process(target=hold, args=(other_end, pipe), daemon=True)
    child.start()
    other_end.close()
    tensor = torch.ones(1 << 16)
    pipe.send(tensor)
    assert receive(pipe, "child") == 1 << 16
    (directory / f"new.{rank}").write_text(json.dumps(shared()))
    os.rename(directory / f"new.{rank}", directory / f"held.{rank}")
    path, end = directory / f"go.{rank}", time.monotonic() + HOLD_LIMIT
    while not path.exists() or not path.read_text():  # it is made before it is written
        if time.monotonic() > end:
            sys.exit(f"memory.py: nobody wrote {path} within {HOLD_LIMIT} s")
        time.sleep(0.02)
    if path.read_text() == "fail":
        os._exit(3)


if __name__ == "__main__":
    main()

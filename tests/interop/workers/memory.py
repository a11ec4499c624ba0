"""Shares a tensor with a child of its own through a file in /dev/shm that torch_shm_manager looks after.

    memory.py DIRECTORY

Writes the names of what it shares to DIRECTORY/held.RANK, then waits for DIRECTORY/go.RANK and does what that says: `end`,
or `fail`, without any of Python's cleaning up.
"""

import json
import os
import pathlib
import re
import sys
import time

import torch
import torch.multiprocessing as multiprocessing


def hold(tensors, answers):
    tensor = tensors.get()
    answers.put(tensor.sum().item())
    time.sleep(3600)


def shared():
    """What of /dev/shm is mapped here, by name."""
    return sorted(set(re.findall(r"/dev/shm/(torch_\S+)", pathlib.Path("/proc/self/maps").read_text())))


def main():
    directory, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]
    multiprocessing.set_sharing_strategy("file_system")
    context = multiprocessing.get_context("fork")
    tensors, answers = context.Queue(), context.Queue()
    child = context.Process(target=hold, args=(tensors, answers), daemon=True)
    child.start()
    tensor = torch.ones(1 << 16)
    tensors.put(tensor)
    assert answers.get() == 1 << 16
    (directory / f"new.{rank}").write_text(json.dumps(shared()))
    os.rename(directory / f"new.{rank}", directory / f"held.{rank}")
    path = directory / f"go.{rank}"
    while not path.exists():
        time.sleep(0.02)
    if path.read_text() == "fail":
        os._exit(3)


if __name__ == "__main__":
    main()

"""A little training job: DistributedDataParallel over gloo, a checkpoint per epoch, the data in a fixed order.

    train.py DIRECTORY [--epochs N] [--steps N] [--pace S] [--die RANK:EPOCH:STEP ...] [--hold EPOCH ...]

Rank 0 writes what happens to DIRECTORY/story, a JSON object a line, and the weights to DIRECTORY/final.json.
Every step sees the same samples whatever the world's size; ranks share them.  With --die that rank kills itself
at that step, once.  With --hold rank 0 waits before that epoch until DIRECTORY/go.EPOCH exists.

Gradients are rounded to a grid on which sums are exact: PyTorch adds them in another order in the first step after a
start, and weights could not be compared to the last bit otherwise.
"""

import argparse
import datetime
import json
import os
import pathlib
import signal
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BATCH = 16
GRID = 2.0 ** 30


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--pace", type=float, default=0)
    parser.add_argument("--die", action="append", default=[])
    parser.add_argument("--hold", action="append", type=int, default=[])
    return parser.parse_args()


class Story:
    """What rank 0 has to tell, whole lines even if it is killed."""

    def __init__(self, directory):
        self._file = os.open(directory / "story", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def tell(self, what, **fields):
        os.write(self._file, (json.dumps({"what": what, **fields}) + "\n").encode())


class Silence:
    def tell(self, what, **fields):
        pass


def samples(steps):
    chance = torch.Generator().manual_seed(7)
    inputs = torch.randn(steps * BATCH, 4, generator=chance, dtype=torch.float64)
    targets = torch.sin(inputs.sum(dim=1, keepdim=True))
    return inputs, targets


def save(path, **state):
    """All of it or the one before."""
    torch.save(state, str(path) + ".new")
    os.replace(str(path) + ".new", path)


def die_once(given, directory, rank, epoch, step):
    for number, text in enumerate(given):
        token = directory / f"died.{number}"
        if text == f"{rank}:{epoch}:{step}" and not token.exists():
            token.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def hold(directory, epoch, rank, story):
    if rank == 0:
        story.tell("hold", epoch=epoch, world=dist.get_world_size())
        while not (directory / f"go.{epoch}").exists():
            time.sleep(0.02)
    dist.barrier()


def main():
    asked = options()
    directory = asked.directory
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank, world = dist.get_rank(), dist.get_world_size()
    story = Story(directory) if rank == 0 else Silence()

    torch.manual_seed(3)
    bare = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    for parameter in bare.parameters():
        parameter.register_hook(lambda gradient: (gradient * GRID).round() / GRID)
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.05, momentum=0.5)
    inputs, targets = samples(asked.steps)
    measure = torch.nn.MSELoss()
    checkpoint, first, losses = directory / "checkpoint", 0, []
    if checkpoint.exists():
        state = torch.load(checkpoint)
        bare.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first, losses = state["epoch"], state["losses"]
    model = DistributedDataParallel(bare)
    story.tell("start", epoch=first, world=world, restarts=int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
               launched=dist.is_torchelastic_launched(), run_id=os.environ["TORCHELASTIC_RUN_ID"],
               agent_store=os.environ["TORCHELASTIC_USE_AGENT_STORE"])

    for epoch in range(first, asked.epochs):
        if epoch in asked.hold:
            hold(directory, epoch, rank, story)
        for step in range(asked.steps):
            mine = slice(step * BATCH + rank, (step + 1) * BATCH, world)
            optimizer.zero_grad()
            measure(model(inputs[mine]), targets[mine]).backward()
            die_once(asked.die, directory, rank, epoch, step)
            optimizer.step()
            story.tell("step", epoch=epoch, step=step)
            time.sleep(asked.pace)
        with torch.no_grad():
            losses.append(measure(bare(inputs), targets).item())
        if rank == 0:
            save(checkpoint, model=bare.state_dict(), optimizer=optimizer.state_dict(), epoch=epoch + 1, losses=losses)
            story.tell("saved", epoch=epoch)
        dist.barrier()

    if rank == 0:
        weights = [value for p in bare.parameters() for value in p.detach().flatten().tolist()]
        (directory / "final.json").write_text(json.dumps({"weights": weights, "losses": losses}))
        story.tell("end", world=world)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

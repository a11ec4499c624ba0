"""A whole gloo group on one machine: imports PyTorch once, then forks a process per rank.

    MASTER_ADDR=… MASTER_PORT=… pg_worker.py WORLD_SIZE

Every rank joins the group, reduces, meets the others at a barrier and leaves.  The last
line of output is "done" when all of them were right.
"""

import datetime
import os
import sys

import torch
import torch.distributed as dist


def work(rank, world):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=100))
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    expected = world * (world + 1) / 2
    assert total.item() == expected, f"rank {rank} reduced to {total.item()}, not {expected}"
    dist.barrier()
    dist.destroy_process_group()


def main():
    world = int(sys.argv[1])
    torch.set_num_threads(1)
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                work(rank, world)
                code = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    if any(statuses):
        sys.exit(f"wait statuses of the ranks: {statuses}")
    print("done")


if __name__ == "__main__":
    main()

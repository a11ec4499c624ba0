"""One process group, and one sum in it.

    group.py env://|tcp:// DIRECTORY

Writes what it was given and what came out to DIRECTORY/RANK.
"""

import datetime
import json
import os
import pathlib
import sys

import torch
import torch.distributed as dist


def main():
    method, directory = sys.argv[1], pathlib.Path(sys.argv[2])
    given = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                                                 "TORCHELASTIC_USE_AGENT_STORE")}
    where = {"init_method": method}
    if method == "tcp://":
        where = {"init_method": f"tcp://{given['MASTER_ADDR']}:{given['MASTER_PORT']}",
                 "rank": int(given["RANK"]), "world_size": int(given["WORLD_SIZE"])}
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60), **where)
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    given["sum"] = total.item()
    (directory / given["RANK"]).write_text(json.dumps(given))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

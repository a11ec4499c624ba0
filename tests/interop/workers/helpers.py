"""What PyTorch's elastic helpers make of a store: of one of their own, and of the one at a port.

    helpers.py PORT

Prints one JSON object with both.  The members are threads of this process, each with a connection of its own.
"""

import concurrent.futures
import datetime
import inspect
import json
import sys

import torch.distributed as dist
from torch.distributed.elastic.utils import store as helpers
from torch.distributed.elastic.utils.distributed import create_c10d_store

WORLD = 3
LIMIT = 60


def described(function, *arguments, **more):
    """What it gives, or what it raises: the kind, and the first line without what differs from run to run."""
    try:
        return repr(function(*arguments, **more))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0].split(' after ')[0]}"


def together(function):
    """function(rank) of all members at once."""
    with concurrent.futures.ThreadPoolExecutor(WORLD) as threads:
        return [described(run.result) for run in [threads.submit(function, rank) for rank in range(WORLD)]]


def join(port, world, timeout):
    return create_c10d_store(False, "127.0.0.1", port, world_size=world, timeout=timeout)


def barrier(store, rank, world, prefix, timeout):
    if list(inspect.signature(helpers.barrier).parameters)[1] == "rank":  # before 2.5
        return helpers.barrier(store, rank, world, prefix, timeout)
    return helpers.barrier(store, world, prefix, timeout, rank=rank, trace_timeout=0.2)


def conversation(port):
    told = {"somebody is missing": described(join, port, WORLD, 1)}
    first = dist.TCPStore("127.0.0.1", port, WORLD, False, datetime.timedelta(seconds=LIMIT), wait_for_workers=False)
    for name in ("_tcp_store/num_members", "_tcp_store/last_member", "_tcp_store/num_members/num_members",
                 "_tcp_store/num_members/last_member"):
        first.delete_key(name)
    stores = {}

    def come(rank):
        stores[rank] = join(port, WORLD, LIMIT)
    told["all come"] = together(come)
    told["the port must be known"] = described(create_c10d_store, False, "127.0.0.1", world_size=2)
    told["synchronize"] = together(
        lambda rank: helpers.synchronize(stores[rank], f"data of {rank}".encode(), rank, WORLD, "data/", LIMIT))
    told["get all"] = together(lambda rank: helpers.get_all(stores[rank], rank, "data/", WORLD))
    told["barrier"] = together(lambda rank: barrier(stores[rank], rank, WORLD, "barrier/", LIMIT))
    told["barrier alone"] = described(barrier, stores[0], 0, WORLD, "alone/", 1)
    told["synchronize alone"] = described(helpers.synchronize, stores[1], b"x", 1, WORLD, "late/", 1)
    told["afterwards"] = described(stores[1].get, "data/0")
    told["keys"] = first.num_keys()
    return told


def main():
    stock = dist.TCPStore("127.0.0.1", 0, None, True, datetime.timedelta(seconds=LIMIT), wait_for_workers=False)
    print(json.dumps({"stock": conversation(stock.port), "ours": conversation(int(sys.argv[1]))}))


if __name__ == "__main__":
    main()

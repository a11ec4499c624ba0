"""Remote calls between the workers of two roles.

    rpc.py DIRECTORY ANSWERER ...

Who has the role `caller` asks every answerer, by name, and writes what came back to DIRECTORY/answers.
"""

import json
import os
import pathlib
import sys

import torch
import torch.distributed.rpc as rpc


def greet(word):
    return f"{word} from {rpc.get_worker_info().name}"


def main():
    directory, answerers = pathlib.Path(sys.argv[1]), sys.argv[2:]
    role, rank = os.environ["ROLE_NAME"], int(os.environ["RANK"])
    rpc.init_rpc(role + os.environ["ROLE_RANK"], rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    if role == "caller":
        told = {}
        for name in answerers:
            kept = rpc.remote(name, torch.add, args=(torch.ones(3), 2))
            told[name] = [rpc.rpc_sync(name, greet, args=("hello",)), kept.to_here().sum().item()]
        (directory / "answers").write_text(json.dumps(told))
    rpc.shutdown()


if __name__ == "__main__":
    main()

"""Runs store calls inside one PyTorch, as told by JSON lines on standard input.

The tests run under an interpreter that need not have PyTorch at all; every PyTorch
under test lives in a process running this file under its own interpreter.  One line
of input asks for one call, one line of output answers it:

    {"id": 1, "store": "a", "do": "open", "args": ["127.0.0.1", 29500], "kwargs": {}}
    {"id": 2, "store": "a", "do": "call", "name": "get", "args": ["k"]}
    {"id": 2, "ok": true, "repr": "b'v'"}

Each named store has a thread of its own, so one store can sit in a wait while another
one is used; calls of one store run in the order they were asked for.  The process ends
when its standard input does, so that it never outlives whoever started it.
"""

import datetime
import json
import os
import queue
import sys
import threading

# Standard output carries answers only; whatever the library prints goes to standard error.
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

import torch
import torch.distributed as dist

STORES = {}
ANSWER_LOCK = threading.Lock()


def decode(value):
    """JSON has neither bytes nor durations: they travel as one-entry objects."""
    if isinstance(value, dict):
        if "seconds" in value:
            return datetime.timedelta(seconds=value["seconds"])
        if "bytes" in value:
            return bytes.fromhex(value["bytes"])
        raise ValueError(f"unknown object {value}")
    if isinstance(value, list):
        return [decode(item) for item in value]
    return value


def describe(error):
    """Type and first line: what follows the first line is a trace that names addresses."""
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def perform(request):
    name = request["store"]
    args = [decode(a) for a in request.get("args", [])]
    kwargs = {k: decode(v) for k, v in request.get("kwargs", {}).items()}
    action = request["do"]
    if action == "open":
        STORES[name] = dist.TCPStore(*args, **kwargs)
        return STORES[name].port
    if action == "prefix":
        STORES[name] = dist.PrefixStore(args[0], STORES[args[1]])
        return None
    if action == "clone":
        STORES[name] = STORES[args[0]].clone()
        return None
    if action == "forget":
        STORES.clear()
        return None
    if action == "attribute":
        return getattr(STORES[name], request["name"])
    if action == "call":
        return getattr(STORES[name], request["name"])(*args, **kwargs)
    raise ValueError(f"unknown action {action}")


def serve(requests):
    while True:
        request = requests.get()
        try:
            result = perform(request)
            answer = {"ok": True, "repr": repr(result)}
        except Exception as error:  # the answer is what this library raises
            answer = {"ok": False, "repr": describe(error)}
        answer["id"] = request["id"]
        with ANSWER_LOCK:
            ANSWERS.write(json.dumps(answer) + "\n")
            ANSWERS.flush()


def main():
    queues = {}
    with ANSWER_LOCK:
        ANSWERS.write(json.dumps({"version": torch.__version__, "pid": os.getpid()}) + "\n")
        ANSWERS.flush()
    for line in sys.stdin:
        request = json.loads(line)
        lane = request.get("lane", request["store"])
        if lane not in queues:
            queues[lane] = queue.Queue()
            threading.Thread(target=serve, args=(queues[lane],), daemon=True).start()
        queues[lane].put(request)
    os._exit(0)  # a store blocked in a call must not keep the process


if __name__ == "__main__":
    main()

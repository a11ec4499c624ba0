"""Stock torchrun, many times over, for one import of PyTorch.

Reads JSON requests, a line each, and answers each with one line.  {"do": "launch", "words", "environment", "out",
"err", "older"} forks, and the child is a torchrun, or torch.distributed.launch, with these words and files: {"pid"}.
{"do": "poll", "pid"} tells how it ended: {"code"}, null while it runs.  At the end of the input the launchers that still
run are killed.
"""

import json
import logging
import os
import signal
import sys
import traceback

import torch
import torch.distributed.launch
import torch.distributed.run


def become(request):
    os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    for number, path, how in ((0, os.devnull, os.O_RDONLY), (1, request["out"], os.O_WRONLY | os.O_APPEND),
                              (2, request["err"], os.O_WRONLY | os.O_APPEND)):
        opened = os.open(path, how)
        os.dup2(opened, number)
        os.close(opened)
    if "RDZV_EVENTS" in os.environ:  # events of the rendezvous, which torchrun drops, go to this file
        from torch.distributed.elastic.events import handlers
        handlers._log_handlers["dynamic_rendezvous"] = logging.FileHandler(os.environ["RDZV_EVENTS"])
    sys.argv = ["torchrun", *request["words"]]
    code = 1
    try:
        (torch.distributed.launch if request["older"] else torch.distributed.run).main(request["words"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def poll(pid, running):
    gone, status = os.waitpid(pid, os.WNOHANG)
    if not gone:
        return None
    running.remove(pid)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def main():
    running = set()
    print(json.dumps({"version": torch.__version__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "launch":
            pid = os.fork()
            if pid == 0:
                become(request)
            running.add(pid)
            answer = {"pid": pid}
        else:
            answer = {"code": poll(request["pid"], running)}
        print(json.dumps(answer), flush=True)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()

"""Holds a timer of PyTorch's for too long, the first time; later ones are given back in time.

    timed.py DIRECTORY
"""

import os
import pathlib
import signal
import sys

import torch.distributed.elastic.timer as timer


def main():
    directory = pathlib.Path(sys.argv[1])
    rank, attempt = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
    with timer.expires(after=60, scope="outer"):
        with timer.expires(after=0.2 if attempt == 0 and rank == "1" else 60, scope="inner"):
            (directory / f"{attempt}.{rank}").touch()
            if attempt == 0:
                signal.pause()


if __name__ == "__main__":
    main()

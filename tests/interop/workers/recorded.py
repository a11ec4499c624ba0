"""Fails on rank 1 under PyTorch's `record`; the others wait to be stopped."""

import os
import signal

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("broken on purpose: \u00e9 \n second line")
    signal.pause()


if __name__ == "__main__":
    main()

"""Hosts a stock PyTorch TCPStore server on a free loopback port until standard input closes.

Prints `listening on 127.0.0.1:PORT` when ready, as muster's own server does, then its version. The
master's own client connection exists too, as in any PyTorch job, and stays silent.
"""
import argparse
import datetime
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=["default", "libuv", "legacy"], default="default",
                        help="default: whatever this PyTorch takes when nothing is said")
    options = parser.parse_args()

    import torch
    import torch.distributed as dist

    extra = {} if options.backend == "default" else {"use_libuv": options.backend == "libuv"}
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False,
                          timeout=datetime.timedelta(seconds=60), **extra)
    print(f"listening on 127.0.0.1:{store.port}", flush=True)
    print(torch.__version__, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

"""What the reports share: a network of their own, and how they print."""
import ctypes
import datetime
import fcntl
import math
import os
import platform
import shlex
import socket
import statistics
import struct
import sys
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
ENOUGH = 8  # values that an interval of a median needs


class Broken(Exception):
    """Something did not start, or did not finish; the text says what."""


def say(text):
    print(text, file=sys.stderr, flush=True)


def own_network():
    """Moves this process to a network of its own that has only loopback; False where that is not allowed.

    PyTorch 2.x looks up the name of every client's address. Without a way out that fails at once, with one it may
    wait for a name server: we would measure that instead.
    """
    somaxconn = Path("/proc/sys/net/core/somaxconn")
    backlog = somaxconn.read_text()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0 and libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
    try:
        somaxconn.write_text(backlog)
    except OSError:
        pass    # the kernel's default then, for every server alike
    return True


def number(value, decimals):
    return "-" if value is None else f"{value:,.{decimals}f}"


def middle(values):
    return statistics.median(values) if values else None


def interval(values, coverage=0.99):
    """Where the median lies, from the order of the values alone; of fewer than ENOUGH it is all that was seen."""
    ordered, n = sorted(values), len(values)
    below, tail = 0.5 ** n, 0
    while 2 * below <= 1 - coverage:    # below: the chance that at most `tail` values are under the median
        tail += 1
        below += math.comb(n, tail) * 0.5 ** n
    low = max(tail - 1, 0)
    return ordered[low], ordered[n - 1 - low]


def print_table(header, rows):
    rows = [header] + list(rows)
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    for index, row in enumerate(rows):
        cells = [cell.ljust(width) if i < 2 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))]
        print("| " + " | ".join(cells) + " |")
        if index == 0:
            print("|" + "|".join("-" * (w + 2) if i < 2 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|")


def print_reach(lines):
    """Lines are (what is to be reached, what was seen, whether it was: None where nothing judges that)."""
    for target, seen, reached in lines:
        verdict = {True: ": reached", False: ": not reached", None: ""}[reached]
        print(f"- {target}: {seen}{verdict}")


def print_machine(isolated, placement, seconds):
    cpu_model = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                      if line.startswith("model name")), platform.machine())
    print(f"machine: {len(os.sched_getaffinity(0))} cores, {cpu_model}, Linux {platform.release()}; "
          f"{'a network of its own' if isolated else 'the network of the machine'}, {placement}")
    print(f"date: {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC, took {seconds:.0f} s")
    print(f"command: bench/{Path(sys.argv[0]).name} {shlex.join(sys.argv[1:])}".rstrip())

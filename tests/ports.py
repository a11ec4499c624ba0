"""Ports for tests that run side by side."""

import fcntl
import os
import pathlib
import random
import socket
import tempfile

RANGE_MIN = 16000
RESERVED = []  # open files with a lock each; until this process ends


def reserve(port):
    """Whether it is ours among all tests of this kind on this machine."""
    place = pathlib.Path(tempfile.gettempdir()) / f"muster-test-ports-{os.getuid()}"
    place.mkdir(exist_ok=True)
    file = open(place / str(port), "w", encoding="utf-8")  # pylint: disable=consider-using-with
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return False
    RESERVED.append(file)
    return True


def free_port():
    """One that nobody has right now, below the range that the kernel gives away; no other test gets it."""
    low = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    while True:
        port = random.randrange(min(RANGE_MIN, low // 2), low)
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
        if reserve(port):
            return port

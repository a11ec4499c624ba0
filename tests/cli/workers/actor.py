"""A worker that tells what it was given and then does what it is told.

It leaves its environment in $STAGE/<pid>.json and waits: SIGUSR1 ends it well, SIGUSR2 with code 3. Words change it:
`ignore` notes other signals in $STAGE/<pid>.got and stays, `note` notes them and ends; `leave` makes processes that
stay behind: a child, and two that no signal ends, one in a session of its own and one whose parent is gone as well.
"""

import json
import os
import signal
import sys

STAGE = os.environ["STAGE"]
NOTED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def note(number, _):
    with open(f"{STAGE}/{os.getpid()}.got", "a", encoding="utf-8") as got:
        got.write(f"{number}\n")
    if "note" in sys.argv:
        os._exit(0)


def linger(how):
    for number in NOTED:
        signal.signal(number, how)
    while True:
        signal.pause()


def leave():
    if os.fork() == 0:
        linger(signal.SIG_DFL)
    if os.fork() == 0:
        os.setsid()
        linger(signal.SIG_IGN)
    middle = os.fork()
    if middle == 0:
        os.setsid()
        if os.fork() == 0:
            linger(signal.SIG_IGN)
        os._exit(0)
    os.waitpid(middle, 0)


woken, wakes = os.pipe()  # a signal that comes just before a pause() would wait for the next one
os.set_blocking(wakes, False)
signal.set_wakeup_fd(wakes)
signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
signal.signal(signal.SIGUSR2, lambda *_: os._exit(3))
if "ignore" in sys.argv or "note" in sys.argv:
    for wanted in NOTED:
        signal.signal(wanted, note)
if "leave" in sys.argv:
    leave()
with open(f"{STAGE}/{os.getpid()}.new", "w", encoding="utf-8") as record:
    with open("/proc/self/stat", encoding="utf-8") as stat:
        born = stat.read().rpartition(")")[2].split()[19]
    json.dump({"pid": os.getpid(), "born": born, "argv": sys.argv[1:], "env": dict(os.environ)}, record)
os.rename(f"{STAGE}/{os.getpid()}.new", f"{STAGE}/{os.getpid()}.json")
while True:
    os.read(woken, 1)

"""PyTorch's file-timer client in the ways in which it is used, on the watchdog of the agent that started this.

    timers.py DIRECTORY

Every case runs in a child, so that who is killed is not the worker.  The pids and ends of all, by case, go to
DIRECTORY/told: an exit code, or minus the signal.
"""

import json
import os
import pathlib
import signal
import sys
import time
import traceback

import torch.distributed.elastic.timer as timer

PATH = os.environ["TORCHELASTIC_TIMER_FILE"]
CLIENTS = 5  # of each kind
REQUESTS = 20  # of each of them


def use(number=signal.SIGKILL):
    client = timer.FileTimerClient(PATH, number)
    timer.configure(client)
    return client


def happy_path():
    use()
    with timer.expires(after=60):
        with timer.expires(after=60, scope="inner"):
            pass


def expired():
    use()
    with timer.expires(after=0.2):
        signal.pause()


def expired_with_another_signal():
    use(signal.SIGTERM)
    with timer.expires(after=0.2):
        signal.pause()


def expired_without_a_signal():
    use(0)
    with timer.expires(after=0.2):
        time.sleep(1)


def expired_inside_of_a_valid_one():
    use()
    with timer.expires(after=3600, scope="outer"):
        with timer.expires(after=0.2, scope="inner"):
            signal.pause()


def still_valid():
    client = use()
    for number in range(10):
        client.acquire(f"scope {number}", time.time() + 3600)
    time.sleep(1)


def released():
    use()
    with timer.expires(after=8):
        pass
    time.sleep(9)


def recursive(depth=4):
    """All levels have one scope, and with it one timer: the innermost gives it back."""
    use()
    if depth > 0:
        with timer.expires(after=8):
            recursive(depth - 1)
            time.sleep(2.2)


def recursive_and_expired(depth=4):
    use()
    if depth > 0:
        with timer.expires(after=0.2):
            recursive_and_expired(depth - 1)
            signal.pause()


def gone_before_the_release():
    def acquire():
        use().acquire("never given back", time.time() + 1)
    assert end(start(acquire)) == 0
    time.sleep(2)


def without_a_server():
    path = f"{PATH}.nobody"
    os.mkfifo(path)
    try:
        timer.FileTimerClient(path).acquire("scope", time.time() + 60)
    except BrokenPipeError:
        return
    finally:
        os.unlink(path)
    raise AssertionError("it was taken by nobody")


def many_kept():
    """Each of them is told of as expired, and nobody is killed."""
    client = use(0)
    for number in range(REQUESTS):
        client.acquire(f"kept {number}", time.time() - 1)
    time.sleep(3)


def many_released():
    """A release that were lost would be this process's end."""
    client, end = use(), time.time() + 10
    for number in range(REQUESTS // 2):
        client.acquire(f"released {number}", end)
        client.release(f"released {number}")
    time.sleep(11)


CASES = [happy_path, expired, expired_with_another_signal, expired_without_a_signal, expired_inside_of_a_valid_one,
         still_valid, released, recursive, recursive_and_expired, gone_before_the_release, without_a_server]
CASES += CLIENTS * [many_kept, many_released]


def start(case):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            case()
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    return pid


def end(pid):
    _, status = os.waitpid(pid, 0)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def main():
    started = [(case.__name__, start(case)) for case in CASES]
    told = {}
    for name, pid in started:
        told.setdefault(name, []).append((pid, end(pid)))
    pathlib.Path(sys.argv[1], "told").write_text(json.dumps(told))


if __name__ == "__main__":
    main()

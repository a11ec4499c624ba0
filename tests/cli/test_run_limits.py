"""`muster run` where the machine has too little of something, and what it takes for itself."""

import os
import pathlib
import pty
import re
import socket
import subprocess
import sys
import threading

import pytest

from ports import free_port
from run_scene import cgroup
from serving import LIMIT, MUSTER, environment, is_sanitized, until

CHILD_FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"


def limited(count, *program):
    """The program with a limit of open files that it cannot raise."""
    return ("sh", "-c", f'ulimit -n {count}; exec "$0" "$@"', *program)


@pytest.fixture
def group(scene, absent):
    """group(controller): one with that controller, removed in the end; and whether it is of version 2."""
    made = []

    def make(controller):
        found = cgroup(scene, controller) if os.geteuid() == 0 else None
        if found is None:
            absent(f"no cgroup with {controller} for us")
        made.append(found[0])
        return found
    yield make
    scene.clear()
    for one in made:
        one.remove()


# ---- Memory ----


def test_a_worker_that_was_killed_for_want_of_memory_is_said_to_be(scene, group):
    box, is_new = group("memory")
    box.limit("memory.max" if is_new else "memory.limit_in_bytes", 96 << 20)
    try:
        box.limit("memory.swap.max" if is_new else "memory.memsw.limit_in_bytes", 0 if is_new else 96 << 20)
    except OSError:
        pass  # there is no swap to be limited
    agent = scene.start("--nproc-per-node=2", "--no-python", sys.executable, "-S", "-E", "-c",
                        "import os, signal\nif os.environ['RANK'] == '0': signal.pause()\nx = b'x' * (1 << 30)",
                        program=box.wrap(MUSTER, "run"))
    assert agent.end() == 1
    above = agent.err[:agent.err.index(CHILD_FAILED)]
    assert re.search(r"rank 1 on \S+ \(local rank 1, pid \d+\) failed: killed by SIGKILL \(out of memory\)", above)


@pytest.mark.skipif(is_sanitized(), reason="ASan does not go without /proc")
def test_without_proc_it_says_that_detached_processes_may_survive(scene, absent):
    wrap = ("unshare", "-m", "--propagation", "private", "sh", "-c", 'mount -t tmpfs none /proc && exec "$0" "$@"')
    if os.geteuid() != 0 or subprocess.run([*wrap, "true"], capture_output=True, check=False).returncode != 0:
        absent("cannot mount")
    agent = scene.shell("exit 0", program=(*wrap, MUSTER, "run"))
    assert agent.end() == 0, agent.err
    assert agent.err.count("processes that workers detach may survive") == 1
    agent = scene.shell("exit 0")
    assert agent.end() == 0 and "may survive" not in agent.err


def test_the_kernel_takes_workers_before_the_launcher(scene):
    agent = scene.shell("cat /proc/self/oom_score_adj")
    own = int(pathlib.Path("/proc/self/oom_score_adj").read_text())
    assert agent.end() == 0, agent.err
    assert int(agent.out) == min(own + 100, 1000)


def test_a_worker_that_somebody_killed_is_not_said_to_lack_memory(scene):
    agent = scene.shell("kill -9 $BASHPID")
    assert agent.end() == 1
    assert "SIGKILL" in agent.err and "out of memory" not in agent.err


# ---- Processes and descriptors ----


def test_workers_that_there_is_no_process_for_are_an_error_and_the_others_end(scene, group):
    box, _ = group("pids")
    box.limit("pids.max", 6)
    agent = scene.shell(f": > {scene.path}/$RANK; exec sleep 600", "--nproc-per-node=16", program=box.wrap(MUSTER, "run"))
    assert agent.end() == 1
    last = agent.err.splitlines()[-1]
    assert " error: muster run: BlockingIOError: start the workers of role 'default'" in last
    assert "local rank " in last and "make a process: Resource temporarily unavailable" in last
    assert CHILD_FAILED not in agent.err
    assert not scene.left()


def test_an_agent_that_there_is_no_process_for_is_an_error(scene, group):
    box, _ = group("pids")
    box.limit("pids.max", 1)
    agent = scene.shell("exit 0", program=box.wrap(MUSTER, "run"))
    assert agent.end() == 1
    assert agent.err.splitlines()[0].endswith("muster run: BlockingIOError: start the agent: make a process: "
                                              "Resource temporarily unavailable")  # below it a leak checker may complain


def test_more_workers_than_descriptors_is_an_error(scene):
    agent = scene.start("-t3", "--nproc-per-node=64", "--no-python", "sleep", "600", program=limited(400, MUSTER, "run"))
    assert agent.end() == 1
    line, = agent.err.splitlines()
    assert "the limit of open files (ulimit -n) is 400, and 459 are needed: Too many open files" in line
    assert not scene.left()


@pytest.mark.parametrize("count", [5, 6, 7, 8, 10, 11, 12, 13, 14, 16, 40])
def test_a_limit_of_open_files_that_is_far_too_low_is_one_line(scene, count):
    agent = scene.start("--no-python", "true", program=limited(count, MUSTER, "run"))
    assert agent.end() == 1
    line, = agent.err.splitlines()
    assert f" error: muster run: OSError: the limit of open files (ulimit -n) is {count}, and " in line
    assert line.endswith(" are needed: Too many open files")


@pytest.mark.parametrize("count", [5, 6, 8, 9, 10, 16])
def test_a_store_with_a_limit_of_open_files_that_is_far_too_low_is_one_line(count):
    ended = subprocess.run(limited(count, MUSTER, "store", "--port", "0"), stdin=subprocess.DEVNULL, capture_output=True,
                           timeout=LIMIT, check=False, env=environment())
    assert ended.returncode == 1 and ended.stdout == b""
    line, = ended.stderr.decode().splitlines()
    assert f"the limit of open files (ulimit -n) is {count}, and 32 are needed" in line


def test_idle_connections_leave_the_agent_the_descriptors_it_needs_to_restart(scene):
    """They come to the workers' store, more of them than there are descriptors. Each of them has asked for something."""
    agent = scene.actors("--nproc-per-node=4", "--max-restarts=1", "-t3", program=limited(160, MUSTER, "run"))
    workers = scene.world(4)
    address = (workers[0].env["MASTER_ADDR"], int(workers[0].env["MASTER_PORT"]))
    crowd = [socket.create_connection(address, timeout=LIMIT) for _ in range(300)]
    try:
        until(lambda: "the limit of open files leaves room for" in agent.err, what="a full store")
        workers[0].fail()
        for worker in scene.world(4, without=workers):
            worker.succeed()
        assert agent.end() == 0, agent.err
        assert "Too many open files" not in agent.err
    finally:
        for one in crowd:
            one.close()


# ---- The disk ----


def test_a_full_disk_under_redirected_output_is_said(scene, absent):
    """Such output does not pass through us, so workers meet the full disk themselves."""
    disk = scene.path / "disk"
    disk.mkdir()
    wrap = ("unshare", "-m", "--propagation", "private", "sh", "-c",
            f'mount -t tmpfs -o size=64k none {disk} && exec "$0" "$@"')
    if os.geteuid() != 0 or subprocess.run([*wrap, "true"], capture_output=True, check=False).returncode != 0:
        absent("cannot mount")
    agent = scene.shell(f"head -c 1000000 /dev/zero; : > {scene.path}/through", "-r1", f"--log-dir={disk}",
                        program=(*wrap, MUSTER, "run"))
    assert agent.end() == 0, agent.err
    assert (scene.path / "through").exists()
    assert "is full" in agent.err and str(disk) in agent.err


# ---- Names ----


def test_a_host_whose_own_name_means_nothing_is_a_host(scene, serve, absent):
    wrap = ("unshare", "--uts", "sh", "-c", 'hostname nowhere.invalid && exec "$0" "$@"')
    if os.geteuid() != 0 or subprocess.run([*wrap, "true"], capture_output=True, check=False).returncode != 0:
        absent("cannot have a host name of our own")
    agent = scene.shell("exit 3", program=(*wrap, MUSTER, "run"))
    assert agent.end() == 1
    assert "\n  host      : nowhere.invalid\n" in agent.err and "on nowhere.invalid (local rank 0" in agent.err
    endpoint = serve().endpoint
    for _ in range(2):
        scene.node(endpoint, "--nnodes=2", program=(*wrap, MUSTER, "run"))
    for worker in scene.world(2):
        assert worker.env["MASTER_ADDR"] == "127.0.0.1"
        worker.succeed()
    assert [agent.end() for agent in scene.agents[1:]] == [0, 0]


# ---- What it takes for itself ----


def test_redirected_output_does_not_pass_through_us(scene):
    logs = scene.path / "logs"
    agent = scene.shell("readlink /proc/self/fd/1 /proc/self/fd/2 > $STAGE/links", "-r3", "--log-dir", logs)
    assert agent.end() == 0, agent.err
    links = (scene.stage / "links").read_text().splitlines()
    assert links[1].startswith(f"{logs}/") and links[1].endswith("/attempt_0/0/stderr.log")


def test_descriptors_that_are_shared_stay_as_they_are(scene):
    """A worker shares ours; it does not expect a write to say that it should come again."""
    code = ("import os, sys, time\nos.write(1, b'out\\n')\nwhile not os.path.exists(os.environ['STAGE'] + '/go'): time.sleep(0.01)\n"
            "if os.environ['RANK'] == '0': sys.exit(0 if all(os.get_blocking(fd) for fd in range(3)) else 7)\n")
    agent = scene.start("--nproc-per-node=2", "-t", "1:3", "--no-python", sys.executable, "-S", "-c", code,
                        stdin=subprocess.PIPE)
    until(lambda: b"[default1]:out\n" in agent.out and b"\nout\n" in b"\n" + agent.out, what="both lines")
    (scene.stage / "go").touch()
    assert agent.end() == 0, agent.err
    agent.process.stdin.close()


def test_http_is_loaded_only_when_health_is_asked_for(scene, absent):
    def maps(agent):
        return pathlib.Path(f"/proc/{agent.agent}/maps").read_text()
    plain = scene.actors()
    worker, = scene.world(1)
    assert "microhttpd" not in maps(plain) and "libcurl" not in maps(plain)
    worker.succeed()
    assert plain.end() == 0
    asked = scene.actors(env={"TORCHELASTIC_HEALTH_CHECK_PORT": str(free_port())})
    worker, = scene.world(1)
    if "libmicrohttpd" in asked.err:
        absent("no libmicrohttpd")
    assert "microhttpd" in maps(asked)
    worker.succeed()
    assert asked.end() == 0


# ---- For people ----


def test_a_failure_is_told_once_with_its_last_words(scene):
    agent = scene.shell("echo one >&2; echo 'two: \033[31mred' >&2; echo '   ~~^~~' >&2; exit 4", "-t2")
    assert agent.end() == 1
    above = agent.err[:agent.err.index(CHILD_FAILED)].splitlines()
    told, = [line for line in above if "pid" in line and not line.startswith("[")]
    assert re.search(r" rank 0 on \S+ \(local rank 0, pid \d+\) failed: exit code 4: two: \[31mred$", told)
    assert "exitcode:" not in agent.err


def test_an_error_file_that_nobody_asked_for_is_not_an_error(scene):
    agent = scene.shell("""echo '{"message": "it broke"}' > "$TORCHELASTIC_ERROR_FILE"; exit 4""")
    assert agent.end() == 1
    assert "failed: exit code 4: it broke\n" in agent.err
    assert "no error file defined" not in agent.err


def test_on_a_terminal_one_line_tells_who_is_missing_and_goes_away(scene, serve):
    endpoint = serve().endpoint
    master, slave = pty.openpty()
    shown = bytearray()

    def read():
        try:
            while piece := os.read(master, 65536):
                shown.extend(piece)
        except OSError:
            pass  # nobody has it open any more
    reader = threading.Thread(target=read, daemon=True)
    try:
        first = scene.node(endpoint, "--nnodes=2", stderr=slave)
        os.close(slave)
        reader.start()
        until(lambda: b"1 of 2 nodes joined" in shown, what="the live line")
        lines = shown.count(b"\n")  # whatever was said before
        second = scene.node(endpoint, "--nnodes=2")
        workers = scene.world(2)
        until(lambda: b" notice: group formed: " in shown.rpartition(b"\r\x1b[K")[2], what="the group in its place")
        for worker in workers:
            worker.succeed()
        assert (first.end(), second.end()) == (0, 0)
        reader.join(10)
        assert shown.count(b"\n") == lines + 1
    finally:
        os.close(master)

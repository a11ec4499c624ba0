"""`muster run` as its users meet it: real workers, real nodes, and all the ways in which either can end."""

import contextlib
import ctypes
import fcntl
import json
import os
import pathlib
import pty
import re
import resource
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import urllib.error
import urllib.request

import pytest

from ports import free_port
from run_scene import (ACTOR, DEATH_AGE, OTHER_LAYOUT, REGROUP, children, default_signals, freezer, is_alive,
                       stat)
from serving import LIMIT, MUSTER, environment, until

CHILD_FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
TERM_INT_HUP = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


def attempts(base):
    """Names of the attempt directories below the one run directory of a log directory."""
    run, = base.iterdir()
    return sorted(path.name for path in run.iterdir())


def attempt(base, name="attempt_0"):
    run, = base.iterdir()
    return run / name


def values(workers, name):
    """That variable of each, by rank."""
    return [worker.env[name] for worker in workers]


def one(workers, name):
    """That variable, which all share."""
    found, = set(values(workers, name))
    return found


# ---- One node ----


@pytest.mark.parametrize("nproc", [1, 3])
def test_workers_that_succeed_make_a_run_that_succeeds_silently(scene, nproc):
    agent = scene.shell("exit 0", f"--nproc-per-node={nproc}")
    assert (agent.end(), agent.out, agent.trouble) == (0, b"", "")


def test_output_that_is_not_redirected_is_the_launchers_own(scene):
    agent = scene.shell("echo out; echo err >&2; cat", stdin=subprocess.PIPE)
    agent.process.stdin.write(b"in\n")
    agent.process.stdin.close()
    assert (agent.end(), agent.out, agent.trouble) == (0, b"out\nin\n", "err\n")


def test_a_worker_has_every_variable(scene):
    agent = scene.actors("--nproc-per-node=2", "--max-restarts=7", "--role=trainer", drop=["OMP_NUM_THREADS"])
    workers = scene.world(2)
    assert values(workers, "LOCAL_RANK") == values(workers, "RANK") == values(workers, "ROLE_RANK") == ["0", "1"]
    for name, value in {"GROUP_RANK": "0", "ROLE_NAME": "trainer", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2",
                        "GROUP_WORLD_SIZE": "1", "ROLE_WORLD_SIZE": "2", "MASTER_ADDR": "localhost",
                        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "7",
                        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
                        "OMP_NUM_THREADS": "1",
                        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT"}.items():
        assert one(workers, name) == value, name
    assert 0 < int(one(workers, "MASTER_PORT")) < 65536
    run_id = re.escape(one(workers, "TORCHELASTIC_RUN_ID"))
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", one(workers, "TORCHELASTIC_RUN_ID"))
    for worker in workers:
        assert re.fullmatch(rf"{scene.tmp}/torchelastic_[a-z0-9_]{{8}}/{run_id}_[a-z0-9_]{{8}}/attempt_0/"
                            rf"{worker.env['LOCAL_RANK']}/error.json", worker.env["TORCHELASTIC_ERROR_FILE"])
        assert pathlib.Path(worker.env["TORCHELASTIC_ERROR_FILE"]).parent.is_dir()
        assert "TORCHELASTIC_TIMER_FILE" not in worker.env
        assert "NCCL_ASYNC_ERROR_HANDLING" not in worker.env  # PyTorch 2.2 and later warn of it
        assert worker.env["HOME"] == os.environ["HOME"]
        worker.succeed()
    assert agent.end() == 0


@pytest.mark.parametrize("version, given", [("1.13.1", True), ("2.1.0", True), ("2.2.0", False), ("2.15.0", False)])
def test_an_old_pytorch_beside_the_interpreter_gets_the_older_variable(scene, version, given):
    python = scene.path / "venv" / "bin" / "python3"
    version_file = scene.path / "venv" / "lib" / "python3.99" / "site-packages" / "torch" / "version.py"
    for path in (python, version_file):
        path.parent.mkdir(parents=True)
    python.symlink_to("python3.99")
    (python.parent / "python3.99").write_text('#!/bin/sh\necho "<$NCCL_ASYNC_ERROR_HANDLING>"\n')
    (python.parent / "python3.99").chmod(0o700)
    version_file.write_text(f"__version__ = '{version}'\n")
    script = scene.path / "train.py"
    script.touch()
    agent = scene.start(script, env={"PYTHON_EXEC": str(python)})
    assert (agent.end(), agent.out) == (0, b"<1>\n" if given else b"<>\n")


def test_what_the_launcher_was_given_stays(scene):
    given = {"OMP_NUM_THREADS": "5", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "CUDA_VISIBLE_DEVICES": "6,7",
             "TORCHELASTIC_TIMER_FILE": "/mine"}
    agent = scene.actors("--nproc-per-node=2", env=given)
    workers = scene.world(2)
    for name, value in given.items():
        assert one(workers, name) == value
    for worker in workers:
        worker.succeed()
    assert agent.end() == 0


def test_workers_may_be_told_to_see_one_device_each(scene):
    agent = scene.actors("--nproc-per-node=2", "--virtual-local-rank", env={"CUDA_VISIBLE_DEVICES": "4, 6"})
    workers = scene.world(2)
    assert values(workers, "LOCAL_RANK") == ["0", "0"] and values(workers, "CUDA_VISIBLE_DEVICES") == ["4", "6"]
    for worker in workers:
        worker.succeed()
    assert agent.end() == 0


def test_workers_with_one_device_each_get_it_from_hip_s_list_first(scene):
    agent = scene.actors("--nproc-per-node=2", "--virtual-local-rank", "--logs-specs=default",
                         env={"CUDA_VISIBLE_DEVICES": "4,6", "HIP_VISIBLE_DEVICES": "1, 3"})
    workers = scene.world(2)
    assert values(workers, "CUDA_VISIBLE_DEVICES") == values(workers, "HIP_VISIBLE_DEVICES") == ["1", "3"]
    for worker in workers:
        worker.succeed()
    assert agent.end() == 0


def test_without_a_shared_store_worker_0_is_to_host_one(scene):
    agent = scene.actors("--nproc-per-node=2", env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
    workers = scene.world(2)
    assert one(workers, "TORCHELASTIC_USE_AGENT_STORE") == "False"
    with socket.create_server(("127.0.0.1", int(one(workers, "MASTER_PORT")))):
        pass  # nobody else listens there
    for worker in workers:
        worker.succeed()
    assert agent.end() == 0


# ---- MASTER_ADDR and MASTER_PORT that the user names ----


def named(addr, port):
    return f"last_call_timeout=1,master_addr={addr},master_port={port}"


def is_free(port):
    """Whether worker 0 could listen there."""
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", int(port))):
        return True
    return False


def answers(worker):
    """Whether a store is where a worker is sent to."""
    done = subprocess.run([MUSTER, "store", "num-keys", "--timeout=10", "--endpoint",
                           f"{worker.env['MASTER_ADDR']}:{worker.env['MASTER_PORT']}"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.parametrize("share", [True, False], ids=["agents' store", "worker 0's store"])
def test_workers_meet_where_the_user_says_in_every_round(scene, share):
    endpoint, port = local(free_port()), str(free_port())
    env = {} if share else {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    agents = [scene.node(endpoint, "--nnodes=2", "--max-restarts=1", conf=named("localhost", port), env=env)
              for _ in range(2)]
    old = scene.world(2)
    assert values(old, "MASTER_ADDR") == ["localhost"] * 2 and values(old, "MASTER_PORT") == [port] * 2
    assert answers(old[0]) if share else is_free(port)
    old[1].fail()
    workers = scene.world(2, without=old)
    assert values(workers, "MASTER_ADDR") == ["localhost"] * 2 and values(workers, "MASTER_PORT") == [port] * 2
    assert answers(workers[0]) if share else is_free(port)
    end_all(workers)
    assert [agent.end() for agent in agents] == [0, 0]
    assert not any("master_addr" in agent.err for agent in agents)


def test_a_node_may_send_its_workers_another_way_to_the_same_store(scene):
    endpoint, port = local(free_port()), str(free_port())
    agents = [scene.node(endpoint, "--nnodes=2", conf=named(addr, port)) for addr in ("127.0.0.1", "localhost")]
    workers = scene.world(2)
    assert sorted(values(workers, "MASTER_ADDR")) == ["127.0.0.1", "localhost"]
    assert all(answers(worker) for worker in workers)
    end_all(workers)
    assert [agent.end() for agent in agents] == [0, 0]
    assert sum("warning: rendezvous 'job': the workers of this node are sent to " in agent.err for agent in agents) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_wait_for_a_master_port_that_is_taken(scene, number):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        agent = scene.shell("true", "--standalone", "--rdzv-conf", f"master_port={port}")
        agent.said(f"master_port: cannot listen on 127.0.0.1, port {port}: Address already in use; trying again")
        agent.signal(number)
        assert agent.end(limit=4) == -number  # it would be tried for 5 s


def test_a_master_port_that_is_freed_in_time_is_taken(scene):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        agent = scene.shell("echo $MASTER_PORT", "--standalone", "--rdzv-conf", f"master_port={port}")
        agent.said("trying again for 5 s")
    assert (agent.end(), agent.out) == (0, f"{port}\n".encode())


def test_workers_are_not_sent_where_no_store_is(scene, engine):
    endpoint = local(free_port())
    ports = [free_port(), free_port()]
    agents = [scene.node(endpoint, "--nnodes=2", conf=named("localhost", port)) for port in ports]
    until(lambda: any(agent.process.poll() is not None for agent in agents), what="the end of the node that is not rank 0")
    wrong = [agent for agent in agents if agent.process.poll() is not None][0]
    port = ports[agents.index(wrong)]
    assert wrong.end() == 1
    assert f"no store answers at localhost, port {port}, where master_addr and master_port of this node send its " \
        "workers" in wrong.err
    assert not [worker for worker in scene.seen() if worker.env["GROUP_RANK"] != "0"]  # which has a store


@pytest.mark.parametrize("conf, error", [
    ("master_port=65536", "master_port: 65536 is not a port from 1 to 65535"),
    ("master_addr=a b", "master_addr: 'a b' must be a host name or an address")])
def test_a_master_that_cannot_be_is_refused_at_once(scene, conf, error):
    agent = scene.node(local(free_port()), conf=conf)
    assert agent.end() == 1 and error in agent.err and not scene.seen()


def test_the_local_rank_can_stand_in_arguments(scene):
    agent = scene.shell('echo "$@"', "--nproc-per-node=2", "-r1", f"--log-dir={scene.path}/logs",
                        args=["$local_rank", "x${local_rank}y", "$$", "$other"])
    assert agent.end() == 0, agent.err
    for rank in 0, 1:
        assert (attempt(scene.path / "logs") / str(rank) / "stdout.log").read_text() == f"{rank} x{rank}y $ $other\n"


def test_workers_start_as_the_launcher_was_started(scene):
    """Descriptors, directory, mask, signals and limits are those of whoever called us; each has a session of its own."""
    look = ("import os, resource, signal; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1], os.getcwd(), "
            "os.umask(0), signal.pthread_sigmask(0, []), signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN, "
            "resource.getrlimit(resource.RLIMIT_NOFILE)[0], os.getsid(0) == os.getpid())")
    directory = scene.path / "here"
    directory.mkdir()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def before():
        os.umask(0o37)
        os.chdir(directory)
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
        os.dup2(1, 50)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)

    agent = scene.start("--no-python", sys.executable, "-c", look, preexec_fn=before, close_fds=False)
    assert agent.end() == 0, agent.err
    assert agent.out.decode() == f"[0, 1, 2] {directory} {0o37} set() True 100 True\n"


def block_all():
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())


LOOK_AT_SIGNALS = "grep -E '^Sig(Blk|Ign)' /proc/self/status"


def signals_in(text):
    """What LOOK_AT_SIGNALS says: for each word the numbers of the signals. The two that the C library keeps to itself are left
    out: no program can set them, and some shells and containers ignore them."""
    words = dict(line.split(":\t") for line in text.splitlines())
    return {word: {number for number in signal.valid_signals() if int(bits, 16) >> number - 1 & 1}
            for word, bits in words.items()}


def test_deaths_are_seen_though_all_signals_were_blocked_and_workers_have_them_blocked(scene):
    agent = scene.start("--no-python", *shlex.split(LOOK_AT_SIGNALS),  # bash would unblock some
                        preexec_fn=lambda: (default_signals(), block_all()))
    assert agent.end(20) == 0, agent.err
    assert signals_in(agent.out.decode())["SigBlk"] >= {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}


def test_sigterm_ends_a_run_though_all_signals_were_blocked(scene):
    agent = scene.actors("--shutdown-timeout=1", act=["note"], preexec_fn=lambda: (default_signals(), block_all()))
    scene.world(1)
    agent.signal(signal.SIGTERM)
    assert agent.end(20) == 1, agent.err


def test_workers_have_the_default_action_for_handled_signals(scene):
    """A shell's `&` in a script ignores SIGINT and SIGQUIT; other ignored signals stay ignored."""
    def before():
        default_signals()
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGWINCH):
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
            signal.signal(number, signal.SIG_DFL)

    agent = scene.shell(f"{LOOK_AT_SIGNALS}; : > $STAGE/up; exec sleep 600", preexec_fn=before)
    until((scene.stage / "up").exists, what="the worker")
    agent.signal(signal.SIGINT)
    assert agent.end(20) == 1, agent.err  # the default grace is 30 s
    assert signals_in(agent.out.decode())["SigIgn"] == {signal.SIGUSR1, signal.SIGWINCH}


# ---- Failures of workers ----


def test_a_failing_worker_is_started_again_as_often_as_allowed(scene):
    """The count goes up, the port is a new one each round, and then there is a report."""
    agent = scene.actors("--nproc-per-node=2", "--max-restarts=2")
    ports, old = set(), []
    for count in range(3):
        workers = scene.world(2, without=old)
        assert one(workers, "TORCHELASTIC_RESTART_COUNT") == str(count)
        ports.add(one(workers, "MASTER_PORT"))
        old += workers
        workers[1].fail()
    assert agent.end() == 1
    assert len(ports) == 3
    assert not any(worker.alive for worker in old) and len(scene.seen()) == 6
    report = agent.err[agent.err.index(CHILD_FAILED):]
    assert report.endswith("=\n") and " FAILED\n" in report
    first, _, root = report.partition("Root Cause (first observed failure):\n")
    assert f"rank      : 1 (local_rank: 1)\n  exitcode  : 3 (pid: {workers[1].pid})" in root
    assert f"rank      : 0 (local_rank: 0)\n  exitcode  : -15 (pid: {workers[0].pid})" in first
    told = re.findall(r" rank 1 on \S+ \(local rank 1, pid (\d+)\) failed: exit code 3\n", agent.err)
    assert told == [str(worker.pid) for worker in old if worker.rank == 1]


def test_a_restart_that_helps_ends_well(scene):
    agent = scene.shell('[ "$TORCHELASTIC_RESTART_COUNT" = 1 ]', "--nproc-per-node=3", "--max-restarts=3")
    assert agent.end() == 0, agent.err
    assert CHILD_FAILED not in agent.err


@pytest.mark.parametrize("code", [1, 2, 125, 126, 127, 128, 137, 143, 255])
def test_any_exit_code_is_reported_and_ours_is_1(scene, code):
    agent = scene.shell(f"exit {code}")
    assert agent.end() == 1
    assert f"exitcode  : {code} (pid: " in agent.err and "<NO_OTHER_FAILURES>" in agent.err


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGILL, signal.SIGABRT, signal.SIGKILL,
                                    signal.SIGSEGV, signal.SIGPIPE, signal.SIGTERM, signal.SIGRTMIN, signal.SIGRTMAX])
def test_a_death_by_signal_is_named(scene, number):
    agent = scene.shell(f"ulimit -c 0; kill -{int(number)} $BASHPID; sleep 60")
    assert agent.end() == 1
    assert f"exitcode  : -{int(number)} (pid: " in agent.err
    if number < signal.SIGRTMIN:
        assert re.search(rf"traceback : Signal {int(number)} \({number.name}\) received by PID \d+\n", agent.err)
        above = agent.err[:agent.err.index(CHILD_FAILED)]
        assert number.name in above
    else:
        assert re.search(rf"traceback : Signal {int(number)} \(.*\) received by PID \d+\n", agent.err)


def test_a_worker_that_stops_itself_holds_nothing_up(scene):
    agent = scene.shell('[ "$RANK" = 0 ] && kill -STOP $BASHPID; sleep 0.3; exit 4', "--nproc-per-node=2", "--max-restarts=1")
    started = time.monotonic()
    assert agent.end() == 1
    assert "exitcode  : 4 " in agent.err
    assert time.monotonic() - started < 10  # a stopped process ends by SIGTERM too: it is continued


def test_a_worker_that_closes_its_outputs_is_waited_for(scene):
    agent = scene.shell(f"exec >&- 2>&- <&-; read -t 0.2 <> <(:); : > {scene.path}/done", "-t3", "-r3")
    assert agent.end() == 0, agent.err
    assert (scene.path / "done").exists()


# ---- Error files ----


def fail_with(scene, content, *options, env=None, nproc=1):
    """Workers leave that in their error file and fail."""
    (scene.path / "content").write_bytes(content)
    agent = scene.shell(f'cp {scene.path}/content "$TORCHELASTIC_ERROR_FILE"; exit 9', f"--nproc-per-node={nproc}",
                        *options, env=env)
    assert agent.end() == 1
    return agent.err


OBJECT = {"message": {"message": "RuntimeError: boom", "extraInfo": {"py_callstack": "Traceback:\n  line\nRuntimeError: boom\n",
                                                                  "timestamp": "1794724302"}, "other": [1, None]},
          "more": 1.5}


def test_an_error_file_is_shown_and_copied_with_the_exit_code(scene):
    copy = scene.path / "copy.json"
    err = fail_with(scene, json.dumps(OBJECT).encode(), env={"TORCHELASTIC_ERROR_FILE": str(copy)})
    assert "\n  traceback : Traceback:\n    line\n  RuntimeError: boom\n  \n===" in err
    assert re.search(rf"\n  error_file: {scene.tmp}/.*/attempt_0/0/error.json\n", err)
    moment = time.strftime("%Y-%m-%d_%H:%M:%S", time.localtime(1794724302))
    assert f"\n  time      : {moment}\n" in err
    assert "failed: exit code 9: RuntimeError: boom\n" in err[:err.index(CHILD_FAILED)]
    expected = json.loads(json.dumps(OBJECT))
    expected["message"]["errorCode"] = 9
    assert json.loads(copy.read_text()) == expected


def test_an_error_file_that_was_there_is_replaced(scene):
    copy = scene.path / "copy.json"
    copy.write_text("old")
    err = fail_with(scene, json.dumps(OBJECT).encode(), env={"TORCHELASTIC_ERROR_FILE": str(copy)})
    assert json.loads(copy.read_text())["message"]["errorCode"] == 9
    assert str(copy) in err


def test_a_text_as_message_is_shown_and_copied_as_it_is(scene):
    copy = scene.path / "copy.json"
    err = fail_with(scene, b'{"message": "just text", "timestamp": 5}', env={"TORCHELASTIC_ERROR_FILE": str(copy)})
    assert "\n  traceback : just text\n" in err
    assert json.loads(copy.read_text()) == {"message": "just text", "timestamp": 5}


def test_without_an_error_file_there_is_no_copy(scene):
    copy = scene.path / "copy.json"
    agent = scene.shell("exit 1", env={"TORCHELASTIC_ERROR_FILE": str(copy)})
    assert agent.end() == 1
    assert not copy.exists()


def test_the_launchers_own_error_goes_to_its_error_file(scene):
    copy = scene.path / "copy.json"
    agent = scene.actors(env={"TORCHELASTIC_ERROR_FILE": str(copy)})
    scene.world(1)
    agent.signal(signal.SIGTERM)
    assert agent.end() == 1
    message = json.loads(copy.read_text())["message"]
    assert message["message"] == f"SignalException: Process {agent.keeper} got signal: 15"
    assert abs(int(message["extraInfo"]["timestamp"]) - time.time()) < 60


@pytest.mark.parametrize("content", [
    b"", b"{", b"not json", b"[]", b"{}", b"null", b'{"message": {}}', b'{"message": {"extraInfo": {}}}',
    b'{"message": {"extraInfo": {"timestamp": "soon"}}}', b'{"message": null}', b'{"message": 5}',
    b'{"message": "\xff\xfe"}', b'{"message": "a\\u0000b"}', b"\0" * 1000, b"[" * 100000,
    b'{"message": "' + b"x" * (20 << 20) + b'"}', b'{"message": "\\u001b[2J"}',
], ids=["empty", "cut off", "no json", "array", "no message", "null", "no info", "no time", "bad time", "null message",
        "number", "no utf-8", "nul", "zeros", "deep", "20 MiB", "escape"])
def test_a_malformed_error_file_spoils_nothing(scene, content):
    copy = scene.path / "copy.json"
    err = fail_with(scene, content, env={"TORCHELASTIC_ERROR_FILE": str(copy)}, nproc=2)
    assert CHILD_FAILED in err and "Root Cause" in err and err.endswith("=\n")
    assert "exitcode  : 9 (pid: " in err
    assert "\x1b" not in err and "\0" not in err
    assert len(err) < 1 << 20


@pytest.mark.parametrize("make", ["mkdir", "mkfifo", "ln -s /dev/zero", "ln -s /nowhere", "ln -s error.json"])
def test_something_else_in_place_of_an_error_file_spoils_nothing(scene, make):
    copy = scene.path / "copy.json"
    agent = scene.shell(f'{make} "$TORCHELASTIC_ERROR_FILE"; exit 9', env={"TORCHELASTIC_ERROR_FILE": str(copy)})
    assert agent.end() == 1
    assert CHILD_FAILED in agent.err and "exitcode  : 9 (pid: " in agent.err


# ---- Several nodes ----


def local(port):
    return f"127.0.0.1:{port}"


def end_all(workers):
    for worker in workers:
        worker.succeed()


def test_two_nodes_form_one_world(scene):
    endpoint = local(free_port())
    agents = [scene.node(endpoint, "--nnodes=2", "--nproc-per-node=2", "--max-restarts=3", drop=["OMP_NUM_THREADS"])
              for _ in range(2)]
    workers = scene.world(4)
    assert values(workers, "RANK") == values(workers, "ROLE_RANK") == ["0", "1", "2", "3"]
    assert values(workers, "LOCAL_RANK") == ["0", "1", "0", "1"]
    assert values(workers, "GROUP_RANK") == ["0", "0", "1", "1"]
    for name, value in {"ROLE_NAME": "default", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2",
                        "ROLE_WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RESTART_COUNT": "0",
                        "TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RUN_ID": "job", "OMP_NUM_THREADS": "1",
                        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}.items():
        assert one(workers, name) == value, name
    assert one(workers, "MASTER_PORT") != endpoint.rpartition(":")[2]
    files = values(workers, "TORCHELASTIC_ERROR_FILE")
    assert len(set(files)) == 4 and all(f"/attempt_0/{rank % 2}/" in path for rank, path in enumerate(files))
    end_all(workers)
    assert [agent.end() for agent in agents] == [0, 0]


def test_nodes_that_meet_at_localhost_send_their_workers_there(scene):
    endpoint = f"localhost:{free_port()}"
    agents = [scene.node(endpoint, "--nnodes=2") for _ in range(2)]
    workers = scene.world(2)
    assert one(workers, "MASTER_ADDR") == "localhost"
    for host in ("127.0.0.1", "localhost"):
        with socket.create_connection((host, int(one(workers, "MASTER_PORT"))), timeout=60):
            pass
    end_all(workers)
    assert [agent.end() for agent in agents] == [0, 0]


def test_a_machine_that_does_not_know_localhost_sends_its_workers_to_the_address(scene, absent):
    (scene.path / "hosts").write_text("127.0.0.1 this-machine # localhost\n")
    apart = ("unshare", "-m", "--propagation", "private", "sh", "-c",
             f'mount --bind {scene.path}/hosts /etc/hosts && exec "$0" "$@"')
    if os.geteuid() != 0 or subprocess.run([*apart, "true"], capture_output=True, check=False).returncode != 0:
        absent("cannot mount")
    agent = scene.shell("echo $MASTER_ADDR", "--standalone", program=(*apart, MUSTER, "run"))
    assert (agent.end(), agent.out) == (0, b"127.0.0.1\n"), agent.err


def test_nodes_may_differ_in_size_and_role(scene):
    endpoint = local(free_port())
    agents = [scene.node(endpoint, "--nnodes=3", f"--nproc-per-node={size}", f"--role={role}")
              for role, size in (("ps", 2), ("tr", 3), ("ps", 1))]
    workers = scene.world(6)
    base = {"ps": 0, "tr": 0}
    for worker in workers:
        role = worker.env["ROLE_NAME"]
        assert worker.env["ROLE_RANK"] == str(base[role]) and worker.env["ROLE_WORLD_SIZE"] == "3"
        base[role] += 1
    end_all(workers)
    assert [agent.end() for agent in agents] == [0, 0, 0]


def test_static_nodes_meet_where_they_are_told(scene):
    port = free_port()
    agents = [scene.actors("--nnodes=2", "--nproc-per-node=2", f"--node-rank={rank}", f"--master-port={port}")
              for rank in (1, 0)]
    workers = scene.world(4)
    assert one(workers, "MASTER_PORT") == str(port) and one(workers, "MASTER_ADDR") == "127.0.0.1"
    assert one(workers, "TORCHELASTIC_RUN_ID") == "none"
    assert one(workers, "TORCHELASTIC_USE_AGENT_STORE") == "True"
    end_all(workers)
    assert [agent.end() for agent in agents] == [0, 0]


def test_static_nodes_speak_as_pytorch_1_13_does_if_they_are_told(scene):
    port = free_port()
    agents = [static_node(scene, port, rank, "--rdzv-conf=dialect=1.13", "--rdzv-id=job") for rank in (1, 0)]
    workers = scene.world(2)
    assert one(workers, "TORCHELASTIC_USE_AGENT_STORE") == "True"
    for key, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                       "torchelastic/role_info1": '{"role": "default", "rank": 1, "local_world_size": 1}'}.items():
        done = subprocess.run([MUSTER, "store", "get", "--timeout=10", "--endpoint", local(port), f"job/{key}"],
                              capture_output=True, check=True, text=True)
        assert done.stdout.strip() == value
    end_all(workers)
    assert [agent.end() for agent in agents] == [0, 0]


def static_node(scene, port, rank, *options, nodes=2):
    return scene.actors(f"--nnodes={nodes}", f"--node-rank={rank}", f"--master-port={port}", *options)


def test_a_second_static_rank_0_is_told_who_has_its_port(scene):
    port = free_port()
    first = static_node(scene, port, 0)
    first.said("waiting for rendezvous")
    second = static_node(scene, port, 0)
    assert second.end() == 1
    assert re.search(rf"rank 0 is taken by \S+ \(pid {first.agent}\); every node needs its own --node-rank", second.err)
    other = static_node(scene, port, 1)
    workers = scene.world(2)
    end_all(workers)
    assert [first.end(), other.end()] == [0, 0]


def test_a_static_rank_0_whose_port_another_program_has_says_so(scene, serve):
    endpoint = serve().endpoint
    agent = static_node(scene, endpoint.rpartition(":")[2], 0)
    assert agent.end() == 1
    assert agent.err.count(endpoint.rpartition(":")[2]) == 1 and ": Address already in use" in agent.err
    assert "is taken" not in agent.err


def test_a_second_static_node_of_the_same_rank_is_told_who_has_it(scene):
    port = free_port()
    agents = [static_node(scene, port, rank) for rank in (0, 1)]
    workers = scene.world(2)
    second = static_node(scene, port, 1)
    assert second.end() == 1
    assert re.search(rf"rank 1 is taken by \S+ \(pid {agents[1].agent}\); every node needs its own --node-rank", second.err)
    assert len(scene.seen()) == 2  # and it has started no worker
    end_all(workers)
    assert [agent.end() for agent in agents] == [0, 0]


@pytest.mark.parametrize("killed", [1, 2])
@pytest.mark.parametrize("restarts", [0, 3])
def test_a_static_node_that_is_killed_ends_the_others(scene, killed, restarts):
    port = free_port()
    agents = [static_node(scene, port, rank, f"--max-restarts={restarts}", nodes=3) for rank in range(3)]
    workers = scene.world(3)
    pid = agents[killed].agent
    os.kill(pid, signal.SIGKILL)
    others = [agent for agent in agents if agent is not agents[killed]]
    assert [agent.end() for agent in others] == [1, 1]
    for agent in others:
        assert re.search(rf"lost \S+ \(pid {pid}\), rank {killed}; a static group cannot go on", agent.err), agent.err
    until(lambda: not any(worker.alive for worker in workers), what="the end of all workers")


def test_a_static_rank_0_that_is_killed_ends_the_others(scene):
    port = free_port()
    agents = [static_node(scene, port, rank) for rank in (0, 1)]
    workers = scene.world(2)
    os.kill(agents[0].agent, signal.SIGKILL)
    assert agents[1].end() == 1
    assert f"port {port}" in agents[1].err
    until(lambda: not any(worker.alive for worker in workers), what="the end of all workers")


def test_a_static_node_that_is_done_is_not_lost(scene):
    port = free_port()
    agents = [static_node(scene, port, rank) for rank in (0, 1)]
    workers = scene.world(2)
    workers[1].succeed()
    until(lambda: not workers[1].alive, what="the end of a worker")
    assert workers[0].alive
    workers[0].succeed()
    assert [agent.end() for agent in agents] == [0, 0]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_failure_on_one_node_restarts_both_with_one_count_and_costs_one(scene, rank, engine):
    endpoint = local(free_port())
    agents = [scene.node(endpoint, "--nnodes=2", "--max-restarts=2") for _ in range(2)]
    ports, old = set(), []
    for count in range(3):
        workers = scene.world(2, without=old)
        assert one(workers, "TORCHELASTIC_RESTART_COUNT") == str(count)
        ports.add(one(workers, "MASTER_PORT"))
        old += workers
        workers[rank].fail()
    assert [agent.end() for agent in agents] == [1, 1]
    assert len(ports) == 3 and len(scene.seen()) == 6
    assert sum(CHILD_FAILED in agent.err and "exitcode  : 3" in agent.err for agent in agents) == 1
    for agent in agents:  # each failure once, by rank, host and cause, on every node; with a leader also what it costs
        told = re.findall(rf"rank {rank} on \S+ \(local rank 0, pid (\d+)\) failed: exit code 3"
                          "(?!; restarting with|; no restarts left)", agent.err)
        assert told == [str(worker.pid) for worker in old if worker.rank == rank], agent.err


def test_a_failure_is_told_to_the_others_before_the_rest_of_its_node_is_stopped(scene, serve):
    """Workers that do not heed SIGTERM have 30 s on every node, and those run at the same time."""
    endpoint = serve().endpoint
    for _ in range(3):
        scene.node(endpoint, "--nnodes=3", "--nproc-per-node=2", "--max-restarts=1", act=["ignore"])
    workers = scene.world(6)
    failing = agent_of(scene, workers[0])
    others = [agent for agent in scene.agents if agent is not failing]
    workers[0].fail()
    until(lambda: all(worker.got() for worker in workers[1:]), what="SIGTERM for all")
    assert workers[1].alive  # the sibling of the one that failed: its node is not done with stopping
    for agent in others:
        agent.said(f"(local rank 0, pid {workers[0].pid}) failed: exit code 3; restarting the group\n")
        assert " to join; " not in agent.err and "lost " not in agent.err
    for worker in workers[1:]:
        worker.signal(signal.SIGKILL)
    again = scene.world(6, without=workers)
    assert one(again, "TORCHELASTIC_RESTART_COUNT") == "1"
    end_all(again)
    assert [agent.end() for agent in scene.agents] == [0, 0, 0]


@pytest.mark.usefixtures("document")
def test_of_rounds_that_are_long_over_nothing_is_left_in_the_store(scene, serve):
    server = serve()
    agents = [scene.node(server.endpoint, "--nnodes=2", "--max-restarts=11") for _ in range(2)]
    old = []

    def rounds():
        keys = server.call("list", "--prefix", "muster.job").out.decode().split()
        return {int(number) for number in re.findall(r"(?m)^(\d+)\.[0-9a-f]{16}/", "\n".join(keys))}
    for count in range(12):
        workers = scene.world(2, without=old)
        assert one(workers, "TORCHELASTIC_RESTART_COUNT") == str(count)
        old += workers
        if count < 11:
            workers[count % 2].fail()
    until(lambda: rounds() and min(rounds()) > max(rounds()) - 8, what="the rest of the first rounds to go")
    assert max(rounds()) >= 11
    end_all(workers)
    assert [agent.end() for agent in agents] == [0, 0]


def test_the_budget_is_the_jobs_not_each_nodes(scene):
    """Failures in turn on either node: the second one is one too many."""
    endpoint = local(free_port())
    agents = [scene.node(endpoint, "--nnodes=2", "--max-restarts=1") for _ in range(2)]
    first = scene.world(2)
    first[0].fail()
    second = scene.world(2, without=first)
    assert one(second, "TORCHELASTIC_RESTART_COUNT") == "1"
    second[1].fail()
    assert [agent.end() for agent in agents] == [1, 1]


def test_both_nodes_failing_at_once_costs_one(scene):
    endpoint = local(free_port())
    agents = [scene.node(endpoint, "--nnodes=2", "--max-restarts=1") for _ in range(2)]
    first = scene.world(2)
    for worker in first:
        with contextlib.suppress(ProcessLookupError):  # the other's end has been answered already
            worker.fail()
    second = scene.world(2, without=first)
    assert one(second, "TORCHELASTIC_RESTART_COUNT") == "1"
    end_all(second)
    assert [agent.end() for agent in agents] == [0, 0]


def test_what_was_waited_for_in_a_round_that_came_to_nothing_is_not_in_the_way_of_the_next(scene, serve):
    """Members that never say how many workers they have, for they are no launchers, and then go."""
    endpoint = serve().endpoint
    first = scene.node(endpoint, "--nnodes=4", "--local-addr=127.0.0.1")
    others = [scene.start("--rdzv-id=job", f"--rdzv-endpoint={endpoint}", "--nnodes=4", "--hold=600",
                          f"--local-addr=127.0.0.{i}", program=(MUSTER, "join")) for i in (2, 3, 4)]
    until(lambda: all(b"\n" in other.out for other in others), what="a round")
    time.sleep(0.5)  # a moment for it to ask them; if that is too short, nothing is shown
    for other in others:
        other.signal(signal.SIGTERM)
        assert other.end() == 0, other.err
    for i in (2, 3, 4):
        scene.node(endpoint, "--nnodes=4", f"--local-addr=127.0.0.{i}")
    workers = scene.world(4)
    end_all(workers)
    assert [agent.end() for agent in scene.agents if agent not in others] == [0, 0, 0, 0]


def test_a_world_of_one_grows_to_two(scene):
    endpoint = local(free_port())
    agents = [scene.node(endpoint, "--nnodes=1:2")]
    alone = scene.world(1)
    agents.append(scene.node(endpoint, "--nnodes=1:2"))
    both = scene.world(2, without=alone)
    assert one(both, "TORCHELASTIC_RESTART_COUNT") == "0"  # a change of members is free
    end_all(both)
    assert [agent.end() for agent in agents] == [0, 0]


def test_a_world_grows_and_shrinks(scene, serve):
    endpoint = serve().endpoint
    agents = [scene.node(endpoint, "--nnodes=2:4") for _ in range(2)]
    two = scene.world(2)
    agents += [scene.node(endpoint, "--nnodes=2:4") for _ in range(2)]
    four = scene.world(4, without=two)
    agents[0].signal(signal.SIGTERM)
    three = scene.world(3, without=four)
    assert one(three, "GROUP_WORLD_SIZE") == "3" and one(three, "TORCHELASTIC_RESTART_COUNT") == "0"
    end_all(three)
    assert [agent.end() for agent in agents] == [1, 0, 0, 0]


def agent_of(scene, worker):
    """The agent that started it."""
    parent = int(pathlib.Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[1])
    found, = [agent for agent in scene.agents if agent.process.poll() is None and parent in children(agent.keeper)]
    return found


def test_the_first_rank_can_leave_when_the_store_is_elsewhere(scene, serve):
    endpoint = serve().endpoint
    for _ in range(3):
        scene.node(endpoint, "--nnodes=1:3")
    three = scene.world(3)
    leaver = agent_of(scene, three[0])
    leaver.signal(signal.SIGTERM)
    two = scene.world(2, without=three)
    assert leaver.end() == 1
    end_all(two)
    assert sorted(agent.end() for agent in scene.agents) == [0, 0, 1]


def kill_agent(agent):
    os.kill(agent.agent, signal.SIGKILL)


def kill_keeper(agent):
    """When this returns its agent can know."""
    os.kill(agent.keeper, signal.SIGKILL)
    os.waitid(os.P_PID, agent.keeper, os.WEXITED | os.WNOWAIT)


def kill_both(agent):
    """One after the other."""
    below = agent.agent
    os.kill(agent.keeper, signal.SIGKILL)
    os.kill(below, signal.SIGKILL)


def kill_both_upwards(agent):
    below = agent.agent
    os.kill(below, signal.SIGKILL)
    os.kill(agent.keeper, signal.SIGKILL)


@pytest.mark.parametrize("kill", [kill_agent, kill_keeper, kill_both, kill_both_upwards])
@pytest.mark.parametrize("rank", [0, 2])
def test_survivors_of_a_killed_agent_regroup_and_nothing_of_it_is_left(scene, serve, kill, rank):
    endpoint = serve().endpoint
    for _ in range(2):
        scene.node(endpoint, "--nnodes=1:2", "--nproc-per-node=2")
    four = scene.world(4)
    victim = agent_of(scene, four[rank])
    kill(victim)
    assert victim.end() == -9
    two = scene.world(2, without=four, limit=REGROUP)
    assert one(two, "TORCHELASTIC_RESTART_COUNT") == "0"
    survivor, = [agent for agent in scene.agents if agent is not victim]
    assert not [pid for pid in scene.left() if pid not in (survivor.keeper, survivor.agent, *(w.pid for w in two))]
    end_all(two)
    assert survivor.end() == 0


@pytest.mark.parametrize("kill", [kill_agent, kill_keeper])
def test_not_even_detached_processes_of_a_killed_agent_are_left(scene, kill):
    agent = scene.actors("--nproc-per-node=2", act=["leave", "ignore"])
    scene.world(2)
    assert len(scene.left()) == 2 + 2 * 4
    kill(agent)
    assert agent.end() == -9
    until(lambda: not scene.left(), 20, what="the end of all")
    assert "Assertion" not in agent.err


@pytest.mark.parametrize("name", ["sleep", "torch_shm_manager"])
def test_when_the_keeper_is_killed_detached_processes_of_detached_ones_are_not_left(scene, tmp_path, name):
    """Of which the agent becomes the parent only when the first of them are dead."""
    shutil.copy(shutil.which("sleep"), tmp_path / name)
    stayer = f"setsid bash -c 'setsid sleep 600 & exec {shlex.quote(str(tmp_path / name))} 600' &"
    agent = scene.shell(f"{stayer} exec {sys.executable} -S -E {ACTOR}")
    scene.world(1)
    until(lambda: len(scene.left()) == 2 + 3, what="all of them")
    kill_keeper(agent)
    assert agent.end() == -9
    until(lambda: not scene.left(), what="the end of all")
    assert "Assertion" not in agent.err


def test_the_keeper_says_what_happened_to_the_agent(scene):
    agent = scene.actors()
    scene.world(1)
    kill_agent(agent)
    assert agent.end() == -9
    assert "SIGKILL" in agent.err


def test_a_killed_process_group_leaves_nothing(scene):
    agent = scene.actors("--nproc-per-node=2", act=["leave", "ignore"], start_new_session=True)
    scene.world(2)
    os.killpg(agent.keeper, signal.SIGKILL)
    assert agent.end() == -9
    until(lambda: not scene.left(), 20, what="the end of all")


def why_restarted(agent):
    """What it said made it restart the group, each time."""
    return [line.partition(": ")[2].removesuffix("; restarting the group")
            for line in agent.err.splitlines() if line.endswith("; restarting the group")]


def test_nodes_that_join_leave_or_are_lost_are_told_apart(scene, serve, engine):
    """By all others alike. They are on one host, so their pids are added."""
    endpoint, host = serve().endpoint, socket.gethostname()
    for _ in range(3):
        scene.node(endpoint, "--nnodes=1:4")
    first = scene.world(3)
    newcomer = scene.node(endpoint, "--nnodes=1:4")
    second = scene.world(4, without=first)
    newcomer_pid = newcomer.agent
    left = agent_of(scene, second[2])
    left_pid = left.agent
    left.signal(signal.SIGTERM)
    assert left.end() == 1
    third = scene.world(3, without=first + second)
    lost = agent_of(scene, third[1])
    lost_pid = lost.agent
    kill_agent(lost)
    last = scene.world(2, without=first + second + third)
    survivors = [agent_of(scene, worker) for worker in last]
    end_all(last)
    assert [agent.end() for agent in survivors] == [0, 0]
    for agent in survivors:
        *joined, gone, killed = why_restarted(agent)
        assert joined == ([] if agent is newcomer else [f"{host} (pid {newcomer_pid}) wants to join"])
        assert gone == f"{host} (pid {left_pid}) left (SIGTERM)"
        assert killed == f"lost {host} (pid {lost_pid}): its agent was killed"


def test_a_node_that_is_lost_without_a_last_will_is_noticed(scene, serve, engine):
    """Its keeper was killed too, as when the power fails."""
    endpoint, host = serve().endpoint, socket.gethostname()
    for _ in range(2):
        scene.node(endpoint, "--nnodes=1:2")
    both = scene.world(2)
    lost = agent_of(scene, both[1])
    lost_pid = lost.agent
    os.kill(lost_pid, signal.SIGSTOP)  # or it might still say that its keeper was killed
    kill_both(lost)
    alone = scene.world(1, without=both, limit=REGROUP)
    survivor = agent_of(scene, alone[0])
    end_all(alone)
    assert survivor.end() == 0
    how = f"no heartbeat for {DEATH_AGE} s" if engine == "off" else "its connection was closed"
    assert why_restarted(survivor) == [f"lost {host} (pid {lost_pid}): {how}"]


def test_the_killed_host_of_a_store_takes_its_last_will_with_it_and_ends_at_once(scene):
    """There is nobody any more who could read it."""
    endpoint = local(free_port())
    host = scene.node(endpoint, "--nnodes=2")
    other = scene.node(endpoint, "--nnodes=2")
    scene.world(2)
    kill_agent(host)
    assert host.end() == -9
    assert "none of its processes are left" in host.err or "killed what was left" in host.err
    other.signal(signal.SIGTERM)
    assert other.end() != 0


def test_below_the_minimum_survivors_wait_and_say_for_whom(scene, serve):
    endpoint = serve().endpoint
    for _ in range(2):
        scene.node(endpoint, "--nnodes=2")
    both = scene.world(2)
    victim = agent_of(scene, both[1])
    survivor = agent_of(scene, both[0])
    victim_pid = victim.agent
    kill_agent(victim)
    until(lambda: not scene.alive(), REGROUP, what="the survivor's stop")
    survivor.said("lost")
    survivor.said("waiting for rendezvous 'job': 1 of 2 nodes joined (")
    survivor.said("), 1 more needed")
    lost = [line for line in survivor.err.splitlines() if " warning: " in line and "lost" in line]
    assert lost and f"(pid {victim_pid})" in lost[0]
    replacement = scene.node(endpoint, "--nnodes=2")
    again = scene.world(2, without=both)
    end_all(again)
    assert (survivor.end(), replacement.end()) == (0, 0)
    line, = [line for line in survivor.err.splitlines() if "regrouped in" in line]
    assert "2 nodes" in line


def test_a_quiet_run_regroups_without_a_word(scene, serve):
    endpoint = serve().endpoint
    first = scene.node(endpoint, "--nnodes=1:2", "-q")
    alone = scene.world(1)
    second = scene.node(endpoint, "--nnodes=1:2", "-q")
    both = scene.world(2, without=alone)
    end_all(both)
    assert (first.end(), second.end()) == (0, 0)
    assert (first.err, second.err) == ("", "")


def test_below_the_minimum_the_wait_has_an_end(scene, serve):
    endpoint = serve().endpoint
    for _ in range(2):
        scene.node(endpoint, "--nnodes=2", conf="last_call_timeout=1,join_timeout=2")
    both = scene.world(2)
    survivor = agent_of(scene, both[0])
    kill_agent(agent_of(scene, both[1]))
    assert survivor.end() == 1
    assert "RendezvousTimeoutError" in survivor.err.splitlines()[-1]


def test_with_the_host_of_the_store_the_job_is_lost_and_says_so(scene):
    endpoint = local(free_port())
    first = scene.node(endpoint, "--nnodes=1:2", "-v", conf="last_call_timeout=1,join_timeout=3")
    first.said("hosting its store")
    second = scene.node(endpoint, "--nnodes=1:2", conf="last_call_timeout=1,join_timeout=3,is_host=false")
    scene.world(2)
    kill_agent(first)
    until(lambda: not scene.alive(), REGROUP, what="the survivor's stop")
    assert second.end() == 1
    assert endpoint in second.err.splitlines()[-1]


def test_a_node_that_is_done_is_not_lost(scene, serve):
    """Its workers have ended well; whatever then happens to it, the others go on."""
    endpoint = serve().endpoint
    for _ in range(2):
        scene.node(endpoint, "--nnodes=2", "-v")
    both = scene.world(2)
    done, running = agent_of(scene, both[0]), agent_of(scene, both[1])
    both[0].succeed()
    until(lambda: not both[0].alive, what="its end")
    time.sleep(3)  # longer than the time after which a silent node is dead: it is not silent
    assert both[1].alive and done.process.poll() is None and len(scene.seen()) == 2
    kill_agent(done)
    time.sleep(REGROUP)
    assert both[1].alive and running.process.poll() is None and len(scene.seen()) == 2
    both[1].succeed()
    assert running.end() == 0


def test_a_done_node_lets_the_others_regroup(scene, serve):
    endpoint = serve().endpoint
    for _ in range(3):
        scene.node(endpoint, "--nnodes=1:3", "--max-restarts=1")
    three = scene.world(3)
    done = agent_of(scene, three[0])
    three[0].succeed()
    until(lambda: not three[0].alive, what="its end")
    three[1].fail()
    two = scene.world(2, without=three)
    assert one(two, "TORCHELASTIC_RESTART_COUNT") == "1"
    end_all(two)
    assert sorted(agent.end() for agent in scene.agents) == [0, 0, 0], done.err


def test_a_job_that_has_ended_is_closed(scene, serve, engine):
    endpoint = serve().endpoint
    agent = scene.node(endpoint, "--nnodes=1")
    end_all(scene.world(1))
    assert agent.end() == 0
    late = scene.node(endpoint, "--nnodes=1")
    assert late.end() == 1
    assert "RendezvousClosedError" in late.err.splitlines()[-1] and "'job'" in late.err.splitlines()[-1]


def test_a_job_that_has_failed_is_closed(scene, serve):
    endpoint = serve().endpoint
    agent = scene.node(endpoint, "--nnodes=1")
    scene.world(1)[0].fail()
    assert agent.end() == 1
    late = scene.node(endpoint, "--nnodes=1")
    assert late.end() == 1 and "RendezvousClosedError" in late.err.splitlines()[-1]


def test_a_node_that_another_one_cannot_be_told_from_is_refused(scene, serve, absent):
    """The same name, the same pid in namespaces of their own, and randomness that is none."""
    source, library = scene.path / "same.c", scene.path / "same.so"
    source.write_text("#include <string.h>\n#include <sys/types.h>\nssize_t getrandom(void *to, size_t len, unsigned flags)\n"
                      "{ (void)flags; memset(to, 7, len); return (ssize_t)len; }\n")
    wrap = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    if (shutil.which("cc") is None or os.geteuid() != 0 or
            subprocess.run([*wrap, "true"], capture_output=True, check=False).returncode != 0 or
            subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=False).returncode != 0):
        absent("no compiler, or no pid namespaces for us")
    words = ("--rdzv-backend=c10d", f"--rdzv-endpoint={serve().endpoint}", "--rdzv-id=job", "--nnodes=1:2",
             "--rdzv-conf=last_call_timeout=1,engine=off")

    def start():
        return scene.shell("echo $RANK $WORLD_SIZE >> $STAGE/up; until [ -e $STAGE/go ]; do sleep 0.05; done", *words,
                           program=(*wrap, "env", f"LD_PRELOAD={library}", MUSTER, "run"),
                           env={"ASAN_OPTIONS": "verify_asan_link_order=0"})
    first = start()
    until((scene.stage / "up").exists, what="the first node's worker")
    second = start()
    assert second.end() == 1
    assert "another node has the same identity" in second.err.splitlines()[-1]
    assert first.process.poll() is None
    (scene.stage / "go").touch()
    assert first.end() == 0, first.err
    assert (scene.stage / "up").read_text() == "0 1\n"


def test_a_signal_closes_nothing(scene, serve):
    endpoint = serve().endpoint
    agent = scene.node(endpoint, "--nnodes=1")
    scene.world(1)
    agent.signal(signal.SIGTERM)
    assert agent.end() == 1
    again = scene.node(endpoint, "--nnodes=1")
    end_all(scene.world(1))
    assert again.end() == 0


def test_who_waits_too_long_gives_up(scene, serve):
    agent = scene.node(serve().endpoint, "--nnodes=2", conf="join_timeout=1")
    started = time.monotonic()
    assert agent.end() == 1
    assert 0.9 < time.monotonic() - started < 8
    assert "RendezvousTimeoutError" in agent.err.splitlines()[-1]


def test_a_store_that_is_not_there_is_an_error(scene):
    agent = scene.node(local(free_port()), "--nnodes=2", conf="is_host=false,read_timeout=1,join_timeout=2")
    assert agent.end() == 1
    assert "RendezvousConnectionError" in agent.err.splitlines()[-1]


def test_a_store_that_is_away_stops_nobody(scene, serve):
    """It belongs to no member, so nobody is judged by it; back and empty, it gets the group again."""
    port = free_port()
    server = serve("--port", str(port))
    agents = [scene.node(server.endpoint, "--nnodes=2") for _ in range(2)]
    both = scene.world(2)
    server.stop()
    time.sleep(REGROUP)
    assert [worker.alive for worker in both] == [True, True]
    serve("--port", str(port))
    time.sleep(REGROUP)
    assert [worker.alive for worker in both] == [True, True]
    end_all(both)
    assert [agent.end() for agent in agents] == [0, 0]
    assert len(scene.seen()) == 2


# ---- Signals and ends ----


@pytest.mark.parametrize("number", TERM_INT_HUP)
def test_a_signal_while_nodes_gather_is_died_of(scene, serve, number):
    server = serve()
    agent = scene.node(server.endpoint, "--nnodes=2")
    agent.said("1 of 2 nodes joined")
    agent.signal(number)
    assert agent.end(20) == -number
    assert not scene.seen()


@pytest.mark.parametrize("number", TERM_INT_HUP)
def test_a_signal_with_workers_is_passed_on_and_is_an_error(scene, number):
    agent = scene.actors("--nproc-per-node=2", act=["note"])
    workers = scene.world(2)
    agent.signal(number)
    assert agent.end(20) == 1
    assert [worker.got() for worker in workers] == [[number], [number]]
    assert agent.err.splitlines()[-1].endswith(f"SignalException: Process {agent.keeper} got signal: {int(number)}")


def test_a_signal_of_no_concern_kills_the_agent_and_the_rest(scene):
    agent = scene.actors("--signals-to-handle=SIGINT", act=["leave"])
    scene.world(1)
    agent.signal(signal.SIGTERM)
    assert agent.end(20) == -signal.SIGTERM
    until(lambda: not scene.left(), 20, what="the end of all")


@pytest.mark.parametrize("seconds", [0, 1])
def test_workers_that_do_not_end_are_killed_in_time(scene, seconds):
    agent = scene.actors("--nproc-per-node=2", f"--shutdown-timeout={seconds}", act=["ignore"])
    workers = scene.world(2)
    started = time.monotonic()
    agent.signal(signal.SIGTERM)
    assert agent.end(seconds + 20) == 1
    assert time.monotonic() - started >= seconds
    if seconds:
        assert [worker.got() for worker in workers] == [[15], [15]]


@pytest.mark.parametrize("failing", [True, False])
def test_the_shutdown_timeout_counts_for_failures_and_restarts_too(scene, failing):
    """The default is 30 s, which is more than this test waits."""
    restarts = 0 if failing else 1
    agent = scene.actors("--nproc-per-node=2", "--shutdown-timeout=1", f"--max-restarts={restarts}", act=["ignore"])
    workers = scene.world(2)
    workers[0].fail()
    if not failing:
        end_all(scene.world(2, workers, limit=20))
    assert agent.end(20) == (1 if failing else 0)
    assert workers[1].got() == [15]


def test_a_second_ctrl_c_kills_when_a_second_has_passed(scene):
    agent = scene.actors("--nproc-per-node=2", act=["ignore"])
    workers = scene.world(2)
    started = time.monotonic()
    agent.signal(signal.SIGINT)
    until(lambda: all(worker.got() for worker in workers), what="the signal")
    while agent.process.poll() is None and time.monotonic() < started + 20:
        agent.signal(signal.SIGINT)
        time.sleep(0.05)
    assert agent.end(1) == 1
    assert time.monotonic() - started > 1
    assert [worker.got() for worker in workers] == [[signal.SIGINT]] * 2
    assert "] warning: Received 2 death signal, shutting down workers; another Ctrl-C kills them\n" in agent.err
    assert "] warning: Received 2 death signal, shutting down workers at once\n" in agent.err


def test_sigquit_after_another_signal_kills_at_once(scene):
    agent = scene.actors("--nproc-per-node=2", act=["ignore"])
    workers = scene.world(2)
    agent.signal(signal.SIGTERM)
    until(lambda: all(worker.got() for worker in workers), what="the signal")
    agent.signal(signal.SIGQUIT)
    assert agent.end(20) == 1
    assert "warning: Received 15 death signal, shutting down workers\n" in agent.err
    for worker in workers:
        assert f"warning: Sending process {worker.pid} closing signal SIGTERM\n" in agent.err


def test_a_worker_that_outlives_its_grace_is_killed_and_named(scene):
    agent = scene.actors("--shutdown-timeout=1", act=["ignore"])
    worker, = scene.world(1)
    agent.signal(signal.SIGTERM)
    assert agent.end(20) == 1
    assert f"warning: Unable to shutdown process {worker.pid} via 15, forcefully exiting via 9\n" in agent.err


def test_reply_files_are_named_where_there_are_some(scene):
    agent = scene.shell("exit 0", "-v", f"--log-dir={scene.path}/logs")
    assert agent.end() == 0
    run, = (scene.path / "logs").iterdir()
    assert f"info: log directory set to: {run}\n" in agent.err
    assert f"info: Setting worker0 reply file to: {run}/attempt_0/0/error.json\n" in agent.err
    agent = scene.shell("exit 0", "-v", "--log-dir=/dev/null")
    assert agent.end() == 0
    assert "log directory" not in agent.err and "reply file" not in agent.err


SAVING = """
trap 'touch $STAGE/begun; until [ -e $STAGE/go ]; do sleep 0.05; done; touch $STAGE/saved; exit 0' TERM
touch $STAGE/up
while :; do sleep 0.05; done
"""


@pytest.mark.parametrize("by", ["kill", "timeout"])
def test_repeated_sigterm_leaves_workers_the_time_to_save(scene, by):
    """GNU timeout passes a signal on to its command, and then once more to its whole process group."""
    program = ("timeout", "600", MUSTER, "run") if by == "timeout" else (MUSTER, "run")
    agent = scene.shell(SAVING, program=program)
    until((scene.stage / "up").exists, what="the worker")
    for _ in range(1 if by == "timeout" else 3):
        agent.signal(signal.SIGTERM)
    until((scene.stage / "begun").exists, what="the worker's handler")
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
        agent.signal(number)
        time.sleep(0.02)
    (scene.stage / "go").touch()
    agent.end(20)
    assert (scene.stage / "saved").exists(), agent.err


def test_a_signal_to_a_node_that_is_done_ends_it(scene, serve):
    server = serve()
    for _ in range(2):
        scene.node(server.endpoint, "--nnodes=2", "-vv")
    both = scene.world(2)
    done, running = agent_of(scene, both[0]), agent_of(scene, both[1])
    both[0].succeed()
    done.said("enter the exit barrier")
    server.call("list")  # by its answer the store has heard that, too
    done.signal(signal.SIGTERM)
    assert done.end(20) == 1
    both[1].succeed()
    assert running.end() == 0


@pytest.mark.parametrize("how", ["succeed", "fail", "signal"])
def test_what_workers_have_detached_is_gone_in_the_end(scene, how):
    agent = scene.actors("--nproc-per-node=2", act=["leave"])
    workers = scene.world(2)
    assert len(scene.left()) == 2 + 2 * 4
    if how == "succeed":
        end_all(workers)
    elif how == "fail":
        workers[0].fail()
    else:
        agent.signal(signal.SIGTERM)
    assert agent.end(10) == (0 if how == "succeed" else 1)
    assert not scene.left()


def test_what_a_worker_leaves_in_its_group_is_not_waited_for_and_named(scene):
    """It ignores SIGTERM; nobody is there any more for whose sake it would get the time that workers have."""
    agent = scene.shell(f"sh -c 'trap \"\" TERM; : > {scene.path}/up; while :; do sleep 1; done' & "
                        f"echo $!; until [ -e {scene.path}/up ]; do read -t 0.05 <> <(:); done; exit 0")
    assert agent.end(15) == 0, agent.err
    assert re.search(rf"left behind: .*\b{agent.out.decode().strip()} \(sh, state ", agent.err), agent.err
    assert agent.err.count("left behind") == 1
    assert not scene.left()


def test_what_workers_have_detached_is_gone_before_the_next_round(scene):
    agent = scene.actors("--nproc-per-node=2", "--max-restarts=1", act=["leave"])
    first = scene.world(2)
    first[0].fail()
    second = scene.world(2, without=first)
    assert len(scene.left()) == 2 + 2 * 4
    end_all(second)
    assert agent.end() == 0


def test_what_a_shell_had_started_before_is_left_alone(scene):
    """A process of `> >(...)` comes to the launcher, whose shell has become it, when its own parent ends."""
    held, go = scene.path / "held", scene.path / "go"
    worker = f"echo up; until [ -e {go} ]; do read -t 0.05 <> <(:); done; exit 0"
    before = f"sleep 300 & echo $! > {held}.new; mv {held}.new {held}; head -n 1"
    shell = subprocess.Popen(
        ["bash", "-c", f"exec '{MUSTER}' run --standalone --no-python bash -c {shlex.quote(worker)} > >({before})"],
        env=environment(), stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        until(held.exists)
        sleeper = int(held.read_text())
        until(lambda: stat(sleeper)[1:2] == [str(shell.pid)], what="the sleeper's new parent")
        go.touch()
        assert shell.wait(LIMIT) == 0
        assert is_alive(sleeper)
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait(LIMIT)


class Terminal:
    """A terminal with `muster run` in the foreground."""

    def __init__(self, scene, *words, act=()):
        self.master, slave = pty.openpty()
        self.agent = scene.actors(*words, act=act, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                                  preexec_fn=lambda: (default_signals(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)))
        os.close(slave)
        self._hung_up = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        """Takes what is shown, so that nobody waits for room."""
        try:
            while not self._hung_up.is_set():
                if select.select([self.master], [], [], 0.02)[0]:
                    os.read(self.master, 65536)
        except OSError:
            pass  # all who had it open are gone

    def press(self, key):
        os.write(self.master, key)

    def hang_up(self):
        self._hung_up.set()
        self._thread.join()  # a terminal that is being read is not closed
        os.close(self.master)


def state_of(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_ctrl_c_reaches_workers_once_and_ctrl_backslash_kills_them(scene):
    terminal = Terminal(scene, "--nproc-per-node=2", act=["ignore"])
    workers = scene.world(2)
    terminal.press(b"\x03")
    until(lambda: all(worker.got() for worker in workers), what="the signal")
    assert [worker.got() for worker in workers] == [[2], [2]]
    terminal.press(b"\x1c")
    assert terminal.agent.end(20) == 1
    terminal.hang_up()


def test_ctrl_z_suspends_workers_too(scene):
    terminal = Terminal(scene)
    worker, = scene.world(1)
    terminal.press(b"\x1a")
    until(lambda: state_of(worker.pid) == state_of(terminal.agent.keeper) == "T", what="the suspension")
    os.killpg(terminal.agent.keeper, signal.SIGCONT)  # as a shell's fg does
    until(lambda: "T" not in (state_of(worker.pid), state_of(terminal.agent.keeper)), what="the continuation")
    worker.succeed()
    assert terminal.agent.end() == 0
    terminal.hang_up()


def test_a_terminal_that_hangs_up_ends_the_run(scene):
    terminal = Terminal(scene, "--nproc-per-node=2", act=["leave", "note"])
    workers = scene.world(2)
    terminal.hang_up()
    assert terminal.agent.end(10) == 1
    assert [worker.got() for worker in workers] == [[1], [1]]
    assert not scene.left()


def test_as_the_first_process_of_a_namespace_it_ends_as_any_other(scene, absent):
    wrap = ("unshare", "--pid", "--fork", "--mount-proc", MUSTER, "run")
    if subprocess.run([*wrap[:-2], "true"], capture_output=True, check=False).returncode != 0:
        absent("no pid namespace for us")
    agent = scene.shell("sleep 600 & setsid sleep 600 & exit 0", "--nproc-per-node=2", program=wrap)
    assert agent.end() == 0, agent.err
    agent = scene.shell("exit 5", program=wrap)
    assert agent.end() == 1 and "exitcode  : 5" in agent.err


def test_nothing_of_multiprocessing_is_left(scene):
    """Processes and shared memory of Python's own, when its worker is stopped by a signal."""
    script = scene.path / "script.py"
    script.write_text(
        "import multiprocessing, os, signal, time\n"
        "from multiprocessing import shared_memory\n"
        "def child(): time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        "    memory = shared_memory.SharedMemory(create=True, size=1 << 16)\n"
        "    process = multiprocessing.get_context('spawn').Process(target=child)\n"
        "    process.start()\n"
        "    path = os.environ['STAGE'] + '/' + os.environ['RANK']\n"
        "    open(path + '.new', 'w').write(memory.name)\n"
        "    os.rename(path + '.new', path)\n"
        "    time.sleep(600)\n")
    agent = scene.start("--nproc-per-node=2", script, env={"PYTHON_EXEC": sys.executable})
    until(lambda: all((scene.stage / str(rank)).exists() for rank in range(2)), what="the memory")
    names = [(scene.stage / str(rank)).read_text().lstrip("/") for rank in range(2)]
    assert all(os.path.exists(f"/dev/shm/{name}") for name in names)
    agent.signal(signal.SIGTERM)
    assert agent.end(10) == 1
    assert not [name for name in names if os.path.exists(f"/dev/shm/{name}")]


def test_two_hundred_runs_leave_nothing_behind(scene):
    env = scene.environment()
    for _ in range(200):
        done = subprocess.run([MUSTER, "run", "--nproc-per-node=2", "--no-python", "sh", "-c", "sleep 600 & exit 0"],
                              env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT, check=False)
        assert done.returncode == 0, done
    assert not scene.left()


# ---- Output ----


SPEAK = 'echo out$LOCAL_RANK; echo err$LOCAL_RANK >&2'


def test_redirects_go_to_files_and_nowhere_else(scene):
    logs = scene.path / "deep" / "logs"
    agent = scene.shell(SPEAK, "--nproc-per-node=2", "-r", "3", "--log-dir", logs, "--rdzv-id=a/b", "--rdzv-backend=c10d",
                        f"--rdzv-endpoint={local(free_port())}")
    assert (agent.end(), agent.out) == (0, b""), agent.err
    assert "out" not in agent.err and "err0" not in agent.err
    tree = attempt(logs)
    assert re.fullmatch(r"a_b_[a-z0-9_]{8}", tree.parent.name)
    assert (tree.parent.stat().st_mode & 0o777) == 0o700
    for rank in 0, 1:
        assert (tree / str(rank) / "stdout.log").read_text() == f"out{rank}\n"
        assert (tree / str(rank) / "stderr.log").read_text() == f"err{rank}\n"


def test_redirects_may_differ_by_rank(scene):
    logs = scene.path / "logs"
    agent = scene.shell(SPEAK, "--nproc-per-node=3", "-r", "0:1,1:2,9:3", "-t", "2:1", "--log-dir", logs)
    assert agent.end() == 0, agent.err
    tree = attempt(logs)
    assert sorted(str(path.relative_to(tree)) for path in tree.rglob("*.log")) == \
        ["0/stdout.log", "1/stderr.log", "2/stdout.log"]
    assert sorted(agent.out.splitlines()) == [b"[default2]:out2", b"out1"]
    assert sorted(agent.trouble.splitlines()) == ["err0", "err2"]


def test_tee_shows_whole_lines_with_prefixes(scene):
    logs = scene.path / "logs"
    script = 'for i in $(seq 500); do echo "line $i of $RANK"; done; printf "no end"; printf "\\377\\n" >&2'
    agent = scene.shell(script, "--nproc-per-node=3", "-t", "3", "--role=trn", "--log-dir", logs)
    assert agent.end() == 0, agent.err
    lines = agent.out.decode().splitlines()
    for rank in range(3):
        mine = [line for line in lines if line.startswith(f"[trn{rank}]:")]
        assert mine == [f"[trn{rank}]:line {i} of {rank}" for i in range(1, 501)] + [f"[trn{rank}]:no end"]
        assert (attempt(logs) / str(rank) / "stdout.log").read_text().endswith(f"line 500 of {rank}\nno end")
        assert (attempt(logs) / str(rank) / "stderr.log").read_bytes() == b"\xff\n"
    assert len(lines) == 3 * 501
    assert sorted(line for line in bytes(agent._err).splitlines() if b" notice: " not in line) == \
        [b"[trn%d]:\xff" % rank for rank in range(3)]


def test_tee_shows_a_line_when_it_is_there(scene):
    agent = scene.shell(f"echo now; until [ -e {scene.path}/seen ]; do read -t 0.05 <> <(:); done; exit 0", "-t1")
    until(lambda: agent.out == b"[default0]:now\n", what="the line")
    (scene.path / "seen").touch()
    assert agent.end() == 0, agent.err


def test_what_a_killed_worker_wrote_last_is_not_lost(scene):
    agent = scene.shell("printf half; kill -9 $BASHPID", "-t", "3", "--log-dir", scene.path / "logs")
    assert agent.end() == 1
    assert agent.out.rstrip(b"\n") == b"[default0]:half"
    assert (attempt(scene.path / "logs") / "0" / "stdout.log").read_text() == "half"


def test_the_prefix_is_what_one_likes(scene):
    template = "<${role_name}/${rank}/${local_rank}/${who}> "
    agent = scene.shell("echo x", "-t1", env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": template})
    assert (agent.end(), agent.out) == (0, b"<default/0/0/${who}> x\n")


def test_the_option_for_the_prefix_wins_and_knows_the_host(scene):
    logs = scene.path / "logs"
    agent = scene.shell("echo x; echo y >&2", "-t3", "--log-dir", logs, "--log-line-prefix-template", "${hostname}:${rank}: ",
                        "--duplicate-stdout-filters=x", env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "other"})
    prefix = f"{socket.gethostname()}:0: "
    assert (agent.end(), agent.out) == (0, f"{prefix}x\n".encode())
    assert f"{prefix}y\n" in agent.err
    assert (attempt(logs) / "0" / "stdout.log").read_text() == "x\n"
    assert (attempt(logs) / "filtered_stdout.log").read_text() == f"{prefix}x\n"


def test_some_ranks_are_shown(scene):
    logs = scene.path / "logs"
    agent = scene.shell(SPEAK, "--nproc-per-node=3", "-t", "1", "--local-ranks-filter=1", "--log-dir", logs)
    assert (agent.end(), agent.out, agent.trouble) == (0, b"[default1]:out1\n", "err1\n")
    assert [(attempt(logs) / str(rank) / "stdout.log").read_text() for rank in range(3)] == ["out0\n", "out1\n", "out2\n"]


def test_lines_with_a_word_are_written_once_more(scene):
    logs = scene.path / "logs"
    agent = scene.shell("echo 'loss 5'; echo other; echo 'a,b'; echo 'loss' >&2", "--nproc-per-node=2", "-t", "3",
                        "--log-dir", logs, "--duplicate-stdout-filters", "loss,a,,b")
    assert agent.end() == 0, agent.err
    filtered = (attempt(logs) / "filtered_stdout.log").read_text().splitlines()
    assert sorted(filtered) == sorted(f"[default{rank}]:{text}" for rank in range(2) for text in ("loss 5", "a,b"))
    assert not (attempt(logs) / "filtered_stderr.log").exists()


def test_nothing_is_kept_in_dev_null(scene):
    agent = scene.shell('echo "<$TORCHELASTIC_ERROR_FILE>"', "-t1", "--log-dir=/dev/null")
    assert agent.end() == 0, agent.err
    assert agent.out == b"<>\n"
    assert not list(scene.tmp.iterdir())


def test_no_attempt_overwrites_another(scene, serve):
    """Restarts after failures count; those after a change of members keep the count, and have directories of their own."""
    logs = scene.path / "logs"
    endpoint = serve().endpoint
    scene.node(endpoint, "--nnodes=1:2", "--max-restarts=1", f"--log-dir={logs}", "-r3")
    alone = scene.world(1)
    scene.node(endpoint, "--nnodes=1:2", "--max-restarts=1")
    both = scene.world(2, without=alone)
    both[0].fail()
    again = scene.world(2, without=both)
    end_all(again)
    assert [agent.end() for agent in scene.agents] == [0, 0]
    assert attempts(logs) == ["attempt_0", "attempt_0.1", "attempt_1"]
    files = {worker.env["TORCHELASTIC_ERROR_FILE"] for worker in scene.seen()}
    assert len(files) == 5


def test_two_launchers_share_a_log_directory(scene):
    logs = scene.path / "logs"
    agents = [scene.shell("echo hi", "-r1", "--log-dir", logs) for _ in range(2)]
    assert [agent.end() for agent in agents] == [0, 0]
    assert len(list(logs.iterdir())) == 2


@pytest.mark.parametrize("below", ["", "/below"])
def test_a_log_directory_that_cannot_be_is_an_error(scene, below):
    (scene.path / "file").write_text("kept")
    agent = scene.actors(f"--log-dir={scene.path}/file{below}")
    assert agent.end() == 1
    assert agent.err.count("\n") == 1 and f"{scene.path}/file" in agent.err
    assert " error: muster run: NotADirectoryError: " in agent.err  # on which of many nodes
    assert (scene.path / "file").read_text() == "kept" and not scene.seen()


@pytest.fixture
def small_disk(scene, absent):
    """Runs under a tmpfs of 64 KiB that nobody else sees, so that nothing has to be unmounted."""
    if os.geteuid() != 0:
        absent("mounting takes root")
    disk = scene.path / "disk"
    disk.mkdir()
    wrap = ("unshare", "-m", "--propagation", "private", "sh", "-c",
            f'mount -t tmpfs -o size=64k none {disk} && exec "$0" "$@"', MUSTER, "run")
    if subprocess.run([*wrap[:-3], f"mount -t tmpfs none {disk}"], capture_output=True, check=False).returncode != 0:
        absent("cannot mount")
    return disk, wrap


def test_a_full_disk_does_not_stop_workers_and_is_said(scene, small_disk):
    disk, wrap = small_disk
    script = f'for i in $(seq 20000); do echo "line $i"; done; : > {scene.path}/through'
    agent = scene.shell(script, "-t1", f"--log-dir={disk}", program=wrap)
    assert agent.end() == 0, agent.err
    assert (scene.path / "through").exists()
    assert agent.out.decode().splitlines() == [f"[default0]:line {i}" for i in range(1, 20001)]
    assert "No space left on device" in agent.err and "stdout.log" in agent.err


def test_a_file_at_its_limit_does_not_stop_workers_and_is_said(scene):
    """`ulimit -f`: the kernel sends SIGXFSZ to whoever writes on."""
    def before():
        default_signals()
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))

    agent = scene.shell('for i in $(seq 20000); do echo "line $i"; done', "-t1", f"--log-dir={scene.path}/logs",
                        preexec_fn=before)
    assert agent.end() == 0, agent.err
    assert agent.out.decode().splitlines() == [f"[default0]:line {i}" for i in range(1, 20001)]
    assert "File too large" in agent.err and "stdout.log" in agent.err
    written = attempt(scene.path / "logs") / "0" / "stdout.log"
    assert written.stat().st_size == 65536


def test_a_console_that_blocks_blocks_workers_not_for_ever(scene):
    """Nobody reads our output; more than fits in any buffer is written all the same, and the loss is said."""
    reader, writer = os.pipe()
    script = f'head -c 30000000 /dev/zero | tr "\\0" "x" | fold -w 100; : > {scene.path}/through'
    try:
        agent = scene.shell(script, "-t1", "--log-dir", scene.path / "logs", stdout=writer)
        until((scene.path / "through").exists, what="the worker's end")
        os.close(writer)
        os.close(reader)
        reader = -1
        assert agent.end() == 0, agent.err
        assert (attempt(scene.path / "logs") / "0" / "stdout.log").stat().st_size == 30300000 - 1
        assert "standard output" in agent.err
    finally:
        if reader >= 0:
            os.close(reader)


# ---- Events, timers, health ----


def all_events(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def events(path):
    """Those of agents and workers; events of a rendezvous have no source."""
    return [event for event in all_events(path) if "source" in event]


def states(found):
    return [(event["source"], event["metadata"]["state"]) for event in found]


def test_the_events_of_the_end_say_how_long_it_took(scene):
    path = scene.path / "events"
    assert scene.shell("sleep 1.1", f"--event-log-handler=file:{path}").end() == 0
    assert [event["metadata"]["total_run_time"] >= 1 for event in events(path)] == [False] * 3 + [True] * 2


def test_events_of_a_success_are_lines_in_order(scene):
    path = scene.path / "events"
    began = int(time.time() * 1000)
    agent = scene.shell("exit 0", "--nproc-per-node=2", f"--event-log-handler=file:{path}")
    assert agent.end() == 0, agent.err
    found = events(path)
    assert states(found) == [("AGENT", "RENDEZVOUS"), ("AGENT", "ASSIGN_WORKER_RANKS"), ("WORKER", "START"),
                             ("WORKER", "START"), ("WORKER", "SUCCEEDED"), ("WORKER", "SUCCEEDED"),
                             ("AGENT", "SUCCEEDED")]
    for event in found:
        assert list(event) == ["name", "source", "timestamp", "metadata"]
        assert began <= event["timestamp"] <= int(time.time() * 1000)
        assert event["name"] == f"torchelastic.worker.status.{event['metadata']['state']}"
        assert list(event["metadata"]) == ["run_id", "global_rank", "group_rank", "worker_id", "role", "hostname",
                                           "state", "total_run_time", "rdzv_backend", "raw_error", "metadata",
                                           "agent_restarts", "duration_ms"]
    assert [event["metadata"]["global_rank"] for event in found] == [None, None, 0, 1, 0, 1, None]
    assert all(event["metadata"]["duration_ms"] >= 0 for event in found[:2])


def test_events_of_a_failure_carry_what_failed(scene):
    path = scene.path / "events"
    agent = scene.actors("--nproc-per-node=2", "--max-restarts=1", f"--event-log-handler=file:{path}")
    first = scene.world(2)
    first[0].fail()
    second = scene.world(2, without=first)
    second[1].fail()
    assert agent.end() == 1
    found = events(path)
    start = [("AGENT", "RENDEZVOUS"), ("AGENT", "ASSIGN_WORKER_RANKS"), ("WORKER", "START"), ("WORKER", "START")]
    assert states(found) == start + start + [("WORKER", "FAILED"), ("WORKER", "FAILED"), ("AGENT", "SUCCEEDED")]
    codes = [json.loads(event["metadata"]["metadata"]).get("exit_code") for event in found[-3:-1]]
    assert codes == [[-15], [3]]
    assert [json.loads(event["metadata"]["raw_error"])["message"] for event in found[-3:-1]] == ["<NONE>", "<NONE>"]
    assert [event["metadata"]["agent_restarts"] for event in found] == [0] * 4 + [1] * 7
    assert [event["metadata"]["worker_id"] for event in found[-3:-1]] == [str(worker.pid) for worker in second]


def test_events_of_a_failure_carry_its_error_file(scene):
    path = scene.path / "events"
    error = {"message": {"message": "no luck", "extraInfo": {"py_callstack": "line 3", "timestamp": "1794724302"}}}
    script = f"echo '{json.dumps(error)}' > $TORCHELASTIC_ERROR_FILE; exit 4"
    assert scene.shell(script, "--max-restarts=0", f"--event-log-handler=file:{path}").end() == 1
    worker = events(path)[-2]["metadata"]
    assert (worker["state"], json.loads(worker["raw_error"])) == ("FAILED", error)


def test_events_of_a_signal_end_with_a_failed_agent(scene):
    path = scene.path / "events"
    agent = scene.actors(f"--event-log-handler=file:{path}")
    scene.world(1)
    agent.signal(signal.SIGTERM)
    assert agent.end() == 1
    last = events(path)[-1]
    assert states([last]) == [("AGENT", "FAILED")] and "signal 15" in last["metadata"]["raw_error"]


def test_events_can_go_to_the_console(scene):
    agent = scene.shell("exit 0", "--event-log-handler=console")
    assert (agent.end(), agent.out) == (0, b"")
    found = [json.loads(line[line.index("{"):]) for line in agent.err.splitlines() if '"torchelastic.' in line]
    assert len(found) == 5


def story(path):
    """What a node's rendezvous did: operation and state of each of its events."""
    return [(event["name"].rpartition(".")[2], event["node_state"]) for event in all_events(path) if "source" not in event]


def test_events_of_the_rendezvous_are_in_the_file_and_on_the_console(scene):
    path = scene.path / "events"
    words = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=job", "--rdzv-conf=engine=off"]
    assert scene.shell("exit 0", *words, f"--event-log-handler=file:{path}").end() == 0
    join = [("next_rendezvous", "RUNNING"), ("_add_to_participants", "RUNNING"), ("_keep_alive", "RUNNING"),
            ("_mark_rendezvous_complete", "SUCCEEDED"), ("run", "RUNNING"), ("next_rendezvous", "RUNNING")]
    close = [("_mark_rendezvous_closed", "SUCCEEDED"), ("run", "RUNNING"), ("_close", "SUCCEEDED")]
    assert story(path) == [("py:_create_tcp_store", "INIT"), *join, *close]
    last_join = [event for event in all_events(path) if event["name"].endswith("next_rendezvous")][-1]
    node = "{hostname}_{pid}_{local_id}".format(**last_join)
    assert last_join["message"] == f"The node '{node}' has joined round 0 of the rendezvous 'job' as rank 0 in a world of size 1."
    assert last_join["run_id"] == "job" and last_join["rank"] == 0
    agent = scene.shell("exit 0", *words, "--event-log-handler=console")
    assert agent.end() == 0
    on_console = scene.path / "console"
    on_console.write_text("".join(line + "\n" for line in agent.err.splitlines() if line.startswith("{")))
    assert story(on_console) == story(path)


def test_a_rendezvous_that_fails_is_an_event_that_says_why(scene):
    path = scene.path / "events"
    agent = scene.shell("exit 0", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=job",
                        "--rdzv-conf=join_timeout=1", f"--event-log-handler=file:{path}")
    assert agent.end() == 1
    [failed] = [event for event in all_events(path) if event.get("node_state") == "FAILED"]
    assert failed["name"] == "dynamic_rendezvous.py:DynamicRendezvousHandler.next_rendezvous"
    assert failed["message"].startswith("RendezvousTimeoutError: join rendezvous 'job': timed out")
    assert failed["error_trace"] and failed["rank"] is None


@pytest.mark.usefixtures("document")
def test_events_tell_of_heartbeats_and_of_those_that_fail(scene, serve):
    path = scene.path / "events"
    server = serve()
    agent = scene.node(server.endpoint, "--nnodes=1", f"--event-log-handler=file:{path}",
                       conf="keep_alive_interval=1,keep_alive_max_attempt=20")
    [worker] = scene.world(1)
    beat = [("_keep_alive", "RUNNING"), ("run", "RUNNING"), ("_keep_alive", "RUNNING")]  # planned, synced, sent
    until(lambda: any(story(path)[i:i + 3] == beat for i in range(len(story(path)))), what="a heartbeat")
    server.stop()
    until(lambda: ("_keep_alive", "FAILED") in story(path), what="a heartbeat that fails")
    [failed] = [event for event in all_events(path) if event.get("node_state") == "FAILED"]
    assert failed["message"].endswith("has failed to send a keep-alive heartbeat to the rendezvous 'job' due to an error of type "
                                      "RendezvousConnectionError.")
    assert failed["error_trace"].startswith("keep to rendezvous 'job': ")
    agent.said("] warning: ")
    serve("--port", str(server.port))
    worker.succeed()
    assert agent.end() == 0


@pytest.mark.usefixtures("document")
def test_a_shutdown_that_fails_is_recorded_and_leaves_a_success_what_it_is(scene, serve):
    path = scene.path / "events"
    server = serve()
    agent = scene.node(server.endpoint, "--nnodes=1", f"--event-log-handler=file:{path}", conf="close_timeout=1")
    [worker] = scene.world(1)
    server.call("set", "torch.rendezvous.job", OTHER_LAYOUT.decode())  # it cannot be marked closed any more
    worker.succeed()
    assert agent.end() == 0
    failed = [event for event in all_events(path) if event.get("node_state") == "FAILED"][-1]
    assert failed["name"] == "dynamic_rendezvous.py:DynamicRendezvousHandler.shutdown"
    assert re.fullmatch(r"The node '\S+' has failed to shutdown the rendezvous 'job' due to an error of type Rendezvous\w+\.",
                        failed["message"])
    assert "] warning: close the job: " in agent.err


def lines_of(agent, level):
    return [line.partition(f"] {level}: ")[2] for line in agent.err.splitlines() if f"] {level}: " in line]


def in_order(lines, *parts):
    """Whether lines with these parts follow one another, with any others in between."""
    rest = iter(lines)
    return all(any(part in line for line in rest) for part in parts)


def test_vv_tells_every_step_and_v_tells_none_of_them(scene):
    script = "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3"
    words = ["--max-restarts=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=job",
             "--rdzv-conf=engine=off"]
    agent = scene.shell(script, "-vv", *words)
    assert agent.end() == 0
    told = lines_of(agent, "debug")
    assert in_order(
        told, "run: idle -> joining; join the rendezvous", "hosts the TCP store", "added itself to the participants of round 0",
        "marked round 0 of the rendezvous 'job' as complete", "has successfully synced", "has joined round 0",
        "assigning ranks -> starting workers; start workers", "workers started: starting workers -> running",
        "running -> stopping workers; stop workers with SIGTERM, kill them after 30000 ms",
        "counting a restart -> joining; join the rendezvous", "removed itself from the participants of round 0",
        "rendezvous 'job': no participants left; the next round begins", "has joined round 1", "waiting for the others; enter the exit barrier", "marked the rendezvous 'job' as closed",
        "finished (1 node is done)", "ended; end: succeeded"), "\n".join(told)
    agent = scene.shell(script, "-v", *words)
    assert agent.end() == 0 and lines_of(agent, "info") and not lines_of(agent, "debug")


def metrics(text):
    """(name, value) of each line; all of them must have PyTorch's form."""
    found = [re.fullmatch(r"\[(\d+\.\d+)\]\[torchelastic\]: (\S+)=(-?\d+)", line) for line in text.splitlines()]
    assert found and all(found), text
    return [(match[2], int(match[3])) for match in found]


def test_metrics_can_go_to_a_file_and_to_the_console(scene):
    path = scene.path / "metrics"
    agent = scene.shell("exit 0", f"--metrics=file:{path}")
    assert (agent.end(), agent.out) == (0, b"")
    names = [name for name, _ in metrics(path.read_text())]
    assert names[:4:2] == ["SimpleElasticAgent._assign_worker_ranks.success", "SimpleElasticAgent._rendezvous.success"]
    assert names[-2:] == ["SimpleElasticAgent.run.success", "SimpleElasticAgent.run.duration.ms"]
    assert ("workers.default.run_success_no_retries", 1) in metrics(path.read_text())
    agent = scene.shell("exit 0", env={"PET_METRICS": "console"})
    assert agent.end() == 0
    assert [name for name, _ in metrics(agent.out.decode())] == names


def test_a_console_that_nobody_reads_does_not_keep_the_agent_from_its_work(scene):
    reader, writer = os.pipe()
    os.write(writer, b"x" * fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096))
    agent = scene.shell("exit 3", "--max-restarts=2", "--metrics=console", stdout=writer)
    os.close(writer)
    assert agent.end() == 1
    os.close(reader)
    assert "restarts used: 2 of 2" in agent.err
    assert "write metric to the console: nobody reads it; metrics are lost" in agent.err


def test_a_metrics_file_that_cannot_be_opened_is_said_before_anything_is_started(scene):
    agent = scene.shell('touch "$STAGE/started"', "--metrics=file:/dev/null/metrics", "--log-dir", scene.path / "logs")
    assert agent.end() == 1
    assert "NotADirectoryError: open metrics file '/dev/null/metrics': Not a directory" in agent.err
    assert not (scene.stage / "started").exists() and not (scene.path / "logs").exists()


ACQUIRE = ("import json, os, signal, sys, time\n"
           "def request(**more):\n"
           "    fd = os.open(os.environ['TORCHELASTIC_TIMER_FILE'], os.O_WRONLY | os.O_NONBLOCK)\n"
           "    os.write(fd, json.dumps({'version': 1, 'pid': os.getpid(), 'scope_id': 's', **more}).encode() + b'\\n')\n"
           "    os.close(fd)\n"
           "request(expiration_time=time.time() + 0.3, signal=9)\n")


def test_a_worker_that_hangs_with_a_timer_is_killed_and_started_again(scene):
    code = ACQUIRE + "os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and signal.pause()\nrequest(expiration_time=-1, signal=0)"
    agent = scene.start("--max-restarts=1", "--no-python", sys.executable, "-c", code,
                        env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1"})
    assert agent.end() == 0, agent.err
    assert "failed: killed by SIGKILL" in agent.err
    assert not list(scene.tmp.glob("watchdog_timer_*"))


def test_a_timer_is_at_the_place_that_one_likes(scene):
    path = scene.path / "timer"
    agent = scene.start("--no-python", sys.executable, "-c", ACQUIRE + "signal.pause()",
                        env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCHELASTIC_TIMER_FILE": str(path)})
    assert agent.end() == 1
    assert "exitcode  : -9" in agent.err and "SIGKILL" in agent.err
    assert not path.exists()


def test_a_timer_reaches_no_process_but_workers(scene):
    """Neither strangers nor the agent, whatever a line says; nonsense is skipped."""
    with subprocess.Popen(["sleep", "600"]) as stranger:
        try:
            code = ACQUIRE.replace("request(expiration_time=time.time() + 0.3, signal=9)\n",
                                   "fd = os.open(os.environ['TORCHELASTIC_TIMER_FILE'], os.O_WRONLY)\n"
                                   "os.write(fd, b'nonsense\\n{}\\n[1]\\n\\xff\\n')\n"
                                   f"for pid in {stranger.pid}, os.getppid(), 1, 0, -1:\n"
                                   "    request(pid=pid, expiration_time=1.0, signal=9)\n"
                                   "request(expiration_time=time.time() + 0.2, signal=9)\nsignal.pause()\n")
            agent = scene.start("--no-python", sys.executable, "-c", code, env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1"})
            assert agent.end() == 1
            assert "exitcode  : -9" in agent.err
            assert stranger.poll() is None
        finally:
            stranger.kill()


def health(port):
    """Status of an answer, or None."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def test_health_can_be_asked_for(scene, absent):
    port = free_port()
    agent = scene.actors(env={"TORCHELASTIC_HEALTH_CHECK_PORT": str(port)})
    worker, = scene.world(1)
    if "libmicrohttpd" in agent.err:
        absent("no libmicrohttpd")
    assert health(port) == 200
    worker.succeed()
    assert agent.end() == 0
    assert health(port) is None


SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000


def test_a_loop_that_does_not_turn_is_not_well(scene, absent):
    """Held by a tracer, as by a disk that does not answer: of its threads the one that has the loop alone."""
    port = free_port()
    agent = scene.actors(env={"TORCHELASTIC_HEALTH_CHECK_PORT": str(port), "MUSTER_HEALTH_CHECK_TIMEOUT": "1"})
    worker, = scene.world(1)
    if "libmicrohttpd" in agent.err:
        absent("no libmicrohttpd")
    until(lambda: health(port) == 200, what="200")
    pid = agent.agent
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(SEIZE, pid, None, None) < 0:
        absent(f"ptrace is not for us: {os.strerror(ctypes.get_errno())}")
    try:
        assert libc.ptrace(INTERRUPT, pid, None, None) == 0 and os.waitpid(pid, WALL)[0] == pid
        until(lambda: health(port) == 503, what="503")
        assert worker.alive
    finally:
        assert libc.ptrace(DETACH, pid, None, None) == 0
    until(lambda: health(port) == 200, what="200")
    worker.succeed()
    assert agent.end() == 0


def test_a_worker_in_uninterruptible_sleep_makes_the_group_ill_and_blocks_nothing(scene, absent):
    port = free_port()
    frozen = freezer(scene)
    if frozen is None:
        absent("no freezer to put a process into state D with")
    agent = scene.actors("--shutdown-timeout=1", "-r3", env={"TORCHELASTIC_HEALTH_CHECK_PORT": str(port),
                                                      "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "1"})
    worker, = scene.world(1)
    if "libmicrohttpd" in agent.err:
        absent("no libmicrohttpd")
    try:
        frozen.take(worker.pid)
        until(lambda: health(port) == 503, 10, what="503")
        agent.said(str(worker.pid))
    finally:
        frozen.release()
    assert agent.end() == 1


HANG = ("import ctypes, os, signal\n"
        "open(os.environ['STAGE'] + '/' + os.environ['TORCHELASTIC_RESTART_COUNT'], 'w').close()\n"
        "libc = ctypes.CDLL(None)\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and libc.vfork() == 0:\n"
        "    libc.pause()\n")


def test_a_worker_that_hangs_in_the_kernel_ends_its_node_without_a_restart(scene):
    """State D, of a kind that ends by SIGTERM: a parent whose vfork's child has not gone on."""
    agent = scene.start("--nproc-per-node=2", "--max-restarts=1", "--no-python", sys.executable, "-c", HANG,
                        env={"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "0.5"})
    assert agent.end() == 1, agent.err
    assert re.search(r"rank [01] on \S+ \(local rank [01], pid \d+, \S+\) has hung in the kernel \(state D\) for more than 0\.5 s", agent.err)
    assert "this node leaves the job" in agent.err
    assert not (scene.stage / "1").exists()


def test_a_worker_that_hangs_in_the_kernel_is_the_cause(scene):
    """Its siblings end before it does, by our hands; that is not why."""
    code = HANG.replace("if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'", "if os.environ['RANK'] == '0'")
    agent = scene.start("--nproc-per-node=2", "--no-python", sys.executable, "-c", code + "signal.pause()",
                        env={"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "0.5"})
    assert agent.end() == 1
    root = agent.err[agent.err.index("Root Cause"):]
    assert "rank      : 0 (local_rank: 0)\n  exitcode  : -15 " in root
    told, = [line for line in agent.err.splitlines() if "hung in the kernel (state D)" in line]
    assert " rank 0 on " in told


def test_a_worker_that_has_hung_and_then_ends_well_has_failed(scene):
    """A spawned child that waits for the other end of a FIFO before it goes on: so long its parent is in state D."""
    fifo = scene.path / "fifo"
    os.mkfifo(fifo)
    code = ("import os, signal, sys\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "os.posix_spawn('/bin/true', ['true'], os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 9, sys.argv[1], os.O_RDONLY, 0)])\n")
    agent = scene.start("--max-restarts=1", "--no-python", sys.executable, "-c", code, fifo,
                        env={"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "0.5"})
    agent.said("has hung in the kernel (state D)")
    os.close(os.open(fifo, os.O_WRONLY))
    assert agent.end() == 1, agent.err
    told, = [line for line in agent.err.splitlines() if "hung in the kernel (state D)" in line]
    assert " rank 0 on " in told
    assert "exitcode  : 0 " in agent.err and "this node leaves the job" in agent.err


def test_without_the_variable_nobody_is_asked_whether_he_hangs(scene):
    agent = scene.start("--no-python", sys.executable, "-c", HANG)
    until((scene.stage / "0").exists, what="the worker")
    time.sleep(1)
    assert agent.process.poll() is None and agent.trouble == ""
    agent.signal(signal.SIGTERM)
    assert agent.end() == 1


def test_a_failed_group_is_not_well_while_the_rest_of_it_is_stopped(scene, absent):
    port = free_port()
    agent = scene.actors("--nproc-per-node=2", "--max-restarts=1", act=["ignore"],
                         env={"TORCHELASTIC_HEALTH_CHECK_PORT": str(port)})
    workers = scene.world(2)
    if "libmicrohttpd" in agent.err:
        absent("no libmicrohttpd")
    assert health(port) == 200
    workers[0].fail()
    until(lambda: workers[1].got(), what="the sibling's SIGTERM")
    assert workers[1].alive and health(port) == 503
    workers[1].signal(signal.SIGKILL)
    again = scene.world(2, without=workers)
    until(lambda: health(port) == 200, what="200")
    end_all(again)
    assert agent.end() == 0


def test_a_worker_that_cannot_be_killed_does_not_block_the_agent(scene, absent):
    """It is named, with its state."""
    frozen = freezer(scene)
    if frozen is None:
        absent("no freezer to put a process into state D with")
    agent = scene.actors("--shutdown-timeout=1", "-r3")  # it shall not keep our pipes open
    worker, = scene.world(1)
    try:
        frozen.take(worker.pid)
        agent.signal(signal.SIGTERM)
        assert agent.end(15) == 1
        assert re.search(rf"\b{worker.pid}\b.*\bD\b", agent.err)
    finally:
        frozen.release()


@pytest.mark.parametrize("port", ["x", "99999999", "", "-1"])
def test_a_health_port_that_is_none_is_passed_over(scene, port):
    agent = scene.shell("exit 0", env={"TORCHELASTIC_HEALTH_CHECK_PORT": port})
    assert agent.end() == 0, agent.err


def test_a_health_port_that_is_taken_is_said(scene):
    with socket.create_server(("", 0)) as taken:
        agent = scene.shell("exit 0", env={"TORCHELASTIC_HEALTH_CHECK_PORT": str(taken.getsockname()[1])})
        assert agent.end() == 0
    assert "health" in agent.err


# ---- Bad input ----


def test_it_does_without_stdin_home_and_tmpdir(scene):
    agent = scene.shell("[ -z \"$HOME$TMPDIR\" ] && echo fine && ls -l /proc/self/fd/0 >&2", "--log-dir",
                        scene.path / "logs", drop=["HOME", "TMPDIR"], stdin=None, preexec_fn=lambda: os.close(0))
    assert (agent.end(), agent.out) == (0, b"fine\n"), agent.err


def test_it_does_without_any_standard_descriptor(scene):
    def close():
        for fd in range(3):
            os.close(fd)
    agent = scene.shell(f": > {scene.path}/ran", "-t3", "--log-dir", scene.path / "logs", preexec_fn=close)
    assert agent.end() == 0
    assert (scene.path / "ran").exists()


def test_a_temporary_directory_that_is_none_is_passed_over(scene):
    agent = scene.shell('echo "$TORCHELASTIC_ERROR_FILE"', env={"TMPDIR": "/nowhere"})
    assert agent.end() == 0, agent.err
    path = pathlib.Path(agent.out.decode().strip())
    assert path.parent.is_dir() and not str(path).startswith("/nowhere")
    subprocess.run(["rm", "-r", path.parents[3]], check=True)


@pytest.mark.parametrize("name, content, mode, kind", [
    ("nowhere", None, 0, "FileNotFoundError"),
    ("plain", "exit 0\n", 0o644, "PermissionError"),
    ("interpreterless", "#!/nowhere/sh\n", 0o755, "FileNotFoundError"),
    ("directory", "", None, "PermissionError"),
    ("nonsense", "\x7fELF", 0o755, "OSError"),
])
@pytest.mark.parametrize("restarts", [0, 3])
def test_a_program_that_cannot_be_started_is_one_line(scene, name, content, mode, kind, restarts):
    path = scene.path / name
    if mode is None:
        path.mkdir()
    elif content is not None:
        path.write_text(content)
        path.chmod(mode)
    agent = scene.start("--nproc-per-node=2", f"--max-restarts={restarts}", "--no-python", path)
    assert agent.end() == 1
    assert agent.trouble.count("\n") == 1, agent.err
    assert f"muster run: {kind}: " in agent.err and str(path) in agent.err


def test_a_program_that_vanishes_between_rounds_ends_the_run(scene):
    path = scene.path / "once"
    path.write_text('#!/bin/sh\nrm "$0"\nexit 1\n')
    path.chmod(0o755)
    agent = scene.start("--max-restarts=3", "--no-python", path)
    assert agent.end() == 1
    assert "FileNotFoundError" in agent.err and str(path) in agent.err.splitlines()[-1]


def test_a_name_with_escapes_does_not_reach_the_terminal(scene):
    path = scene.path / "a\x1b[2J\nb"
    path.write_text("#!/nowhere/sh\n")
    path.chmod(0o755)
    agent = scene.start("--no-python", path)
    assert agent.end() == 1
    assert "muster run: FileNotFoundError: " in agent.err and agent.trouble.count("\n") == 1
    assert "a?[2J?b" in agent.err and "\x1b" not in agent.err


def test_ten_thousand_arguments_reach_the_worker(scene):
    agent = scene.shell('echo $#', args=[f"{number}" for number in range(10000)])
    assert (agent.end(), agent.out) == (0, b"10000\n")


def test_an_environment_of_a_megabyte_reaches_the_worker(scene):
    agent = scene.shell('echo ${#V999}', env={f"V{number}": "x" * 1000 for number in range(1000)})
    assert (agent.end(), agent.out) == (0, b"1000\n")


def test_too_few_descriptors_is_an_error_and_not_a_hang(scene):
    agent = scene.shell("exit 0", "--nproc-per-node=8", "-t3", preexec_fn=lambda: resource.setrlimit(
        resource.RLIMIT_NOFILE, (24, 24)))
    assert agent.end() in (0, 1)
    if agent.process.returncode == 1:
        assert "open files" in agent.err


def test_it_is_torchrun_when_it_is_called_so(scene):
    link = scene.path / "torchrun"
    link.symlink_to(MUSTER)
    script = scene.path / "script.py"
    script.write_text("import os, sys\nline = ' '.join([os.environ['WORLD_SIZE'], *sys.argv[1:], __name__])\nos.write(1, line.encode() + b'\\n')\n")
    agent = scene.start("--nproc_per_node", "2", script, "--lr", "1", program=[link], env={"PYTHON_EXEC": sys.executable})
    assert (agent.end(), agent.out) == (0, b"2 --lr 1 __main__\n" * 2), agent.err
    agent = scene.start("-m", "nowhere_of_all", program=[link])
    assert agent.end() == 1 and "\nnowhere_of_all FAILED\n" in agent.err


def test_run_path_runs_a_file(scene):
    script = scene.path / "script.py"
    script.write_text("import sys\nassert __name__ == '__main__'\nif sys.argv[1] == 'x': raise ValueError('not x')\n")
    assert scene.start("--run-path", script, "y").end() == 0
    agent = scene.start("--run-path", "-vv", script, "x")
    assert agent.end() == 1
    assert "run_script_path FAILED" in agent.err and "ValueError: not x" in agent.err
    assert re.search(r"debug: failed \(exitcode: 1\) local_rank: 0 \(pid: \d+\) of fn: run_script_path "
                     r"\(start_method: spawn\)\n", agent.err), agent.err

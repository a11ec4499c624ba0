"""Launchers for the interop tests: `muster run` and stock torchrun, side by side or in one job.

A Job is a directory, a run id, a place to meet and the nodes started so far, each a launcher with its workers.  It ends
all it began: every process carries the job's mark in its environment.  Every wait has a limit and ends on a condition.
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import uuid

import harness
from harness import HERE, absent
from ports import free_port
from rdzv_nodes import listening, until

WORKERS = HERE / "workers"
TRAIN = WORKERS / "train.py"
ACTOR = HERE.parent / "cli" / "workers" / "actor.py"
MARK = "MUSTER_INTEROP_JOB"
RUN_LIMIT = 240  # for workers that import PyTorch, many at once on few cores
QUICK = "join_timeout=60,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=4"


class Launchers:
    """One process for each version of PyTorch, which forks its torchrun as often as wanted."""

    def __init__(self):
        self._running = {}
        self._missing = {}
        self._lock = threading.Lock()

    def ask(self, which, **request):
        with self._lock:
            server, lines = self._running.get(which) or self._start(which)
            server.stdin.write(json.dumps(request) + "\n")
            server.stdin.flush()
            return json.loads(lines.next(harness.CALL_LIMIT))

    def need(self, which):
        """Skips where this version is absent."""
        with self._lock:
            if which not in self._running:
                self._start(which)

    def _start(self, which):
        if which in self._missing:
            absent(self._missing[which])
        python, version, server, lines = harness.interpreter(which), "", None, None
        if pathlib.Path(python).exists():
            server = subprocess.Popen([python, str(WORKERS / "stock_launcher.py")], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True, env=harness.quiet_environment())
            lines = harness.Lines(server.stdout)
            version = json.loads(lines.next(harness.START_LIMIT) or "{}").get("version", "")
        # Debian's 1.13.1 calls itself 1.13.0a0.
        if version.split(".")[:2] != which.split(".")[:2]:
            if server:
                harness.stop(server)
            self._missing[which] = f"PyTorch {which} is absent: {python} has {version or 'none'}"
            absent(self._missing[which])
        self._running[which] = server, lines
        return server, lines

    def stop(self):
        for server, _ in self._running.values():
            harness.stop(server)


class Node:
    """A launcher that runs, and what it has said."""

    def __init__(self, directory):
        self.directory = directory
        directory.mkdir()
        for name in ("out", "err"):
            (directory / name).touch()
        self.pid = self.code = None

    @property
    def out(self):
        return (self.directory / "out").read_text(errors="replace")

    @property
    def err(self):
        return (self.directory / "err").read_text(errors="replace")

    def ended(self):
        if self.code is None:
            self.code = self.poll()
        return self.code is not None

    def end(self, limit=RUN_LIMIT):
        """Its exit code, once it has one."""
        try:
            until(self.ended, limit, f"the end of {self.directory.name}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it said:\n{self.out}{self.err}") from None
        return self.code

    def good(self, limit=RUN_LIMIT):
        assert self.end(limit) == 0, f"rc {self.code}; it said:\n{self.out}{self.err}"

    def signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        if not self.ended():
            self.signal(signal.SIGKILL)
            self.end()


class MusterNode(Node):
    def __init__(self, directory, words, environment, older, inside=(), stock=None):
        """`inside`: what stands in front of the command. `stock`: the interpreter whose torchrun it is, instead of ours."""
        super().__init__(directory)
        program = directory / "torchrun"  # how it will be called
        program.symlink_to(harness.program())
        command = [harness.program(), "launch"] if older else [program]
        command = [*inside, *(command if stock is None else [stock, "-m", "torch.distributed.run"])]
        with open(directory / "out", "ab") as out, open(directory / "err", "ab") as err:
            self.process = subprocess.Popen([*command, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                            env=environment, cwd=directory)
        self.pid = self.process.pid

    def poll(self):
        return self.process.poll()

    def agent(self):
        """The process that runs the job; the one we started keeps watch over it."""
        children = pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return int(until(lambda: children.read_text().split(), what="an agent")[0])


class StockNode(Node):
    def __init__(self, launchers, which, directory, words, environment, older):
        super().__init__(directory)
        self._launchers, self._which = launchers, which
        self.pid = launchers.ask(which, do="launch", words=words, environment=environment, older=older,
                                 out=str(directory / "out"), err=str(directory / "err"))["pid"]

    def poll(self):
        return self._launchers.ask(self._which, do="poll", pid=self.pid)["code"]


class Job:
    def __init__(self, launchers, which, directory):
        harness.need_program()
        launchers.need(which)
        self._launchers, self.which, self.directory = launchers, which, directory
        self.run_id = uuid.uuid4().hex[:12]
        self.port = free_port()
        self.nodes = []
        self._store = None
        self.environment = harness.quiet_environment(
            {MARK: f"{self.run_id}.", "PYTHON_EXEC": harness.interpreter(which), "TMPDIR": str(directory)})
        for name in [n for n in self.environment if n.startswith(("TORCHELASTIC_", "PET_"))]:
            del self.environment[name]

    def start_store(self):
        """A store that belongs to no node."""
        self._store = harness.MusterServer()
        self.port = self._store.port

    def meeting(self, nodes="2", number=None, conf=QUICK):
        """Options with which nodes find each other; their numbers decide their ranks."""
        address = ["--local-addr", f"127.0.0.{number}"] if number else []
        return ["--nnodes", str(nodes), "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self.port}",
                "--rdzv-id", self.run_id, "--rdzv-conf", conf, *address]

    def _start(self, make, kind, words, environment, older):
        words = [str(word) for word in words]
        directory = self.directory / f"{kind}{len(self.nodes)}"
        environment = {k: v for k, v in {**self.environment, **(environment or {})}.items() if v is not None}
        node = make(directory, words, environment, older)
        self.nodes.append(node)
        return node

    def muster(self, *words, environment=None, older=False):
        """`torchrun`, or with `older` what stands for torch.distributed.launch."""
        return self._start(MusterNode, "muster", words, environment, older)

    def stock(self, *words, environment=None, older=False):
        return self._start(lambda *how: StockNode(self._launchers, self.which, *how), "stock", words, environment, older)

    def inside(self, place, kind, *words, environment=None):
        """The same in another network: `place` stands in front of the command."""
        stock = harness.interpreter(self.which) if kind == "stock" else None
        return self._start(lambda *how: MusterNode(*how, inside=place, stock=stock), kind, words, environment, False)

    def launch(self, kind, *words, **how):
        return getattr(self, kind)(*words, **how)

    def until_hosted(self):
        until(lambda: listening(self.port), what="a store to meet at")

    def left(self):
        """Processes of this job that still run."""
        mark, found = f"{MARK}={self.run_id}.".encode(), []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
        return found

    def end(self):
        for node in self.nodes:
            node.kill()
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not self.left(), what="the end of every process")
        if self._store is not None:
            self._store.stop()


class Actor:
    """A worker without PyTorch that waits to be told what to do, as it described itself."""

    def __init__(self, record):
        self.pid, self._born, self.environment = record["pid"], record["born"], record["env"]

    def __getitem__(self, name):
        return self.environment[name]

    @property
    def rank(self):
        return int(self["RANK"])

    @property
    def alive(self):
        try:
            stat = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return False
        return stat[0] not in "ZX" and stat[19] == self._born  # else its number is another's by now

    def signal(self, number):
        os.kill(self.pid, number)

    def succeed(self):
        self.signal(signal.SIGUSR1)

    def fail(self):
        self.signal(signal.SIGUSR2)


class Actors:
    """All those of one job, and how to start them."""

    def __init__(self, job, *how):
        self._job, self._stage = job, job.directory / "stage"
        self._stage.mkdir()
        job.environment["STAGE"] = str(self._stage)
        self.words = ["--no-python", sys.executable, "-S", "-E", ACTOR, *how]

    def seen(self):
        return [Actor(json.loads(path.read_text())) for path in self._stage.glob("*.json")]

    def alive(self):
        return sorted((actor for actor in self.seen() if actor.alive), key=lambda actor: actor.rank)

    def _found(self, size, without):
        actors = self.alive()
        whole = [actor.rank for actor in actors] == list(range(size))
        one = len({(actor["WORLD_SIZE"], actor["MASTER_PORT"]) for actor in actors}) == 1
        return actors if whole and one and not {a.pid for a in actors} & {a.pid for a in without} else None

    def world(self, size, without=(), limit=RUN_LIMIT):
        """Those who live, by rank, once they are so many, of one world, and none of those that a test has seen."""
        try:
            return until(lambda: self._found(size, without), limit, f"a new world of {size}")
        except AssertionError as error:
            told = [(actor.pid, actor["RANK"], actor["WORLD_SIZE"]) for actor in self.alive()]
            said = "".join(f"\n--- {node.directory.name}\n{node.err}" for node in self._job.nodes)
            raise AssertionError(f"{error}; there are {told}{said}") from None


class Training:
    """What rank 0 of train.py told, and what it must have been."""

    def __init__(self, directory, epochs=4, steps=8):
        self.directory, self.epochs, self.steps = directory, epochs, steps
        directory.mkdir(exist_ok=True)

    def words(self, *further):
        return [TRAIN, self.directory, "--epochs", self.epochs, "--steps", self.steps, *further]

    def story(self):
        path = self.directory / "story"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def until(self, what, limit=RUN_LIMIT, job=None, **fields):
        """Waits until rank 0 has told this."""
        wanted = {"what": what, **fields}

        def told():
            if job is not None:
                for node in job.nodes:
                    assert not node.ended() or node.code == 0, f"rc {node.code}:\n{node.out}{node.err}"
            return any(wanted.items() <= line.items() for line in self.story())
        until(told, limit, f"{wanted}")

    def go(self, epoch):
        (self.directory / f"go.{epoch}").touch()

    def worlds(self):
        return [line["world"] for line in self.story() if line["what"] == "start"]

    def starts(self):
        return [line for line in self.story() if line["what"] == "start"]

    def final(self):
        return json.loads((self.directory / "final.json").read_text())

    def whole(self):
        """Every start was from the last checkpoint, every step from there on was made once, in order, to the end."""
        saved, done, expected = 0, set(), None
        for line in self.story():
            if line["what"] == "start":
                assert line["launched"] is True
                # Killed between a checkpoint and the word of it, it had made all the steps before that.
                assert line["epoch"] == saved or \
                    line["epoch"] == saved + 1 and (saved, self.steps - 1) in done, (line, saved)
                saved = line["epoch"]
                expected = (saved, 0)
            elif line["what"] == "step":
                assert (line["epoch"], line["step"]) == expected, (line, expected)
                done.add(expected)
                last = line["step"] == self.steps - 1
                expected = (line["epoch"] + 1, 0) if last else (line["epoch"], line["step"] + 1)
            elif line["what"] == "saved":
                assert expected == (line["epoch"] + 1, 0)
                saved = line["epoch"] + 1
        assert self.story()[-1]["what"] == "end" and expected == (self.epochs, 0)
        losses = self.final()["losses"]
        assert len(losses) == self.epochs
        assert all(b < a for a, b in zip(losses, losses[1:])), losses


def report_of(node):
    """The box at the end without what differs from run to run, and the host: ours is not looked up."""
    text, names = node.err, (socket.gethostname(), socket.getfqdn())
    text = text[text.index("\n", text.rindex("ChildFailedError")) + 1:]
    for pattern, replacement in (
            (r"time      : \d{4}-\d\d-\d\d_\d\d:\d\d:\d\d\n", "time      : <time>\n"),
            (rf"host      : ({'|'.join(map(re.escape, names))})\n", "host      : <host>\n"),
            (r"\(pid: \d+\)", "(pid: <pid>)"),
            (r"PID \d+", "PID <pid>"),
            (r"\S*/[^/\s]+_[a-z0-9_]{8}/attempt_", "<run>/attempt_")):
        text = re.sub(pattern, replacement, text)
    return text

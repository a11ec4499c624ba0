"""`muster run` as processes: agents that a test starts, the workers that they start, and what is left of either.

Everything that a scene starts carries a mark in its environment, so that /proc tells at the end whether anything is left.
"""

import base64
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import uuid

from serving import LIMIT, MUSTER, ROOT, environment, until

ACTOR = str(ROOT / "tests" / "cli" / "workers" / "actor.py")
QUICK_DEATH = "keep_alive_interval=1,keep_alive_max_attempt=2"
DEATH_AGE = 2  # seconds, with the above
REGROUP = DEATH_AGE + 15  # regrouping is milliseconds; the rest is for a busy machine
# A document that muster leaves alone: a whole pickle of PyTorch's state, with a field that nobody here knows.
OTHER_LAYOUT = base64.b64encode(b"\x80\x04ctorch.distributed.elastic.rendezvous.dynamic_rendezvous\n_RendezvousState\n"
                                b")\x81}\x8c\x05novelK\x07sb.")


def stat(pid):
    """The fields behind its name; none if there is no such process."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def is_alive(pid, born=None):
    """Whether it runs, and (if that is known) was born then; one that is only waiting to be reaped does not."""
    fields = stat(pid)
    return bool(fields) and fields[0] not in "ZX" and born in (None, fields[19])


def children(pid):
    try:
        return [int(word) for word in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def default_signals():  # a shell may have started us with some ignored, which children inherit
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


class Agent:
    """`muster run WORDS` while it runs; its output as it comes. The pid that one sees is the keeper's."""

    def __init__(self, words, env, program=(MUSTER, "run"), **how):
        self.process = subprocess.Popen([*program, *words], env=env, **{
            "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
            "preexec_fn": default_signals, **how})
        self._out, self._err = bytearray(), bytearray()
        self._threads = [threading.Thread(target=self._read, args=pair, daemon=True)
                         for pair in ((self.process.stdout, self._out), (self.process.stderr, self._err)) if pair[0]]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _read(stream, data):
        while piece := os.read(stream.fileno(), 65536):
            data.extend(piece)

    @property
    def out(self):
        return bytes(self._out)

    @property
    def err(self):
        return bytes(self._err).decode(errors="replace")

    @property
    def trouble(self):
        """What is on stderr beside notices, which tell that all is well: warnings, errors, and what workers said."""
        return "".join(line for line in self.err.splitlines(keepends=True) if " notice: " not in line)

    @property
    def keeper(self):
        return self.process.pid

    @property
    def agent(self):
        """The keeper's child, once it is there."""
        return until(lambda: children(self.keeper), what="an agent below the keeper")[0]

    def said(self, part, limit=LIMIT):
        """Waits for that on stderr."""
        until(lambda: part in self.err or self.process.poll() is not None, limit, what=f"{part!r} in {self.err!r}")
        if self.process.poll() is not None:
            self._drain()
        assert part in self.err, self.err

    def _drain(self):
        """Waits for what it has said in the end, which may still be in the pipes."""
        for thread in self._threads:
            thread.join(LIMIT)

    def signal(self, number):
        self.process.send_signal(number)

    def end(self, limit=LIMIT):
        """Waits for its end and gives the exit code."""
        try:
            code = self.process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {limit} s: {self.err}") from None
        self._drain()
        return code

    def release(self):
        for stream in (self.process.stdout, self.process.stderr):
            if stream:
                stream.close()


class Worker:
    """An actor, as it described itself."""

    def __init__(self, record, stage):
        self.pid, self.argv, self.env = record["pid"], record["argv"], record["env"]
        self._born = record["born"]
        self._stage = stage

    @property
    def alive(self):
        return is_alive(self.pid, self._born)

    @property
    def rank(self):
        return int(self.env["RANK"])

    def signal(self, number):
        os.kill(self.pid, number)

    def succeed(self):
        self.signal(signal.SIGUSR1)

    def fail(self):
        self.signal(signal.SIGUSR2)

    def got(self):
        """The signals that it noted."""
        path = self._stage / f"{self.pid}.got"
        return [int(line) for line in path.read_text().split()] if path.exists() else []


class Scene:
    """Agents and workers of one test."""

    def __init__(self, path):
        self.path = path
        self.stage = path / "stage"
        self.stage.mkdir()
        self.tmp = path / "tmp"
        self.tmp.mkdir()
        self.mark = f"MUSTER_TEST_MARK={uuid.uuid4()}"
        self.agents = []
        self.freezers = []
        self.engine = None  # on, off or only; None: as muster does without being told

    def environment(self, env=None):
        name, _, value = self.mark.partition("=")
        kept = {key: value for key, value in environment().items()
                if not key.startswith(("PET_", "TORCH", "OMP_", "NCCL_"))}
        return {**kept, name: value, "STAGE": str(self.stage), "TMPDIR": str(self.tmp),
                "OMP_NUM_THREADS": "1", **(env or {})}

    def start(self, *words, env=None, drop=(), **how):
        """`muster run WORDS`."""
        given = {key: value for key, value in self.environment(env).items() if key not in drop}
        self.agents.append(Agent([str(word) for word in words], given, **how))
        return self.agents[-1]

    def actors(self, *options, act=(), **how):
        """`muster run OPTIONS` with actors as workers."""
        return self.start(*options, "--no-python", sys.executable, "-S", "-E", ACTOR, *act, **how)

    def shell(self, script, *options, args=(), **how):
        """`muster run OPTIONS` with workers that run a script."""
        return self.start(*options, "--no-python", "bash", "-c", script, "worker", *args, **how)

    def node(self, endpoint, *options, conf="last_call_timeout=1", id="job", **how):
        """An agent of a job of several nodes that meet at an endpoint."""
        if self.engine is not None:
            conf += f",engine={self.engine}"
        return self.actors("--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={id}",
                           f"--rdzv-conf={QUICK_DEATH},{conf}", *options, **how)

    def seen(self):
        """All actors there ever were."""
        return [Worker(json.loads(path.read_text()), self.stage) for path in self.stage.glob("*.json")]

    def alive(self):
        return sorted((worker for worker in self.seen() if worker.alive), key=lambda worker: worker.rank)

    def _world(self, size, without):
        workers = self.alive()
        worlds = {(worker.env["WORLD_SIZE"], worker.env["MASTER_PORT"]) for worker in workers}
        fits = len(workers) == size and len(worlds) == 1 and [worker.rank for worker in workers] == list(range(size))
        old = {worker.pid for worker in without}
        return workers if fits and all(worker.pid not in old for worker in workers) else None

    def world(self, size, without=(), limit=LIMIT):
        """The live actors by rank, once there are so many, in one world, and none of those that a test has seen."""
        def say():
            return [(worker.pid, worker.env["RANK"], worker.env["WORLD_SIZE"]) for worker in self.alive()]
        end = time.monotonic() + limit
        while True:
            workers = self._world(size, without)
            if workers:
                return workers
            assert time.monotonic() < end, \
                f"no new world of {size} within {limit} s: {say()}; " + "\n---\n".join(a.err for a in self.agents)
            time.sleep(0.01)

    def left(self):
        """Pids of live processes that carry the mark."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != os.getpid():
                try:
                    data = pathlib.Path(f"/proc/{entry}/environ").read_bytes()
                except OSError:
                    continue
                if self.mark.encode() in data and is_alive(int(entry)):
                    found.append(int(entry))
        return found

    def clear(self):
        """Ends what a failed test has left running; says whether there was anything that no agent would have ended."""
        for agent in self.agents:
            if agent.process.poll() is None:
                agent.signal(signal.SIGKILL)
                agent.process.wait()
        for frozen in self.freezers:
            if frozen.path.exists():
                frozen.release()
        left = []
        end = time.monotonic() + 5
        while time.monotonic() < end:
            left = self.left()
            if not left:
                break
            time.sleep(0.01)
        told = []
        for pid in left:  # each may end at any moment
            try:
                told.append(pathlib.Path(f"/proc/{pid}/cmdline").read_bytes())
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        for agent in self.agents:
            agent.end()
            agent.release()
        return told


class Freezer:
    """A cgroup whose processes are in uninterruptible sleep; not even SIGKILL ends them."""

    def __init__(self, path):
        self.path = path
        path.mkdir()

    def take(self, pid):
        (self.path / "cgroup.procs").write_text(str(pid))
        (self.path / "freezer.state").write_text("FROZEN")
        until(lambda: (self.path / "freezer.state").read_text() == "FROZEN\n", what="the frost")

    def release(self):
        (self.path / "freezer.state").write_text("THAWED")
        for pid in (self.path / "cgroup.procs").read_text().split():
            try:
                (self.path.parent / "cgroup.procs").write_text(pid)
            except ProcessLookupError:
                pass  # it has ended
        until(self._removed, what="the removal of the freezer")

    def _removed(self):
        try:
            self.path.rmdir()
        except OSError:
            return False
        return True


def freezer(scene):
    """One of its own; None where there is no such thing, or it is not for us."""
    base = pathlib.Path("/sys/fs/cgroup/freezer")
    if not (base / "cgroup.procs").exists() or not os.access(base / "cgroup.procs", os.W_OK):
        return None
    scene.freezers.append(Freezer(base / f"muster-test-{scene.mark[-12:]}"))
    return scene.freezers[-1]


class Cgroup:
    """A control group of one controller, for processes that a test starts in it."""

    def __init__(self, path):
        self.path = path
        path.mkdir()

    def limit(self, name, value):
        (self.path / name).write_text(str(value))

    def wrap(self, *program):
        """What to start so that `program` runs in it."""
        return ("sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$0" "$@"', *program)

    def remove(self):
        until(self._removed, what=f"the removal of {self.path}")

    def _removed(self):
        try:
            self.path.rmdir()
        except OSError:
            return False
        return True


def cgroup(scene, controller):
    """One of its own: (group, whether it is of version 2). None where there is no such thing, or it is not for us."""
    old, new = pathlib.Path("/sys/fs/cgroup") / controller, pathlib.Path("/sys/fs/cgroup")
    name = f"muster-test-{scene.mark[-12:]}"
    try:
        if (old / "cgroup.procs").exists():
            return Cgroup(old / name), False
        if controller in (new / "cgroup.subtree_control").read_text().split():
            return Cgroup(new / name), True
    except OSError:
        pass
    return None

"""Jobs of actors that meet in the engine of a muster store, each process where, and with what clock, a test wants it."""

import re
import socket
import subprocess
import uuid

import harness
import run_nodes
from rdzv_nodes import until

HOST = socket.gethostname()
LIMIT = 60  # seconds, for what takes a moment
LEASE = 2   # seconds, with QUICK
QUICK = "keep_alive_interval=1,keep_alive_max_attempt=2"


class Node(run_nodes.MusterNode):
    agent_pid = None  # once it is known

    def said(self, part, limit=LIMIT):
        until(lambda: part in self.err or self.ended(), limit, f"{part!r} in {self.err!r}")
        assert part in self.err, self.err

    def why(self):
        """Why rounds ended, as it says."""
        return re.findall(r"(?:warning|notice): (.*; restarting with .*)", self.err)

    @property
    def name(self):
        """As others know it."""
        return f"{HOST} (pid {self.agent_pid})"

    def agent(self):
        if self.agent_pid is None:
            self.agent_pid = super().agent()
        return self.agent_pid


class Job(run_nodes.Job):
    """With an actor on each node, at a store that belongs to no node, unless there is an endpoint for one to host it."""

    def __init__(self, directory, host="127.0.0.1", inside=(), environment=None, endpoint=None):
        """`inside`: what stands in front of the store's command."""
        harness.need_program()
        directory.mkdir(parents=True)
        self.directory, self.run_id = directory, uuid.uuid4().hex[:12]
        self.nodes, self._store = [], None
        self.environment = harness.quiet_environment({run_nodes.MARK: f"{self.run_id}.", "TMPDIR": str(directory)})
        self.actors = run_nodes.Actors(self)
        self.store, self.endpoint = None, endpoint
        if endpoint is None:
            self._start_store(host, inside, environment)

    def _start_store(self, host, inside, environment):
        command = [*inside, harness.program(), "store", "--host", host, "--port", "0"]
        self.store = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                                      env=harness.quiet_environment(environment))
        self.endpoint = harness.Lines(self.store.stdout).next(LIMIT).split()[-1]

    def node(self, *options, conf=QUICK, inside=(), environment=None):
        """Once it has found the engine."""
        words = ["-v", "--rdzv-backend", "c10d", "--rdzv-endpoint", self.endpoint, "--rdzv-id", self.run_id,
                 "--rdzv-conf", f"engine=on,last_call_timeout=1,{conf}", *options, *self.actors.words]
        node = self._start(lambda *how: Node(*how, inside=inside), "muster", words, environment, False)
        node.said("using muster's engine at")
        return node

    def of(self, nodes):
        """The live workers of these nodes, by rank."""
        agents = {node.agent() for node in nodes}
        return [worker for worker in self.actors.alive() if parent(worker) in agents]

    def world(self, nodes, without=(), limit=LIMIT):
        """The workers of these nodes, once they are a world of their own, and none of those that a test has seen."""
        old = {worker.pid for worker in without}

        def formed():
            workers = self.of(nodes)
            fits = [worker.rank for worker in workers] == list(range(len(nodes)))
            one = len({(worker["WORLD_SIZE"], worker["MASTER_PORT"]) for worker in workers}) == 1
            new = fits and one and workers[0]["WORLD_SIZE"] == str(len(nodes))
            return workers if new and not old & {worker.pid for worker in workers} else None
        try:
            return until(formed, limit, f"a new world of {len(nodes)}")
        except AssertionError as error:
            raise AssertionError(f"{error}{self.all_said()}") from None

    def all_said(self):
        return "".join(f"\n--- {node.directory.name}, pid {node.pid}, rc {node.code}\n{node.err}" for node in self.nodes)

    def succeed(self, nodes, workers):
        for worker in workers:
            worker.succeed()
        assert [node.end(LIMIT) for node in nodes] == [0] * len(nodes), self.all_said()

    def end(self):
        super().end()
        if self.store is not None:
            self.store.terminate()
            assert harness.stop(self.store) == 0


def parent(worker):
    try:
        with open(f"/proc/{worker.pid}/stat", encoding="utf-8") as stat:
            return int(stat.read().rpartition(")")[2].split()[1])
    except OSError:
        return None


def without(nodes, others):
    return [node for node in nodes if node not in others]


def restarts(workers):
    count, = {worker["TORCHELASTIC_RESTART_COUNT"] for worker in workers}
    return int(count)


def failure(worker):
    return f"rank {worker.rank} on {HOST} (local rank 0, pid {worker.pid}) failed: exit code 3"

"""Jobs of actors under `muster run` on a real etcd, one for each back end, and their keys as a stranger sees them."""

import base64
import http.client
import json
import os
import signal
import urllib.parse
import uuid

import harness
import run_nodes
from rdzv_nodes import until

LIMIT = 25  # seconds, for what takes a moment, or as long as a keep-alive lasts
CONFS = {
    "etcd": "last_call_timeout=1,timeout=60",  # a keep-alive lasts 10 s there
    "etcd-v2": "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2,join_timeout=60",
    "etcd-v3": "last_call_timeout=1,lease=2,job_lease=60,join_timeout=60",
}
BACKENDS = tuple(CONFS)


def b64(text):
    return base64.b64encode(text.encode()).decode()


def plain(text):
    return base64.b64decode(text).decode()


class Node(run_nodes.MusterNode):
    def said(self, part):
        until(lambda: part in self.err or self.ended(), LIMIT, f"{part!r} in {self.err!r}")
        assert part in self.err, self.err


class Job(run_nodes.Job):
    """Of one back end, with an actor on each node."""

    def __init__(self, backend, cluster, directory):
        harness.need_program()
        directory.mkdir(parents=True)
        self.backend, self.cluster, self.directory = backend, cluster, directory
        self.run_id = uuid.uuid4().hex[:12]
        self.nodes, self._store = [], None
        self.environment = harness.quiet_environment({run_nodes.MARK: f"{self.run_id}.", "TMPDIR": str(directory),
                                                      "OMP_NUM_THREADS": "1"})
        self._actors = run_nodes.Actors(self)
        self.keys = {"etcd": ClassicKeys, "etcd-v2": V2Keys, "etcd-v3": V3Keys}[backend](cluster[0], self.run_id)

    def node(self, *options):
        words = ["--rdzv-backend", self.backend, "--rdzv-endpoint", self.cluster.endpoint, "--rdzv-id", self.run_id,
                 "--rdzv-conf", CONFS[self.backend], *options, *self._actors.words]
        return self._start(Node, "muster", words, None, False)

    def start(self, count, *options):
        """So many nodes; their workers, by rank."""
        for _ in range(count):
            self.node(*options)
        return self.world(count)

    def world(self, size, without=()):
        return self._actors.world(size, without, LIMIT)

    def until_marked(self, rank):
        """This member is done, and has said so."""
        until(lambda: self.keys.has_mark(rank), LIMIT, "a done mark")

    def node_of(self, actor):
        """The one that started it."""
        with open(f"/proc/{actor.pid}/stat", encoding="utf-8") as stat:
            parent = int(stat.read().rpartition(")")[2].split()[1])
        return next(node for node in self.nodes if not node.ended() and node.agent() == parent)

    def said(self):
        return "".join(f"--- {self.backend} {node.directory.name}, rc {node.code}\n{node.err}" for node in self.nodes)

    def succeed(self, workers):
        """All of them, and so do the nodes that are left."""
        left = [self.node_of(worker) for worker in workers]
        for worker in workers:
            worker.succeed()
        assert [node.end(LIMIT) for node in left] == [0] * len(left), self.said()


def restarts(workers):
    """What all are told."""
    count, = {worker["TORCHELASTIC_RESTART_COUNT"] for worker in workers}
    return int(count)


# ---- Nodes that are killed ----


def kill_agent(node):
    """Its keeper is left, and cleans up."""
    os.kill(node.agent(), signal.SIGKILL)


def kill_both(node):
    agent = node.agent()
    os.kill(node.pid, signal.SIGKILL)
    os.kill(agent, signal.SIGKILL)


# ---- What is in etcd, and who writes to it ----


class Raw(str):
    """A value that goes to etcd as it is, where others are encoded as muster does it."""


class Keys:
    """Of one job: by the names that docs/PROTOCOL.md gives them, without what stands in front of all."""

    def __init__(self, member, run_id):
        self.member, self.run_id = member, run_id

    def ask(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.member.port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            return json.loads(connection.getresponse().read() or b"{}")
        finally:
            connection.close()

    def round(self):
        """The last one that has begun, once one has."""
        raise NotImplementedError

    def has_mark(self, rank):
        """Of a member of that round that is done."""
        raise NotImplementedError


class EtcdKeys(Keys):
    """In etcd's version 2 keys."""

    store = None

    def call(self, method, path, **fields):
        path = "/v2/keys" + urllib.parse.quote(path, safe="/=")
        if method == "GET":
            return self.ask(method, path + "?recursive=true&quorum=true")
        return self.ask(method, path, urllib.parse.urlencode(fields),
                        {"Content-Type": "application/x-www-form-urlencoded"})

    def value(self, path):
        return self.call("GET", path).get("node", {}).get("value")

    def paths(self, path):
        """All keys below it that are not directories, with their values."""
        nodes, found = [self.call("GET", path).get("node", {})], {}
        while nodes:
            node = nodes.pop()
            nodes += node.get("nodes", [])
            if not node.get("dir") and "key" in node:
                found[node["key"]] = node["value"]
        return found

    def write(self, path, value):
        """As it is; None: deletes it."""
        if value is None:
            self.call("DELETE", path)
        else:
            assert "node" in self.call("PUT", path, value=value)

    def round(self):
        """"ROUND.TAG"."""
        return until(lambda: self.agents().get("budget"), LIMIT, "a budget").split()[1]

    def has_mark(self, rank):
        return f"{self.round()}/done/{rank}" in self.agents()

    def agents(self):
        """All keys of the agents, without "muster.RUN/", and what is in them."""
        ours, found = f"muster.{self.run_id}/", {}
        for path, value in self.paths(self.store).items():
            name = plain(path.removeprefix(self.store + "/"))
            if name.startswith(ours):
                found[name.removeprefix(ours)] = self.readable(value)
        return found

    @staticmethod
    def readable(value):
        try:
            return plain(value)
        except ValueError:
            return value

    def path(self, key):
        return f"{self.store}/{b64(f'muster.{self.run_id}/{key}')}"

    def put(self, key, value):
        """Overwrites a key of the agents."""
        self.write(self.path(key), value if isinstance(value, Raw) else b64(value))

    def delete(self, key):
        self.write(self.path(key), None)

    def change(self, key, value):
        """None: deletes it, if it is there."""
        if value is None:
            self.delete(key)
        else:
            self.put(key, value)


class V2Keys(EtcdKeys):
    store = "/torch/elastic/store"

    @property
    def document(self):
        return f"/torch/elastic/rendezvous/{self.run_id}"

    def counters(self):
        return [f"/torch/elastic/muster/{name}.{self.run_id}" for name in ("bell", "turn", "done")]


class ClassicKeys(EtcdKeys):
    @property
    def root(self):
        return f"/torchelastic/p2p/run_{self.run_id}"

    @property
    def store(self):
        return self.root + "/muster/kv"

    @property
    def document(self):
        return self.root + "/rdzv/active_version"


class V3Keys(Keys):
    """Agents have none of their own: the leader of the rendezvous does what they would be for."""

    def call(self, what, **fields):
        return self.ask("POST", f"/v3/kv/{what}", json.dumps(fields))

    def paths(self):
        """All keys of the job, without "/muster/RUN/", and what is in them."""
        prefix = f"/muster/{self.run_id}/"
        found = self.call("range", key=b64(prefix), range_end=b64(prefix[:-1] + "0")).get("kvs", [])
        return {plain(kv["key"]).removeprefix(prefix): base64.b64decode(kv.get("value", "")).decode() for kv in found}

    def value(self, path):
        return self.paths().get(path)

    def write(self, path, value, keeps_lease=False):
        """Under no lease, as a stranger does, or under the one it has; None: deletes it."""
        key = b64(f"/muster/{self.run_id}/{path}")
        if value is None:
            self.call("deleterange", key=key)
        else:
            assert "header" in self.call("put", key=key, value=b64(value), ignore_lease=keeps_lease)

    def json(self, path):
        return json.loads(self.value(path) or "{}")

    def round(self):
        return until(lambda: self.json("job/doc"), LIMIT, "a document")["round"]

    def has_mark(self, rank):
        node = self.json(f"member/{self.json('job/doc')['world']}/0000")["members"][rank][0]
        return self.value(f"nodes/{node}/done") is not None


def kept(etcd, directory):
    """For a fixture: yields a function that makes a job of a back end, to start nodes in."""
    made = []

    def make(backend):
        made.append(Job(backend, etcd, directory / f"job{len(made)}"))
        return made[-1]

    yield make
    for job in made:
        job.end()

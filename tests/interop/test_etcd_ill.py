"""Jobs under `muster run` while their etcd is ill, with each of the three back ends.

A job's workers do nothing but stay: they write down the world that each of them was started in.  What happens to etcd
happens to one job of each back end at once.  Afterwards every job must go on, in one world, and end well: none was closed
before its workers had ended.
"""

import base64
import collections
import contextlib
import http.client
import json
import os
import pickletools
import re
import signal
import ssl
import subprocess
import time
import uuid

import pytest

import etcd_servers
import harness
import run_nodes
from rdzv_nodes import until

LEASE = 8        # etcd-v3's
KEEP_ALIVE = 10  # of the classic rendezvous: it is what it is
LIMIT = 120      # for what takes seconds when nothing is in the way
CONFS = {
    "etcd": "last_call_timeout=1,timeout=120",
    "etcd-v2": "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=10,join_timeout=120",
    "etcd-v3": f"last_call_timeout=1,lease={LEASE},job_lease=60,join_timeout=120",
}
BACKENDS = tuple(CONFS)
WORKER = """
world=$MASTER_ADDR:$MASTER_PORT.$TORCHELASTIC_RESTART_COUNT
echo "$world $RANK $WORLD_SIZE $TORCHELASTIC_RESTART_COUNT $$" >> "$1/starts"
while [ ! -e "$1/end" ]; do
    if [ -e "$1/fail" ] && rm "$1/fail" 2>/dev/null; then exit 1; fi
    sleep 0.2
done
"""
Start = collections.namedtuple("Start", "world rank size restarts pid")


class Job(run_nodes.Job):
    """A job of one back end, a worker a node."""

    def __init__(self, backend, cluster, directory, nnodes):
        harness.need_program()
        directory.mkdir(parents=True)
        self.backend, self.cluster, self.directory, self.nnodes = backend, cluster, directory, nnodes
        self.run_id = uuid.uuid4().hex[:12]
        self.nodes, self._store = [], None
        (directory / "worker").write_text(WORKER)
        self.environment = harness.quiet_environment({run_nodes.MARK: f"{self.run_id}.", "TMPDIR": str(directory)})

    def node(self, endpoints=None, conf=""):
        return self.muster("--rdzv-backend", self.backend, "--rdzv-endpoint", endpoints or self.cluster.endpoints,
                           "--rdzv-id", self.run_id, "--nnodes", self.nnodes, "--max-restarts", 20, "--rdzv-conf",
                           CONFS[self.backend] + conf, "--no-python", "sh", self.directory / "worker", self.directory)

    def starts(self):
        path = self.directory / "starts"
        lines = path.read_text().splitlines() if path.exists() else []
        return [Start(world, int(rank), int(size), int(restarts), int(pid))
                for world, rank, size, restarts, pid in map(str.split, lines)]

    def worlds(self):
        """In the order in which their first workers were started, each with its starts."""
        worlds = {}
        for start in self.starts():
            worlds.setdefault(start.world, []).append(start)
        return worlds

    def said(self):
        return "".join(f"--- {self.backend} {node.directory.name}, rc {node.code}\n{node.out}{node.err}"
                       for node in self.nodes)

    def until(self, condition, what):
        try:
            return until(condition, LIMIT, f"{self.backend}: {what}")
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.starts()}\n{self.said()}") from None

    def settled(self, size, after=None):
        """The world of so many workers that is the job's now, once there is one; not the one before."""
        def found():
            self.one_world_at_a_time()
            *former, (world, starts) = self.worlds().items()
            if world == after or not len(starts) == starts[0].size == size or not self.live(starts):
                return None
            return None if any(self.live([start]) for _, ended in former for start in ended) else world
        return self.until(lambda: self.starts() and found(), f"a world of {size}, after {after}")

    @staticmethod
    def live(starts):
        return all(os.path.exists(f"/proc/{start.pid}") for start in starts)

    def one_world_at_a_time(self):
        low, _, high = self.nnodes.partition(":")
        for starts in self.worlds().values():
            size = starts[0].size
            assert {start.size for start in starts} == {size} and int(low) <= size <= int(high or low), self.starts()
            assert len({start.rank for start in starts}) == len(starts) <= size, self.starts()
            assert all(0 <= start.rank < size for start in starts), self.starts()

    def undisturbed(self, world):
        """That world is still the job's, with all its workers."""
        assert list(self.worlds())[-1] == world, self.said()
        assert self.live(self.worlds()[world]), self.said()

    def had(self, count):
        """So many worlds, and no more."""
        assert len(self.worlds()) == count, f"{self.starts()}\n{self.said()}"

    def fail(self):
        """One of the workers fails."""
        (self.directory / "fail").touch()

    def kill_worker(self, world):
        """The last of that world, if that is still there."""
        pid = max(self.worlds()[world], key=lambda start: start.rank).pid
        if pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def let_end(self, member=None):
        """The workers may end, and the job with them: until now nobody has closed it."""
        if not (self.directory / "end").exists():
            assert not is_closed(self, member or self.cluster.leader()), self.said()
            (self.directory / "end").touch()

    def finish(self, but=()):
        """The workers are done, and so is everybody; but these were killed."""
        self.let_end()
        for node in self.nodes:
            if node not in but:
                assert node.end(LIMIT) == 0, self.said()
        self.one_world_at_a_time()
        self.until(lambda: not self.left(), "no process is left")


class Fleet:
    """A job of each back end."""

    def __init__(self, cluster, directory, nnodes="2:3", nodes=2, endpoints=None, backends=BACKENDS):
        self.jobs = [Job(backend, cluster, directory / backend, nnodes) for backend in backends]
        for job in self.jobs:
            for _ in range(nodes):
                job.node(endpoints)

    def __iter__(self):
        return iter(self.jobs)

    def settled(self, size, after=None):
        return {job: job.settled(size, after and after[job]) for job in self.jobs}

    def undisturbed(self, worlds):
        for job in self.jobs:
            job.undisturbed(worlds[job])

    def had(self, count):
        for job in self.jobs:
            job.had(count)

    def fail(self):
        for job in self.jobs:
            job.fail()

    def kill_worker(self, worlds):
        for job in self.jobs:
            job.kill_worker(worlds[job])

    def finish(self):
        member = self.jobs[0].cluster.leader()  # once: to ask one that stalls takes seconds
        for job in self.jobs:
            job.let_end(member)
        for job in self.jobs:
            job.finish()

    def end(self):
        for job in self.jobs:
            job.end()


@pytest.fixture
def fleets(tmp_path):
    made = []

    def make(cluster, **what):
        made.append(Fleet(cluster, tmp_path / f"fleet{len(made)}", **what))
        return made[-1]

    yield make
    for fleet in made:
        fleet.end()


@pytest.fixture
def proxies():
    proxies = etcd_servers.Proxies()
    yield proxies
    proxies.stop()


@pytest.fixture(scope="module")
def shared_trio(tmp_path_factory):
    yield from etcd_servers.kept(tmp_path_factory.mktemp("trio"), 3)


@pytest.fixture
def trio(shared_trio):
    """Three members, well before each test whatever the one before has done to them."""
    for member in shared_trio.members:
        if member.process is not None:
            member.resume()
    shared_trio.start_all()
    shared_trio.wait_healthy()
    return shared_trio


# ---- What is in etcd ----

def ask(member, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", member.port, timeout=30)
    if member.tls:
        context = ssl.create_default_context(cafile=member.tls.ca)
        context.load_cert_chain(member.tls.client_cert, member.tls.client_key)
        connection = http.client.HTTPSConnection("127.0.0.1", member.port, timeout=30, context=context)
    try:
        connection.request(method, path, body, headers or {})
        return json.loads(connection.getresponse().read() or b"{}")
    finally:
        connection.close()


def call(member, path, **body):
    return ask(member, "POST", path, json.dumps(body))


def b64(text):
    return base64.b64encode(text.encode()).decode()


def has_come(job, member):
    """Whether a node of the job has written anything that others see."""
    try:
        if job.backend == "etcd-v3":
            prefix = f"/muster/{job.run_id}/nodes/"
            return "kvs" in call(member, "/v3/kv/range", key=b64(prefix), range_end=b64(prefix[:-1] + "0"))
        if job.backend == "etcd-v2":
            return "node" in ask(member, "GET", f"/v2/keys/torch/elastic/rendezvous/{job.run_id}")
        document = ask(member, "GET", f"/v2/keys/torchelastic/p2p/run_{job.run_id}/rdzv/active_version")
        return bool(json.loads(document["node"]["value"])["participants"]) if "node" in document else False
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return False


def is_closed(job, member):
    """Whether the job is closed, by what is there of it; it stays there once it is."""
    if job.backend == "etcd-v3":
        return "kvs" in call(member, "/v3/kv/range", key=b64(f"/muster/{job.run_id}/job/closed"))
    place = {"etcd": f"torchelastic/p2p/run_{job.run_id}/rdzv/active_version",
             "etcd-v2": f"torch/elastic/rendezvous/{job.run_id}"}[job.backend]
    answer = ask(member, "GET", f"/v2/keys/{place}")
    if answer.get("errorCode") == 100:
        return False  # as between two rounds
    value = answer["node"]["value"]
    if job.backend == "etcd":
        return json.loads(value)["status"] == "closed"
    words = [(code.name, word) for code, word, _ in pickletools.genops(base64.b64decode(value))
             if code.name not in ("MEMOIZE", "BINPUT", "LONG_BINPUT")]
    return words[[word for _, word in words].index("closed") + 1][0] == "NEWTRUE"


# ---- Members of a cluster that go ----

@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_member_that_dies_while_nodes_join_delays_them(trio, fleets, who):
    leader, follower = trio.leader(), trio.follower()
    member = leader if who == "leader" else follower
    endpoints = f"{leader.url},{follower.url}"  # so that many have to do with it
    fleet = fleets(trio, nodes=1, endpoints=endpoints)
    for job in fleet:
        job.until(lambda job=job: has_come(job, member), "one node is there")
    member.kill()
    for job in fleet:
        job.node(endpoints)
    fleet.settled(2)
    fleet.finish()
    fleet.had(1)


def test_a_leader_that_dies_disturbs_no_worker_and_delays_a_regroup(trio, fleets):
    fleet = fleets(trio)
    worlds = fleet.settled(2)
    leader = trio.leader()
    leader.kill()
    trio.leader()
    leader.start()
    trio.wait_healthy()
    fleet.undisturbed(worlds)
    fleet.fail()
    trio.leader().kill()
    worlds = fleet.settled(2, worlds)
    fleet.had(2)
    assert all(job.starts()[-1].restarts == 1 for job in fleet)
    trio.start_all()
    trio.follower().kill()
    for job in fleet:
        job.node()
    fleet.settled(3, worlds)
    fleet.finish()


def test_a_leader_that_stalls_disturbs_no_worker_and_delays_a_regroup(trio, fleets):
    """Whoever has to do with it turns to the other one."""
    leader = trio.leader()
    endpoints = f"{leader.url},{trio.follower().url}"
    fleet = fleets(trio, nodes=2, endpoints=endpoints)
    worlds = fleet.settled(2)
    leader.pause()
    time.sleep(KEEP_ALIVE + 5)  # long enough for everybody to be taken for dead
    fleet.undisturbed(worlds)
    fleet.fail()
    worlds = fleet.settled(2, worlds)
    fleet.had(2)
    for job in fleet:
        job.node(endpoints)
    fleet.settled(3, worlds)
    fleet.finish()


def test_a_leader_that_comes_back_when_another_one_leads_disturbs_no_group(trio, fleets):
    """What it was asked while it was stopped, it does, or does not, when everybody has gone elsewhere."""
    leader = trio.leader()
    fleet = fleets(trio, nodes=0)
    for job in fleet:  # with leases that outlive the pause: a leader before 3.4.31 that is back may end others
        for _ in range(2):
            job.node(f"{leader.url},{trio.follower().url}", ",lease=60,job_lease=240" if job.backend == "etcd-v3" else "")
    worlds = fleet.settled(2)
    leader.pause()
    trio.leader(but=leader)
    fleet.fail()
    time.sleep(3)  # the regroup is under way, and some of it stands still
    leader.resume()
    worlds = fleet.settled(2, worlds)
    fleet.had(2)
    until(lambda: not leader.is_leader() and leader.healthy(), LIMIT, "it has heard who leads")
    fleet.undisturbed(worlds)
    for job in fleet:
        job.node(leader.url)
    fleet.settled(3, worlds)
    fleet.had(3)
    fleet.finish()


@pytest.fixture
def with_follower(trio, fleets, proxies):
    """Jobs that run, and the follower that all of them have to do with: when they came, there was nobody else."""
    follower, other = trio.follower(), proxies.make(trio.leader().port)
    proxies.cut(other)
    fleet = fleets(trio, endpoints=f"{follower.url},{other.endpoint}")
    worlds = fleet.settled(2)
    other.let_through()
    return follower, fleet, worlds


def test_a_follower_that_stalls_and_comes_back_disturbs_nobody(with_follower):
    follower, fleet, worlds = with_follower
    follower.pause()
    time.sleep(KEEP_ALIVE + 2)
    fleet.undisturbed(worlds)
    follower.resume()
    until(follower.healthy, LIMIT, "it has heard what it missed")
    time.sleep(2)  # who is told now that somebody was lost would stop by then
    fleet.undisturbed(worlds)
    fleet.had(1)
    fleet.kill_worker(worlds)
    fleet.settled(2, worlds)
    fleet.had(2)
    assert all(job.starts()[-1].restarts == 1 for job in fleet)
    fleet.finish()


def test_a_follower_that_has_missed_a_regroup_disturbs_nobody(with_follower):
    """What it says when it is back is of the group before."""
    follower, fleet, worlds = with_follower
    follower.pause()
    fleet.kill_worker(worlds)
    worlds = fleet.settled(2, worlds)
    follower.resume()
    until(follower.healthy, LIMIT, "it has heard what it missed")
    time.sleep(2)
    fleet.undisturbed(worlds)
    fleet.had(2)
    fleet.finish()


def test_a_cluster_that_is_away_for_longer_than_any_lease(trio, fleets):
    calm, torn = fleets(trio), fleets(trio, nnodes="1:2")
    worlds = calm.settled(2)
    torn_worlds = torn.settled(2)
    trio.kill_all()
    for job in torn:
        os.kill(job.nodes[0].agent(), signal.SIGKILL)
        job.nodes[0].end()
        job.node()
    time.sleep(KEEP_ALIVE + 2)
    calm.undisturbed(worlds)
    trio.start_all()
    torn.settled(2, torn_worlds)
    calm.undisturbed(worlds)
    calm.fail()
    calm.settled(2, worlds)
    calm.had(2)
    calm.finish()
    for job in torn:
        job.finish(but=job.nodes[:1])


def test_a_cluster_that_is_away_for_longer_than_any_lease_delays_those_who_join(trio, fleets):
    """One has come, one is on its way, one comes while nobody is there; and of some jobs the first dies meanwhile."""
    calm, torn = fleets(trio, nnodes="3", nodes=1), fleets(trio, nnodes="3", nodes=1)
    for job in [*calm, *torn]:
        job.until(lambda job=job: has_come(job, trio[0]), "one node is there")
    for job in [*calm, *torn]:
        job.node()
    trio.kill_all()
    for job in torn:
        os.kill(job.nodes[0].agent(), signal.SIGKILL)
        job.nodes[0].end()
        job.node()
    for job in [*calm, *torn]:
        job.node()
    time.sleep(KEEP_ALIVE + 1)
    assert not any(job.starts() for job in [*calm, *torn])
    trio.start_all()
    calm.settled(3)
    torn.settled(3)
    calm.had(1)
    torn.had(1)
    calm.finish()
    for job in torn:
        job.finish(but=job.nodes[:1])


# ---- Nodes that leave ----

def test_a_node_that_leaves_is_seen_before_its_time_is_up(etcds, fleets):
    """By what it does, and not by what it no longer does: it would be missed in minutes only.  The classic keep-alive cannot
    be made longer, but etcd knows what became of it.  Nobody waits for a last call, either."""
    patience = {"etcd": "", "etcd-v2": ",keep_alive_interval=60,keep_alive_max_attempt=5",
                "etcd-v3": ",lease=300,job_lease=600"}
    cluster = etcds(1)
    fleet = fleets(cluster, nnodes="2:3", nodes=0)
    for job in fleet:
        for _ in range(3):
            job.node(conf=patience[job.backend] + f",last_call_timeout={2 * LIMIT}")
    worlds = fleet.settled(3)
    classic = next(job for job in fleet if job.backend == "etcd")
    document = ask(cluster[0], "GET", f"/v2/keys/torchelastic/p2p/run_{classic.run_id}/rdzv/active_version")["node"]["value"]
    kept = [ask(cluster[0], "GET", f"/v2/keys{key}")["node"] for key in json.loads(document)["keep_alives"]]
    for job in fleet:
        job.nodes[1].signal(signal.SIGTERM)
    for job in fleet:
        assert job.nodes[1].end(LIMIT) == 1
    fleet.settled(2, worlds)
    assert [became(cluster[0], node) for node in kept] == ["delete"] * 3
    fleet.had(2)
    for job in fleet:
        job.finish(but=job.nodes[1:2])


def became(member, node):
    """What became of a key of version 2: "delete", or "expire" if its time was up."""
    event = {"action": None, "node": node}
    while event["action"] not in ("delete", "compareAndDelete", "expire"):
        event = ask(member, "GET", f"/v2/keys{node['key']}?wait=true&waitIndex={event['node']['modifiedIndex'] + 1}")
    return event["action"]


# ---- Data that goes ----

def test_an_etcd_that_comes_back_empty_disturbs_no_worker(etcds, fleets):
    cluster = etcds(1)
    fleet = fleets(cluster)
    worlds = fleet.settled(2)
    cluster[0].kill()
    cluster[0].wipe()
    cluster[0].start()
    for job in fleet:
        job.until(lambda job=job: has_come(job, cluster[0]), "the job is in etcd again")
    fleet.undisturbed(worlds)
    fleet.fail()
    worlds = fleet.settled(2, worlds)
    for job in fleet:
        job.node()
    fleet.settled(3, worlds)
    fleet.finish()


def fill(member):
    """Until it has no space left."""
    for i in range(100):
        answer = call(member, "/v3/kv/put", key=b64(f"filler{i}"), value=base64.b64encode(os.urandom(300_000)).decode())
        if "space" in answer.get("message", ""):
            return
    raise AssertionError("there is always space")


def make_space(member):
    """As etcd's own documentation says: delete, compact, defragment, disarm."""
    revision = call(member, "/v3/kv/deleterange", key=b64("filler"), range_end=b64("filles"))["header"]["revision"]
    call(member, "/v3/kv/compaction", revision=revision, physical=True)
    call(member, "/v3/maintenance/defragment")
    for alarm in call(member, "/v3/maintenance/alarm", action="GET").get("alarms", []):
        call(member, "/v3/maintenance/alarm", action="DEACTIVATE", memberID=alarm["memberID"], alarm=alarm["alarm"])


def test_an_etcd_without_space_disturbs_no_worker_and_delays_a_regroup(etcds, fleets):
    cluster = etcds(1, extra=["--quota-backend-bytes", str(2 << 20)])
    fleet = fleets(cluster)
    worlds = fleet.settled(2)
    fill(cluster[0])
    fleet.fail()
    full = [job for job in fleet if job.backend == "etcd-v3"]
    for job in set(fleet) - set(full):  # version 2 of the API knows no quota
        job.settled(2, worlds[job])
    for job in full:
        late = job.node(conf=",join_timeout=3,read_timeout=3")
        assert late.end(LIMIT) == 1
        assert re.search("no space|space exceeded", late.err), late.err
        job.nodes.remove(late)
        job.until(lambda job=job: any("space" in node.err for node in job.nodes), "it is said")
        job.had(1)
    make_space(cluster[0])
    fleet.settled(2, worlds)
    fleet.had(2)
    fleet.finish()


# ---- Bytes that are late, and connections that end ----

def fresh_seed():
    seed = int(os.environ.get("MUSTER_SEED", "0"), 0) or int.from_bytes(os.urandom(4), "little")
    print(f"replay with MUSTER_SEED={seed:#x}")
    return seed


def test_connections_that_end_at_random_points_end_no_job(etcds, fleets, proxies):
    seed = fresh_seed()
    cluster = etcds(1)
    fleet = fleets(cluster, nodes=0)
    rough = [proxies.make(cluster[0].port, seed + i) for i in range(2 * len(BACKENDS))]
    for i, job in enumerate(fleet):
        for proxy in rough[2 * i:2 * i + 2]:
            job.node(proxy.endpoint)
    fleet.settled(2)
    time.sleep(LEASE)  # it runs
    worlds = fleet.settled(2)
    fleet.fail()
    worlds = fleet.settled(2, worlds)
    for job in fleet:
        job.node()
    worlds = fleet.settled(3, worlds)
    assert sum(proxy.ended for proxy in rough) > len(rough)
    for proxy in rough:
        proxy.smooth()
    fleet.fail()
    fleet.settled(3, worlds)
    fleet.finish()


def test_connections_to_each_member_that_end_at_random_points_end_no_job(trio, fleets, proxies):
    """Who is thrown out by one member turns to the next, with what it has asked half done."""
    seed = fresh_seed()
    rough = [proxies.make(member.port, seed + i) for i, member in enumerate(trio.members)]
    fleet = fleets(trio, endpoints=",".join(proxy.endpoint for proxy in rough))
    worlds = fleet.settled(2)
    ended = [proxy.ended for proxy in rough]
    until(lambda: all(proxy.ended > count for proxy, count in zip(rough, ended)), LIMIT, "an end at each while jobs run")
    worlds = fleet.settled(2)
    fleet.kill_worker(worlds)
    fleet.settled(2, worlds)
    fleet.finish()


def test_what_a_watch_has_missed_is_read_again(etcds, fleets, proxies):
    """A node leaves while another one hears nothing, and etcd has forgotten it by the time it hears again.  The classic one
    reads whenever a connection has ended, and asks for nothing that is forgotten."""
    forgotten = {"etcd-v2": b'"errorCode":401', "etcd-v3": b'"compact_revision"'}
    cluster = etcds(1)
    fleet = fleets(cluster, nnodes="1:2", nodes=0)
    proxy = {job: proxies.make(cluster[0].port) for job in fleet}
    for job in fleet:
        if job.backend in forgotten:
            proxy[job].look_for(forgotten[job.backend])
        # With a lease that outlives all this: without one everything would be read anew in any case.
        conf = ",lease=120,job_lease=120" if job.backend == "etcd-v3" else ""
        job.node(proxy[job].endpoint, conf=conf)
        job.node(conf=conf)
    worlds = fleet.settled(2)
    for job in fleet:
        proxies.cut(proxy[job])
        job.nodes[1].signal(signal.SIGTERM)
    for job in fleet:
        assert job.nodes[1].end(LIMIT) == 1
    forget(cluster[0])
    for job in fleet:
        proxy[job].let_through()
    fleet.settled(1, worlds)
    for job in fleet:
        assert all(count > 0 for count in proxy[job].wanted.values()), job.said()
        job.finish(but=job.nodes[1:])


def forget(member):
    """What has happened so far: version 2 keeps a thousand events."""
    connection = http.client.HTTPConnection("127.0.0.1", member.port, timeout=30)
    try:
        for i in range(1100):
            connection.request("PUT", "/v2/keys/other", f"value={i}", {"Content-Type": "application/x-www-form-urlencoded"})
            connection.getresponse().read()
    finally:
        connection.close()
    revision = call(member, "/v3/kv/put", key=b64("other"), value=b64("x"))["header"]["revision"]
    call(member, "/v3/kv/compaction", revision=revision, physical=True)


# ---- What cannot work ----

FILES = {"etcd": ("cacert", "cert", "key"), "etcd-v2": ("ca_cert", "ssl_cert", "ssl_cert_key"),
         "etcd-v3": ("cacert", "cert", "key")}
PATIENCE = {"etcd": "timeout=8", "etcd-v2": "read_timeout=8", "etcd-v3": "read_timeout=8"}
COMMANDS = {"join": (["join"], (1, 4)), "run": (["run", "--no-python"], (1,))}


class Attempt:
    """A `muster join` or `muster run` of one node that is not to get anywhere, and has to say why."""

    def __init__(self, command, backend, endpoint, conf, why):
        self.command, self.why = command, why
        self.what = f"{command} {backend} {endpoint} {' '.join(conf)}"
        words = [*COMMANDS[command][0], "--rdzv-backend", backend, "--rdzv-endpoint", endpoint, "--rdzv-id", "x",
                 "--nnodes", "1", "--rdzv-conf", ",".join([PATIENCE[backend], *conf])]
        self.process = subprocess.Popen([harness.program(), *words, *(["false"] if command == "run" else [])],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                        text=True, env=harness.quiet_environment())

    def check(self):
        _, err = self.process.communicate(timeout=LIMIT)
        assert self.process.returncode in COMMANDS[self.command][1], f"{self.what}: {self.process.returncode}\n{err}"
        assert f"muster {self.command}: " in err and re.search(self.why, err), f"{self.what}: not {self.why}:\n{err}"


class Attempts:
    """All at once, for they wait most of the time."""

    def __init__(self):
        harness.need_program()
        self.made = []

    def add(self, *what):
        """With every command."""
        self.made += [Attempt(command, *what) for command in COMMANDS]

    def check(self):
        for attempt in self.made:
            attempt.check()

    def stop(self):
        for attempt in self.made:
            attempt.process.kill()
            attempt.process.communicate()


@pytest.fixture
def attempts():
    attempts = Attempts()
    yield attempts
    attempts.stop()


def test_certificates_that_are_no_good_are_said(etcds, attempts, tmp_path):
    tls = etcd_servers.Tls(tmp_path / "good", client_auth=True)
    old = etcd_servers.Tls(tmp_path / "old", days=-1)
    good, expired, plain = etcds(1, tls=tls), etcds(1, tls=old), etcds(1)
    for backend, (ca, cert, key) in FILES.items():
        ours = [f"{cert}={tls.client_cert}", f"{key}={tls.client_key}"]
        attempts.add(backend, good.endpoints, [f"{ca}={tls.other_ca}", *ours], "certificate problem")
        attempts.add(backend, good.endpoints, [f"{ca}={tls.ca}"],
                     "alert bad certificate|Broken pipe|reset")  # whichever comes first
        attempts.add(backend, expired.endpoints, [f"{ca}={old.ca}"], "certificate has expired")
        attempts.add(backend, good.endpoint, [], "is it https there")
        attempts.add(backend, f"https://{plain.endpoint}", [f"{ca}={tls.ca}"], "is it http there")
    attempts.check()


def test_who_is_not_let_in_is_told(etcds, attempts):
    cluster = etcds(1)
    token = close_doors(cluster[0])
    attempts.add("etcd", cluster.endpoint, [], "requires user authentication")
    attempts.add("etcd-v2", cluster.endpoint, [], "requires user authentication")
    attempts.add("etcd-v3", cluster.endpoint, [], "user name is empty")
    attempts.add("etcd-v3", cluster.endpoint, ["user=root", "password=wrong"], "authentication failed")
    attempts.add("etcd-v3", cluster.endpoint, ["user=nobody", "password=right"], "authentication failed")
    attempts.add("etcd-v3", cluster.endpoint, ["token=" + token[::-1]], "invalid auth token")
    attempts.check()


@pytest.mark.parametrize("who", ["token", "user"])
def test_who_is_known_is_let_in(etcds, fleets, who):
    cluster = etcds(1)
    token = close_doors(cluster[0])
    fleet = fleets(cluster, nnodes="2", nodes=0, backends=["etcd-v3"])
    for job in fleet:
        for _ in range(2):
            job.node(conf=f",token={token}" if who == "token" else ",user=root,password=right")
    fleet.settled(2)
    fleet.finish()


def close_doors(member):
    """With users in both versions of the API: nobody else may do anything.  A token of version 3's root."""
    call(member, "/v3/auth/user/add", name="root", password="right")
    call(member, "/v3/auth/role/add", name="root")
    call(member, "/v3/auth/user/grant", user="root", role="root")
    call(member, "/v3/auth/enable")
    root = {"Authorization": "Basic " + b64("root:right"), "Content-Type": "application/json"}
    ask(member, "PUT", "/v2/auth/users/root", json.dumps({"user": "root", "password": "right"}), root)
    ask(member, "PUT", "/v2/auth/enable", None, root)
    ask(member, "PUT", "/v2/auth/roles/guest",
        json.dumps({"role": "guest", "revoke": {"kv": {"read": ["/*"], "write": ["/*"]}}}), root)
    return call(member, "/v3/auth/authenticate", name="root", password="right")["token"]

"""The scenes in which PyTorch tests its own launcher and agent, played with `muster run`; README.md says which is which.

Workers that need no PyTorch are actors: they wait to be told how to end.  Scenes that are the same whatever the nodes meet
through are played on every back end at once.
"""

import collections
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading

import pytest

import etcd_servers
import harness
from harness import NEW
from rdzv_nodes import all_at_once, side_by_side, until
from run_nodes import QUICK, RUN_LIMIT, WORKERS, Actors, report_of

WHICH = NEW
BACKENDS = ("c10d", "etcd-v2", "etcd-v3")
CONF = {
    "c10d": QUICK,
    "etcd": "last_call_timeout=2,timeout=120",
    "etcd-v2": QUICK,
    "etcd-v3": "lease=5,job_lease=60,last_call_timeout=1,join_timeout=60",
}
DEATH_AGE = 5  # seconds, with these
A_WHILE = 2  # in which what must not happen would have happened

on_every_backend = all_at_once("backend", BACKENDS)
on_every_backend_and_the_classic_one = all_at_once("backend", (*BACKENDS, "etcd"))


class Etcd:
    """One for all jobs of this file, started when first wanted."""

    def __init__(self, directory):
        self._directory, self._lock, self._cluster = directory, threading.Lock(), None

    def get(self):
        with self._lock:
            if self._cluster is None:
                etcd_servers.need()
                self._cluster = etcd_servers.Cluster(self._directory)
            return self._cluster

    def stop(self):
        if self._cluster is not None:
            self._cluster.stop()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory):
    etcd = Etcd(tmp_path_factory.mktemp("etcd"))
    yield etcd
    etcd.stop()


class Place:
    """A job, and where its nodes meet."""

    def __init__(self, job, backend, endpoint):
        self.job, self._backend, self._endpoint = job, backend, endpoint

    def node(self, nodes, *words, number=None, **how):
        """Lower numbers get lower ranks, on c10d."""
        address = ["--local-addr", f"127.0.0.{number}"] if number else []
        return self.job.muster("--nnodes", nodes, "--rdzv-backend", self._backend, "--rdzv-endpoint", self._endpoint,
                               "--rdzv-id", self.job.run_id, "--rdzv-conf", CONF[self._backend], *address, *words, **how)


@pytest.fixture
def places(jobs, etcd):
    """places("etcd-v3") is a job whose nodes meet there; with c10d in a store of nobody's, unless told otherwise."""
    def make(backend, hosted=True, which=WHICH):
        job = jobs(which, f"-{backend}")
        if backend == "c10d":
            if hosted:
                job.start_store()
            return Place(job, backend, f"127.0.0.1:{job.port}")
        cluster = etcd.get()
        return Place(job, backend, cluster.endpoints if backend == "etcd-v3" else cluster.endpoint)
    return make


def by_node(actors):
    """Actors by the rank of their node."""
    nodes = collections.defaultdict(list)
    for actor in actors:
        nodes[int(actor["GROUP_RANK"])].append(actor)
    return [nodes[rank] for rank in sorted(nodes)]


def node_of(job, actor):
    """The launcher that started it."""
    agent = int(open(f"/proc/{actor.pid}/stat").read().rpartition(")")[2].split()[1])
    return next(node for node in job.nodes if not node.ended() and node.agent() == agent)


def stays(condition, seconds=A_WHILE):
    """Looks for so long whether that holds all the time."""
    with pytest.raises(AssertionError, match="not within"):
        until(lambda: not condition(), seconds, "the end of it")


def no_more(actors, count):
    assert len(actors.seen()) == count, "a worker was started that should not have been"


# ---- Elastic jobs, and how their agents end ----

@on_every_backend_and_the_classic_one
def test_agents_of_an_elastic_job_make_one_world_and_end_together(places, backend):
    """The workers of the two end seconds apart, and whoever is first waits for the other."""
    place = places(backend)
    actors = Actors(place.job)
    for number in (1, 2):
        place.node("1:2", "--nproc-per-node", 4, *actors.words, number=number)
    early, late = by_node(actors.world(8))
    seen = len(actors.seen())
    first, second = node_of(place.job, early[0]), node_of(place.job, late[0])
    for actor in early:
        actor.succeed()
    until(lambda: not any(actor.alive for actor in early), what="the end of the first four")
    stays(lambda: not first.ended() and all(actor.alive for actor in late))
    for actor in late:
        actor.succeed()
    first.good()
    second.good()
    no_more(actors, seen)


EXIT_BARRIERS = {  # another way to say it on each
    "c10d": ([], {"TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT": "0.5"}),
    "etcd-v2": (["--exit-barrier-timeout", 0], {}),
    "etcd-v3": (["--exit-barrier-timeout", 0.5], {"TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT": "300"}),
}


@on_every_backend
def test_a_wait_for_the_others_that_is_over_fails_nobody(places, backend):
    place, (words, variables) = places(backend), EXIT_BARRIERS[backend]
    actors = Actors(place.job)
    for number in (1, 2):
        place.node(2, *words, *actors.words, number=number, environment=variables)
    early, late = actors.world(2)
    first, second = node_of(place.job, early), node_of(place.job, late)
    early.succeed()
    first.good()
    assert late.alive
    stays(lambda: late.alive, DEATH_AGE + A_WHILE)  # who has ended well is not lost
    late.succeed()
    second.good()
    no_more(actors, 2)


WRONG_BARRIERS = [
    (["--exit-barrier-timeout=-1"], {}, 1, "ValueError"),
    (["--exit-barrier-timeout=nan"], {}, 1, "ValueError"),
    (["--exit-barrier-timeout=x"], {}, 2, "error: argument"),
    ([], {"TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT": "-0.5"}, 1, "ValueError"),
    ([], {"TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT": "x"}, 1, "ValueError"),
    ([], {"TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT": ""}, 1, "ValueError"),
    (["--exit-barrier-timeout=1"], {"TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT": "-1"}, 0, ""),
]


@pytest.mark.parametrize("words, variables, code, kind", WRONG_BARRIERS)
def test_a_wait_for_the_others_is_a_time_or_refused(words, variables, code, kind):
    harness.need_program()
    done = subprocess.run([harness.program(), "run", *words, "--no-python", "true"], capture_output=True, text=True,
                          check=False, timeout=RUN_LIMIT, env=harness.quiet_environment(variables))
    assert done.returncode == code and kind in done.stderr, done.stderr


SHUTDOWNS = {
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "0"},
    "PET_SHUTDOWN_TIMEOUT": {"PET_SHUTDOWN_TIMEOUT": "1", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "300"},
}


@all_at_once("variables", tuple(SHUTDOWNS))
def test_the_time_that_workers_have_to_end_can_be_a_variable(jobs, variables):
    """With the 30 s that are the default it would not end in the time that it has here."""
    job = jobs(WHICH, f"-{variables}")
    actors = Actors(job, "ignore")
    node = job.muster(*actors.words, environment=SHUTDOWNS[variables])
    actors.world(1)
    node.signal(signal.SIGTERM)
    assert node.end(25) == 1
    assert not job.left()


# ---- Nodes that are lost and replaced ----

@pytest.mark.parametrize("nodes", ("2", "1:2"), ids=("fixed", "elastic"))
@on_every_backend
def test_a_killed_agent_is_replaced(places, backend, nodes):
    """A fixed world waits for the new one, an elastic one goes on without and grows again; neither costs a restart."""
    place = places(backend)
    actors = Actors(place.job)

    def node():
        return place.node(nodes, "--nproc-per-node", 2, "--max-restarts", 0, *actors.words)
    node(), node()
    last = actors.world(4)
    victim = node_of(place.job, last[3])
    os.kill(victim.agent(), signal.SIGKILL)
    assert victim.end() != 0
    if nodes == "1:2":
        last = actors.world(2, without=last)
    else:
        until(lambda: not actors.alive(), RUN_LIMIT, "the stop of what is left of a world that is not whole")
    node()
    last = actors.world(4, without=last)
    assert {actor["TORCHELASTIC_RESTART_COUNT"] for actor in last} == {"0"}
    for actor in last:
        actor.succeed()
    for one in place.job.nodes:
        assert one is victim or one.end() == 0, one.err
    assert not place.job.left()


# ---- Failures ----

@on_every_backend
def test_an_agent_whose_workers_failed_does_not_wait_for_the_others(places, backend):
    place = places(backend)
    actors = Actors(place.job, "ignore")
    for number in (1, 2):
        place.node(2, *actors.words, number=number)
    stubborn, failing = actors.world(2)
    first, second = node_of(place.job, stubborn), node_of(place.job, failing)
    failing.fail()
    assert second.end(25) == 1  # the other's worker has 30 s to end
    assert "exitcode  : 3" in report_of(second)
    assert stubborn.alive and not first.ended()
    stubborn.signal(signal.SIGKILL)
    assert first.end() == 1
    no_more(actors, 2)


# ---- What the others say of a node that goes or comes ----

def nodes_of_three(place, actors):
    """Their workers, and the nodes in the order in which they were started; the second is 127.0.0.3."""
    nodes = [place.node("1:4", *actors.words, number=number) for number in (2, 3, 4)]
    return actors.world(3), nodes


@on_every_backend_and_the_classic_one
def test_a_node_that_a_signal_ends_is_said_to_have_left(places, backend):
    place = places(backend)
    actors = Actors(place.job)
    before, (first, leaver, last) = nodes_of_three(place, actors)
    leaver.signal(signal.SIGTERM)
    assert leaver.end() == 1
    after = actors.world(2, without=before)
    for node in (first, last):
        assert f": 127.0.0.3 left (SIGTERM); restarting the group\n" in node.err
        assert "lost " not in node.err and "to join" not in node.err
    for worker in after:
        worker.succeed()
    first.good(), last.good()


@on_every_backend_and_the_classic_one
def test_a_node_that_is_killed_is_said_to_be_lost(places, backend):
    place = places(backend)
    actors = Actors(place.job)
    before, (first, victim, last) = nodes_of_three(place, actors)
    os.kill(victim.agent(), signal.SIGKILL)
    after = actors.world(2, without=before)
    for node in (first, last):
        told, = [line for line in node.err.splitlines() if line.endswith("; restarting the group")]
        how = "its agent was killed" if backend in ("c10d", "etcd-v3") else r"no (heartbeat|keep-alive) for \d+ s"
        assert re.search(rf": lost 127\.0\.0\.3: {how}; ", told), told
    for worker in after:
        worker.succeed()
    first.good(), last.good()


@on_every_backend
def test_a_node_that_comes_is_named(places, backend):
    place = places(backend)
    actors = Actors(place.job)
    before, members = nodes_of_three(place, actors)
    newcomer = place.node("1:4", *actors.words, number=9)
    after = actors.world(4, without=before)
    for node in members:
        told = [line.partition(": ")[2] for line in node.err.splitlines() if line.endswith("; restarting the group")]
        assert told == ["127.0.0.9 wants to join; restarting the group"]
    for worker in after:
        worker.succeed()
    for node in (*members, newcomer):
        node.good()


# In an argument $$ stands for a dollar.
BIPOLAR = 'touch "$1/$TORCHELASTIC_RESTART_COUNT.$RANK"; case $RANK in 0|2) ;; *) exit 5;; esac; exec sleep 100'


@on_every_backend
def test_a_group_of_which_some_always_fail_uses_up_its_restarts(places, backend):
    place = places(backend)
    node = place.node(1, "--nproc-per-node", 4, "--max-restarts", 2, "--no-python", "sh", "-c", BIPOLAR, "sh",
                      place.job.directory)
    assert node.end() == 1
    report = report_of(node)
    assert re.search(r"rank      : [13] \(local_rank: [13]\)\n  exitcode  : 5 ", report.split("Root Cause")[1]), report
    # Whoever was not stopped before it had begun was there each time.
    started = {path.name for path in place.job.directory.glob("[0-9].[0-9]")}
    assert {name[0] for name in started} == {"0", "1", "2"}
    assert len(re.findall(r"error: rank [13] on \S+ \(local rank [13], pid \d+\) failed: exit code 5", node.err)) == 3
    assert not place.job.left()


ONCE = 'echo "$TORCHELASTIC_RESTART_COUNT $GROUP_RANK $LOCAL_RANK $RANK $ROLE_RANK" >> "$1/$RANK"; ' \
       'test "$RANK.$TORCHELASTIC_RESTART_COUNT" != 1.0 || exit 1; test "$TORCHELASTIC_RESTART_COUNT" = 1 || exec sleep 100'


@on_every_backend
def test_ranks_after_a_restart_are_those_before_it(places, backend):
    place = places(backend)
    for number in (1, 2):
        place.node(2, "--nproc-per-node", 2, "--max-restarts", 3, "--no-python", "sh", "-c", ONCE, "sh",
                   place.job.directory, number=number)
    for node in place.job.nodes:
        node.good()
    for rank in range(4):
        *before, after = (place.job.directory / str(rank)).read_text().splitlines()
        assert after == f"1 {rank // 2} {rank % 2} {rank} {rank}"
        assert before in ([], ["0" + after[1:]])  # who was slow may have been stopped before it had begun


# ---- Ranks ----

ASSIGNMENTS = {
    "alike": [("master", 1), *4 * [("trainer", 4)], *2 * [("ps", 3)]],
    "unlike": [("master", 8), *(("trainer", count) for count in (1, 2, 3, 4)), ("ps", 5), ("ps", 2)],
}


@pytest.mark.parametrize("agents", ASSIGNMENTS.values(), ids=ASSIGNMENTS)
@on_every_backend
def test_ranks_of_three_roles_follow_the_nodes(places, backend, agents):
    place = places(backend)
    directory = place.job.directory
    for number, (role, count) in enumerate(agents, start=1):
        place.node(len(agents), "--role", role, "--nproc-per-node", count, "--no-python", WORKERS / "environment.sh",
                   directory, number=number)
    for node in place.job.nodes:
        node.good()
    world = sum(count for _, count in agents)
    found = []
    for rank in range(world):
        text = (directory / f"environment.{rank}").read_text()
        found.append(dict(line.split("=", 1) for line in text.split("\0") if line))
    sizes, role_ranks = collections.Counter(), collections.Counter()
    for role, count in agents:
        sizes[role] += count
    met = []
    for rank, worker in enumerate(found):
        role = worker["ROLE_NAME"]
        if worker["LOCAL_RANK"] == "0":
            met.append((role, int(worker["LOCAL_WORLD_SIZE"])))
            local = 0
        assert [worker[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK")] == \
            [str(n) for n in (rank, local, len(met) - 1, role_ranks[role])]
        assert [worker[name] for name in ("WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "TORCHELASTIC_RUN_ID")] == \
            [str(n) for n in (world, len(agents), sizes[role], place.job.run_id)]
        role_ranks[role] += 1
        local += 1
    assert sorted(met) == sorted(agents)
    if backend == "c10d":
        assert met == agents  # by their addresses
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
                 "TORCHELASTIC_USE_AGENT_STORE"):
        assert len({worker[name] for worker in found}) == 1


# ---- With PyTorch in the workers ----

@all_at_once("backend", ("c10d", "etcd-v2"))
def test_a_sum_over_nodes_of_one_two_and_three_workers(places, backend):
    place = places(backend, which=WHICH if backend == "c10d" else "1.13.1")
    for number, count in enumerate((1, 2, 3), start=1):
        place.node(3, "--nproc-per-node", count, WORKERS / "group.py", "env://", place.job.directory, number=number)
    for node in place.job.nodes:
        node.good()
    assert [json.loads((place.job.directory / str(rank)).read_text())["sum"] for rank in range(6)] == 6 * [21.0]


@side_by_side
def test_remote_calls_between_two_agents(jobs, which):
    job = jobs(which)
    names = ["answerer0", "answerer1"]
    for number, (role, count) in enumerate((("caller", 1), ("answerer", 2)), start=1):
        job.muster(*job.meeting(2, number), "--role", role, "--nproc-per-node", count, WORKERS / "rpc.py", job.directory,
                   *names, environment={"TP_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"})
    for node in job.nodes:
        node.good()
    assert json.loads((job.directory / "answers").read_text()) == {name: [f"hello from {name}", 9.0] for name in names}


TIMER_ENDS = {
    "happy_path": 0, "expired": -9, "expired_with_another_signal": -15, "expired_without_a_signal": 0,
    "expired_inside_of_a_valid_one": -9, "still_valid": 0, "released": 0, "recursive": 0, "recursive_and_expired": -9,
    "gone_before_the_release": 0, "without_a_server": 0, "many_kept": 0, "many_released": 0,
}


@side_by_side
def test_the_timer_client_has_its_way(jobs, which):
    """Two hundred requests come from ten processes at once, beside all else that it does."""
    job = jobs(which)
    events = job.directory / "events"
    node = job.muster("--event-log-handler", f"file:{events}", WORKERS / "timers.py", job.directory,
                      environment={"TORCHELASTIC_ENABLE_FILE_TIMER": "1"})
    node.good()
    told = json.loads((job.directory / "told").read_text())
    assert {name: {code for _, code in ends} for name, ends in told.items()} == \
        {name: {code} for name, code in TIMER_ENDS.items()}, node.err
    pids = {name: [str(pid) for pid, _ in ends] for name, ends in told.items()}
    found = collections.defaultdict(list)
    for event in map(json.loads, events.read_text().splitlines()):
        if event["name"] in ("timer expired", "kill worker process"):
            about = json.loads(event["metadata"]["metadata"])
            found[event["name"], about["worker_pid"]].append(about["scope_id"])
    killed = {pid for name, pid in found if name == "kill worker process"}
    assert killed == {pid for name, code in TIMER_ENDS.items() if code < 0 for pid in pids[name]}
    expected = killed | set(pids["expired_without_a_signal"]) | set(pids["many_kept"])
    expired = {pid: scopes for (name, pid), scopes in found.items() if name == "timer expired"}
    assert expected <= expired.keys()
    # That of a process that is gone is told of, too, and nothing comes of it.
    assert [scopes for pid, scopes in expired.items() if pid not in expected] in ([], [["never given back"]])
    for pid in pids["many_kept"]:
        assert sorted(found["timer expired", pid]) == sorted(f"kept {number}" for number in range(20))
    assert not job.left()


@side_by_side
def test_the_helpers_of_elastic_find_our_store_to_be_one(jobs, which):
    job = jobs(which)  # for its store
    job.start_store()
    done = subprocess.run([harness.interpreter(which), WORKERS / "helpers.py", str(job.port)], capture_output=True,
                          text=True, check=False, timeout=RUN_LIMIT, env=harness.quiet_environment())
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["ours"] == told["stock"]
    assert told["ours"]["all come"] == told["ours"]["barrier"] == 3 * ["None"]
    assert told["ours"]["synchronize"] == 3 * ["[b'data of 0', b'data of 1', b'data of 2']"]
    assert "Error" in told["ours"]["somebody is missing"] and "Error" in told["ours"]["barrier alone"]


# ---- Shared memory ----

class Sharers:
    """A job of two workers, each of which shares a tensor with its child by a file that a torch_shm_manager looks after."""

    def __init__(self, job, directory, *words):
        self.job, self._directory, self._names = job, directory, []
        directory.mkdir()
        self.node = job.muster("--nproc-per-node", 2, WORKERS / "memory.py", job.directory, *words,
                               environment={"TMPDIR": str(directory)})

    def until_shared(self):
        for rank in range(2):
            path = self.job.directory / f"held.{rank}"
            until(lambda path=path: path.exists() or self.node.ended(), RUN_LIMIT, "shared memory")
            assert path.exists(), self.node.err
            self._names += json.loads(path.read_text())
        assert len(self._names) == len(self.managers()) == len(self._sockets()) == 2
        assert self.files() == self._names

    def managers(self):
        found = []
        for pid in self.job.left():
            with contextlib.suppress(OSError):
                if pathlib.Path(f"/proc/{pid}/comm").read_text() == "torch_shm_manag\n":
                    found.append(pid)
        return found

    def files(self):
        return [name for name in self._names if os.path.exists(f"/dev/shm/{name}")]

    def _sockets(self):
        return list(self._directory.glob("torch-shm-dir-*"))

    def gone(self):
        """Processes, files and sockets, each of them."""
        left = [self.job.left(), self.files(), self._sockets()]
        assert left == [[], [], []], f"{left}; it said:\n{self.node.err}"

    def clean(self):
        for name in self.files():
            os.unlink(f"/dev/shm/{name}")


@pytest.fixture
def sharers(jobs):
    """sharers(NEW, "name") is such a job, in a directory with a name so short that a socket's fits in."""
    made = []
    with tempfile.TemporaryDirectory(prefix="muster-", dir="/tmp") as directory:
        def make(which, name, *words):
            one = Sharers(jobs(which, f"-{name}"), pathlib.Path(directory) / f"{which}-{name}", *words)
            made.append(one)
            one.until_shared()
            return one
        yield make
        for one in made:
            one.job.end()
            one.clean()


def ends_by_itself(job, node):
    for rank in range(2):
        (job.directory / f"go.{rank}").write_text("end")
    node.good()


def one_fails(job, node):
    (job.directory / "go.1").write_text("fail")
    assert node.end() == 1


def is_stopped(_, node):
    node.signal(signal.SIGTERM)
    assert node.end() == 1


def is_stopped_twice(_, node):
    """SIGQUIT kills the workers, which had 30 s after the first signal; their managers have their time."""
    node.signal(signal.SIGINT)
    until(lambda: "death signal" in node.err or node.ended(), what="the first signal's effect")
    node.signal(signal.SIGQUIT)
    assert node.end(25) == 1


def agent_is_killed(_, node):
    os.kill(node.agent(), signal.SIGKILL)
    assert node.end() == -signal.SIGKILL


ENDS = {ends_by_itself: [], one_fails: [], is_stopped: [], is_stopped_twice: ["ignore"], agent_is_killed: ["ignore"]}


@pytest.mark.parametrize("which", ("1.13.1", WHICH))
@all_at_once("end", tuple(ENDS))
def test_nothing_of_shared_tensors_is_left(sharers, which, end):
    """Whatever ends the workers, their torch_shm_managers clean up after them and are gone."""
    one = sharers(which, end.__name__, *ENDS[end])
    end(one.job, one.node)
    one.gone()


@side_by_side
def test_managers_of_shared_tensors_that_a_second_signal_kills_are_named(sharers, which):
    """It comes when all workers are dead, and what it kills cannot clean up."""
    one = sharers(which, "named")
    managers = one.managers()
    for pid in managers:
        os.kill(pid, signal.SIGSTOP)  # else they could be done before it comes
    one.node.signal(signal.SIGINT)
    until(lambda: len(one.job.left()) <= 4, RUN_LIMIT, "the end of workers and their children")
    one.node.signal(signal.SIGINT)
    assert one.node.end() == 1
    assert not one.job.left()
    said = re.search("killing what the workers left behind: .*", one.node.err)
    assert said and all(f"{pid} (torch_shm_manag, " in said[0] for pid in managers), one.node.err

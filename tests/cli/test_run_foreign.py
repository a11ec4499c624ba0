"""A stranger writes to the keys of the rendezvous: the job goes on, in every part of its life."""

import base64
import pickle
import re

import pytest

from ports import free_port
from run_scene import OTHER_LAYOUT
from serving import run, until

pytestmark = pytest.mark.usefixtures("document")

DOCUMENT = "torch.rendezvous.job"
COUNTERS = ["muster.job/bell", "muster.job/turn", "muster.job/turns_done"]
NO_DOCUMENTS = {
    "text": b"garbage",
    "empty": b"",
    "not a document": base64.b64encode(pickle.dumps({"round": 7, "participants": {}})),
    "huge": b"x" * (1 << 20),
    "cut off": base64.b64encode(b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x10_RendezvousState"),
}
NO_COUNTERS = [b"", b"hello", b"-7", b"9223372036854775807", b"99999999999999999999", b"x" * (1 << 20)]


class Store:
    """Where the nodes meet, as a stranger sees it."""

    def __init__(self, endpoint):
        self.endpoint = endpoint

    def call(self, command, *words, **how):
        ended = run("store", command, "--endpoint", self.endpoint, *words, **how)
        assert ended.code == 0, ended
        return ended

    def put(self, key, value):
        self.call("set", key, "-", stdin=value)

    def is_well(self):
        """Whether there is a document."""
        text = run("store", "get", "--endpoint", self.endpoint, DOCUMENT).out  # nothing, while there is none
        try:
            return b"_RendezvousState" in base64.b64decode(text, validate=True) and text not in NO_DOCUMENTS.values()
        except ValueError:
            return False

    def wait_until_well(self):
        until(self.is_well, what="a document, again")


@pytest.fixture(params=["a store alone", "a node that hosts it"])
def nodes(request, scene, serve):
    """Starts nodes, one by one; with what a stranger sees of their store."""
    if request.param == "a store alone":
        store, hosts = Store(serve().endpoint), ""
    else:
        store, hosts = Store(f"127.0.0.1:{free_port()}"), ",is_host=true"
    started = []

    def start(*options, conf="last_call_timeout=1"):
        how = (hosts if not started else ",is_host=false") if hosts else ""
        agent = scene.node(store.endpoint, "--nnodes=2", "-v", *options, conf=conf + how)
        if hosts and not started:
            agent.said("hosting its store")
        started.append(agent)
        return agent

    start.store, start.hosts = store, bool(hosts)
    return start


def succeed(workers, agents):
    for worker in workers:
        worker.succeed()
    codes = [agent.end() for agent in agents]
    assert codes == [0, 0], "\n---\n".join(agent.err for agent in agents)


def test_a_document_that_is_overwritten_is_put_back_and_workers_run_on(nodes, scene):
    agents = [nodes(), nodes()]
    workers = scene.world(2)
    for what, value in NO_DOCUMENTS.items():
        nodes.store.put(DOCUMENT, value)
        nodes.store.wait_until_well()
        assert all(worker.alive for worker in workers), what
    succeed(workers, agents)
    told = "".join(agent.err for agent in agents)
    assert "somebody has overwritten the document: what is stored under 'torch.rendezvous.job' is not base64 (7 bytes)" \
        "; putting it back" in told, told
    assert "restarting the group" not in told
    wrote = re.findall(r"'job': 127\.0\.0\.1:\d+ has overwritten the document with something else \((\d+) bytes\)", told)
    assert not nodes.hosts or {"7", "0", str(1 << 20)} <= set(wrote), told  # only the host knows from where it came


def test_counters_that_are_overwritten_change_nothing(nodes, scene):
    agents = [nodes("--max-restarts=1"), nodes("--max-restarts=1")]
    first = scene.world(2)
    for value in NO_COUNTERS:
        for key in COUNTERS:
            nodes.store.put(key, value)
    for key in COUNTERS:
        nodes.store.put(key, b"hello")
    assert all(worker.alive for worker in first)
    first[0].fail()  # the round ends, which has to be rung; all leave and join again, each in its turn
    succeed(scene.world(2, without=first), agents)


@pytest.mark.parametrize("what", NO_DOCUMENTS)
def test_a_job_begins_where_something_else_was(scene, serve, what):
    store = Store(serve().endpoint)
    store.put(DOCUMENT, NO_DOCUMENTS[what])
    for key in COUNTERS:
        store.put(key, b"hello")
    agents = [scene.node(store.endpoint, "--nnodes=2") for _ in range(2)]
    succeed(scene.world(2), agents)


def test_a_document_that_is_overwritten_while_nodes_join_is_begun_anew(nodes, scene):
    first = nodes()
    until(nodes.store.is_well, what="the first node in the document")
    nodes.store.put(DOCUMENT, b"garbage")
    for key in COUNTERS:
        nodes.store.put(key, b"hello")
    second = nodes()
    succeed(scene.world(2), [first, second])
    assert "somebody has overwritten the document" in first.err, first.err


def test_a_document_that_is_overwritten_while_nodes_regroup_does_not_end_the_job(nodes, scene):
    agents = [nodes("--max-restarts=3"), nodes("--max-restarts=3")]
    workers = scene.world(2)
    for value in (b"garbage", b"", b"more garbage"):
        workers[0].fail()
        nodes.store.put(DOCUMENT, value)
        for key in COUNTERS:
            nodes.store.put(key, b"hello")
        workers = scene.world(2, without=workers)
    succeed(workers, agents)


def test_a_document_of_another_layout_is_left_alone(scene, serve):
    store = Store(serve().endpoint)
    store.put(DOCUMENT, OTHER_LAYOUT)
    agent = scene.node(store.endpoint, "--nnodes=2")
    assert agent.end() == 1
    assert "'job'" in agent.err.splitlines()[-1]
    assert store.call("get", DOCUMENT).out == OTHER_LAYOUT


# ---- Values of the right form that nobody of the job has written ----

VERDICT = b'{"verdict": "failed", "round": 999999, "tag": "0000000000000000", "node": "n7", "rank": 0, "cause": "made up"}'
BUDGET = b"0 999999.0000000000000000"


@pytest.fixture
def store(serve):
    return Store(serve().endpoint)


def test_a_made_up_verdict_is_not_printed_as_fact(scene, store):
    agents = [scene.node(store.endpoint, "--nnodes=2") for _ in range(2)]
    workers = scene.world(2)
    store.put("muster.job/verdict", VERDICT)
    succeed(workers, agents)
    told = "".join(agent.err for agent in agents)
    assert "the job has failed" not in told, told
    assert "somebody has overwritten the verdict in 'muster.job/verdict'" in told, told


def test_a_newcomer_tells_a_verdict_as_what_is_known_of_it(scene, store):
    agents = [scene.node(store.endpoint, "--nnodes=2") for _ in range(2)]
    succeed(scene.world(2), agents)

    def newcomer(verdict=None):
        if verdict is not None:
            store.put("muster.job/verdict", verdict)
        agent = scene.node(store.endpoint, "--nnodes=2")
        assert agent.end() == 1, agent.err
        return agent.err

    assert newcomer().endswith(" is closed: the job has succeeded\n")
    assert newcomer(VERDICT).endswith(" is closed: 'muster.job/verdict' says: the job has failed: made up\n")
    told = newcomer(VERDICT.replace(b"999999", b"0"))  # a round that was there, of other members
    assert "somebody has overwritten the verdict in 'muster.job/verdict'" in told, told
    assert told.endswith(" is closed\n"), told


def test_a_made_up_budget_does_not_stop_a_restart(scene, store):
    agents = [scene.node(store.endpoint, "--nnodes=2", "--max-restarts=2") for _ in range(2)]
    first = scene.world(2)
    store.put("muster.job/budget", BUDGET)
    first[0].fail()
    succeed(scene.world(2, without=first), agents)
    assert "somebody has overwritten the restart budget" in "".join(agent.err for agent in agents)


def test_a_made_up_budget_takes_no_grace_from_the_workers(scene, store):
    agents = [scene.node(store.endpoint, "--nnodes=2", "--nproc-per-node=2", "--max-restarts=2", "--shutdown-timeout=2",
                         act=["ignore"]) for _ in range(2)]
    first = scene.world(4)
    store.put("muster.job/budget", BUDGET)
    first[0].fail()
    until(lambda: any("the restart budget names round 999999" in agent.err for agent in agents), what="a doubt")
    assert first[1].alive, "killed at once"
    succeed(scene.world(4, without=first), agents)


def test_a_made_up_budget_does_not_hide_the_end(scene, store):
    agents = [scene.node(store.endpoint, "--nnodes=2") for _ in range(2)]
    first = scene.world(2)
    store.put("muster.job/budget", BUDGET)
    succeed(first, agents)
    told = "".join(agent.err for agent in agents)
    assert "the other nodes go on without it" not in told, told
    assert b"succeeded" in store.call("get", "muster.job/verdict").out


@pytest.mark.parametrize("text", [b"garbage", b"-"])
def test_garbage_in_the_key_of_failures_does_not_make_the_end_late(scene, store, text):
    """No loss is noticed for an hour: only an answer of every node ends the job sooner."""
    conf = "keep_alive_interval=1800,last_call_timeout=1"
    agents = [scene.node(store.endpoint, "--nnodes=3", "--max-restarts=0", conf=conf) for _ in range(3)]
    workers = scene.world(3)
    keys = store.call("list").out.decode().split()
    [own] = [key for key in keys if key.startswith("muster.job/") and key.endswith("/MASTER_ADDR")]
    store.put(own.replace("MASTER_ADDR", "failed"), text)
    for agent in agents:
        agent.said("somebody has overwritten the failure of a worker")
    workers[1].fail()
    assert [agent.end() for agent in agents] == [1, 1, 1]


def test_a_made_up_claim_does_not_end_a_job_that_a_node_joins(scene, store):
    """Nothing fails; a node joins. A stranger has put a claim there."""
    agents = [scene.node(store.endpoint, "--nnodes=2:3", "--max-restarts=3") for _ in range(2)]
    first = scene.world(2)
    store.put("muster.job/budget", b"99 0.0000000000000000 x")
    agents.append(scene.node(store.endpoint, "--nnodes=2:3", "--max-restarts=3"))
    second = scene.world(3, without=first)
    for worker in second:
        worker.succeed()
    assert [agent.end() for agent in agents] == [0, 0, 0]


def test_a_deleted_budget_changes_nothing(scene, store):
    agents = [scene.node(store.endpoint, "--nnodes=2", "--max-restarts=2") for _ in range(2)]
    first = scene.world(2)
    store.call("delete", "muster.job/budget")
    first[0].fail()
    second = scene.world(2, without=first)
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in second} == {"1"}
    store.call("delete", "muster.job/budget")
    succeed(second, agents)

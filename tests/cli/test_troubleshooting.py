"""docs/TROUBLESHOOTING.md shows the exact lines one sees: each of its sections is played here, and its lines must come."""

import os
import re
import signal
import socket

import pytest

from ports import free_port
from serving import ROOT, run, until

PAGE = (ROOT / "docs" / "TROUBLESHOOTING.md").read_text()
SECTIONS = {title: [line.strip() for line in text.splitlines() if line.startswith("    ")]
            for title, text in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)}


def pattern(line):
    """The line of the page, for any host, process, port and time."""
    text = re.escape(line)
    text = re.sub(r"'/home/me'", "'[^']*'", text)
    text = re.sub(r"node1\\ muster\\\[4711\\\]", lambda _: r"\S+ muster\[\d+\]", text)
    text = re.sub(r"node\d(?:\\ \\\(pid\\ \d+\\\))?", lambda _: r"\S+?(?: \(pid \d+\))?", text)
    text = re.sub(r"tr(?:y|ies)\b", lambda _: "tr(?:y|ies)", text)
    return re.sub(r"(?<![\w\\])\d+(?:\\\.\d+)*", lambda _: r"\d+(?:\.\d+)*", text)


def c10d(port, conf="", nodes="2", job="job7"):
    return ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id={job}", f"--nnodes={nodes}",
            *([f"--rdzv-conf={conf}"] if conf else [])]


def too_few(scene):
    agent = scene.shell("true", *c10d(free_port(), "join_timeout=8"))
    assert agent.end(60) == 1
    return agent.err


def another_id(scene):
    port = free_port()
    other = scene.shell("true", *c10d(port, "join_timeout=60", job="job8"))
    agent = scene.shell("true", *c10d(port, "join_timeout=60"))
    agent.said("waits at the same endpoint", 50)
    for one in (agent, other):
        one.signal(signal.SIGTERM)
        one.end()
    return agent.err


def no_such_host(scene):
    agent = scene.shell("true", "--rdzv-backend=c10d", "--rdzv-endpoint=no-such-host.invalid:29400", "--rdzv-id=job7",
                        "--nnodes=2", "--rdzv-conf=join_timeout=1,read_timeout=1")
    assert agent.end() == 1
    return agent.err


def nobody_listens(scene):
    agent = scene.shell("true", *c10d(free_port(), "is_host=false,join_timeout=2,read_timeout=2"))
    assert agent.end() == 1
    return agent.err


def port_taken(scene):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        agent = scene.shell("true", *c10d(taken.getsockname()[1], "join_timeout=3", nodes="1"))
        assert agent.end() == 1
        return agent.err


def loopback(scene):
    agent = scene.shell("true", *c10d(free_port(), "join_timeout=60"))
    agent.said("loopback")
    agent.signal(signal.SIGTERM)
    agent.end()
    return agent.err


def ended_before(scene, serve):
    server = serve()
    words = c10d(server.port, "is_host=false", nodes="1")
    assert scene.shell("true", *words).end() == 0
    agent = scene.shell("true", *words)
    assert agent.end() == 1
    return agent.err


def fails(scene):
    agent = scene.shell("echo 'ValueError: loss is NaN' >&2; exit 1", "--tee=2")
    assert agent.end() == 1
    return agent.err


def killed(scene):
    agent = scene.shell("kill -9 $BASHPID")
    assert agent.end() == 1
    return agent.err


def two_nodes(scene):
    """The host of the store, the other one, and their workers."""
    endpoint = f"127.0.0.1:{free_port()}"
    host = scene.node(endpoint, "--nnodes=1:2", conf="last_call_timeout=10")
    host.said("loopback")  # it is about to serve the store
    until(lambda: listens(endpoint), what="the store")
    other = scene.node(endpoint, "--nnodes=1:2", conf="last_call_timeout=10")
    return host, other, scene.world(2)


def lost(scene):
    host, other, workers = two_nodes(scene)
    agent = other.agent
    os.kill(agent, signal.SIGSTOP)
    host.said("lost ", 40)
    os.kill(agent, signal.SIGKILL)
    other.end()
    scene.world(1, without=workers)[0].succeed()
    assert host.end() == 0
    return host.err


def agent_killed(scene):
    host, other, workers = two_nodes(scene)
    os.kill(other.agent, signal.SIGKILL)
    scene.world(1, without=workers, limit=40)[0].succeed()
    assert host.end() == 0
    return host.err


class Stranger:
    """Writes to the keys of a job of two nodes, one of which hosts the store."""

    def __init__(self, scene):
        self.endpoint = f"127.0.0.1:{free_port()}"
        scene.engine = "off"
        words = [self.endpoint, "--nnodes=2", "--max-restarts=1", "-v"]
        host = scene.node(*words, id="job7", conf="last_call_timeout=1,is_host=true")
        host.said("hosting its store")
        self.agents = [host, scene.node(*words, id="job7")]
        self.workers = scene.world(2)

    @property
    def said(self):
        return "".join(agent.err for agent in self.agents)

    def put(self, *keys):
        for key in keys:
            assert run("store", "set", "--endpoint", self.endpoint, key, "garbage").code == 0

    def succeed(self, workers):
        for worker in workers:
            worker.succeed()
        assert [agent.end() for agent in self.agents] == [0, 0], self.said
        return self.said


def foreign_document(scene):
    stranger = Stranger(scene)
    stranger.put("torch.rendezvous.job7")
    until(lambda: "putting it back" in stranger.said, what="the document, again")
    return stranger.succeed(stranger.workers)


def foreign_keys(scene):
    stranger = Stranger(scene)
    stranger.put("muster.job7/bell", "muster.job7/turn", "muster.job7/budget")
    stranger.workers[0].fail()
    workers = scene.world(2, without=stranger.workers)
    stranger.put("muster.job7/verdict")
    return stranger.succeed(workers)


def listens(endpoint):
    host, _, port = endpoint.partition(":")
    try:
        socket.create_connection((host, int(port))).close()
    except OSError:
        return False
    return True


def same_rank(scene):
    port = free_port()
    words = ["--nnodes=2", f"--master-port={port}"]
    agents = [scene.actors(*words, f"--node-rank={rank}") for rank in (0, 1)]
    workers = scene.world(2)
    second = scene.actors(*words, "--node-rank=1")
    assert second.end() == 1
    for worker in workers:
        worker.succeed()
    assert [agent.end() for agent in agents] == [0, 0]
    return second.err


def misspelt(scene):
    agent = scene.shell("true", *c10d(free_port(), "joint_timeout=3"))
    assert agent.end() == 1
    return agent.err


def no_script(scene):
    agent = scene.start("train.py", cwd=scene.path)
    assert agent.end() == 1
    return agent.err


SCENES = {
    "Nodes do not come together": too_few,
    "Nodes wait for different jobs": another_id,
    "The store's host name is unknown": no_such_host,
    "No store at the endpoint": nobody_listens,
    "The endpoint's port is taken": port_taken,
    "Only nodes of one host can join": loopback,
    "The job has already ended": ended_before,
    "A worker fails": fails,
    "A worker is killed": killed,
    "A node is lost": lost,
    "A node's launcher is killed": agent_killed,
    "Another program overwrites the job's document": foreign_document,
    "Another program overwrites other keys of the job": foreign_keys,
    "Two nodes have the same rank": same_rank,
    "An option is misspelt": misspelt,
    "The script is not there": no_script,
}


def test_every_section_is_played():
    assert list(SCENES) == list(SECTIONS)


@pytest.mark.parametrize("title", SCENES)
def test_the_lines_of_the_page_are_those_one_sees(title, scene, request):
    play = SCENES[title]
    said = play(scene, request.getfixturevalue("serve")) if play is ended_before else play(scene)
    assert SECTIONS[title]
    for line in SECTIONS[title]:
        assert re.search(pattern(line) + "$", said, re.MULTILINE), f"{line}\nnot in\n{said}"

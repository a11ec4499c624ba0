"""How many connections the nodes of a job have to its store, and what becomes of requests on them."""

import os
import pathlib
import re
import signal

import pytest

from serving import until

PER_NODE = 3  # requests, the bell, and keys that are waited for; rendezvous and agent share them


def connections(port, pid):
    """Established connections of a process to a port of this machine."""
    inodes = set()
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(link)))
        except OSError:
            pass  # closed meanwhile
    rows = [line.split() for name in ("tcp", "tcp6")
            for line in pathlib.Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return sum(row[2].endswith(f":{port:04X}") and row[3] == "01" and row[9] in inodes for row in rows)


def settle(server, agents):
    """Waits until each node has what it keeps. It may have more for a moment: a round has just begun."""
    until(lambda: [connections(server.port, agent.agent) for agent in agents] == [PER_NODE] * len(agents),
          what=f"{PER_NODE} connections each")


@pytest.mark.usefixtures("document")
def test_a_node_has_three_connections_to_its_store(scene, serve):
    server = serve()
    agents = [scene.node(server.endpoint, "--nnodes=2", "--max-restarts=2") for _ in range(2)]
    workers = scene.world(2)
    settle(server, agents)
    for _ in range(2):  # what waited in earlier rounds holds nothing up, and takes no connections
        workers[1].fail()
        workers = scene.world(2, without=workers)
        settle(server, agents)
    for worker in workers:
        worker.succeed()
    assert [agent.end() for agent in agents] == [0, 0]


@pytest.mark.usefixtures("document")
def test_what_waited_in_a_store_that_was_away_waits_again(scene, serve):
    server = serve()
    agents = [scene.node(server.endpoint, "--nnodes=2", "--max-restarts=1") for _ in range(2)]
    workers = scene.world(2)
    settle(server, agents)
    server.stop()
    for agent in agents:
        agent.said("the workers run on; trying again\n")
    server = serve("--port", str(server.port))
    for agent in agents:
        agent.said("the store is back after")
    settle(server, agents)
    workers[0].fail()
    for worker in scene.world(2, without=workers):
        worker.succeed()
    assert [agent.end() for agent in agents] == [0, 0]


def test_an_agent_that_ends_while_its_requests_are_under_way_ends_at_once(scene, serve):
    server = serve()
    agents = [scene.node(server.endpoint, "--nnodes=2") for _ in range(2)]
    scene.world(2)
    os.kill(server.pid, signal.SIGSTOP)  # nothing is answered from now on
    try:
        agents[1].signal(signal.SIGTERM)
        assert agents[1].end() == 1
    finally:
        os.kill(server.pid, signal.SIGCONT)

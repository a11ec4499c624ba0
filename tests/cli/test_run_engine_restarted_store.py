"""The host of a job's store is killed, and started again, empty, at the same endpoint: `muster store`, or a member."""

import os
import signal
import time

import pytest

from ports import free_port
from run_scene import DEATH_AGE
from serving import until
from test_run import agent_of, end_all, kill_agent, local, one
from test_run_engine import ENGINE, HOST, failure, why

OPTIONS = ("--nnodes=2", "--max-restarts=2")


@pytest.fixture(params=["a store of its own", "a member"])
def home(request, scene, serve):
    return (Store if request.param == "a store of its own" else Member)(scene, serve)


class Store:
    """`muster store`"""

    is_member, host = False, None

    def __init__(self, scene, serve):
        self.scene, self._serve = scene, serve
        self._server = serve()
        self.endpoint = self._server.endpoint
        self.agents = []

    def nodes(self, count, *options):
        started = [self.scene.node(self.endpoint, "-v", *options, conf=ENGINE) for _ in range(count)]
        for node in started:
            node.said("using muster's engine at")
        self.agents += started
        return started

    def pause(self):
        os.kill(self._server.pid, signal.SIGSTOP)

    def kill(self):
        self._server.stop(signal.SIGKILL, expect=-signal.SIGKILL)

    def start_again(self, *_):
        self._server = self._serve("--port", str(self._server.port))


class Member(Store):
    """The first node. The one that is started in its place is a member, too."""

    is_member, gone = True, None

    def __init__(self, scene, _):
        self.scene, self.endpoint, self.agents = scene, local(free_port()), []

    def nodes(self, count, *options):
        if self.host is not None:
            return super().nodes(count, *options)
        self.start_again(*options)
        return [self.host, *super().nodes(count - 1, *options)]

    def pause(self):
        os.kill(self.host.agent, signal.SIGSTOP)

    def kill(self):
        self.gone = self.host.agent
        kill_agent(self.host)
        self.agents.remove(self.host)
        self.host.end()

    def start_again(self, *options):
        self.host = self.scene.node(self.endpoint, "-v", *options, conf=ENGINE)
        self.agents.append(self.host)
        self.host.said("hosting its store")


def spare_of(home, *options):
    """One more node than there is room for, once it waits."""
    spare, = home.nodes(1, *options)
    spare.said("waiting for a place in rendezvous 'job': round 0 is full")
    return spare


def away(pid):
    """How the loss of a host begins: it may have been away for a moment, or for more than a second."""
    return f"lost {HOST} (pid {pid}): the store that it host"


def end_well(home, workers):
    """Nodes that the test has not killed."""
    end_all(workers)
    assert [agent.end() for agent in home.agents] == [0] * len(home.agents), "\n---\n".join(agent.err for agent in home.agents)


def members(scene, workers):
    return [agent_of(scene, worker) for worker in workers]


def until_known_to_spares(home, scene, workers, number):
    """The round, which spares learn of when they have reached the new store. It ends with a job that one of the nodes hosts."""
    for agent in home.agents:
        if agent.process.poll() is None and agent not in members(scene, workers):
            agent.said(f"waiting for a place in rendezvous 'job': round {number} is full")


def test_nodes_that_are_joining_go_on_with_it(home, scene):
    options = ("--nnodes=3", "--max-restarts=2")
    for node in home.nodes(2, *options):
        node.said("2 of 3 nodes joined")
    home.kill()
    home.start_again(*options)
    home.nodes(4 - len(home.agents), *options)
    workers = scene.world(3)
    assert one(workers, "TORCHELASTIC_RESTART_COUNT") == "0"
    until_known_to_spares(home, scene, workers, 0)
    end_well(home, workers)
    assert not any(why(agent) for agent in home.agents)


def test_a_job_that_is_running_goes_on_with_it(home, scene):
    """Workers run on if no rank is gone. What was counted counts on, and a spare is still one."""
    home.nodes(2, *OPTIONS)
    first = scene.world(2)
    spare_of(home, *OPTIONS)
    home.kill()
    home.start_again(*OPTIONS)
    if home.is_member:
        running = scene.world(2, without=first)
        until_known_to_spares(home, scene, running, 1)
    else:
        running = first
        time.sleep(2 * DEATH_AGE)
        assert all(worker.alive for worker in first)
    agents, cause = members(scene, running), failure(running[1])
    running[1].fail()
    last = scene.world(2, without=[*first, *running])
    assert one(last, "TORCHELASTIC_RESTART_COUNT") == "1"
    end_well(home, last)
    for agent in agents:
        *before, charged = why(agent)
        assert charged == f"{cause}; restarting with 2 nodes, restart 1 of 2"
        if home.is_member:
            lost, = before
            assert lost.startswith(away(home.gone)) and lost.endswith("; restarting with 2 nodes, no restart charged")
        else:
            assert not before


def test_a_job_that_restarts_after_a_failure_goes_on_with_it(home, scene):
    """Nobody has heard of the failure when the store goes. The loss of a member is the cause of it, and so it is free."""
    home.nodes(2, *OPTIONS)
    first = scene.world(2)
    spare_of(home, *OPTIONS)
    failing = first[1] if home.host is not agent_of(scene, first[1]) else first[0]
    agent, cause = agent_of(scene, failing), failure(failing)
    home.pause()
    failing.fail()
    agent.said("failed: exit code 3")
    home.kill()
    home.start_again(*OPTIONS)
    last = scene.world(2, without=first)
    assert one(last, "TORCHELASTIC_RESTART_COUNT") == ("0" if home.is_member else "1")
    until_known_to_spares(home, scene, last, 1)
    end_well(home, last)
    because, = why(agent)
    if home.is_member:
        assert because.startswith(away(home.gone))
        assert because.endswith(f"; rank {failing.rank}'s failure on {HOST} is a consequence; "
                                "restarting with 2 nodes, no restart charged")
    else:
        assert because == f"{cause}; restarting with 2 nodes, restart 1 of 2"


@pytest.mark.parametrize("done", ["the host, or the one who leads", "the other"])
def test_a_job_that_is_ending_ends_well_with_it(home, scene, done):
    """One of two nodes is done."""
    home.nodes(2, *OPTIONS)
    first = scene.world(2)
    spare_of(home, *OPTIONS)
    if home.is_member:
        first.sort(key=lambda worker: agent_of(scene, worker) is not home.host)
    ends, runs = first if done != "the other" else reversed(first)
    ends.succeed()
    until(lambda: not ends.alive)
    home.kill()
    home.start_again(*OPTIONS)
    if home.is_member:
        last = scene.world(2, without=first)
        assert one(last, "TORCHELASTIC_RESTART_COUNT") == "0"
        until_known_to_spares(home, scene, last, 1)
    else:
        last = [runs]
        time.sleep(2 * DEATH_AGE)
        assert [worker.pid for worker in scene.alive()] == [runs.pid]
    end_well(home, last)
    if not home.is_member:
        assert not any(why(agent) for agent in home.agents)

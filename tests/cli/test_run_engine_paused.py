"""Jobs in the engine while a process stands still for longer than a lease: the store, the member that hosts it, or an agent."""

import contextlib
import os
import re
import signal
import time

import pytest

from run_scene import DEATH_AGE
from serving import until
from test_run import agent_of, end_all, one
from test_run_engine import ENGINE, HOST, failure, host_and_guests, why

ALL = ("--nnodes=3", "--max-restarts=1")


@contextlib.contextmanager
def paused(pid):
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def job(scene, serve):
    """Three nodes at a store that none of them hosts: the store, the nodes, and their workers by rank."""
    server = serve()
    agents = [scene.node(server.endpoint, "-v", *ALL, conf=ENGINE) for _ in range(3)]
    return server, agents, scene.world(3)


def restart(scene, workers, agents):
    """One of them fails, and that is the first that happens to these nodes."""
    cause = failure(workers[1])
    workers[1].fail()
    last = scene.world(3, without=workers)
    assert one(last, "TORCHELASTIC_RESTART_COUNT") == "1"
    end_all(last)
    assert [agent.end() for agent in agents] == [0] * 3
    for agent in agents:
        assert why(agent) == [f"{cause}; restarting with 3 nodes, restart 1 of 1"]


@pytest.mark.parametrize("seconds", [3, 10])
def test_a_store_that_was_paused_has_lost_nobody(scene, job, seconds):
    server, agents, workers = job
    with paused(server.pid):
        time.sleep(seconds)
    time.sleep(2 * DEATH_AGE)
    assert all(worker.alive for worker in workers), [agent.err for agent in agents]
    restart(scene, workers, agents)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_worker_that_fails_while_the_store_is_paused_is_one_restart(scene, job, rank):
    server, agents, workers = job
    failing, cause = agent_of(scene, workers[rank]), failure(workers[rank])
    with paused(server.pid):
        workers[rank].fail()
        failing.said("failed: exit code 3")
        time.sleep(3)
    began = time.monotonic()
    last = scene.world(3, without=workers)
    assert time.monotonic() - began < DEATH_AGE  # no lease has to end before
    assert one(last, "TORCHELASTIC_RESTART_COUNT") == "1"
    end_all(last)
    assert [agent.end() for agent in agents] == [0] * 3
    for agent in agents:
        assert why(agent) == [f"{cause}; restarting with 3 nodes, restart 1 of 1"]


def test_a_host_that_was_paused_for_little_more_than_a_lease_has_lost_nobody(scene):
    host, guests, _ = host_and_guests(scene, 2, *ALL)
    workers = scene.world(3)
    with paused(host.agent):
        time.sleep(1.25 * DEATH_AGE)
    time.sleep(2 * DEATH_AGE)
    assert all(worker.alive for worker in workers), [agent.err for agent in scene.agents]
    restart(scene, workers, [host, *guests])


def test_a_host_that_was_paused_for_long_is_in_the_next_world(scene):
    """Its peers stop their workers, and wait for it."""
    host, guests, _ = host_and_guests(scene, 2, *ALL)
    first = scene.world(3)
    of_host, = [worker for worker in first if agent_of(scene, worker) is host]
    with paused(host.agent):
        for guest in guests:
            guest.said(f"lost {HOST} (pid {host.agent}): the store that it hosts does not answer; restarting the group")
        until(lambda: [worker.pid for worker in scene.alive()] == [of_host.pid])
        time.sleep(3 * DEATH_AGE)
    second = scene.world(3, without=first)
    assert one(second, "TORCHELASTIC_RESTART_COUNT") == "0"
    end_all(second)
    assert [agent.end() for agent in (host, *guests)] == [0] * 3
    for agent in (host, *guests):
        assert all(line.endswith("; restarting with 3 nodes, no restart charged") for line in why(agent)), why(agent)


@pytest.mark.parametrize("rank, seconds", [(0, 3), (2, 3), (0, 10)])
def test_an_agent_that_was_paused_is_lost_and_comes_back(scene, serve, rank, seconds):
    endpoint = serve().endpoint
    agents = [scene.node(endpoint, "-v", "--nnodes=2:3", "--max-restarts=1", conf=ENGINE) for _ in range(3)]
    first = scene.world(3)
    still = agent_of(scene, first[rank])
    name = f"{HOST} (pid {still.agent})"
    left = [agent for agent in agents if agent is not still]
    with paused(still.agent):
        began = time.monotonic()
        for agent in left:
            until(lambda agent=agent: any(line.startswith(f"lost {name}") for line in why(agent)), what=agent.err)
        until(lambda: sum(worker.env["WORLD_SIZE"] == "2" for worker in scene.alive()) == 2)
        assert first[rank].alive  # who stands still stops nothing
        time.sleep(max(0, began + seconds - time.monotonic()))
    last = scene.world(3, without=first)
    assert one(last, "TORCHELASTIC_RESTART_COUNT") == "0"
    end_all(last)
    assert [agent.end() for agent in agents] == [0] * 3
    assert "the others had gone on without this node; restarting the group" in still.err
    for agent in left:
        *_, lost, joins = why(agent)
        assert re.fullmatch(rf"lost {re.escape(name)}(: no keep-alive for {DEATH_AGE} s)?; "
                            "restarting with 2 nodes, no restart charged", lost)
        assert joins == f"{name} joins; restarting with 3 nodes, no restart charged"

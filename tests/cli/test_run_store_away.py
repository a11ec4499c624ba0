"""`muster run` when the store is away: who goes on, who ends, and what is said meanwhile."""

import contextlib
import os
import re
import signal
import socket
import time

import pytest

from ports import free_port
from run_scene import stat
from serving import until


def local(port):
    return f"127.0.0.1:{port}"


def agent_of(scene, worker):
    parent = int(stat(worker.pid)[1])
    return next(agent for agent in scene.agents if agent.agent == parent)


def marks(server):
    """Of nodes that are done, in a job with a document."""
    return [key for key in server.call("list", "--prefix", "muster.job").out.decode().split() if "/done/" in key]


@contextlib.contextmanager
def paused(pid):
    """It holds its connections, and answers nothing."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def host_and_guest(scene, *options, conf=""):
    """Two nodes with one worker each; the first hosts the store."""
    endpoint = local(free_port())
    host = scene.node(endpoint, *options, "-v", conf=f"last_call_timeout=1,is_host=true{conf}")
    host.said("hosting its store")
    return host, scene.node(endpoint, *options, conf=f"last_call_timeout=1,is_host=false{conf}"), endpoint


def test_the_job_ends_when_the_host_of_its_store_stays_away(scene, engine):
    host, guest, endpoint = host_and_guest(scene, "--nnodes=2", conf=",store_lost_timeout=2")
    scene.world(2)
    host_pid = host.agent
    host.signal(signal.SIGKILL)
    assert guest.end() == 1
    last = guest.err.splitlines()[-1]
    assert re.search(rf"the store at {endpoint} is lost: its host .* \(pid {host_pid}\) has refused connections for \d+ s", last)
    assert "--rdzv-backend etcd-v3" in last


def test_a_host_that_is_killed_is_told_in_one_line(scene, engine):
    host, guest, _ = host_and_guest(scene, "--nnodes=2", conf=",store_lost_timeout=2")
    scene.world(2)
    pid = host.agent
    os.kill(pid, signal.SIGKILL)
    assert guest.end() == 1
    lines = [line.split(" warning: ")[1] for line in guest.err.splitlines() if " warning: " in line]
    about = [line for line in lines if "store" in line or "refused" in line]
    assert re.fullmatch(rf"lost .* \(pid {pid}\): the store that it hosts refuses connections; restarting the group", about[0])
    assert "the workers run on" not in guest.err, guest.err
    assert all(line.startswith("the store has been away for ") for line in about[1:]), about


def test_the_job_ends_when_the_host_of_its_store_stays_silent(scene, engine):
    host, guest, endpoint = host_and_guest(scene, "--nnodes=2", conf=",store_lost_timeout=2,heartbeat_timeout=1")
    scene.world(2)
    with paused(host.agent):
        assert guest.end(limit=90) == 1
    assert re.search(rf"lost .* \(pid {host.agent}\): the store that it hosts does not answer", guest.err), guest.err
    last = guest.err.splitlines()[-1]
    assert re.search(rf"the store at {endpoint} is lost: its host .* \(pid {host.agent}\) has not answered for \d+ s", last)
    assert "--rdzv-backend etcd-v3" in last


@pytest.mark.usefixtures("document")  # in the engine, a host has the time of any other node
def test_a_host_that_pauses_for_less_than_its_time_ends_nothing(scene):
    host, guest, _ = host_and_guest(scene, "--nnodes=2", conf=",heartbeat_timeout=1")
    workers = scene.world(2)
    with paused(host.agent):
        guest.said("the store has been away for 1")  # many times its death age
    guest.said("the store is back after")
    assert all(worker.alive for worker in workers)
    for worker in workers:
        worker.succeed()
    assert (host.end(), guest.end()) == (0, 0)


def test_a_host_that_is_back_in_time_is_joined(scene, engine):
    host, guest, endpoint = host_and_guest(scene, "--nnodes=2", "--max-restarts=1", conf=",store_lost_timeout=60")
    workers = scene.world(2)
    host.signal(signal.SIGKILL)
    guest.said("connection refused")
    again = scene.node(endpoint, "--nnodes=2", "--max-restarts=1", conf="last_call_timeout=1,is_host=true")
    for worker in scene.world(2, without=workers):
        worker.succeed()
    assert (guest.end(), again.end()) == (0, 0)


def test_a_store_that_no_node_hosts_is_tried_without_limit_and_workers_run_on(scene, serve, engine):
    server = serve()
    agents = [scene.node(server.endpoint, "--nnodes=2", conf="last_call_timeout=1,store_lost_timeout=1") for _ in range(2)]
    workers = scene.world(2)
    server.stop()
    for agent in agents:
        until(lambda: re.search("the store has been away for [5-9] s", agent.err), what=f"5 s in {agent.err}")  # long after a member would be lost
        agent.said("the workers run on; trying again\n")
    assert all(worker.alive for worker in workers)
    serve("--port", str(server.port))
    for worker in workers:
        worker.succeed()
    assert [agent.end() for agent in agents] == [0, 0]


@pytest.mark.usefixtures("document")
def test_a_node_that_is_done_ends_when_the_store_is_refused(scene, serve):
    server = serve()
    for _ in range(2):
        scene.node(server.endpoint, "--nnodes=2")
    first, second = scene.world(2)
    running, done = agent_of(scene, first), agent_of(scene, second)
    second.succeed()
    until(lambda: marks(server), what="the mark of the one that is done")
    server.stop()
    assert done.end() == 0
    assert re.search(r"the workers of this node have succeeded, and the store has refused connections for \d+ s: "
                     "ending without waiting for the other nodes\n", done.err), done.err
    assert first.alive and running.process.poll() is None
    first.succeed()
    assert running.end() == 0


@pytest.mark.usefixtures("document")
def test_a_node_that_is_done_ends_when_the_store_is_silent(scene, serve):
    server = serve()
    for _ in range(2):
        scene.node(server.endpoint, "--nnodes=2", conf="last_call_timeout=1,heartbeat_timeout=1")
    first, second = scene.world(2)
    running, done = agent_of(scene, first), agent_of(scene, second)
    second.succeed()
    until(lambda: marks(server), what="the mark of the one that is done")
    with paused(server.pid):
        began = time.monotonic()
        assert done.end(limit=90) == 0
        assert time.monotonic() - began > 25  # a store that is only slow has its time
        assert re.search(r"the workers of this node have succeeded, and the store has not answered for 3\d s: "
                         "ending without waiting for the other nodes\n", done.err), done.err
        running.said("the workers run on; trying again\n")
        assert first.alive and running.process.poll() is None
    running.said("the store is back after")
    first.succeed()
    assert running.end() == 0


@pytest.mark.usefixtures("document")
def test_a_done_node_stays_while_workers_of_others_use_its_store(scene, serve):
    server = serve()
    for _ in range(2):
        scene.node(server.endpoint, "--nnodes=2", "-v")
    first, second = scene.world(2)
    done, running = agent_of(scene, first), agent_of(scene, second)
    with socket.create_connection((first.env["MASTER_ADDR"], int(first.env["MASTER_PORT"]))):  # as a worker elsewhere
        first.succeed()
        until(lambda: marks(server), what="the mark of the one that is done")
        server.stop()
        done.said("done; serving the workers' store until the other nodes have ended")
        assert done.process.poll() is None
    assert done.end() == 0
    second.succeed()
    assert running.end() == 0


def spare_of(scene, endpoint, *options):
    """One more node than there is room for, once it knows that."""
    spare = scene.node(endpoint, *options, conf="last_call_timeout=1,is_host=false")
    spare.said("waiting for a place in rendezvous 'job': round 0 is full")
    return spare


def test_a_spare_of_a_job_of_one_node_ends_with_it(scene, engine):
    endpoint = local(free_port())
    host = scene.node(endpoint, "--nnodes=1")
    worker, = scene.world(1)
    spare = spare_of(scene, endpoint, "--nnodes=1")
    worker.succeed()
    assert (host.end(), spare.end()) == (0, 0)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_spare_whose_host_was_killed_ends_and_says_why(scene, nodes, engine):
    endpoint = local(free_port())
    host = scene.node(endpoint, f"--nnodes={nodes}", "-v")
    host.said("hosting its store")
    for _ in range(nodes - 1):
        scene.node(endpoint, f"--nnodes={nodes}", conf="last_call_timeout=1,store_lost_timeout=1")
    scene.world(nodes)
    spare = spare_of(scene, endpoint, f"--nnodes={nodes}")
    os.kill(host.agent, signal.SIGKILL)
    assert spare.end() == 1
    assert re.search(rf"the store at {endpoint} has refused connections for \d+ s: the job has ended, or the host of its "
                     "store has", spare.err), spare.err


@pytest.mark.usefixtures("document")  # in the engine it is a store like any other: test_run_engine.py
def test_a_store_that_takes_the_place_of_a_host_is_tried_without_limit(scene, serve):
    host, guest, endpoint = host_and_guest(scene, "--nnodes=2", conf=",store_lost_timeout=3")
    workers = scene.world(2)
    host.signal(signal.SIGKILL)
    # It says the first if the host left before it ended, and the second if the host was lost with its store.
    until(lambda: re.search("trying again|store that it hosts refuses", guest.err), what="a store that is away")
    port = endpoint.rpartition(":")[2]
    server = serve("--port", port)
    guest.said("the store is back after")
    until(lambda: b"torch.rendezvous.job" in server.call("list").out, what="the guest's document")
    server.stop()
    guest.said("the store has been away for 5 s")
    serve("--port", port)
    until(lambda: guest.err.count("the store is back after") == 2, what="its return")
    scene.node(endpoint, "--nnodes=2")
    for worker in scene.world(2, without=workers):
        worker.succeed()
    assert [agent.end() for agent in scene.agents[1:]] == [0, 0]

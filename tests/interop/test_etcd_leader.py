"""Whole jobs of actors on etcd-v3, where one node leads: it counts the restarts, says why a round ended, and how the
job did, the same on every node."""

import contextlib
import json
import os
import re
import signal
import socket
import time

import pytest

import etcd_actors
import etcd_servers
from etcd_actors import LIMIT, kill_both, restarts
from rdzv_nodes import until
from test_etcd_ill import fill, make_space

HOST = socket.gethostname()
LEASE = 2  # as CONFS has it
REPORT = "ChildFailedError"


@pytest.fixture(scope="module")
def shared_etcd(tmp_path_factory):
    yield from etcd_servers.kept(tmp_path_factory.mktemp("etcd"), 1)


@pytest.fixture
def job(shared_etcd, tmp_path):
    for make in etcd_actors.kept(shared_etcd, tmp_path):
        yield make("etcd-v3")


def leader(job):
    """The node that leads; None: nobody does, as far as one can see."""
    keys = {path: json.loads(value) for path, value in job.keys.paths().items()
            if path.startswith(("nodes/", "job/folder"))}
    leads = keys.get("job/folder", {}).get("node")
    pids = [record["pid"] for path, record in keys.items() if path.split("/")[1] == leads and "pid" in record]
    return next((node for node in job.nodes if not node.ended() and node.agent() in pids), None)


def ended(job, verdict):
    """It says so in its own keys; the cause."""
    closed = job.keys.json("job/closed")
    assert closed["verdict"] == verdict, f"{closed}\n{job.said()}"
    return closed["cause"]


def failure(worker):
    """How its failure is told on every node."""
    return f"rank {worker.rank} on {HOST} (local rank 0, pid {worker.pid}) failed: exit code 3"


def fail_too(worker):
    with contextlib.suppress(ProcessLookupError):  # its agent has heard of the other already
        worker.fail()


def whys(job):
    """Why rounds ended, as each node that runs says it."""
    return [re.findall(r"(?:warning|notice): (.*; restarting with .*)", node.err) for node in job.nodes
            if not node.ended()]


@pytest.mark.parametrize("failing", [0, 2])
def test_failures_are_counted_and_the_last_one_ends_the_job_everywhere(job, failing):
    first = job.start(3, "--nnodes=3", "--max-restarts=1")
    cause = failure(first[failing])
    first[failing].fail()
    second = job.world(3, without=first)
    assert restarts(second) == 1, job.said()
    for why, in whys(job):
        assert why.startswith(cause) and why.endswith("; restarting with 3 nodes, restart 1 of 1"), job.said()

    node = job.node_of(second[failing])
    cause = failure(second[failing])
    second[failing].fail()
    assert [node.end(LIMIT) for node in job.nodes] == [1, 1, 1], job.said()
    assert ended(job, "failed") == f"{cause}; no restarts left (max restarts: 1)", job.said()
    for other in job.nodes:
        assert cause in other.err, job.said()
        assert (REPORT in other.err) == (other is node), job.said()


def test_a_job_whose_nodes_are_done_one_after_the_other_has_succeeded(job):
    """The first of them long before the last: they wait for it, and keep their leases."""
    workers = job.start(3, "--nnodes=3", "--max-restarts=1")
    for rank in (1, 0):
        workers[rank].succeed()
        job.until_marked(rank)
    with pytest.raises(AssertionError):  # they wait
        until(lambda: any(node.ended() for node in job.nodes), 2 * LEASE, "an end")
    assert workers[2].alive and "job/closed" not in job.keys.paths(), job.said()
    workers[2].succeed()
    assert [node.end(LIMIT) for node in job.nodes] == [0, 0, 0], job.said()
    ended(job, "succeeded")
    assert "lost " not in job.said() and "restarting" not in job.said(), job.said()


def test_a_node_that_is_done_while_etcd_has_no_space_is_not_lost(etcds, tmp_path):
    """It keeps its lease, and says so once it can."""
    cluster = etcds(1, extra=["--quota-backend-bytes", str(2 << 20)])
    for make in etcd_actors.kept(cluster, tmp_path):
        job = make("etcd-v3")
        runs, succeeds = job.start(2, "--nnodes=2", "--max-restarts=0")
        node = job.node_of(succeeds)
        fill(cluster.members[0])
        succeeds.succeed()
        until(lambda: "space" in node.err, LIMIT, "it is said")
        with pytest.raises(AssertionError):
            until(lambda: not runs.alive, 2 * LEASE, "an end")
        make_space(cluster.members[0])
        job.until_marked(succeeds.rank)
        runs.succeed()
        assert [node.end(LIMIT) for node in job.nodes] == [0, 0], job.said()
        assert "lost " not in job.said() and "restarting" not in job.said(), job.said()
        assert job.said().count("space") < 8, job.said()


def done_leader(job):
    """Of three nodes that run: it is done. The leader, the other nodes, and their workers."""
    workers = job.start(3, "--nnodes=3", "--max-restarts=0")
    first = until(lambda: leader(job), LIMIT, "a leader")
    own, = [worker for worker in workers if job.node_of(worker) is first]
    own.succeed()
    job.until_marked(own.rank)
    return first, [node for node in job.nodes if node is not first], [worker for worker in workers if worker is not own]


def test_a_leader_that_is_killed_after_it_was_done_costs_nothing(job):
    """Its mark outlives it, and another node leads."""
    first, left, others = done_leader(job)
    kill_both(first)
    until(lambda: leader(job) in left, LIMIT, "another leader")
    assert all(worker.alive for worker in others), job.said()
    for worker in others:
        worker.succeed()
    assert [node.end(LIMIT) for node in left] == [0, 0], job.said()
    ended(job, "succeeded")
    assert "lost " not in job.said() and "restarting" not in job.said(), job.said()


def test_a_leader_that_is_killed_before_it_says_that_all_are_done(job):
    """It is paused while the others succeed: they wait for it, until another one leads."""
    first, left, others = done_leader(job)
    os.kill(first.agent(), signal.SIGSTOP)
    for worker in others:
        worker.succeed()
    for worker in others:
        job.until_marked(worker.rank)
    kill_both(first)
    assert [node.end(LIMIT) for node in left] == [0, 0], job.said()
    ended(job, "succeeded")
    assert "lost " not in job.said() and "restarting" not in job.said(), job.said()


def test_who_is_done_is_not_waited_for_when_another_fails(job):
    """It ends, and the others regroup without it."""
    first = job.start(3, "--nnodes=2:3", "--max-restarts=1")
    done = job.node_of(first[0])
    first[0].succeed()
    job.until_marked(0)
    first[2].fail()
    assert done.end(LIMIT) == 0, job.said()
    second = job.world(2, without=first)
    assert restarts(second) == 1, job.said()
    (one,), (two,) = whys(job)
    assert one == two, job.said()
    assert one == f"{failure(first[2])}; restarting with 2 nodes, restart 1 of 1", one
    job.succeed(second)
    ended(job, "succeeded")


def test_nodes_that_come_and_leave_cost_nothing_and_are_named(job):
    first = job.start(2, "--nnodes=2:3", "--max-restarts=0")
    late = job.node("--nnodes=2:3", "--max-restarts=0")
    second = job.world(3, without=first)
    assert restarts(second) == 0, job.said()
    newcomer = f"{HOST} (pid {late.agent()})"
    for why, in whys(job):
        assert why == f"{newcomer} joins; restarting with 3 nodes, no restart charged"
    late.signal(signal.SIGTERM)
    assert late.end(LIMIT) == 1, job.said()
    third = job.world(2, without=second)
    assert restarts(third) == 0, job.said()
    for _, why in whys(job):
        assert newcomer in why and why.endswith("; restarting with 2 nodes, no restart charged"), why
    job.succeed(third)
    ended(job, "succeeded")


def test_a_node_whose_launcher_was_killed_is_lost(job):
    """Its agent says so, and ends. What that breaks on other nodes costs nothing."""
    first = job.start(3, "--nnodes=2:3", "--max-restarts=0")
    lost = job.node_of(first[0])
    pid = lost.agent()
    lost.process.kill()
    fail_too(first[1])
    second = job.world(2, without=first)
    assert restarts(second) == 0, job.said()
    for why, in whys(job):
        assert why.startswith(f"lost {HOST} (pid {pid}): its launcher was killed") and why.endswith("no restart charged"), why
    job.succeed(second)
    ended(job, "succeeded")


def test_restarts_that_are_older_than_the_window_do_not_count(job):
    conf = f"--rdzv-conf={etcd_actors.CONFS['etcd-v3']},restart_window=1"
    workers = job.start(2, "--nnodes=2", "--max-restarts=1", conf)
    for count in (1, 2):
        began = time.monotonic()
        cause = failure(workers[1])
        workers[1].fail()
        workers = job.world(2, without=workers)
        assert restarts(workers) == count, job.said()
        for said in whys(job):
            assert said[-1] == f"{cause}; restarting with 2 nodes, restart 1 of 1", job.said()
        until(lambda: time.monotonic() > began + 2, LIMIT, "the end of the window")
    job.succeed(workers)
    ended(job, "succeeded")

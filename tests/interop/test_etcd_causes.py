"""Whose fault it was, with each back end that meets in etcd: a worker that fails because another node was lost costs no
restart, and the lost node is named.

The same on c10d is in tests/cli/test_run_causes.py.
"""

import contextlib
import os
import re
import socket

import pytest

import etcd_actors
import etcd_servers
from etcd_actors import BACKENDS, kill_agent, kill_both, restarts
from rdzv_nodes import until

HOST = socket.gethostname()
# How a node is killed, which one by its rank, whether the others' workers fail because of that, and --max-restarts.
SCENES = [
    (kill_agent, 0, True, 0),
    (kill_both, -1, True, 0),
    (kill_both, 0, True, 3),
    (kill_agent, -1, True, 3),
    (kill_both, 0, False, 0),
    (kill_agent, -1, False, 3),
]


@pytest.fixture(scope="module")
def shared_etcd(tmp_path_factory):
    yield from etcd_servers.kept(tmp_path_factory.mktemp("etcd"), 1)


@pytest.fixture
def jobs(shared_etcd, tmp_path):
    yield from etcd_actors.kept(shared_etcd, tmp_path)


def lose(job, workers, kill, which, fails):
    """Kills a node; then the others' workers may fail. The pid of its agent, and the nodes that are left."""
    lost = job.node_of(workers[which])
    left = [job.node_of(worker) for worker in workers if worker is not workers[which]]
    pid = lost.agent()
    kill(lost)
    for worker in workers if fails else ():
        if worker is not workers[which]:
            with contextlib.suppress(ProcessLookupError):  # the first that fails ends the others
                worker.fail()
    return pid, left


def consequence(backend, fails):
    """How the line ends that names the lost node."""
    if backend == "etcd-v3":  # whose leader says it for all, of every node: there are several on this host
        failure = rf"; rank \d's failure on {re.escape(HOST)} \(pid \d+\) is a consequence" if fails else ""
        return rf": (no keep-alive for 2 s|its agent was killed){failure}; restarting with 2 nodes, no restart charged$"
    if fails:
        return rf"'s failure on {re.escape(HOST)} is a consequence; restarting with 2 nodes, no restart charged$"
    return "; restarting the group$"


def sentence(node):
    """Why the round ended, as this node says it."""
    said, = re.findall(r" warning: (.*; restarting with .*)", node.err)
    return said


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_lost_node_is_the_cause_and_costs_nothing(jobs, backend):
    """All jobs beside each other, for on the classic back end a keep-alive of 10 s has to end in each."""
    scenes = [(jobs(backend), *scene) for scene in SCENES]
    for job, _, _, _, max_restarts in scenes:
        for _ in range(3):
            job.node("--nnodes=2:3", f"--max-restarts={max_restarts}")
    first = {job: job.world(3) for job, *_ in scenes}
    lost = {job: lose(job, first[job], kill, which, fails) for job, kill, which, fails, _ in scenes}
    second = {job: job.world(2, without=first[job]) for job, *_ in scenes}
    for job, kill, which, fails, _ in scenes:
        pid, left = lost[job]
        said = f"{kill.__name__}, {which}, {fails}\n{job.said()}"
        assert restarts(second[job]) == 0, said
        job.succeed(second[job])
        for node in left:
            named = [line for line in node.err.splitlines() if f"lost {HOST} (pid {pid})" in line]
            assert any(re.search(consequence(backend, fails), line) for line in named), said
            assert "restarts used: 1" not in node.err and "no restarts left" not in node.err, said
        if backend == "etcd-v3":
            assert len({sentence(node) for node in left}) == 1, said


@pytest.mark.parametrize("which", [0, 1, -1])
def test_on_etcd_v3_the_lease_of_a_killed_agent_is_not_waited_for(jobs, which):
    """Its keeper says that it was killed, and ends the lease. One of the three leads."""
    lease = 20 * etcd_actors.LIMIT
    job = jobs("etcd-v3")
    conf = etcd_actors.CONFS["etcd-v3"].replace("lease=2,job_lease=60", f"lease={lease}")
    workers = job.start(3, "--nnodes=2:3", f"--rdzv-conf={conf}")
    _, left = lose(job, workers, kill_agent, which, False)
    second = job.world(2, without=workers)
    assert restarts(second) == 0, job.said()
    job.succeed(second)
    for node in left:
        told = [line for line in node.err.splitlines() if f"lost {HOST}" in line]
        assert told and all(": its agent was killed; " in line for line in told), job.said()
        assert told[-1].endswith("; restarting with 2 nodes, no restart charged"), job.said()
    assert sum(path.endswith("/killed") for path in job.keys.paths()) == 1


def test_on_etcd_v3_a_fence_ends_workers_that_etcd_does_not_hear_of(jobs, shared_etcd):
    """They are killed while their lease is alive. When etcd answers again, the nodes form the next round."""
    job = jobs("etcd-v3")
    conf = etcd_actors.CONFS["etcd-v3"].replace("lease=2,", "lease=10,") + ",fence=2"
    workers = job.start(2, "--nnodes=2", f"--rdzv-conf={conf}")
    shared_etcd[0].pause()
    try:
        for node in job.nodes:
            node.said("etcd has acknowledged no keep-alive for 2 s; restarting the group")
        for worker in workers:
            until(lambda pid=worker.pid: not os.path.exists(f"/proc/{pid}"), etcd_actors.LIMIT, "a worker's end")
    finally:
        shared_etcd[0].resume()
    second = job.world(2, without=workers)
    assert restarts(second) == 0, job.said()
    job.succeed(second)

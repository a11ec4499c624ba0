"""Whose fault it was, with each back end that meets in etcd: a worker that fails because another node was lost costs no
restart, and the lost node is named.

The same on c10d is in tests/cli/test_run_causes.py.
"""

import contextlib
import socket

import pytest

import etcd_actors
import etcd_servers
from etcd_actors import BACKENDS, kill_agent, kill_both, restarts

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
        told = f"'s failure on {HOST} is a consequence; restarting with 2 nodes, no restart charged" if fails else \
            "; restarting the group"
        for node in left:
            named = [line for line in node.err.splitlines() if f"lost {HOST} (pid {pid})" in line]
            assert any(line.endswith(told) for line in named), said
            assert "restarts used: 1" not in node.err and "no restarts left" not in node.err, said

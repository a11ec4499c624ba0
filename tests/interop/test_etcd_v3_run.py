"""Real training under `muster run --rdzv-backend etcd-v3`: hosts come and go, and so do etcds."""

import os
import re
import signal
import time

import pytest

from harness import NEW
from rdzv_nodes import until
from run_nodes import Training

WHICH = NEW
WORKERS_EACH = 2
LEASE = 5


class Scene:
    """One job on one cluster."""

    def __init__(self, job, cluster, **training):
        self.job, self.cluster = job, cluster
        self.training = Training(job.directory / "training", **training)

    def node(self, nodes, *further, number=None, restarts=3, lease=LEASE):
        conf = f"lease={lease},job_lease={4 * lease},last_call_timeout=1,join_timeout=60"
        address = ["--local-addr", f"127.0.0.{number}"] if number else []
        return self.job.muster("--nproc-per-node", WORKERS_EACH, "--max-restarts", restarts, "--nnodes", nodes,
                               "--rdzv-backend", "etcd-v3", "--rdzv-endpoint", self.cluster.endpoints, "--rdzv-id",
                               self.job.run_id, "--rdzv-conf", conf, *address, *self.training.words(*further))


@pytest.fixture
def scenes(jobs, etcds):
    def make(members=1, **training):
        return Scene(jobs(WHICH), etcds(members), **training)
    return make


def test_a_budget_that_is_used_up_ends_the_job_everywhere(scenes):
    scene = scenes()
    made = [scene.node("2", "--die", "0:0:1", "--die", "1:1:1", restarts=1) for _ in range(2)]
    assert [node.end() for node in made] == [1, 1]
    assert len(scene.training.worlds()) == 2
    assert not scene.job.left()


@pytest.mark.parametrize("rank, lease", [(0, LEASE), (1, LEASE), (1, 35)])
def test_survivors_of_a_killed_agent_go_on(scenes, rank, lease):
    """Also without restarts: their workers fail in a collective before the loss is noticed, which costs nothing. It is
    noticed when the lease is over."""
    scene = scenes(epochs=6)
    made = [scene.node("1:2", "--pace", 0.02, "--hold", 4, number=number + 1, restarts=0, lease=lease)
            for number in range(2)]
    scene.training.until("step", epoch=2, step=3, job=scene.job)
    assert scene.training.worlds()[-1] == 2 * WORKERS_EACH
    victim = next(node for node in made if group_rank(node) == rank)
    survivor = next(node for node in made if node is not victim)
    os.kill(victim.agent(), signal.SIGKILL)
    assert victim.end() != 0
    scene.training.until("hold", epoch=4, world=WORKERS_EACH)
    scene.training.go(4)
    survivor.good()
    assert "no restart charged" in survivor.err
    scene.training.whole()
    assert not scene.job.left()


def group_rank(node):
    """By the environment of one of its workers."""
    def found():
        for pid in worker_pids(node):
            try:
                environment = open(f"/proc/{pid}/environ", "rb").read()
            except OSError:
                continue
            match = re.search(rb"(?:^|\0)GROUP_RANK=(\d+)\0", environment)
            if match:
                return match
        return None
    return int(until(found, what="a worker's group rank")[1])


def worker_pids(node):
    agent = node.agent()
    return [int(pid) for pid in open(f"/proc/{agent}/task/{agent}/children").read().split()]


def test_a_cluster_that_loses_its_leader_mid_epoch_changes_nothing(scenes):
    scene = scenes(3, epochs=6)
    made = [scene.node("2", "--pace", 0.02, "--hold", 4) for _ in range(2)]
    scene.training.until("step", epoch=1, step=3, job=scene.job)
    scene.cluster.leader().kill()
    scene.training.until("hold", epoch=4, world=2 * WORKERS_EACH, job=scene.job)
    scene.cluster.leader()
    scene.training.go(4)
    for node in made:
        node.good()
    scene.training.whole()
    assert scene.training.worlds() == [4]


def test_a_leader_killed_while_the_job_regroups_delays_it(scenes):
    scene = scenes(3, epochs=6)
    made = [scene.node("2", "--pace", 0.02, "--die", "3:2:3") for _ in range(2)]
    scene.training.until("step", epoch=2, step=2, job=scene.job)
    scene.cluster.leader().kill()
    for node in made:
        node.good()
    scene.training.whole()
    assert scene.training.worlds() == [4, 4]


@pytest.mark.parametrize("forgets", [False, True], ids=["remembers", "forgets"])
def test_an_etcd_that_is_away_for_longer_than_a_lease_changes_nothing(scenes, forgets):
    scene = scenes(1, epochs=6)
    made = [scene.node("2", "--pace", 0.02, "--hold", 4) for _ in range(2)]
    scene.training.until("step", epoch=1, step=3, job=scene.job)
    scene.cluster.kill_all()
    if forgets:
        scene.cluster[0].wipe()
    scene.training.until("hold", epoch=4, world=2 * WORKERS_EACH, job=scene.job)
    time.sleep(1.5 * LEASE)
    scene.cluster.start_all()
    time.sleep(2 * LEASE)
    scene.training.go(4)
    for node in made:
        node.good()
    scene.training.whole()
    assert scene.training.worlds() == [4]
    assert [start["restarts"] for start in scene.training.starts()] == [0]

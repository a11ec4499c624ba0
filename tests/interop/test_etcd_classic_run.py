"""Real training under `muster run --rdzv-backend etcd`, the classic rendezvous: workers and hosts come and go."""

import os
import signal

import pytest

from rdzv_nodes import until
from run_nodes import Training

WHICH = "1.13.1"
WORKERS_EACH = 2
LIMIT = 90  # a keep-alive's 10 s, and what follows, on a machine with other things to do
CONF = "last_call_timeout=2,timeout=120"


class Scene:
    """One job on one etcd."""

    def __init__(self, job, cluster, **training):
        self.job, self.cluster = job, cluster
        self.training = Training(job.directory / "training", **training)

    def node(self, nodes, *further, restarts=3):
        return self.job.muster("--nproc-per-node", WORKERS_EACH, "--max-restarts", restarts, "--nnodes", nodes,
                               "--rdzv-backend", "etcd", "--rdzv-endpoint", self.cluster.endpoint, "--rdzv-id",
                               self.job.run_id, "--rdzv-conf", CONF, *self.training.words(*further))


@pytest.fixture
def scenes(jobs, etcds):
    def make(**training):
        return Scene(jobs(WHICH), etcds(1), **training)
    return make


def test_a_worker_killed_mid_epoch_costs_one_restart(scenes):
    scene = scenes()
    for node in [scene.node("2", "--die", "3:1:3") for _ in range(2)]:
        node.good()
    scene.training.whole()
    assert scene.training.worlds() == [4, 4]
    assert [start["restarts"] for start in scene.training.starts()] == [0, 1]
    assert not scene.job.left()


def test_survivors_of_a_killed_agent_go_on(scenes):
    scene = scenes(epochs=6)
    victim, survivor = [scene.node("1:2", "--pace", 0.02, "--hold", 4) for _ in range(2)]
    scene.training.until("step", epoch=2, step=3, job=scene.job)
    os.kill(victim.agent(), signal.SIGKILL)
    assert victim.end() != 0
    scene.training.until("hold", epoch=4, world=WORKERS_EACH, limit=LIMIT)
    scene.training.go(4)
    survivor.good()
    scene.training.whole()
    assert not scene.job.left()


def test_a_node_is_added_and_taken_away_again(scenes):
    scene = scenes(epochs=6)
    training = scene.training
    first = scene.node("1:2", "--hold", 2, "--hold", 4)
    training.until("hold", epoch=2, world=WORKERS_EACH, job=scene.job)
    second = scene.node("1:2", "--hold", 2, "--hold", 4)
    training.until("hold", epoch=2, world=2 * WORKERS_EACH, job=scene.job)
    training.go(2)
    training.until("hold", epoch=4, world=2 * WORKERS_EACH, job=scene.job)
    second.signal(signal.SIGTERM)
    assert second.end() == 1, second.err
    training.until("hold", epoch=4, world=WORKERS_EACH)
    training.go(4)
    first.good()
    training.whole()
    assert training.worlds() == [2, 4, 2]
    until(lambda: not scene.job.left(), what="no process is left")


@pytest.mark.parametrize("first", ["stock", "muster"])
def test_one_job_of_torchrun_and_ours_restarts_together(scenes, first):
    scene = scenes()
    meeting = ["--nnodes", 2, "--nproc_per_node", 1, "--max_restarts", 5, "--rdzv_backend", "etcd", "--rdzv_endpoint",
               scene.cluster.endpoint, "--rdzv_id", scene.job.run_id, "--rdzv_conf"]
    options = {"muster": [*meeting, CONF + ",dialect=1.13"],
               # Its own defaults of -r and -t are more than it can read with Python 3.11.
               "stock": ["-r", 1, "-t", 1, "--monitor_interval", 0.1, *meeting, CONF]}
    for kind in ("stock", "muster") if first == "stock" else ("muster", "stock"):
        scene.job.launch(kind, *options[kind], *scene.training.words("--die", "0:1:3"))
    for node in scene.job.nodes:
        node.good(LIMIT)
    scene.training.whole()
    assert set(scene.training.worlds()) == {2}
    assert len(scene.training.worlds()) >= 2

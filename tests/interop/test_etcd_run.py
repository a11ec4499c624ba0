"""Real training under `muster run` on each of the three back ends that meet in etcd: workers and hosts come and go.

What happens when etcd itself is ill is in test_etcd_ill.py and test_etcd_v3_run.py.
"""

import json
import os
import signal

import pytest

import test_etcd_v3
from harness import NEW
from rdzv_nodes import Ours, need_rdzv, until
from run_nodes import Training

WORKERS_EACH = 2
LIMIT = 120  # a keep-alive's 10 s, and what follows, on a machine with other things to do
BACKENDS = {  # the PyTorch whose workers train, and what the agents are told
    "etcd": ("1.13.1", "last_call_timeout=2,timeout=120"),
    "etcd-v2": (NEW, "last_call_timeout=1,join_timeout=120,keep_alive_interval=1,keep_alive_max_attempt=10"),
    "etcd-v3": (NEW, "last_call_timeout=1,join_timeout=120,lease=10,job_lease=40"),
}


class Scene:
    """One job on one etcd."""

    def __init__(self, backend, job, cluster, **training):
        self.backend, self.job, self.cluster = backend, job, cluster
        self.training = Training(job.directory / "training", **training)

    def node(self, nodes, *further, restarts=3):
        return self.job.muster("--nproc-per-node", WORKERS_EACH, "--max-restarts", restarts, "--nnodes", nodes,
                               "--rdzv-backend", self.backend, "--rdzv-endpoint", self.cluster.endpoint, "--rdzv-id",
                               self.job.run_id, "--rdzv-conf", BACKENDS[self.backend][1],
                               *self.training.words(*further))

    def regrouped(self, epoch, world):
        self.training.until("hold", epoch=epoch, world=world, limit=LIMIT)


@pytest.fixture
def scenes(jobs, etcds):
    def make(backend, **training):
        return Scene(backend, jobs(BACKENDS[backend][0]), etcds(1), **training)
    return make


PHASES = {
    "etcd": ["make the directories", "read the document", "create the document", "increment the version counter",
             "open the document for joins", "join", "write our keep-alive", "confirm", "watch our group"],
    "etcd-v3": ["joining", "member"],
}


@pytest.mark.parametrize("backend", PHASES)
def test_vv_tells_the_phases(jobs, etcds, backend):
    job, cluster = jobs(BACKENDS[backend][0]), etcds(1)
    node = job.muster("-vv", "--rdzv-backend", backend, "--rdzv-endpoint", cluster.endpoint, "--rdzv-id", job.run_id,
                      "--no-python", "true")
    node.good()
    lines = iter(node.err.splitlines())
    for phase in PHASES[backend]:
        assert any(line.endswith(f" debug: rendezvous '{job.run_id}': {phase}") for line in lines), (phase, node.err)
    assert f"attempts to join the next round of the rendezvous '{job.run_id}'." in node.err


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_worker_killed_mid_epoch_costs_one_restart(scenes, backend):
    scene = scenes(backend)
    for node in [scene.node("2", "--die", "3:1:3") for _ in range(2)]:
        node.good()
    scene.training.whole()
    assert scene.training.worlds() == [4, 4]
    assert [start["restarts"] for start in scene.training.starts()] == [0, 1]
    assert not scene.job.left()


@pytest.mark.parametrize("backend", ["etcd", "etcd-v2"])  # etcd-v3: with each rank, in its own file
def test_survivors_of_a_killed_agent_go_on(scenes, backend):
    scene = scenes(backend)
    training = scene.training
    victim, survivor = [scene.node("1:2", "--hold", 2) for _ in range(2)]
    training.until("hold", epoch=2, world=2 * WORKERS_EACH, job=scene.job)
    os.kill(victim.agent(), signal.SIGKILL)
    assert victim.end() != 0
    scene.regrouped(2, WORKERS_EACH)
    training.go(2)
    survivor.good()
    training.whole()
    assert training.worlds()[-2:] == [4, 2]
    assert not scene.job.left()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_node_is_added_and_taken_away_again(scenes, backend):
    scene = scenes(backend, epochs=6)
    training = scene.training
    first = scene.node("1:2", "--hold", 2, "--hold", 4)
    training.until("hold", epoch=2, world=WORKERS_EACH, job=scene.job)
    second = scene.node("1:2", "--hold", 2, "--hold", 4)
    training.until("hold", epoch=2, world=2 * WORKERS_EACH, job=scene.job)
    training.go(2)
    training.until("hold", epoch=4, world=2 * WORKERS_EACH, job=scene.job)
    second.signal(signal.SIGTERM)
    assert second.end() == 1, second.err
    scene.regrouped(4, WORKERS_EACH)
    training.go(4)
    first.good()
    training.whole()
    assert training.worlds() == [2, 4, 2]
    until(lambda: not scene.job.left(), what="no process is left")


def spares(scene):
    """How many wait beside a round that is full, by what the nodes tell each other."""
    news = test_etcd_v3.keys(scene.cluster[0]).get(f"/muster/{scene.job.run_id}/job/news", "{}")
    return json.loads(news).get("spares", 0)


def test_a_spare_takes_the_place_of_a_node_that_was_killed(scenes):
    scene = scenes("etcd-v3")
    training = scene.training
    victim, survivor = [scene.node("2", "--hold", 2) for _ in range(2)]
    training.until("hold", epoch=2, world=2 * WORKERS_EACH, job=scene.job)
    spare = scene.node("2", "--hold", 2)
    until(lambda: spares(scene) == 1, LIMIT, "a spare")
    assert training.worlds() == [4]
    os.kill(victim.agent(), signal.SIGKILL)
    assert victim.end() != 0
    until(lambda: training.worlds() == [4, 4], LIMIT, "a second world")
    training.go(2)
    for node in (survivor, spare):
        node.good()
    training.whole()
    assert training.worlds() == [4, 4]
    assert not scene.job.left()


@pytest.mark.parametrize("first", ["stock", "muster"])
def test_one_job_of_torchrun_and_ours_restarts_together(scenes, first):
    scene, conf = scenes("etcd"), BACKENDS["etcd"][1]
    meeting = ["--nnodes", 2, "--nproc_per_node", 1, "--max_restarts", 5, "--rdzv_backend", "etcd", "--rdzv_endpoint",
               scene.cluster.endpoint, "--rdzv_id", scene.job.run_id, "--rdzv_conf"]
    options = {"muster": [*meeting, conf + ",dialect=1.13"],
               # Its own defaults of -r and -t are more than it can read with Python 3.11.
               "stock": ["-r", 1, "-t", 1, "--monitor_interval", 0.1, *meeting, conf]}
    for kind in ("stock", "muster") if first == "stock" else ("muster", "stock"):
        scene.job.launch(kind, *options[kind], *scene.training.words("--die", "0:1:3"))
    for node in scene.job.nodes:
        node.good(LIMIT)
    scene.training.whole()
    assert set(scene.training.worlds()) == {2}
    assert len(scene.training.worlds()) >= 2
SLOW = """
part=$1 stage=$2
tell() { echo "$*" >> "$stage/story"; }
long_stop() { for _ in $(seq 150); do sleep 0.1; done; tell stopped; exit 0; }
if [ "$TORCHELASTIC_RESTART_COUNT" != 0 ]; then tell again "$WORLD_SIZE"; exit 0; fi
case $part in slow) trap long_stop TERM;; *) trap 'exit 0' TERM;; esac
touch "$stage/$part"
while :; do
    if [ "$part" = fails ] && [ -e "$stage/slow" ] && [ -e "$stage/quick" ]; then exit 1; fi
    sleep 0.1
done
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_who_takes_long_to_stop_is_waited_for(jobs, etcds, tmp_path, backend):
    """For longer than a keep-alive lasts: no worker of the next round runs beside one of the last."""
    job, cluster = jobs(BACKENDS[backend][0]), etcds(1)
    (tmp_path / "slow.sh").write_text(SLOW)
    stage = tmp_path / "stage"
    stage.mkdir()
    nodes = [job.muster("--nnodes", "2:3", "--max-restarts", 1, "--rdzv-backend", backend, "--rdzv-endpoint",
                        cluster.endpoint, "--rdzv-id", job.run_id, "--rdzv-conf",
                        f"{BACKENDS[backend][1]},last_call_timeout=60", "--no-python", "sh", tmp_path / "slow.sh", part,
                        stage) for part in ("fails", "slow", "quick")]
    for node in nodes:
        node.good()
    assert (stage / "story").read_text().splitlines() == ["stopped", *3 * ["again 3"]]
    assert not job.left()


# What an agent's worker does: it tells in which world and attempt it is. Alone, it stays until there are two; of two, rank 1 fails
# the first time.
WORKER = """
echo "$RANK of $WORLD_SIZE, restart $TORCHELASTIC_RESTART_COUNT" >> "{stage}/story"
if [ "$WORLD_SIZE" = 1 ]; then exec sleep 600; fi
if [ "$TORCHELASTIC_RESTART_COUNT" = 0 ] && [ "$RANK" = 1 ]; then exit 3; fi
if [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then exec sleep 600; fi
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_handler_given_as_an_object_runs_under_an_agent(etcds, tmp_path, backend):
    """A program makes the handler and gives it to its agent: a node comes, a worker fails, all restart, the job is closed."""
    need_rdzv()
    cluster, script, story = etcds(1), tmp_path / "worker.sh", tmp_path / "story"
    script.write_text(WORKER.format(stage=tmp_path))
    options = dict(pair.split("=") for pair in BACKENDS[backend][1].split(","))
    nodes = []

    def node():
        nodes.append(Ours(cluster.endpoint, "job", (1, 2), "", options, backend=backend))
        nodes[-1].hello.good()
        return nodes[-1].begin("run", script=str(script), max_restarts="3")

    try:
        first = node()
        until(lambda: story.exists() and "0 of 1" in story.read_text(), LIMIT, "a world of one")
        answers = [run.good(LIMIT) for run in (node(), first)]
        assert [(a["state"], a["restarts"], a["world_size"]) for a in answers] == 2 * [("SUCCEEDED", 1, 2)]
        assert [a["attempts"] for a in answers] == [2, 3]
        assert story.read_text().splitlines()[0] == "0 of 1, restart 0"
        assert sorted(story.read_text().splitlines()[-2:]) == ["0 of 2, restart 1", "1 of 2, restart 1"]
        assert nodes[0].call("is_closed").good["closed"]  # the handler is still the program's
    finally:
        for made in nodes:
            made.stop()

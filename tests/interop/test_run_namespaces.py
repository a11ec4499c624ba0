"""Real training on two machines: network namespaces with a wire between them, where nothing is shared but files."""

import pytest

import namespaces
from harness import absent
from rdzv_nodes import side_by_side
from run_nodes import QUICK, Training

WORKERS_EACH = 2


@pytest.fixture
def nets():
    reason = namespaces.missing()
    if reason:
        absent(reason)
    nets = namespaces.Namespaces()
    yield nets
    nets.remove()


def launch(job, nets, training, kinds, *options):
    """A node on each machine; which one of them is rank 0 is theirs to decide."""
    meeting = ["--nnodes", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"10.201.0.1:{job.port}", "--rdzv-id", job.run_id,
               "--rdzv-conf", QUICK, *options]
    return [job.inside(nets.inside(which), kind, "--nproc-per-node", WORKERS_EACH, *meeting,
                       "--local-addr", f"10.201.0.{last}", *training.words(),
                       environment={"GLOO_SOCKET_IFNAME": nets.interfaces[which]})
            for last, (which, kind) in enumerate(zip("ab", kinds), 1)]


@side_by_side
@pytest.mark.parametrize("kinds", [("muster", "muster"), ("muster", "stock"), ("stock", "muster")])
def test_a_job_of_two_machines_trains(jobs, nets, which, kinds):
    job = jobs(which)
    training = Training(job.directory / "training")
    for node in launch(job, nets, training, kinds):
        node.good()
    training.whole()
    assert training.worlds() == [2 * WORKERS_EACH]
    assert not job.left()

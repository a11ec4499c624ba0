"""Real training on two machines: network namespaces with a wire between them, where nothing is shared but files."""

import pytest

import namespaces
from harness import NEW, absent
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


def launch(job, nets, training, kinds):
    """A node on each machine. PyTorch's finds out by host names whether it owns the endpoint, so it has to be told."""
    meeting = ["--nnodes", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"10.201.0.1:{job.port}",
               "--rdzv-id", job.run_id]
    hosting = {"a": {"stock": ",is_host=true"}}
    return [job.inside(nets.inside(which), kind, "--nproc-per-node", WORKERS_EACH, *meeting,
                       "--rdzv-conf", QUICK + hosting.get(which, {}).get(kind, ""),
                       "--local-addr", f"10.201.0.{last}", *training.words(),
                       environment={"GLOO_SOCKET_IFNAME": nets.interfaces[which]})
            for last, (which, kind) in enumerate(zip("ab", kinds), 1)]


def train(jobs, nets, which, kinds):
    job = jobs(which)
    training = Training(job.directory / "training")
    for node in launch(job, nets, training, kinds):
        node.good()
    training.whole()
    assert training.worlds() == [2 * WORKERS_EACH]
    assert not job.left()


@side_by_side
def test_a_job_of_two_machines_trains(jobs, nets, which):
    train(jobs, nets, which, ("muster", "muster"))


@pytest.mark.parametrize("kinds", [("muster", "stock"), ("stock", "muster")])
def test_a_machine_with_pytorchs_launcher_trains_with_one_of_ours(jobs, nets, kinds):
    """Each of them resolves and reaches the endpoint by itself."""
    train(jobs, nets, NEW, kinds)

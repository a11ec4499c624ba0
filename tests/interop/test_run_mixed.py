"""One job of two launchers: stock torchrun on one node, `muster run` on the other.

A stock 2.13.0 agent that is rank 0 keeps one worker store for its life and never empties it: whether the workers of a
later round meet in it depends on who looks first, stock alone or not.  Where workers fail here, rank 0 is ours, or the
workers have a store of their own.

2.5 keeps the workers of all rounds in the rendezvous store, whoever is rank 0, under the number of failures that each agent
has counted (docs/PROTOCOL.md).
"""

import base64
import signal
import subprocess

import pytest

from harness import NEW, dialect, program, release
from rdzv_nodes import side_by_side, until
from run_nodes import RUN_LIMIT, Actors, Training

CONF = "join_timeout=60,last_call_timeout=1"
END_LIMIT = 15  # nobody waits for who has ended, or for a store that went with it
BOTH_FAIL = ("--die", "0:1:3", "--die", "1:2:3")


def launch(job, training, kind, number, *further, environment=None):
    """A node with one worker; lower numbers get lower ranks."""
    options = ["--nproc_per_node", 1, "--max_restarts", 5]
    if job.which == "1.13.1":
        meeting = ["--nnodes", 2, "--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{job.port}", "--rdzv_id",
                   job.run_id, "--rdzv_conf", CONF]
        if kind == "muster":
            meeting[-1] += ",dialect=1.13"
        else:
            # Its own defaults of -r and -t are more than it can read with Python 3.11.
            options += ["-r", 1, "-t", 1, "--monitor_interval", 0.1]
    else:
        ours = kind == "muster" and dialect(job.which) != "2.x"
        meeting = job.meeting(2, number, CONF + (f",dialect={dialect(job.which)}" if ours else ""))
    return job.launch(kind, *options, *meeting, *training.words(*further), environment=environment)


def run(job, first, second, *further, environment=None):
    """The first hosts.  Gives what was trained, whole, on both nodes."""
    training = Training(job.directory / "training")
    launch(job, training, *first, *further, environment=environment)
    job.until_hosted()
    launch(job, training, *second, *further, environment=environment)
    until(lambda: any([node.ended() for node in job.nodes]), RUN_LIMIT, "the end of a node")
    for node in job.nodes:
        node.good(END_LIMIT)
    training.whole()
    assert set(training.worlds()) == {2}
    until(lambda: not job.left(), what="no process is left")
    return training


@pytest.mark.parametrize("host", ("stock", "muster"))
@side_by_side
def test_workers_that_fail_on_either_side_restart_both(jobs, which, host):
    if dialect(which) == "2.3":
        pytest.skip("2.3 closes the rendezvous whenever it stops its workers, and nobody can join the next round")
    nodes = [("muster", 1), ("stock", 2)]
    first, second = nodes if host == "muster" else reversed(nodes)
    training = run(jobs(which), first, second, *BOTH_FAIL)
    assert {start["epoch"] for start in training.starts()} == {0, 1, 2}
    assert {start["agent_store"] for start in training.starts()} == {str(release(which) >= (2, 5))}


@side_by_side
def test_ours_ends_when_a_host_of_stock_s_has_ended(jobs, which):
    training = run(jobs(which), ("stock", 2), ("muster", 1))
    assert [start["epoch"] for start in training.starts()] == [0]


def test_rank_0_of_stock_s_serves_ours(jobs):
    training = run(jobs(NEW), ("muster", 2), ("stock", 1))
    assert [start["epoch"] for start in training.starts()] == [0]


def test_rank_0_of_stock_s_restarts_with_stores_of_the_workers(jobs):
    training = run(jobs(NEW), ("stock", 1), ("muster", 2), *BOTH_FAIL,
                   environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
    assert {start["epoch"] for start in training.starts()} == {0, 1, 2}
    assert {start["agent_store"] for start in training.starts()} == {"False"}


@pytest.mark.parametrize("host", ("stock", "muster"))
@side_by_side
def test_a_static_job_of_both_launchers_trains_to_its_end(jobs, which, host):
    """Stock nodes do not register with a rank 0 of ours, and ours register with nobody where rank 0 is stock's.  Nothing tells a
    static node of ours that 1.13 is there, which exchanges ranks by other keys: it has to be said."""
    job = jobs(which)
    training = Training(job.directory / "training")
    kinds = ("muster", "stock", "muster") if host == "muster" else ("stock", "muster", "muster")
    for rank, kind in enumerate(kinds):
        options = ["--nproc_per_node", 1, "--nnodes", 3, "--node_rank", rank, "--master_addr", "127.0.0.1",
                   "--master_port", job.port]
        if which == "1.13.1":
            options += ["--rdzv_conf", "dialect=1.13"] if kind == "muster" else ["-r", 1, "-t", 1]
        job.launch(kind, *options, *training.words())
    for node in job.nodes:
        node.good()
    training.whole()
    assert set(training.worlds()) == {3}
    assert {start["agent_store"] for start in training.starts()} == {"True"}
    until(lambda: not job.left(), what="no process is left")


def waits_in_document(job):
    """Whether the document has two nodes: the one that works, and one without a place."""
    told = subprocess.run([program(), "store", "get", "--endpoint", f"127.0.0.1:{job.port}", f"torch.rendezvous.{job.run_id}"],
                          capture_output=True, check=False, timeout=RUN_LIMIT)
    document = base64.b64decode(told.stdout)
    return all(address in document for address in (b"127.0.0.1", b"127.0.0.2"))


def test_a_surplus_node_of_ours_ends_soon_when_a_host_of_stock_s_is_gone(jobs):
    job = jobs(NEW)
    actors = Actors(job)
    stock = job.launch("stock", *job.meeting(1, 1, CONF), *actors.words)
    worker, = actors.world(1)
    surplus = job.launch("muster", *job.meeting(1, 2, f"{CONF},is_host=false"), *actors.words)
    until(lambda: waits_in_document(job), RUN_LIMIT, "a document with both nodes")
    stock.kill()
    assert surplus.end(END_LIMIT) == 1
    assert "has refused connections for " in surplus.err and "whether the job succeeded is not known" in surplus.err
    worker.signal(signal.SIGKILL)  # stock leaves it behind
    until(lambda: not job.left(), what="no process is left")

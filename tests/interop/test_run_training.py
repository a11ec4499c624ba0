"""Real training under `muster run`: what is lost is made again, once, and nothing else is."""

import os
import re
import signal
import threading

import pytest

from rdzv_nodes import side_by_side, until
from run_nodes import Training

SHAPES = (1, 2)  # nodes, of two workers each
WORKERS_EACH = 2
_undisturbed = {}
_lock = threading.Lock()


def launch(job, training, nodes, *further):
    """The whole job at once; gives its nodes."""
    options = ["--nproc-per-node", WORKERS_EACH, "--max-restarts", 3]
    if nodes == 1:
        return [job.muster(*options, *training.words(*further))]
    return [job.muster(*options, *job.meeting(nodes, number), *training.words(*further))
            for number in range(1, nodes + 1)]


def undisturbed(jobs, which, nodes):
    """The end of a run in which nothing happened, made once."""
    with _lock:
        known = _undisturbed.get((which, nodes))
    if known is None:
        job = jobs(which, f"-plain{nodes}")
        training = Training(job.directory / "training")
        for node in launch(job, training, nodes):
            node.good()
        training.whole()
        assert training.worlds() == [WORKERS_EACH * nodes]
        assert [start["restarts"] for start in training.starts()] == [0]
        assert not job.left()
        known = training.final()
        with _lock:
            _undisturbed[which, nodes] = known
    return known


@pytest.mark.parametrize("nodes", SHAPES)
@side_by_side
def test_a_job_trains_to_its_end(jobs, which, nodes):
    undisturbed(jobs, which, nodes)


@pytest.mark.parametrize("nodes", SHAPES)
@side_by_side
def test_a_worker_killed_mid_epoch_changes_nothing_in_the_weights(jobs, which, nodes):
    expected = undisturbed(jobs, which, nodes)
    job = jobs(which)
    training = Training(job.directory / "training")
    world = WORKERS_EACH * nodes
    for node in launch(job, training, nodes, "--die", f"{world - 1}:1:3"):
        node.good()
    training.whole()
    assert training.worlds() == [world, world]
    assert [(s["epoch"], s["restarts"]) for s in training.starts()] == [(0, 0), (1, 1)]
    assert training.final() == expected
    assert not job.left()


@side_by_side
def test_survivors_of_a_killed_agent_go_on(jobs, which):
    job = jobs(which)
    job.start_store()
    training = Training(job.directory / "training", epochs=6)
    options = ["--nproc-per-node", WORKERS_EACH, "--max-restarts", 3]
    survivor, victim = [
        job.muster(*options, *job.meeting("1:2", number), *training.words("--pace", 0.02, "--hold", 4))
        for number in (1, 2)]
    # A node of no previous round waits out its last call, so both are in from the beginning or soon after.
    training.until("step", epoch=2, step=3, job=job)
    assert training.worlds()[-1] == 2 * WORKERS_EACH
    os.kill(victim.agent(), signal.SIGKILL)
    assert victim.end() != 0
    training.until("hold", epoch=4, world=WORKERS_EACH)
    training.go(4)
    survivor.good()
    training.whole()
    assert training.worlds()[-1] == WORKERS_EACH
    assert not job.left()


@side_by_side
def test_a_node_is_added_and_taken_away_again(jobs, which):
    job = jobs(which)
    training = Training(job.directory / "training", epochs=6)

    def node(number):
        return job.muster("--nproc-per-node", WORKERS_EACH, "--max-restarts", 3, *job.meeting("1:2", number),
                          *training.words("--hold", 2, "--hold", 4))
    first = node(1)
    training.until("hold", epoch=2, world=WORKERS_EACH, job=job)
    second = node(2)
    training.until("hold", epoch=2, world=2 * WORKERS_EACH, job=job)
    training.go(2)
    training.until("hold", epoch=4, world=2 * WORKERS_EACH, job=job)
    second.signal(signal.SIGTERM)
    assert second.end() == 1, second.err
    assert re.search(r"SignalException: Process \d+ got signal: 15$", second.err, re.MULTILINE), second.err
    training.until("hold", epoch=4, world=WORKERS_EACH)
    training.go(4)
    first.good()
    training.whole()
    assert training.worlds() == [2, 4, 2]
    until(lambda: not job.left(), what="no process is left")

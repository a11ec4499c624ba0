"""Jobs in the engine of a muster store whose nodes lose packets, or are cut off: the store and some nodes are in the network
namespace `a`, the others in `b`, and rules of nft between them.
"""

import re
import time

import pytest

import harness
import namespaces
from engine_jobs import LEASE, LIMIT, Job, failure, restarts, without
from rdzv_nodes import until

PATIENT = "keep_alive_interval=2,keep_alive_max_attempt=3"
PATIENT_LEASE = 6   # seconds, with that
SUSPICION = 30      # seconds in which nobody is judged
SLACK = 10          # seconds, for a busy machine
# A quarter of all packets, and at most two in a row: so much is lost in every run, and it comes through after all.
QUARTER = "numgen inc mod 17 { 1, 6, 7, 13 } drop"
HOW = "(: no keep-alive for 2 s|: its connection was closed)?"  # none: it has led


@pytest.fixture
def nets():
    reason = namespaces.missing() or namespaces.missing_nft()
    if reason:
        harness.absent(reason)
    nets = namespaces.Namespaces()
    yield nets
    nets.remove()


@pytest.fixture
def job(nets, tmp_path):
    job = Job(tmp_path / "job", "10.201.0.1", nets.inside("a"))
    yield job
    job.end()


def begin(job, nets, places, *options, **how):
    """A node at each place, the first of which usually leads; and those in `b`."""
    nodes = [job.node(*options, inside=nets.inside(which), **how) for which in places]
    return nodes, [node for node, which in zip(nodes, places) if which == "b"]


@pytest.mark.parametrize("ways", ["ab", "a", "b"])
def test_a_quarter_of_the_packets_lost_is_no_node_lost(job, nets, ways):
    """`ways`: those who lose some of what comes to them."""
    options = ("--nnodes=3", "--max-restarts=1")
    for which in ways:
        nets.lose(which, QUARTER)
    nodes, _ = begin(job, nets, "aba", *options, conf=PATIENT)
    first = job.world(nodes)
    time.sleep(PATIENT_LEASE + 1)
    assert all(worker.alive for worker in first), job.all_said()
    cause = failure(first[1])
    first[1].fail()
    second = job.world(nodes, without=first)
    assert restarts(second) == 1
    job.succeed(nodes, second)
    for node in nodes:
        assert node.why() == [f"{cause}; restarting with 3 nodes, restart 1 of 1"]


@pytest.mark.parametrize("places", ["baa", "aab"])
@pytest.mark.parametrize("deaf", ["a", "b", "ab"])
def test_a_node_that_is_cut_off_is_lost_and_comes_back(job, nets, deaf, places):
    """`deaf`: those who get nothing of what the others send."""
    nodes, (cut,) = begin(job, nets, places, "--nnodes=2:3", "--max-restarts=0")
    left, first, began = without(nodes, [cut]), job.world(nodes), time.monotonic()
    of_cut, = job.of([cut])
    for which in deaf:
        nets.lose(which, "drop")
    second = job.world(left, without=first)
    assert LEASE * 0.4 < time.monotonic() - began < LEASE + SLACK
    cut.said("does not answer")
    assert of_cut.alive or deaf == "a", "it cannot know that it is lost"
    nets.heal()
    third = job.world(nodes, without=[*first, *second])
    assert "the others had gone on without this node; restarting the group" in cut.err
    assert restarts(second) == restarts(third) == 0
    job.succeed(nodes, third)
    for node in left:
        *_, lost, joins = node.why()
        assert re.fullmatch(rf"lost {re.escape(cut.name)}{HOW}; restarting with 2 nodes, no restart charged", lost)
        assert joins == f"{cut.name} joins; restarting with 3 nodes, no restart charged"


def test_a_node_that_is_cut_off_from_the_member_that_hosts_the_store_comes_back(nets, tmp_path):
    """To it the host is lost, and to the others it is: it stops its workers, and waits for the store."""
    job = Job(tmp_path / "job", endpoint="10.201.0.1:29400")  # of the namespace
    try:
        nodes, (cut,) = begin(job, nets, "aab", "--nnodes=2:3", "--max-restarts=0")
        left, first = without(nodes, [cut]), job.world(nodes)
        for which in "ab":
            nets.lose(which, "drop")
        second = job.world(left, without=first)
        cut.said(f"lost {nodes[0].name}: the store that it hosts does not answer; restarting the group")
        until(lambda: not job.of([cut]), what="the end of its worker")
        nets.heal()
        third = job.world(nodes, without=[*first, *second])
        assert restarts(second) == restarts(third) == 0
        job.succeed(nodes, third)
        for node in left:
            *_, lost, joins = node.why()
            assert re.fullmatch(rf"lost {re.escape(cut.name)}{HOW}; restarting with 2 nodes, no restart charged", lost)
            assert joins == f"{cut.name} joins; restarting with 3 nodes, no restart charged"
    finally:
        job.end()


def test_half_of_the_nodes_cut_off_for_a_while_are_not_lost(job, nets):
    """The leader is among them."""
    nodes, cut = begin(job, nets, "bbaa", "--nnodes=4", "--max-restarts=1")
    first, began = job.world(nodes), time.monotonic()
    for which in "ab":
        nets.lose(which, "drop")
    for node in cut:
        node.said("does not answer (ready); the workers run on; trying again")
    time.sleep(max(0, began + 3 * LEASE - time.monotonic()))
    nets.heal()
    for node in cut:
        node.said("the store is back after")
    time.sleep(2 * LEASE)
    assert all(worker.alive for worker in first), job.all_said()
    cause = failure(first[2])
    first[2].fail()
    second = job.world(nodes, without=first)
    job.succeed(nodes, second)
    for node in nodes:
        assert node.why() == [f"{cause}; restarting with 4 nodes, restart 1 of 1"]
        assert "lost" not in node.err


def test_a_leader_that_was_cut_off_with_half_of_the_nodes_goes_on_as_soon_as_it_is_back(job, nets):
    """Its worker fails meanwhile. It gives up the lease, which the store keeps for as long as it suspects the network."""
    nodes, cut = begin(job, nets, "bbaa", "--nnodes=4", "--max-restarts=1")
    first = job.world(nodes)
    failing, = job.of(cut[:1])
    for which in "ab":
        nets.lose(which, "drop")
    failing.fail()
    for node in cut:
        node.said("does not answer")
    nets.heal()
    began = time.monotonic()
    second = job.world(nodes, without=first)
    assert time.monotonic() - began < SLACK
    assert restarts(second) == 1
    job.succeed(nodes, second)
    for node in nodes:
        assert node.why() == [f"{failure(failing)}; restarting with 4 nodes, restart 1 of 1"]


def test_half_of_the_nodes_cut_off_for_longer_are_lost_and_come_back(job, nets):
    nodes, cut = begin(job, nets, "aabb", "--nnodes=2:4", "--max-restarts=0")
    left, first, began = without(nodes, cut), job.world(nodes), time.monotonic()
    for which in "ab":
        nets.lose(which, "drop")
    second = job.world(left, without=first, limit=SUSPICION + LIMIT)
    assert SUSPICION < time.monotonic() - began < SUSPICION + LEASE + SLACK
    assert len(job.of(cut)) == 2, "they cannot know that they are lost"
    nets.heal()
    third = job.world(nodes, without=[*first, *second])
    assert restarts(second) == restarts(third) == 0
    job.succeed(nodes, third)
    names = "|".join(re.escape(node.name) for node in cut)
    for node in left:
        losses = [line for line in node.why() if line.startswith("lost ")]
        assert len(losses) == 1 and all(line.endswith("no restart charged") for line in node.why()), node.why()
        assert re.fullmatch(rf"lost ({names}), (?!\1)({names}){HOW}; restarting with 2 nodes, no restart charged", losses[0])

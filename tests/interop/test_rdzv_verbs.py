"""`muster rdzv` with real PyTorch and a real etcd: closing on every back end, and data that is kept with a round."""

import subprocess

import pytest

import harness
from rdzv_nodes import agree, meet, side_by_side, until

LIMIT = 60
BACKENDS = ("etcd", "etcd-v2", "etcd-v3")
ROOM = ["--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=1"]  # for one more: a node without a place is a spare


def words(cluster, backend):
    return ["--rdzv-id", "job", "--rdzv-backend", backend, "--rdzv-endpoint", cluster.endpoint]


def rdzv(*given, limit=LIMIT):
    return subprocess.run([str(harness.program()), "rdzv", *given], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=limit, check=False)


@pytest.fixture
def members():
    """members(cluster, backend) is a node that joins alone and stays for as long as the test."""
    made = []

    def make(cluster, backend, *more):
        made.append(subprocess.Popen(
            [str(harness.program()), "join", *words(cluster, backend), "--hold", "600", *more],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
        assert made[-1].stdout.readline().startswith("joined"), "the member did not join"
        return made[-1]

    yield make
    for process in made:
        process.terminate()
        process.communicate(timeout=LIMIT)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rendezvous_is_closed_from_outside(etcds, members, backend):
    cluster = etcds()
    missing = rdzv("close", *words(cluster, backend))
    assert missing.returncode == 1 and f"there is no rendezvous 'job' ({backend} at " in missing.stderr
    member = members(cluster, backend, *ROOM)
    closed = rdzv("close", *words(cluster, backend))
    assert closed.returncode == 0 and closed.stdout.startswith("rendezvous 'job' is closed: "), closed
    again = rdzv("close", *words(cluster, backend))
    assert again.returncode == 0 and again.stdout.startswith("rendezvous 'job' was closed before: "), again
    late = subprocess.run([str(harness.program()), "join", *words(cluster, backend), *ROOM], capture_output=True,
                          text=True, timeout=LIMIT, check=False)
    assert late.returncode == 3, late
    assert member.poll() is None


@side_by_side
def test_a_rendezvous_of_pytorch_and_ours_is_closed_from_outside(scenes, which):
    scene = scenes(which)
    nodes = [scene.stock("127.0.0.1"), scene.our("127.0.0.2")]
    agree(nodes, meet(*nodes))
    closed = rdzv("close", "--rdzv-id", scene.run_id, "--rdzv-endpoint", scene.endpoint)
    assert closed.returncode == 0, closed
    assert scene.document()["closed"] is True
    for node in nodes:
        until(lambda node=node: node.call("is_closed").good["closed"], what="the node sees it")
        assert node.call("next").error == "RendezvousClosedError"


def test_data_is_kept_with_a_round(etcds, members):
    cluster = etcds()
    place = words(cluster, "etcd")
    missing = rdzv("set", "colour", "blue", *place)
    assert missing.returncode == 1 and "there is no rendezvous 'job'" in missing.stderr
    members(cluster, "etcd")
    assert rdzv("set", "colour", "blue", *place).returncode == 0
    assert rdzv("set", "size", "7", *place).returncode == 0
    assert rdzv("get", "colour", *place).stdout == "blue"
    assert rdzv("set", "colour", "red", *place).returncode == 0
    assert rdzv("get", "colour", "--round", "1", *place).stdout == "red"
    assert rdzv("get", "size", *place).stdout == "7"
    nothing = rdzv("get", "shape", "--timeout", "1", *place)
    assert nothing.returncode == 1 and "round 1: load extra data 'shape': timed out" in nothing.stderr


def test_data_that_is_not_there_yet_is_waited_for(etcds, members):
    cluster = etcds()
    place = words(cluster, "etcd")
    members(cluster, "etcd")
    waiting = subprocess.Popen([str(harness.program()), "rdzv", "get", "colour", "--timeout", str(LIMIT), *place],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        assert rdzv("set", "colour", "blue", *place).returncode == 0
        assert waiting.communicate(timeout=LIMIT)[0] == "blue"
    finally:
        waiting.kill()
        waiting.wait()

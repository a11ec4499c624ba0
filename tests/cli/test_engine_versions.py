"""The engine of a store and nodes of other versions: frames by hand, on both ends of a real socket."""

import struct

import pytest

from raw import Raw
from serving import Relay
from test_run import end_all
from test_run_engine import ENGINE

HELLO, WELCOME, DONE = 1, 10, 11
OURS = 1             # the version of frames that this muster speaks, and no other
PRECONDITION = 9     # the code of a refusal for good


def text(data):
    return struct.pack("<I", len(data)) + data


def frame(kind, number, fields):
    return struct.pack("<IBBHI", 8 + len(fields), kind, 0, 0, number) + fields


def read_frame(peer):
    """(type, id, fields)"""
    length, kind, _, _, number = struct.unpack("<IBBHI", peer.read(12))
    return kind, number, peer.read(length - 8)


def hello(lowest, highest, run_id=b"job"):
    return frame(HELLO, 7, struct.pack("<II", lowest, highest) + text(run_id) + text(b"node9") + text(b"") + struct.pack("<I", 0))


@pytest.fixture
def peer(serve):
    """A client by hand, whose store has just said that it is an engine; and that store."""
    server = serve()
    with Raw(server) as peer:
        assert peer.exists(b"muster/engine/1")
        yield peer, server


@pytest.mark.parametrize("lowest, highest", [(1, 1), (1, 2), (1, 2**32 - 1)])
def test_the_highest_version_that_both_know_is_spoken(peer, lowest, highest):
    client, _ = peer
    client.say_bytes(hello(lowest, highest))
    kind, number, fields = read_frame(client)
    assert (kind, number, fields[:4]) == (WELCOME, 7, struct.pack("<I", OURS))


@pytest.mark.parametrize("lowest, highest", [(2, 2), (2, 9), (0, 1), (3, 2)])
def test_versions_that_do_not_meet_are_refused_by_number(peer, lowest, highest):
    """To the client, and in the log of the store, which goes on serving others."""
    client, server = peer
    why = f"it speaks versions {lowest} to {highest} of the engine's frames, and this store version {OURS}"
    client.say_bytes(hello(lowest, highest))
    kind, number, fields = read_frame(client)
    assert (kind, number, fields[:4]) == (DONE, 7, struct.pack("<I", PRECONDITION))
    assert fields.endswith(text(why.encode()))
    assert client.is_closed()
    assert client.name in server.log(why)
    with Raw(server) as other:
        assert other.exists(b"muster/engine/1")
        other.say_bytes(hello(1, 1))
        assert read_frame(other)[0] == WELCOME


class Newer(Relay):
    """Between a store and its clients, whose HELLO it makes one of other versions."""

    def __init__(self, port, lowest, highest):
        self._versions = struct.pack("<II", lowest, highest)
        super().__init__(port)

    def heard(self, data):
        return data.replace(struct.pack("<II", OURS, OURS) + text(b"job"), self._versions + text(b"job"))


def test_nodes_of_two_versions_meet_in_the_version_of_the_older_one(scene, serve, imposters):
    server = serve()
    newer = imposters(Newer(server.port, 1, 9))
    agents = [scene.node(endpoint, "--nnodes=2", "--max-restarts=1", conf=ENGINE)
              for endpoint in (server.endpoint, newer.endpoint)]
    first = scene.world(2)
    assert struct.pack("<II", 1, 9) + text(b"job") in newer.said
    first[0].fail()
    end_all(scene.world(2, without=first))
    assert [agent.end() for agent in agents] == [0, 0]


def test_a_node_whose_versions_are_refused_ends_and_names_both(scene, serve, imposters):
    """And it says nothing of a document, where it would be alone."""
    server = serve()
    agent = scene.node(imposters(Newer(server.port, 2, 3)).endpoint, "--nnodes=1:2", conf=ENGINE)
    assert agent.end() == 1
    why = f"it speaks versions 2 to 3 of the engine's frames, and this store version {OURS}"
    assert why in agent.err.splitlines()[-1], agent.err
    assert server.log(why) and len(server.find(why)) == 1
    assert b"torch.rendezvous.job" not in server.call("list").out

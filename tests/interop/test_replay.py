"""Recorded conversations with stock servers, spoken to ours: the same bytes must come back."""

import json
import socket
import struct

import pytest

import harness

LIMIT = 30

RECORDINGS = [
    "tcpstore-1.13.1.jsonl",
    "tcpstore-2.11.0-libuv.jsonl",
    "tcpstore-2.11.0-legacy.jsonl",
    "tcpstore-2.13.0-libuv.jsonl",
    "tcpstore-2.13.0-legacy.jsonl",
]


def load(name):
    """The turns of a recording: (call, connection, direction, bytes).

    A reply that came in pieces is put together again, since pieces mean nothing.
    The legacy servers know no queues and end a connection that asks for one, where ours
    answers; so in their recordings a connection is over with its first queue request.
    """
    with open(harness.FIXTURES / name, encoding="utf-8") as lines:
        head = json.loads(next(lines))
        chunks = [json.loads(line) for line in lines]
    turns, over = [], set()
    for chunk in chunks:
        connection, data = chunk["conn"], bytes.fromhex(chunk["hex"])
        if not head["libuv"] and chunk["op"].startswith("queue"):
            over.add(connection)
        if connection in over:
            continue
        turn = [chunk["op"], connection, chunk["dir"], data]
        if turns and chunk["dir"] == "<" and turns[-1][:3] == turn[:3]:
            turns[-1][3] += data
        else:
            turns.append(turn)
    return turns


def names(data):
    """The reply to LIST_KEYS, whose order is nobody's business."""
    count, at, found = struct.unpack_from("<q", data)[0], 8, []
    while at < len(data):
        size = struct.unpack_from("<Q", data, at)[0]
        found.append(data[at + 8:at + 8 + size])
        at += 8 + size
    assert len(found) == count
    return sorted(found)


class Player:
    """Plays the clients of a recording against a server, in the order of the recording."""

    def __init__(self, port, piece):
        self._port = port
        self._piece = piece
        self._ends = {}
        self._pulse = harness.Pulse(port)

    def _end(self, connection):
        # Connections that never said anything were there too: 1.13 opens two at a time.
        for number in range(1, connection + 1):
            if number not in self._ends:
                end = socket.create_connection(("127.0.0.1", self._port), timeout=LIMIT)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._ends[number] = end
        return self._ends[connection]

    def say(self, connection, data):
        step = self._piece or len(data)
        for at in range(0, len(data), step):
            self._end(connection).sendall(data[at:at + step])
        # What another connection says next must not overtake it.
        self._pulse.beat()

    def hear(self, connection, size):
        data = b""
        while len(data) < size:
            try:
                more = self._end(connection).recv(size - len(data))
            except socket.timeout:
                break
            if not more:
                break
            data += more
        return data

    def silent(self):
        """Nothing more than the recorded replies has been sent to anyone."""
        self._pulse.beat()
        for end in self._ends.values():
            end.setblocking(False)
            try:
                if end.recv(1) is not None:
                    return False
            except BlockingIOError:
                pass
        return True

    def close(self):
        self._pulse.close()
        for end in self._ends.values():
            end.close()


@pytest.mark.parametrize("piece", [None, 1], ids=["as sent", "byte by byte"])
@pytest.mark.parametrize("recording", RECORDINGS)
def test_a_recorded_conversation_gets_the_recorded_bytes(muster, recording, piece):
    player = Player(muster.port, piece)
    try:
        for number, (call, connection, direction, data) in enumerate(load(recording), 1):
            if direction == ">":
                player.say(connection, data)
                continue
            heard = player.hear(connection, len(data))
            where = f"turn {number}, {call}, connection {connection}"
            if "list_keys" in call and len(heard) == len(data):
                assert names(heard) == names(data), where
            else:
                assert heard.hex() == data.hex(), where
        assert player.silent()
    finally:
        player.close()

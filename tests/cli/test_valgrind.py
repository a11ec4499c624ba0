"""The server under valgrind and under load: nothing lost, nothing read that was not written."""

import os
import random
import shutil
import socket

import pytest

from raw import CODES, Raw, number, request, string, strings
from serving import is_sanitized

VALGRIND = ["valgrind", "-q", "--leak-check=full", "--error-exitcode=99",
            "--errors-for-leak-kinds=definite,possible"]
LIMIT = 120
CLIENTS = 300
ROUNDS = 15


def exchange(client, rng, turn):
    """A few requests at once, and their answers."""
    key = b"/key-%d" % rng.randrange(50)
    own = b"/own-%d" % id(client)
    client.say_bytes(
        request(client.dialect, "SET", string(key), string(rng.randbytes(rng.choice((0, 10, 100, 5000))))) +
        request(client.dialect, "ADD", string(own), number(1)) +
        request(client.dialect, "CHECK", strings([own, b"/missing"])) +
        request(client.dialect, "GET", string(own)) +
        request(client.dialect, "COMPARE_SET", string(own), string(b"%d" % (turn + 1)), string(b"%d" % (turn + 1))) +
        request(client.dialect, "NUM_KEYS") +
        request(client.dialect, "WAIT", strings([own, key])))
    assert client.number() == turn + 1
    assert client.byte() == 1
    assert client.bytes() == b"%d" % (turn + 1)
    assert client.bytes() == b"%d" % (turn + 1)
    assert client.number() > 0
    assert client.byte() == 0


def exchange_newer(client, rng):
    """What came with 2.1 and later."""
    queue = b"/queue-%d" % rng.randrange(5)
    if client.dialect == "1.13":
        return
    client.say("WAIT", strings([b"/not-there"]))
    client.say("CANCEL_WAIT")
    assert client.byte() == 1
    client.say("APPEND", string(b"/appended-%d" % rng.randrange(20)), string(b"x" * 50))
    client.say("MULTI_SET", number(2), string(b"/m1"), string(b"1"), string(b"/m2"), string(b""))
    client.say("MULTI_GET", strings([b"/m2", b"/m1"]))
    assert (client.bytes(), client.bytes()) == (b"", b"1")
    if client.dialect != "2.x":
        return
    client.say("PING", b"\1\2\3\4")
    assert client.read(4) == b"\1\2\3\4"
    client.say("QUEUE_PUSH", string(queue), string(b"item"))
    client.say("QUEUE_LEN", string(queue))
    assert client.number() >= 1
    client.say("QUEUE_POP", string(queue))
    assert client.number() >= 1 and client.bytes() == b"item"
    client.say("BARRIER", string(b"/barrier"), number(1))
    assert client.byte() == 0


def leave_badly(client, rng):
    """One of the ways to go that are not nice."""
    way = rng.randrange(6)
    if way == 0:
        client.wait(b"/never", b"/ever")
    elif way == 1:
        client.say_bytes(request(client.dialect, "SET", string(b"/half"), b"\x40\x42"))
    elif way == 2:
        client.say_bytes(b"\xfe" * 20)
        assert client.is_closed()
    elif way == 3:
        client.say_bytes(request(client.dialect, "SET", b"\xff" * 8))
        assert client.is_closed()
    elif way == 4:
        client.say_bytes(request(client.dialect, "GET", string(b"/key-1")) * 20)
    client.drop()


@pytest.mark.skipif(is_sanitized(), reason="ASan and valgrind do not go together")
def test_valgrind_finds_nothing_in_a_server_under_load(serve, absent):
    if shutil.which("valgrind") is None:
        absent("there is no valgrind")
    rng = random.Random(int(os.environ.get("MUSTER_SEED", "7"), 0))
    server = serve(wrap=VALGRIND, limit=LIMIT)
    clients = [Raw(server, list(CODES)[index % 3]) for index in range(CLIENTS)]
    watcher = Raw(server, "1.13")
    watcher.say("WATCH_KEY", string(b"/key-1"))
    waiters = [Raw(server) for _ in range(50)]
    for waiter in waiters:
        waiter.wait(b"/go", b"/key-0")
    for turn in range(ROUNDS):
        for client in clients:
            exchange(client, rng, turn)
        for client in rng.sample(clients, 40):
            exchange_newer(client, rng)
    clients[0].set(b"/go", b"")
    clients[0].set(b"/key-0", b"")
    assert [waiter.byte() for waiter in waiters] == [0] * len(waiters)
    with Raw(server) as client:
        client.say("LIST_KEYS")
        count = client.number()
        assert len({client.bytes() for _ in range(count)}) == count
        for _ in range(20):
            client.say("DELETE_KEY", string(b"/key-%d" % rng.randrange(50)))
            assert client.number() in (0, 1)
    for client in rng.sample(clients, 2 * CLIENTS // 3):
        leave_badly(client, rng)
    for said in (b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"\x00\xce\xf7\x85\x3d"):
        with socket.create_connection((server.host, server.port)) as sock:
            sock.sendall(said)
    with Raw(server) as client:  # still there; the rest of the clients are connected while it ends
        assert client.num_keys() > CLIENTS
        server.stop(limit=LIMIT)
    assert [line for line in server.lines if line.startswith("==")] == []

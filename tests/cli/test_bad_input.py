"""Whatever is said at the port, only that connection suffers, and the log says who said it."""

import resource
import socket
import struct
import time

import pytest

from raw import CODES, VALIDATE, Raw, number, request, string, strings
from serving import is_sanitized, until

TLS_CLIENT_HELLO = (bytes.fromhex("16030100680100006403036a") + bytes(31) +
                    bytes.fromhex("000026c02cc02bc030c02f009f009ec024c023c028c027c00ac009c014c013009d009c003d003c"
                                  "0035002f000a0100001500050005010000000000170000ff01000100"))


@pytest.fixture
def watched(serve):
    """A server with clients of every dialect, and a way to see that they did not notice anything."""
    server = serve()
    server.bystanders = [Raw(server, dialect) for dialect in CODES]
    server.calls = 0

    def are_fine():
        for client in server.bystanders:
            server.calls += 1
            assert client.add(b"/bystanders", 1) == server.calls
        return True

    server.bystanders_are_fine = are_fine
    assert are_fine()
    yield server
    assert are_fine()
    server.stop()


@pytest.mark.parametrize("said, guess", [
    (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
    (b"POST /v1 HTTP/1.1\r\n\r\n", "HTTP"),
    (TLS_CLIENT_HELLO, "TLS"),
    (b"SSH-2.0-OpenSSH_9.2\r\n", ""),
    (b"\xff", ""),
    (b"hello\n", ""),
])
def test_other_protocols_are_closed_and_logged_with_the_address(watched, said, guess):
    with Raw(watched, "1.13") as client:
        client.say_bytes(said)
        assert client.is_closed()
        line = watched.log(f"refused {client.name}: not a store client: the connection opens with byte {said[0]:02x}")
    assert guess in line


@pytest.mark.parametrize("dialect", list(CODES))
@pytest.mark.parametrize("length", [1 << 31, 1 << 32, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_absurd_lengths_and_counts_are_refused_at_once(watched, dialect, length):
    absurd = struct.pack("<Q", length)
    starts = [request(dialect, "SET", absurd), request(dialect, "SET", string(b"/k"), absurd),
              request(dialect, "COMPARE_SET", string(b"/k"), string(b""), absurd), request(dialect, "GET", absurd),
              request(dialect, "CHECK", absurd), request(dialect, "WAIT", absurd),
              request(dialect, "CHECK", number(1), absurd)]
    if dialect != "1.13":
        starts += [request(dialect, "MULTI_GET", absurd), request(dialect, "MULTI_SET", absurd),
                   request(dialect, "APPEND", string(b"/k"), absurd)]
    for start in starts:
        with Raw(watched, dialect) as client:
            client.say_bytes(start)
            assert client.is_closed()
    watched.log("refused", "the limit is")


@pytest.mark.parametrize("dialect, code", [("2.x", 0x13), ("2.x", 0xff), ("2.x", 0x00), ("1.13", 0x0c), ("1.13", 0x41)])
def test_unknown_codes_are_refused(watched, dialect, code):
    with Raw(watched, dialect) as client:
        if dialect == "2.x":
            assert client.num_keys() == 1
        client.say_bytes(bytes([code]) * 16)
        assert client.is_closed()
        watched.log(f"refused {client.name}: ")


@pytest.mark.parametrize("dialect", list(CODES))
def test_a_request_cut_anywhere_stalls_nobody(watched, dialect):
    whole = request(dialect, "COMPARE_SET", string(b"/cut"), string(b""), string(b"v"))
    if dialect == "2.x":
        whole = VALIDATE + whole
    cut = []
    for end in range(1, len(whole)):
        cut.append(Raw(watched, "1.13"))  # says no VALIDATE of its own
        cut[-1].say_bytes(whole[:end])
    assert watched.bystanders_are_fine()
    assert not watched.bystanders[2].exists(b"/cut")
    for client in cut[::2]:
        client.sock.close()  # EOF in the middle of a request
    for client in cut[1:-1:2]:
        client.drop()
    assert watched.bystanders_are_fine()
    last = cut[-1] if len(cut) % 2 == 0 else Raw(watched, "1.13")
    last.say_bytes(whole[-1:] if len(cut) % 2 == 0 else whole)  # the rest comes after all
    assert last.bytes() == b"v"
    assert watched.find("refused") == []


@pytest.mark.parametrize("dialect", list(CODES))
def test_one_byte_at_a_time_is_as_good_as_all_at_once(watched, dialect):
    with Raw(watched, dialect) as client:
        for byte in request(dialect, "ADD", string(b"/slow"), number(7)):
            client.say_bytes(bytes([byte]))
        assert client.number() == 7
        client.say_bytes(request(dialect, "ADD", string(b"/slow"), number(1)) * 1000)
        assert [client.number() for _ in range(1000)] == list(range(8, 1008))


@pytest.mark.parametrize("value, closes", [(b"", True), (b"abc", True), (b"9" * 20, True), (b"12abc", False),
                                           (b" 7", False), (b"9223372036854775807", False)])
def test_add_refuses_what_is_no_number_and_keeps_it(watched, value, closes):
    with Raw(watched) as client:
        client.set(b"/n", value)
        client.say("ADD", string(b"/n"), number(1))
        if closes:
            assert client.is_closed()
            watched.log(f"refused {client.name}: ADD on a value that is not a number")
            assert watched.bystanders[2].get(b"/n") == value
        else:
            expected = {b"12abc": 13, b" 7": 8, b"9223372036854775807": -(1 << 63)}[value]
            assert client.number() == expected


def test_a_client_that_never_reads_holds_up_nobody(watched):
    watched.bystanders[2].set(b"/big", b"v" * (1 << 20))
    assert watched.bystanders[2].exists(b"/big")  # the store has taken it
    with Raw(watched, receive_buffer=4096) as client:
        client.say_bytes(request("2.x", "GET", string(b"/big")) * 50)
        assert watched.bystanders_are_fine()
        assert [len(client.bytes()) for _ in range(50)] == [1 << 20] * 50  # it does in the end, and nothing is lost


def test_the_death_of_a_waiting_client_takes_its_wait_along(watched):
    with Raw(watched) as stays:
        gone = Raw(watched)
        for client in (gone, stays):
            client.wait(b"/news")
        gone.drop()
        watched.bystanders[2].set(b"/news", b"v")
        assert stays.byte() == 0


def test_log_lines_are_rate_limited_and_counted(serve):
    server = serve()
    sent = 0

    def say_bad():
        nonlocal sent
        with Raw(server, "1.13") as client:
            client.say_bytes(b"\xff")
            assert client.is_closed()
        sent += 1

    def accounted_for():
        """How many of them have a line of their own, and how many a line says were held back."""
        counts = server.find("more refusals were not logged")
        return len(server.find("store: refused")), sum(int(line.split("store: ")[1].split()[0]) for line in counts)

    start = time.monotonic()
    while sent < 1000:
        say_bad()

    def all_are_accounted_for():
        if sum(accounted_for()) >= 1000:
            return True
        say_bad()  # the count comes with the next line that may be written
        return bool(server.wait_log("a pause", limit=0.1))

    until(all_are_accounted_for, what="lines that account for all refusals")
    seconds = time.monotonic() - start
    server.stop()
    logged, held_back = accounted_for()
    assert logged < 50 + 5 * seconds
    assert 1000 <= logged + held_back <= sent


@pytest.fixture
def many_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def come_and_go(server, count, batch):
    """Connections of every kind, a batch at a time: silent, served, cut off; closed and reset."""
    said = [b"", VALIDATE + request("2.x", "ADD", string(b"/n"), number(1)), VALIDATE + request("2.x", "SET", b"\x05"),
            VALIDATE + request("2.x", "WAIT", strings([b"/never"])), request("1.13", "ADD", string(b"/n"), number(1))]
    for start in range(0, count, batch):
        crowd = []
        for index in range(start, start + batch):
            sock = socket.create_connection((server.host, server.port))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", index % 2, 0))
            if said[index % 5]:
                sock.sendall(said[index % 5])
            crowd.append(sock)
        with Raw(server) as client:
            assert client.num_keys() <= 1
        for sock in crowd:
            sock.close()


def test_ten_thousand_connections_leave_nothing_behind(serve, many_descriptors):
    server = serve()
    come_and_go(server, 2000, 2000)
    with Raw(server) as client:
        assert client.add(b"/before", 1) == 1
        client.say("DELETE_KEY", string(b"/before"))
        assert client.number() == 1
    before = server.resident_kib()
    come_and_go(server, 10000, 2000)
    with Raw(server) as client:
        assert client.add(b"/after", 1) == 1
    if not is_sanitized():  # ASan keeps freed memory for a while
        assert server.resident_kib() < before + 3 * 1024
    assert server.find("refused") == []


@pytest.mark.parametrize("files", [40, 100])
def test_more_connections_than_open_files_push_out_silent_ones_and_are_logged(serve, files):
    server = serve(wrap=["/bin/sh", "-c", f'ulimit -n {files} && exec "$@"', "sh"])
    first = Raw(server)
    assert first.add(b"/n", 1) == 1
    crowd = [socket.create_connection((server.host, server.port)) for _ in range(200)]
    assert f"leaves room for {files - 24} connections" in server.log("closed the connection of")
    assert first.add(b"/n", 1) == 2
    for sock in crowd:
        sock.close()

    def answers():
        with Raw(server) as client:
            try:
                return client.add(b"/n", 1) > 0
            except ConnectionError:
                return False

    until(answers, what="an answer once there is room")

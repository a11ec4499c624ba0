"""What goes wrong around a store: logs that nobody reads, connections that are refused, peers that hoard."""

import os
import socket
import subprocess
import sys
import threading

import pytest

from raw import Raw
from serving import LIMIT, MUSTER, Imposter, environment, run, until


def pump(source, target):
    """Carries bytes until either end is gone."""
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    finally:
        for sock in (source, target):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def proxy_to(server, refuse):
    """A way to the server that closes some connections unheard: refuse(number) says which; the first has number 1."""
    numbers = iter(range(1, 1000))

    def behave(sock):
        if refuse(next(numbers)):
            sock.close()
            return
        with socket.create_connection((server.host, server.port)) as there:
            threading.Thread(target=pump, args=(there, sock), daemon=True).start()
            pump(sock, there)

    return Imposter(behave)


def test_a_log_that_nobody_reads_stops_nobody():
    """The pipe behind stderr is full after a few lines; the store answers all the same."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    try:
        while True:
            os.write(writable, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writable, True)
    process = subprocess.Popen([MUSTER, "store", "--host", "127.0.0.1", "--port", "0"], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=writable, env=environment())
    try:
        host, _, port = process.stdout.readline().decode().removeprefix("listening on ").strip().rpartition(":")
        for _ in range(50):
            with socket.create_connection((host, int(port)), timeout=LIMIT) as bad:
                bad.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert bad.recv(1) == b""
        answer = run("store", "add", "--endpoint", f"{host}:{port}", "n", "1")
        assert (answer.code, answer.out) == (0, b"1\n")
        process.terminate()
        assert process.wait(LIMIT) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        os.close(readable)
        os.close(writable)


def test_one_refused_connection_does_not_make_a_new_store_an_old_one(serve, imposters):
    server = serve()
    proxy = imposters(proxy_to(server, refuse=lambda number: number == 1))
    listed = run("store", "list", "--endpoint", proxy.endpoint)
    assert (listed.code, listed.out, listed.err) == (0, b"", "")


def test_a_refused_probe_is_not_taken_for_an_answer(serve, imposters):
    server = serve()
    proxy = imposters(proxy_to(server, refuse=lambda number: number == 2))
    listed = run("store", "list", "--endpoint", proxy.endpoint)
    assert listed.code == 1
    assert "could not find out whether the server has it" in listed.line


def test_half_sent_requests_leave_room_for_those_of_others(serve):
    server = serve("--total-bytes", "2M", "--value-bytes", "64K")
    hoarders = [Raw(server) for _ in range(60)]
    for hoarder in hoarders:
        hoarder.sock.sendall(b"\x01" + (2).to_bytes(8, "little") + b"/h" + (60000).to_bytes(8, "little") + b"x" * 50000)
    assert "no room for a request that is still being sent" in server.log("refused")
    with Raw(server) as bystander:
        assert bystander.add(b"/n", 1) == 1
    assert server.call("set", "k", "v" * 1000).code == 0


# ---- More connections than descriptors ----


def limited(count):
    return ("sh", "-c", f'ulimit -n {count}; exec "$0" "$@"')


def newcomer(server):
    """A connection that the server has taken and answered. While nobody is idle it refuses."""
    def come():
        one = Raw(server)
        try:
            return one if one.num_keys() >= 0 else None
        except OSError:
            one.sock.close()
            return None
    return until(come, what="a newcomer's answer")


def test_the_longest_idle_connection_goes_and_those_that_wait_stay(serve):
    server = serve(wrap=limited(40))  # room for 16 connections
    waiters = [newcomer(server) for _ in range(6)]
    for waiter in waiters:
        waiter.wait(b"/k")
    idle = [newcomer(server) for _ in range(10)]
    with newcomer(server) as late:
        assert idle[0].is_closed()
        late.set(b"/k", b"v")
        assert [waiter.byte() for waiter in waiters] == [0] * 6
        assert idle[9].num_keys() == 1


def test_connections_that_say_nothing_make_way_at_once(serve):
    server = serve(wrap=limited(40))
    with Raw(server) as worker:
        assert worker.add(b"/n", 1) == 1
        crowd = [socket.create_connection((server.host, server.port), timeout=LIMIT) for _ in range(100)]
        for _ in range(20):
            answer = server.call("add", "m", "1")
            assert answer.code == 0, answer
        assert worker.add(b"/n", 1) == 2
        assert server.log("closed the connection of 127.0.0.1:", "leaves room for 16 connections")
        for one in crowd:
            one.close()


# ---- Connections from outside ----

OUTSIDERS = """
import socket
socks = []
def come(source):
    sock = socket.socket()
    sock.settimeout(30)
    sock.bind((source, 0))
    sock.connect(("10.99.0.1", %d))
    try:
        sock.sendall(b"\\x06")
        answer = sock.recv(8)
    except ConnectionError:
        answer = b""
    socks.append(sock)
    return len(answer) == 8
print(sum(come("10.99.0.2") for _ in range(20)), sum(come("10.99.0.3") for _ in range(5)), sum(come("10.99.0.1") for _ in range(20)))
"""


@pytest.fixture
def network(absent):
    """What runs a program in a network of its own, whose other addresses stand for other machines."""
    wrap = ("unshare", "-n", "sh", "-c", 'ip link set lo up; for i in 1 2 3; do ip addr add 10.99.0.$i/32 dev lo; done; '
            'exec "$0" "$@"')
    if os.geteuid() != 0 or subprocess.run([*wrap, "true"], capture_output=True, check=False).returncode != 0:
        absent("cannot make a network")
    return wrap


def outsiders(server):
    """How many connections each address got."""
    counts = subprocess.run(["nsenter", f"--net=/proc/{server.pid}/ns/net", sys.executable, "-S", "-c",
                             OUTSIDERS % server.port], capture_output=True, timeout=LIMIT, check=False)
    return counts.stdout.decode().strip() or counts.stderr.decode()


def test_one_address_outside_may_have_so_many_connections_and_this_machine_any(serve, network):
    server = serve("--connections-per-address", "7", "--host", "10.99.0.1", wrap=network)
    assert outsiders(server) == "7 5 20"
    assert server.log("refused 10.99.0.2:", "its address has 7 connections, which is the limit for one address")


def test_one_address_outside_may_have_half_of_all_unless_told_otherwise(serve, network):
    server = serve("--connections", "30", "--host", "10.99.0.1", wrap=network)
    assert outsiders(server) == "15 5 10"

"""What goes wrong around a store: logs that nobody reads, connections that are refused, peers that hoard."""

import os
import socket
import subprocess
import threading

from raw import Raw
from serving import LIMIT, MUSTER, Imposter, environment, run


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

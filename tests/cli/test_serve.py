"""`muster store` as a server: where it listens, whom it serves, how it ends."""

import datetime
import os
import signal
import socket
import subprocess

import pytest

from ports import free_port
from raw import Raw, number, request, string, strings
from serving import MUSTER, Command, environment, run, signals_blocked, until


# ---- Listening

def test_it_prints_one_line_when_it_is_ready(serve):
    server = serve()
    assert server.first_line == f"listening on 127.0.0.1:{server.port}\n" and server.port > 0
    with Raw(server) as client:
        assert client.num_keys() == 0
    server.process.send_signal(signal.SIGTERM)
    assert server.process.stdout.read() == b""


def test_by_default_it_listens_on_every_address_of_both_families(serve):
    server = serve(everywhere=True)
    assert server.address == f"[::]:{server.port}"
    for host in ("127.0.0.1", "[::1]"):
        assert run("store", "num-keys", "--endpoint", f"{host}:{server.port}").out == b"0\n"


def test_an_ipv6_address_is_for_ipv6_only(serve):
    server = serve("--host", "::", "--port", str(free_port()))  # which nobody has at 127.0.0.1 either
    assert run("store", "num-keys", "--endpoint", f"[::1]:{server.port}").code == 0
    with pytest.raises(ConnectionRefusedError):
        Raw(server)  # at 127.0.0.1


def test_the_default_port_is_29500():
    with socket.socket() as holder:  # whoever has it, a second one cannot
        try:
            holder.bind(("127.0.0.1", 29500))
            holder.listen()
        except OSError:
            pass
        ended = run("store", "--host", "127.0.0.1")
    assert ended.code == 1
    assert ended.line == "muster store: cannot listen on 127.0.0.1, port 29500: Address already in use"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_it_listens_on_a_given_host(serve, host):
    server = serve("--host", host)
    assert server.address.startswith(("127.0.0.1:", "[::1]:"))
    assert server.call("add", "k", "1").out == b"1\n"


def test_a_port_in_use_is_named(serve):
    server = serve()
    ended = run("store", "--host", "127.0.0.1", "--port", str(server.port))
    assert (ended.code, ended.out) == (1, b"")
    assert ended.line == f"muster store: cannot listen on 127.0.0.1, port {server.port}: Address already in use"
    assert server.call("num-keys").code == 0


def test_a_port_in_use_is_named_on_every_address_too(serve):
    server = serve(everywhere=True)
    ended = run("store", "--port", str(server.port))
    assert ended.code == 1
    assert f"cannot listen on port {server.port}: Address already in use" in ended.line


def test_an_address_of_another_machine_is_refused():
    ended = run("store", "--host", "192.0.2.1", "--port", "0")
    assert (ended.code, ended.out) == (1, b"")
    assert ended.line == "muster store: cannot listen on 192.0.2.1, port 0: Cannot assign requested address"


@pytest.mark.parametrize("host", ["no-such-host.invalid", "300.1.1.1", ""])
def test_a_host_that_does_not_resolve_is_named(host):
    ended = run("store", "--host", host, "--port", "0")
    assert (ended.code, ended.out) == (1, b"")
    assert ended.line.startswith(f"muster store: cannot listen on {host}, port 0: cannot resolve '{host}': ")


# ---- --listen-fd

def test_it_adopts_a_bound_socket(serve):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        server = serve("--listen-fd", str(bound.fileno()), pass_fds=[bound.fileno()])
    assert server.port == port
    assert server.call("add", "k", "5").out == b"5\n"


def test_it_adopts_a_socket_that_listens_already(serve):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        with socket.create_connection(listening.getsockname()[:2]) as early:  # before there is a server
            early.sendall(request("1.13", "ADD", string(b"/k"), number(2)))
            server = serve("--listen-fd", str(listening.fileno()), "--port", str(listening.getsockname()[1]),
                           pass_fds=[listening.fileno()])
            early.settimeout(30)
            assert early.recv(8) == number(2)
    assert server.call("get", "k").out == b"2"


def adopt(fd, *words):
    return run("store", "--listen-fd", str(fd), *words, pass_fds=[fd] if fd < 1000 else [])


def test_a_socket_with_another_port_than_asked_for_is_refused():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        ended = adopt(bound.fileno(), "--port", str(port - 1))
    assert ended.code == 1 and f"is bound to port {port}, not to {port - 1}" in ended.line


def test_descriptors_that_are_no_bound_tcp_socket_are_refused():
    with socket.socket() as unbound:
        assert "is not bound to a port" in adopt(unbound.fileno()).line
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        assert "is not a TCP socket" in adopt(udp.fileno()).line
    with socket.socket(socket.AF_UNIX) as local:
        assert "is not a TCP socket" in adopt(local.fileno()).line
    reader, writer = os.pipe()
    assert "Socket operation on non-socket" in adopt(reader).line
    os.close(reader)
    os.close(writer)
    ended = adopt(12345)
    assert (ended.code, ended.line) == (1, "muster store: cannot listen on descriptor 12345: Bad file descriptor")


# ---- Standard output

def test_a_full_standard_output_ends_it():
    with open("/dev/full", "wb") as full:
        ended = run("store", "--host", "127.0.0.1", "--port", "0", stdout=full)
    assert (ended.code, ended.line) == (1, "muster store: cannot write to standard output: No space left on device")


def test_a_closed_standard_output_ends_it():
    shell = subprocess.run(["/bin/sh", "-c", f"exec '{MUSTER}' store --host 127.0.0.1 --port 0 >&-"],
                           stderr=subprocess.PIPE, timeout=30, env=environment(), check=False)
    assert shell.returncode == 1
    assert shell.stderr == b"muster store: cannot write to standard output: Bad file descriptor\n"


def test_without_any_standard_descriptor_it_still_keeps_them_apart_from_its_sockets(serve):
    shell = subprocess.run(["/bin/sh", "-c", f"exec '{MUSTER}' store --host 127.0.0.1 --port 0 <&- >&- 2>&-"],
                           timeout=30, env=environment(), check=False)
    assert shell.returncode == 1
    server = serve()
    shell = subprocess.run(
        ["/bin/sh", "-c", f"exec '{MUSTER}' store set --endpoint {server.endpoint} k v <&- >&- 2>&-"], timeout=30,
        env=environment(), check=False)
    assert shell.returncode == 0 and server.call("get", "k").out == b"v"


# ---- Ending

def test_a_signal_ends_it_though_all_were_blocked(serve):
    with signals_blocked():
        server = serve()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=20) == 0


def test_a_signal_ends_a_command_though_all_were_blocked(serve):
    endpoint = serve().endpoint
    with signals_blocked():
        waiting = Command("store", "wait", "--endpoint", endpoint, "--timeout", "60", "never")
    waiting.process.send_signal(signal.SIGTERM)
    assert waiting.end(20).code == -signal.SIGTERM


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_whatever_clients_are_doing(serve, signum):
    server = serve()
    clients = [Raw(server, dialect) for dialect in ("1.13", "2.1", "2.x") for _ in range(5)]
    for client in clients:
        client.set(b"/k", b"v")
        assert client.num_keys() == 1
    clients[1].wait(b"/never")
    clients[2].say_bytes(request("1.13", "SET", string(b"/half"))[:-2])
    clients[3].say("WATCH_KEY", string(b"/k"))
    assert server.stop(signum) == 0
    assert all(client.is_closed() for client in clients)
    assert server.lines == []


def test_the_port_is_free_again_at_once(serve):
    server = serve()
    with Raw(server) as client:
        client.set(b"/k", b"v")
        assert client.num_keys() == 1
        server.stop()
    again = serve("--port", str(server.port))
    assert again.port == server.port and again.call("num-keys").out == b"0\n"


# ---- --allow

def test_allow_refuses_others_and_names_them(serve):
    server = serve("--allow", "192.0.2.0/24", "--allow", "fd00:1234::/32")
    with Raw(server) as client:
        name = client.name
        assert client.is_closed()
    assert "its address is in none of the allowed networks" in server.log(f"refused {name}")


@pytest.mark.parametrize("networks", [["127.0.0.0/8"], ["127.0.0.1"], ["192.0.2.0/24", "127.0.0.1/32"], ["0.0.0.0/0"],
                                      ["::/0"]])
def test_allow_lets_its_networks_in(serve, networks):
    server = serve(*[word for network in networks for word in ("--allow", network)])
    assert server.call("add", "k", "1").out == b"1\n" and server.lines == []


def test_allow_tells_ipv4_from_ipv6_on_one_socket(serve):
    server = serve("--allow", "::1", everywhere=True)
    assert run("store", "num-keys", "--endpoint", f"[::1]:{server.port}").code == 0
    with Raw(server) as client:
        assert client.is_closed()
        server.log(f"refused {client.name}")


# ---- Limits

def assert_refused(server, client, *said):
    assert client.is_closed()
    line = server.log(f"refused {client.name}: ", *said)
    assert line.endswith("; its connection is closed") and " warning: store: " in line
    with Raw(server) as other:
        assert other.num_keys() >= 0


@pytest.mark.parametrize("dialect", ["1.13", "2.1", "2.x"])
def test_key_bytes_limits_keys(serve, dialect):
    server = serve("--key-bytes", "16")
    with Raw(server, dialect) as client:
        client.set(b"k" * 16, b"v")
        assert client.num_keys() == 1
        client.say_bytes(request(dialect, "SET", string(b"k" * 17)))  # refused before the value is sent
        assert_refused(server, client, "SET with a key of 17 bytes; the limit is 16")


@pytest.mark.parametrize("dialect", ["1.13", "2.1", "2.x"])
def test_value_bytes_limits_values(serve, dialect):
    server = serve("--value-bytes", "1K")
    with Raw(server, dialect) as client:
        client.set(b"k", b"v" * 1024)
        assert client.get(b"k") == b"v" * 1024
        client.set(b"k", b"v" * 1025)
        assert_refused(server, client, "SET with a value of 1025 bytes; the limit is 1024")


def test_value_bytes_limits_what_append_makes(serve):
    server = serve("--value-bytes", "1K")
    with Raw(server) as client:
        client.set(b"k", b"v" * 1000)
        client.say("APPEND", string(b"k"), string(b"w" * 25))
        assert_refused(server, client, "APPEND would make a value of 1025 bytes; the limit is 1024")
    with Raw(server) as client:
        assert client.get(b"k") == b"v" * 1000


@pytest.mark.parametrize("name", ["CHECK", "WAIT", "MULTI_GET"])
def test_keys_limits_the_keys_of_one_request(serve, name):
    server = serve("--keys", "4")
    with Raw(server) as client:
        client.set(b"k", b"v")
        client.say("CHECK", strings([b"k"] * 4))
        assert client.byte() == 0
        client.say(name, strings([b"k"] * 5))
        assert_refused(server, client, f"{name} with 5 keys; the limit is 4")


def test_request_bytes_limits_a_whole_request(serve):
    server = serve("--request-bytes", "20K")
    pairs = number(3) + b"".join(string(b"k%d" % i) + string(b"v" * 8000) for i in range(3))
    with Raw(server) as client:
        client.say("MULTI_SET", number(1), string(b"k"), string(b"v" * 8000))
        assert client.num_keys() == 1
        client.say("MULTI_SET", pairs)
        assert_refused(server, client, "MULTI_SET of more than 20480 bytes, which is the limit of a request")


def test_unsent_bytes_drops_a_client_that_never_reads(serve):
    server = serve("--unsent-bytes", "1M")
    with Raw(server, receive_buffer=4096) as client, Raw(server) as other:
        other.set(b"k", b"v" * (1 << 20))
        assert other.num_keys() == 1
        try:
            for _ in range(200):
                client.say("GET", string(b"k"))
        except ConnectionError:
            pass
        server.log(f"refused {client.name}: it does not read its replies:", "the limit is 1048576")
        assert other.get(b"k") == b"v" * (1 << 20)


def test_connections_limits_how_many_come(serve):
    server = serve("--connections", "3")
    clients = [Raw(server) for _ in range(3)]
    assert [client.num_keys() for client in clients] == [0, 0, 0]
    with Raw(server) as fourth:
        assert fourth.is_closed()
        server.log(f"refused {fourth.name}: 3 connections are open, which is the limit")
    assert [client.num_keys() for client in clients] == [0, 0, 0]
    clients[0].sock.close()

    def there_is_room():
        with Raw(server) as client:
            try:
                return client.num_keys() == 0
            except ConnectionError:
                return False

    until(there_is_room, what="room for another connection")


def fill(client, name):
    """Writes until the server has enough of this client."""
    try:
        for i in range(300):
            client.set(b"%s-%d" % (name, i), b"v" * 8192)
    except ConnectionError:
        pass
    assert client.is_closed()


def test_one_client_may_have_a_quarter_of_total_bytes(serve):
    server = serve("--total-bytes", "1M")
    with Raw(server) as greedy, Raw(server) as modest:
        fill(greedy, b"key")
        server.log(f"refused {greedy.name}: no room for ", "the limit for one connection is 262144, a quarter of all")
        assert 24 <= modest.num_keys() < 32
        modest.set(b"mine", b"v" * 8192)
        assert modest.get(b"mine") == b"v" * 8192


def test_total_bytes_limits_all_together(serve):
    server = serve("--total-bytes", "1M")
    for name in (b"a", b"b", b"c", b"d", b"e"):
        with Raw(server) as client:
            fill(client, name)
    server.log("no room for ", "of 1048576 bytes are in use")  # a quarter is set aside for the engine
    with Raw(server) as client:
        keys = client.num_keys()
        assert 72 <= keys < 96 and client.get(b"a-0") == b"v" * 8192
        client.say("DELETE_KEY", string(b"a-0"))
        assert client.number() == 1
        client.set(b"small", b"v")  # there is room again
        assert client.num_keys() == keys


def test_total_bytes_limits_half_sent_requests_too(serve):
    server = serve("--total-bytes", "1M")
    with Raw(server) as client:
        try:
            client.say_bytes(request("2.x", "SET", string(b"k"), (4 << 20).to_bytes(8, "little")) + b"v" * (2 << 20))
        except ConnectionError:
            pass
        assert client.is_closed()
        server.log(f"refused {client.name}: no room for a request that is still being sent:")
    with Raw(server) as client:
        assert client.num_keys() == 0


def test_a_raised_value_limit_raises_those_around_it(serve):
    server = serve("--value-bytes", "256M")
    value = os.urandom(1 << 20) * 150  # over the defaults of a value and of a request
    assert server.call("set", "big", "-", stdin=value).code == 0
    assert server.call("get", "big").out == value


# ---- Dialects and log

def test_dialects_share_keys_on_one_port(serve):
    server = serve()
    clients = {dialect: Raw(server, dialect) for dialect in ("1.13", "2.1", "2.x")}
    for expected, client in enumerate(clients.values(), 1):
        assert client.add(b"/count", 1) == expected
    for dialect, client in clients.items():
        client.wait(f"/from-{dialect}".encode())
    for dialect in clients:
        assert server.call("set", f"from-{dialect}", dialect).code == 0
        assert clients[dialect].byte() == 0 and clients[dialect].get(f"/from-{dialect}".encode()) == dialect.encode()


@pytest.mark.parametrize("dialect, reply", [("1.13", b"\x03"), ("2.1", number(1))])
def test_dialect_settles_what_an_old_client_means(serve, dialect, reply):
    server = serve("--dialect", dialect)
    assert server.call("set", "k", "v").code == 0
    with Raw(server, dialect) as client:
        client.say_bytes(b"\x07" + string(b"/k"))  # WATCH_KEY in 1.13, DELETE_KEY in 2.1
        assert client.read(len(reply)) == reply


@pytest.mark.parametrize("level, lines", [("debug", 1), ("info", 1), ("notice", 1), ("warning", 1), ("error", 0)])
def test_log_level_decides_what_is_written(serve, level, lines):
    server = serve("--log-level", level)
    with Raw(server, "1.13") as client:
        client.say_bytes(b"\xff")
        assert client.is_closed()
    server.stop()
    assert len(server.find("refused")) == lines


def test_a_log_line_has_time_host_process_level_and_subject(serve):
    server = serve()
    with Raw(server, "1.13") as client:
        client.say_bytes(b"\xff")
        assert client.is_closed()
        stamp, host, process, level, text = server.log("refused").split(" ", 4)
        assert text.startswith(f"store: refused {client.name}: not a store client")
    assert (host, process, level) == (socket.gethostname(), f"muster[{server.process.pid}]", "warning:")
    assert datetime.datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%S.%fZ")

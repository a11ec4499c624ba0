"""Our client, by command line and by library, on the servers of stock PyTorch."""

import ast
import os
import socket
import subprocess

import pytest

import harness
from harness import NEW, absent, need_program

LIMIT = 60

STOCK = {
    "1.13.1": ("1.13.1", {}),
    f"{NEW} libuv": (NEW, {"use_libuv": True}),
    f"{NEW} legacy": (NEW, {"use_libuv": False}),
}


class Server:
    """A stock server, a stock client of it called "a", and our command line aimed at it."""

    def __init__(self, host, client, name):
        self.name = name
        self.modern = not name.startswith("1.")
        self.port = host.host(**STOCK[name][1])
        self.client = client
        client.open("a", self.port)

    def command(self, *words, timeout="20"):
        operation, *rest = words
        return [str(harness.program()), "store", operation, "--endpoint",
                f"127.0.0.1:{self.port}", "--timeout", timeout, *rest]

    def run(self, *words, timeout="20"):
        """What a command printed; it must succeed and say nothing else."""
        done = subprocess.run(self.command(*words, timeout=timeout), capture_output=True,
                              timeout=LIMIT, stdin=subprocess.DEVNULL)
        assert (done.returncode, done.stderr) == (0, b""), (words, done)
        return done.stdout

    def refuse(self, *words, timeout="20"):
        """The one line with which a command must fail."""
        done = subprocess.run(self.command(*words, timeout=timeout), capture_output=True,
                              timeout=LIMIT, stdin=subprocess.DEVNULL, text=True)
        assert done.returncode == 1, (words, done)
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1 and done.stderr.endswith("\n"), done.stderr
        return done.stderr

    def begin(self, *words, timeout="60"):
        return subprocess.Popen(self.command(*words, timeout=timeout), stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)


@pytest.fixture(params=STOCK)
def server(torch, request):
    need_program()
    which = STOCK[request.param][0]
    return Server(torch(which), torch(which), request.param)


def test_values_written_by_the_command_line_are_read_by_python_and_back(server):
    server.run("set", "k", "from the shell")
    assert server.client.call("a", "get", "k") == "b'from the shell'"
    server.client.call("a", "set", "k", "from Python")
    assert server.client.call("a", "get", "k") == "b'from Python'"
    assert server.run("get", "k") == b"from Python"
    server.run("set", "none", "")
    assert server.client.call("a", "get", "none") == "b''"
    assert server.run("get", "none") == b""
    server.client.call("a", "set", "bytes", {"bytes": "00ff0a0080"})
    assert server.run("get", "--wait", "bytes") == b"\0\xff\n\0\x80"


def test_counting_goes_on_between_the_command_line_and_python(server):
    assert server.run("add", "n", "5") == b"5\n"
    assert server.client.call("a", "add", "n", -7) == "-2"
    assert server.run("add", "n", "-1") == b"-3\n"
    assert server.run("get", "n") == b"-3"
    assert server.run("num-keys") == b"1\n"
    assert server.client.call("a", "num_keys") == "1"


def test_deleting_removes_a_key_for_python_too(server):
    server.client.call("a", "set", "k", "v")
    assert server.client.call("a", "num_keys") == "1"
    server.run("delete", "k")
    assert server.client.call("a", "num_keys") == "0"
    assert "'k'" in server.refuse("delete", "k")


def test_waiting_ends_at_once_when_every_key_is_there(server):
    server.client.call("a", "set", "one", "1")
    server.client.call("a", "set", "two", "2")
    assert server.client.call("a", "num_keys") == "2"
    server.run("wait", "one", "two")


def test_waiting_ends_when_python_writes_the_last_key(server, proxies):
    proxy = proxies(server.port)
    behind, server.port = server.port, proxy.port
    waiting = server.begin("wait", "one", "two")
    try:
        proxy.await_request(lambda requests: any(name == "WAIT" for _, name, _ in requests))
        server.port = behind
        server.client.call("a", "set", "one", "1")
        server.client.call("a", "set", "two", "2")
        output, errors = waiting.communicate(timeout=LIMIT)
    finally:
        if waiting.poll() is None:
            waiting.kill()
            waiting.wait(timeout=20)
    assert (waiting.returncode, errors) == (0, b"")


@pytest.mark.parametrize("words", [("wait", "never"), ("get", "--wait", "never")])
def test_waiting_fails_with_one_line_when_time_is_up(server, words):
    assert "never" in server.refuse(*words, timeout="0.5")
    assert server.client.call("a", "num_keys") == "0"


def test_getting_a_key_that_is_not_there_fails_at_once(server):
    assert "'never'" in server.refuse("get", "never")


def test_listing_shows_what_python_lists_or_says_that_the_server_cannot(server):
    """Servers before 2.10 know no such request and would only hang up on it."""
    for key in ("plain", "with/slash", "with space"):
        server.client.call("a", "set", key, "1")
    server.client.call("a", "add", "count", 1)
    if not server.modern:
        assert "list" in server.refuse("list").lower()
        return
    listed = server.run("list").decode().splitlines()
    assert sorted(listed) == sorted(ast.literal_eval(server.client.call("a", "list_keys")))
    assert len(listed) == 4


def test_a_barrier_of_the_command_line_meets_others_that_are_built_the_same_way(server):
    """Python's prefix stores have such barriers, and in 1.13 users make them by hand.

    All count in one key and let the last one write another.
    """
    server.client.prefix("p", "pre", "a")
    if server.modern:
        arrived = server.client.begin("p", "barrier", "gate", 2)
    else:
        assert server.client.call("p", "add", "gate/num_members", 1) == "1"
        arrived = server.client.begin("p", "wait", ["gate/last_member"])
    server.run("barrier", "--prefix", "pre", "gate", "2")
    assert arrived.result() == "None"


def test_looking_into_a_store_leaves_its_clients_undisturbed(server):
    """Finding out what the server speaks must neither stall it nor leave anything behind."""
    waiting = server.client.begin("a", "get", "later")
    for _ in range(3):
        server.run("num-keys")
    assert server.run("num-keys") == b"0\n"
    server.run("set", "later", "now")
    assert waiting.result() == "b'now'"
    assert server.client.call("a", "num_keys") == "1"


def test_a_refused_request_is_one_clear_line(server):
    server.client.call("a", "set", "text", "abc")
    assert server.client.call("a", "num_keys") == "1"
    server.refuse("add", "text", "1")
    assert server.client.call("a", "get", "text") == "b'abc'"


def test_a_port_where_nobody_listens_is_named_in_one_line():
    """The port is held, without listening, so that nobody else can start to."""
    need_program()
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{held.getsockname()[1]}"
        done = subprocess.run(
            [str(harness.program()), "store", "num-keys", "--endpoint", endpoint,
             "--timeout", "1"], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and endpoint.split(":")[1] in done.stderr


def test_every_call_of_the_library_works(server):
    """The C program makes each call of the client and knows what must come back."""
    program = harness.client_program()
    if not program.exists():
        absent(f"there is no {program} to run")
    done = subprocess.run([str(program), "127.0.0.1", str(server.port)], capture_output=True,
                          text=True, timeout=2 * LIMIT, env=dict(os.environ))
    print(done.stdout)
    print(done.stderr)
    assert done.returncode == 0
    assert "not ok" not in done.stdout
    assert "1.." in done.stdout

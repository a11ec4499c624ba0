"""`muster store get|set|...`: each command's results, and how they fail."""

import os
import pty
import signal
import socket

import pytest

from raw import Raw, strings
from serving import LIMIT, Command, Imposter, Relay, run, until


# ---- get and set

def test_set_and_get_round_trip_byte_for_byte(serve):
    server = serve()
    ended = server.call("set", "k", "v\n with spaces ")
    assert (ended.code, ended.out, ended.err) == (0, b"", "")
    ended = server.call("get", "k")
    assert (ended.code, ended.out, ended.err) == (0, b"v\n with spaces ", "")


def test_binary_values_pass_through_stdin_and_stdout(serve):
    server = serve()
    value = bytes(range(256)) * 1000 + b"\0\n"
    assert server.call("set", "k", "-", stdin=value).code == 0
    assert server.call("get", "k").out == value


def test_an_empty_value_exists(serve):
    server = serve()
    for words, stdin in ((["a", ""], b""), (["b", "-"], b"")):
        assert server.call("set", *words, stdin=stdin).code == 0
        ended = server.call("get", words[0])
        assert (ended.code, ended.out, ended.err) == (0, b"", "")


def test_a_value_that_begins_with_a_dash_stands_behind_two(serve):
    server = serve()
    assert server.call("set", "--", "k", "--wait").code == 0
    assert server.call("get", "k").out == b"--wait"


def test_the_key_has_the_slash_that_pytorch_clients_put_there(serve):
    server = serve()
    assert server.call("set", "k", "v").code == 0
    with Raw(server) as client:
        assert client.get(b"/k") == b"v"


def test_raw_keys_are_sent_as_given(serve):
    server = serve()
    with Raw(server) as client:
        assert client.add(b"init/", 3) == 3
    assert server.call("get", "init/").code == 1
    assert server.call("get", "--raw", "init/").out == b"3"
    assert server.call("set", "--raw", "bare", "v").code == 0
    with Raw(server) as client:
        assert client.get(b"bare") == b"v"


def test_prefix_is_a_prefix_store(serve):
    server = serve()
    assert server.call("set", "--prefix", "job/1", "k", "v").code == 0
    assert server.call("get", "job/1/k").out == b"v"
    assert server.call("get", "--prefix", "job/1", "k").out == b"v"
    assert server.call("get", "--prefix", "job", "1/k").out == b"v"
    assert server.call("set", "--prefix", "", "k", "w").code == 0
    with Raw(server) as client:
        assert client.get(b"//k") == b"w"
    assert server.call("list", "--prefix", "job").out == b"1/k\n"
    assert server.call("list", "--prefix", "/job", "--raw").out == b"1/k\n"
    assert server.call("num-keys", "--prefix", "job").out == b"2\n"  # of all, as PyTorch's
    assert server.call("delete", "--prefix", "job/1", "k").code == 0
    assert server.call("barrier", "--prefix", "job", "b", "1").code == 0
    assert server.call("list").out == b"/k\njob/b/last_member\njob/b/num_members\n"


@pytest.mark.parametrize("dialect", ["auto", "1.13", "2.1", "2.x"])
def test_every_dialect_can_be_asked_for(serve, dialect):
    server = serve()
    how = ["--dialect", dialect]
    assert server.call("set", *how, "k", "v").code == 0
    assert server.call("get", *how, "k").out == b"v"
    assert server.call("add", *how, "n", "2").out == b"2\n"
    assert server.call("wait", *how, "k", "n").code == 0
    assert server.call("num-keys", *how).out == b"2\n"
    assert server.call("barrier", *how, "b", "1").code == 0
    assert server.call("delete", *how, "k").code == 0
    assert "no such key: 'k'" in server.call("get", *how, "k").line
    assert "no such key: 'k'" in server.call("delete", *how, "k").line
    assert "missing: 'k'" in server.call("wait", *how, "--timeout", "1", "k", "n").line
    listed = server.call("list", *how)
    if dialect in ("1.13", "2.1"):
        assert listed.code == 1
        assert listed.line == (f"muster store list: list_keys at {server.endpoint}: "
                               f"the server (dialect {dialect}) does not have it")
    else:
        assert listed.out == b"b/last_member\nb/num_members\nn\n"


def test_get_of_a_missing_key_fails_at_once(serve):
    server = serve()
    ended = server.call("get", "--timeout", "600", "nobody/set\x01this")
    assert (ended.code, ended.out) == (1, b"")
    assert ended.line == "muster store get: no such key: 'nobody/set\\x01this'"


def test_get_with_wait_waits(serve):
    server = serve()
    relay = Relay(server.port)
    command = Command("store", "get", "--endpoint", relay.endpoint, "--wait", "--timeout", str(LIMIT), "late")
    until(lambda: strings([b"/late"]) in relay.said, what="the WAIT")
    assert server.call("set", "late", "at last").code == 0
    ended = command.end()
    relay.stop()
    assert (ended.code, ended.out) == (0, b"at last")


def test_get_with_wait_gives_up_in_the_end(serve):
    server = serve()
    ended = server.call("get", "--wait", "--timeout", "1.05", "never")
    assert (ended.code, ended.out) == (1, b"")
    assert ended.line == f"muster store get: get 'never' at {server.endpoint}: timed out after 1050 ms"


def read_terminal(primary):
    shown = b""
    while True:
        try:
            more = os.read(primary, 1024)
        except OSError:  # the other side is closed
            return shown
        if not more:
            return shown
        shown += more


def test_a_terminal_gets_a_line_end(serve):
    server = serve()
    assert server.call("set", "k", "value").code == 0
    primary, secondary = pty.openpty()
    ended = server.call("get", "k", stdout=secondary)
    os.close(secondary)
    assert ended.code == 0 and read_terminal(primary) == b"value\r\n"
    os.close(primary)


def test_a_set_that_the_server_refuses_is_an_error(serve):
    server = serve("--value-bytes", "1K", "--key-bytes", "100")
    assert server.call("set", "k", "v" * 1024).code == 0
    for words, stdin in ((["k", "v" * 1025], b""), (["k", "-"], b"v" * (8 << 20)), (["k" * 100, "v"], b"")):
        ended = server.call("set", *words, stdin=stdin)
        assert ended.code == 1
        assert ended.line.startswith("muster store set: ") and f" at {server.endpoint}: " in ended.line
        assert ended.line.endswith("a store does that when it refuses a request (key or value over its limits, or no "
                                   "room left)")
    assert server.call("get", "k").out == b"v" * 1024


def test_input_that_cannot_be_read_is_an_error(serve, tmp_path):
    server = serve()
    folder = os.open(tmp_path, os.O_RDONLY)
    ended = server.call("set", "k", "-", stdin=folder)
    os.close(folder)
    assert (ended.code, ended.line) == (1, "muster store set: cannot read standard input: Is a directory")
    assert server.call("num-keys").out == b"0\n"


def test_input_without_end_is_not_read_for_ever():
    with open("/dev/zero", "rb") as zeroes:
        ended = run("store", "set", "--endpoint", "127.0.0.1:1", "k", "-", stdin=zeroes)
    assert ended.code == 1
    assert ended.line == "muster store set: cannot take the value from standard input: it is over 1 GiB"


def test_a_result_that_cannot_be_written_is_an_error(serve):
    server = serve()
    assert server.call("set", "k", "v").code == 0
    for command, words in (("get", ["k"]), ("add", ["n", "1"]), ("list", []), ("num-keys", [])):
        with open("/dev/full", "wb") as full:
            ended = server.call(command, *words, stdout=full)
        assert ended.code == 1
        assert ended.line == f"muster store {command}: cannot write to standard output: No space left on device"


# ---- add

def test_add_prints_the_sum(serve):
    server = serve()
    for delta, total in (("5", 5), ("-7", -2), ("+4", 2), ("0", 2)):
        ended = server.call("add", "n", delta)
        assert (ended.code, ended.out, ended.err) == (0, b"%d\n" % total, "")
    assert server.call("get", "n").out == b"2"


def test_add_reaches_the_edges_of_64_bits_and_wraps(serve):
    server = serve()
    assert server.call("add", "n", "9223372036854775807").out == b"9223372036854775807\n"
    assert server.call("add", "n", "1").out == b"-9223372036854775808\n"
    assert server.call("add", "m", "-9223372036854775808").out == b"-9223372036854775808\n"


def test_add_to_text_is_refused(serve):
    server = serve()
    assert server.call("set", "k", "text").code == 0
    ended = server.call("add", "k", "1")
    assert ended.code == 1 and "the server closed the connection" in ended.line
    assert ended.line.endswith("a store does that when it refuses a request (its value may not be a number)")
    server.log("ADD on a value that is not a number")
    assert server.call("get", "k").out == b"text"


# ---- wait

def test_wait_returns_when_all_keys_exist(serve):
    server = serve()
    assert server.call("set", "a", "1").code == 0
    relay = Relay(server.port)
    command = Command("store", "wait", "--endpoint", relay.endpoint, "--timeout", str(LIMIT), "a", "b", "c")
    until(lambda: strings([b"/a", b"/b", b"/c"]) in relay.said, what="the WAIT")
    assert server.call("set", "b", "1").code == 0
    assert command.process.poll() is None
    assert server.call("set", "c", "1").code == 0
    ended = command.end()
    relay.stop()
    assert (ended.code, ended.out, ended.err) == (0, b"", "")


def test_wait_names_the_missing_keys_in_the_end(serve):
    server = serve()
    assert server.call("set", "here", "1").code == 0
    ended = server.call("wait", "--timeout", "1.5", "here", "gone", "a\nb")
    assert (ended.code, ended.out) == (1, b"")
    assert ended.line == "muster store wait: timed out after 1.5 s; missing: 'gone', 'a\\x0ab'"


def test_wait_ends_with_a_cause_when_the_server_is_killed(serve):
    server = serve()
    relay = Relay(server.port)
    command = Command("store", "wait", "--endpoint", relay.endpoint, "--timeout", "600", "never")
    until(lambda: strings([b"/never"]) in relay.said, what="the WAIT")
    server.stop(signal.SIGKILL, expect=-signal.SIGKILL)
    ended = command.end()
    relay.stop()
    assert (ended.code, ended.out) == (1, b"")
    assert ended.line.startswith(f"muster store wait: wait 'never' at {relay.endpoint}: ")
    assert "the server closed the connection" in ended.line or "connection reset by peer" in ended.line


def test_wait_ends_with_a_cause_when_the_server_ends_itself(serve):
    server = serve()
    listening = len(os.listdir(f"/proc/{server.pid}/fd"))
    command = Command("store", "wait", "--endpoint", server.endpoint, "--timeout", "3", "--dialect", "2.x", "never")
    until(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) > listening, what="the connection")
    server.stop()
    ended = command.end()  # it was connected, perhaps not yet greeted
    assert ended.code == 1 and server.endpoint in ended.line


def test_ctrl_c_ends_a_wait_at_once(serve):
    server = serve()
    relay = Relay(server.port)
    command = Command("store", "wait", "--endpoint", relay.endpoint, "--timeout", "600", "never")
    until(lambda: strings([b"/never"]) in relay.said, what="the WAIT")
    command.process.send_signal(signal.SIGINT)
    ended = command.end(limit=10)
    relay.stop()
    assert (ended.code, ended.out, ended.err) == (-signal.SIGINT, b"", "")


# ---- delete, list, num-keys, barrier

def test_delete_says_nothing_or_that_there_is_no_such_key(serve):
    server = serve()
    assert server.call("set", "k", "v").code == 0
    ended = server.call("delete", "k")
    assert (ended.code, ended.out, ended.err) == (0, b"", "")
    ended = server.call("delete", "k")
    assert (ended.code, ended.out, ended.line) == (1, b"", "muster store delete: no such key: 'k'")


def test_list_is_sorted_and_one_key_a_line(serve):
    server = serve()
    ended = server.call("list")
    assert (ended.code, ended.out, ended.err) == (0, b"", "")
    with Raw(server) as client:
        for key in (b"/b", b"/a", b"/a/b", b"/a\0b", b"/new\nline", b"/back\\slash", b"/caf\xc3\xa9", b"/", b"init/",
                    b"/\x7f", b"/sp ace"):
            client.set(key, b"v")
        assert client.num_keys() == 11
    assert server.call("list").out.decode().splitlines() == [
        "", "a", "a\\x00b", "a/b", "b", "back\\\\slash", "caf\\xc3\\xa9", "new\\x0aline", "sp ace", "\\x7f"]
    assert server.call("list", "--raw").out.decode().splitlines() == [
        "/", "/a", "/a\\x00b", "/a/b", "/b", "/back\\\\slash", "/caf\\xc3\\xa9", "/new\\x0aline", "/sp ace", "/\\x7f",
        "init/"]


def test_list_of_many_keys_is_complete(serve):
    server = serve()
    keys = [b"key/%06d" % i for i in range(20000)]
    with Raw(server) as client:
        client.say_bytes(b"".join(b"\x01" + strings([b"/" + key])[8:] + b"\0" * 8 for key in keys))
        assert client.num_keys() == len(keys)
    assert server.call("list").out.split() == keys
    assert server.call("num-keys").out == b"20000\n"


def test_num_keys_counts_all_keys(serve):
    server = serve()
    assert server.call("num-keys").out == b"0\n"
    with Raw(server) as client:
        client.add(b"init/", 1)
    assert server.call("set", "k", "v").code == 0
    assert server.call("num-keys").out == b"2\n"


def test_barrier_opens_when_all_have_come(serve):
    server = serve()
    first = [Command("store", "barrier", "--endpoint", server.endpoint, "--timeout", str(LIMIT), "door", "4")
             for _ in range(3)]
    until(lambda: server.call("get", "door/num_members").out == b"3", what="three at the door")
    assert all(command.process.poll() is None for command in first)
    ended = server.call("barrier", "door", "4")
    assert (ended.code, ended.out, ended.err) == (0, b"", "")
    assert [command.end().code for command in first] == [0, 0, 0]


def test_barrier_gives_up_in_the_end(serve):
    ended = serve().call("barrier", "--timeout", "1", "door", "2")
    assert ended.code == 1 and ended.line.startswith("muster store barrier: barrier: ") and "timed out" in ended.line


# ---- Endpoints

def test_endpoints_may_be_names_and_addresses_of_both_families(serve):
    four, six = serve("--host", "127.0.0.1"), serve("--host", "::1")
    for endpoint in (f"127.0.0.1:{four.port}", f"localhost:{four.port}", f"[::1]:{six.port}", f"localhost:{six.port}"):
        ended = run("store", "add", "--endpoint", endpoint, "n", "1")
        assert ended.code == 0, ended
    assert four.call("get", "n").out == b"2" and six.call("get", "n").out == b"2"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_environment_names_the_default_endpoint(serve, host):
    server = serve("--host", host)
    env = {"MASTER_ADDR": host, "MASTER_PORT": str(server.port)}
    assert run("store", "add", "n", "1", env=env).out == b"1\n"
    other = serve()
    assert run("store", "add", "--endpoint", other.endpoint, "n", "10", env=env).out == b"10\n"


def test_a_refused_connection_is_tried_again_until_the_time_is_over():
    with socket.socket() as bound:  # bound, not listening: connecting is refused
        bound.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{bound.getsockname()[1]}"
        ended = run("store", "get", "--endpoint", endpoint, "--timeout", "0.5", "k")
    assert ended.code == 1
    assert ended.line.startswith(f"muster store get: cannot connect to {endpoint} (")
    assert ended.line.endswith(" s): connection refused")


def test_a_server_that_comes_late_is_reached(serve):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        command = Command("store", "add", "--endpoint", f"127.0.0.1:{port}", "--timeout", str(LIMIT), "n", "1")
        server = serve("--listen-fd", str(bound.fileno()), pass_fds=[bound.fileno()])
    assert command.end().out == b"1\n" and server.port == port


def test_a_name_that_does_not_resolve_is_named():
    ended = run("store", "get", "--endpoint", "no-such-host.invalid:29500", "--timeout", "0.3", "k")
    assert ended.code == 1
    assert ended.line.startswith("muster store get: cannot connect to no-such-host.invalid:29500 (")


# ---- What else may listen there

def test_another_service_is_told_by_its_answer(imposters):
    ssh = imposters(Imposter(lambda sock: (sock.sendall(b"SSH-2.0-x\r\n"), sock.recv(1024))))
    ended = run("store", "get", "--endpoint", ssh.endpoint, "--timeout", "600", "k")  # at once: more tries are no use
    assert ended.code == 1
    assert f"cannot connect to {ssh.endpoint} (1 try in 0." in ended.line
    assert "53 53 48 2d 32 2e 30 2d" in ended.line or "SSH-2.0-" in ended.line


def test_a_service_that_hangs_up_is_told(imposters):
    closing = imposters(Imposter(lambda sock: sock.close()))
    ended = run("store", "get", "--endpoint", closing.endpoint, "--timeout", "1", "k")
    assert ended.code == 1
    assert " s): it closes the connection in every dialect that was tried" in ended.line
    assert " tries in 1." in ended.line and closing.connections > 3


def test_a_service_that_says_nothing_is_told(imposters):
    silent = imposters(Imposter(lambda sock: sock.recv(1 << 16)))
    ended = run("store", "get", "--endpoint", silent.endpoint, "--timeout", "1", "k", limit=10)
    assert ended.code == 1
    assert " in 1." in ended.line
    assert "the port is open, but no store answers" in ended.line


def greet_and(then):
    """A server that makes itself known as 2.x, reads a request and then does something else than answer it."""
    def behave(sock):
        assert sock.recv(9) == b"\x00\xce\xf7\x85\x3c\x0c\x0c\x0c\x0c"
        sock.sendall(b"\x01\x01\x01\x01")
        sock.recv(1024)
        then(sock)
    return behave


def test_a_store_that_stops_answering_is_told(imposters):
    stuck = imposters(Imposter(greet_and(lambda sock: sock.recv(1024))))
    ended = run("store", "num-keys", "--endpoint", stuck.endpoint, "--timeout", "2", limit=10)
    assert (ended.code, ended.line) == (1, f"muster store num-keys: num_keys at {stuck.endpoint}: got no answer and timed "
                                           "out after 2000 ms")


def test_a_store_that_talks_nonsense_is_told(imposters):
    liar = imposters(Imposter(greet_and(lambda sock: sock.sendall(b"\xff" * 64))))
    ended = run("store", "get", "--endpoint", liar.endpoint, "--wait", "k", limit=10)
    assert ended.code == 1 and "the server's answer makes no sense" in ended.line


def test_the_time_for_everything_is_bounded_by_the_timeout(imposters):
    silent = imposters(Imposter(lambda sock: sock.recv(1 << 16)))
    for command, words in (("set", ["k", "v"]), ("add", ["k", "1"]), ("wait", ["k"]), ("delete", ["k"]), ("list", []),
                           ("num-keys", []), ("barrier", ["k", "1"])):
        ended = run("store", command, "--endpoint", silent.endpoint, "--timeout", "0.1", *words, limit=10)
        assert ended.code == 1 and ended.line.startswith(f"muster store {command}: ")

"""`muster join`: what it prints, how it ends, and what it says of everything that can go wrong."""

import base64
import fcntl
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import termios
import threading
import time

import pytest

from ports import free_port
from serving import LIMIT, MUSTER, ROOT, Imposter, environment, run, signals_blocked, until

QUICK_DEATH = "keep_alive_interval=1,keep_alive_max_attempt=2"
JOINED_KEYS = {"event", "run_id", "backend", "round", "rank", "world_size", "node", "members", "master_addr",
               "master_port"}


class Joiner:
    """`muster join WORDS` while it runs; its lines as they come."""

    def __init__(self, endpoint, *words, id="job", env=None):
        def default_signals():
            signal.signal(signal.SIGINT, signal.SIG_DFL)

        self.process = subprocess.Popen(
            [MUSTER, "join", "--rdzv-endpoint", endpoint, "--rdzv-id", id, *words], env=environment(env),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=default_signals)
        self.out, self.err = [], []
        self._threads = [threading.Thread(target=self._read, args=pair, daemon=True)
                         for pair in ((self.process.stdout, self.out), (self.process.stderr, self.err))]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _read(stream, lines):
        for line in stream:
            lines.append(line.decode(errors="replace").rstrip("\n"))

    def _explain(self, what):
        return f"{what}; out {self.out}, err {self.err}, code {self.process.poll()}"

    def line(self, index=0, limit=LIMIT):
        """A line of stdout, once it is there."""
        end = time.monotonic() + limit
        while len(self.out) <= index:
            assert time.monotonic() < end, self._explain(f"no line {index}")
            assert self.process.poll() is None or self._threads[0].is_alive() or len(self.out) > index, \
                self._explain(f"ended without line {index}")
            time.sleep(0.005)
        return self.out[index]

    def said(self, part, limit=LIMIT):
        """The first line of stderr with that in it, once it is there."""
        end = time.monotonic() + limit
        while True:
            found = [line for line in self.err if part in line]
            if found:
                return found[0]
            assert time.monotonic() < end, self._explain(f"never said {part!r}")
            time.sleep(0.005)

    def joined(self):
        return json.loads(self.line(0))

    def event(self, name, limit=LIMIT):
        """The first event of that name, once it is there."""
        end = time.monotonic() + limit
        while True:
            found = [line for line in map(json.loads, list(self.out)) if line["event"] == name]
            if found:
                return found[0]
            assert time.monotonic() < end, self._explain(f"no {name}")
            time.sleep(0.005)

    def signal(self, signum):
        self.process.send_signal(signum)

    def end(self, limit=LIMIT):
        """Waits for its end and gives the exit code."""
        code = self.process.wait(timeout=limit)
        for thread in self._threads:
            thread.join(limit)
        return code

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.end()
        self.process.stdout.close()
        self.process.stderr.close()


@pytest.fixture
def join():
    started = []

    def start(*words, **how):
        started.append(Joiner(*words, **how))
        return started[-1]

    yield start
    for joiner in started:
        joiner.stop()


def document(server, id="job"):
    ended = server.call("get", f"torch.rendezvous.{id}")
    return base64.b64decode(ended.out) if ended.code == 0 else b""


def close(server, id="job"):
    """Sets the flag in the document, as a member that closes would; until nobody overwrites it."""
    def attempt():
        found = document(server, id)
        if re.search(rb"closed\x94?\x88", found):
            return True
        closed = re.sub(rb"(closed\x94?)\x89", b"\\1\x88", found)
        if closed != found:
            server.call("set", f"torch.rendezvous.{id}", base64.b64encode(closed).decode())
        return False

    until(attempt, what="closing")


# ---- Words ----


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"], ["--rdzv-id", "x", "--help"]])
def test_help_tells_options_exit_codes_and_examples(words):
    ended = run("join", *words)
    text = ended.out.decode()
    assert (ended.code, ended.err) == (0, "")
    assert all(len(line) <= 80 for line in text.splitlines())
    for option in ("--rdzv-id", "--rdzv-backend", "--rdzv-endpoint", "--nnodes", "--rdzv-conf", "--local-addr",
                   "--backend-dir", "--hold", "--json", "--log-level", "--help"):
        assert f"\n  {option} " in text
    assert "usage: muster join" in text and "Exit status" in text and "Examples" in text


def test_the_manual_has_the_same_options_as_the_help():
    manual = (ROOT / "docs" / "man" / "muster-join.1.scd").read_text()
    text = run("join", "--help").out.decode()
    assert set(re.findall(r"^\*(--[a-z-]+)\*", manual, re.MULTILINE)) == \
        set(re.findall(r"^  (--[a-z-]+) ", text, re.MULTILINE))


def test_the_general_help_names_it():
    assert "\n  join " in run("--help").out.decode()


USAGE = [
    ([], "option '--rdzv-id' is missing"),
    (["--rdzv-id", ""], "option '--rdzv-id': it must not be empty"),
    (["--rdzv-id", "job", "extra"], "unexpected 'extra'; usage: muster join [OPTIONS]"),
    (["--rdzv-id", "job", "--hold", "0"], "option '--hold': '0' must be a number of seconds above 0"),
    (["--rdzv-id", "job", "--hold", "inf"], "option '--hold': 'inf' must be a number of seconds above 0"),
    (["--rdzv-id", "job", "--log-level", "loud"], "option '--log-level': 'loud' must be"),
    (["--rdzv-id", "job", "--json=yes"], "option '--json' takes no value"),
    (["--rdzv-id", "job", "--rdzv-backend", ""], "back end"),
    (["--rdzv-id", "job", "--rdzv-backend", "zookeeper"], "'zookeeper'"),
    (["--rdzv-id", "job", "--rdzv-backend", "static"], "option '--rdzv-endpoint' is missing"),
    (["--rdzv-id", "job", "--rdzv-backend", "static", "--rdzv-endpoint", "h:1"], "rank"),
    (["--rdzv-id", "job", "--rdzv-backend", "static", "--rdzv-endpoint", "h", "--rdzv-conf", "rank=0"], "'h'"),
    (["--rdzv-id", "job", "--rdzv-backend", "static", "--rdzv-endpoint", " ", "--rdzv-conf", "rank=0"], "endpoint"),
    (["--rdzv-id", "job", "--rdzv-backend", "static", "--rdzv-endpoint", "h:1", "--rdzv-conf", "rank=x"], "rank"),
    (["--rdzv-id", "job", "--rdzv-backend", "static", "--rdzv-endpoint", "h:1", "--rdzv-conf", "rank=1"], "rank"),
    (["--rdzv-id", "job", "--rdzv-backend", "static", "--rdzv-endpoint", "h:1", "--rdzv-conf", "rank=-1"], "rank"),
]
USAGE += [(["--rdzv-id", "job", "--nnodes", bad], f"option '--nnodes': '{bad}' must be")
          for bad in ("", "x", "1:", ":1", ":", "1:2:3", "-1", "1.5", "1:x", "x:1", " 1", "1 ", "+1", "0x1",
                      "99999999999999999999", "2147483648")]
USAGE += [(["--rdzv-id", "job", "--nnodes", bad], "nodes") for bad in ("0", "0:1", "3:2", "1:0")]
USAGE += [(["--rdzv-id", "job", "--rdzv-endpoint", bad], bad.strip())
          for bad in ("host:65536", "host:123456", "host:", "host: 1", ":", "::", "[::1", "[]", "[]:1", ":1", "a/b:1",
                      "[a]b:1", "host:x", "host:-1")]
USAGE += [(["--rdzv-id", "job", "--rdzv-conf", bad], "option '--rdzv-conf': ")
          for bad in ("a", "a=", "=1", "a=1,", ",a=1", "a=1,,b=2", "=")]
USAGE += [(["--rdzv-id", "job", "--rdzv-conf", bad], bad.split("=")[0])
          for bad in ("join_timeout=0", "join_timeout=-1", "join_timeout=x", "last_call_timeout=0", "close_timeout=x",
                      "keep_alive_interval=x", "keep_alive_max_attempt=x", "read_timeout=0", "read_timeout=x",
                      "is_host=maybe", "store_type=carrier-pigeon", "dialect=0.4")]


@pytest.mark.parametrize("words, said", USAGE)
def test_a_wrong_command_line_is_told_before_anything_is_tried(words, said):
    started = time.monotonic()
    ended = run("join", *words)
    assert (ended.code, ended.out) == (2, b""), ended
    assert ended.line.startswith("muster join: ") and said in ended.line
    assert ended.line.endswith("(see 'muster join --help')")
    assert time.monotonic() - started < 5


def test_a_backend_directory_that_cannot_be_read_is_named(tmp_path):
    ended = run("join", "--rdzv-id", "job", "--backend-dir", str(tmp_path / "none"))
    assert ended.code == 1 and str(tmp_path / "none") in ended.line


# ---- Joining ----


def test_alone_it_joins_at_once(serve):
    ended = run("join", "--rdzv-id", "job", "--rdzv-endpoint", serve().endpoint, "--json")
    assert (ended.code, ended.err) == (0, ""), ended
    told = json.loads(ended.out)
    assert set(told) == JOINED_KEYS
    assert (told["event"], told["run_id"], told["backend"]) == ("joined", "job", "c10d")
    assert (told["round"], told["rank"], told["world_size"]) == (0, 0, 1)
    assert told["members"] == [told["node"]]
    assert isinstance(told["master_addr"], str) and 0 < told["master_port"] < 65536


def test_people_get_one_line_with_the_same_facts(serve):
    ended = run("join", "--rdzv-id", "job", "--rdzv-endpoint", serve().endpoint, "--local-addr", "127.0.0.1")
    assert (ended.code, ended.err) == (0, ""), ended
    assert re.fullmatch(r"joined 'job' as rank 0 of 1 \(c10d, round 0\): 127\.0\.0\.1 \(pid \d+\); members: "
                        r"127\.0\.0\.1 \(pid \d+\); master: 127\.0\.0\.1:\d+\n", ended.out.decode())


def test_underscores_are_taken_for_dashes(serve):
    ended = run("join", "--rdzv_id=job", f"--rdzv_endpoint={serve().endpoint}", "--rdzv_backend", "c10d", "--json")
    assert ended.code == 0 and json.loads(ended.out)["run_id"] == "job"


@pytest.mark.parametrize("given", [b'"\\', b"\x01\n\t", "gr\u00fc\u00df\u20ac\U0001f600".encode(), b"a\xffb\xc3", b" "])
def test_a_run_id_may_have_any_bytes(serve, given):
    endpoint = serve().endpoint
    ended = run("join", "--rdzv-id", given, "--rdzv-endpoint", endpoint, "--json")
    assert ended.code == 0, ended
    assert json.loads(ended.out.decode())["run_id"] == given.decode(errors="replace")
    ended = run("join", "--rdzv-id", given, "--rdzv-endpoint", endpoint)
    assert ended.code == 0 and re.fullmatch(rb"[ -~]+\n", ended.out)


def assert_agreement(results):
    """The same round, members and meeting point; each its own rank."""
    shared = [{key: told[key] for key in ("round", "world_size", "members", "master_addr", "master_port")}
              for told in results]
    assert all(each == shared[0] for each in shared), results
    assert sorted(told["rank"] for told in results) == list(range(len(results)))
    for told in results:
        assert told["world_size"] == len(results)
        if told["members"] is not None:
            assert told["members"][told["rank"]] == told["node"]


@pytest.mark.parametrize("hosted", [True, False])
def test_two_agree(serve, join, hosted):
    endpoint = serve().endpoint if hosted else f"127.0.0.1:{free_port()}"
    joiners = [join(endpoint, "--nnodes", "2", "--json") for _ in range(2)]
    results = [joiner.joined() for joiner in joiners]
    assert_agreement(results)
    assert [joiner.end() for joiner in joiners] == [0, 0]
    for joiner in joiners:
        assert len(joiner.out) == 1
        assert [line for line in joiner.err if "is the loopback address" not in line] == []


def test_a_crowd_agrees(serve, join):
    endpoint = serve().endpoint
    joiners = [join(endpoint, "--nnodes", "8", "--json") for _ in range(8)]
    assert_agreement([joiner.joined() for joiner in joiners])
    assert [joiner.end() for joiner in joiners] == [0] * 8


def test_the_meeting_point_answers(serve, join):
    joiner = join(serve().endpoint, "--json", "--hold", "30")
    told = joiner.joined()
    with socket.create_connection((told["master_addr"], told["master_port"]), timeout=LIMIT):
        pass
    joiner.signal(signal.SIGTERM)
    assert joiner.end() == 0


def test_a_last_call_takes_in_whoever_comes(serve, join):
    endpoint = serve().endpoint
    conf = ["--nnodes", "1:3", "--rdzv-conf", "last_call_timeout=2", "--json", "--log-level", "info"]
    first = join(endpoint, *conf)
    first.said("last call ends in")
    second = join(endpoint, *conf)
    assert_agreement([first.joined(), second.joined()])
    assert [first.end(), second.end()] == [0, 0]


def test_static_ranks_are_as_given(join):
    endpoint = f"127.0.0.1:{free_port()}"
    joiners = [join(endpoint, "--rdzv-backend", "static", "--nnodes", "2", "--rdzv-conf", f"rank={rank}", "--json")
               for rank in range(2)]
    results = [joiner.joined() for joiner in joiners]
    assert [told["rank"] for told in results] == [0, 1]
    for told in results:
        assert set(told) == JOINED_KEYS and told["backend"] == "static" and told["world_size"] == 2
        assert f"{told['master_addr']}:{told['master_port']}" == endpoint
    assert [joiner.end() for joiner in joiners] == [0, 0]


def test_static_gives_up_when_a_rank_does_not_come():
    ended = run("join", "--rdzv-id", "job", "--rdzv-backend", "static", "--rdzv-endpoint", f"127.0.0.1:{free_port()}",
                "--nnodes", "2", "--rdzv-conf", "rank=0,timeout=1")
    assert ended.code == 4 and "timed out after 1 s: 1 of 2 nodes joined (" in ended.err.splitlines()[-1], ended


def test_without_a_shared_store_rank_0_names_a_free_port(serve):
    ended = run("join", "--rdzv-id", "job", "--rdzv-endpoint", serve().endpoint, "--json",
                env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
    assert ended.code == 0, ended
    told = json.loads(ended.out)
    with pytest.raises(OSError):
        socket.create_connection((told["master_addr"], told["master_port"]), timeout=LIMIT)


# ---- Holding ----


def test_a_hold_ends_by_itself(serve):
    ended = run("join", "--rdzv-id", "job", "--rdzv-endpoint", serve().endpoint, "--hold", "0.2", "--json")
    assert (ended.code, ended.err) == (0, ""), ended
    assert [json.loads(line)["event"] for line in ended.out.splitlines()] == ["joined", "left"]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_ends_the_hold_well(serve, join, signum):
    joiner = join(serve().endpoint, "--hold", "60")
    joiner.line()
    joiner.signal(signum)
    assert joiner.end(limit=5) == 0
    assert joiner.out[1:] == ["left 'job'"] and joiner.err == []


def test_the_same_signal_again_does_not_keep_it_from_leaving(serve, join):
    """As GNU timeout does: the others learn at once that it has left, and need not miss its heartbeats."""
    endpoint = serve().endpoint
    words = ["--nnodes", "2", "--hold", "60", "--json"]
    goes, stays = join(endpoint, *words), join(endpoint, *words)
    goes.joined(), stays.joined()
    goes.signal(signal.SIGTERM)
    goes.signal(signal.SIGTERM)
    goes.signal(signal.SIGHUP)
    assert goes.event("left")
    assert goes.process.wait(LIMIT) == 0
    stays.event("peers_lost")


def test_a_signal_ends_it_though_all_were_blocked(serve, join):
    endpoint = serve().endpoint
    with signals_blocked():
        joiner = join(endpoint, "--hold", "60")
    joiner.line()
    joiner.signal(signal.SIGTERM)
    assert joiner.end(limit=20) == 0


def test_whoever_leaves_or_dies_is_told_to_the_others(serve, join):
    endpoint = serve().endpoint
    words = ["--nnodes", "2", "--hold", "60", "--json", "--rdzv-conf", QUICK_DEATH]
    for way in (signal.SIGINT, signal.SIGKILL):
        stays, goes = (join(endpoint, *words, id=way.name) for _ in range(2))
        gone = goes.joined()
        stays.joined()
        goes.signal(way)
        lost = stays.event("peers_lost", limit=10)
        assert (lost["nodes"], lost["round"]) == ([gone["node"]], gone["round"])
        stays.signal(signal.SIGTERM)
        assert stays.end() == 0


def test_a_latecomer_waits_and_the_members_are_told(serve, join):
    endpoint = serve().endpoint
    words = ["--nnodes", "1:2", "--json", "--rdzv-conf", f"last_call_timeout=1,{QUICK_DEATH}"]
    member = join(endpoint, *words, "--hold", "60")
    member.joined()
    late = join(endpoint, *words)
    told = member.event("waiting")
    assert (told["count"], told["round"]) == (1, 0)
    late.said("waiting for the next round of rendezvous 'job': round 0 is running (1 node)")
    member.signal(signal.SIGINT)
    assert member.end() == 0
    assert late.joined()["round"] == 1 and late.end() == 0


def test_members_of_a_closed_rendezvous_stay_and_others_are_refused(serve, join):
    server = serve()
    member = join(server.endpoint, "--hold", "60", "--json")
    member.joined()
    assert run("rdzv", "close", "--rdzv-endpoint", server.endpoint, "--rdzv-id", "job").code == 0
    assert member.event("closed")["round"] == 0
    ended = run("join", "--rdzv-id", "job", "--rdzv-endpoint", server.endpoint)
    assert (ended.code, ended.out) == (3, b"") and "'job'" in ended.line and "closed" in ended.line
    assert member.process.poll() is None
    member.signal(signal.SIGINT)
    assert member.end() == 0


def test_a_spare_is_told_so_and_ends_well_when_the_rendezvous_closes(serve, join):
    server = serve()
    member = join(server.endpoint, "--hold", "60", "--json")
    member.joined()
    spare = join(server.endpoint)
    spare.said("waiting for a place in rendezvous 'job': round 0 is full (1 node)")
    assert run("rdzv", "close", "--rdzv-endpoint", server.endpoint, "--rdzv-id", "job").code == 0
    assert spare.end() == 0
    assert "'job' was closed while this node was a spare" in spare.err[-1]
    assert len(spare.out) == 1 and spare.out[0].startswith("closed: ")


def test_whoever_is_taken_for_dead_is_told_so(serve, join):
    server = serve()
    words = ["--nnodes", "2", "--hold", "60", "--json", "--rdzv-conf", f"{QUICK_DEATH},engine=off"]
    one, two = (join(server.endpoint, *words) for _ in range(2))
    one.joined()
    local_id = struct.pack("<i", int(two.joined()["node"].rpartition("_")[2]))
    assert local_id in document(server)
    two.signal(signal.SIGSTOP)
    one.event("peers_lost", limit=10)
    until(lambda: local_id not in document(server), what="its removal")
    two.signal(signal.SIGCONT)
    assert two.event("removed")["round"] == 0
    assert two.end() == 5
    assert "the other members took this node for dead" in two.err[-1]


def test_a_store_that_goes_away_is_told_and_survived(serve, join):
    server = serve()
    member = join(server.endpoint, "--hold", "60", "--json")
    member.joined()
    server.stop()
    member.event("backend_down")
    assert server.endpoint in member.said("trying again")
    serve("--port", str(server.port))
    member.event("backend_up")
    assert "again, after" in member.said("connected to")
    member.signal(signal.SIGINT)
    assert member.end() == 0


# ---- Waiting in vain ----


def test_a_name_that_others_could_not_read_is_refused():
    ended = run("join", "--rdzv-id", "job", "--rdzv-endpoint", "127.0.0.1:1", "--local-addr", "node\udcff")
    assert (ended.code, ended.out) == (2, b"")
    assert "local address" in ended.err


def test_too_few_nodes_in_time(serve):
    server = serve()
    started = time.monotonic()
    ended = run("join", "--rdzv-id", "job", "--rdzv-endpoint", server.endpoint, "--nnodes", "2", "--rdzv-conf",
                "join_timeout=1")
    assert (ended.code, ended.out) == (4, b"")
    last = ended.err.splitlines()[-1]
    assert "'job'" in last and server.endpoint in last and f"timed out after 1 s: 1 of 2 nodes joined ({socket.gethostname()})" in last
    assert 1 <= time.monotonic() - started < 9


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_waiting_is_an_error_and_leaves(serve, join, signum):
    server = serve()
    joiner = join(server.endpoint, "--nnodes", "2", "--log-level", "info")
    joiner.said("1 more needed")
    joiner.signal(signum)
    assert joiner.end(limit=5) == 1
    assert joiner.out == []
    said = f"error: muster join: stopped while waiting for 'job': {signum.name}; leaving"
    assert joiner.err[-1].endswith(f" {socket.gethostname()} muster[{joiner.process.pid}] {said}")
    ended = run("join", "--rdzv-id", "job", "--rdzv-endpoint", server.endpoint, "--json", "--nnodes", "1:2",
                "--rdzv-conf", "last_call_timeout=1")
    assert json.loads(ended.out)["world_size"] == 1  # it is not waited for


def test_a_wait_is_told_now_and_then(serve, join):
    joiner = join(serve().endpoint, "--nnodes", "2:4")
    first = joiner.said("waiting for rendezvous 'job': 1 of 2 to 4 nodes joined (")
    assert " notice: " in first and "1 more needed" in first and "gives up in" in first
    joiner.signal(signal.SIGINT)
    assert joiner.end() == 1


def refused(_):
    return f"127.0.0.1:{free_port()}"


def silent(imposters):
    return imposters(Imposter(lambda sock: time.sleep(LIMIT))).endpoint


def hangs_up(imposters):
    return imposters(Imposter(lambda sock: sock.close())).endpoint


def answers_http(imposters):
    def behave(sock):
        sock.recv(4096)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        sock.close()
    return imposters(Imposter(behave)).endpoint


@pytest.mark.parametrize("how, causes", [
    (refused, ["refused"]),
    (lambda _: "no-such-host.invalid:29400", ["no-such-host.invalid"]),
    (silent, ["timed out", "answer", "time"]),
    (hangs_up, ["closed", "lost", "reset"]),
    (answers_http, ["protocol", "store", "not"]),
])
def test_an_endpoint_that_is_no_store_is_an_error_with_its_cause(imposters, how, causes):
    endpoint = how(imposters)
    started = time.monotonic()
    ended = run("join", "--rdzv-id", "job", "--rdzv-endpoint", endpoint, "--rdzv-conf",
                "is_host=false,read_timeout=2,join_timeout=5")
    last = ended.err.splitlines()[-1]
    assert (ended.code, ended.out) == (1, b""), ended
    assert "'job'" in last and endpoint in last
    assert any(cause in last for cause in causes), last
    assert time.monotonic() - started < 15


def test_a_port_that_something_else_has_taken_is_told(imposters):
    endpoint = silent(imposters)
    ended = run("join", "--rdzv-id", "job", "--rdzv-endpoint", endpoint, "--rdzv-conf", "read_timeout=2,join_timeout=5")
    last = ended.err.splitlines()[-1]
    assert (ended.code, ended.out) == (1, b""), ended
    assert endpoint in last


def test_a_host_that_cannot_listen_says_so(imposters):
    endpoint = silent(imposters)
    ended = run("join", "--rdzv-id", "job", "--rdzv-endpoint", endpoint, "--rdzv-conf", "is_host=true,read_timeout=2")
    last = ended.err.splitlines()[-1]
    assert (ended.code, ended.out) == (1, b""), ended
    assert last.endswith(f": cannot listen on 127.0.0.1, port {endpoint.rpartition(':')[2]}: Address already in use")


@pytest.mark.parametrize("bytes_", [
    b"",
    b"not a pickle",
    b"\x80\x04",
    b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x02id\x94\x85\x94R\x94.",
    b"\x80\x04]\x94.",
    b"\x80" * 100000,
], ids=["empty", "text", "cut off", "foreign", "a list", "long"])
def test_what_is_no_document_is_replaced_by_who_comes(serve, bytes_):
    """After an interval in which nobody has put a document back."""
    server = serve()
    text = base64.b64encode(bytes_).decode() or "="
    server.call("set", "torch.rendezvous.job", "-", stdin=text.encode())
    ended = run("join", "--rdzv-id", "job", "--rdzv-endpoint", server.endpoint, "--rdzv-conf", QUICK_DEATH)
    assert ended.code == 0, ended
    assert "rendezvous 'job': somebody has overwritten the document: " in ended.err
    assert b"_RendezvousState" in base64.b64decode(server.call("get", "torch.rendezvous.job").out)


@pytest.mark.parametrize("version", [b"novel", b"futur"])
def test_a_document_of_another_layout_is_an_error_and_is_left_alone(serve, version):
    """A whole pickle of PyTorch's state, with a field of which nobody here has heard."""
    server = serve()
    state = b"ctorch.distributed.elastic.rendezvous.dynamic_rendezvous\n_RendezvousState\n)\x81}\x8c\x05" + version + b"K\x07sb"
    text = base64.b64encode(b"\x80\x04" + state + b".").decode()
    server.call("set", "torch.rendezvous.job", "-", stdin=text.encode())
    ended = run("join", "--rdzv-id", "job", "--rdzv-endpoint", server.endpoint)
    last = ended.err.splitlines()[-1]
    assert (ended.code, ended.out) == (1, b""), ended
    assert "'job'" in last
    assert server.call("get", "torch.rendezvous.job").out.decode() == text


# ---- Output ----


def test_a_reader_that_is_gone_is_an_error(serve):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = run("join", "--rdzv-id", "job", "--rdzv-endpoint", serve().endpoint, "--hold", "60", stdout=writer)
    finally:
        os.close(writer)
    assert ended.code == 1 and "cannot write to standard output: Broken pipe" in ended.err


def test_a_reader_that_has_stopped_does_not_stop_the_heartbeats(serve, join):
    """Its output is full from the start; all the same it stays a member, and a signal ends it."""
    endpoint = serve().endpoint
    words = ["--nnodes", "2", "--hold", "60", "--json", "--rdzv-conf", QUICK_DEATH]
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 65536)
    except BlockingIOError:
        os.set_blocking(writer, True)
    stuck = subprocess.Popen([MUSTER, "join", "--rdzv-endpoint", endpoint, "--rdzv-id", "job", *words], stdout=writer,
                             stderr=subprocess.DEVNULL, env=environment())
    try:
        other = join(endpoint, *words)
        other.joined()
        time.sleep(4)  # twice the time after which a silent node is dead
        assert len(other.out) == 1, other.out
        stuck.send_signal(signal.SIGTERM)
        other.event("peers_lost")
        assert stuck.wait(LIMIT) == 1
    finally:
        stuck.kill()
        stuck.wait()
        os.close(reader)
        os.close(writer)


def on_a_terminal(*words, until_seen, then=None, columns=100, env=None):
    """Runs it with stderr and stdout on a terminal; returns the exit code and everything that was shown."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    modes = termios.tcgetattr(terminal)
    modes[3] |= termios.NOFLSH  # Ctrl-C throws nothing away that was written
    termios.tcsetattr(terminal, termios.TCSANOW, modes)
    process = subprocess.Popen([MUSTER, "join", *words], stdin=terminal, stdout=terminal, stderr=terminal,
                               start_new_session=True, env=environment(env),
                               preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
    os.close(terminal)
    shown = b""
    end = time.monotonic() + LIMIT
    try:
        while time.monotonic() < end:
            try:
                shown += os.read(controller, 65536)
            except OSError:
                break
            if then is not None and until_seen in shown:
                then(controller)
                then = None
        return process.wait(timeout=LIMIT), shown.decode()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(controller)


def screen(shown):
    """What is left on the terminal: carriage return and erase-to-end are all that is used."""
    return [line.rpartition("\r\x1b[K")[2].rstrip("\r") for line in shown.split("\n")]


def test_on_a_terminal_the_status_changes_in_place_and_is_erased(serve):
    code, shown = on_a_terminal("--rdzv-endpoint", serve().endpoint, "--rdzv-id", "job", "--nnodes", "2",
                                until_seen=b"1 more needed", then=lambda tty: os.write(tty, b"\x03"))
    assert code == 1
    assert re.search(r"(\r\x1b\[K|\n)waiting for rendezvous 'job': 1 of 2 nodes joined[ ,]", shown), shown
    warning, *lines = screen(shown)
    assert "is the loopback address" in warning  # above the status, not through it
    assert lines == ["muster join: stopped while waiting for 'job': SIGINT; leaving", ""]


@pytest.mark.parametrize("variables, level", [({}, "\x1b[33mwarning:\x1b[0m"), ({"NO_COLOR": "1"}, "warning:"),
                                              ({"TERM": "dumb"}, "warning:")], ids=["colour", "NO_COLOR", "dumb"])
def test_a_log_line_on_a_terminal_has_no_host_and_may_have_colour(serve, variables, level):
    code, shown = on_a_terminal("--rdzv-endpoint", serve().endpoint, "--rdzv-id", "job", "--nnodes", "2",
                                until_seen=b"1 more needed", then=lambda tty: os.write(tty, b"\x03"),
                                env={"TERM": "xterm", "NO_COLOR": "", **variables})
    assert code == 1
    line, = [line for line in screen(shown) if "is the loopback address" in line]
    assert re.match(r"[-0-9]{10}T[:.0-9]{12}Z muster\[[0-9]+\] " + re.escape(level) + " ", line)


def test_on_a_narrow_terminal_the_status_stays_one_line(serve):
    code, shown = on_a_terminal("--rdzv-endpoint", serve().endpoint, "--rdzv-id", "job" * 30, "--nnodes", "2",
                                until_seen=b"...", then=lambda tty: os.write(tty, b"\x03"), columns=40)
    assert code == 1
    for status in re.findall(r"\r\x1b\[K(waiting[^\r\n]*)", shown):
        assert len(status.replace("^C", "")) <= 39


def test_on_a_terminal_ctrl_c_ends_the_hold(serve):
    code, shown = on_a_terminal("--rdzv-endpoint", serve().endpoint, "--rdzv-id", "job", "--hold", "60",
                                until_seen=b"joined 'job'", then=lambda tty: os.write(tty, b"\x03"))
    assert code == 0
    lines = [line.replace("^C", "") for line in screen(shown)]
    assert lines[0].startswith("joined 'job' as rank 0 of 1") and lines[1:] == ["left 'job'", ""]

"""`muster rdzv`: closing a rendezvous from outside, and everything that can be wrong with that."""

import re
import subprocess

import pytest

from serving import LIMIT, MUSTER, ROOT, environment, run, until


def visit(server, *words, id="job", **how):
    return run("rdzv", *words, "--rdzv-id", id, "--rdzv-endpoint", server.endpoint, **how)


class Member:
    """`muster run` of one worker, which ends when a file is there."""

    def __init__(self, server, tmp_path, *words, id="job", script=None):
        self.go, self.began = tmp_path / "go", tmp_path / "began"
        script = script or f'echo >>"{self.began}"; until test -e "{self.go}"; do sleep 0.02; done'
        self.process = subprocess.Popen(
            [MUSTER, "run", "--rdzv-backend", "c10d", "--rdzv-id", id, "--rdzv-endpoint", server.endpoint, "--nnodes",
             "1:2", "--rdzv-conf", "is_host=false,last_call_timeout=1", *words, "--no-python", "sh", "-c", script],
            env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def wait_started(self):
        until(self.began.exists, what="the worker's start")

    def end(self):
        out = self.process.communicate(timeout=LIMIT)[0].decode()
        return self.process.returncode, out


@pytest.fixture
def members(tmp_path):
    made = []

    def make(server, *words, **how):
        made.append(Member(server, tmp_path, *words, **how))
        return made[-1]

    yield make
    for member in made:
        if member.process.poll() is None:
            member.process.kill()
            member.process.communicate()


def test_a_closed_rendezvous_takes_nobody_in_and_lets_workers_finish(serve, members):
    server = serve()
    member = members(server)
    member.wait_started()
    closed = visit(server, "close")
    assert (closed.code, closed.err) == (0, "")
    assert closed.out == (b"rendezvous 'job' is closed: no node can join or restart; "
                          b"workers that run go on to their end\n")
    late = run("join", "--rdzv-id", "job", "--rdzv-endpoint", server.endpoint, "--rdzv-conf", "is_host=false")
    assert late.code == 3 and "the rendezvous is closed" in late.err
    code, said = members(server).end()
    assert code == 1 and "RendezvousClosedError" in said
    assert member.process.poll() is None
    member.go.touch()
    assert member.end()[0] == 0


def test_closing_twice_does_no_harm(serve, members):
    server = serve()
    member = members(server)
    member.wait_started()
    assert visit(server, "close").code == 0
    again = visit(server, "close")
    assert again.code == 0 and again.out.startswith(b"rendezvous 'job' was closed before: ")
    member.go.touch()
    assert member.end()[0] == 0


def test_workers_of_a_closed_rendezvous_are_not_restarted(serve, members, tmp_path):
    server = serve()
    go = tmp_path / "go"
    member = members(server, "--max-restarts", "3",
                     script=f'echo >>"{tmp_path}/began"; until test -e "{go}"; do sleep 0.02; done; exit 7')
    member.wait_started()
    assert visit(server, "close").code == 0
    go.touch()
    code, said = member.end()
    assert code == 1 and "closed" in said
    assert (tmp_path / "began").read_text().count("\n") == 1


def test_nodes_that_wait_are_sent_away(serve):
    server = serve()
    waiting = subprocess.Popen([MUSTER, "join", "--rdzv-id", "job", "--rdzv-endpoint", server.endpoint, "--nnodes", "2",
                                "--rdzv-conf", "is_host=false"], env=environment(), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        until(lambda: visit(server, "close").code == 0, what="the rendezvous")
        _, err = waiting.communicate(timeout=LIMIT)
    finally:
        waiting.kill()
        waiting.wait()
    assert waiting.returncode == 3 and b"the rendezvous is closed" in err


def test_what_is_not_there_is_not_closed_and_can_be_joined_later(serve):
    server = serve()
    ended = visit(server, "close")
    assert ended.code == 1
    assert ended.line == f"muster rdzv close: there is no rendezvous 'job' (c10d at {server.endpoint})"
    assert run("join", "--rdzv-id", "job", "--rdzv-endpoint", server.endpoint, "--rdzv-conf", "is_host=false").code == 0


def test_a_store_that_is_not_there_is_an_error_and_not_started(serve):
    server = serve()
    server.stop()
    ended = visit(server, "close", "--timeout", "2")
    assert ended.code == 1 and server.endpoint in ended.line and "connection refused" in ended.line


@pytest.mark.parametrize("backend", ["etcd-v2", "etcd-v3"])
def test_an_etcd_that_is_not_there_is_an_error_that_says_why(serve, backend):
    server = serve()
    server.stop()
    ended = visit(server, "close", "--rdzv-backend", backend, "--timeout", "5")
    assert ended.code == 1 and server.endpoint in ended.line and "onnect" in ended.line


@pytest.mark.parametrize("words, said", [
    ([], "muster rdzv: a command is missing: close, get or set"),
    (["open"], "muster rdzv: unknown command 'open'"),
    (["--close"], "muster rdzv: unknown option '--close'"),
    (["close"], "muster rdzv close: option '--rdzv-id' is missing"),
    (["close", "now", "--rdzv-id", "j"], "muster rdzv close: unexpected 'now'; usage: muster rdzv close [OPTIONS]"),
    (["close", "--rdzv-id", "j", "--round", "3"],
     "muster rdzv close: option '--round' is for get and set: closing ends all rounds"),
    (["close", "--rdzv-id", "j", "--rdzv-backend", "static"],
     "muster rdzv close: back end 'static' cannot be closed: its nodes are fixed from the start"),
    (["close", "--rdzv-id", "j", "--rdzv-backend", "nonsuch"], "muster rdzv close: "),
    (["close", "--rdzv-id", "j", "--rdzv-conf", "nonsuch=1"], "muster rdzv close: "),
    (["get", "--rdzv-id", "j", "--rdzv-backend", "etcd"], "muster rdzv get: KEY is missing; usage: muster rdzv get [OPTIONS] KEY"),
    (["set", "k", "--rdzv-id", "j", "--rdzv-backend", "etcd"], "muster rdzv set: VALUE is missing; usage: muster rdzv set [OPTIONS] KEY VALUE"),
    (["get", "k", "--rdzv-id", "j"], "muster rdzv get: only back end 'etcd' keeps data with a round, not 'c10d'"),
])
def test_wrong_words_are_usage_errors(words, said):
    ended = run("rdzv", *words)
    assert ended.code == 2 and ended.line.startswith(said), ended


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"], ["close", "--help"], ["get", "-h"]])
def test_the_help_tells_what_becomes_of_running_workers(words):
    ended = run("rdzv", *words)
    text = ended.out.decode()
    assert ended.code == 0 and "go on to their end" in text
    assert all(len(line) <= 79 for line in text.splitlines())


def test_the_manual_has_the_same_options_as_the_help():
    page = (ROOT / "docs" / "man" / "muster-rdzv.1.scd").read_text()
    assert set(re.findall(r"^\*(--[a-z-]+)\*", page, re.MULTILINE)) == \
        set(re.findall(r"^  (--[a-z-]+) ", run("rdzv", "--help").out.decode(), re.MULTILINE))

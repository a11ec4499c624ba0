"""Passwords and tokens that are given on the command line are in nothing that the program writes."""

import socket

import pytest

from serving import run

SECRET = "hunter2"
BACKENDS = ["c10d", "static", "etcd", "etcd-v2", "etcd-v3"]
ENDPOINTS = [f"ann:{SECRET}@127.0.0.1:1", f"http://ann:{SECRET}@127.0.0.1:1", f"etcd://ann:{SECRET}@127.0.0.1:1/job",
             f"etcd://127.0.0.1:1/job?password={SECRET}", f"http://ann:hun,{SECRET}@127.0.0.1:1"]
CONFS = [f"password={SECRET},=1", f"user=ann,password=x,{SECRET}", f"user=ann,password={SECRET},token",
         f"user=ann,token={SECRET},read_timeout=x", f"token {SECRET}"]
COMMANDS = {
    "join": ["join", "--rdzv-id", "job", "--nnodes", "1"],
    "run": ["run", "-v", "--rdzv-id", "job", "--nnodes", "1", "--no-python"],
    "dry-run": ["run", "--dry-run", "--rdzv-id", "job", "--nnodes", "1", "--no-python"],
}
CONF = {"static": "rank=0,timeout=1", "etcd": "timeout=1"}


def said(command, *words):
    """What the program writes; it ends by itself, for what it is given is wrong or nobody is there."""
    tail = ["/bin/true"] if command != "join" else []
    done = run(*COMMANDS[command], *words, *tail)
    return done.code, done.out.decode() + done.err


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_endpoint_with_a_password_is_shown_without_it(backend, endpoint):
    for command in COMMANDS:
        code, text = said(command, "--rdzv-backend", backend, "--rdzv-endpoint", endpoint,
                          "--rdzv-conf", CONF.get(backend, "join_timeout=1,read_timeout=1"))
        assert text.strip() != "", (command, code)
        assert SECRET not in text, (command, text)


@pytest.mark.parametrize("conf", CONFS)
def test_an_option_with_a_password_is_shown_without_it(conf):
    for command in COMMANDS:
        code, text = said(command, "--rdzv-backend", "etcd-v3", "--rdzv-endpoint", "127.0.0.1:1",
                          "--rdzv-conf", f"lease=2,{conf}")
        assert code != 0 or command == "dry-run", text
        assert SECRET not in text, (command, text)


def test_a_password_that_nobody_asked_for_is_not_shown(tmp_path):
    events = tmp_path / "events"
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{nobody.getsockname()[1]}"
        code, text = said("run", "--rdzv-backend", "etcd-v3", "--rdzv-endpoint", endpoint, "--rdzv-conf",
                          f"user=ann,password={SECRET},read_timeout=1,join_timeout=1",
                          "--event-log-handler", f"file:{events}")
    assert code != 0
    assert endpoint in text
    assert SECRET not in text + events.read_text()

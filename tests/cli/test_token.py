"""Jobs with a token: who has it meets in the engine, and nobody else reads or writes anything of the job."""

import os
import pathlib
import secrets
import signal
import types

import pytest

from ports import free_port
from run_scene import LIMIT
from serving import run, until
from test_run import agent_of, end_all, kill_agent, local, one
from test_run_engine import HOST

ENGINE = "last_call_timeout=1"


@pytest.fixture
def tokens(tmp_path):
    """Files with tokens, by name."""
    def make(name, text=None, mode=0o600):
        path = tmp_path / name
        path.write_text(secrets.token_hex(20) + "\n" if text is None else text)
        path.chmod(mode)
        return path

    return make


@pytest.fixture(params=["a store of its own", "a member"])
def job(request, scene, serve, tokens):
    """Two nodes of a job with a token that run, and how to start others."""
    token = tokens("token")
    outside = request.param == "a store of its own"
    server = serve("--token-file", str(token)) if outside else None
    endpoint = server.endpoint if outside else local(free_port())

    def node(conf, *options, **how):
        return scene.node(endpoint, "--nnodes=2:3", "--max-restarts=2", *options, conf=conf, **how)

    job = types.SimpleNamespace(token=token, endpoint=endpoint, server=server, node=node)
    job.agents = [node(f"{ENGINE},token_file={token}", "-v")]
    job.agents[0].said("using muster's engine at")
    job.agents.append(node(ENGINE, env={"MUSTER_TOKEN_FILE": str(token)}))
    job.workers = scene.world(2)
    return job


def logged(job):
    """What the process with the store has said."""
    return "\n".join(job.server.lines) if job.server else job.agents[0].err


def finish(scene, job):
    end_all(scene.alive())
    assert [agent.end() for agent in job.agents] == [0, 0]


def test_nodes_with_the_token_form_restart_and_succeed(scene, job):
    job.workers[1].fail()
    second = scene.world(2, without=job.workers)
    assert one(second, "TORCHELASTIC_RESTART_COUNT") == "1"
    finish(scene, job)


def test_a_killed_agent_is_noticed_at_once(scene, job):
    """Its keeper has a will, and no token."""
    lost = job.agents.pop()
    pid = lost.agent
    late = job.node(f"{ENGINE},token_file={job.token}")
    workers = scene.world(3, without=job.workers)
    kill_agent(lost)
    scene.world(2, without=workers)
    job.agents[0].said(f"lost {HOST} (pid {pid}): its agent was killed; restarting with 2 nodes, no restart charged")
    job.agents.append(late)
    finish(scene, job)


def test_nobody_else_gets_to_see_the_token_or_its_file(scene, job):
    text = job.token.read_text().strip()
    for worker in job.workers:
        assert not any("TOKEN_FILE" in name for name in worker.env)
        environ = pathlib.Path(f"/proc/{worker.pid}/environ").read_bytes()
        assert str(job.token).encode() not in environ and text.encode() not in environ
        agent = agent_of(scene, worker)
        for pid in (worker.pid, agent.agent, agent.keeper):
            assert text.encode() not in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
            for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
                assert not (fd.is_symlink() and os.readlink(fd) == str(job.token))
    finish(scene, job)
    assert text not in logged(job) + "".join(agent.err for agent in job.agents)


@pytest.mark.parametrize("which, said", [
    ("another", "refuses our token: it has another one"),
    (None, "wants a token (--rdzv-conf token_file=PATH)")])
def test_a_node_without_the_token_is_refused_and_the_job_goes_on(scene, job, tokens, which, said):
    other = job.node(f"{ENGINE},token_file={tokens(which)}" if which else ENGINE)
    assert other.end() == 1
    assert f"the store at {job.endpoint} {said}" in other.err.splitlines()[-1]
    if which:
        until(lambda: "its token is another one than this store's" in logged(job), LIMIT)
    assert all(worker.alive for worker in job.workers)
    finish(scene, job)


def test_a_node_that_wants_a_document_is_refused(scene, job):
    other = job.node("engine=off,last_call_timeout=1")
    assert other.end() == 1
    assert "this node has engine=off, but the job meets in the engine of the store at" in other.err
    finish(scene, job)


@pytest.mark.parametrize("key", ["torch.rendezvous.job", "torch.rendezvous.another", "muster.job/host"])
def test_who_writes_a_document_is_cut_off_and_told_of_once(scene, job, key):
    """As a PyTorch node does at first, whatever the name of its job."""
    for _ in range(3):
        assert run("store", "add", "--endpoint", job.endpoint, key, "1").code != 0
    assert logged(job).count(f"it writes the key '/{key}', but this store has a token") == 1
    assert run("store", "set", "--endpoint", job.endpoint, "other", "1").code == 0
    finish(scene, job)


def test_jobs_with_a_token_do_not_hear_of_each_other(scene, serve, tokens):
    """Without one each would name the other in its next line."""
    token = tokens("token")
    endpoint = serve("--token-file", str(token)).endpoint
    nodes = [scene.node(endpoint, "--nnodes=2", id=name, conf=f"{ENGINE},token_file={token},join_timeout=6")
             for name in ("job7", "job8")]
    for node in nodes:
        assert node.end() == 1
        assert "1 of 2 nodes joined" in node.err.splitlines()[-1] and "same endpoint" not in node.err


def test_a_node_with_a_token_does_not_go_on_without(scene, serve, tokens):
    endpoint = serve().endpoint
    node = scene.node(endpoint, "--nnodes=2", conf=f"{ENGINE},token_file={tokens('token')}")
    assert node.end() == 1
    assert "has no token, and this node has one (token_file)" in node.err.splitlines()[-1]


def test_a_node_with_a_token_does_not_meet_in_a_document(scene, serve, tokens):
    endpoint = serve().endpoint
    first = scene.node(endpoint, "--nnodes=2", conf="last_call_timeout=1,engine=off")
    until(lambda: run("store", "get", "--endpoint", endpoint, "torch.rendezvous.job").code == 0)
    second = scene.node(endpoint, "--nnodes=2", conf=f"{ENGINE},token_file={tokens('token')}")
    assert second.end() == 1
    assert "has no token, and this node has one (token_file): it does not go on without" in second.err.splitlines()[-1]
    first.signal(signal.SIGTERM)
    first.end()


@pytest.mark.parametrize("make, said", [
    (lambda tokens, path: tokens("t", mode=0o640), "its mode is 0640, so users other than its owner have access; 'chmod 600'"),
    (lambda tokens, path: tokens("t", text="short\n"), "it holds 5 bytes, and at least 16 are needed"),
    (lambda tokens, path: tokens("t", text="x" * 1025), "it holds more than 1024 bytes"),
    (lambda tokens, path: path / "none", "No such file or directory"),
    (lambda tokens, path: path, "it is a directory, not a regular file"),
    (lambda tokens, path: os.mkfifo(path / "t") or path / "t", "it is a pipe, not a regular file")])
def test_a_file_that_cannot_be_used_is_named(scene, tokens, tmp_path, make, said):
    path = make(tokens, tmp_path)
    node = scene.node(local(free_port()), "--nnodes=2", conf=f"{ENGINE},token_file={path}")
    store = run("store", "--port", "0", "--token-file", str(path))
    assert node.end() == 1 and store.code == 1
    for err in (node.err, store.err):
        assert f"read the token: file '{path}': {said}" in err


@pytest.mark.parametrize("conf, env, said", [
    ("engine=off,token_file={}", None, "option 'token_file' does not go with engine=off"),
    ("engine=off", "{}", "MUSTER_TOKEN_FILE is set, and there is no token with --rdzv-conf engine=off")])
def test_a_token_needs_the_engine(scene, tokens, conf, env, said):
    path = str(tokens("token"))
    node = scene.node(local(free_port()), "--nnodes=2", conf=conf.format(path),
                      env={"MUSTER_TOKEN_FILE": env.format(path)} if env else None)
    assert node.end() == 1
    assert said in node.err


def test_muster_join_takes_the_token_too(serve, tokens):
    token = tokens("token")
    endpoint = serve("--token-file", str(token)).endpoint
    words = ("join", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "job", "--nnodes", "1")
    assert run(*words, "--rdzv-conf", f"{ENGINE},token_file={token}").code == 0
    for conf in (ENGINE, "engine=on", "engine=only"):
        assert run(*words, "--rdzv-conf", conf, env={"MUSTER_TOKEN_FILE": str(token)}).code == 0, conf
    refused = run(*words, "--rdzv-conf", ENGINE)
    assert refused.code == 1 and "wants a token" in refused.err

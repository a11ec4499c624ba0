"""libcurl, which is loaded when an etcd back end is asked for, and only then."""

import ctypes
import pathlib
import signal

import pytest

from serving import run, until

BACKENDS = ["etcd", "etcd-v2", "etcd-v3"]
ADVICE = "libcurl.so.4 cannot be loaded: install libcurl4 (Debian, Ubuntu) or libcurl (Fedora, RHEL)"
PLACE = ["--rdzv-endpoint", "127.0.0.1:1", "--rdzv-id", "job", "--nnodes", "1"]


@pytest.fixture
def without(tmp_path):
    """An environment in which the first libcurl that is found is none."""
    libraries = tmp_path / "lib"
    libraries.mkdir()
    (libraries / "libcurl.so.4").touch()
    return {"LD_LIBRARY_PATH": str(libraries)}


def maps(agent):
    return pathlib.Path(f"/proc/{agent.agent}/maps").read_text()


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_it_one_line_names_its_package_and_no_worker_starts(scene, without, backend):
    agent = scene.shell(": > $STAGE/started", "--rdzv-backend", backend, *PLACE, env=without)
    assert agent.end() == 1
    assert agent.err.count("\n") == 1 and agent.err.endswith("\n"), agent.err
    assert "muster run: RuntimeError: " in agent.err and ADVICE in agent.err
    assert agent.out == b"" and not (scene.stage / "started").exists()


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_it_nobody_joins(without, backend):
    ended = run("join", "--rdzv-backend", backend, *PLACE, env=without)
    assert (ended.code, ended.out) == (1, b"")
    assert "muster join: " in ended.line and ADVICE in ended.line


def test_others_do_not_miss_it(scene, serve, without):
    """Neither one node alone nor those that meet at a store; and nothing of it is in their memory."""
    agents = [scene.actors(env=without)]
    worker, = scene.world(1)
    assert "libcurl" not in maps(agents[0])
    worker.succeed()
    assert agents[0].end() == 0, agents[0].err
    endpoint = serve().endpoint
    agents = [scene.node(endpoint, "--nnodes=2", env=without) for _ in range(2)]
    workers = scene.world(2)
    assert [agent for agent in agents if "libcurl" in maps(agent)] == []
    for worker in workers:
        worker.succeed()
    assert [agent.end() for agent in agents] == [0, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_whoever_asks_for_etcd_has_it(scene, absent, backend):
    """Which shows that its absence above is no accident of how one looks."""
    try:
        ctypes.CDLL("libcurl.so.4")
    except OSError as error:
        absent(str(error))
    agent = scene.actors("--rdzv-backend", backend, *PLACE)
    until(lambda: "libcurl.so.4" in maps(agent), what="libcurl in its memory")
    agent.signal(signal.SIGTERM)
    assert agent.end() == -signal.SIGTERM, agent.err
    assert not scene.seen()

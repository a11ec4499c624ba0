"""Servers and peers for the command-line tests; whatever a test starts ends with it."""

import os
import pathlib

import pytest

import run_scene
import serving


def pytest_sessionstart(session):
    if not pathlib.Path(serving.MUSTER).exists():
        pytest.exit(f"{serving.MUSTER} is not there; run make first, or set MUSTER", returncode=2)


@pytest.fixture
def absent():
    """Missing tools skip a test on a developer's machine and fail it where all must be there."""
    def missing(reason):
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return missing


@pytest.fixture
def serve():
    """Starts servers on a free port of 127.0.0.1, unless told otherwise. Those still running must end well."""
    servers = []

    def start(*options, everywhere=False, **how):
        words = list(options)
        if "--listen-fd" not in words:
            if "--port" not in words:
                words += ["--port", "0"]
            if "--host" not in words and not everywhere:
                words += ["--host", "127.0.0.1"]
        servers.append(serving.Server(*words, **how))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.returncode is None:
            server.stop()


@pytest.fixture
def imposters():
    """Starts things that listen but are no store."""
    started = []

    def start(imposter):
        started.append(imposter)
        return imposter

    yield start
    for imposter in started:
        imposter.stop()


@pytest.fixture
def document(scene):
    """The nodes of this test meet in a document, as with a PyTorch node, and not in the store's engine."""
    scene.engine = "off"


@pytest.fixture(params=["on", "off"])
def engine(scene, request):
    """Where the nodes of this test meet: in the store's engine, and in a document."""
    scene.engine = request.param
    return request.param


@pytest.fixture
def scene(tmp_path):
    """Runs of `muster run`; when the test is over nothing of them may be left."""
    scene = run_scene.Scene(tmp_path)
    yield scene
    left = scene.clear()
    assert not left, f"left running: {left}"

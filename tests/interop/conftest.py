"""What the interop tests share: PyTorch processes, stock servers and ours."""

import pathlib
import subprocess

import pytest

import etcd_servers
import harness
import rdzv_nodes
import run_nodes
from harness import absent, need_program


def uses_new(item):
    """Whether a test has to do with the newer PyTorch. All take its name, or what goes by it, from the same places."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    versions = {value.split()[0] for value in values if isinstance(value, str) and value[:1].isdigit()}
    return (any(hasattr(item.module, name) for name in ("NEW", "VERSIONS", "side_by_side"))
            and versions != {"1.13.1"})


def pytest_collection_modifyitems(config, items):
    """With another PyTorch than the usual one, only what uses it tells anything new."""
    if harness.NEW != harness.USUAL:
        config.hook.pytest_deselected(items=[item for item in items if not uses_new(item)])
        items[:] = [item for item in items if uses_new(item)]


def pytest_report_header():
    return f"PyTorch 1.13.1 and {harness.NEW}"


class Pool:
    """Keeps PyTorch processes between tests, for importing it costs seconds each time."""

    def __init__(self):
        self._idle = {}
        self._missing = {}

    def take(self, which):
        if which in self._missing:
            absent(self._missing[which])
        while self._idle.get(which):
            driver = self._idle[which].pop()
            if driver.alive():
                return driver
            driver.stop()
        python = harness.interpreter(which)
        if not pathlib.Path(python).exists():
            self._refuse(which, f"PyTorch {which} is absent: there is no {python}")
        driver = harness.Driver(python)
        try:
            version = driver.version
        except AssertionError:
            driver.stop()
            self._refuse(which, f"PyTorch {which} is absent: {python} cannot import torch")
        # Debian's 1.13.1 calls itself 1.13.0a0.
        if version.split(".")[:2] != which.split(".")[:2]:
            driver.stop()
            self._refuse(which, f"PyTorch {which} is absent: {python} has {version}")
        return driver

    def _refuse(self, which, reason):
        self._missing[which] = reason
        absent(reason)

    def give_back(self, which, driver):
        if driver.alive() and driver.forget():
            self._idle.setdefault(which, []).append(driver)
        else:
            driver.stop()

    def stop(self):
        for drivers in self._idle.values():
            for driver in drivers:
                driver.stop()


@pytest.fixture(scope="session")
def pool():
    pool = Pool()
    yield pool
    pool.stop()


@pytest.fixture
def torch(pool):
    """torch(NEW) is a process of that PyTorch for the length of a test."""
    taken = []

    def take(which):
        driver = pool.take(which)
        taken.append((which, driver))
        return driver

    yield take
    for which, driver in taken:
        pool.give_back(which, driver)


@pytest.fixture
def muster():
    """A fresh store of ours, which must end well when told to."""
    need_program()
    server = harness.MusterServer()
    yield server
    server.stop()


@pytest.fixture
def proxies():
    """proxies(port) is a recording proxy in front of that port."""
    made = []

    def make(port):
        proxy = harness.Proxy(port)
        made.append(proxy)
        return proxy

    yield make
    for proxy in made:
        proxy.stop()


@pytest.fixture
def pulses():
    """pulses(port) tells when the server there has dealt with all it was sent."""
    made = []

    def make(port, modern=True):
        pulse = harness.Pulse(port, modern)
        made.append(pulse)
        return pulse

    yield make
    for pulse in made:
        pulse.close()


@pytest.fixture(scope="session")
def stock_pool():
    pool = rdzv_nodes.StockPool()
    yield pool
    pool.stop()


@pytest.fixture
def scenes(stock_pool):
    """scenes(NEW, nodes=(2, 4), store="stock") is a rendezvous for the length of a test."""
    made = []

    def make(which, **what):
        scene = rdzv_nodes.Scene(stock_pool, which, **what)
        made.append(scene)
        return scene

    yield make
    for scene in reversed(made):
        scene.stop()


@pytest.fixture(scope="session")
def launchers():
    launchers = run_nodes.Launchers()
    yield launchers
    launchers.stop()


@pytest.fixture
def jobs(launchers, tmp_path):
    """jobs(NEW) is a job to start launchers in, for the length of a test."""
    made = []

    def make(which, name=""):
        directory = tmp_path / f"{which}{name}"
        directory.mkdir()
        job = run_nodes.Job(launchers, which, directory)
        made.append(job)
        return job

    yield make
    for job in made:
        job.end()


@pytest.fixture
def etcds(tmp_path):
    """etcds(3) is a cluster of real etcds for the length of a test."""
    made = []

    def make(members=1, **what):
        etcd_servers.need()
        cluster = etcd_servers.Cluster(tmp_path / f"cluster{len(made)}", members, **what)
        made.append(cluster)
        return cluster

    yield make
    for cluster in made:
        cluster.stop()


@pytest.fixture
def joins():
    """joins("etcd", endpoint, "3", run_id, conf) is one more `muster join`; rdzv_nodes.said() reads its lines for people."""
    harness.need_program()
    made = []

    def make(backend, endpoint, nnodes, run_id, conf):
        made.append(subprocess.Popen(
            [harness.program(), "join", "--rdzv-backend", backend, "--rdzv-endpoint", endpoint, "--rdzv-id", run_id,
             "--nnodes", nnodes, "--hold", "600", "--rdzv-conf", conf],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=harness.quiet_environment()))
        return made[-1]

    yield make
    for node in made:
        node.kill()
        node.communicate()

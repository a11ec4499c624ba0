"""The commands of docs/ETCD.md, taken out of that page and typed into shells as whoever reads it would.

Places are all that is replaced: the hosts a, b and c by ports of the loopback, ports that may be taken by others, data
directories by some of the test's own.  Times are what they are without options, so that a killed agent is missed for 10 s.
"""

import http.client
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import uuid

import pytest

import etcd_servers
import harness
import run_nodes
from harness import NEW
from ports import free_port
from rdzv_nodes import until
from run_nodes import RUN_LIMIT, Actors, Training

PAGE = (harness.ROOT / "docs" / "ETCD.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
HOSTS = ("a", "b", "c")
TRIES = 5


def block(begin, place):
    """The one that begins so and names that place."""
    found, = [text for text in BLOCKS if text.startswith(begin) and place in text]
    return found


MEMBER = block("etcd ", "http://a:2379")
MEMBERS = block("for ", "127.0.0.1:${i}2379")
RUN = block("muster run ", "a:2379,b:2379,c:2379")
JOIN = block("muster join ", "a:2379,b:2379,c:2379")
RUN_HERE = block("muster run ", "127.0.0.1:12379,127.0.0.1:22379,127.0.0.1:32379")
LOOK, = re.findall(r"`(etcdctl [^`]*)`", PAGE)


class Shell(run_nodes.Node):
    """A command in a shell of its own."""

    def __init__(self, directory, command, environment, cwd):
        super().__init__(directory)
        with open(directory / "out", "ab") as out, open(directory / "err", "ab") as err:
            self.process = subprocess.Popen(["sh", "-c", command], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                            env=environment, cwd=cwd)
        self.pid = self.process.pid

    def poll(self):
        return self.process.poll()

    def children(self):
        try:
            return [int(pid) for pid in pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        except OSError:  # it has ended
            return []

    def agent(self):
        """Of one that runs `muster run`."""
        return until(self.children, what="an agent")[0]

    def said(self, pattern):
        """The line of its output that is like this, once it is there."""
        try:
            return until(lambda: re.search(pattern, self.out, re.MULTILINE) or self.ended(), RUN_LIMIT, pattern)[0]
        except (AssertionError, TypeError):
            raise AssertionError(f"no {pattern!r}; rc {self.code}, it said:\n{self.out}{self.err}") from None


class Machine(run_nodes.Job):
    """Where these commands are typed: it has muster and etcd in its PATH, and a train.py in the directory one is in."""

    def __init__(self, directory, python):
        harness.need_program()
        etcd_servers.need()
        self.directory, self.home = directory, directory / "home"
        self.run_id = uuid.uuid4().hex[:12]  # marks its processes; the job's is the page's
        self.nodes, self._store = [], None
        programs = directory / "bin"
        for made in (self.home, programs):
            made.mkdir(parents=True)
        (programs / "muster").symlink_to(harness.program())
        (programs / "etcd").symlink_to(etcd_servers.program())
        path = os.pathsep.join([str(programs), os.path.dirname(python), os.environ["PATH"]])
        self.environment = harness.quiet_environment(
            {run_nodes.MARK: f"{self.run_id}.", "TMPDIR": str(directory), "PATH": path})
        for name in [n for n in self.environment if n.startswith(("TORCHELASTIC_", "PET_", "ETCD", "PYTHON_EXEC"))]:
            del self.environment[name]

    def type(self, command):
        return self._start(lambda directory, words, environment, _: Shell(directory, words[0], environment, self.home),
                           "shell", [command], None, False)

    def run(self, command):
        """What it says, if it ends well."""
        done = subprocess.run(["sh", "-c", command], cwd=self.home, env=self.environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=RUN_LIMIT, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


def is_healthy(port):
    return '"health":"true"' in get(port, "/health")


def is_leader(port):
    return "\netcd_server_is_leader 1\n" in get(port, "/metrics")


def is_free(port):
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def come_up(ports, ended):
    """Whether they all do; whoever ends instead has found its port taken since."""
    return until(lambda: all(map(is_healthy, ports)) or ended(), RUN_LIMIT, "an etcd that is well") is True


@pytest.fixture
def machines(tmp_path):
    made = []

    def make(python):
        made.append(Machine(tmp_path / f"machine{len(made)}", python))
        return made[-1]

    yield make
    for machine in made:
        machine.end()


def test_every_command_of_the_page_is_typed_here():
    assert sorted(BLOCKS) == sorted([MEMBER, MEMBERS, RUN, JOIN, RUN_HERE])


# ---- Hosts ----


class Hosts:
    """An etcd on each of a, b and c, by the page's command."""

    def __init__(self, machine):
        self._machine = machine
        for attempt in range(TRIES):
            self.ports = {(host, port): free_port() for host in HOSTS for port in ("2379", "2380")}
            self.etcds = {host: machine.type("exec " + self._member(host, attempt)) for host in HOSTS}
            if come_up([self.ports[host, "2379"] for host in HOSTS], self._one_ended):
                return
            for etcd in self.etcds.values():
                etcd.kill()
        raise AssertionError("".join(etcd.err for etcd in self.etcds.values()))

    def _one_ended(self):
        return "ended" if any(etcd.ended() for etcd in self.etcds.values()) else None

    def _member(self, host, attempt):
        own, middle, cluster = MEMBER.partition("--initial-cluster ")
        own = own.replace("--name a ", f"--name {host} ").replace("http://a:", f"http://{host}:")  # as the page says
        own = own.replace("http://0.0.0.0:", f"http://{host}:")
        directory = self._machine.directory / f"{host}{attempt}"
        return self.here(own.replace("/var/lib/etcd ", f"{directory} ") + middle + cluster)

    def here(self, command):
        """A command with the places of this machine for those of the page."""
        return re.sub(r"\b([abc]):(2379|2380)\b", lambda found: f"127.0.0.1:{self.ports[found[1], found[2]]}", command)


def parent(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_the_job_of_several_hosts(machines):
    """Nodes are added, killed and taken away, a worker fails, an etcd is killed; the job goes on and ends well."""
    machine = machines(sys.executable)
    hosts = Hosts(machine)
    actors = Actors(machine)
    (machine.home / "train.py").symlink_to(run_nodes.ACTOR)
    restarts = []

    def world(nodes, without=()):
        workers = actors.world(8 * nodes, without)
        assert all(worker["TORCHELASTIC_RUN_ID"] == "my-job" for worker in workers)
        count, = {worker["TORCHELASTIC_RESTART_COUNT"] for worker in workers}
        restarts.append(int(count))
        return workers

    def add():
        return machine.type("exec " + hosts.here(RUN))

    running = [add() for _ in range(4)]
    workers = world(4)

    spare = add()
    until(lambda: '"spares":1' in machine.run(hosts.here(LOOK)), RUN_LIMIT, "a spare")
    assert [worker.pid for worker in actors.alive()] == [worker.pid for worker in workers]

    victim = next(node for node in running if node.agent() == parent(workers[0].pid))  # where rank 0 is
    os.kill(victim.agent(), signal.SIGKILL)
    assert victim.end() != 0
    running = [node for node in running if node is not victim] + [spare]
    workers = world(4, without=workers)

    hosts.etcds["a"].kill()  # the one that clients ask first

    leaver = running.pop(0)
    leaver.signal(signal.SIGTERM)
    assert leaver.end() == 1
    workers = world(3, without=workers)

    running.append(add())
    workers = world(4, without=workers)

    workers[-1].fail()
    workers = world(4, without=workers)
    assert restarts == [0, 0, 0, 0, 1]

    for worker in workers:
        worker.succeed()
    for node in running:
        node.good()


def test_joining_without_a_job(machines):
    machine = machines(sys.executable)
    hosts = Hosts(machine)
    stays, goes = [machine.type("exec " + hosts.here(JOIN)) for _ in range(2)]
    lines = [node.said(r"^joined 'test' as rank \d of 2 \(etcd-v3, round 0\): .*$") for node in (stays, goes)]
    assert sorted(re.search(r"rank (\d)", line)[1] for line in lines) == ["0", "1"]
    goes.signal(signal.SIGTERM)
    goes.good()
    stays.said(rf"^lost .*\(pid {goes.pid}\): it has left round 0, or is dead$")
    stays.signal(signal.SIGINT)
    stays.good()


# ---- One machine ----


class Here:
    """Three etcds on one machine, by the page's command."""

    def __init__(self, machine):
        for attempt in range(TRIES):
            self._digits = self._free_digits()
            ports = self.client_ports = [int(f"{i}{self._digits['2379']}") for i in (1, 2, 3)]
            place = machine.directory / f"etcd{attempt}-"
            self.shell = machine.type(self.here(MEMBERS).replace("/tmp/etcd", str(place)) + "wait\n")
            if come_up(ports, self._one_ended):
                return
            for pid in self.shell.children():
                os.kill(pid, signal.SIGKILL)
            self.shell.kill()
        raise AssertionError(self.shell.err)

    @staticmethod
    def _free_digits():
        """For 2379 and 2380, so that nobody has the ports that end in them. Below 32768 the kernel gives none away."""
        while True:
            digits = [f"{random.randrange(1000, 2768)}" for _ in range(2)]
            ports = [int(f"{i}{end}") for i in (1, 2, 3) for end in digits]
            if digits[0] != digits[1] and all(map(is_free, ports)):
                return dict(zip(("2379", "2380"), digits))

    def _one_ended(self):
        return "ended" if self.shell.ended() or "address already in use" in self.shell.err else None

    def here(self, command):
        return re.sub("2379|2380", lambda found: self._digits[found[0]], command)

    def kill(self, leads):
        """The etcd that leads, or one that does not."""
        def found():
            roles = [is_leader(port) for port in self.client_ports]
            return roles if any(roles) else None
        name = f"m{until(found, RUN_LIMIT, 'a leader').index(leads) + 1}"
        pid, = [pid for pid in self.shell.children()
                if f"--name\0{name}\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_text()]
        os.kill(pid, signal.SIGKILL)
        until(lambda: pid not in self.shell.children(), what="its end")


@pytest.mark.parametrize("number, how, leads", [(0, signal.SIGKILL, True), (1, signal.SIGTERM, False)],
                         ids=["first-leader", "second-follower"])
def test_the_job_of_one_machine(machines, launchers, number, how, leads):
    """With real training: either of the two is killed, and one of the etcds."""
    launchers.need(NEW)
    machine = machines(harness.interpreter(NEW))
    cluster = Here(machine)
    training = Training(machine.directory / "training", epochs=6)
    words = [str(word) for word in training.words("--hold", 2, "--hold", 4)]
    (machine.home / "train.py").write_text(
        f"import runpy, sys\nsys.argv = {words}\nrunpy.run_path(sys.argv[0], run_name='__main__')\n")

    nodes = [machine.type("exec " + cluster.here(RUN_HERE)) for _ in range(2)]
    training.until("hold", epoch=2, world=4)
    cluster.kill(leads)
    training.go(2)
    training.until("hold", epoch=4, world=4)
    victim, survivor = nodes[number], nodes[1 - number]
    os.kill(victim.agent() if how == signal.SIGKILL else victim.pid, how)
    assert victim.end() != 0
    training.until("hold", epoch=4, world=2)
    training.go(4)
    survivor.good()
    training.whole()
    assert training.worlds() == [4, 2]
    # Workers whose connections broke may have failed before anybody told their agent.
    assert [start["restarts"] for start in training.starts()] in ([0, 0], [0, 1])

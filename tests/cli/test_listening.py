"""Where the servers of a job listen: on what its nodes use, and nowhere else. Machines are network namespaces."""

import os
import pathlib
import signal
import subprocess

import pytest

from namespaces import Namespaces, listening, missing
from ports import free_port
from serving import LIMIT, MUSTER, environment, run, until

# Waits until all workers have reached the store at MASTER_ADDR, and says where that is.
MEET = '"$MUSTER" store barrier --endpoint "$MASTER_ADDR:$MASTER_PORT" --timeout 60 all "$WORLD_SIZE" && echo "$MASTER_ADDR"'


@pytest.fixture
def nets(absent):
    reason = missing()
    if reason:
        absent(reason)
    nets = Namespaces()
    yield nets
    nets.remove()


def has_v6():
    return os.path.exists("/proc/net/if_inet6") and " lo\n" in open("/proc/net/if_inet6", encoding="utf-8").read()


def loopback():
    return {"127.0.0.1", "::1"} if has_v6() else {"127.0.0.1"}


def inside(nets, which):
    return [*nets.inside(which), MUSTER, "run"]


def c10d(endpoint, *options):
    return ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=job",
            "--rdzv-conf=last_call_timeout=1", *options]


# ---- On one machine

@pytest.mark.parametrize("options", [["--standalone"], []])
def test_a_job_of_one_node_listens_on_loopback_alone(scene, options):
    agent = scene.actors(*options)
    (worker,) = scene.world(1)
    listeners = listening(agent.agent)
    assert len(listeners) == 2  # the rendezvous' store and the workers'
    assert all(addresses == loopback() for addresses in listeners.values()), listeners
    assert int(worker.env["MASTER_PORT"]) in listeners
    worker.succeed()
    assert (agent.end(), agent.trouble) == (0, "")


@pytest.mark.parametrize("bind", ["any", "0.0.0.0", "::"])
def test_bind_overrides_where_a_job_listens(scene, bind):
    agent = scene.actors("--standalone", "--bind", bind)
    (worker,) = scene.world(1)
    assert all(addresses in ({"::"}, {"0.0.0.0"}) for addresses in listening(agent.agent).values())
    worker.succeed()
    assert agent.end() == 0


@pytest.mark.parametrize("how", ["option", "variable", "conf"])
def test_bind_names_addresses_beside_loopback(scene, how):
    words = {"option": ["--bind=127.0.0.9"], "conf": ["--rdzv-conf=bind=127.0.0.9"], "variable": []}[how]
    agent = scene.actors("--standalone", *words, env={"PET_BIND": "127.0.0.9"} if how == "variable" else {})
    (worker,) = scene.world(1)
    listeners = listening(agent.agent)
    assert all(addresses == loopback() | {"127.0.0.9"} for addresses in listeners.values()), listeners
    worker.succeed()
    assert agent.end() == 0


def test_one_port_is_free_on_all_addresses(scene):
    """127.0.0.1 and ::1 are one server: a user who types localhost reaches it by either."""
    agent = scene.actors("--standalone")
    (worker,) = scene.world(1)
    for host in loopback():
        ended = run("store", "num-keys", "--endpoint", f"[{host}]:{worker.env['MASTER_PORT']}")
        assert ended.code == 0, ended
    worker.succeed()
    assert agent.end() == 0


@pytest.mark.parametrize("words, message", [
    (["--bind", "eth0"], "--bind: 'eth0' must be an address of this machine, localhost or any"),
    (["--bind", "10.0.0.5,"], "--bind: '' must be an address of this machine, localhost or any"),
    (["--allow", "10.0.0.1/8"], "--allow: '10.0.0.1/8' has address bits set beyond its prefix length"),
    (["--allow", "here"], "--allow: 'here' is not a network like 10.0.0.0/8 or fd00::/8"),
])
def test_a_bad_address_or_network_is_an_error(words, message):
    ended = run("run", *words, "--standalone", "--no-python", "true")
    assert ended.code == 1
    assert f"ValueError: {message}" in ended.err
    ended = run("join", "--rdzv-id", "job", *words)
    assert ended.code == 2
    assert message.partition(": ")[2] in ended.err


def test_an_address_of_another_machine_cannot_be_bound(scene):
    agent = scene.shell("true", "--standalone", "--bind", "192.0.2.1")
    assert agent.end() == 1
    assert "listen on 192.0.2.1" in agent.err and "Cannot assign requested address" in agent.err


def test_a_dry_run_shows_where_it_would_listen():
    words = ["run", "--dry-run", "--standalone"]
    shown = run(*words, "--bind", "127.0.0.9", "--allow", "10.0.0.0/8,fd00::/8", "--no-python", "true").out.decode().splitlines()
    assert [line.split() for line in shown if line.split()[:1] in (["bind"], ["allow"])] == \
        [["bind", "127.0.0.9"], ["allow", "10.0.0.0/8,fd00::/8"]]
    assert not [line for line in run(*words, "--no-python", "true").out.decode().splitlines() if line.split()[:1] in (["bind"], ["allow"])]


def test_one_node_on_loopback_is_no_reason_for_a_warning(scene):
    agent = scene.shell("true", *c10d(f"localhost:{free_port()}", "--nnodes=1"))
    assert (agent.end(), agent.trouble) == (0, "")


def test_several_nodes_on_loopback_are_warned(scene):
    agent = scene.shell("true", *c10d(f"localhost:{free_port()}", "--nnodes=1:2"))
    assert agent.end() == 0
    assert "'localhost' is the loopback address, so only nodes on this host can join it" in agent.err


def test_who_must_host_for_an_address_of_another_machine_listens_everywhere(scene):
    """A Service or NAT stands in front of it."""
    port = free_port()
    agent = scene.actors("--rdzv-backend=c10d", f"--rdzv-endpoint=192.0.2.1:{port}", "--rdzv-conf=is_host=true")
    (worker,) = scene.world(1)
    assert listening(agent.agent)[port] in ({"::"}, {"0.0.0.0"})
    assert "'192.0.2.1' is not an address of this machine, so its store listens on every address; --bind ADDR" in agent.err
    worker.succeed()
    assert agent.end() == 0


def test_a_port_that_loopback_has_under_another_name_is_joined(scene, nets):
    """One node says localhost and hosts, the other says an address of the same machine."""
    first = scene.actors(*c10d("localhost:29400", "--nnodes=2"), program=inside(nets, "a"))
    until(lambda: 29400 in listening(first.agent), what="its store")
    second = scene.actors(*c10d("10.201.0.1:29400", "--nnodes=2"), program=inside(nets, "a"))
    for worker in scene.world(2):
        worker.succeed()
    assert (first.end(), second.end()) == (0, 0)


# ---- The health check

def health_addresses(scene, *options, **env):
    port = free_port()
    agent = scene.actors("--standalone", *options, env={"TORCHELASTIC_HEALTH_CHECK_PORT": str(port), **env})
    (worker,) = scene.world(1)
    listeners = listening(agent.agent)
    if port not in listeners:
        pytest.skip("libmicrohttpd is absent")
    worker.succeed()
    assert agent.end() == 0
    return listeners[port]


def test_the_health_check_listens_on_loopback(scene):
    assert health_addresses(scene) == loopback()


def test_the_health_check_listens_where_its_variable_says(scene):
    assert health_addresses(scene, TORCHELASTIC_HEALTH_CHECK_HOST="127.0.0.8") == {"127.0.0.8"}
    assert health_addresses(scene, TORCHELASTIC_HEALTH_CHECK_HOST="0.0.0.0") == {"0.0.0.0"}


def test_the_health_check_listens_where_the_job_does(scene):
    assert health_addresses(scene, "--bind", "127.0.0.9") == loopback() | {"127.0.0.9"}
    assert health_addresses(scene, "--bind", "any") in ({"::"}, {"0.0.0.0"})
    assert "0.0.0.0" in health_addresses(scene, "--bind", "0.0.0.0")


# ---- Several machines

def test_nobody_reaches_a_job_of_one_node_from_another_machine(scene, nets):
    agent = scene.actors("--standalone", program=inside(nets, "a"))
    (worker,) = scene.world(1)
    ports = listening(agent.agent)
    assert len(ports) == 2
    for port in ports:
        for host in ("10.201.0.1", "10.202.0.1", "fd00:201::1"):
            assert nets.try_from("b", host, port) == "refused"
        assert nets.try_from("a", "127.0.0.1", port) == "open"
        assert nets.try_from("a", "::1", port) == "open"
    worker.succeed()
    assert (agent.end(), agent.trouble) == (0, "")


@pytest.mark.parametrize("host", ["10.201.0.1", "fd00:201::1"])
def test_a_job_of_two_machines_listens_at_its_endpoint(scene, nets, host):
    endpoint = f"[{host}]:29400" if ":" in host else f"{host}:29400"
    agents = [scene.actors(*c10d(endpoint, "--nnodes=2"), program=inside(nets, which)) for which in "ab"]
    workers = scene.world(2)
    assert nets.try_from("b", host, 29400) == "open"
    assert nets.try_from("b", "10.202.0.1", 29400) == "refused"
    assert nets.try_from("a", "127.0.0.1", 29400) == "open"
    (master,) = {(worker.env["MASTER_ADDR"], int(worker.env["MASTER_PORT"])) for worker in workers}
    assert nets.try_from("a", *master) == nets.try_from("b", *master) == "open"
    for agent in agents:
        assert not {"0.0.0.0", "::"} & set().union(*listening(agent.agent).values())
    for worker in workers:
        worker.succeed()
    assert [(agent.end(), agent.trouble) for agent in agents] == [(0, "")] * 2


def meet(scene, nets, *words):
    """Workers on both machines meet at MASTER_ADDR; gives that, and the agents. `words`: those of a, those of b."""
    agents = [scene.shell(MEET, *some, program=inside(nets, which), env={"MUSTER": MUSTER})
              for which, some in zip("ab", words)]
    codes = [agent.end(2 * LIMIT) for agent in agents]
    assert codes == [0, 0], [agent.err for agent in agents]
    (master,) = {agent.out.decode().strip() for agent in agents}
    return master, agents


def test_workers_reach_the_address_that_their_node_has_for_others(scene, nets):
    """They meet at the second wire, and nodes at the first."""
    words = c10d("10.201.0.1:29400", "--nnodes=2")
    master, _ = meet(scene, nets, [*words, "--local-addr=10.202.0.1"], [*words, "--local-addr=10.202.0.2"])
    assert master in ("10.202.0.1", "10.202.0.2")


def test_a_machine_may_call_itself_loopback(scene, nets):
    """As Debian does it: its own name is 127.0.1.1 there, and a real address for everybody else."""
    nets.hosts("a", node1="127.0.1.1")
    nets.hosts("b", node1="10.201.0.1")
    words = c10d("node1:29400", "--nnodes=2")
    _, (first, _) = meet(scene, nets, words, words)
    assert "'node1' is a loopback address on this machine, so its store also listens on the addresses of all" in first.err


def test_a_name_of_several_machines_is_hosted_where_it_is_ours(scene, nets):
    hosts = pathlib.Path("/etc/netns")
    for which in "ab":
        nets.hosts(which, node1="10.201.0.1")
        with open(hosts / nets.names[which] / "hosts", "a", encoding="utf-8") as more:
            more.write("192.0.2.7 node1\n10.202.0.1 node1\n")
    agents = [scene.actors(*c10d("node1:29400", "--nnodes=2"), program=inside(nets, which)) for which in "ab"]
    workers = scene.world(2)
    assert {"10.201.0.1", "10.202.0.1"} <= listening(agents[0].agent)[29400]
    assert nets.try_from("b", "fd00:201::1", 29400) == "refused"
    for worker in workers:
        worker.succeed()
    assert [agent.end() for agent in agents] == [0, 0]


def test_a_loopback_endpoint_and_bind_let_others_in(scene, nets):
    """Its host says localhost, the others its address; workers meet at what the others came to."""
    options = ["--nnodes=2"]
    master, (first, _) = meet(scene, nets, c10d("localhost:29400", *options, "--bind=10.201.0.1"),
                              c10d("10.201.0.1:29400", *options))
    assert master in ("10.201.0.1", "10.201.0.2")
    assert "loopback" not in first.err


def test_static_listens_at_the_master_address(scene, nets):
    options = ["--rdzv-backend=static", "--nnodes=2", "--master-addr=10.201.0.1", "--master-port=29500"]
    agents = [scene.actors(*options, f"--node-rank={rank}", program=inside(nets, which))
              for rank, which in enumerate("ab")]
    workers = scene.world(2)
    assert nets.try_from("b", "10.201.0.1", 29500) == "open"
    assert nets.try_from("b", "10.202.0.1", 29500) == "refused"
    assert nets.try_from("a", "::1", 29500) == "open"
    for worker in workers:
        worker.succeed()
    assert [agent.end() for agent in agents] == [0, 0]


def test_only_allowed_networks_get_in(scene, nets):
    agent = scene.actors("--standalone", "--bind=any", "--allow=10.202.0.0/24,fd00::/8", program=inside(nets, "a"))
    (worker,) = scene.world(1)
    command = [*nets.inside("b"), MUSTER, "store", "num-keys", "--timeout", "5", "--endpoint"]
    for host, code in (("10.201.0.1", 1), ("10.202.0.1", 0), ("[fd00:201::1]", 0)):
        done = subprocess.run([*command, f"{host}:{worker.env['MASTER_PORT']}"], env=environment(), timeout=LIMIT,
                              capture_output=True, text=True, check=False)
        assert done.returncode == code, done
    worker.succeed()
    assert agent.end() == 0
    assert "its address is in none of the allowed networks" in agent.err


def test_join_listens_at_its_endpoint(nets):
    join = subprocess.Popen([*nets.inside("a"), MUSTER, "join", "--rdzv-id=job", "--rdzv-endpoint=10.201.0.1:29400",
                             "--nnodes=2", "--hold=60"], stderr=subprocess.PIPE, env=environment())
    try:
        until(lambda: nets.try_from("b", "10.201.0.1", 29400) == "open", what="its store")
        assert nets.try_from("b", "10.202.0.1", 29400) == "refused"
        assert nets.try_from("a", "::1", 29400) == "open"
    finally:
        join.send_signal(signal.SIGKILL)
        join.communicate()

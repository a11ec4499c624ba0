"""Jobs of muster nodes that meet in the engine of muster's own store: c10d with engine=on."""

import os
import re
import signal
import socket
import time

import pytest

from ports import free_port
from run_scene import DEATH_AGE
from serving import LIMIT, run, until
from test_join import join  # noqa: F401: a fixture
from test_run import agent_of, end_all, kill_agent, kill_both, kill_keeper, local, one

HOST = socket.gethostname()
ENGINE = "engine=on,last_call_timeout=1"
AT_ONCE = 1.5  # seconds; it is a few milliseconds, and longer on a busy machine


@pytest.fixture(params=["a store of its own", "a member"])
def start(request, scene, serve):
    """Starts nodes at an endpoint where nobody of the job is the host, or where the first of them is."""
    outside = request.param == "a store of its own"
    endpoint = serve().endpoint if outside else local(free_port())

    def nodes(count, *options, conf=ENGINE):
        started = [scene.node(endpoint, "-v", *options, conf=conf) for _ in range(count)]
        for node in started:
            node.said("using muster's engine at" if "engine=on" in conf else "configuration:")
        return started

    nodes.outside, nodes.endpoint = outside, endpoint
    return nodes


def hosts(agent):
    return "hosting its store on port" in agent.err


def guests_first(scene, workers):
    """Workers whose agents do not host the store come first."""
    return sorted(workers, key=lambda worker: hosts(agent_of(scene, worker)))


def failure(worker):
    return f"rank {worker.rank} on {HOST} (local rank 0, pid {worker.pid}) failed: exit code 3"


def why(agent):
    """Why rounds ended, as it says."""
    return re.findall(r"(?:warning|notice): (.*; restarting with .*)", agent.err)


def test_nodes_form_restart_and_succeed(scene, start):
    agents = start(2, "--nnodes=2", "--max-restarts=2")
    assert sum(hosts(agent) for agent in agents) == (0 if start.outside else 1)
    first = scene.world(2)
    assert one(first, "TORCHELASTIC_RESTART_COUNT") == "0" and one(first, "TORCHELASTIC_USE_AGENT_STORE") == "True"
    cause = failure(first[1])
    first[1].fail()
    second = scene.world(2, without=first)
    assert one(second, "TORCHELASTIC_RESTART_COUNT") == "1"
    end_all(second)
    assert [agent.end() for agent in agents] == [0, 0]
    for agent in agents:
        assert why(agent) == [f"{cause}; restarting with 2 nodes, restart 1 of 2"]


def test_where_many_nodes_may_come_the_workers_store_serves_beside_the_agent(scene, start):
    """On a thread of its own. A new round has a new store."""
    agents = start(2, "--nnodes=2:512", "--max-restarts=2")
    first = scene.world(2)
    master = local(one(first, "MASTER_PORT"))
    assert run("store", "set", "--endpoint", master, "k", "v").code == 0
    assert run("store", "get", "--endpoint", master, "k").out == b"v"
    first[0].fail()
    second = scene.world(2, without=first)
    assert run("store", "check", "--endpoint", local(one(second, "MASTER_PORT")), "k").code != 0
    end_all(second)
    assert [agent.end() for agent in agents] == [0, 0]


def test_a_budget_that_is_used_up_is_the_same_verdict_everywhere(scene, start):
    agents = start(2, "--nnodes=2", "--max-restarts=0")
    workers = scene.world(2)
    cause, failing = failure(workers[0]), agent_of(scene, workers[0])
    workers[0].fail()
    assert [agent.end() for agent in agents] == [1, 1], [agent.err[-1500:] for agent in agents]
    for agent in agents:
        assert cause in agent.err
        assert ("ChildFailedError" in agent.err) == (agent is failing)


def test_a_killed_agent_is_noticed_at_once_and_named(scene, start):
    """Its keeper holds its will. Killed: the last one that does not host the store, whoever leads."""
    agents = start(3, "--nnodes=2:3", "--max-restarts=0")
    first = scene.world(3)
    lost = agent_of(scene, guests_first(scene, first)[0])
    pid, began = lost.agent, time.monotonic()
    kill_agent(lost)
    second = scene.world(2, without=first)
    took = time.monotonic() - began
    assert took < AT_ONCE
    assert one(second, "TORCHELASTIC_RESTART_COUNT") == "0"
    end_all(second)
    left = [agent for agent in agents if agent is not lost]
    assert [agent.end() for agent in left] == [0, 0]
    for agent in left:
        assert why(agent) == [f"lost {HOST} (pid {pid}): its agent was killed; restarting with 2 nodes, no restart charged"]


def test_a_killed_leader_is_named_by_the_next_one(scene, serve):
    """Whichever of the two leads: both are killed in turn, and another node takes the place."""
    endpoint = serve().endpoint
    agents = [scene.node(endpoint, "--nnodes=1:2", conf=ENGINE) for _ in range(2)]
    for turn in range(2):
        workers = scene.world(2)
        lost = agent_of(scene, workers[turn])
        left, = [agent for agent in agents if agent is not lost]
        pid = lost.agent
        kill_agent(lost)
        alone = scene.world(1, without=workers)
        left.said(f"lost {HOST} (pid {pid}): its agent was killed; restarting with 1 node, no restart charged")
        agents = [left, scene.node(endpoint, "--nnodes=1:2", conf=ENGINE)]
        scene.world(2, without=[*workers, *alone])
    end_all(scene.alive())
    assert [agent.end() for agent in agents] == [0, 0]


@pytest.mark.parametrize("kill, how", [(kill_both, "its connection was closed"), (kill_keeper, "its launcher was killed")])
def test_a_node_without_a_will_is_noticed_soon(scene, serve, kill, how):
    """Its connection is reset, and nobody comes back; or its agent still says why it goes."""
    endpoint = serve().endpoint
    agents = [scene.node(endpoint, "--nnodes=1:2", "--max-restarts=0", conf=ENGINE) for _ in range(2)]
    first = scene.world(2)
    lost = agent_of(scene, first[1])
    kill(lost)
    second = scene.world(1, without=first, limit=DEATH_AGE + LIMIT)
    end_all(second)
    left, = [agent for agent in agents if agent is not lost]
    assert left.end() == 0
    lost_it, = why(left)
    assert lost_it.startswith(f"lost {HOST}") and "no restart charged" in lost_it
    assert how in lost_it or (how.startswith("its connection") and ":" not in lost_it)  # the lost one has led


def test_a_node_leaves_and_another_joins_for_free(scene, start):
    agents = start(2, "--nnodes=2:3", "--max-restarts=0")
    first = scene.world(2)
    late, = start(1, "--nnodes=2:3", "--max-restarts=0")
    second = scene.world(3, without=first)
    newcomer = f"{HOST} (pid {late.agent})"
    late.signal(signal.SIGTERM)
    assert late.end() != 0
    third = scene.world(2, without=second)
    assert one(third, "TORCHELASTIC_RESTART_COUNT") == "0"
    end_all(third)
    assert [agent.end() for agent in agents] == [0, 0]
    for agent in agents:
        joins, leaves = why(agent)
        assert joins == f"{newcomer} joins; restarting with 3 nodes, no restart charged"
        assert newcomer in leaves and leaves.endswith("; restarting with 2 nodes, no restart charged")


def test_a_host_that_is_done_stays_until_the_others_are(scene):
    endpoint = local(free_port())
    host = scene.node(endpoint, "-v", "--nnodes=2", conf=ENGINE)
    host.said("hosting its store")
    guest = scene.node(endpoint, "-v", "--nnodes=2", conf=ENGINE)
    last, first = guests_first(scene, scene.world(2))
    first.succeed()
    until(lambda: not first.alive)
    time.sleep(DEATH_AGE)
    assert host.process.poll() is None and guest.process.poll() is None and last.alive
    last.succeed()
    assert [host.end(), guest.end()] == [0, 0]
    assert "lost" not in host.err + guest.err


@pytest.mark.parametrize("stopped", ["agent", "worker"])
def test_a_node_that_was_paused_for_less_than_its_lease_is_not_lost(scene, serve, stopped):
    endpoint = serve().endpoint
    agents = [scene.node(endpoint, "--nnodes=1:2", conf=ENGINE) for _ in range(2)]
    workers = scene.world(2)
    pid = agent_of(scene, workers[0]).agent if stopped == "agent" else workers[0].pid
    os.kill(pid, signal.SIGSTOP)
    time.sleep(DEATH_AGE / 2)
    os.kill(pid, signal.SIGCONT)
    time.sleep(DEATH_AGE)
    assert all(worker.alive for worker in workers)
    end_all(workers)
    assert [agent.end() for agent in agents] == [0, 0]


def test_a_wait_names_who_was_lost(scene, serve):
    endpoint = serve().endpoint
    agents = [scene.node(endpoint, "--nnodes=2", conf=ENGINE) for _ in range(2)]
    first = scene.world(2)
    lost = agent_of(scene, first[1])
    pid = lost.agent
    kill_agent(lost)
    left, = [agent for agent in agents if agent is not lost]
    left.said("1 more needed; gives up in ")
    until(lambda: re.search(rf"1 more needed; .*; the last round has ended: lost {HOST} \(pid {pid}\): its agent was killed\n",
                            left.err), what="who is missing")
    again = scene.node(endpoint, "--nnodes=2", conf=ENGINE)
    end_all(scene.world(2, without=first))
    assert [left.end(), again.end()] == [0, 0]


def test_a_silent_node_is_lost_after_its_lease(scene, serve):
    endpoint = serve().endpoint
    lease = 5  # so long that the other agent, on a busy machine, is not late as well: then the network would be suspected
    agents = [scene.node(endpoint, "--nnodes=1:2", conf=f"{ENGINE},keep_alive_max_attempt={lease}") for _ in range(2)]
    first = scene.world(2)
    silent, began = agent_of(scene, first[1]), time.monotonic()
    pid = silent.agent
    os.kill(pid, signal.SIGSTOP)
    left, = [agent for agent in agents if agent is not silent]
    left.said(f"lost {HOST} (pid {pid}): no keep-alive for {lease} s", lease + LIMIT)
    assert lease * 0.6 < time.monotonic() - began < lease + 1.5
    os.kill(pid, signal.SIGKILL)
    end_all(scene.world(1, without=first))
    assert left.end() == 0


# ---- A store that goes ----


def host_and_guests(scene, guests, *options, conf=""):
    """The first node hosts the store."""
    endpoint = local(free_port())
    host = scene.node(endpoint, "-v", *options, conf=ENGINE + conf)
    host.said("hosting its store")
    return host, [scene.node(endpoint, "-v", *options, conf=ENGINE + conf) for _ in range(guests)], endpoint


def test_the_job_ends_when_the_host_of_its_store_stays_away(scene):
    host, (guest, other), endpoint = host_and_guests(scene, 2, "--nnodes=2:3", conf=",store_lost_timeout=2")
    scene.world(3)
    pid = host.agent
    kill_agent(host)
    for agent in (guest, other):
        assert agent.end() == 1
        about = [line for line in agent.err.splitlines() if "warning: " in line and ("store" in line or "refused" in line)]
        assert f"lost {HOST} (pid {pid}): the store that it hosts refuses connections" in about[0], agent.err
        assert "the workers run on" not in agent.err, agent.err
        last = agent.err.splitlines()[-1]
        assert re.search(rf"the store at {endpoint} is lost: its host {HOST} \(pid {pid}\) has refused connections for \d+ s", last)
        assert "--rdzv-backend etcd-v3" in last


def test_the_job_ends_when_the_host_of_its_store_stays_silent(scene):
    host, (guest,), endpoint = host_and_guests(scene, 1, "--nnodes=1:2", conf=",store_lost_timeout=2")
    scene.world(2)
    pid = host.agent
    os.kill(pid, signal.SIGSTOP)
    try:
        assert guest.end(limit=90) == 1
    finally:
        os.kill(pid, signal.SIGKILL)
    assert f"lost {HOST} (pid {pid}): the store that it hosts does not answer" in guest.err, guest.err
    last = guest.err.splitlines()[-1]
    assert re.search(rf"the store at {endpoint} is lost: its host {HOST} \(pid {pid}\) has not answered for \d+ s", last)


@pytest.mark.parametrize("failed", [0, 1])
def test_a_host_that_is_back_in_time_is_joined_for_free(scene, failed):
    """What was known of the job before is not lost with the store: the count goes on."""
    options = ("--nnodes=3", "--max-restarts=2")
    host, guests, endpoint = host_and_guests(scene, 2, *options)
    first = scene.world(3)
    for _ in range(failed):
        first[1].fail()
        first = scene.world(3, without=first)
    pid = host.agent
    kill_agent(host)
    for guest in guests:
        guest.said(f"lost {HOST} (pid {pid}): the store that it hosts refuses connections")
    again = scene.node(endpoint, "-v", *options, conf=ENGINE)
    began = time.monotonic()
    second = scene.world(3, without=first)
    assert time.monotonic() - began < AT_ONCE + 1  # at once, without a last call
    assert one(second, "TORCHELASTIC_RESTART_COUNT") == str(failed)
    end_all(second)
    assert [agent.end() for agent in (*guests, again)] == [0, 0, 0]
    for guest in guests:
        assert why(guest)[-1] == f"lost {HOST} (pid {pid}): the store that it hosted is gone; restarting with 3 nodes, no restart charged"


@pytest.mark.parametrize("failed", [0, 1])
def test_where_a_store_without_an_engine_takes_the_hosts_place_all_go_on_in_a_document(scene, failed):
    """As a PyTorch node makes it that starts where the host was. What was counted counts on."""
    options = ("--nnodes=2:3", "--max-restarts=2")
    host, guests, endpoint = host_and_guests(scene, 2, *options)
    first = scene.world(3)
    for _ in range(failed):
        first[1].fail()
        first = scene.world(3, without=first)
    pid = host.agent
    kill_agent(host)
    for guest in guests:
        guest.said(f"lost {HOST} (pid {pid}): the store that it hosts refuses connections")
    other = scene.node(endpoint, "-v", *options, conf="engine=off,last_call_timeout=1")
    second = scene.world(3, without=first)
    assert one(second, "TORCHELASTIC_RESTART_COUNT") == str(failed)
    for guest in guests:
        guest.said("meeting in a document")
    second[0].fail()
    third = scene.world(3, without=second)
    assert one(third, "TORCHELASTIC_RESTART_COUNT") == str(failed + 1)
    end_all(third)
    assert [agent.end() for agent in (*guests, other)] == [0, 0, 0]


def test_a_store_that_no_node_hosts_is_tried_without_limit_and_workers_run_on(scene, serve):
    """And what is known of the job comes back with the nodes, though the store that answers then is empty."""
    server = serve()
    options = ("--nnodes=2", "--max-restarts=2")
    agents = [scene.node(server.endpoint, *options, conf=f"{ENGINE},store_lost_timeout=1") for _ in range(2)]
    workers = scene.world(2)
    workers[0].fail()
    workers = scene.world(2, without=workers)
    server.stop()
    for agent in agents:
        agent.said("the workers run on; trying again\n")
        agent.said("the store has been away for ")
    assert all(worker.alive for worker in workers)
    serve("--port", str(server.port))
    for agent in agents:
        agent.said("the store is back after")
    time.sleep(DEATH_AGE + 1)
    assert all(worker.alive for worker in workers)
    workers[1].fail()
    last = scene.world(2, without=workers)
    assert one(last, "TORCHELASTIC_RESTART_COUNT") == "2"
    end_all(last)
    assert [agent.end() for agent in agents] == [0, 0]


# ---- Beside nodes that meet in a document ----


def test_with_a_node_without_the_engine_all_go_on_in_a_document(scene, start):
    """It is to them what a PyTorch node is. What was counted counts on."""
    agents = start(2, "--nnodes=2:3", "--max-restarts=3")
    workers = scene.world(2)
    workers[0].fail()
    before = scene.world(2, without=workers)
    agents.append(scene.node(start.endpoint, "--nnodes=2:3", "--max-restarts=3", conf="engine=off,last_call_timeout=1"))
    workers = scene.world(3, without=before)
    assert one(workers, "TORCHELASTIC_RESTART_COUNT") == "1"
    until(lambda: re.search("a PyTorch node (wants to join|joins); restarting the group", agents[0].err), what=agents[0].err)
    workers[1].fail()
    again = scene.world(3, without=workers)
    assert one(again, "TORCHELASTIC_RESTART_COUNT") == "2"
    end_all(again)
    assert [agent.end() for agent in agents] == [0, 0, 0]


@pytest.mark.parametrize("newcomers", [1, 2])
def test_who_comes_first_to_a_store_that_was_restarted_gives_way_to_those_who_had_moved(scene, serve, newcomers):
    """The store is empty then, and its engine takes who comes. Two newcomers have begun a world of their own there."""
    server = serve()
    options = ("--nnodes=2:5", "--max-restarts=3")
    confs = (ENGINE, ENGINE, ENGINE.replace("engine=on", "engine=off"))
    agents = [scene.node(server.endpoint, "-v", *options, conf=conf) for conf in confs]
    workers = scene.world(3)
    workers[0].fail()
    workers = scene.world(3, without=workers)
    for agent in agents:
        os.kill(agent.agent, signal.SIGSTOP)
    server.stop()
    serve("--port", str(server.port))
    late = [scene.node(server.endpoint, "-v", *options, conf=ENGINE) for _ in range(newcomers)]
    for agent in late:
        agent.said("using muster's engine at")
    if newcomers == 1:
        late[0].said("waiting for rendezvous 'job'")
    else:
        until(lambda: len(scene.alive()) == 3 + newcomers, LIMIT)
        workers = scene.alive()
    for agent in agents:
        os.kill(agent.agent, signal.SIGCONT)
    for agent in late:
        agent.said("meeting in a document")
    last = scene.world(3 + newcomers, without=workers)
    assert one(last, "TORCHELASTIC_RESTART_COUNT") == "1"
    end_all(last)
    assert [agent.end() for agent in (*agents, *late)] == [0] * (3 + newcomers)


@pytest.mark.parametrize("nodes_min", [1, 3])
def test_a_host_that_is_back_gives_way_to_those_who_had_moved(scene, nodes_min):
    """Its store is empty, and it is the first in the engine; alone it may begin a world of its own there."""
    options = (f"--nnodes={nodes_min}:3", "--max-restarts=3")
    host, guests, endpoint = host_and_guests(scene, 1, *options)
    guests.append(scene.node(endpoint, "-v", *options, conf=ENGINE.replace("engine=on", "engine=off")))
    workers = scene.world(3)
    workers[0].fail()
    workers = scene.world(3, without=workers)
    kill_agent(host)
    again = scene.node(endpoint, "-v", *options, conf=ENGINE)
    again.said("meeting in a document")
    last = scene.world(3, without=workers)
    assert one(last, "TORCHELASTIC_RESTART_COUNT") == "1"
    end_all(last)
    assert [agent.end() for agent in (*guests, again)] == [0, 0, 0]


def test_a_node_without_the_engine_is_a_spare_where_there_is_no_place(scene, start):
    agents = start(2, "--nnodes=2")
    workers = scene.world(2)
    other = scene.node(start.endpoint, "--nnodes=2", conf="engine=off,last_call_timeout=1")
    other.said(": no answer yet, after ")
    assert [worker.pid for worker in scene.alive()] == [worker.pid for worker in workers]
    end_all(workers)
    assert [agent.end() for agent in agents] == [0, 0]
    assert other.end() == 1
    assert "the rendezvous is closed" in other.err, "it began the job anew"


def test_a_node_without_the_engine_is_refused_by_those_who_want_nothing_else(scene, serve):
    endpoint = serve().endpoint
    agents = [scene.node(endpoint, "--nnodes=2:3", conf=ENGINE.replace("engine=on", "engine=only")) for _ in range(2)]
    workers = scene.world(2)
    other = scene.node(endpoint, "--nnodes=2:3", conf="engine=off,last_call_timeout=1")
    assert other.end() == 1
    assert "this node has engine=off, but the job meets in the engine of the store at" in other.err
    assert all(worker.alive for worker in workers)
    end_all(workers)
    assert [agent.end() for agent in agents] == [0, 0]


def test_who_writes_the_document_of_such_a_job_is_cut_off_and_told_of_once(scene, start):
    agents = start(1, "--nnodes=1:2")
    workers = scene.world(1)
    for _ in range(3):
        ended = run("store", "add", "--endpoint", start.endpoint, "torch.rendezvous.job", "1")
        assert ended.code != 0
    if not start.outside:
        assert agents[0].err.count("it asks for the document of job 'job', which meets in the engine") == 1
    end_all(workers)
    assert agents[0].end() == 0


def test_a_job_that_has_begun_with_a_document_goes_on_with_it(scene, serve):
    endpoint = serve().endpoint
    first = scene.node(endpoint, "-v", "--nnodes=2", conf="last_call_timeout=1,engine=off")
    until(lambda: run("store", "get", "--endpoint", endpoint, "torch.rendezvous.job").code == 0)
    second = scene.node(endpoint, "-v", "--nnodes=2", conf=ENGINE)
    workers = scene.world(2)
    second.said("meeting in a document")
    end_all(workers)
    assert [first.end(), second.end()] == [0, 0]


def test_two_jobs_at_one_store_do_not_meet(scene, serve):
    endpoint = serve().endpoint
    agents = [scene.node(endpoint, "--nnodes=1", conf=ENGINE, id=name) for name in ("one", "two")]
    agents.append(scene.node(endpoint, "--nnodes=1", conf="last_call_timeout=1", id="three"))
    until(lambda: len(scene.alive()) == 3, LIMIT)
    assert [one([worker], "WORLD_SIZE") for worker in scene.alive()] == ["1"] * 3
    end_all(scene.alive())
    assert [agent.end() for agent in agents] == [0, 0, 0]


def test_workers_run_on_when_a_store_alone_is_replaced_by_one_without_an_engine(scene, serve):
    """Whatever it is, no member was lost; the job's own store may come back there."""
    server = serve()
    agents = [scene.node(server.endpoint, "--nnodes=2", conf=ENGINE) for _ in range(2)]
    workers = scene.world(2)
    server.stop()
    other = scene.node(server.endpoint, "--nnodes=1", id="other", conf="last_call_timeout=1,engine=off,is_host=true")
    for agent in agents:
        agent.said("has no engine")
    other.signal(signal.SIGTERM)
    assert other.end() == 1
    serve("--port", str(server.port))
    for agent in agents:
        agent.said("the store is back after")
    assert all(worker.alive for worker in workers)
    end_all(workers)
    assert [agent.end() for agent in agents] == [0, 0]


# ---- Options ----


@pytest.mark.parametrize("conf, said", [
    ("engine=maybe", "option 'engine': 'maybe' is none of on, off and only"),
    ("engine=off,fence=5", "option 'fence' does not go with engine=off"),
    ("engine=off,restart_window=5", "option 'restart_window' does not go with engine=off")])
def test_options_that_are_wrong_are_named(scene, conf, said):
    agent = scene.node(local(free_port()), "--nnodes=2", conf=conf)
    assert agent.end() == 1
    assert said in agent.err


def test_a_member_that_hears_nothing_behind_its_fence_stops_its_workers(scene, serve):
    server = serve()
    agents = [scene.node(server.endpoint, "--nnodes=1:2", conf=f"{ENGINE},fence=1") for _ in range(2)]
    workers = scene.world(2)
    time.sleep(2)
    assert all(worker.alive for worker in workers)  # its keep-alives are answered
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        until(lambda: not any(worker.alive for worker in workers), LIMIT)
        for agent in agents:
            agent.said("the store has acknowledged no keep-alive for 1 s")
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    end_all(scene.world(2, without=workers))
    assert [agent.end() for agent in agents] == [0, 0]


# ---- muster join ----


def test_nodes_without_workers_meet_there_too(join, serve):  # noqa: F811
    endpoint = serve().endpoint
    nodes = [join(endpoint, "--json", "--nnodes", "2", "--rdzv-conf", ENGINE) for _ in range(2)]
    found = [node.event("joined") for node in nodes]
    assert sorted(event["rank"] for event in found) == [0, 1]
    assert {event["world_size"] for event in found} == {2}
    for node in nodes:
        node.signal(signal.SIGTERM)
        node.end()


def test_a_job_may_have_the_longest_name(join, serve):  # noqa: F811
    node = join(serve().endpoint, "--json", "--nnodes", "1", "--rdzv-conf", ENGINE, id="x" * 1024)
    assert node.event("joined")["rank"] == 0
    node.signal(signal.SIGTERM)
    node.end()

"""What `muster run` says by default while all is well: who waits for whom, and who is in the group that has formed."""

import re
import socket
import time

import pytest

from ports import free_port
from serving import LIMIT, Imposter, until
from test_run import end_all, kill_agent, local, one


def formed(agent):
    """The lines about groups that have formed, without what every line begins with."""
    return [line.partition(" notice: ")[2] for line in agent.err.splitlines() if " notice: group formed: " in line]


def expected(nodes, workers, own, rounds):
    """That line for the node that has these workers."""
    master = f"{one(workers, 'MASTER_ADDR')}:{one(workers, 'MASTER_PORT')}"
    ranks = f"worker {own[0].rank}" if len(own) == 1 else f"workers {own[0].rank}-{own[-1].rank}"
    return (f"group formed: {nodes} node{'s' if nodes > 1 else ''}, {len(workers)} workers{rounds}; "
            f"this node: rank {own[0].env['GROUP_RANK']} ({ranks}); master {master}")


def workers_of(workers, agent):
    return [worker for worker in workers if f" {worker.pid} " in children_of(agent)]


def children_of(agent):
    with open(f"/proc/{agent.agent}/task/{agent.agent}/children", encoding="ascii") as file:
        return f" {file.read()} "


def test_every_node_says_once_which_workers_of_the_group_are_its_own(scene):
    endpoint = local(free_port())
    agents = [scene.node(endpoint, "--nnodes=3", f"--nproc-per-node={size}") for size in (1, 3, 2)]
    workers = scene.world(6)
    for agent in agents:
        agent.said("group formed: ")
        assert formed(agent) == [expected(3, workers, workers_of(workers, agent), ", round 0")]
    end_all(workers)
    assert [agent.end() for agent in agents] == [0, 0, 0]


def test_a_group_that_forms_again_is_said_again(scene):
    endpoint = local(free_port())
    agents = [scene.node(endpoint, "--nnodes=2", "--max-restarts=1") for _ in range(2)]
    old = scene.world(2)
    old[0].fail()
    workers = scene.world(2, without=old)
    for agent in agents:
        agent.said(", round 1; ")
        line, = formed(agent)[1:]
        again = expected(2, workers, workers_of(workers, agent), ", round 1")
        assert re.fullmatch(re.escape(again) + r"; regrouped in \d+\.\d{3} s, restarts used: 1 of 1", line), line
        assert agent.err.count("regrouped in") == 1
    end_all(workers)
    assert [agent.end() for agent in agents] == [0, 0]


def test_a_static_group_has_no_rounds(scene):
    port = free_port()
    agents = [scene.actors("--nnodes=2", f"--node-rank={rank}", f"--master-port={port}") for rank in (1, 0)]
    workers = scene.world(2)
    for agent in agents:
        agent.said("group formed: ")
        assert formed(agent) == [expected(2, workers, workers_of(workers, agent), "")]
    end_all(workers)
    assert [agent.end() for agent in agents] == [0, 0]


def test_the_master_is_named_when_the_workers_make_their_own_store(scene):
    agent = scene.actors("--nproc-per-node=2", env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
    workers = scene.world(2)
    agent.said("group formed: ")
    assert formed(agent) == [expected(1, workers, workers, ", round 0")]
    end_all(workers)
    assert agent.end() == 0


@pytest.mark.usefixtures("document")  # in the engine a node is told its own seat, and not all members
@pytest.mark.parametrize("option", ["-q", "-v"])
def test_quiet_hides_it_and_verbose_adds_the_members(scene, option):
    endpoint = local(free_port())
    agents = [scene.node(endpoint, "--nnodes=2", option) for _ in range(2)]
    workers = scene.world(2)
    end_all(workers)
    assert [agent.end() for agent in agents] == [0, 0]
    for agent in agents:
        if option == "-q":
            assert agent.err == ""
        else:
            members = re.search(r" info: round 0, ranks 0-1: \S+ \(pid (\d+)\), \S+ \(pid (\d+)\)\n", agent.err)
            assert members and len(set(members.groups())) == 2 and len(formed(agent)) == 1


RESULT = ["restart_count", "master_addr", "master_port", "group_rank", "group_world_size", "local_ranks", "role_ranks",
          "global_ranks", "role_world_sizes", "global_world_sizes", "event_log_handler"]


def results(agent):
    """The results of the rendezvous that were told, as dictionaries, with the role."""
    lines = [line.partition(" info: ")[2] for line in agent.err.splitlines()]
    heads = [i for i, line in enumerate(lines) if line.endswith("] Rendezvous complete for workers. Result:")]
    return [{"role": re.match(r"\[(.*?)\]", lines[i])[1],
             **dict(line[2:].split("=", 1) for line in lines[i + 1:i + 1 + len(RESULT)])} for i in heads]


def numbers(workers, name):
    return str([int(worker.env[name]) for worker in workers])


def test_verbose_tells_the_result_of_every_rendezvous(scene):
    endpoint = local(free_port())
    agents = [scene.node(endpoint, "--nnodes=2", f"--nproc-per-node={size}", f"--role={role}", "-v", "--max-restarts=1")
              for size, role in ((1, "ps"), (2, "trainer"))]
    old = scene.world(3)
    old[0].fail()
    workers = scene.world(3, without=old)
    for agent in agents:
        own = workers_of(workers, agent)
        until(lambda a=agent: len(results(a)) == 2, what="the second result")
        assert [list(result)[1:] for result in results(agent)] == [RESULT, RESULT]
        assert results(agent)[1] == {
            "role": one(own, "ROLE_NAME"), "restart_count": "1", "master_addr": one(own, "MASTER_ADDR"),
            "master_port": one(own, "MASTER_PORT"), "group_rank": one(own, "GROUP_RANK"),
            "group_world_size": "2", "local_ranks": numbers(own, "LOCAL_RANK"),
            "role_ranks": numbers(own, "ROLE_RANK"), "global_ranks": numbers(own, "RANK"),
            "role_world_sizes": numbers(own, "ROLE_WORLD_SIZE"), "global_world_sizes": numbers(own, "WORLD_SIZE"),
            "event_log_handler": "null"}
    end_all(workers)
    assert [agent.end() for agent in agents] == [0, 0]


# ---- Waiting ----

def waits(agent):
    """The lines about the wait that are shown by default."""
    return [line.partition(" notice: ")[2] for line in agent.err.splitlines() if " notice: waiting for " in line]


def test_a_node_that_waits_says_for_whom_and_until_when(scene):
    agent = scene.node(local(free_port()), "--nnodes=2", conf="join_timeout=600")
    agent.said(" notice: waiting for rendezvous 'job': ")
    line, = waits(agent)
    assert re.fullmatch(r"waiting for rendezvous 'job': 1 of 2 nodes joined \(\S+ \(pid \d+\)\), 1 more needed; "
                        r"gives up in 9 min \d+ s", line)


def test_a_node_that_cannot_reach_the_store_says_that_it_waits_for_it(scene, imposters):
    agent = scene.node(imposters(Imposter(lambda sock: time.sleep(LIMIT))).endpoint, "--nnodes=2", conf="join_timeout=600,is_host=false")
    agent.said(" notice: waiting for rendezvous 'job' at ")
    assert "no answer yet, after " in waits(agent)[0]


def test_a_node_says_why_it_does_not_reach_the_store(scene):
    """Also while it waits: after ten minutes the user would have given up."""
    refused = local(free_port())
    agent = scene.node(refused, "--nnodes=2", conf="join_timeout=600,is_host=false")
    other = scene.node("no-such-host.invalid:29400", "--nnodes=2", conf="join_timeout=600")
    other.said("] warning: rendezvous 'job': cannot resolve 'no-such-host.invalid': ")
    assert re.search(r"cannot resolve 'no-such-host.invalid': [\w ]+; trying again for \d+ s\n", other.err)
    agent.said(f"] notice: rendezvous 'job': cannot connect to {refused} ")
    assert re.search(r" tries in 5\.\d s\): connection refused; trying again for \d+ s\n", agent.err)


def test_a_wait_in_vain_ends_with_who_came(scene):
    agent = scene.node(local(free_port()), "--nnodes=2", conf="join_timeout=1")
    assert agent.end() == 1
    last = agent.err.splitlines()[-1]
    assert "muster run: RendezvousTimeoutError: " in last
    assert re.search(r"timed out after 1 s: 1 of 2 nodes joined \([^ ,()]+\)", last), last


def test_a_wait_for_a_node_that_waits_for_more_says_so(scene, serve, engine):
    endpoint = serve().endpoint
    agent = scene.node(endpoint, "--nnodes=2", conf="join_timeout=4")
    time.sleep(1)
    scene.node(endpoint, "--nnodes=3", conf="join_timeout=30")
    assert agent.end() == 1
    host = socket.gethostname()
    assert agent.err.splitlines()[-1].endswith(
        ", but the round did not begin: was each node started with the same --nnodes?" if engine == "off"
        else f"{host} was started with --nnodes 3, this node with --nnodes 2")


def test_a_static_node_that_waits_says_so_too(scene):
    port = free_port()
    agent = scene.actors("--nnodes=2", "--node-rank=0", f"--master-port={port}")
    agent.said(" notice: waiting for rendezvous ")


def test_a_static_node_whose_rank_0_is_not_there_says_so(scene):
    port = free_port()
    agent = scene.actors("--nnodes=2", "--node-rank=1", f"--master-port={port}")
    agent.said(" notice: waiting for rendezvous ")
    [line] = waits(agent)
    assert re.search(rf": the store at 127\.0\.0\.1:{port} has not answered yet; gives up in 14 min \d+ s$", line), line


# ---- Nodes that will never come together ----

def test_nodes_with_another_rendezvous_id_at_the_endpoint_are_named(scene, serve, engine):
    endpoint = serve().endpoint
    one_node, other = (scene.node(endpoint, "--nnodes=2", id=name) for name in ("job7", "job8"))
    host = socket.gethostname()
    one_node.said(f"; {host} waits at the same endpoint for rendezvous 'job8'")
    other.said(f"; {host} waits at the same endpoint for rendezvous 'job7'")


def test_nodes_with_another_nnodes_are_named(scene, serve, engine):
    endpoint = serve().endpoint
    one_node, other = (scene.node(endpoint, f"--nnodes={nodes}") for nodes in ("3", "4"))
    host = socket.gethostname()
    one_node.said(f"; {host} was started with --nnodes 4, this node with --nnodes 3")
    other.said(f"; {host} was started with --nnodes 3, this node with --nnodes 4")


def test_nodes_that_agree_say_nothing_of_each_other_and_leave_nothing_behind(scene, serve):
    server = serve()
    first = scene.node(server.endpoint, "--nnodes=3")
    second = scene.node(server.endpoint, "--nnodes=3")
    for agent in (first, second):
        agent.said(" notice: waiting for rendezvous 'job': 2 of 3 nodes joined ")
    third = scene.node(server.endpoint, "--nnodes=3")
    end_all(scene.world(3))
    assert [agent.end() for agent in (first, second, third)] == [0, 0, 0]
    assert "same endpoint" not in first.err + second.err and "was started with" not in first.err + second.err
    assert server.call("get", "muster/waiting").out == b""


def test_what_the_keeper_says_has_the_form_of_every_line(scene):
    agent = scene.actors()
    scene.world(1)
    kill_agent(agent)
    assert agent.end() == -9
    said = agent.err.splitlines()[-1]
    assert re.fullmatch(r"[-\dT:.]+Z \S+ muster\[\d+\] error: muster run: the agent .*was killed by SIGKILL; .*", said), said

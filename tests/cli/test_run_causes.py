"""Whose fault it was: a worker that fails because another node was lost costs no restart.

Workers of these tests fail when the test says so: after an agent was killed, and before the rendezvous notices that. A
collective does the same when its peer is gone."""
import os
import re
import signal
import socket

import pytest

from serving import until
from test_run import agent_of, end_all, kill_agent, kill_both, kill_keeper, one
from test_run_store_away import host_and_guest


def nodes(scene, serve, count, *options):
    """At a store that outlives them all."""
    endpoint = serve().endpoint
    return [scene.node(endpoint, *options) for _ in range(count)]


def lose(scene, workers, kill=kill_agent):
    """Kills the agent of the last of them; then the others fail. Who was lost, and who is left."""
    lost, *left = [agent_of(scene, worker) for worker in reversed(workers)]
    pid = lost.agent
    kill(lost)
    for worker in workers[:-1]:
        worker.fail()
    return pid, left


def test_a_failure_that_a_killed_launcher_caused_is_free(scene, serve, engine):
    """Its agent has the time to leave, and says why: that is no goodbye."""
    nodes(scene, serve, 2, "--nnodes=1:2", "--max-restarts=0")
    first = scene.world(2)
    _, left = lose(scene, first, kill_keeper)
    second = scene.world(1, without=first)
    assert one(second, "TORCHELASTIC_RESTART_COUNT") == "0"
    end_all(second)
    assert left[0].end() == 0
    assert "its launcher was killed" in left[0].err


@pytest.mark.parametrize("restarts", [0, 3])
def test_a_failure_that_a_killed_node_caused_is_free_and_named_so(scene, serve, restarts, engine):
    nodes(scene, serve, 3, "--nnodes=2:3", f"--max-restarts={restarts}")
    first, host = scene.world(3), socket.gethostname()
    pid, left = lose(scene, first)
    second = scene.world(2, without=first)
    assert one(second, "TORCHELASTIC_RESTART_COUNT") == "0"
    end_all(second)
    assert [agent.end() for agent in left] == [0, 0]
    for agent in left:
        line = next(line for line in agent.err.splitlines() if "no restart charged" in line)
        assert f"lost {host} (pid {pid}): its agent was killed; rank " in line
        assert re.search(rf"'s failure on {host}( \(pid \d+\))? is a consequence; restarting with 2 nodes, no restart charged$", line)


@pytest.mark.parametrize("kill", [kill_agent, kill_both])
@pytest.mark.parametrize("restarts", [0, 3])
def test_a_failure_that_the_lost_host_of_the_store_caused_is_free_and_named_so(scene, kill, restarts, engine):
    """The host is a member, and its store goes with it. Another one takes its place."""
    host, guest, endpoint = host_and_guest(scene, "--nnodes=2", f"--max-restarts={restarts}", conf=",store_lost_timeout=60")
    first = scene.world(2)
    [worker] = [worker for worker in first if agent_of(scene, worker) is guest]
    pid = host.agent
    kill(host)
    worker.fail()
    if engine == "off":
        guest.said(f"lost {socket.gethostname()} (pid {pid}): the store that it hosts refuses connections; ")
    else:  # it has joined the next round already
        guest.said("connection refused; trying again")
    again = scene.node(endpoint, "--nnodes=2", f"--max-restarts={restarts}", conf="last_call_timeout=1,is_host=true")
    second = scene.world(2, without=first)
    assert one(second, "TORCHELASTIC_RESTART_COUNT") == "0"
    end_all(second)
    assert [guest.end(), again.end()] == [0, 0]
    told = rf"rank {worker.rank}'s failure is a consequence; restarting the group" if engine == "off" else \
        rf"lost {socket.gethostname()} \(pid {pid}\): .*; rank {worker.rank}'s failure on .* is a consequence; restarting with"
    assert re.search(told, guest.err), guest.err


def test_a_job_whose_store_stays_away_ends_by_its_lost_host(scene):
    """And not by the worker that failed because of it."""
    host, guest, endpoint = host_and_guest(scene, "--nnodes=2", "--max-restarts=0", conf=",store_lost_timeout=2")
    first = scene.world(2)
    [worker] = [worker for worker in first if agent_of(scene, worker) is guest]
    pid = host.agent
    kill_both(host)
    worker.fail()
    assert guest.end() == 1
    last = guest.err.splitlines()[-1]
    assert f"the store at {endpoint} is lost: its host {socket.gethostname()} (pid {pid}) has refused connections" in last


def test_losses_one_after_the_other_use_up_nothing(scene, serve):
    """Each with all others failing; then a failure of its own is the first that is charged."""
    nodes(scene, serve, 3, "--nnodes=1:3", "--max-restarts=1")
    first = scene.world(3)
    lose(scene, first)
    second = scene.world(2, without=first)
    _, left = lose(scene, second, kill_both)
    third = scene.world(1, without=first + second)
    assert one(third, "TORCHELASTIC_RESTART_COUNT") == "0"
    third[0].fail()
    last = scene.world(1, without=first + second + third)
    assert one(last, "TORCHELASTIC_RESTART_COUNT") == "1"
    last[0].fail()
    assert left[0].end() == 1


def test_a_node_that_comes_back_as_another_process_was_lost_all_the_same(scene, serve):
    endpoint = serve().endpoint
    for _ in range(2):
        scene.node(endpoint, "--nnodes=2", "--max-restarts=0")
    first = scene.world(2)
    _, left = lose(scene, first)
    back = scene.node(endpoint, "--nnodes=2", "--max-restarts=0")
    second = scene.world(2, without=first)
    assert one(second, "TORCHELASTIC_RESTART_COUNT") == "0"
    end_all(second)
    assert [left[0].end(), back.end()] == [0, 0]


def test_of_many_nodes_the_one_that_was_lost_is_the_cause(scene, serve):
    """The others hear of the failure and wait for the next round: more of them than a message names."""
    nodes(scene, serve, 11, "--nnodes=2:11", "--max-restarts=0")
    first = scene.world(11, limit=60)
    kill_both(agent_of(scene, first[-1]))
    first[0].fail()
    second = scene.world(10, without=first, limit=60)
    assert one(second, "TORCHELASTIC_RESTART_COUNT") == "0"
    end_all(second)


def test_a_failure_while_all_nodes_are_there_is_charged(scene, serve):
    nodes(scene, serve, 3, "--nnodes=2:3", "--max-restarts=3")
    first = scene.world(3)
    first[0].fail()
    second = scene.world(3, without=first)
    assert one(second, "TORCHELASTIC_RESTART_COUNT") == "1"
    end_all(second)
    assert {agent.end() for agent in scene.agents} == {0}
    assert all("no restart charged" not in agent.err for agent in scene.agents)


def test_without_restarts_left_a_failure_ends_the_job_as_soon_as_the_others_have_answered(scene, serve):
    """Nobody was lost: the end does not wait for the time in which a loss would be noticed, an hour here."""
    agents = nodes(scene, serve, 3, "--nnodes=3", "--max-restarts=0", "--rdzv-conf=keep_alive_interval=1800")
    workers = scene.world(3)
    workers[1].fail()
    assert [agent.end() for agent in agents] == [1, 1, 1]
    assert all("no restart charged" not in agent.err for agent in agents)


@pytest.mark.parametrize("restarts, noticed", [(0, "is a consequence; restarting the group"), (3, "1 of 2 nodes joined")])
def test_a_node_that_was_paused_and_comes_back_was_lost_all_the_same(scene, serve, restarts, noticed, engine):
    """As the same process: it is not missing in the next round."""
    left, paused = nodes(scene, serve, 2, "--nnodes=2", f"--max-restarts={restarts}")
    first = scene.world(2)
    [worker] = [worker for worker in first if agent_of(scene, worker) is left]
    pid = paused.agent
    os.kill(pid, signal.SIGSTOP)
    worker.fail()
    left.said(noticed if engine == "off" else "1 of 2 nodes joined", limit=30)
    os.kill(pid, signal.SIGCONT)
    second = scene.world(2, without=first, limit=30)
    assert one(second, "TORCHELASTIC_RESTART_COUNT") == "0"
    end_all(second)
    assert [left.end(), paused.end()] == [0, 0]
    assert "no restart charged" in left.err and "no restart charged" in paused.err


@pytest.mark.usefixtures("document")
def test_a_round_that_the_budget_does_not_allow_is_not_begun(scene, serve):
    """The node whose worker has failed is killed while it waits for an answer of the others, before it fails the job."""
    server = serve()
    failing, paused, third = [scene.node(server.endpoint, "--nnodes=2:3", "--max-restarts=0") for _ in range(3)]
    first = scene.world(3)
    [worker] = [worker for worker in first if agent_of(scene, worker) is failing]
    pid = paused.agent
    os.kill(pid, signal.SIGSTOP)
    worker.fail()
    third.said("restarting the group")
    until(lambda: server.call("get", "muster.job/budget").out.startswith(b"1 "), what="a claimed restart")
    kill_both(failing)
    os.kill(pid, signal.SIGCONT)
    assert [paused.end(), third.end()] == [1, 1]
    for agent in (paused, third):
        assert "no restarts left (max restarts: 0)" in agent.err and "restarts used: 1 of 0" not in agent.err


GARBAGE = "garbage"
FORGED = '{"verdict": "failed", "node": "node7", "rank": 0, "cause": "forged by a stranger"}'


def keys(server, part):
    """Of the job, with that in them."""
    return [key for key in server.call("list").out.decode().split() if key.startswith("muster.job/") and part in key]


@pytest.mark.usefixtures("document")
@pytest.mark.parametrize("value", [GARBAGE, FORGED, "?", ""])
@pytest.mark.parametrize("key", ["budget", "verdict"])
def test_a_foreign_value_in_a_key_of_the_job_is_not_the_end(scene, serve, key, value):
    """The job restarts once, and succeeds; what was there is told, and never as a fact."""
    server = serve()
    agents = [scene.node(server.endpoint, "--nnodes=2", "--max-restarts=2") for _ in range(2)]
    first = scene.world(2)
    server.call("set", f"muster.job/{key}", value)
    first[0].fail()
    second = scene.world(2, without=first)
    assert one(second, "TORCHELASTIC_RESTART_COUNT") == "1"
    server.call("set", f"muster.job/{key}", value)
    end_all(second)
    assert [agent.end() for agent in agents] == [0, 0]
    said = "".join(agent.err for agent in agents)
    assert "forged by a stranger;" not in said and "the job has failed" not in said
    if value in (GARBAGE, FORGED):
        what = "the restart budget" if key == "budget" else "the verdict"
        assert f"somebody has overwritten {what} in 'muster.job/{key}' ({len(value)} bytes: " in said


@pytest.mark.usefixtures("document")
@pytest.mark.parametrize("value", [GARBAGE, FORGED])
@pytest.mark.parametrize("part", ["done/0", "done/1", "done_count", "last", "left/0", "left/1", "heard/0", "failed"])
def test_a_foreign_value_in_a_key_of_the_round_is_not_the_end(scene, serve, part, value):
    """One node is done, and waits for the other, which is not."""
    server = serve()
    agents = [scene.node(server.endpoint, "--nnodes=2", "--max-restarts=0") for _ in range(2)]
    workers = scene.world(2)
    [own] = keys(server, "/MASTER_ADDR")
    server.call("set", own.replace("MASTER_ADDR", part), value)
    done = agent_of(scene, workers[0])
    workers[0].succeed()
    until(lambda: keys(server, "/done/0"), what="a done mark")
    server.call("set", own.replace("MASTER_ADDR", part), value)
    assert workers[1].alive and done.process.poll() is None
    workers[1].succeed()
    assert [agent.end() for agent in agents] == [0, 0]
    assert all("forged by a stranger;" not in agent.err and "the job has failed" not in agent.err for agent in agents)


@pytest.mark.usefixtures("document")
def test_a_job_that_was_killed_whole_can_be_started_again(scene, serve):
    """All nodes are killed while a failure is claimed; the store stays. The same job is started again."""
    server = serve()
    conf = "keep_alive_interval=1,keep_alive_max_attempt=2,last_call_timeout=1"
    failing, paused = [scene.node(server.endpoint, "--nnodes=2", "--max-restarts=0", conf=conf) for _ in range(2)]
    first = scene.world(2)
    [worker] = [worker for worker in first if agent_of(scene, worker) is failing]
    os.kill(paused.agent, signal.SIGSTOP)
    worker.fail()
    until(lambda: server.call("get", "muster.job/budget").out.startswith(b"1 "), what="a claimed restart")
    kill_both(failing)
    kill_both(paused)
    again = [scene.node(server.endpoint, "--nnodes=2", "--max-restarts=0", conf=conf) for _ in range(2)]
    second = scene.world(2, without=first)
    end_all(second)
    assert [agent.end() for agent in again] == [0, 0]

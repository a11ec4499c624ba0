"""Whose fault it was: a worker that fails because another node was lost costs no restart.

Workers of these tests fail when the test says so: after an agent was killed, and before the rendezvous notices that. A
collective does the same when its peer is gone."""
import socket

import pytest

from test_run import agent_of, end_all, kill_agent, kill_both, one


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


@pytest.mark.parametrize("restarts", [0, 3])
def test_a_failure_that_a_killed_node_caused_is_free_and_named_so(scene, serve, restarts):
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
        assert line.endswith(f"'s failure on {host} is a consequence; restarting with 2 nodes, no restart charged")


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


def test_a_node_that_said_goodbye_was_not_lost(scene, serve):
    """It has left, and another's worker fails by itself before the others have regrouped: that is charged."""
    nodes(scene, serve, 3, "--nnodes=2:3", "--max-restarts=3")
    first = scene.world(3)
    gone = agent_of(scene, first[2])
    first[0].fail()
    second = scene.world(3, without=first)
    assert one(second, "TORCHELASTIC_RESTART_COUNT") == "1"
    end_all(second)
    assert {agent.end() for agent in scene.agents} == {0}
    assert all("no restart charged" not in agent.err for agent in scene.agents) and gone in scene.agents


def test_without_restarts_left_a_failure_ends_the_job_as_soon_as_the_others_have_answered(scene, serve):
    """Nobody was lost: the end does not wait for the time in which a loss would be noticed, an hour here."""
    agents = nodes(scene, serve, 3, "--nnodes=3", "--max-restarts=0", "--rdzv-conf=keep_alive_interval=1800")
    workers = scene.world(3)
    workers[1].fail()
    assert [agent.end() for agent in agents] == [1, 1, 1]
    assert all("no restart charged" not in agent.err for agent in agents)

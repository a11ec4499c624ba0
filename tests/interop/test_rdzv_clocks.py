"""Clocks that are an hour apart, and members that say nothing for a while."""

import contextlib
import os
import pathlib
import re
import signal
import time

import pytest
from engine_jobs import LEASE, Job, failure, restarts, without
from rdzv_nodes import faked, meet, side_by_side

HOLD = 20  # longer than the 15 s after which a silent member counts as dead


@pytest.fixture(autouse=True)
def nothing_of_false_clocks_is_left():
    """libfaketime takes its shared memory away at an exit, but a process that is killed has none."""
    start = time.time()
    yield
    for path in pathlib.Path("/dev/shm").glob("*faketime_s*"):
        pid = re.fullmatch(r"(?:faketime_shm|sem\.faketime_sem)_(\d+)", path.name)
        with contextlib.suppress(OSError):  # others come and go meanwhile
            if pid and path.stat().st_mtime >= start and not pathlib.Path("/proc", pid[1]).exists():
                path.unlink()


@side_by_side
def test_with_an_hour_between_stock_and_ours_there_is_one_world_and_it_lasts(scenes, which):
    """Both directions, either one first, all at once; nobody does anything for 20 s after it."""
    base = scenes(which)
    worlds = []
    for offset in ("+1h", "-1h"):
        for first in ("stock", "ours"):
            scene = scenes(which, store=None).on(base)
            stock = scene.stock("127.0.0.1")
            ours = scene.our("127.0.0.2", environment=faked(offset))
            nodes = [stock, ours] if first == "stock" else [ours, stock]
            worlds.append((f"ours {offset}, {first} first", scene, stock, ours, nodes))
    pending = {}
    for what, scene, _, _, nodes in worlds:
        pending[what] = [nodes[0].begin("next")]
        scene.until_in(1)
    for what, _, _, _, nodes in worlds:
        pending[what].append(nodes[1].begin("next"))
    for what, scene, stock, ours, nodes in worlds:
        results = {node: p.answer(60) for node, p in zip(nodes, pending[what])}
        assert results[stock]["ok"] and results[ours]["ok"], (what, results)
        told = [(results[n]["rank"], results[n]["world_size"]) for n in (stock, ours)]
        assert told == [(0, 2), (1, 2)], (what, results)
        assert results[stock]["round"] == results[ours]["round"], (what, results)
        assert results[stock]["addr"] == results[ours]["addr"], (what, results)
        assert results[stock]["port"] == results[ours]["port"], (what, results)
    time.sleep(HOLD)
    for what, scene, stock, ours, _ in worlds:
        assert scene.members() == ["127.0.0.1", "127.0.0.2"], what
        document = stock.call("state").good["document"]
        assert len(document["participants"]) == 2, what
        assert stock.call("is_closed").good["closed"] is False, what
        assert len(stock.call("state").good["document"]["participants"]) == 2, what


@side_by_side
def test_two_of_ours_an_hour_apart_feel_nothing(scenes, which):
    base = scenes(which, engine="off", nodes=(2, 3), last_call_timeout=2,
                  keep_alive_interval=1, keep_alive_max_attempt=3)
    worlds = []
    for offset in ("+1h", "-1h"):
        scene = scenes(which, engine="off", nodes=(2, 3), store=None, last_call_timeout=2,
                       keep_alive_interval=1, keep_alive_max_attempt=3).on(base)
        true = scene.join("127.0.0.1", "--hold", "60")
        false = scene.join("127.0.0.2", "--hold", "60", environment=faked(offset))
        worlds.append((scene, true, false))
    for scene, true, false in worlds:
        told = [true.joined(), false.joined()]
        assert [(t["rank"], t["world_size"], t["round"]) for t in told] == [(0, 2, 0), (1, 2, 0)]
    time.sleep(6)  # two death ages
    for scene, true, false in worlds:
        assert scene.members() == ["127.0.0.1", "127.0.0.2"]
        assert true.events() == [] and false.events() == []
        # A loss is seen none the less, by the clock that runs on.
        false.kill()
        true.event("peers_lost", limit=20)
        assert true.interrupt() == 0


@side_by_side
def test_the_last_call_is_as_long_as_it_should_be_by_any_clock(scenes, which):
    """Ours is an hour ahead or behind; stock's deadline is neither over at once nor an hour away."""
    for offset in ("+1h", "-1h"):
        scene = scenes(which, nodes=(2, 3), last_call_timeout=3)
        ours = scene.our("127.0.0.2", environment=faked(offset))
        stock = scene.stock("127.0.0.1")
        began = time.monotonic()
        results = meet(stock, ours)
        took = time.monotonic() - began
        assert [(r["rank"], r["world_size"]) for r in results] == [(0, 2), (1, 2)], (offset, results)
        assert results[0]["round"] == results[1]["round"]
        assert 2 <= took <= 10, (offset, took)


@pytest.mark.parametrize("offset", ["+1h", "-1h"])
@pytest.mark.parametrize("whose", ["the leader", "a follower", "the store"])
def test_in_the_engine_an_hour_between_clocks_changes_nothing(tmp_path, offset, whose):
    """Nodes form, a worker fails, and a node is killed: the one whose clock is wrong, or the leader."""
    wrong, options = faked(offset), ("--nnodes=2:3", "--max-restarts=1")
    job = Job(tmp_path / "job", environment=wrong if whose == "the store" else None)
    try:
        nodes = [job.node(*options, environment=wrong if whose == who else None)
                 for who in ("the leader", "another", "a follower")]
        first = job.world(nodes)
        time.sleep(1.5 * LEASE)
        assert all(worker.alive for worker in first), job.all_said()
        cause = failure(first[0])
        first[0].fail()
        second, began = job.world(nodes, without=first), time.monotonic()
        lost = nodes[2 if whose == "a follower" else 0]
        left = without(nodes, [lost])
        os.kill(lost.agent(), signal.SIGKILL)
        third = job.world(left, without=second)
        assert time.monotonic() - began < LEASE * 0.75  # at once: it is a few milliseconds
        assert restarts(second) == restarts(third) == 1
        job.succeed(left, third)
        for node in left:
            assert node.why()[-2:] == [
                f"{cause}; restarting with 3 nodes, restart 1 of 1",
                f"lost {lost.name}: its agent was killed; restarting with 2 nodes, no restart charged"]
    finally:
        job.end()

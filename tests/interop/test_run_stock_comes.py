"""A node of stock torchrun comes to a job of `muster run` that meets in muster's engine: all of them go on in a document."""

import signal
import time

import pytest

from harness import NEW
from rdzv_nodes import side_by_side, until
from run_nodes import RUN_LIMIT, Actors

CONF = "join_timeout=60,last_call_timeout=1"
END_LIMIT = 30


class Scene:
    """A job whose first node is ours and hosts the store."""

    def __init__(self, job, nodes, *how):
        self.job, self.nodes = job, nodes
        self.actors = Actors(job, *how)

    def ours(self, number, conf="engine=on", *options):
        node = self.job.muster("-v", "--max-restarts", 3, *options, *self.job.meeting(self.nodes, number, f"{CONF},{conf}"),
                               *self.actors.words)
        self.job.until_hosted()
        return node

    def stock(self, number):
        meeting = self.job.meeting(self.nodes, number, CONF)
        if self.job.which == "1.13.1":  # it has no --local-addr, and its own defaults of -r and -t are too much for it
            meeting = [*meeting[:-2], "-r", 1, "-t", 1, "--monitor-interval", 0.1]
        words = ["--nproc-per-node", 1, "--max-restarts", 3, *meeting, *self.actors.words]
        return self.job.stock(*("--" + word[2:].replace("-", "_") if str(word).startswith("--") else word
                                for word in words))  # as all versions take them

    def connections(self):
        """Of the store where all meet, on its side."""
        found = 0
        for path in ("/proc/net/tcp", "/proc/net/tcp6"):
            with open(path) as table:
                words = [line.split() for line in table.readlines()[1:]]
            found += sum(int(each[1].rpartition(":")[2], 16) == self.job.port and each[3] == "01" for each in words)
        return found

    def stock_that_waits(self, number):
        """Its first request stands behind what it connects with, and is not answered."""
        before = self.connections()
        stock = self.stock(number)
        until(lambda: self.connections() > before, RUN_LIMIT, "it connects")
        time.sleep(1)
        return stock

    def end_well(self, world, nodes=None):
        for actor in world:
            actor.succeed()
        for node in nodes or self.job.nodes:
            node.good(END_LIMIT)
        until(lambda: not self.job.left(), what="no process is left")


@pytest.fixture
def scenes(jobs):
    return lambda which, nodes: Scene(jobs(which), nodes)


def counts(world):
    return [actor["TORCHELASTIC_RESTART_COUNT"] for actor in world]


@side_by_side
def test_a_world_with_a_place_takes_it_in(scenes, which):
    scene = scenes(which, "1:3")
    ours = scene.ours(1)
    before = scene.actors.world(1)
    scene.stock(2)
    world = scene.actors.world(2, before)
    assert "a PyTorch node" in ours.err and "meeting in a document: a PyTorch node is in the job" in ours.err
    late = scene.ours(3)  # which hears of the document from the engine
    world = scene.actors.world(3, world)
    assert "meeting in a document: a PyTorch node is in the job" in late.err
    scene.end_well(world)


@side_by_side
def test_it_comes_before_there_is_a_world(scenes, which):
    scene = scenes(which, "2")
    scene.ours(1)
    scene.stock(2)
    world = scene.actors.world(2)
    assert counts(world) == ["0", "0"]
    scene.end_well(world)


@side_by_side
def test_a_failure_behind_the_move_is_counted_on(scenes, which):
    scene = scenes(which, "2:3")
    for number in (1, 2):
        scene.ours(number)
    world = scene.actors.world(2)
    world[1].fail()
    world = scene.actors.world(2, world)
    assert counts(world) == ["1", "1"]
    scene.stock(3)
    world = scene.actors.world(3, world)
    assert counts(world)[:2] == ["1", "1"], "the move costs nothing"
    scene.end_well(world)


@side_by_side
def test_a_full_world_keeps_it_as_a_spare_until_a_member_goes(scenes, which):
    scene = scenes(which, "1:2")
    first, second = scene.ours(1), scene.ours(2)
    before = scene.actors.world(2)
    scene.stock_that_waits(3)
    assert {a.pid for a in scene.actors.alive()} == {a.pid for a in before}
    second.signal(signal.SIGKILL)
    world = scene.actors.world(2, before)
    scene.end_well(world, [first, scene.job.nodes[2]])


@side_by_side
def test_a_spare_of_a_job_that_succeeds_runs_nothing(scenes, which):
    scene = scenes(which, "2")
    ours = [scene.ours(1), scene.ours(2)]
    world = scene.actors.world(2)
    stock = scene.stock_that_waits(3)
    for actor in world:
        actor.succeed()
    for node in ours:
        node.good(END_LIMIT)
    stock.end(RUN_LIMIT)
    assert len(scene.actors.seen()) == 2, "it began the job anew"


@side_by_side
def test_one_that_goes_while_it_waits_disturbs_nobody(scenes, which):
    scene = scenes(which, "2")
    scene.ours(1), scene.ours(2)
    world = scene.actors.world(2)
    stock = scene.stock_that_waits(3)
    stock.kill()
    world[0].fail()
    world = scene.actors.world(2, world)
    assert counts(world) == ["1", "1"]
    assert "document" not in scene.job.nodes[0].err
    scene.end_well(world, scene.job.nodes[:2])


def test_it_hosts_the_store_where_the_host_was_and_all_go_on_there(scenes):
    scene = scenes(NEW, "2:3")
    host, guest = scene.ours(1), scene.ours(2)
    world = scene.actors.world(2)
    world[1].fail()
    world = scene.actors.world(2, world)
    host.signal(signal.SIGKILL)
    until(lambda: "the store that it hosts refuses connections" in guest.err, RUN_LIMIT, "it is missed")
    scene.stock(3)
    world = scene.actors.world(2, world)
    assert counts(world)[0] == "1", "a lost host costs nothing"
    scene.end_well(world, [guest, scene.job.nodes[2]])


@side_by_side
def test_a_job_that_wants_the_engine_only_refuses_it(scenes, which):
    scene = scenes(which, "1:3")
    ours = scene.ours(1, "engine=only")
    world = scene.actors.world(1)
    stock = scene.stock(2)
    assert stock.end(RUN_LIMIT) != 0
    assert "meets in the engine alone (engine=only)" in ours.err
    assert [actor.pid for actor in scene.actors.alive()] == [actor.pid for actor in world]
    scene.end_well(world, [ours])

"""Events of the rendezvous: the story that `muster run` records is the one that stock torchrun records."""

import json
import re

import pytest

from harness import NEW
from rdzv_nodes import until
from run_nodes import RUN_LIMIT, Actors

KINDS = ("stock", "muster")
FIELDS = ["name", "run_id", "message", "hostname", "pid", "node_state", "master_endpoint", "rank", "local_id",
          "error_trace"]
HANDLER = "dynamic_rendezvous.py:DynamicRendezvousHandler."
EXECUTOR = "dynamic_rendezvous.py:_DistributedRendezvousOpExecutor."


class Story:
    """A job whose nodes write down what they do."""

    def __init__(self, job, kind):
        self.job, self.kind, self.paths = job, kind, []

    def start(self, *words, conf="join_timeout=60,last_call_timeout=1", nnodes=1):
        path = self.job.directory / f"events.{len(self.paths)}"
        self.paths.append(path)
        environment = {"RDZV_EVENTS": str(path)} if self.kind == "stock" else None
        if self.kind == "muster":  # in the engine there is no document, and less to tell
            conf += ",engine=off"
            words = ["--event-log-handler", f"file:{path}", *words]
        return self.job.launch(self.kind, "--monitor-interval", 0.1, *self.job.meeting(nnodes, conf=conf), *words,
                               environment=environment)

    def events(self, number=0):
        """Those of a node's rendezvous. In messages N stands for the node, J for the job, P for the process."""
        path, found = self.paths[number], []
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        for event in (json.loads(line) for line in lines):
            if "source" in event:  # an agent's or a worker's
                continue
            assert list(event) == FIELDS and event["run_id"] == self.job.run_id, event
            assert bool(event["error_trace"]) == (event["node_state"] == "FAILED"), event
            text = event["message"].replace(self.job.run_id, "J").replace(f"Process {event['pid']}", "Process P")
            text = re.sub(r"'\S+_%d_%s'" % (event["pid"], event["local_id"]), "'N'", text)
            found.append((event["name"], event["node_state"], text, event["rank"], event["local_id"] is not None,
                          event["master_endpoint"]))
        return found

    def until(self, what, number=0):
        until(lambda: any(what in event[2] for event in self.events(number)), RUN_LIMIT, f"an event '{what}'")


@pytest.fixture
def stories(jobs):
    """One for each kind of launcher."""
    return [Story(jobs(NEW, f"-{kind}"), kind) for kind in KINDS]


def test_a_run_is_told_in_the_same_words_in_the_same_order(stories):
    for story in stories:
        story.start("--no-python", "true").good()
    stock, ours = (story.events() for story in stories)
    assert ours == stock
    assert [name.rpartition(".")[2] for name, *_ in ours] == [
        "py:_create_tcp_store", "next_rendezvous", "_add_to_participants", "_keep_alive", "_mark_rendezvous_complete", "run",
        "next_rendezvous", "_mark_rendezvous_closed", "run", "_close"]


def test_heartbeats_are_told_in_the_same_words(stories):
    for story in stories:
        actors = Actors(story.job)
        node = story.start(*actors.words, conf="keep_alive_interval=1")
        story.until("has sent a keep-alive heartbeat")
        actors.world(1)[0].succeed()
        node.good()
    beats = []
    for events in (story.events() for story in stories):
        sent = next(i for i, event in enumerate(events) if "has sent a keep-alive heartbeat" in event[2])
        beats.append(events[sent - 2:sent + 1])
    assert beats[1] == beats[0]
    assert [name for name, *_ in beats[0]] == [EXECUTOR + "_keep_alive", EXECUTOR + "run", HANDLER + "_keep_alive"]


def test_a_round_that_follows_another_is_told_in_the_same_words(stories):
    """Which node's write comes first is a matter of luck: what both nodes did is compared, without its order."""
    told = []
    for story in stories:
        actors = Actors(story.job)
        for _ in range(2):
            story.start("--max-restarts=3", *actors.words, nnodes=2)
            story.job.until_hosted()
        first = actors.world(2)
        first[1].fail()
        for actor in actors.world(2, without=first):
            actor.succeed()
        for node in story.job.nodes:
            node.good()
        # Stock's second node fails to shut down where the first has ended before it, and the store with it.
        luck = ("has a stale state", "keep-alive", "has failed to shutdown")
        told.append({event[:3] for number in range(2) for event in story.events(number)
                     if not any(word in event[2] for word in luck)})
    stock, ours = told
    assert ours == stock
    for step in ("removed itself from the participants of round 0", "added itself to the participants of round 1",
                 "marked round 1", "has joined round 1"):
        assert any(step in event[2] for event in ours), step


def test_a_join_that_fails_is_told_as_stock_tells_it(stories):
    for story in stories:
        assert story.start("--no-python", "true", conf="join_timeout=1,last_call_timeout=1", nnodes=2).end() == 1
    for story in stories:
        failed = [event for event in story.events() if event[1] == "FAILED"]
        assert [name for name, *_ in failed] == [HANDLER + "next_rendezvous"]
        assert failed[0][2].startswith("RendezvousTimeoutError: ")
        assert failed[0][3:] == (None, True, "")

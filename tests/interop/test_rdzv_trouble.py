"""Broken documents, and stores that go away."""

import base64
import os
import pickle
import signal
import time

import pytest

from harness import NEW, USUAL, dialect
from ports import free_port
from rdzv_nodes import agree, meet, side_by_side, until

QUICK = {"keep_alive_interval": 1, "keep_alive_max_attempt": 4}


class Attack:
    """Run by whoever unpickles it without care."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (self.path,))


def texts(tmp_path):
    """What may be found instead of a document, by name."""
    trap = str(tmp_path / "executed")
    whole = base64.b64encode(pickle.dumps({"round": 0})).decode()
    return trap, {
        "not base64": "A",
        "not a pickle": base64.b64encode(b"hello, world").decode(),
        "another object": whole,
        "cut short": base64.b64encode(pickle.dumps(list(range(100)))[:50]).decode(),
        "a call": base64.b64encode(pickle.dumps(Attack(trap))).decode(),
        "a number": base64.b64encode(pickle.dumps(7)).decode(),
        "an old protocol": base64.b64encode(pickle.dumps({"round": 0}, protocol=0)).decode(),
    }


def is_complete(scene):
    """Whether there is the document of a complete round, and not something that PyTorch cannot read."""
    answer = scene.observer().call("document", port=scene.port, run_id=scene.run_id, backend=scene.backend)
    return answer["ok"] and answer["document"] is not None and answer["document"]["complete"]


@side_by_side
def test_what_is_no_document_is_replaced_and_never_carried_out(scenes, which, tmp_path):
    trap, found = texts(tmp_path)
    base = scenes(which)
    pairs = {}
    for what, text in found.items():
        scene = scenes(which, store=None, **QUICK).on(base)
        scene.put(text=text)
        nodes = [scene.our("127.0.0.1"), scene.our("127.0.0.2")]
        pairs[what] = [(node.begin("next"), node) for node in nodes]
    for what, pair in pairs.items():
        answers = [pending.good(30) for pending, _ in pair]
        assert sorted(answer["rank"] for answer in answers) == [0, 1], (what, answers)
    assert not os.path.exists(trap)


@side_by_side
def test_a_document_that_is_overwritten_under_a_mixed_group_is_put_back_by_ours(scenes, which):
    scene = scenes(which, keep_alive_interval=1, keep_alive_max_attempt=8)
    nodes = [scene.stock("127.0.0.1"), scene.our("127.0.0.2")]
    agree(nodes, meet(*nodes), round=0)
    for text in ("@@@!", "garbage", base64.b64encode(b"hello, world").decode()):
        scene.put(text=text)
        until(lambda: is_complete(scene), what=f"a document in the place of {text!r}")
    assert scene.document()["round"] == 0 and scene.members() == ["127.0.0.1", "127.0.0.2"]
    agree(nodes, meet(*nodes), round=1)


@pytest.mark.parametrize("what", ["a document", "counters"])
def test_a_store_of_stock_is_overwritten_and_the_group_goes_on(scenes, what):
    """Its server, too, ends the connection of whoever adds to what is no number."""
    scene = scenes(NEW, store="stock", nodes=(2, 3), last_call_timeout=1, keep_alive_interval=1, keep_alive_max_attempt=8)
    nodes = [scene.stock("127.0.0.1"), scene.our("127.0.0.2")]
    agree(nodes, meet(*nodes), round=0)
    keys = [f"muster.{scene.run_id}/{name}" for name in ("bell", "turn", "turns_done")] if what == "counters" else \
        [f"torch.rendezvous.{scene.run_id}"]
    for key in keys:
        scene.observer().call("put", port=scene.port, run_id=scene.run_id, key=key, text="garbage").good
    until(lambda: is_complete(scene), what="a document")
    agree(nodes, meet(*nodes), round=1)


def test_documents_of_the_versions_between_are_followed(scenes):
    """2.3 to 2.5 have spares, but times without a zone; those times are theirs, whatever our clock says."""
    scene = scenes(NEW)
    scene.put(document={"round": 7, "complete": False, "closed": False, "deadline": None,
                        "participants": [["a", 1, 0, 0]], "wait_list": [], "redundancy_list": [],
                        "last_heartbeats": [["a", 1, 0, "2021-01-01T00:00:00.000001"]]})
    ours = scene.our("127.0.0.1")
    ours.begin("next")
    document = scene.until(lambda d: len(d["participants"]) == 2, what="ours is in it")
    assert all(h[3].startswith("2021-01-01T00:0") and "+" not in h[3] for h in document["last_heartbeats"]), document


def test_a_stock_node_of_another_version_ends_by_itself_and_disturbs_nobody(scenes):
    """No two of 1.13, 2.3 to 2.5 and 2.6 and newer can read each other's documents; ours are with who came first."""
    scene = scenes(NEW)
    stock, ours = scene.stock("127.0.0.1"), scene.our("127.0.0.2")
    nodes = [stock, ours]
    agree(nodes, meet(*nodes), round=0)
    others = ["1.13.1"] + ([USUAL] if dialect(NEW) != dialect(USUAL) else [])
    for which in others:
        foreign = scenes(which, store=None).on(scene)
        foreign.run_id = scene.run_id
        answer = foreign.stock("127.0.0.3", limits=scene.limits).call("next")
        assert answer.error in ("TypeError", "AttributeError"), dict(answer)
    document = scene.document()
    assert document["complete"] and scene.members() == ["127.0.0.1", "127.0.0.2"], document
    agree(nodes, meet(*nodes), round=1)


@side_by_side
def test_a_store_that_comes_back_empty_gets_the_document_back(scenes, which):
    scene = scenes(which, engine="off", nodes=(2, 3), last_call_timeout=1, **QUICK)
    nodes = [scene.join(f"127.0.0.{i}", "--hold", "120") for i in (1, 2)]
    told = [node.joined() for node in nodes]
    assert sorted(t["rank"] for t in told) == [0, 1]
    before = scene.document()
    scene.observer().call("unobserve").good
    scene.kill_store()
    for node in nodes:
        node.event("backend_down")
    time.sleep(6)  # longer than the death age: silence that nobody could break is not held against anybody
    scene.start_store(scene.port)
    for node in nodes:
        node.event("backend_up")
    after = scene.until(lambda d: d is not None and len(d["participants"]) == 2, what="the document is back")
    assert after["round"] == before["round"] and after["complete"]
    assert sorted(after["participants"]) == sorted(before["participants"])
    for node in nodes:
        assert node.alive()
        assert not {"peers_lost", "removed", "left"} & set(node.events()), node.seen
    # A node of stock PyTorch that comes now finds the round and waits for the next one.
    stock = scene.stock("127.0.0.3")
    coming = stock.begin("next")
    for node in nodes:
        node.event("waiting", limit=60)
    assert not coming.done()
    for node in nodes:
        assert node.interrupt() == 0


@side_by_side
def test_ours_says_when_the_stock_host_of_the_store_is_gone(scenes, which):
    """A host that is a member and refuses connections is gone: its store went with it."""
    scene = scenes(which, store="stock", **QUICK)
    stock = scene.stock("127.0.0.1")
    waiting = stock.begin("next")
    ours = scene.join("127.0.0.2", "--hold", "60")
    ours.joined()
    waiting.good()
    stock.kill()
    ours.event("backend_down")
    assert ours.interrupt() == 0


@side_by_side
def test_ours_tells_of_a_lost_peer_at_once_when_that_was_the_host_of_the_store(scenes, which):
    """Of our own kind it is known who hosts: there is no need to wait for the death age."""
    scene = scenes(which, store="ours")
    host = scene.our("127.0.0.1")
    waiting = host.begin("next")
    ours = scene.join("127.0.0.2", "--hold", "60")
    ours.joined()
    waiting.good()
    began = time.monotonic()
    host.kill()
    when, event = ours.event("peers_lost")
    assert when - began < 10  # and not the 15 s of the death age
    assert "127.0.0.1" in str(event)
    assert ours.interrupt() == 0


@side_by_side
def test_a_pause_of_ours_longer_than_the_death_age_is_told_as_removed(scenes, which):
    """Stopped for so long that stock takes it out; once awake it learns so, and hurts nobody."""
    scene = scenes(which, nodes=(2, 3), last_call_timeout=1, **QUICK)
    stock = scene.stock("127.0.0.1")
    waiting = stock.begin("next")
    ours = scene.join("127.0.0.2", "--hold", "120")
    ours.joined()
    waiting.good()
    ours.process.send_signal(signal.SIGSTOP)
    try:
        scene.until_in(1, limit=20)
    finally:
        ours.process.send_signal(signal.SIGCONT)
    ours.event("removed")
    assert ours.end() == 5, ours.said
    assert scene.members() == ["127.0.0.1"]


@side_by_side
def test_a_store_that_is_not_there_is_a_connection_error_in_bounded_time(scenes, which):
    scene = scenes(which, store=None, join_timeout=3, read_timeout=3)
    scene.port = free_port()
    began = time.monotonic()
    command = scene.join("127.0.0.1", is_host=False)
    assert command.end(60) in (1, 4), command.said
    assert time.monotonic() - began < 40
    assert str(scene.port) in command.said


@side_by_side
def test_whoever_finds_the_port_taken_by_a_store_of_the_other_side_joins_it(scenes, which):
    """Both would host, by owning the address; the second one finds the port in use."""
    scene = scenes(which, store="ours")
    ours = scene.our("127.0.0.1", is_host=None)
    stock = scene.stock("127.0.0.2", is_host=None)
    results = meet(ours, stock)
    assert [(r["rank"], r["world_size"]) for r in results] == [(0, 2), (1, 2)]
    until(lambda: ours.call("is_closed").good["closed"] is False)

    scene = scenes(which, store="stock")
    stock = scene.stock("127.0.0.2")
    ours = scene.our("127.0.0.1", is_host=None)
    results = meet(ours, stock)
    assert [(r["rank"], r["world_size"]) for r in results] == [(0, 2), (1, 2)]

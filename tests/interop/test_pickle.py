"""Documents: what we write PyTorch reads with its own classes, what PyTorch writes we keep whole."""

import base64
import datetime
import io
import pickle
import time

from harness import NEW, dialect
from rdzv_nodes import meet, side_by_side

MODULE = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"


class Stand:
    """In place of PyTorch's classes: only what was written, in the order it was written."""

    def __hash__(self):
        return hash(tuple(vars(self).items()))

    def __eq__(self, other):
        return vars(self) == vars(other)


class State(Stand):
    pass


class Desc(Stand):
    pass


class Reader(pickle.Unpickler):
    """Knows nothing but the names a document may hold."""

    ALLOWED = {(MODULE, "_RendezvousState"): State, (MODULE, "_NodeDesc"): Desc,
               ("datetime", "datetime"): datetime.datetime, ("datetime", "timezone"): datetime.timezone,
               ("datetime", "timedelta"): datetime.timedelta}

    def find_class(self, module, name):
        return self.ALLOWED[module, name]


def independent(text):
    """A document as rdzv_stock.describe() tells it, without PyTorch."""
    bits = base64.b64decode(text, validate=True)
    assert bits[:2] == b"\x80\x04" and bits.endswith(b".")
    state = Reader(io.BytesIO(bits)).load()

    def node(n):
        return list(vars(n).values())

    def moment(t):
        return None if t is None else t.isoformat()

    told = {
        "round": state.round, "complete": state.complete, "closed": state.closed,
        "deadline": moment(state.deadline),
        "participants": [node(n) + [rank] for n, rank in state.participants.items()],
        "wait_list": sorted(node(n) for n in state.wait_list),
        "last_heartbeats": [node(n) + [moment(t)] for n, t in state.last_heartbeats.items()],
    }
    if hasattr(state, "redundancy_list"):
        told["redundancy_list"] = sorted(node(n) for n in state.redundancy_list)
    return told


def written(proxy, run_id):
    """Every document that went through a proxy towards the store, in order, each once."""
    key = b"torch.rendezvous." + run_id.encode()
    found = []
    for _, name, fields in list(proxy.requests):
        if "compare" not in name.lower():
            continue
        values = [f if isinstance(f, bytes) else str(f).encode() for f in fields]
        if values[0].endswith(key) and values[-1] != b"Y2FuaW1hZGFt" and values[-1] not in found:
            found.append(values[-1])
    return [value.decode() for value in found]


@side_by_side
def test_every_document_that_ours_write_is_read_by_stock_and_says_the_same(scenes, proxies, which):
    """Two of ours through a life: join, complete, heartbeats, a third one waits, a spare, leave, close."""
    scene = scenes(which, nodes=(1, 2), engine="off", last_call_timeout=1,
                   keep_alive_interval=1, keep_alive_max_attempt=4)
    store = scene.port
    proxy = proxies(store)
    scene.port = proxy.port
    names = ["127.0.0.1", "x" * 255, "k\u00f6ln-\u65e5\u672c"]
    a, b, c = (scene.our(name) for name in names)
    assert meet(a)[0]["world_size"] == 1  # alone, after a last call
    coming = b.begin("next")
    scene.port = store
    scene.until(lambda d: len(d["wait_list"]) == 1, what="one waits")
    again = a.begin("next")
    assert {again.good()["world_size"], coming.good()["world_size"]} == {2}
    spare = c.begin("next")
    if which == NEW:
        scene.until(lambda d: len(d["redundancy_list"]) == 1, what="a spare")
    time.sleep(2.5)  # a few heartbeats
    b.leave()
    a.call("set_closed").good
    assert not spare.answer()["ok"]
    proxy.settle()

    texts = written(proxy, scene.run_id)
    assert len(texts) >= 8, len(texts)
    told = scene.observer().call("decode", texts=texts).good["documents"]
    expected = [independent(text) for text in texts]
    for said, wanted in zip(told, expected):
        assert said == wanted
    assert any(d["deadline"] for d in told) and any(d["complete"] for d in told)
    assert any(d["wait_list"] for d in told) and told[-1]["closed"] | told[-2]["closed"]
    assert all(("redundancy_list" in d) == (which == NEW) for d in told)
    assert all(h[3].endswith("+00:00") == is_zoned(which) for d in told for h in d["last_heartbeats"])
    # Names of every width, and what they belong to is in the map of heartbeats too.
    seen = {n[0] for d in told for n in d["last_heartbeats"]}
    assert seen >= set(names[:2] if which == "1.13.1" else names)
    for d in told:
        alive = {tuple(n[:3]) for n in d["last_heartbeats"]}
        assert {tuple(n[:3]) for n in d["participants"]} <= alive
        assert {tuple(n) for n in d["wait_list"]} <= alive


def is_zoned(which):
    return dialect(which) == "2.x"


def crowd(count, when, zoned):
    """A completed round of so many, all alive, with values of every width."""
    def moment(micro):
        t = when + datetime.timedelta(microseconds=micro)
        return (t if zoned else t.replace(tzinfo=None)).isoformat()

    nodes = [[f"node-{i:05}" if i % 7 else f"n\u00f6de-{i:05}-" + "y" * (i % 400), (i * 7919) % 4194304,
              i % 3 if i % 5 else 2 ** 40 + i] for i in range(count)]
    ranked = {tuple(n): rank for rank, n in enumerate(sorted(map(tuple, nodes)))}
    return {
        "round": 70000, "complete": True, "closed": False, "deadline": None,
        "participants": [n + [ranked[tuple(n)]] for n in nodes],
        "wait_list": sorted([["waiter", i, 0] for i in range(3)]),
        "redundancy_list": [],
        "last_heartbeats": [n + [moment(i)] for i, n in enumerate(nodes + [["waiter", i, 0] for i in range(3)])],
    }


@side_by_side
def test_a_document_of_stock_goes_through_our_hands_without_a_change(scenes, which):
    """Ours comes to a full house, waits, and gives up: both of its writes leave all others as they were."""
    base = scenes(which)
    houses = []
    for count in (1, 2, 1001, 4000):
        scene = scenes(which, store=None, nodes=(1, 5000), join_timeout=3,
                       keep_alive_interval=30, keep_alive_max_attempt=10).on(base)
        document = crowd(count, datetime.datetime.now(datetime.timezone.utc), is_zoned(which))
        scene.put(document=document)
        if which == "1.13.1":
            del document["redundancy_list"]
        document["last_heartbeats"].sort()  # a map of which only the entries count
        ours = scene.our("zz-ours")
        pending = ours.begin("next")
        waiting = scene.until(lambda d: len(d["wait_list"]) == 4, what="ours waits")
        me = [n for n in waiting["wait_list"] if n[0] == "zz-ours"]
        assert len(me) == 1 and me[0][1] == ours.pid and me[0][2] >> 24 == 0x4D
        without = {**waiting,
                   "wait_list": [n for n in waiting["wait_list"] if n != me[0]],
                   "last_heartbeats": sorted(n for n in waiting["last_heartbeats"] if n[:3] != me[0])}
        assert without == document
        houses.append((scene, document, pending))
    for scene, document, pending in houses:
        assert pending.answer().error == "RendezvousTimeoutError"
        after = scene.document()
        after["last_heartbeats"].sort()
        assert after == document


@side_by_side
def test_live_documents_of_stock_are_read_by_ours(scenes, which):
    """Ours sees what stock does: comes, completes, is waited for, closes."""
    scene = scenes(which, nodes=(1, 2), engine="off", last_call_timeout=1)
    stock, ours = scene.stock("127.0.0.1"), scene.our("127.0.0.2")
    assert ours.call("waiting").good["count"] == 0
    meet(stock)
    other = scene.stock("127.0.0.3")
    coming = other.begin("next")
    scene.until(lambda d: len(d["wait_list"]) == 1, what="one waits")
    deadline = time.monotonic() + 5
    while ours.call("waiting").good["count"] != 1:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    stock.call("set_closed").good
    assert coming.answer().error == "RendezvousClosedError"
    while ours.call("is_closed").good["closed"] is not True:
        assert time.monotonic() < deadline + 5
        time.sleep(0.1)

"""The classic etcd rendezvous on a real etcd: ours alone, and in one rendezvous with stock PyTorch 1.13.1."""

import base64
import http.client
import json
import socket
import subprocess
import time
import urllib.parse
import uuid

import pytest

import etcd_servers
import harness
import rdzv_nodes
from harness import HERE
from rdzv_nodes import Process, said, until

WHICH = "1.13.1"
LIMIT = 60  # a keep-alive's 10 s, and everything after it, on a machine with other things to do
WATCH = 20  # seconds until a watch is asked anew
KEEP_ALIVE = 10
KINDS = ("stock", "ours")
HOST = socket.gethostname()


class Stock(Process):
    """Kept between tests, for importing PyTorch costs seconds each time."""

    ours = False
    kept = []

    def __init__(self):
        super().__init__([harness.interpreter(WHICH), str(HERE / "classic_stock.py")], None, "stock")
        self.hello.good(LIMIT)

    @classmethod
    def take(cls, endpoint, run_id, nodes, options):
        node = cls.kept.pop() if cls.kept else cls()
        node.call("create", LIMIT, endpoint=endpoint, run_id=run_id, min=nodes[0], max=nodes[1], options=options).good
        return node

    def give_back(self):
        if self.alive() and self.idle() and self.call("forget", LIMIT)["ok"]:
            Stock.kept.append(self)
        else:
            self.stop()

    @staticmethod
    def line(number, do, fields):
        return json.dumps({"id": number, "do": do, **fields}) + "\n"


class Ours(Process):
    ours = True

    def __init__(self, endpoint, run_id, nodes, options):
        text = ",".join(f"{k}={v}" for k, v in {"dialect": "1.13", **options}.items())
        super().__init__([str(rdzv_nodes.rdzv_program()), "etcd", endpoint, run_id, *map(str, nodes), "", text],
                         None, "ours")
        self.hello.good()

    @classmethod
    def take(cls, *what):
        return cls(*what)

    def give_back(self):
        self.stop()

    @staticmethod
    def line(number, do, fields):
        return " ".join([str(number), do, *map(str, fields.values())]) + "\n"


def etcd_call(server, method, key, body=None):
    connection = http.client.HTTPConnection(server.endpoint, timeout=10)
    try:
        connection.request(method, "/v2/keys" + urllib.parse.quote(key), body,
                           {"Content-Type": "application/x-www-form-urlencoded"} if body else {})
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def etcd_node(server, key):
    """The node of a key, by etcd itself; None: there is none."""
    return etcd_call(server, "GET", key).get("node")


def scribble(server, key, value):
    """A stranger writes there."""
    assert "node" in etcd_call(server, "PUT", key, urllib.parse.urlencode({"value": value}))


class Scene:
    """One rendezvous on one server."""

    def __init__(self, server, nodes=(2, 3), **options):
        self.server = server
        self.nodes = nodes
        self.options = {"last_call_timeout": 2, "timeout": 120, **options}
        self.run_id = uuid.uuid4().hex[:12]
        self.made = []

    def node(self, kind, **options):
        make = Stock if kind == "stock" else Ours
        node = make.take(self.server.endpoint, self.run_id, self.nodes, {**self.options, **options})
        self.made.append(node)
        return node

    @property
    def root(self):
        return f"/torchelastic/p2p/run_{self.run_id}"

    def get(self, key):
        return etcd_node(self.server, key)

    def document(self):
        node = self.get(self.root + "/rdzv/active_version")
        return json.loads(node["value"]) if node else None

    def until_status(self, status, **fields):
        def seen():
            document = self.document()
            return (document if document and document["status"] == status and
                    all(document[k] == v for k, v in fields.items()) else None)
        return until(seen, LIMIT, f"{status} {fields}, not {self.document()}")

    def end_of(self, node):
        """What became of a key: "delete", or "expire" if its time was up."""
        index = node["modifiedIndex"] + 1
        while True:
            connection = http.client.HTTPConnection(self.server.endpoint, timeout=LIMIT)
            try:
                connection.request("GET", f"/v2/keys{urllib.parse.quote(node['key'])}?wait=true&waitIndex={index}")
                event = json.loads(connection.getresponse().read())
            finally:
                connection.close()
            if event["action"] in ("delete", "compareAndDelete", "expire"):
                return event["action"]
            index = event["node"]["modifiedIndex"] + 1

    def keep_alives(self, version):
        nodes = self.get(f"{self.root}/rdzv/v_{version}").get("nodes", [])
        return sorted(n["key"].rsplit("/", 1)[1] for n in nodes if "rank_" in n["key"])

    def stop(self):
        for node in self.made:
            node.give_back()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    yield from etcd_servers.kept(tmp_path_factory.mktemp("etcd"), 1)


@pytest.fixture
def scenes(server):
    rdzv_nodes.need_rdzv()
    made = []

    def make(**what):
        made.append(Scene(server, **what))
        return made[-1]

    yield make
    for scene in made:
        scene.stop()


@pytest.fixture(scope="module")
def stock():
    """Skips where there is no PyTorch 1.13 with a client for etcd."""
    if subprocess.run([harness.interpreter(WHICH), "-c", "import torch, etcd"], capture_output=True,
                      timeout=120).returncode != 0:
        harness.absent("PyTorch 1.13.1 with python3-etcd is absent")
    yield
    while Stock.kept:
        Stock.kept.pop().stop()


def meet(*nodes):
    pending = [node.begin("next") for node in nodes]
    return [p.good(LIMIT) for p in pending]


def agree(answers):
    """One world: ranks from 0 on, one version, one place to meet."""
    assert sorted(a["rank"] for a in answers) == list(range(len(answers)))
    assert {a["world_size"] for a in answers} == {len(answers)}
    assert len({a["round"] for a in answers}) == 1
    assert len({(a["addr"], a["port"]) for a in answers}) == 1 and answers[0]["port"] > 0


# ---- Ours alone ----

def test_ours_meet_and_leave_nothing_that_blocks(scenes):
    scene = scenes(nodes=(2, 2))
    a, b = scene.node("ours"), scene.node("ours")
    answers = meet(a, b)
    agree(answers)
    version = answers[0]["round"]
    document = scene.document()
    assert document == {"status": "final", "version": str(version), "participants": [0, 1],
                        "keep_alives": document["keep_alives"], "num_workers_waiting": 0}
    assert sorted(document["keep_alives"]) == [f"{scene.root}/rdzv/v_{version}/rank_{r}" for r in (0, 1)]
    a.call("free").good
    assert len(scene.keep_alives(version)) == 1  # its own was deleted
    until(lambda: b.call("waiting").good["count"] > 0, LIMIT, "the other one hears of it")


def test_ours_regroup_without_waiting_for_keep_alives(scenes):
    scene = scenes(nodes=(2, 3))
    a, b = scene.node("ours"), scene.node("ours")
    agree(meet(a, b))
    c = scene.node("ours")
    late = c.begin("next")
    until(lambda: a.call("waiting").good["count"] > 0, LIMIT, "a node waits")
    nodes = [scene.get(f"{scene.root}/rdzv/v_1/rank_{rank}") for rank in (0, 1)]
    answers = [p.good(LIMIT) for p in (a.begin("next"), b.begin("next"), late)]
    agree(answers)
    assert {x["round"] for x in answers} == {2}
    assert [scene.end_of(node) for node in nodes] == ["delete", "delete"]


def test_a_group_of_ours_that_meets_again_needs_no_last_call(scenes):
    scene = scenes(nodes=(2, 3), last_call_timeout=500)
    a, b, c = (scene.node("ours") for _ in range(3))
    agree(meet(a, b, c))
    c.call("free").good
    answers = meet(a, b)
    agree(answers)
    assert [x["world_size"] for x in answers] == [2, 2]


def test_extra_data_comes_in_time_or_not_at_all(scenes):
    scene = scenes(nodes=(1, 1))
    node = scene.node("ours")
    meet(node)
    node.call("store_extra", key="a", value="1").good
    node.call("store_extra", key="b", value="2").good
    assert node.call("load_extra", key="b", ms=5000).good["value"] == "2"
    assert node.call("load_extra", key="c", ms=300)["ok"] is False
    assert json.loads(scene.get(scene.root + "/rdzv/v_1/extra_data")["value"]) == {"a": "1", "b": "2"}


def test_whoever_gives_up_takes_itself_out(scenes):
    scene = scenes(nodes=(2, 2), timeout=2)
    lonely = scene.node("ours")
    assert lonely.call("next", LIMIT).error == "RendezvousTimeoutError"
    assert scene.document()["participants"] == []
    a, b = scene.node("ours", timeout=60), scene.node("ours", timeout=60)
    agree(meet(a, b))


def test_a_wait_says_who_came_and_how_many_are_missing(etcds):
    harness.need_program()
    node = subprocess.run([harness.program(), "join", "--rdzv-backend", "etcd", "--rdzv-endpoint", etcds(1).endpoint, "--rdzv-id",
                           "job", "--nnodes", "2", "--rdzv-conf", "timeout=6"], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, env=harness.quiet_environment(), timeout=LIMIT)
    name = socket.gethostname()
    assert f": 1 of 2 nodes joined ({name} (pid " in node.stderr, node.stderr
    assert ", 1 more needed; gives up in " in node.stderr, node.stderr
    assert f"timed out after 6 s: 1 of 2 nodes joined ({name})" in node.stderr, node.stderr


# ---- Who waits ----


@pytest.fixture
def waiters(joins):
    """waiters(server, "3", id) is one more node for people."""
    return lambda server, nnodes, run_id="job", conf=f"timeout={LIMIT}": joins("etcd", server.endpoint, nnodes, run_id,
                                                                               conf)


def notices(server):
    found = etcd_node(server, "/torchelastic/p2p/muster/waiting") or {}
    return [json.loads(node["value"]) for node in found.get("nodes", [])]


def test_every_node_that_waits_names_who_is_in(etcds, waiters):
    server = etcds(1)
    nodes = [waiters(server, "3") for _ in range(2)]
    for node in nodes:
        line = said(node, "2 of 3 nodes joined (")
        for other in nodes:
            assert f"{HOST} (pid {other.pid})" in line, line
        assert "was started" not in line and "same endpoint" not in line
    waiters(server, "3")
    until(lambda: not notices(server), LIMIT, "their round begins, and nobody waits any more")


def test_nodes_with_another_nnodes_are_named(etcds, waiters):
    server = etcds(1)
    first, odd = waiters(server, "3"), waiters(server, "4")
    assert said(first, "was started").endswith(f"; {HOST} was started with --nnodes 4, this node with --nnodes 3\n")
    assert said(odd, "was started").endswith(f"; {HOST} was started with --nnodes 3, this node with --nnodes 4\n")


def test_nodes_with_another_id_at_the_endpoint_are_named(etcds, waiters):
    server = etcds(1)
    first, other = waiters(server, "2", "job7"), waiters(server, "2", "job/8")
    assert said(first, "same endpoint").endswith(f"; {HOST} waits at the same endpoint for rendezvous 'job/8'\n")
    assert said(other, "same endpoint").endswith(f"; {HOST} waits at the same endpoint for rendezvous 'job7'\n")


def test_a_timeout_names_who_came_and_who_did_not(etcds, waiters):
    server = etcds(1)
    nodes = [waiters(server, "3", conf="timeout=8"), waiters(server, "3"), waiters(server, "2", "other")]
    line = said(nodes[0], "timed out after 8 s")
    assert f"timed out after 8 s: 2 of 3 nodes joined ({HOST}, {HOST}); {HOST} waits at the same endpoint for " in line
    until(lambda: nodes[0].pid not in [notice["pid"] for notice in notices(server)], LIMIT, "its notice is gone")


def test_a_notice_of_a_node_that_was_killed_expires(etcds, waiters):
    server = etcds(1)
    dies, waits = waiters(server, "3"), waiters(server, "3")
    assert said(waits, "2 of 3 nodes joined (")
    assert len(notices(server)) == 2
    dies.kill()
    until(lambda: [notice["pid"] for notice in notices(server)] == [waits.pid], LIMIT, "its notice expires")


def test_a_wait_goes_on_and_names_nodes_again_after_etcd_was_away(etcds, waiters):
    server = etcds(1)
    first = waiters(server, "3")
    until(lambda: notices(server), LIMIT, "a notice")
    server[0].kill()
    assert said(first, ": no connection for ")
    server[0].start()
    second = waiters(server, "3")
    line = said(second, "2 of 3 nodes joined (")
    assert f"{HOST} (pid {first.pid})" in line and f"{HOST} (pid {second.pid})" in line, line


def test_a_pytorch_node_is_counted_without_a_name(scenes, stock, waiters):
    scene = scenes(nodes=(3, 3))
    waiting = scene.node("stock").begin("next")
    scene.until_status("joinable", participants=[0])
    node = waiters(scene.server, "3", scene.run_id)
    line = said(node, "2 of 3 nodes joined (")
    assert f": 2 of 3 nodes joined ({HOST} (pid {node.pid})), 1 more needed" in line, line
    ours = waiters(scene.server, "3", scene.run_id)  # and its join is not disturbed by notices
    assert waiting.good(LIMIT)["world_size"] == 3
    assert ours.poll() is None


def test_a_prefix_that_is_not_as_etcd_writes_it(scenes):
    scene = scenes(nodes=(1, 3), etcd_prefix="my//jobs/", last_call_timeout=1)
    a = scene.node("ours")
    agree(meet(a))
    late = scene.node("ours").begin("next")
    until(lambda: a.call("waiting").good["count"] > 0, LIMIT, "a node waits")
    assert scene.get(f"/my/jobs/run_{scene.run_id}/rdzv/active_version") is not None
    agree([a.call("next", LIMIT).good, late.good(LIMIT)])


def test_a_server_that_stops_for_longer_than_a_keep_alive_ends_no_group(scenes, etcds):
    cluster = etcds(1)
    scene = Scene(cluster, nodes=(2, 2))
    try:
        a, b = scene.node("ours"), scene.node("ours")
        agree(meet(a, b))
        cluster[0].kill()
        time.sleep(12)  # a keep-alive lives for 10 s
        cluster[0].start()
        end = time.monotonic() + 16  # and is judged 12 s later
        while time.monotonic() < end:
            for node in (a, b):
                answer = node.call("waiting", LIMIT)
                assert not answer["ok"] or answer["count"] == 0, answer
            time.sleep(0.5)
        assert scene.keep_alives(1) == ["rank_0", "rank_1"]
    finally:
        scene.stop()


def test_waits_outlast_a_server_that_is_away(scenes, etcds):
    cluster = etcds(1)
    scene = Scene(cluster, nodes=(3, 3))
    try:
        a, b, c = made = [scene.node("ours") for _ in range(3)]
        agree(meet(*made))
        key, extra = a.begin("get", key="later"), b.begin("load_extra", key="later", ms=300_000)
        time.sleep(1)  # they have looked by now, and watch
        cluster[0].kill()
        time.sleep(25)  # a watch is asked anew after 20 s
        cluster[0].start()
        c.call("set", LIMIT, key="later", value="now").good
        c.call("store_extra", LIMIT, key="later", value="now").good
        assert key.good(LIMIT)["value"] == extra.good(LIMIT)["value"] == "now"
    finally:
        scene.stop()


def test_a_server_that_lost_everything_gets_the_group_back(scenes, etcds):
    cluster = etcds(1)
    scene = Scene(cluster, nodes=(2, 2))
    try:
        a, b = scene.node("ours"), scene.node("ours")
        agree(meet(a, b))
        before = scene.document()
        cluster[0].kill()
        cluster[0].wipe()
        cluster[0].start()
        until(lambda: scene.document() == before, WATCH - 5, "the document is back, and not when a watch is over")
        until(lambda: scene.keep_alives(1) == ["rank_0", "rank_1"], LIMIT, "keep-alives are back")
        assert a.call("waiting", LIMIT).good["count"] == 0
    finally:
        scene.stop()


def test_who_waits_for_others_at_a_server_that_lost_everything_opens_it_anew(scenes, etcds):
    cluster = etcds(1)
    scene = Scene(cluster, nodes=(2, 2))
    try:
        early = scene.node("ours").begin("next")
        scene.until_status("joinable", participants=[0])
        cluster[0].kill()
        cluster[0].wipe()
        cluster[0].start()
        until(lambda: (scene.document() or {}).get("participants") == [0], WATCH - 5, "it is there again")
        agree([p.good(LIMIT) for p in (early, scene.node("ours").begin("next"))])
    finally:
        scene.stop()


# ---- What none of us wrote ----


def test_a_strangers_value_ends_no_group(scenes):
    scene = scenes(nodes=(2, 3))
    a, b = scene.node("ours"), scene.node("ours")
    agree(meet(a, b))
    document = scene.root + "/rdzv/active_version"
    before = scene.get(document)["value"]
    for value in ("garbage", "", "{}"):
        scribble(scene.server, document, value)
        until(lambda: scene.get(document)["value"] == before, LIMIT, "the members put their document back")
    scribble(scene.server, scene.root + "/rdzv/version_counter", "many")
    scribble(scene.server, scene.root + "/muster/v_1/rank_0", "garbage")
    assert [node.call("waiting", LIMIT).good["count"] for node in (a, b)] == [0, 0]
    late = scene.node("ours").begin("next")
    until(lambda: a.call("waiting", LIMIT).good["count"] > 0, LIMIT, "a node waits")
    answers = [p.good(LIMIT) for p in (a.begin("next"), b.begin("next"), late)]
    agree(answers)
    assert {x["round"] for x in answers} == {2}, "the version counter goes on"


def test_a_strangers_value_is_said_and_a_joining_node_goes_on_without_members(etcds, waiters):
    server = etcds(1)
    document = "/torchelastic/p2p/run_job/rdzv/active_version"
    node = waiters(server, "1")
    until(lambda: "final" in (etcd_node(server, document) or {"value": ""})["value"], LIMIT, "it has joined")
    scribble(server, document, "garbage")
    assert said(node, "somebody wrote 7 bytes ('garbage')").endswith("putting the group's document back\n")
    node.kill()
    scribble(server, document, "more garbage")
    assert said(waiters(server, "1"), "somebody wrote").endswith("waiting for members to put their document back\n")
    until(lambda: '"version": "2"' in (etcd_node(server, document) or {"value": ""})["value"], LIMIT, "it has joined alone")


def test_a_document_of_another_layout_is_refused_by_name_and_stays(scenes, waiters):
    scene = scenes(nodes=(2, 3))
    agree(meet(scene.node("ours"), scene.node("ours")))
    document = scene.root + "/rdzv/active_version"
    other = json.dumps({"status": "brand-new"})
    scribble(scene.server, document, other)
    line = said(waiters(scene.server, "2:3", scene.run_id), "brand-new")
    assert "the document has the status 'brand-new', which this version of muster does not know" in line, line
    assert scene.get(document)["value"] == other


def test_the_same_key_twice_is_waited_for_once(scenes):
    """PyTorch counts what it found against what it was asked for, and waits for ever."""
    scene = scenes(nodes=(2, 2))
    a, b = scene.node("ours"), scene.node("ours")
    agree(meet(a, b))
    pending = a.begin("wait", key="twice", value="twice")
    b.call("set", key="twice", value="1").good
    pending.good(LIMIT)
    b.call("wait", key="twice", value="twice").good


def waits_for_all(node, other):
    """For keys of which some are there, and some are set by the other node later."""
    other.call("set", key="there", value="1").good
    for keys in (("there", "second"), ("first", "there"), ("one", "two")):
        words = dict(zip(("key", "value"), keys))
        assert node.call("check", **words).good["found"] is False
        pending = node.begin("wait", **words)
        for key in (key for key in keys if key != "there"):
            time.sleep(0.5)  # it has looked by now, and waits
            assert not pending.done()
            other.call("set", key=key, value="").good
        pending.good(LIMIT)
        assert node.call("check", **words).good["found"] is True
        node.call("wait", **words).good


def test_a_wait_is_for_all_its_keys(scenes):
    scene = scenes(nodes=(2, 2))
    a, b = scene.node("ours"), scene.node("ours")
    agree(meet(a, b))
    waits_for_all(a, b)


# ---- With PyTorch ----

@pytest.mark.parametrize("first", KINDS)
def test_two_meet_whoever_comes_first(scenes, stock, first):
    scene = scenes(nodes=(2, 2))
    nodes = [scene.node(kind) for kind in (KINDS if first == "stock" else reversed(KINDS))]
    early = nodes[0].begin("next")
    scene.until_status("joinable", participants=[0])
    answers = [early, nodes[1].begin("next")]
    answers = [p.good(LIMIT) for p in answers]
    agree(answers)
    assert [a["rank"] for a in answers] == [0, 1]
    # One store of the round, both ways.
    nodes[0].call("set", key="from_first", value="one").good
    nodes[1].call("set", key="from_second", value="two").good
    assert nodes[1].call("get", key="from_first").good["value"] == "one"
    assert nodes[0].call("get", key="from_second").good["value"] == "two"
    assert [node.call("add", key="sum", value=2).good["count"] for node in (*nodes, nodes[0])] == [2, 4, 6]


@pytest.mark.parametrize("caller", KINDS)
def test_a_last_call_brings_in_latecomers(scenes, stock, caller):
    scene = scenes(nodes=(2, 3), last_call_timeout=20)
    other = "ours" if caller == "stock" else "stock"
    nodes = [scene.node(kind) for kind in (other, caller, other)]
    pending = [nodes[0].begin("next")]
    scene.until_status("joinable", participants=[0])
    pending.append(nodes[1].begin("next"))
    scene.until_status("joinable", participants=[0, 1])
    pending.append(nodes[2].begin("next"))
    agree([p.good(LIMIT) for p in pending])


@pytest.mark.parametrize("late", KINDS)
def test_a_late_joiner_is_taken_in_by_the_next_version(scenes, stock, late):
    scene = scenes(nodes=(2, 3))
    members = [scene.node(kind) for kind in KINDS]
    agree(meet(*members))
    waiting = scene.node(late).begin("next")
    for member in members:
        until(lambda: member.call("waiting").good["count"] > 0, LIMIT, "a node waits")
    answers = [p.good(LIMIT) for p in [m.begin("next") for m in members] + [waiting]]
    agree(answers)
    assert answers[0]["round"] == 2


@pytest.mark.parametrize("dies", KINDS)
def test_the_death_of_a_member_is_followed_by_a_version_without_it(scenes, stock, dies):
    scene = scenes(nodes=(1, 2), last_call_timeout=5)
    nodes = {kind: scene.node(kind) for kind in KINDS}
    agree(meet(*nodes.values()))
    survivor = nodes["ours" if dies == "stock" else "stock"]
    nodes[dies].kill()
    if survivor.ours:  # PyTorch never hears of it: its workers fail
        until(lambda: survivor.call("waiting").good["count"] > 0, LIMIT, "it is noticed")
    answer = survivor.call("next", LIMIT).good
    assert (answer["rank"], answer["world_size"], answer["round"]) == (0, 1, 2)


@pytest.mark.parametrize("closer", KINDS)
def test_closed_by_one_is_closed_for_all(scenes, stock, closer):
    scene = scenes(nodes=(2, 2))
    nodes = {kind: scene.node(kind) for kind in KINDS}
    agree(meet(*nodes.values()))
    assert nodes[closer].call("shutdown", LIMIT).good["closed"] is True
    for node in nodes.values():
        assert node.call("is_closed", LIMIT).good["closed"] is True
        assert node.call("next", LIMIT).error == "RendezvousClosedError"
    assert scene.document()["status"] == "closed"


def test_closing_before_anybody_came_is_seen_by_pytorch(scenes, stock):
    scene = scenes(nodes=(2, 2))
    scene.node("ours").call("set_closed", LIMIT).good
    theirs = scene.node("stock")
    assert theirs.call("is_closed").good["closed"] is True
    assert theirs.call("next", LIMIT).error == "RendezvousClosedError"


def test_pytorch_finds_room_where_ours_gave_up(scenes, stock):
    scene = scenes(nodes=(2, 2), timeout=2)
    assert scene.node("ours").call("next", LIMIT).error == "RendezvousTimeoutError"
    nodes = [scene.node(kind, timeout=100) for kind in KINDS]
    agree(meet(*nodes))


def test_extra_data_both_ways(scenes, stock):
    scene = scenes(nodes=(2, 2))
    nodes = {kind: scene.node(kind) for kind in KINDS}
    version = meet(*nodes.values())[0]["round"]
    nodes["ours"].call("store_extra", key="ours", value="1").good
    assert nodes["stock"].call("load_extra", round=version, key="ours").good["value"] == "1"
    nodes["stock"].call("store_extra", round=version, key="theirs", value="2").good
    assert nodes["ours"].call("load_extra", key="theirs", ms=20000).good["value"] == "2"


def test_waits_for_keys_that_come_from_the_other_side(scenes, stock):
    scene = scenes(nodes=(2, 2))
    nodes = {kind: scene.node(kind) for kind in KINDS}
    meet(*nodes.values())
    ours, theirs = nodes["ours"], nodes["stock"]
    waits_for_all(ours, theirs)
    pending = ours.begin("get", key="later")
    theirs.call("set", key="later", value="now").good
    assert pending.good(LIMIT)["value"] == "now"
    pending = theirs.begin("wait", keys=["x", "y"])
    ours.call("set", key="x", value="1").good
    ours.call("set", key="y", value="2").good
    pending.good(LIMIT)
    assert theirs.call("check", keys=["x", "y"]).good["found"] is True
    assert theirs.call("check", keys=["x", "z"]).good["found"] is False
    value = base64.b64encode(b"\x00\xff/?").decode()
    key = base64.b64encode(b"bytes").decode()
    theirs.call("set_bytes", key=key, value=value).good
    assert scene.get(f"{scene.root}/rdzv/v_1/kv/{key}")["value"] == value


class Agent:
    """What an agent does with a node in a rendezvous: when others wait, it goes into the next version with it."""

    def __init__(self, node, first):
        self.node, self.told, self.since = node, first, time.monotonic()
        self.spells = []  # (rank, from, to)
        self._pending = None

    def act(self):
        if self._pending is None:
            answer = self.node.call("waiting", LIMIT)
            if answer["ok"] and answer["count"] > 0:
                self.spells.append((self.told["rank"], self.since, time.monotonic()))
                self._pending = self.node.begin("next")
        elif self._pending.done():
            self.told, self.since, self._pending = self._pending.good(), time.monotonic(), None

    @property
    def works(self):
        return self._pending is None

    def all_spells(self):
        return self.spells + ([(self.told["rank"], self.since, time.monotonic())] if self.works else [])


def goes_on_together(scene, agents):
    """Everybody works in one version, and all keep-alives are there."""
    for agent in agents:
        agent.act()
    for i, one in enumerate(agents):
        for other in agents[i + 1:]:
            for rank, begin, end in one.all_spells():
                assert not any(rank == r and begin < e and b < end for r, b, e in other.all_spells()), "one rank twice"
    if not all(agent.works for agent in agents):
        return False
    document = scene.document()
    versions = {agent.told["round"] for agent in agents}
    return document is not None and document["status"] == "final" and versions == {int(document["version"])} and \
        len(scene.keep_alives(document["version"])) == len(agents)


@pytest.mark.parametrize("first, limits", [("stock", (2, 2)), ("ours", (1, 2))])
def test_a_mixed_group_goes_on_together_when_the_server_has_lost_everything(scenes, stock, etcds, first, limits):
    """PyTorch's member does not put its keep-alive back: ours sees that, and takes it along into another version."""
    cluster = etcds(1)
    scene = Scene(cluster, nodes=limits, last_call_timeout=30)
    try:
        nodes = [scene.node(kind) for kind in (KINDS if first == "stock" else reversed(KINDS))]
        early = nodes[0].begin("next")
        scene.until_status("joinable", participants=[0])
        late = nodes[1].begin("next")
        answers = [early.good(LIMIT), late.good(LIMIT)]
        agree(answers)
        agents = [Agent(node, answer) for node, answer in zip(nodes, answers)]
        cluster[0].kill()
        cluster[0].wipe()
        cluster[0].start()
        since = []

        def steady():  # for longer than a keep-alive lives that nobody renews
            if not goes_on_together(scene, agents):
                since.clear()
                return False
            since.append(time.monotonic())
            return since[-1] - since[0] > KEEP_ALIVE + 2
        until(steady, 2 * LIMIT, "everybody works together")
        agree([agent.told for agent in agents])
    finally:
        scene.stop()

"""The etcd-v3 rendezvous with real etcds: nodes that die and leave, etcds that die, stall and forget.

Nodes are `muster join`, which tells every event as a line of JSON; whole jobs are in test_etcd_v3_run.py.
"""

import base64
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time

import pytest

import etcd_servers
import harness
from ports import free_port
from rdzv_nodes import Ours, need_rdzv, said, until

LEASE = 5
LIMIT = 60  # for what takes a moment when nothing is in the way
HOST = socket.gethostname()


class Node:
    """A `muster join` that stays until it is told to go."""

    def __init__(self, endpoints, run_id, nnodes, *words, conf=""):
        conf = f"lease={LEASE},job_lease={3 * LEASE},last_call_timeout=1,join_timeout={LIMIT}" + (f",{conf}" if conf else "")
        self.process = subprocess.Popen(
            [harness.program(), "join", "--json", "--rdzv-backend", "etcd-v3", "--rdzv-endpoint", endpoints,
             "--rdzv-id", run_id, "--nnodes", nnodes, "--hold", "600", "--rdzv-conf", conf, *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=harness.quiet_environment())
        self.events, self.stderr = [], []
        self._more = threading.Condition()
        self._readers = [threading.Thread(target=self._read, daemon=True),
                         threading.Thread(target=self._read_errors, daemon=True)]
        for reader in self._readers:
            reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self._more:
                self.events.append({**json.loads(line), "at": time.monotonic()})
                self._more.notify_all()
        with self._more:
            self.events.append({"event": "ended", "at": time.monotonic()})
            self._more.notify_all()

    def _read_errors(self):
        for line in self.process.stderr:
            self.stderr.append(line)

    def told(self, what, count=1, limit=LIMIT, **fields):
        """The event, the count-th of its kind with these fields, once it is told."""
        def found():
            matching = [event for event in self.events if event["event"] == what
                        and all(event.get(name) == value for name, value in fields.items())]
            return matching[count - 1] if len(matching) >= count else None
        with self._more:
            assert self._more.wait_for(found, limit), f"{what} {fields}: not within {limit} s; told: {self.events}"
            return found()

    def names(self):
        return [event["event"] for event in self.events]

    def kill(self):
        self.process.kill()
        self.process.wait(20)

    def leave(self):
        self.process.send_signal(signal.SIGINT)

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(20)
        for reader in self._readers:
            reader.join(20)
        self.process.stdout.close()
        self.process.stderr.close()


@pytest.fixture
def nodes():
    """nodes(cluster, "2:3") is one more node of the same rendezvous."""
    harness.need_program()
    made = []

    def make(cluster, nnodes, *words, run_id="job", endpoints=None, **what):
        node = Node(endpoints or cluster.endpoints, run_id, nnodes, *words, **what)
        made.append(node)
        return node

    yield make
    for node in made:
        node.end()


@pytest.fixture
def proxies():
    proxies = etcd_servers.Proxies()
    yield proxies
    proxies.stop()


def group(nodes, cluster, count, nnodes=None, **what):
    """So many nodes that have joined one round."""
    made = [nodes(cluster, nnodes or f"{count}", **what) for _ in range(count)]
    first = [node.told("joined") for node in made]
    assert sorted(event["rank"] for event in first) == list(range(count))
    assert len({json.dumps([event["members"], event["round"], event["master_port"]]) for event in first}) == 1
    return sorted(made, key=lambda node: node.told("joined")["rank"])


def call(member, path, **body):
    connection = http.client.HTTPConnection("127.0.0.1", member.port, timeout=10)
    try:
        connection.request("POST", path, json.dumps(body))
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def keys(member, prefix="/muster/"):
    """What is there, by key."""
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    reply = call(member, "/v3/kv/range", key=base64.b64encode(prefix.encode()).decode(),
                 range_end=base64.b64encode(end.encode()).decode())
    return {base64.b64decode(kv["key"]).decode(): base64.b64decode(kv.get("value", "")).decode()
            for kv in reply.get("kvs", [])}


def calm(made, since, allowed=("backend_down", "backend_up")):
    """Nothing else was told from that number of events on."""
    for node, count in zip(made, since):
        assert [name for name in node.names()[count:] if name not in allowed] == [], node.events


def counts(made):
    return [len(node.events) for node in made]


# ---- Rounds ----

def test_a_crowd_is_one_world(etcds, nodes):
    cluster = etcds(1)
    before, start = cluster[0].metric("etcd_server_proposals_applied_total"), time.monotonic()
    made = group(nodes, cluster, 12, conf="lease=60,job_lease=60")  # nobody is lost on a machine that has no time
    applied = cluster[0].metric("etcd_server_proposals_applied_total") - before
    news = 2 * (time.monotonic() - start)  # of how many have come: one in half a second, for as long as it takes
    assert applied <= 3 * len(made) + news, (applied, news)
    assert made[0].told("joined")["world_size"] == 12


def test_a_latecomer_is_let_in_and_one_too_many_is_a_spare(etcds, nodes):
    cluster = etcds(1)
    made = group(nodes, cluster, 2, "2:3")
    late = nodes(cluster, "2:3")
    for node in made:
        node.told("waiting")
    for node in made:
        node.leave()
    for node in made:
        node.told("ended")
    again = nodes(cluster, "2:3")
    assert late.told("joined")["members"] == again.told("joined")["members"]


def test_nothing_is_left_behind(etcds, nodes):
    cluster = etcds(1)
    made = group(nodes, cluster, 3)
    assert any(key.startswith("/muster/job/nodes/") for key in keys(cluster[0]))
    for node in made:
        node.leave()
    for node in made:
        node.told("ended")
    assert not [key for key in keys(cluster[0]) if "/nodes/" in key]
    until(lambda: not keys(cluster[0]), LIMIT, "an empty etcd")


def test_run_ids_do_not_meet(etcds, nodes):
    cluster = etcds(1)
    one = nodes(cluster, "1", run_id="a")
    two = nodes(cluster, "1", run_id="a/job")
    assert one.told("joined")["world_size"] == two.told("joined")["world_size"] == 1
    assert "/muster/a%2Fjob/job/doc" in keys(cluster[0])


def test_the_blocking_calls_share_the_store_of_the_round(etcds):
    need_rdzv()
    cluster = etcds(1)
    made = [Ours(cluster.endpoint, "blocking", (2, 2), "", {"lease": LEASE}, backend="etcd-v3") for _ in range(2)]
    try:
        joins = [node.begin("next") for node in made]
        assert sorted(join.good(LIMIT)["rank"] for join in joins) == [0, 1]
        made[0].call("set", key="greeting", value="hello").good
        assert made[1].call("get", key="greeting").good["value"] == "hello"
        assert made[1].call("waiting").good["count"] == 0
        made[0].call("set_closed").good
        assert until(lambda: made[1].call("is_closed").good["closed"], what="closed at the other")
        for node in made:
            node.leave()
    finally:
        for node in made:
            node.stop()


# ---- Nodes that go ----

@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_node_is_lost_within_its_lease(etcds, nodes, victim):
    cluster, lease = etcds(1), 2 * LEASE  # long enough for a machine that has no time
    made = group(nodes, cluster, 3, "2:3", conf=f"lease={lease},job_lease={4 * lease}")
    gone = made.pop(victim)
    start = time.monotonic()
    gone.kill()
    for node in made:
        lost = node.told("peers_lost")
        assert [gone.told("joined")["node"]] == lost["nodes"]
        assert lost["at"] - start < lease + 20  # etcd itself looks once in half a second; and a loaded machine


@pytest.mark.parametrize("victim", [0, 2])
def test_a_node_that_leaves_is_seen_at_once(etcds, nodes, victim):
    cluster = etcds(1)
    made = group(nodes, cluster, 3, "2:3", conf="lease=90,job_lease=90")
    gone = made.pop(victim)
    gone.leave()
    for node in made:
        node.told("peers_lost")  # within a limit that is below 90 s: the lease did not have to run out


def test_a_node_that_was_paused_too_long_is_removed(etcds, nodes):
    cluster = etcds(1)
    made = group(nodes, cluster, 3, "2:3")
    made[2].process.send_signal(signal.SIGSTOP)
    for node in made[:2]:
        node.told("peers_lost")
    made[2].process.send_signal(signal.SIGCONT)
    made[2].told("removed")
    assert made[2].process.wait(LIMIT) == 5


# ---- etcds that go ----

def test_a_cluster_that_loses_its_leader_disturbs_nobody(etcds, nodes):
    cluster = etcds(3)
    made = group(nodes, cluster, 3, "2:3")
    since = counts(made)
    leader = cluster.leader()
    leader.kill()
    cluster.leader()
    leader.start()
    time.sleep(2 * LEASE)  # nobody may have lost his lease in this time
    calm(made, since)
    made[2].leave()
    for node in made[:2]:
        node.told("peers_lost")


def test_a_leader_killed_during_a_join_delays_it(etcds, nodes):
    cluster = etcds(3)
    made = [nodes(cluster, "4") for _ in range(2)]
    until(lambda: len([key for key in keys(cluster.leader()) if "/nodes/" in key]) == 2, LIMIT, "two records")
    cluster.leader().kill()
    made += [nodes(cluster, "4") for _ in range(2)]
    assert len({json.dumps(node.told("joined")["members"]) for node in made}) == 1


def test_a_paused_member_of_the_cluster_disturbs_nobody(etcds, nodes):
    cluster = etcds(3)
    made = group(nodes, cluster, 2)
    since = counts(made)
    member = cluster.follower()  # a leader of etcd before 3.4.31 may end leases when it is back
    member.pause()
    time.sleep(2 * LEASE)
    member.resume()
    time.sleep(LEASE)
    calm(made, since)


@pytest.mark.parametrize("members", [1, 3])
def test_all_stopped_for_longer_than_a_lease_disturbs_nobody(etcds, nodes, members):
    cluster = etcds(members)
    made = group(nodes, cluster, 3, "2:3")
    since = counts(made)
    cluster.kill_all()
    for node in made:
        node.told("backend_down")
    time.sleep(2 * LEASE)
    cluster.start_all()
    for node in made:
        node.told("backend_up")
    until(lambda: len([key for key in keys(cluster[0]) if "/nodes/" in key]) == 3, LIMIT, "three records")
    time.sleep(2 * LEASE)
    calm(made, since)
    made[1].leave()
    for node in (made[0], made[2]):
        assert node.told("peers_lost")["nodes"] == [made[1].told("joined")["node"]]


def test_an_etcd_that_has_forgotten_everything_gets_it_back(etcds, nodes):
    cluster = etcds(1)
    made = group(nodes, cluster, 3, "2:3")
    since = counts(made)
    doc = keys(cluster[0])["/muster/job/job/doc"]
    cluster.kill_all()
    cluster[0].wipe()
    time.sleep(1.5 * LEASE)
    cluster.start_all()
    until(lambda: keys(cluster[0]).get("/muster/job/job/doc") == doc, LIMIT, "the same document")
    until(lambda: len([key for key in keys(cluster[0]) if "/nodes/" in key]) == 3, LIMIT, "three records")
    time.sleep(2 * LEASE)
    calm(made, since)
    made[0].leave()
    for node in made[1:]:
        node.told("peers_lost")


def test_compaction_under_a_watch_loses_nothing(etcds, nodes):
    cluster = etcds(1)
    made = group(nodes, cluster, 3, "2:3")
    made[1].process.send_signal(signal.SIGSTOP)  # its watch falls behind
    revision = int(call(cluster[0], "/v3/kv/put", key="eA==", value="eA==")["header"]["revision"])
    call(cluster[0], "/v3/kv/compaction", revision=str(revision))
    made[1].process.send_signal(signal.SIGCONT)
    made[2].leave()
    for node in made[:2]:
        node.told("peers_lost")


def test_compaction_under_a_silent_watch_does_not_prolong_the_last_call(etcds, nodes, proxies):
    """A stream that says nothing is opened anew after 15 to 25 s, from a revision that etcd has forgotten by then."""
    last_call = 35
    cluster = etcds(1)
    proxy = proxies.make(cluster[0].port)
    proxy.look_for(b'"compact_revision"')
    node = nodes(cluster, "1:2", endpoints=proxy.endpoint, conf=f"last_call_timeout={last_call},join_timeout={3 * LIMIT}")
    began = time.monotonic()
    until(lambda: "/muster/job/job/news" in keys(cluster[0]), LIMIT, node.stderr)
    for _ in range(20):
        revision = call(cluster[0], "/v3/kv/put", key="eA==", value="eA==")["header"]["revision"]
    call(cluster[0], "/v3/kv/compaction", revision=revision)
    assert node.told("joined", limit=2 * LIMIT)["at"] - began < last_call + 10
    assert proxy.wanted[b'"compact_revision"'] > 0


# ---- What cannot work ----

def test_no_etcd_is_said_in_time(nodes):
    node = nodes(None, "1", endpoints=f"127.0.0.1:{free_port()}", conf="read_timeout=2")
    assert node.process.wait(LIMIT) == 1
    node.told("ended")
    until(lambda: "etcd could not be used within 2 s" in "".join(node.stderr), LIMIT, node.stderr)
    assert "127.0.0.1" in "".join(node.stderr)


def test_too_few_nodes_are_said_in_time(etcds, nodes):
    cluster = etcds(1)
    node = nodes(cluster, "2", conf="join_timeout=2")
    assert node.process.wait(LIMIT) == 4
    node.told("ended")
    until(lambda: f"timed out after 2 s: 1 of 2 nodes joined ({HOST})" in "".join(node.stderr), LIMIT, node.stderr)
    assert not [key for key in keys(cluster[0]) if "/nodes/" in key]


def test_other_limits_disturb_nobody_and_are_said(etcds, nodes):
    cluster = etcds(1)
    made = group(nodes, cluster, 2, "2:4")
    since = counts(made)
    odd = nodes(cluster, "8", conf="join_timeout=4")
    assert odd.process.wait(LIMIT) == 4
    odd.told("ended")
    until(lambda: f"0 of 8 nodes joined; {HOST} was started with --nnodes 2:4, this node with --nnodes 8" in
          "".join(odd.stderr), LIMIT, odd.stderr)
    calm(made, since)


def scribble(member, key, value, lease=0):
    """A stranger writes there, under no lease; another version of muster would have one."""
    call(member, "/v3/kv/put", key=base64.b64encode(f"/muster/job/{key}".encode()).decode(),
         value=base64.b64encode(value.encode()).decode(), lease=lease)


def test_a_strangers_values_disturb_nobody(etcds, nodes):
    cluster = etcds(1)
    made = group(nodes, cluster, 3, "2:3")
    since = counts(made)
    doc = keys(cluster[0])["/muster/job/job/doc"]
    for value in ("garbage", "", "{}"):
        scribble(cluster[0], "job/doc", value)
        until(lambda: keys(cluster[0]).get("/muster/job/job/doc") == doc, LIMIT, "members put the document back")
    scribble(cluster[0], "job/news", "garbage")
    scribble(cluster[0], "job/closed", "garbage")
    scribble(cluster[0], "job/folder", "garbage")
    until(lambda: '"node"' in keys(cluster[0])["/muster/job/job/folder"], LIMIT, "somebody leads again")
    record = next(key for key in keys(cluster[0], "/muster/job/nodes/"))
    scribble(cluster[0], record.removeprefix("/muster/job/"), "garbage")
    until(lambda: '"want"' in keys(cluster[0])[record], LIMIT, "the leader puts a record back")
    time.sleep(2 * LEASE)
    calm(made, since)
    assert any("somebody wrote 7 bytes ('garbage') to job/doc" in line for node in made for line in node.stderr)
    made[0].leave()
    for node in made[1:]:
        node.told("peers_lost")


@pytest.mark.parametrize("version, key", [(1, "job/doc"), (3, "job/doc"), (1, "job/folder")])
def test_a_value_of_another_version_is_refused_by_name_and_stays(etcds, waiters, version, key):
    cluster, value = etcds(1), f'{{"v": {version}}}'
    scribble(cluster[0], key, value, call(cluster[0], "/v3/lease/grant", TTL=600)["ID"])
    assert f"another version of muster wrote it (its values are of version {version}, ours of version 2)" in \
        said(waiters(cluster, "1"), "another version")
    assert keys(cluster[0])[f"/muster/job/{key}"] == value


@pytest.fixture
def waiters(joins):
    """waiters(cluster, "3", id) is one more node for people."""
    return lambda cluster, nnodes, run_id="job": joins("etcd-v3", cluster.endpoints, nnodes, run_id,
                                                       f"lease={LEASE},join_timeout={LIMIT}")


def test_every_node_that_waits_names_who_is_in(etcds, waiters):
    cluster = etcds(1)
    for node in [waiters(cluster, "3") for _ in range(2)]:
        assert f"2 of 3 nodes joined ({HOST}" in said(node, "2 of 3 nodes joined ("), "nobody is named"


def test_nodes_with_another_nnodes_are_named(etcds, waiters):
    cluster = etcds(1)
    first, odd = waiters(cluster, "3"), waiters(cluster, "4")
    assert said(first, "was started").endswith(f"; {HOST} was started with --nnodes 4, this node with --nnodes 3\n")
    assert said(odd, "was started").endswith(f"; {HOST} was started with --nnodes 3, this node with --nnodes 4\n")


def test_nodes_with_another_id_at_the_endpoint_are_named_until_their_round_begins(etcds, waiters):
    cluster = etcds(1)
    first, other = waiters(cluster, "2", "job7"), waiters(cluster, "2", "job/8")
    assert said(first, "same endpoint").endswith(f"; {HOST} waits at the same endpoint for rendezvous 'job%2F8'\n")
    assert said(other, "same endpoint").endswith(f"; {HOST} waits at the same endpoint for rendezvous 'job7'\n")
    assert set(keys(cluster[0], "/muster//")) == {"/muster//waiting/job7", "/muster//waiting/job%2F8"}
    waiters(cluster, "2", "job7")
    until(lambda: set(keys(cluster[0], "/muster//")) == {"/muster//waiting/job%2F8"}, LIMIT, lambda: keys(cluster[0]))


def test_a_round_that_forms_at_once_leaves_no_mark(etcds, nodes):
    cluster = etcds(1)
    group(nodes, cluster, 2)
    assert not keys(cluster[0], "/muster//")
    versions = call(cluster[0], "/v3/kv/range", key=base64.b64encode(b"/muster//waiting/job").decode())
    assert "kvs" not in versions


def test_a_wrong_password_is_said_at_once(etcds, nodes):
    cluster = etcds(1)
    call(cluster[0], "/v3/auth/user/add", name="root", password="right")
    call(cluster[0], "/v3/auth/role/add", name="root")
    call(cluster[0], "/v3/auth/user/grant", user="root", role="root")
    call(cluster[0], "/v3/auth/enable")
    assert nodes(cluster, "1", conf="user=root,password=right").told("joined")["world_size"] == 1
    node = nodes(cluster, "1", conf="user=root,password=wrong", run_id="other")
    assert node.process.wait(LIMIT) == 1
    until(lambda: "authentication failed" in "".join(node.stderr), LIMIT, node.stderr)


def test_with_tls_and_without_the_right_ca(etcds, nodes, tmp_path):
    from etcd_servers import Tls
    tls = Tls(tmp_path, client_auth=True)
    cluster = etcds(1, tls=tls)
    files = f"cert={tls.client_cert},key={tls.client_key}"
    assert nodes(cluster, "1", conf=f"cacert={tls.ca},{files}").told("joined")["world_size"] == 1
    for conf in (f"cacert={tls.other_ca},{files},read_timeout=2", f"cacert={tls.ca},read_timeout=2"):
        node = nodes(cluster, "1", conf=conf, run_id="other")
        assert node.process.wait(LIMIT) == 1
        until(lambda: "etcd could not be used within 2 s" in "".join(node.stderr), LIMIT, node.stderr)


def test_a_full_etcd_is_said_in_time(etcds, nodes):
    cluster = etcds(1, extra=["--quota-backend-bytes", "40000"])
    for _ in range(4):
        call(cluster[0], "/v3/kv/put", key="eA==", value=base64.b64encode(os.urandom(20000)).decode())
    node = nodes(cluster, "1", conf="join_timeout=3,read_timeout=3")
    assert node.process.wait(LIMIT) in (1, 4)
    until(lambda: "space" in "".join(node.stderr), LIMIT, node.stderr)

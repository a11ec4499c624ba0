"""The etcd-v2 rendezvous on a real etcd: nodes of stock PyTorch and ours in one, and jobs of ours on it."""

import base64
import http.client
import json
import re
import signal
import socket
import subprocess
import urllib.parse

import pytest

import harness
from harness import NEW  # noqa: F401: what these tests meet if it is not the usual one
from rdzv_nodes import EtcdScene, Join, agree, meet, until

KINDS = ("stock", "ours")
STATE_LIMIT = 60


@pytest.fixture
def scenes(stock_pool, etcds):
    """scenes(nodes=(2, 3)) is a rendezvous on an etcd of its own, for the length of a test."""
    made = []

    def make(members=1, **what):
        scene = EtcdScene(stock_pool, etcds(members), **what)
        made.append(scene)
        return scene

    yield make
    for scene in reversed(made):
        scene.stop()


def share_the_store(nodes):
    nodes[0].call("set", key="greeting", value=nodes[0].name).good
    for node in nodes[1:]:
        assert node.call("get", key="greeting").good["value"] == nodes[0].name


def key_of(scene):
    """The document's key as etcd has it."""
    connection = http.client.HTTPConnection("127.0.0.1", scene.port, timeout=30)
    connection.request("GET", f"/v2/keys/torch/elastic/rendezvous/{scene.run_id}")
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer.get("node")


@pytest.mark.parametrize("first", KINDS)
def test_two_of_two_meet_whoever_comes_first(scenes, first):
    scene = scenes()
    second = "ours" if first == "stock" else "stock"
    made = {first: scene.node(first, "127.0.0.2"), second: scene.node(second, "127.0.0.1")}
    waiting = made[first].begin("next")
    scene.until_in(1)
    done = made[second].begin("next")
    nodes = [made[first], made[second]]
    agree(nodes, [waiting.good(), done.good()], round=0)
    document = scene.document()
    assert document["complete"] and document["deadline"] is None
    node = key_of(scene)
    assert 7100 < node["ttl"] <= 7200
    share_the_store(nodes)
    share_the_store(nodes[::-1])


def test_four_of_four_complete_at_once(scenes):
    scene = scenes(nodes=(2, 4), last_call_timeout=60)
    nodes = [scene.node(kind, f"127.0.0.{i}") for i, kind in enumerate(KINDS + KINDS, start=1)]
    agree(nodes, meet(*nodes), round=0)
    share_the_store(nodes)


def test_three_of_four_go_ahead_after_the_last_call(scenes):
    scene = scenes(nodes=(2, 4), last_call_timeout=2)
    nodes = [scene.node(kind, f"127.0.0.{i}") for i, kind in enumerate(("ours", "stock", "ours"), start=1)]
    agree(nodes, meet(*nodes), round=0)


@pytest.mark.parametrize("late", KINDS)
def test_a_late_joiner_is_in_the_next_round(scenes, late):
    scene = scenes(nodes=(2, 3), last_call_timeout=2)
    # Since 2.5 a stock rank 0 that stays does not publish its address again, for which a stock newcomer would wait in vain.
    silent = late == "stock" and harness.release(scene.which) >= (2, 5)
    nodes = [scene.node(kind, f"127.0.0.{i}") for i, kind in enumerate(reversed(KINDS) if silent else KINDS, start=1)]
    agree(nodes, meet(*nodes), round=0)
    third = scene.node(late, "127.0.0.3")
    coming = third.begin("next")
    for node in nodes:
        until(lambda node=node: node.call("waiting").good["count"] == 1, what="a node waiting")
    agree([*nodes, third], [*meet(*nodes), coming.good()], round=1)


@pytest.mark.parametrize("dies", KINDS)
def test_a_member_that_died_is_not_in_the_next_round(scenes, dies):
    scene = scenes(nodes=(1, 3), last_call_timeout=2, keep_alive_interval=2, keep_alive_max_attempt=2)
    lives = "ours" if dies == "stock" else "stock"
    first = harness.dialect(scene.which) == "2.5"  # a node of it that becomes rank 0 later gives up
    victim = scene.node(dies, "127.0.0.2" if first else "127.0.0.1")
    others = [scene.node(lives, "127.0.0.1" if first else "127.0.0.2"), scene.node("ours", "127.0.0.3")]
    agree([victim, *others], meet(victim, *others), round=0)
    victim.kill()
    scene.until(lambda d: len(d["participants"]) == 2, 90, "two participants")
    agree(others, meet(*others), round=1)


@pytest.mark.parametrize("closes", KINDS)
def test_what_one_side_closes_is_closed_for_the_other(scenes, closes):
    scene = scenes()
    nodes = {kind: scene.node(kind, f"127.0.0.{i}") for i, kind in enumerate(KINDS, start=1)}
    meet(*nodes.values())
    nodes[closes].call("set_closed").good
    other = nodes["ours" if closes == "stock" else "stock"]
    until(lambda: other.call("is_closed").good["closed"], what="closed")
    assert other.call("next").error == "RendezvousClosedError"


def test_a_member_is_told_at_once(scenes):
    """The document is watched: also what a stock node writes, who rings no bell."""
    scene = scenes(nodes=(1, 2), last_call_timeout=1)
    ours = scene.join("127.0.0.1", "--hold", "600")
    ours.joined()
    stock = scene.node("stock", "127.0.0.2")
    coming = stock.begin("next")
    ours.event("waiting")
    assert ours.interrupt() == 0
    assert coming.good()["world_size"] == 1


def test_a_document_that_vanished_is_put_back(scenes):
    scene = scenes(nodes=(2, 2), keep_alive_interval=1, keep_alive_max_attempt=3)
    nodes = [scene.node("ours", f"127.0.0.{i}") for i in (1, 2)]
    agree(nodes, meet(*nodes), round=0)
    cluster_delete(scene.cluster, f"/torch/elastic/rendezvous/{scene.run_id}")
    scene.until(lambda d: d is not None and d["complete"] and len(d["participants"]) == 2, what="the document is back")
    assert scene.document()["round"] == 0


def test_a_document_that_vanished_under_nodes_that_wait_is_written_again(scenes):
    scene = scenes(nodes=(3, 3))
    nodes = [scene.node("ours", f"127.0.0.{i}") for i in (1, 2, 3)]
    waiting = [node.begin("next") for node in nodes[:2]]
    scene.until_in(2)
    cluster_delete(scene.cluster, f"/torch/elastic/rendezvous/{scene.run_id}")
    scene.until_in(2)
    last = nodes[2].begin("next")
    agree(nodes, [*(done.good() for done in waiting), last.good()])


def test_a_document_that_vanished_under_a_mixed_group_is_put_back_by_ours(scenes):
    scene = scenes(keep_alive_interval=1, keep_alive_max_attempt=5)
    nodes = [scene.node(kind, f"127.0.0.{i}") for i, kind in enumerate(KINDS, start=1)]
    agree(nodes, meet(*nodes), round=0)
    cluster_delete(scene.cluster, f"/torch/elastic/rendezvous/{scene.run_id}")
    back = scene.until(lambda d: d is not None and d["complete"], what="the document is back")
    assert len(back["participants"]) == 2 and back["round"] == 0
    beat = [n for n in back["last_heartbeats"] if n[0] == "127.0.0.1"]
    scene.until(lambda d: [n for n in d["last_heartbeats"] if n[0] == "127.0.0.1"] != beat, what="stock goes on")


def test_a_directory_in_the_place_of_the_document_is_said(scenes):
    scene = scenes(nodes=(1, 1))
    cluster_call(scene.cluster, "PUT", f"/torch/elastic/rendezvous/{scene.run_id}", dir="true")
    answer = scene.node("ours", "127.0.0.1").call("next", limit=STATE_LIMIT)
    assert answer.error == "RendezvousStateError", answer


NO_DOCUMENTS = {"no base64": "?", "no pickle": "aGVsbG8=", "empty": "", "large": "x" * 100000}


@pytest.mark.parametrize("what", NO_DOCUMENTS)
def test_what_is_no_document_is_replaced(scenes, what):
    """By who comes, if nobody does so for an interval; and by a member, at once."""
    scene = scenes(nodes=(2, 2), keep_alive_interval=1, keep_alive_max_attempt=8)
    document = f"/torch/elastic/rendezvous/{scene.run_id}"
    cluster_call(scene.cluster, "PUT", document, value=NO_DOCUMENTS[what])
    nodes = [scene.node("ours", f"127.0.0.{i}") for i in (1, 2)]
    agree(nodes, meet(*nodes), round=0)
    index = cluster_call(scene.cluster, "PUT", document, value=NO_DOCUMENTS[what])["node"]["modifiedIndex"]
    until(lambda: key_of(scene)["modifiedIndex"] > index, what="the document is back")
    assert scene.document()["complete"] and scene.document()["round"] == 0
    agree(nodes, meet(*nodes), round=1)


def test_text_in_the_keys_of_bell_and_turns_changes_nothing(scenes):
    scene = scenes(nodes=(2, 2), keep_alive_interval=1, keep_alive_max_attempt=8)
    keys = [f"/torch/elastic/muster/{name}.{scene.run_id}" for name in ("bell", "turn", "done")]
    nodes = [scene.node("ours", f"127.0.0.{i}") for i in (1, 2)]
    for round, value in enumerate(("garbage", "-7", "99999999999999999999", "9223372036854775807", "", "x" * 100000)):
        for key in keys:
            cluster_call(scene.cluster, "PUT", key, value=value)
        agree(nodes, meet(*nodes), round=round)


# ---- Turns ----


def swaps(scene):
    """Writes of documents on condition: that were carried out, and that were lost."""
    connection = http.client.HTTPConnection("127.0.0.1", scene.port, timeout=30)
    connection.request("GET", "/v2/stats/store")
    told = json.loads(connection.getresponse().read())
    connection.close()
    return told["compareAndSwapSuccess"], told["compareAndSwapFail"]


def test_a_crowd_takes_turns_and_hears_the_bell(scenes):
    count = 32
    scene = scenes(nodes=(count, count))
    nodes = [scene.join(f"127.0.0.{i}", "--hold", "600") for i in range(1, count + 1)]
    assert sorted(node.joined()["rank"] for node in nodes) == list(range(count))
    done, lost = swaps(scene)
    assert done >= count - 1
    assert lost <= count, (done, lost)  # none, but for a machine so busy that a turn lasts longer than the others wait
    assert len(key_of(scene)["value"]) > 2048  # so large a document is not watched itself
    assert nodes[0].interrupt() == 0
    for node in nodes[1:]:
        node.event("peers_lost")
    bell = cluster_call(scene.cluster, "GET", f"/torch/elastic/muster/bell.{scene.run_id}")["node"]
    assert 7100 < bell["ttl"] <= 7200


def test_a_turn_that_its_owner_never_ends_is_not_waited_for(scenes):
    scene = scenes(nodes=(2, 2))
    turn = f"/torch/elastic/muster/turn.{scene.run_id}"
    index = cluster_call(scene.cluster, "PUT", turn, value="gone", ttl=60)["node"]["modifiedIndex"]
    nodes = [scene.node("ours", f"127.0.0.{i}") for i in (1, 2)]
    agree(nodes, meet(*nodes), round=0)
    after = cluster_call(scene.cluster, "GET", turn)["node"]
    assert after["modifiedIndex"] > index and 0 < after["ttl"] <= 60


def test_a_newcomer_leaves_the_keys_of_a_job_that_runs(scenes):
    """Its document was deleted, and is put back a moment after the newcomer has looked."""
    scene = scenes(nodes=(1, 2), last_call_timeout=60)
    document, name = f"/torch/elastic/rendezvous/{scene.run_id}", f"muster.{scene.run_id}/budget"
    key = "/torch/elastic/store/" + base64.b64encode(name.encode()).decode()
    member = scene.node("ours", "127.0.0.1")
    member.begin("next")
    scene.until_in(1)
    value = key_of(scene)["value"]
    member.kill()
    cluster_call(scene.cluster, "PUT", key, value="3")
    cluster_delete(scene.cluster, document)
    watchers = scene.cluster[0].metric("etcd_debugging_store_watchers")
    newcomer = scene.node("ours", "127.0.0.2")
    newcomer.begin("next")
    until(lambda: scene.cluster[0].metric("etcd_debugging_store_watchers") > watchers, what="somebody watches")
    index = cluster_call(scene.cluster, "PUT", document, value=value, prevExist="false")["node"]["modifiedIndex"]
    until(lambda: key_of(scene)["modifiedIndex"] > index, what="the newcomer writes the document")
    newcomer.kill()  # it would wait for the one that is gone
    assert cluster_call(scene.cluster, "GET", key)["node"]["value"] == "3"


def test_an_etcd_that_is_away_for_a_while_ends_nothing(scenes):
    scene = scenes(nodes=(2, 2), keep_alive_interval=1, keep_alive_max_attempt=2)
    nodes = [scene.join(f"127.0.0.{i}", "--hold", "600") for i in (1, 2)]
    for node in nodes:
        node.joined()
    scene.cluster[0].kill()
    for node in nodes:
        node.event("backend_down")
    scene.cluster[0].start()
    for node in nodes:
        node.event("backend_up")
    beat = scene.document()["last_heartbeats"]
    scene.until(lambda d: d["last_heartbeats"] != beat, what="a heartbeat")
    assert all(set(node.events()) <= {"backend_down", "backend_up"} for node in nodes)
    assert len(scene.document()["participants"]) == 2


def test_one_of_three_etcds_may_die(scenes):
    scene = scenes(members=3, nodes=(2, 2))
    scene.cluster[1].kill()
    nodes = [Join(scene.cluster.endpoints, scene.run_id, (2, 2), f"127.0.0.{i}", scene.our_options({}), "--hold", "600",
                  backend="etcd-v2") for i in (1, 2)]
    try:
        assert sorted(node.joined()["rank"] for node in nodes) == [0, 1]
    finally:
        for node in nodes:
            node.stop()


# ---- What cannot be ----


def test_a_wait_names_nodes_with_another_id_at_the_endpoint(etcds):
    harness.need_program()
    endpoint = etcds().endpoint
    nodes = [subprocess.Popen([harness.program(), "join", "--rdzv-backend", "etcd-v2", "--rdzv-endpoint", endpoint,
                               "--rdzv-id", name, "--nnodes", "2", "--rdzv-conf", "join_timeout=60"], text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              env=harness.quiet_environment()) for name in ("job7", "job8")]
    try:
        for node, other in zip(nodes, ("job8", "job7")):
            said = next((line for line in node.stderr if "same endpoint" in line), "")  # ends with the join at the latest
            assert said.endswith(f"; {socket.gethostname()} waits at the same endpoint for rendezvous '{other}'\n")
    finally:
        for node in nodes:
            node.kill()
            node.communicate()


def join_fails(endpoint, conf=""):
    done = subprocess.run([harness.program(), "join", "--rdzv-backend", "etcd-v2", "--rdzv-endpoint", endpoint, "--rdzv-id",
                           "x", "--nnodes", "1", "--rdzv-conf", conf], capture_output=True, text=True, timeout=60,
                          stdin=subprocess.DEVNULL, env=harness.quiet_environment())
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_errors_name_what_was_tried(etcds):
    harness.need_program()
    cluster = etcds()
    with socket.socket() as bound:  # so that nobody listens there
        bound.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{bound.getsockname()[1]}"
        nobody = join_fails(endpoint, "read_timeout=1")
    assert re.search(f"join rendezvous 'x': .*get '/torch/elastic/rendezvous/x': http://{endpoint}: .*onnect", nobody)
    metrics = f"127.0.0.1:{cluster[0].metrics_port}"  # speaks HTTP, and has no keys
    assert "no version 2 API here" in join_fails(metrics, "read_timeout=1")
    assert "protocol" in join_fails(cluster.endpoint, "protocol=ftp")
    assert "read_timeout" in join_fails(cluster.endpoint, "read_timeout=0")
    assert "'/nowhere'" in join_fails(cluster.endpoint, "ca_cert=/nowhere")
    assert "'ssl_cert_key' needs 'ssl_cert'" in join_fails(cluster.endpoint, "ssl_cert_key=/nowhere")
    assert "endpoint 'a b'" in join_fails("a b")


# ---- Jobs ----


def start_job(cluster, run_id, nnodes, *script, nproc=1, restarts=3):
    return subprocess.Popen([harness.program(), "run", "--rdzv-backend", "etcd-v2", "--rdzv-endpoint", cluster.endpoint,
                             "--rdzv-id", run_id, "--nnodes", nnodes, "--nproc-per-node", str(nproc), "--max-restarts",
                             str(restarts), "--rdzv-conf", "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=8",
                             "--no-python", *script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            stdin=subprocess.DEVNULL, env=harness.quiet_environment({"OMP_NUM_THREADS": "1"}))


def test_a_job_runs_on_it(etcds):
    harness.need_program()
    cluster = etcds()
    agents = [start_job(cluster, "job", "2", "sh", "-c", "echo rank $RANK of $WORLD_SIZE", nproc=2) for _ in range(2)]
    said = [agent.communicate(timeout=120) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert sorted("".join(out for out, _ in said).split("\n")) == ["", *(f"rank {i} of 4" for i in range(4))]


def test_a_name_may_be_used_again_and_other_names_are_left_alone(etcds):
    """An earlier job's addresses, verdict and counters are in the same store: they must not be taken for this one's."""
    harness.need_program()
    cluster = etcds()
    for run_id in ("job", "job.1", "job", "jo"):
        agents = [start_job(cluster, run_id, "2", "sh", "-c", "echo $MASTER_PORT") for _ in range(2)]
        said = [agent.communicate(timeout=120) for agent in agents]
        assert [agent.returncode for agent in agents] == [0, 0], said
        assert said[0][0] == said[1][0] != "", said
        cluster_delete(cluster, f"/torch/elastic/rendezvous/{run_id}")  # as its time to live does
    left = {name.split("/")[0] for name in store_keys(cluster)}
    assert left - {"muster"} == {"muster.job", "muster.job.1", "muster.jo"}  # the board of those who wait is nobody's own
    assert sum(name == "muster.job/verdict" for name in store_keys(cluster)) == 1


def cluster_delete(cluster, key):
    connection = http.client.HTTPConnection("127.0.0.1", cluster[0].port, timeout=30)
    connection.request("DELETE", f"/v2/keys{key}")
    assert connection.getresponse().status == 200
    connection.close()


def cluster_call(cluster, method, key, **fields):
    """What etcd answers."""
    connection = http.client.HTTPConnection("127.0.0.1", cluster[0].port, timeout=30)
    connection.request(method, f"/v2/keys{key}", urllib.parse.urlencode(fields),
                       {"Content-Type": "application/x-www-form-urlencoded"})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def store_keys(cluster):
    connection = http.client.HTTPConnection("127.0.0.1", cluster[0].port, timeout=30)
    connection.request("GET", "/v2/keys/torch/elastic/store?recursive=true")
    nodes, names = [json.loads(connection.getresponse().read())["node"]], []
    connection.close()
    while nodes:
        node = nodes.pop()
        nodes += node.get("nodes", [])
        if not node.get("dir"):
            names.append(base64.b64decode(node["key"].removeprefix("/torch/elastic/store/")).decode())
    return names


def test_a_job_goes_on_without_an_agent_that_was_killed(etcds, tmp_path):
    harness.need_program()
    cluster = etcds()
    script = 'touch "$0/$WORLD_SIZE.$RANK"; while [ ! -e "$0/go" ]; do sleep 0.1; done; [ "$WORLD_SIZE" = 1 ]'
    agents = [start_job(cluster, "job", "1:2", "sh", "-c", script, str(tmp_path)) for _ in range(2)]
    try:
        until(lambda: (tmp_path / "2.0").exists() and (tmp_path / "2.1").exists(), 60, "a world of two")
        agents[1].send_signal(signal.SIGKILL)
        until(lambda: (tmp_path / "1.0").exists(), 60, "a world of one")
        (tmp_path / "go").touch()
        assert agents[0].wait(60) == 0, agents[0].stderr.read()
    finally:
        for agent in agents:
            agent.kill()
            agent.communicate()


def test_a_worker_that_failed_is_started_again(etcds):
    """The other one must not have ended well by then: its node would be done, and never join again."""
    harness.need_program()
    cluster = etcds()
    script = '[ "$TORCHELASTIC_RESTART_COUNT" != 0 ] || { [ "$RANK" = 0 ] && exit 1; exec sleep 600; }'
    agents = [start_job(cluster, "job", "2", "sh", "-c", script) for _ in range(2)]
    said = [agent.communicate(timeout=120) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said

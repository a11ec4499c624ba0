"""The engine of our store beside a real etcd: the same requests, drawn from a seed, have the same answers, revisions and
changes. MUSTER_ENGINE_OPERATIONS says how many (a few thousand unless given), MUSTER_SEED which."""

import base64
import http.client
import json
import os
import random
import subprocess
import threading

import etcd_servers
import harness
import pytest

OPERATIONS = int(os.environ.get("MUSTER_ENGINE_OPERATIONS", "2000"))
LEASES = range(1001, 1009)
KEYS = ["a", "a/", "a/1", "a/2", "a/10", "b", "b/1", "b/1/x", "b/2", "c", "cc", "z"]
PREFIXES = ["a", "a/", "a/1", "b/", "b/1", "c", "x", "-"]
PUSHED_LIMIT = 60


@pytest.fixture
def etcd(tmp_path):
    yield from etcd_servers.kept(tmp_path, 1)


class Engine:
    """tests/interop_engine.c"""

    def __init__(self):
        self.process = subprocess.Popen([harness.program().parent / "tests" / "interop_engine"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.changes = []

    def ask(self, request):
        self.process.stdin.write("\n".join([" ".join(map(str, line)) for line in request]) + "\n")
        self.process.stdin.flush()
        done, keys = None, []
        while (line := self.process.stdout.readline().strip()) != ".":
            assert line, "the engine has ended"
            word, *rest = line.split()
            if word == "done":
                done = tuple(map(int, rest))
            else:
                (keys if word == "key" else self.changes).append(line)
        return done, keys

    def stop(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0  # and nothing is left in it


def encode(text):
    return base64.b64encode(b"" if text == "-" else text.encode()).decode()


def decode(text):
    return base64.b64decode(text or "").decode() or "-"


def range_end(prefix):
    if prefix == "-":
        return base64.b64encode(b"\0").decode()
    return base64.b64encode(prefix[:-1].encode() + bytes([ord(prefix[-1]) + 1])).decode()


def key_or_all(key):
    return base64.b64encode(b"\0").decode() if key == "-" else encode(key)


class Etcd:
    """The same by etcd's JSON gateway; revisions are counted from the first one seen."""

    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.stream = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.base = int(self.post("/v3/kv/range", {"key": encode("none")})["header"]["revision"])
        self.revision = 0
        self.changes = []
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def post(self, path, body):
        self.connection.request("POST", path, json.dumps(body))
        return json.loads(self.connection.getresponse().read())

    def counted(self, revision):
        return max(int(revision) - self.base, 0)

    def key(self, word, kv):
        return (f"{word} {decode(kv['key'])} {decode(kv.get('value'))} {self.counted(kv['create_revision'])} "
                f"{self.counted(kv['mod_revision'])} {kv.get('lease', 0)}")

    def watch(self):
        self.stream.request("POST", "/v3/watch", json.dumps({"create_request": {
            "key": key_or_all("-"), "range_end": range_end("-"), "start_revision": self.base + 1}}))
        answer = self.stream.getresponse()
        while line := answer.readline():
            events = json.loads(line).get("result", {}).get("events", [])
            with self.changed:
                for event in events:
                    if event.get("type") == "DELETE":
                        kv = event["kv"]
                        self.changes.append(f"delete {decode(kv['key'])} {self.counted(kv['mod_revision'])}")
                    else:
                        self.changes.append(self.key("put", event["kv"]))
                self.changed.notify()

    def wait_for_changes(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.changes) >= count, PUSHED_LIMIT), (len(self.changes), count)

    def compare(self, line):
        kind, key, *number = line
        absolute = self.base + int(number[0]) if number and int(number[0]) else 0
        if kind == "mod":
            return {"key": encode(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(absolute)}
        return {"key": encode(key), "target": "CREATE", "result": "EQUAL", "create_revision": str(absolute)}

    @staticmethod
    def op(line):
        kind, key, *rest = line
        if kind == "put":
            return {"request_put": {"key": encode(key), "value": encode(rest[0]), "lease": str(rest[1])}}
        body = {"key": encode(key)}
        if kind == "prefix":
            body = {"key": key_or_all(key), "range_end": range_end(key)}
        return {"request_delete_range": body}

    def request(self, lines):
        kind, *rest = lines[0]
        if kind == "grant":
            return "/v3/lease/grant", {"ID": str(rest[0]), "TTL": "3600"}
        if kind == "revoke":
            return "/v3/lease/revoke", {"ID": str(rest[0])}
        if kind == "range":
            return "/v3/kv/range", {"key": encode(rest[0]), "limit": str(rest[1])}
        if kind == "prefix":
            return "/v3/kv/range", {"key": key_or_all(rest[0]), "range_end": range_end(rest[0]), "limit": str(rest[1])}
        compares, then, otherwise = rest
        body = lines[1:]
        return "/v3/kv/txn", {"compare": [self.compare(line) for line in body[:compares]],
                              "success": [self.op(line) for line in body[compares:compares + then]],
                              "failure": [self.op(line) for line in body[compares + then:]]}

    def ask(self, lines):
        answer = self.post(*self.request(lines))
        if "header" in answer:
            self.revision = max(self.revision, self.counted(answer["header"]["revision"]))
        held = bool(answer.get("succeeded"))
        keys = [self.key("key", kv) for kv in answer.get("kvs", [])]
        return (answer.get("code", 0), int(held), self.revision), keys


def draw_op(rng, revision):
    kind = rng.choices(["put", "delete", "prefix"], [8, 2, 1])[0]
    if kind == "put":
        lease = rng.choice([0, 0, *LEASES])
        return ("put", rng.choice(KEYS), rng.choice(["-", "v", f"v{revision}"]), lease)
    # Not all keys at once: etcd does not notice that a key which is put is among them, and the engine does.
    return (kind, rng.choice(KEYS if kind == "delete" else PREFIXES[:-1]))


def draw_compare(rng, revision):
    kind = rng.choice(["absent", "create", "mod"])
    if kind == "absent":
        return (kind, rng.choice(KEYS))
    return (kind, rng.choice(KEYS), rng.choice([0, *range(max(revision - 12, 1), revision + 2)]))


def draw(rng, revision):
    """One request, as lines."""
    kind = rng.choices(["txn", "grant", "revoke", "range", "prefix"], [12, 2, 2, 2, 2])[0]
    if kind in ("grant", "revoke"):
        return [(kind, rng.choice(LEASES))]
    if kind in ("range", "prefix"):
        return [(kind, rng.choice(KEYS if kind == "range" else PREFIXES), rng.choice([0, 0, 1, 2, 3, 5, 1000]))]
    compares = [draw_compare(rng, revision) for _ in range(rng.choice([0, 0, 1, 1, 2, 3]))]
    then = [draw_op(rng, revision) for _ in range(rng.choice([0, 1, 1, 1, 2, 3, 5]))]
    otherwise = [draw_op(rng, revision) for _ in range(rng.choice([0, 0, 1, 2]))]
    return [("txn", len(compares), len(then), len(otherwise)), *compares, *then, *otherwise]


def test_the_engine_does_what_etcd_does(etcd):
    seed = int(os.environ.get("MUSTER_SEED", "1"))
    rng = random.Random(seed)
    engine, real = Engine(), Etcd(etcd[0].port)
    for number in range(OPERATIONS):
        request = draw(rng, real.revision)
        expected = real.ask(request)
        assert engine.ask(request) == expected, f"operation {number} with MUSTER_SEED={seed}: {request}"
    real.wait_for_changes(len(engine.changes))
    assert engine.changes == real.changes, f"MUSTER_SEED={seed}"
    assert len(engine.changes) > OPERATIONS / 10  # it was not refused all the time
    engine.stop()

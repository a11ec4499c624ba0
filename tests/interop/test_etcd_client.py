"""Our etcd clients with real servers: what they do when all is well, and when it is not."""

import os
import pathlib
import queue
import re
import socket
import struct
import subprocess
import threading
import time

import pytest

import etcd_servers
import harness
from harness import absent

LIMIT = 60


class Client:
    """tests/interop_etcd_uv.c: one line a request, one line for each thing that happens."""

    def __init__(self, version, endpoints, **options):
        self.process = subprocess.Popen([self.program(), str(version), endpoints,
                                         *(f"{name}={value}" for name, value in options.items())],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines = queue.Queue()
        self.seen = []
        self.count = 0
        threading.Thread(target=self.read, daemon=True).start()

    @staticmethod
    def program():
        program = harness.program().parent / "tests" / "interop_etcd"
        if not program.exists():
            absent(f"there is no {program}")
        return program

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def wait(self, pattern, limit=LIMIT):
        """The first line, of those not yet waited for, that begins so; earlier ones stay for others."""
        deadline = time.monotonic() + limit
        while True:
            for line in self.seen:
                found = re.match(pattern, line)
                if found:
                    self.seen.remove(line)
                    return found
            try:
                line = self.lines.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line like {pattern!r}, but {self.seen}") from None
            assert line is not None, f"it has ended without a line like {pattern!r}: {self.seen}"
            self.seen.append(line)

    def has(self, pattern):
        while not self.lines.empty():
            line = self.lines.get()
            if line is not None:
                self.seen.append(line)
        return any(re.match(pattern, line) for line in self.seen)

    def ask(self, what, **options):
        """Makes a call and returns the rest of its line."""
        self.count += 1
        self.start(f"c{self.count}", what, **options)
        return self.result(f"c{self.count}")

    def start(self, name, what, **options):
        self.tell(" ".join([name, what, *(f"{key}={value}" for key, value in options.items())]))

    def result(self, name):
        return self.wait(rf"{name} done (.*)").group(1)

    def stop(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            assert self.process.wait(LIMIT) == 0
        self.process.stdout.close()


@pytest.fixture
def clients():
    made = []

    def make(version, endpoints, **options):
        client = Client(version, endpoints, **options)
        made.append(client)
        return client

    yield make
    for client in made:
        client.stop()


def field(line, name):
    return re.search(rf"\b{name}=(\S*)", line).group(1)


# ---- Version 2 ----


def test_v2_writes_hold_to_their_conditions(etcds, clients):
    client = clients(2, etcds().endpoints)
    assert "code=100" in client.ask("get", key="/a")
    made = client.ask("put", key="/a", value="x", exist=2)
    index = field(made, "index")
    assert "rc=OK code=0" in made and f" /a=x@{index}/0" in made
    refused = client.ask("put", key="/a", value="y", exist=2)
    assert "rc=OK code=105" in refused
    assert re.search(r"error=create '/a': http://\S+: HTTP 412, 105 Key already exists \(/a\)$", refused)
    assert "code=101" in client.ask("put", key="/a", value="y", prev_value="other")
    assert "code=101" in client.ask("put", key="/a", value="y", prev_index=1)
    assert "code=0" in client.ask("put", key="/a", value="y", prev_index=index)
    assert "code=0" in client.ask("put", key="/a", value="z", prev_value="y")
    assert "code=101" in client.ask("delete", key="/a", prev_value="y")
    assert "code=0" in client.ask("delete", key="/a", prev_value="z")
    assert "code=100" in client.ask("put", key="/a", value="y", exist=1)


def test_servers_may_be_given_by_name(etcds, clients):
    """As libcurl resolves it; one that nobody knows is passed over, and alone it is named."""
    port = etcds()[0].port
    client = clients(2, f"no-such-host.invalid:1,localhost:{port}")
    assert "rc=OK code=0" in client.ask("put", key="/a", value="x")
    alone = clients(2, "no-such-host.invalid:1").ask("get", key="/a", timeout=2000)
    assert "rc=OK" not in alone and "no-such-host.invalid" in alone


def test_v2_directories_and_times_to_live(etcds, clients):
    client = clients(2, etcds().endpoints)
    assert " /d/=@" in client.ask("put", key="/d/", dir=1, ttl=100)
    assert "code=0" in client.ask("put", key="/d//k", value="1")
    assert "code=102" in client.ask("put", key="/d", value="1")
    assert "code=108" in client.ask("delete", key="/d", dir=1)
    refreshed = client.ask("put", key="/d", dir=1, refresh=1, exist=1, ttl=200)
    assert "code=0" in refreshed and refreshed.split(" error")[0].endswith("/200")
    listed = client.ask("get", key="/", recursive=1, sorted=1, quorum=1)
    assert re.search(r" /d/=@\d+/(200|199) /d/k=1@", listed)
    assert "code=0" in client.ask("delete", key="/d", recursive=1)


def test_v2_a_write_without_a_time_to_live_takes_it_away(etcds, clients):
    client = clients(2, etcds().endpoints)
    assert "/100 error" in client.ask("put", key="/a", value="x", ttl=100)
    assert "/0 error" in client.ask("put", key="/a", value="y", exist=1)
    client.ask("put", key="/b", value="x", ttl=1)
    assert "code=0" in client.ask("put", key="/b", value="y")
    assert "rc=ETIMEOUT" in client.ask("poll", key="/b", timeout=3000)  # nothing happens to it, in three times its life
    listed = client.ask("get", key="/", sorted=1, quorum=1)
    assert re.search(r" /a=y@\d+/0 /b=y@\d+/0 error", listed), listed


def test_v2_keys_and_values_may_be_anything_that_is_text(etcds, clients):
    client = clients(2, etcds().endpoints)
    key, value = "/a%2F+&=?#ä;b", "100%&x=1+2?#ö"
    assert "code=0" in client.ask("put", key=key, value=value)
    assert f" {key}={value}@" in client.ask("get", key=key)
    assert "rc=EINVAL" in client.ask("get", key="/a/../b")


def test_v2_long_poll_of_an_index_too_old_is_told(etcds, clients):
    client = clients(2, etcds().endpoints)
    for i in range(1100):  # etcd keeps a thousand events
        client.start(f"p{i}", "put", key="/x", value=i)
        if i % 50 == 49:
            client.result(f"p{i}")
    said = client.ask("poll", key="/x", index=5)
    assert "code=401" in said and int(field(said, "index")) > 1000


def test_v2_long_poll_ends_in_time_and_can_be_canceled(etcds, clients):
    client = clients(2, etcds().endpoints)
    assert "rc=ETIMEOUT" in client.ask("poll", key="/a", timeout=300)
    client.start("p", "poll", key="/a", timeout=600000)
    assert "code=100" in client.ask("get", key="/a")
    client.tell("p cancel")
    assert "rc=ECANCELED" in client.result("p")


# ---- Version 3 ----


def test_v3_transactions_hold_to_their_compares(etcds, clients):
    client = clients(3, etcds().endpoints)
    made = client.ask("put", key="a", value="1", mod=0)
    assert "succeeded=1" in made
    lost = client.ask("put", key="a", value="2", mod=0)
    assert "rc=OK" in lost and "succeeded=0" in lost and f" a=1@{field(made, 'revision')}/0" in lost
    assert "succeeded=1" in client.ask("put", key="a", value="2", mod=field(made, "revision"))
    assert " count=2 " in client.ask("put", key="b", value="") + client.ask("get", key="", prefix=1)
    assert "rc=EINVAL code=11" in client.ask("get", key="a", revision=1000)
    assert "rc=EINVAL code=5" in client.ask("put", key="a", value="2", lease=7)


def test_v3_leases_keep_themselves_alive_and_end(etcds, clients):
    client = clients(3, etcds().endpoints)
    client.start("w", "watch", key="", prefix=1)
    client.wait("w heard")
    client.start("l", "lease", ttl=5)
    lease = client.wait(r"l granted (\d+)").group(1)
    client.ask("put", key="node", value="x", lease=lease)
    client.wait("w event put node=x")
    started = time.monotonic()
    while time.monotonic() - started < 8:  # longer than it would live by itself
        assert "node=x" in client.ask("get", key="node")
        time.sleep(0.2)
    client.ask("revoke", lease=lease)
    client.wait("w event delete node=")
    assert "expired" in client.wait("l lost (.*)").group(1)
    client.tell("l close")
    client.start("m", "lease", ttl=60)
    lease = client.wait(r"m granted (\d+)").group(1)
    client.ask("put", key="other", value="x", lease=lease)
    client.tell("m close revoke=1")
    client.wait("m closed")
    client.wait("w event delete other=")


def test_v3_watch_resumes_over_a_restart_and_misses_nothing(etcds, clients):
    cluster = etcds()
    client = clients(3, cluster.endpoints)
    client.start("w", "watch", key="k", prefix=1)
    client.wait("w heard")
    for i in range(3):
        client.ask("put", key="k", value=i)
        client.wait(rf"w event put k={i}@\d+")
        cluster[0].kill()
        client.wait("w trouble ")
        cluster[0].start()
        client.wait("w heard")
    client.ask("delete", key="k")
    client.wait("w event delete k=@")
    assert not client.has("w event") and not client.has("w compacted")


def test_v3_compaction_under_a_watch_is_told(etcds, clients):
    cluster = etcds()
    client = clients(3, cluster.endpoints)
    revision = field(client.ask("put", key="k", value=0), "revision")
    for i in range(1, 10):
        last = field(client.ask("put", key="k", value=i), "revision")
    etcdctl(cluster, "compaction", last)
    client.start("w", "watch", key="k", revision=revision)
    assert client.wait(r"w compacted (\d+)").group(1) == last
    now = field(client.ask("get", key="k"), "revision")
    client.tell("w close")
    client.start("again", "watch", key="k", revision=int(now) + 1)
    client.wait("again heard")
    client.ask("put", key="k", value="new")
    client.wait("again event put k=new@")


def test_v3_store_that_has_lost_everything_is_told(etcds, clients):
    cluster = etcds()
    client = clients(3, cluster.endpoints)
    for i in range(5):
        client.ask("put", key="k", value=i)
    client.start("w", "watch", key="k")
    client.wait("w heard")
    client.start("l", "lease", ttl=30)
    client.wait("l granted")
    cluster[0].kill()
    cluster[0].wipe()
    cluster[0].start()
    client.wait("w compacted 0")
    client.wait("l lost")


def test_v3_space_that_is_used_up_is_a_clear_error(etcds, clients):
    cluster = etcds(extra=["--quota-backend-bytes", str(4 << 20)])
    client = clients(3, cluster.endpoints)
    for i in range(20):
        line = client.ask("put", key=f"k{i}", size=500_000)
        if "rc=OK" not in line:
            break
    assert "rc=ELIMIT code=8" in line and "database space exceeded" in line
    assert "rc=OK" in client.ask("get", key="k0", prefix=0)


def test_v3_users_log_in_and_log_in_again(etcds, clients):
    cluster = etcds()
    for command in (["user", "add", "root:secret"], ["user", "grant-role", "root", "root"], ["auth", "enable"]):
        etcdctl(cluster, *command)
    client = clients(3, cluster.endpoints, user="root", password="secret")
    assert "rc=OK" in client.ask("put", key="a", value="1")
    client.start("w", "watch", key="a")
    client.wait("w heard")
    cluster[0].kill()
    cluster[0].start()  # it knows its old tokens no more
    assert "rc=OK" in client.ask("put", key="a", value="2")
    client.wait("w event put a=2@")
    nobody = clients(3, cluster.endpoints)
    assert "rc=EINVAL" in nobody.ask("get", key="a")
    wrong = clients(3, cluster.endpoints, user="root", password="other")
    refused = wrong.ask("get", key="a")
    assert "rc=EINVAL" in refused and "authentication failed" in refused and "other" not in refused
    etcdctl(cluster, "--user", "root:secret", "auth", "disable")
    assert "rc=OK" in clients(3, cluster.endpoints, user="root", password="secret").ask("get", key="a")


def test_v3_who_waits_for_a_log_in_waits_no_longer_than_told(clients):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = clients(3, f"127.0.0.1:{silent.getsockname()[1]}", user="root", password="secret")
        client.start("patient", "get", key="a", timeout=600_000)
        line = client.ask("get", key="b", timeout=300)
        assert re.search(r"rc=ETIMEOUT .*error=\S+ 'b': log in: http://\S+: no answer", line)
        assert re.search(r"rc=(ETIMEOUT|ELOST)", client.ask("get", key="c", timeout=12_000))  # more than one log-in
        assert not client.has("patient done")
        client.tell("patient cancel")
        assert "rc=ECANCELED" in client.result("patient")


def test_v3_a_log_in_that_cannot_be_is_said_at_once(etcds, clients, tmp_path):
    tls = etcd_servers.Tls(tmp_path)
    client = clients(3, etcds(tls=tls).endpoints, user="root", password="secret", ca=tls.other_ca)
    line = client.ask("get", key="a", timeout=600_000)
    assert "rc=ECONNECT" in line and "log in" in line and "certificate" in line


def etcdctl(cluster, *arguments):
    program = str(pathlib.Path(etcd_servers.program()).with_name("etcdctl")) if etcd_servers.program() else None
    if program is None or not pathlib.Path(program).exists():
        absent("there is no etcdctl here")
    subprocess.run([program, "--endpoints", cluster.endpoints, *arguments], check=True, capture_output=True,
                   env={**os.environ, "ETCDCTL_API": "3"})


# ---- Servers in trouble ----


@pytest.mark.parametrize("version", [2, 3])
def test_next_server_is_asked_when_one_is_gone(etcds, clients, version):
    cluster = etcds(3)
    client = clients(version, cluster.endpoints)
    key = "/k" if version == 2 else "k"
    assert "rc=OK" in client.ask("put", key=key, value="0")
    cluster[0].kill()  # the one that was asked first
    assert "rc=OK" in client.ask("put", key=key, value="1", repeatable=1)
    assert "=1@" in client.ask("get", key=key, quorum=1)
    cluster[0].start()
    cluster[1].kill()
    assert "rc=OK" in client.ask("put", key=key, value="2", repeatable=1)
    cluster.kill_all()
    line = client.ask("get", key=key, timeout=1500)
    assert re.search(r"rc=(ECONNECT|ETIMEOUT)", line)
    for member in cluster.members:
        assert member.url in line.split("error=")[1]
    assert re.search(r"\(\d+ tries in \d+\.\d s\)", line)


@pytest.mark.parametrize("whom", ["leader", "follower"])
def test_v3_watch_and_lease_survive_a_server_that_was_killed(etcds, clients, whom):
    cluster = etcds(3)
    member = cluster.leader() if whom == "leader" else cluster.follower()
    endpoints = ",".join([member.url] + [other.url for other in cluster.members if other is not member])
    client = clients(3, endpoints)
    client.start("w", "watch", key="k")
    client.wait("w heard")
    client.start("l", "lease", ttl=6)
    client.wait("l granted")
    member.kill()
    client.wait("w trouble ")
    client.wait("w heard")
    assert "rc=OK" in client.ask("put", key="k", value="1", repeatable=1)
    client.wait("w event put k=1@")
    started = time.monotonic()
    while time.monotonic() - started < 7:
        assert "rc=OK" in client.ask("get", key="k")
        time.sleep(0.2)
    assert not client.has("l lost")


def test_v3_watch_leaves_a_server_that_has_gone_silent(etcds, clients):
    cluster = etcds(3)
    member = cluster.follower()
    endpoints = ",".join([member.url] + [other.url for other in cluster.members if other is not member])
    client, other = clients(3, endpoints), clients(3, cluster.leader().url)
    client.start("w", "watch", key="k")
    client.wait("w heard")
    client.start("l", "lease", ttl=6)
    client.wait("l granted")
    member.pause()
    assert "rc=OK" in other.ask("put", key="k", value="1")
    client.wait("w event put k=1@")
    started = time.monotonic()
    while time.monotonic() - started < 7:
        assert "rc=OK" in client.ask("get", key="k")
        time.sleep(0.2)
    assert not client.has("l lost")
    member.resume()


def test_v3_watch_leaves_a_server_without_a_leader(etcds, clients):
    cluster = etcds(3)
    client = clients(3, cluster.endpoints)
    client.start("w", "watch", key="k")
    client.wait("w heard")
    cluster[1].kill()
    cluster[2].kill()
    assert re.search("no leader|timed out|no answer|Operation timed out", client.wait("w trouble (.*)").group(1))
    cluster.start_all()
    client.wait("w heard")
    client.ask("put", key="k", value="1", repeatable=1)
    client.wait("w event put k=1@")


def test_v3_lease_is_lost_when_nobody_has_answered_for_its_time(etcds, clients):
    cluster = etcds()
    client = clients(3, cluster.endpoints)
    client.start("l", "lease", ttl=3)
    client.wait("l granted")
    cluster[0].pause()
    client.wait("l trouble ")
    client.wait("l lost ")
    cluster[0].resume()
    assert "rc=OK" in client.ask("get", key="k")


@pytest.mark.parametrize("version", [2, 3])
def test_write_whose_answer_was_lost_is_not_sent_again(etcds, clients, version):
    """Through a proxy that cuts the connection when the request is through."""
    cluster = etcds()
    proxy = CuttingProxy(cluster[0].port)
    try:
        client, plain = clients(version, f"127.0.0.1:{proxy.port}"), clients(version, cluster.endpoints)
        key = "/k" if version == 2 else "k"
        condition = {"exist": 2} if version == 2 else {"mod": 0}
        line = client.ask("put", key=key, value="mine", **condition)
        assert "unsure=1" in line and "rc=OK" not in line
        assert proxy.requests == 1
        assert "=mine@" in plain.ask("get", key=key, quorum=1)  # it was carried out
    finally:
        proxy.stop()


@pytest.mark.parametrize("version", [2, 3])
def test_answer_that_ends_within_its_head_is_none(etcds, clients, version):
    """Its status is there, and says that there is no such key, or that all is well."""
    cluster = etcds()
    for passes in (20, 60):
        proxy = CuttingProxy(cluster[0].port, passes, 1)
        try:
            client = clients(version, f"127.0.0.1:{proxy.port}")
            line = client.ask("get", key="/k" if version == 2 else "k")
            assert "code=100" in line if version == 2 else "rc=OK" in line, line
            assert proxy.requests == 2
        finally:
            proxy.stop()


def test_answer_that_is_followed_by_a_reset_is_taken(clients):
    body = '{"action":"create","node":{"key":"/k","value":"v","modifiedIndex":5,"createdIndex":5}}'
    answer = ("HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nX-Etcd-Index: 5\r\nConnection: close\r\n"
              f"Content-Length: {len(body)}\r\n\r\n{body}").encode()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        client = clients(2, f"127.0.0.1:{listener.getsockname()[1]}")
        for i in range(20):
            client.start(f"p{i}", "put", key="/k", value="v", exist=2)
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(LIMIT)
                data = connection.recv(65536)
                while not CuttingProxy.complete(data):
                    data += connection.recv(65536)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.sendall(answer)
            assert re.search("rc=OK code=0 .*/k=v@5", client.result(f"p{i}"))


class CuttingProxy:
    """Passes requests on, waits for their answers, and closes connections instead of passing more than `passes` bytes of
    them back; `cuts` times, and then no more."""

    def __init__(self, port, passes=0, cuts=None):
        self.target = port
        self.passes, self.cuts = passes, cuts
        self.requests = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            with client, socket.create_connection(("127.0.0.1", self.target)) as server:
                client.settimeout(LIMIT)
                server.settimeout(LIMIT)
                data = client.recv(65536)
                while data and not self.complete(data):
                    data += client.recv(65536)
                self.requests += 1
                server.sendall(data)
                answer = server.recv(65536)
                whole = self.cuts is not None and self.requests > self.cuts
                client.sendall(answer if whole else answer[:self.passes])

    @staticmethod
    def complete(data):
        head, separator, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        return separator and len(body) >= int(length.group(1) if length else 0)

    def stop(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


# ---- TLS ----


def test_tls_with_a_clients_certificate(etcds, clients, tmp_path):
    tls = etcd_servers.Tls(tmp_path, client_auth=True)
    cluster = etcds(tls=tls)
    ours = {"ca": tls.ca, "cert": tls.client_cert, "key": tls.client_key}
    for version in (2, 3):
        client = clients(version, cluster.endpoints, **ours)
        key = "/k" if version == 2 else "k"
        assert "rc=OK" in client.ask("put", key=key, value="1")
        if version == 3:
            client.start("w", "watch", key=key)
        assert "rc=OK" in client.ask("put", key=key, value="2")
        if version == 3:
            client.wait("w event put k=2@")
        assert "k=2" in client.ask("get", key=key)
    nobody = clients(3, cluster.endpoints, ca=tls.ca)
    assert re.search("rc=(ECONNECT|ELOST)", nobody.ask("get", key="k", timeout=2000))


def test_tls_that_is_not_to_be_trusted_fails_at_once(etcds, clients, tmp_path):
    tls = etcd_servers.Tls(tmp_path)
    cluster = etcds(tls=tls)
    stranger = clients(3, cluster.endpoints, ca=tls.other_ca)
    line = stranger.ask("get", key="k", timeout=60000)
    assert "rc=ECONNECT" in line and re.search("certificate", line) and " tries" not in line
    plain = clients(3, f"http://{cluster.endpoint}")
    line = plain.ask("get", key="k", timeout=1500)
    assert "rc=ELOST" in line and "is it https there?" in line
    wrong = clients(3, f"https://127.0.0.1:{cluster[0].metrics_port}", ca=tls.ca)
    assert re.search("rc=(ECONNECT|ELOST)", wrong.ask("get", key="k", timeout=2000))


def test_tls_certificate_that_has_expired_is_refused(etcds, clients, tmp_path):
    tls = etcd_servers.Tls(tmp_path, days=-1)
    cluster = etcds(tls=tls)
    line = clients(3, cluster.endpoints, ca=tls.ca).ask("get", key="k", timeout=60000)
    assert "rc=ECONNECT" in line and "expired" in line

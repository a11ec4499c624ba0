"""Real etcd servers on loopback: one member or several, with or without TLS, killed, paused and started again; and proxies
in front of them, which are no good."""

import asyncio
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import threading
import time

from harness import absent
from ports import free_port

START_LIMIT = 60
TRIES = 5


def program():
    return shutil.which(os.environ.get("MUSTER_ETCD", "etcd"))


class Member:
    """One etcd process and its data directory, which outlives it."""

    def __init__(self, directory, name, tls=None, extra=()):
        self.name = name
        self.directory = pathlib.Path(directory) / name
        self.directory.mkdir(parents=True)
        self.tls = tls
        self.extra = list(extra)
        self.process = None
        self.cluster = None
        self.choose_ports()

    def choose_ports(self):
        self.port, self.peer_port, self.metrics_port = free_port(), free_port(), free_port()

    @property
    def endpoint(self):
        return f"127.0.0.1:{self.port}"

    @property
    def url(self):
        return f"{'https' if self.tls else 'http'}://{self.endpoint}"

    @property
    def peer_url(self):
        return f"http://127.0.0.1:{self.peer_port}"

    @property
    def log(self):
        return self.directory / "log"

    def spawn(self):
        command = [program(), "--name", self.name, "--data-dir", self.directory / "data", "--enable-v2",
                   "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
                   "--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url,
                   "--initial-cluster", self.cluster or f"{self.name}={self.peer_url}",
                   "--listen-metrics-urls", f"http://127.0.0.1:{self.metrics_port}",
                   "--heartbeat-interval", "50", "--election-timeout", "500", "--logger", "zap"]
        if self.tls:
            command += ["--cert-file", self.tls.server_cert, "--key-file", self.tls.server_key,
                        "--trusted-ca-file", self.tls.ca]
            if self.tls.client_auth:
                command += ["--client-cert-auth"]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([*map(str, command), *self.extra], stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log)

    def get(self, path, timeout=5):
        """From the plain port, which also a server with TLS has."""
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=timeout)
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        finally:
            connection.close()

    def healthy(self):
        try:
            status, body = self.get("/health")
            return status == 200 and json.loads(body)["health"] == "true"
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return False

    def wait_healthy(self):
        """False if it has ended instead."""
        deadline = time.monotonic() + START_LIMIT
        while not self.healthy():
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < deadline, f"etcd does not start:\n{self.said()}"
            time.sleep(0.02)
        return True

    def said(self):
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""

    def metric(self, name):
        """The value of a counter or gauge of etcd's own."""
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        raise KeyError(name)

    def is_leader(self):
        try:
            return self.metric("etcd_server_is_leader") == 1
        except (OSError, http.client.HTTPException, KeyError):
            return False

    def start(self):
        """Anew, on the ports that it has."""
        assert self.process is None
        deadline = time.monotonic() + START_LIMIT
        while True:
            self.spawn()
            if self.wait_healthy():
                return
            self.process = None  # its port may be in use for a moment by somebody's connection
            assert time.monotonic() < deadline, f"etcd does not start:\n{self.said()}"

    def end(self, how=signal.SIGKILL):
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(how)
            self.process.wait(30)
            self.process = None

    def kill(self):
        self.end(signal.SIGKILL)

    def stop(self):
        self.end(signal.SIGTERM)

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def wipe(self):
        """Loses all its data; it must not be running."""
        assert self.process is None
        shutil.rmtree(self.directory / "data", ignore_errors=True)


class Cluster:
    """etcd with one member or several. `endpoints` is the comma list for clients."""

    def __init__(self, directory, members=1, tls=None, extra=()):
        self.directory = pathlib.Path(directory)
        for attempt in range(TRIES):
            self.members = [Member(self.directory / f"etcd{attempt}", f"m{i}", tls, extra) for i in range(members)]
            text = ",".join(f"{member.name}={member.peer_url}" for member in self.members)
            try:
                for member in self.members:
                    member.cluster = text
                    member.spawn()
                if all([member.wait_healthy() for member in self.members]):
                    return
            except BaseException:
                self.stop()
                raise
            failures = "\n".join(member.said() for member in self.members)
            self.stop()  # somebody took a port that was free a moment ago
        raise AssertionError(f"etcd does not start:\n{failures}")

    def __getitem__(self, index):
        return self.members[index]

    @property
    def endpoints(self):
        return ",".join(member.url for member in self.members)

    @property
    def endpoint(self):
        return self.members[0].endpoint

    def leader(self, but=None):
        """The member that leads, once one does; another one than this, which may be paused."""
        deadline = time.monotonic() + START_LIMIT
        while time.monotonic() < deadline:
            for member in self.members:
                if member is not but and member.process is not None and member.is_leader():
                    return member
            time.sleep(0.02)
        raise AssertionError("no member leads")

    def follower(self):
        leader = self.leader()
        return next(member for member in self.members if member is not leader and member.process is not None)

    def wait_healthy(self):
        assert all([member.wait_healthy() for member in self.members if member.process is not None])

    def start_all(self):
        """Those that are down, all at once: one alone would not become healthy."""
        down = [member for member in self.members if member.process is None]
        deadline = time.monotonic() + START_LIMIT
        while down:
            for member in down:
                member.spawn()
            down = [member for member in down if not member.wait_healthy()]
            assert time.monotonic() < deadline, down and down[0].said()

    def kill_all(self):
        for member in self.members:
            member.kill()

    def stop(self):
        """Its logs stay; its data goes, for a member's log of proposals alone takes 128 MB from the start."""
        for member in self.members:
            member.kill()
            member.wipe()


class Proxies:
    """A thread on which proxies live."""

    def __init__(self):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._made = []

    def make(self, port, seed=None):
        """A proxy to that port of the loopback; with a seed a rough one."""
        proxy = Proxy(port, seed)
        self.run(proxy.start())
        self._made.append(proxy)
        return proxy

    def run(self, task):
        return asyncio.run_coroutine_threadsafe(task, self._loop).result(START_LIMIT)

    def cut(self, proxy):
        """Nobody gets through any more, and nobody stays."""
        self.run(proxy.cut())

    def stop(self):
        for proxy in self._made:
            self.run(proxy.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_LIMIT)
        self._loop.close()


class Proxy:
    """Passes bytes on.  A rough one passes them on late and in pieces, and ends connections at random points."""

    END = 0.02       # the chance that a connection ends in front of a piece
    DELAY = 0.01     # seconds before a piece, on the average;
    STALL = 0.005    # with this chance so long:
    STALL_TIME = 1.5
    LIFE = 5         # seconds that a connection lives, on the average
    KEEP = 1 << 16   # bytes of each direction that are looked at together

    def __init__(self, target, seed):
        self._target = target
        self._random = None if seed is None else random.Random(seed)
        self._connections = set()
        self._open = True
        self.server = self.port = None
        self.wanted = {}  # bytes to be looked for: how often they were in what servers said
        self.ended = 0    # connections, by us

    async def start(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]

    @property
    def endpoint(self):
        return f"127.0.0.1:{self.port}"

    def look_for(self, text):
        self.wanted[text] = 0

    def smooth(self):
        """From now on it is no longer rough."""
        self._random = None

    def let_through(self):
        self._open = True

    async def cut(self):
        self._open = False
        for task in list(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(list(self._connections))

    async def stop(self):
        self.server.close()
        await self.cut()

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        self._connections.add(task)
        writers = [writer]
        try:
            if self._open:
                there, back = await asyncio.open_connection("127.0.0.1", self._target)
                writers.append(back)
                await self._pass_on((reader, back), (there, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for one in writers:
                one.transport.abort()
            self._connections.discard(task)

    async def _pass_on(self, asked, answered):
        chance = self._random
        life = chance.expovariate(1 / self.LIFE) if chance is not None else None
        pumps = [asyncio.ensure_future(self._pump(*asked, False)), asyncio.ensure_future(self._pump(*answered, True))]
        try:
            over, _ = await asyncio.wait(pumps, timeout=life, return_when=asyncio.FIRST_COMPLETED)
            self.ended += not over
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, reader, writer, is_answer):
        seen = b""
        while data := await reader.read(4096):
            if is_answer and self.wanted:
                seen = (seen + data)[-self.KEEP:]
                for text in self.wanted:
                    self.wanted[text] += text in seen
            chance = self._random  # it may be taken away meanwhile
            for piece in self._pieces(data, chance):
                if chance is not None:
                    await asyncio.sleep(self._delay(chance))
                    if chance.random() < self.END:
                        self.ended += 1
                        return
                writer.write(piece)
                await writer.drain()

    @staticmethod
    def _pieces(data, chance):
        if chance is None or len(data) < 2:
            return [data]
        at = chance.randrange(1, len(data))
        return [data[:at], data[at:]]

    def _delay(self, chance):
        return self.STALL_TIME if chance.random() < self.STALL else chance.expovariate(1 / self.DELAY)


class Tls:
    """A CA, a server's certificate for 127.0.0.1 and localhost, a client's; and a CA that nobody trusts."""

    def __init__(self, directory, client_auth=False, days=2):
        self.directory = pathlib.Path(directory) / "tls"
        self.directory.mkdir(parents=True)
        self.client_auth = client_auth
        self.ca, ca_key = self.make_ca("ca")
        self.other_ca, _ = self.make_ca("other")
        names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
        self.server_cert, self.server_key = self.make("server", ca_key, names, days)
        self.client_cert, self.client_key = self.make("client", ca_key, "extendedKeyUsage=clientAuth", 2)

    def openssl(self, *arguments):
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, cwd=self.directory)

    def make_ca(self, name):
        key, cert = self.directory / f"{name}.key", self.directory / f"{name}.pem"
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key,
                     "-out", cert, "-days", 2, "-subj", f"/CN={name}")
        return cert, key

    def make(self, name, ca_key, extension, days):
        key, cert, request = (self.directory / f"{name}.{end}" for end in ("key", "pem", "csr"))
        more = self.directory / f"{name}.ext"
        more.write_text(extension + "\n")
        self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out",
                     request, "-subj", f"/CN={name}")
        self.openssl("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", ca_key, "-CAcreateserial", "-out", cert,
                     "-days", days, "-extfile", more)
        return cert, key


def need():
    if program() is None:
        absent("there is no etcd here")


def kept(directory, members):
    """For a fixture: a cluster for as long as that is wanted."""
    need()
    cluster = Cluster(directory, members)
    yield cluster
    cluster.stop()

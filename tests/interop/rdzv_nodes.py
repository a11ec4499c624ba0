"""Nodes of a rendezvous for the interop tests: stock PyTorch's, ours by library, ours by command.

A Scene is one rendezvous on one store: it knows where the store is, makes the nodes, looks at the
document through PyTorch's eyes, and ends everything it began.  Every wait has a limit and ends on a
condition.  Node names are loopback addresses: they decide the ranks, and one can connect to them.
"""

import concurrent.futures
import functools
import inspect
import json
import os
import pathlib
import queue
import signal
import socket
import subprocess
import threading
import time
import uuid

import harness
from harness import HERE, NEW, USUAL, absent
from ports import free_port

VERSIONS = ("1.13.1", NEW) if NEW == USUAL else (NEW,)
STEP_LIMIT = 30  # for what takes a second or two when nothing is in the way
FAKETIME = ("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
            "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
            "/usr/lib64/faketime/libfaketime.so.1")


def rdzv_program():
    """The C program that is one node of ours."""
    default = harness.program().parent / "tests" / "interop_rdzv"
    return pathlib.Path(os.environ.get("MUSTER_INTEROP_RDZV", default)).absolute()


def need_rdzv():
    harness.need_program()
    if not rdzv_program().exists():
        absent(f"there is no {rdzv_program()} to test")


def faked(offset):
    """An environment in which the wall clock is off, as in "+1h", and the monotonic one is not."""
    for path in FAKETIME:
        if pathlib.Path(path).exists():
            return {"LD_PRELOAD": path, "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                    "DONT_FAKE_MONOTONIC": "1"}
    return absent("libfaketime is absent")


def listening(port):
    """Whether anybody is there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def said(node, text):
    """The first line of a fixture joins()'s node that has it; the join's end is the latest that is waited for."""
    return next((line for line in node.stderr if text in line), "")


def until(condition, limit=STEP_LIMIT, what="condition"):
    """Asks until the answer is true, and gives it."""
    end = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit} s: {what}")
        time.sleep(0.05)


class Answer(dict):
    """What a node said: the fields, or `error` and `text`."""

    @property
    def good(self):
        assert self["ok"], dict(self)
        return self

    @property
    def error(self):
        assert not self["ok"], dict(self)
        return self["error"]


class Pending:
    def __init__(self, what):
        self._what = what
        self._queue = queue.Queue()
        self._value = None

    def fill(self, value):
        self._queue.put(value)

    def done(self):
        return self._value is not None or not self._queue.empty()

    def answer(self, limit=STEP_LIMIT):
        if self._value is None:
            try:
                self._value = self._queue.get(timeout=limit)
            except queue.Empty:
                raise AssertionError(f"no answer within {limit} s: {self._what}") from None
        return self._value

    def good(self, limit=STEP_LIMIT):
        return self.answer(limit).good


class Process:
    """A process that answers lines with lines of JSON."""

    def __init__(self, command, environment=None, what=""):
        self.what = what
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE,
            env=harness.quiet_environment(environment))
        self._lock = threading.Lock()
        self._pending = {0: Pending(f"{what}: start")}
        self.hello = self._pending[0]
        self._last = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            message = json.loads(line)
            with self._lock:
                pending = self._pending.pop(message.get("id", 0), None)
            if pending is not None:
                pending.fill(Answer(message))
        with self._lock:
            left, self._pending = list(self._pending.values()), None
        for pending in left:
            pending.fill(Answer(ok=False, error="Gone", text="its process ended"))
        self.process.stdout.close()

    def begin(self, do, **fields):
        with self._lock:
            self._last += 1
            number = self._last
            pending = Pending(f"{self.what}: {do}")
            if self._pending is None:
                pending.fill(Answer(ok=False, error="Gone", text="its process ended"))
                return pending
            self._pending[number] = pending
        self.process.stdin.write(self.line(number, do, fields))
        self.process.stdin.flush()
        return pending

    def call(self, do, limit=STEP_LIMIT, **fields):
        return self.begin(do, **fields).answer(limit)

    def idle(self):
        with self._lock:
            return self._pending is not None and not self._pending

    def alive(self):
        return self.process.poll() is None

    def kill(self):
        """As suddenly as can be."""
        self.process.kill()
        self.process.wait(timeout=20)

    def stop(self):
        if self.alive():
            harness.stop(self.process)
        elif not self.process.stdin.closed:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass
        self._reader.join(timeout=20)


class Stock(Process):
    """A node of stock PyTorch; see rdzv_stock.py.  One process can be many nodes, one by one."""

    ours = False

    def __init__(self, which, environment=None):
        python = harness.interpreter(which)
        super().__init__([python, str(HERE / "rdzv_stock.py")], environment, f"stock {which}")
        self.which = which

    @staticmethod
    def line(number, do, fields):
        return json.dumps({"id": number, "do": do, **fields}) + "\n"

    def leave(self):
        self.call("leave").good


class Ours(Process):
    """A node of ours, by library; see interop_rdzv.c."""

    ours = True

    def __init__(self, endpoint, run_id, nodes, name, options, environment=None, backend="c10d"):
        text = ",".join(f"{k}={str(v).lower() if isinstance(v, bool) else v}"
                        for k, v in options.items())
        command = [str(rdzv_program()), backend, endpoint, run_id, str(nodes[0]), str(nodes[1]), name, text]
        super().__init__(command, environment, f"ours {name}")

    @staticmethod
    def line(number, do, fields):
        return " ".join([str(number), do, *fields.values()]) + "\n"

    def leave(self):
        self.call("free").good


class Join:
    """`muster join --json`, with the lines it prints as they come."""

    def __init__(self, endpoint, run_id, nodes, name, options, *further, environment=None, backend="c10d"):
        text = ",".join(f"{k}={str(v).lower() if isinstance(v, bool) else v}"
                        for k, v in options.items())
        self.process = subprocess.Popen(
            [str(harness.program()), "join", "--rdzv-backend", backend, "--rdzv-endpoint", endpoint,
             "--rdzv-id", run_id, "--nnodes", f"{nodes[0]}:{nodes[1]}", "--rdzv-conf", text,
             "--local-addr", name, "--json", *further],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=harness.quiet_environment(environment))
        self._lines = queue.Queue()
        self.seen = []
        self._errors = []
        self._threads = [threading.Thread(target=self._read, daemon=True),
                         threading.Thread(target=self._read_errors, daemon=True)]
        for thread in self._threads:
            thread.start()

    def _read(self):
        for line in self.process.stdout:
            self._lines.put((time.monotonic(), json.loads(line)))
        self._lines.put(None)
        self.process.stdout.close()

    def _read_errors(self):
        for line in self.process.stderr:
            self._errors.append(line)
        self.process.stderr.close()

    @property
    def said(self):
        return "".join(self._errors)

    def line(self, limit=STEP_LIMIT):
        """The next line as (when, object), or None at the end."""
        try:
            line = self._lines.get(timeout=limit)
        except queue.Empty:
            raise AssertionError(f"muster join said nothing within {limit} s; before: {self.seen}; "
                                 f"{self.said}") from None
        if line is None:
            self._lines.put(None)
        else:
            self.seen.append(line[1])
        return line

    def joined(self, limit=STEP_LIMIT):
        line = self.line(limit)
        assert line is not None, self.said
        assert "rank" in line[1], (line[1], self.said)
        return line[1]

    def event(self, name, limit=STEP_LIMIT):
        """Waits for an event and gives (when, object)."""
        end = time.monotonic() + limit
        while True:
            line = self.line(max(end - time.monotonic(), 0.01))
            assert line is not None, f"ended before {name}; said: {self.seen} {self.said}"
            if line[1].get("event") == name:
                return line

    def events(self):
        """The names of those that have come so far, after that of having joined."""
        while not self._lines.empty():
            if self.line(0.01) is None:
                break
        return [line["event"] for line in self.seen if "rank" not in line]

    def alive(self):
        return self.process.poll() is None

    def kill(self):
        self.process.kill()
        self.process.wait(timeout=20)

    def end(self, limit=STEP_LIMIT):
        """Its exit code; it ends by itself."""
        try:
            return self.process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"muster join did not end within {limit} s: {self.seen} {self.said}") from None

    def interrupt(self):
        """Ctrl-C, and its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def stop(self):
        if self.alive():
            self.process.kill()
        self.process.wait(timeout=20)
        for thread in self._threads:
            thread.join(timeout=20)


class StockPool:
    """Keeps processes of stock PyTorch between tests, for importing it costs seconds each time."""

    def __init__(self):
        self._idle = {}
        self._missing = {}

    def take(self, which, environment=None):
        if which in self._missing:
            absent(self._missing[which])
        while not environment and self._idle.get(which):
            node = self._idle[which].pop()
            if node.alive():
                return node
            node.stop()
        if not pathlib.Path(harness.interpreter(which)).exists():
            self._refuse(which, f"PyTorch {which} is absent: there is no {harness.interpreter(which)}")
        node = Stock(which, environment)
        version = node.hello.answer(harness.START_LIMIT).get("version", "")
        # Debian's 1.13.1 calls itself 1.13.0a0.
        if version.split(".")[:2] != which.split(".")[:2]:
            node.stop()
            self._refuse(which, f"PyTorch {which} is absent: {harness.interpreter(which)} has {version or 'none'}")
        node.pooled = not environment
        return node

    def _refuse(self, which, reason):
        self._missing[which] = reason
        absent(reason)

    def give_back(self, node):
        if node.pooled and node.alive() and node.idle() and node.call("forget")["ok"] and \
                node.call("unobserve")["ok"]:
            self._idle.setdefault(node.which, []).append(node)
        else:
            node.kill()
            node.stop()

    def stop(self):
        for nodes in self._idle.values():
            for node in nodes:
                node.stop()


class Scene:
    """One rendezvous.  The store is a `muster store`, or of the first node made, by its kind."""

    backend = "c10d"

    def __init__(self, pool, which, nodes=(2, 2), store="muster", engine=None, **options):
        """engine="off": ours meet in a document also while they are among themselves, where the test looks at it."""
        self.pool, self.which, self.limits = pool, which, nodes
        self.our_words = {"engine": engine} if engine else {}
        self.options = {"join_timeout": 60, "last_call_timeout": 2, "read_timeout": 30, **options}
        self.run_id = uuid.uuid4().hex[:12]
        self._taken, self._made, self._server, self._observer = [], [], None, None
        self.port = None
        self.host = None  # the kind of the node that will host the store
        if store == "muster":
            self.start_store()
        else:
            self.host = store

    @property
    def endpoint(self):
        return f"127.0.0.1:{self.port}"

    def start_store(self, port=None):
        """A `muster store`, if a port is given on that one."""
        self._server = harness.MusterServer(*(["--port", str(port)] if port else []))
        self.port = self._server.port

    def kill_store(self):
        self._server.process.kill()
        self._server.process.wait(timeout=20)
        self._server = None

    def on(self, other):
        """On the store of another scene; a rendezvous of its own all the same."""
        self.port, self._observer = other.port, other.observer()
        return self

    def stock(self, name="127.0.0.1", environment=None, limits=None, **options):
        """A node of stock PyTorch with a handler."""
        node = self.pool.take(self.which, environment)
        self._taken.append(node)
        hosting = self.host == "stock"
        self.host = None
        options = {**self.options, **self.hosting(hosting), **options}
        low, high = limits or self.limits
        made = node.begin("create", endpoint="127.0.0.1:0" if hosting else self.endpoint, run_id=self.run_id,
                          min=low, max=high, name=name, options=options, backend=self.backend)
        node.name = name
        if hosting:
            self.port = made.good(60)["port"]
        return node  # where ours meet in the engine, it is made when they have left their world

    def hosting(self, hosting):
        return {"is_host": hosting}

    def our_options(self, options):
        hosting = self.host == "ours"
        self.host = None
        if hosting:
            self.port = free_port()
        wanted = {**self.options, **self.our_words, **self.hosting(hosting), **options}
        if harness.dialect(self.which) != "2.x":
            wanted.setdefault("dialect", harness.dialect(self.which))
        return {k: v for k, v in wanted.items() if v is not None}

    def our(self, name="127.0.0.2", environment=None, limits=None, **options):
        """A node of ours with a handler."""
        need_rdzv()
        options = self.our_options(options)
        node = Ours(self.endpoint, self.run_id, limits or self.limits, name, options, environment,
                    self.backend)
        self._made.append(node)
        node.pid = node.hello.good()["pid"]
        node.name = name
        return node

    def node(self, kind, name, **options):
        return self.stock(name, **options) if kind == "stock" else self.our(name, **options)

    def join(self, name="127.0.0.2", *further, environment=None, limits=None, **options):
        """`muster join`."""
        harness.need_program()
        options = self.our_options(options)
        process = Join(self.endpoint, self.run_id, limits or self.limits, name, options, *further,
                       environment=environment, backend=self.backend)
        self._made.append(process)
        return process

    def observer(self):
        if self._observer is None:
            self._observer = self.pool.take(self.which)
            self._taken.append(self._observer)
        return self._observer

    def document(self):
        """The document as PyTorch reads it from the store."""
        return self.observer().call("document", port=self.port, run_id=self.run_id,
                                    backend=self.backend).good["document"]

    def put(self, **what):
        self.observer().call("put", port=self.port, run_id=self.run_id, **what).good

    def until(self, condition, limit=STEP_LIMIT, what="document"):
        """Waits until the document fulfils a condition, and gives it."""
        last = []

        def look():
            last[:] = [self.document()]
            return last[0] if last[0] is not None and condition(last[0]) else None
        try:
            return until(look, limit)
        except AssertionError:
            raise AssertionError(f"not within {limit} s: {what}; it is {last[0]}") from None

    def members(self):
        """Who is in it, by rank."""
        document = self.document()
        return [n[0] for n in sorted(document["participants"], key=lambda n: n[3])]

    def until_in(self, count, limit=STEP_LIMIT):
        return self.until(lambda d: d is not None and len(d["participants"]) == count, limit,
                          f"{count} participants")

    def stop(self):
        for node in reversed(self._made):
            if isinstance(node, Join):
                node.stop()
            else:
                node.kill()
                node.stop()
        for node in reversed(self._taken):
            self.pool.give_back(node)
        if self._server is not None:
            self._server.stop()


class EtcdScene(Scene):
    """One rendezvous of the etcd-v2 back end, on a cluster of etcds, for a PyTorch that has python-etcd: 1.13, unless another
    one than the usual is asked for."""

    backend = "etcd-v2"

    def __init__(self, pool, cluster, nodes=(2, 2), **options):
        super().__init__(pool, "1.13.1" if NEW == USUAL else NEW, nodes, store=None, **options)
        self.cluster, self.port = cluster, cluster[0].port

    def hosting(self, hosting):
        return {}


def all_at_once(parameter, values):
    """Runs a test that takes this parameter with every value at once: they wait for most of their time."""
    def decorate(test):
        @functools.wraps(test)
        def every_value(**arguments):
            with concurrent.futures.ThreadPoolExecutor(len(values)) as threads:
                runs = {value: threads.submit(test, **{parameter: value}, **arguments) for value in values}
            errors = {value: run.exception() for value, run in runs.items() if run.exception() is not None}
            for value, error in errors.items():
                print(f"with {parameter} {value}: {type(error).__name__}: {error}")
            for error in sorted(errors.values(), key=lambda e: type(e).__name__ == "Skipped"):
                raise error  # what failed before what was skipped

        signature = inspect.signature(test)
        every_value.__signature__ = signature.replace(
            parameters=[p for name, p in signature.parameters.items() if name != parameter])
        return every_value
    return decorate


side_by_side = all_at_once("which", VERSIONS)


def meet(*nodes, limit=STEP_LIMIT):
    """All of them ask for the next round; what each was told."""
    pending = [node.begin("next") for node in nodes]
    return [p.good(limit) for p in pending]


def agree(nodes, results, round=None):
    """One world: everybody in it, ranks by name, one address to meet at."""
    told = [(r["rank"], r["world_size"], r["round"]) for r in results]
    order = sorted(range(len(nodes)), key=lambda i: nodes[i].name)
    expected_round = results[0]["round"] if round is None else round
    for rank, i in enumerate(order):
        assert told[i] == (rank, len(nodes), expected_round), (told, [n.name for n in nodes])
    bootstraps = {(r["addr"], r["port"]) for r in results}
    assert len(bootstraps) == 1, bootstraps
    addr, port = bootstraps.pop()
    assert addr and 0 < port < 65536, (addr, port)
    return addr, port

"""Processes and sockets shared by the interop tests: drivers, servers, a recording proxy.

Every wait in here has a limit and ends on a condition; nothing sleeps.  Every process
started here is stopped by its own handle.
"""

import json
import os
import pathlib
import queue
import re
import selectors
import signal
import socket
import subprocess
import threading
import time

import wire

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FIXTURES = ROOT / "tests" / "fixtures" / "tcpstore"

# The newer of the two stock versions that most tests take: the usual one, or the one that `make interop TORCH=` names.
USUAL = "2.13.0"


def chosen_version():
    chosen = os.environ.get("TORCH") or USUAL
    if chosen == "newest":  # scripts/setup has found out which that is, and left a link
        link = ROOT / "build" / "venv-torch-newest"
        if not link.exists():
            raise SystemExit(f"there is no {link}: 'TORCH=newest scripts/setup interop' makes it")
        chosen = link.resolve().name.removeprefix("venv-torch-")
    return chosen


NEW = chosen_version()


# Generous, because several PyTorch processes may be importing on few cores at once.
START_LIMIT = 120
CALL_LIMIT = 60


def program():
    """The muster under test."""
    return pathlib.Path(os.environ.get("MUSTER", ROOT / "build" / "muster")).absolute()


def client_program():
    """The C program that makes every call of our client library."""
    default = program().parent / "tests" / "interop_client"
    return pathlib.Path(os.environ.get("MUSTER_INTEROP_CLIENT", default)).absolute()


def interpreter(which):
    """The Python of one of the two stock versions, "1.13.1" or NEW."""
    if which == "1.13.1":
        chosen = os.environ.get("MUSTER_TORCH1_PYTHON", "/usr/bin/python3")
    else:
        environment = "venv-torch2" if which == USUAL else f"venv-torch-{which}"
        chosen = os.environ.get("MUSTER_TORCH2_PYTHON", str(ROOT / "build" / environment / "bin" / "python"))
    return os.path.abspath(chosen)  # not resolved: a venv's python is a link


def release(which):
    """(2, 13) of "2.13.0"."""
    return tuple(int(part) for part in which.split(".")[:2])


def is_older(version, than):
    """Whether a stock version comes before another: "2.9.1" before "2.14"."""
    return release(version) < release(than)


def dialect(which):
    """What our option `dialect` calls that version; what is newer than all of them is "2.x"."""
    for last, name in (((1, 13), "1.13"), ((2, 2), "2.2"), ((2, 3), "2.3"), ((2, 4), "2.4"), ((2, 5), "2.5")):
        if release(which) <= last:
            return name
    return "2.x"


def absent(reason):
    """Missing tools skip a test on a developer's machine and fail it where all must be there."""
    import pytest  # not needed by the recorder
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def need_program():
    if not program().exists():
        absent(f"there is no {program()} to test")


def quiet_environment(extra=None):
    """Ours plus what keeps many PyTorch processes cheap on few cores."""
    environment = dict(os.environ)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "USE_LIBUV"):
        environment.pop(name, None)
    environment.update(OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1",
                       TORCH_CPP_LOG_LEVEL="ERROR")
    environment.update(extra or {})
    return environment


def stop(process, limit=20):
    """Ends a process of ours and returns its code; kills it if it will not end."""
    if process.stdin and not process.stdin.closed:
        try:
            process.stdin.close()
        except BrokenPipeError:
            pass
    try:
        return process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(timeout=limit)


class Lines:
    """Reads lines of a stream on a thread so that waiting for one can have a limit."""

    def __init__(self, stream):
        self._queue = queue.Queue()
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream):
        for line in stream:
            self._queue.put(line)
        self._queue.put(None)
        stream.close()

    def next(self, limit):
        """The next line, or None at the end of the stream."""
        line = self._queue.get(timeout=limit)
        if line is None:
            self._queue.put(None)
        return line


class Answer:
    """What one call in a driver gave; available once the driver has said so."""

    def __init__(self, what):
        self._what = what
        self._done = threading.Event()
        self.ok = None
        self.repr = None

    def fill(self, ok, text):
        self.ok, self.repr = ok, text
        self._done.set()

    def done(self):
        return self._done.is_set()

    def ok_within(self, limit):
        """Whether it came, and came well."""
        return self._done.wait(limit) and self.ok

    def result(self, limit=CALL_LIMIT):
        """The repr of what was returned, or "Type: text" of what was raised."""
        if not self._done.wait(limit):
            raise AssertionError(f"no answer within {limit} s: {self._what}")
        return self.repr


class Driver:
    """One process of one PyTorch version; see torch_driver.py."""

    def __init__(self, python, environment=None):
        self.process = subprocess.Popen(
            [python, str(HERE / "torch_driver.py")], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env=quiet_environment(environment), cwd=HERE)
        self._answers = {}
        self._lock = threading.Lock()
        self._next = 0
        self._hello = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._version = None

    def _read(self):
        for line in self.process.stdout:
            message = json.loads(line)
            if "version" in message:
                self._hello.put(message)
                continue
            with self._lock:
                answer = self._answers.pop(message["id"])
            answer.fill(message["ok"], message["repr"])
        self._hello.put(None)
        with self._lock:
            left, self._answers = list(self._answers.values()), {}
        for answer in left:
            answer.fill(False, "DriverGone: the process of this PyTorch ended")
        self.process.stdout.close()

    @property
    def version(self):
        """The version this PyTorch states, once it has been imported."""
        if self._version is None:
            hello = self._hello.get(timeout=START_LIMIT)
            if hello is None:
                raise AssertionError("this interpreter could not import torch")
            self._version = hello["version"]
        return self._version

    def start(self, store, action, *args, **fields):
        """Asks for something and returns at once with the Answer to come."""
        self.version
        with self._lock:
            self._next += 1
            number = self._next
            answer = Answer(f"{action} {fields.get('name', '')} {args} on {store}")
            self._answers[number] = answer
        message = {"id": number, "store": store, "do": action, "args": list(args), **fields}
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        return answer

    def begin(self, store, name, *args, **kwargs):
        """Starts a method of a store without waiting for it."""
        return self.start(store, "call", *args, name=name, kwargs=kwargs)

    def call(self, store, name, *args, **kwargs):
        """A method of a store: the repr of its result or "Type: text"."""
        return self.begin(store, name, *args, **kwargs).result()

    def open(self, store, port, *args, timeout=60, **kwargs):
        """Makes a TCPStore client (or, with is_master, a server) and gives its port."""
        kwargs.setdefault("wait_for_workers", False)
        answer = self.start(store, "open", "127.0.0.1", port, *args,
                            kwargs={"timeout": seconds(timeout), **kwargs})
        text = answer.result()
        assert answer.ok, text
        return int(text)

    def host(self, store="server", **kwargs):
        """Makes a stock server on a free port and gives the port."""
        return self.open(store, 0, is_master=True, **kwargs)

    def prefix(self, store, prefix, over):
        return self.start(store, "prefix", prefix, over).result()

    def clone(self, store, of):
        return self.start(store, "clone", of, lane=of).result()

    def forget(self):
        """Lets go of every store, so that the process can serve another test."""
        with self._lock:
            busy = bool(self._answers)
        return not busy and self.start("*", "forget").ok_within(CALL_LIMIT)

    def alive(self):
        return self.process.poll() is None

    def attribute(self, store, name):
        return self.start(store, "attribute", name=name).result()

    def stop(self):
        code = stop(self.process)
        self._reader.join(timeout=20)
        return code


def seconds(value):
    """A duration for a driver."""
    return {"seconds": value}


class MusterServer:
    """`muster store` on a free port of the loopback."""

    def __init__(self, *options):
        self.process = subprocess.Popen(
            [str(program()), "store", "--host", "127.0.0.1", "--port", "0", *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        line = Lines(self.process.stdout).next(START_LIMIT)
        found = re.fullmatch(r"listening on (\S+):(\d+)\n", line or "")
        if not found:
            self.process.kill()
            self.process.wait(timeout=20)
            raise AssertionError(f"muster store said {line!r} instead of where it listens")
        self.port = int(found.group(2))

    def stop(self):
        """SIGTERM must end it cleanly."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = stop(self.process)
        assert code == 0, f"muster store ended with {code}"


class Pulse:
    """Tells when a server has dealt with everything sent to it so far.

    A server looks at its connections in turns.  The first answer may come from a turn that
    looked here before it looked at the others; the second comes from a later turn, by which
    time whatever had been sent before the first question has been read and acted upon.
    """

    def __init__(self, port, modern=True):
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=CALL_LIMIT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # CHECK of no keys at all: always ready, and the same in every release.
        self._question = (b"\x05" if modern else b"\x04") + wire.strings([])
        if modern:
            self._socket.sendall(b"\0" + wire.MAGIC)
        self.beat()

    def beat(self):
        for _ in range(2):
            self._socket.sendall(self._question)
            answer = self._socket.recv(1)
            assert answer == b"\0", f"pulse answered with {answer!r}"

    def close(self):
        self._socket.close()


class Chunk:
    """Bytes as one read of the proxy saw them."""

    def __init__(self, op, connection, direction, data):
        self.op, self.connection, self.direction, self.data = op, connection, direction, data

    def as_json(self):
        return json.dumps({"op": self.op, "conn": self.connection, "dir": self.direction,
                           "hex": self.data.hex()})


class Proxy:
    """Stands between clients and a server, records every chunk and names the requests.

    Connections are numbered from 1 in the order they were accepted.  One thread does all
    of it, so the record has one order in which each reply stands after its request.
    """

    def __init__(self, port):
        self._target = port
        self.label = ""
        self.chunks = []
        self.requests = []
        self.connections = 0
        self._changed = threading.Condition()
        self._peers = {}
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self._listener.getsockname()[1]
        self._wake_read, self._wake_write = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ, "listener")
        self._selector.register(self._wake_read, selectors.EVENT_READ, "wake")
        self._idle = 0
        self._idle_asked = 0
        self._closing = False
        self._error = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            while not self._closing:
                wanted = self._idle_asked > self._idle
                ready = self._selector.select(0 if wanted else None)
                busy = False
                for key, _ in ready:
                    if key.data == "wake":
                        self._wake_read.recv(4096)
                    elif key.data == "listener":
                        busy = True
                        self._accept()
                    else:
                        busy = True
                        self._move(key.fileobj, *key.data)
                if wanted and not busy:
                    with self._changed:
                        self._idle = self._idle_asked
                        self._changed.notify_all()
        except Exception as error:  # shown by whoever waits next
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _accept(self):
        client, _ = self._listener.accept()
        server = socket.create_connection(("127.0.0.1", self._target))
        self.connections += 1
        number = self.connections
        parser = wire.RequestParser()
        for end, other, direction in ((client, server, ">"), (server, client, "<")):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers[end] = other
            self._selector.register(end, selectors.EVENT_READ, (number, direction, parser))

    def _move(self, end, number, direction, parser):
        other = self._peers.get(end)
        if other is None:
            return
        try:
            data = end.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            with self._changed:
                for side in (end, other):
                    self._selector.unregister(side)
                    del self._peers[side]
                    side.close()
                self._changed.notify_all()
            return
        with self._changed:
            self.chunks.append(Chunk(self.label, number, direction, data))
            if direction == ">":
                try:
                    for name, fields in parser.feed(data):
                        self.requests.append((number, name, fields))
                except wire.Unknown:
                    pass
        try:
            other.sendall(data)
        except ConnectionError:
            pass  # its own read will tell
        with self._changed:
            self._changed.notify_all()

    def settle(self, limit=CALL_LIMIT):
        """Returns once nothing that had reached the proxy is left unforwarded."""
        with self._changed:
            self._idle_asked += 1
            asked = self._idle_asked
            self._wake_write.send(b"x")
            self._until(lambda: self._idle >= asked, limit)

    def await_request(self, condition, limit=CALL_LIMIT):
        """Waits until condition(requests so far) holds and they have been forwarded."""
        with self._changed:
            self._until(lambda: condition(self.requests), limit)

    def await_end(self, limit=CALL_LIMIT):
        """Waits until every connection there was has been closed."""
        with self._changed:
            self._until(lambda: not self._peers, limit)

    def _until(self, condition, limit):
        end = time.monotonic() + limit
        while not condition():
            if self._error is not None:
                raise AssertionError("the proxy failed") from self._error
            left = end - time.monotonic()
            if left <= 0 or not self._changed.wait(left):
                if not condition():
                    raise AssertionError(f"not seen within {limit} s")

    def count(self):
        """How often each request was sent so far."""
        totals = {}
        with self._changed:
            for _, name, _ in self.requests:
                totals[name] = totals.get(name, 0) + 1
        return totals

    def stop(self):
        self._closing = True
        self._wake_write.send(b"x")
        self._thread.join(timeout=20)
        for end in list(self._peers):
            end.close()
        self._selector.close()
        self._listener.close()
        self._wake_read.close()
        self._wake_write.close()

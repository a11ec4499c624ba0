"""The program under test as a process: servers that listen, commands that end, peers that misbehave.

Every wait in here has a limit and ends on a condition. Every process started here is ended by its own handle.
"""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MUSTER = str(pathlib.Path(os.environ.get("MUSTER", ROOT / "build" / "muster")).absolute())
LIMIT = 30  # seconds for anything that ought to take a moment


def is_sanitized():
    """Whether the program is built with ASan, which has its own ideas of memory."""
    return b"__asan_init" in pathlib.Path(MUSTER).read_bytes()


def environment(extra=None):
    """Ours without what would point commands at somebody else's store."""
    kept = {name: value for name, value in os.environ.items() if name not in ("MASTER_ADDR", "MASTER_PORT")}
    return {**kept, **(extra or {})}


def until(condition, limit=LIMIT, what="the condition"):
    """Waits until condition() is true and returns what it gave."""
    end = time.monotonic() + limit
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < end, f"{what} did not come true within {limit} s"
        time.sleep(0.005)


@contextlib.contextmanager
def signals_blocked():
    """What is started meanwhile has all signals blocked."""
    before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Ended:
    """What a command said and how it ended."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err.decode(errors="replace")

    @property
    def line(self):
        """The one line on stderr."""
        assert self.err.endswith("\n") and self.err.count("\n") == 1, f"not one line on stderr: {self.err!r}"
        return self.err.rstrip("\n")

    def __repr__(self):
        return f"Ended({self.code}, {self.out!r}, {self.err!r})"


def run(*words, stdin=b"", env=None, limit=LIMIT, **how):
    """Runs `muster WORDS` to its end; stdin is bytes, or a file."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how}
    pipes["input" if isinstance(stdin, bytes) else "stdin"] = stdin
    done = subprocess.run([MUSTER, *words], env=environment(env), timeout=limit, check=False, **pipes)
    return Ended(done.returncode, done.stdout, done.stderr or b"")


class Command:
    """`muster WORDS` while it runs."""

    def __init__(self, *words, env=None):
        def default_signals():  # a shell may have started us with SIGINT ignored, which children inherit
            signal.signal(signal.SIGINT, signal.SIG_DFL)

        self.process = subprocess.Popen([MUSTER, *words], env=environment(env), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=default_signals)

    def end(self, limit=LIMIT):
        try:
            out, err = self.process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        return Ended(self.process.returncode, out, err)


class Server:
    """`muster store OPTIONS`, listening."""

    def __init__(self, *options, wrap=(), limit=LIMIT, pass_fds=(), env=None):
        self.process = subprocess.Popen([*wrap, MUSTER, "store", *options], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=pass_fds,
                                        env=environment(env))
        self.lines = []  # of stderr
        self._said = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        alarm = threading.Timer(limit, self.process.kill)  # ends the readline below
        alarm.start()
        self.first_line = self.process.stdout.readline().decode()
        alarm.cancel()
        if not self.first_line.startswith("listening on "):
            self.stop(expect=None)
            raise AssertionError(f"did not listen: {self.first_line!r}, {self.lines}")
        self.address = self.first_line.removeprefix("listening on ").rstrip("\n")
        host, _, port = self.address.rpartition(":")
        self.port = int(port)
        self.host = {"[::]": "127.0.0.1", "0.0.0.0": "127.0.0.1"}.get(host, host.strip("[]"))
        self.endpoint = f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"
        self.pid = self.process.pid

    def _read(self):
        for line in self.process.stderr:
            with self._said:
                self.lines.append(line.decode(errors="replace").rstrip("\n"))
                self._said.notify_all()

    def find(self, *parts):
        """The log lines that hold all the parts."""
        with self._said:
            return [line for line in self.lines if all(part in line for part in parts)]

    def wait_log(self, *parts, limit=LIMIT):
        """The first such line, once it has been written; None if it is not within the limit."""
        end = time.monotonic() + limit
        while True:
            found = self.find(*parts)
            if found:
                return found[0]
            with self._said:
                left = end - time.monotonic()
                if left <= 0:
                    return None
                self._said.wait(min(left, 0.05))

    def log(self, *parts):
        found = self.wait_log(*parts)
        assert found, f"no log line with {parts} in {self.lines}"
        return found

    def call(self, command, *words, **how):
        """`muster store COMMAND --endpoint ME WORDS`."""
        return run("store", command, "--endpoint", self.endpoint, *words, **how)

    def resident_kib(self):
        for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
        raise AssertionError("no VmRSS")

    def stop(self, signum=signal.SIGTERM, expect=0, limit=LIMIT):
        """Ends it and returns its exit code, which has to be the expected one."""
        if self.process.poll() is None:
            self.process.send_signal(signum)
        try:
            code = self.process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        self._reader.join(limit)
        self.process.stdout.close()
        self.process.stderr.close()
        assert expect is None or code == expect, f"ended with {code}: " + "\n".join(self.lines)
        return code


class Imposter:
    """A listening socket; each connection is handed to a function on a thread of its own."""

    def __init__(self, behave):
        self._behave = behave
        self._stopped = False
        self.connections = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.endpoint = f"127.0.0.1:{self.port}"
        self._open = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            if self._stopped:
                sock.close()
                return
            self.connections += 1
            self._open.append(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock):
        try:
            self._behave(sock)
        except OSError:
            pass

    def stop(self):
        self._stopped = True
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()  # wakes accept()
        except OSError:
            pass
        self._thread.join(LIMIT)
        self.listener.close()
        for sock in self._open:
            sock.close()


class Relay(Imposter):
    """Passes bytes on to a server and remembers what clients said, so that a test knows how far one has got."""

    def __init__(self, port):
        self._to = port
        self.said = b""
        super().__init__(self._pass_on)

    def _pass_on(self, client):
        with socket.create_connection(("127.0.0.1", self._to)) as server:
            threading.Thread(target=self._answers, args=(server, client), daemon=True).start()
            while data := client.recv(65536):
                data = self.heard(data)
                server.sendall(data)
                self.said += data

    def heard(self, data):
        """What is passed on instead of this."""
        return data

    @staticmethod
    def _answers(server, client):
        try:
            while data := server.recv(65536):
                client.sendall(data)
        except OSError:
            pass
        try:
            client.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

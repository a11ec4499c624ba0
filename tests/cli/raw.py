"""Requests by hand, in every dialect of the TCPStore protocol."""

import socket
import struct

VALIDATE = b"\x00\xce\xf7\x85\x3c"
LEGACY = ["SET", "COMPARE_SET", "GET", "ADD", "CHECK", "WAIT", "NUM_KEYS"]
CODES = {
    "1.13": LEGACY + ["WATCH_KEY", "DELETE_KEY"],
    "2.1": LEGACY + ["DELETE_KEY", "APPEND", "MULTI_GET", "MULTI_SET", "CANCEL_WAIT"],
    "2.x": ["VALIDATE"] + LEGACY + ["DELETE_KEY", "APPEND", "MULTI_GET", "MULTI_SET", "CANCEL_WAIT", "PING",
                                    "QUEUE_PUSH", "QUEUE_POP", "QUEUE_LEN", "LIST_KEYS", "BARRIER"],
}
LIMIT = 30


def string(data):
    return struct.pack("<Q", len(data)) + data


def strings(items):
    return struct.pack("<Q", len(items)) + b"".join(string(item) for item in items)


def number(value):
    return struct.pack("<q", value)


def request(dialect, name, *parts):
    return bytes([CODES[dialect].index(name)]) + b"".join(parts)


class Raw:
    """One connection."""

    def __init__(self, server, dialect="2.x", receive_buffer=None):
        family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
        self.dialect = dialect
        self.sock = socket.socket(family, socket.SOCK_STREAM)
        self.sock.settimeout(LIMIT)
        if receive_buffer is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.connect((server.host, server.port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if dialect == "2.x":
            self.sock.sendall(VALIDATE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    @property
    def name(self):
        """How the server's log calls it."""
        host, port = self.sock.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def say(self, name, *parts):
        self.sock.sendall(request(self.dialect, name, *parts))

    def say_bytes(self, data):
        self.sock.sendall(data)

    def read(self, size):
        data = b""
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                raise ConnectionError(f"closed after {data!r}")
            data += more
        return data

    def byte(self):
        return self.read(1)[0]

    def number(self):
        return struct.unpack("<q", self.read(8))[0]

    def bytes(self):
        return self.read(struct.unpack("<Q", self.read(8))[0])

    def set(self, key, value):
        self.say("SET", string(key), string(value))

    def get(self, key):
        self.say("GET", string(key))
        return self.bytes()

    def add(self, key, delta):
        self.say("ADD", string(key), number(delta))
        return self.number()

    def exists(self, *keys):
        self.say("CHECK", strings(keys))
        return self.byte() == 0

    def num_keys(self):
        self.say("NUM_KEYS")
        return self.number()

    def wait(self, *keys):
        self.say("WAIT", strings(keys))

    def is_closed(self):
        """Reads on until the server has closed the connection."""
        try:
            while self.sock.recv(65536):
                pass
        except (ConnectionError, BrokenPipeError):
            pass
        return True  # a time-out is an exception of its own

    def drop(self):
        """Ends with a reset rather than a farewell."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

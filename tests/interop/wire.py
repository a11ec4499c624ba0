"""Just enough of the TCPStore protocol to name the requests in a stream of bytes."""

import struct

MAGIC = b"\xce\xf7\x85\x3c"

# What follows the code byte: s = string, q = 8 bytes, u = 4 bytes, l = list of strings,
# p = list of (key, value) pairs.
L0 = {
    0: ("SET", "ss"), 1: ("COMPARE_SET", "sss"), 2: ("GET", "s"), 3: ("ADD", "sq"),
    4: ("CHECK", "l"), 5: ("WAIT", "l"), 6: ("GETNUMKEYS", ""), 7: ("WATCH_KEY", "s"),
    8: ("DELETE_KEY", "s"),
}
V = {
    0: ("VALIDATE", "u"), 1: ("SET", "ss"), 2: ("COMPARE_SET", "sss"), 3: ("GET", "s"),
    4: ("ADD", "sq"), 5: ("CHECK", "l"), 6: ("WAIT", "l"), 7: ("GETNUMKEYS", ""),
    8: ("DELETE_KEY", "s"), 9: ("APPEND", "ss"), 10: ("MULTI_GET", "l"),
    11: ("MULTI_SET", "p"), 12: ("CANCEL_WAIT", ""), 13: ("PING", "u"),
    14: ("QUEUE_PUSH", "ss"), 15: ("QUEUE_POP", "s"), 16: ("QUEUE_LEN", "s"),
    17: ("LIST_KEYS", ""), 18: ("BARRIER", "sq"),
}


class Incomplete(Exception):
    """The buffer ends before the request does."""


class Unknown(Exception):
    """No dialect has such a request."""


class RequestParser:
    """Splits what a client sends into requests: feed bytes, get (name, fields) pairs."""

    def __init__(self):
        self._buffer = b""
        self._table = None

    def feed(self, data):
        self._buffer += data
        if self._table is None:
            if self._buffer[:1] != b"\x00":
                self._table = L0
            elif len(self._buffer) < 5:
                return []
            else:
                self._table = V if self._buffer[1:5] == MAGIC else L0
        requests = []
        while self._buffer:
            try:
                request, used = self._one()
            except Incomplete:
                break
            requests.append(request)
            self._buffer = self._buffer[used:]
        return requests

    def _take(self, at, size):
        if len(self._buffer) < at + size:
            raise Incomplete
        return self._buffer[at:at + size], at + size

    def _number(self, at, form):
        raw, at = self._take(at, struct.calcsize(form))
        return struct.unpack(form, raw)[0], at

    def _string(self, at):
        size, at = self._number(at, "<Q")
        return self._take(at, size)

    def _one(self):
        code = self._buffer[0]
        if code not in self._table:
            raise Unknown(f"request code {code}")
        name, layout = self._table[code]
        fields, at = [], 1
        for kind in layout:
            if kind == "s":
                value, at = self._string(at)
            elif kind == "q":
                value, at = self._number(at, "<q")
            elif kind == "u":
                value, at = self._number(at, "<I")
            else:
                count, at = self._number(at, "<Q")
                value = []
                for _ in range(count * (2 if kind == "p" else 1)):
                    item, at = self._string(at)
                    value.append(item)
            fields.append(value)
        return (name, fields), at


def string(data):
    """A string as it travels."""
    return struct.pack("<Q", len(data)) + data


def strings(items):
    """A list of strings as it travels."""
    return struct.pack("<Q", len(items)) + b"".join(string(item) for item in items)

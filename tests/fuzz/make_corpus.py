#!/usr/bin/env python3
"""Writes the hand-made inputs of corpus/session, corpus/frames, corpus/engine_store and
corpus/net. Inputs that a fuzzer found stay as they are.

A stream is what one connection sends; a program is a list of steps, see fuzz_session.c.
"""
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent

AUTO, L0, L1 = 0, 1, 2
OPS = ("VALIDATE SET COMPARE_SET GET ADD CHECK WAIT NUM_KEYS WATCH_KEY DELETE_KEY APPEND MULTI_GET MULTI_SET "
       "CANCEL_WAIT PING QUEUE_PUSH QUEUE_POP QUEUE_LEN LIST_KEYS BARRIER").split()
VALIDATE = bytes.fromhex("00CEF7853C")


def u64(number):
    return struct.pack("<Q", number & (1 << 64) - 1)


def text(value):
    return u64(len(value)) + value.encode()


def stream(legacy, *parts, piece=1):
    """Bytes as they are; the second store gets them `piece` at a time."""
    return bytes([4 | legacy | piece - 1 << 3]) + b"".join(parts)


def program(legacy, *steps):
    return bytes([legacy]) + b"".join(steps)


def step(action, who, *arguments):
    return bytes([action * 4 + who]) + b"".join(arguments)


def feed(who, data):
    return step(0, who, bytes([len(data)]), data)


def feed_bytewise(who, data):
    return step(1, who, bytes([len(data)]), data)


def request(who, op, *arguments):
    return step(2, who, bytes([OPS.index(op), *arguments]))


def part(who, eighths, op, *arguments):
    return step(4, who, bytes([eighths * 32 - 1, OPS.index(op), *arguments]))


def reopen(who, validated):
    return bytes([5 * 4 + who | (0x80 if validated else 0)])


def wait_ms(ms):
    return step(6, 0, bytes([ms]))


def slow(who, reads):
    return step(7, who, bytes([reads]))


L0_FLOW = (b"\x03" + text("init/") + u64(1), b"\x00" + text("/k") + text("v"), b"\x02" + text("/k"),
           b"\x03" + text("/c") + u64(-7), b"\x01" + text("/q") + text("") + text("new"),
           b"\x04" + u64(2) + text("/k") + text("/zz"), b"\x05" + u64(1) + text("/k"), b"\x06",
           b"\x08" + text("/k"), b"\x07" + text("/wk"), b"\x00" + text("/wk") + text("a"))
L1_FLOW = (b"\x03" + text("init/") + u64(1), b"\x0b", b"\x08" + text("/k") + text("w"),
           b"\x0a" + u64(2) + text("/a") + text("1") + text("/b") + text(""),
           b"\x09" + u64(2) + text("/b") + text("/a"), b"\x07" + text("/k"), b"\x05" + u64(1) + text("/z"), b"\x0b")
V_FLOW = (VALIDATE, b"\x0d" + struct.pack("<I", 0x1234), b"\x04" + text("init/") + u64(1),
          b"\x01" + text("/k") + text("v"), b"\x02" + text("/k") + text("v") + text("N"), b"\x03" + text("/k"),
          b"\x05" + u64(1) + text("/k"), b"\x06" + u64(2) + text("/k") + text("/z"), b"\x07", b"\x08" + text("/k"),
          b"\x09" + text("/k") + text("w"), b"\x0a" + u64(2) + text("/a") + text("/b"),
          b"\x0b" + u64(1) + text("/a") + text("1"), b"\x0c", b"\x0e" + text("/q") + text("x"), b"\x10" + text("/q"),
          b"\x0f" + text("/q"), b"\x0f" + text("/q"), b"\x11", b"\x12" + text("/b") + u64(2))

SESSION = {
    "stream-1.13": stream(L0, *L0_FLOW),
    "stream-2.1": stream(L1, *L1_FLOW),
    "stream-2.1-found-out": stream(AUTO, *L1_FLOW, piece=3),
    "stream-2.x": stream(AUTO, *V_FLOW),
    "stream-2.x-in-pieces": stream(AUTO, *V_FLOW, piece=5),
    "stream-probe": stream(AUTO, VALIDATE, b"\x0c" * 4),
    "stream-validate-twice": stream(AUTO, VALIDATE, VALIDATE),
    "stream-key-like-the-magic": stream(AUTO, b"\x00\xce\xf7\x85\x3b" + bytes(4)),
    "stream-http": stream(AUTO, b"GET / HTTP/1.1\r\n\r\n"),
    "stream-length-2-63": stream(AUTO, VALIDATE, b"\x03" + u64(1 << 63)),
    "stream-length-all-bits": stream(AUTO, VALIDATE, b"\x01" + text("k") + u64(-1)),
    "stream-count-2-62": stream(AUTO, VALIDATE, b"\x06" + u64(1 << 62)),
    "stream-add-on-text": stream(AUTO, VALIDATE, b"\x01" + text("k") + text("12abc"), b"\x04" + text("k") + u64(1),
                                 b"\x01" + text("k") + text("abc"), b"\x04" + text("k") + u64(1)),
    "stream-add-at-the-edges": stream(AUTO, VALIDATE, b"\x04" + text("k") + u64((1 << 63) - 1),
                                      b"\x04" + text("k") + u64(1), b"\x04" + text("k") + u64(-1)),
    "stream-append-or-delete": stream(AUTO, b"\x06\x08" + text("/k")),
    "program-wait-and-set": program(AUTO, request(0, "WAIT", 2, 0, 1), request(1, "SET", 0, 3),
                                    request(1, "DELETE_KEY", 0), request(1, "SET", 1, 3)),
    "program-wait-replaced": program(AUTO, request(0, "WAIT", 1, 0), request(0, "WAIT", 3, 1, 1, 2),
                                     request(1, "SET", 0, 1), request(1, "MULTI_SET", 2, 1, 1, 2, 2)),
    "program-cancel": program(AUTO, request(0, "WAIT", 1, 0), request(0, "CANCEL_WAIT"), request(1, "SET", 0, 1),
                              request(0, "WAIT", 1, 1), request(1, "ADD", 1, 1), request(0, "CANCEL_WAIT")),
    "program-queue-passed-on": program(AUTO, reopen(2, True), request(0, "WAIT", 1, 0), request(2, "WAIT", 1, 0),
                                       request(1, "QUEUE_PUSH", 0, 5), reopen(0, True), request(2, "CANCEL_WAIT"),
                                       request(1, "QUEUE_POP", 0), request(1, "QUEUE_LEN", 0)),
    "program-barrier": program(AUTO, reopen(2, True), request(0, "BARRIER", 1, 3), request(1, "BARRIER", 1, 3),
                               request(2, "BARRIER", 1, 3), request(0, "BARRIER", 1, 3)),
    "program-watch": program(L0, feed(2, b"\x07" + text("a")), request(0, "SET", 0, 7), request(0, "SET", 0, 8),
                             request(1, "COMPARE_SET", 0, 8, 9), request(1, "DELETE_KEY", 0), reopen(2, False),
                             request(0, "ADD", 0, 1)),
    "program-abandoned-wait": program(AUTO, feed(3, b"\x05" + u64(1) + text("a")), feed(3, b"\x06"),
                                      request(0, "SET", 0, 1), feed(3, b"\x06")),
    "program-grace": program(AUTO, request(0, "SET", 0, 9), feed(2, b"\x08" + text("a")), wait_ms(50), wait_ms(60),
                             feed(3, b"\x08" + text("a")), wait_ms(50), feed(3, text("w"))),
    "program-halves": program(AUTO, part(0, 4, "SET", 0, 40), part(1, 7, "MULTI_SET", 2, 0, 1, 1, 2), wait_ms(9),
                              reopen(0, True), feed_bytewise(1, b"\x01" * 12)),
    "program-full": program(AUTO, *[request(0, "QUEUE_PUSH", i % 4, 48) for i in range(40)],
                            *[request(1, "QUEUE_POP", i % 4) for i in range(20)]),
    "program-slow-reader": program(AUTO, request(0, "SET", 0, 48), slow(1, 60), request(1, "GET", 0),
                                   request(1, "GET", 0), request(0, "WAIT", 1, 2), slow(0, 0),
                                   request(1, "SET", 2, 1)),
}

NET = {
    "endpoint": "node1.example:29500",
    "endpoint-v6": "[2001:db8::1]:29500",
    "endpoint-bare-v6": "2001:db8::1",
    "endpoint-no-port": "node1",
    "endpoint-bad-port": "node1:65536",
    "endpoint-bad-brackets": "[::1]x:80",
    "endpoint-no-host": ":80",
    "address-v4": "192.0.2.1",
    "address-mapped": "::ffff:10.1.2.3",
    "address-scope": "fe80::1%lo",
    "address-longest": "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255",
    "network-v4": "10.0.0.0/8",
    "network-v6": "fd00::/8",
    "network-all": "::/0",
    "network-odd": "192.168.4.0/22",
    "network-bits-set": "10.0.0.1/8",
    "network-too-long": "10.0.0.0/33",
    "long": "h" * 300 + ":80",
}

FRAME_TYPES = "HELLO ATTACH GRANT KEEP REVOKE LOAD UNWATCH RANGE TXN WELCOME DONE KVS EVENTS STALE CHALLENGE".split()


def u32(number):
    return struct.pack("<I", number)


def string(value):
    return u32(len(value)) + value


def frame(kind, *fields):
    body = bytes([1 + FRAME_TYPES.index(kind), 0, 0, 0]) + u32(7) + b"".join(fields)
    return u32(len(body)) + body


def frame_step(who, action, data):
    """See fuzz_frames.c: 0 leaves, 1 lets 100 ms a byte pass, 2 ends a turn, 3 feeds."""
    return bytes([who + 3 * action, len(data)]) + data


def put(key, value, lease=0):
    return u32(0) + u64(lease) + string(key) + string(value)


def kv(key, value, lease=0):
    return u64(5) + u64(6) + u64(lease) + string(key) + string(value)


SECRET = string(b"0123456789abcdef")
NO_MARK, MARK = u64(0) + string(b"") + string(b""), u64(0) + string(b"n/1/killed") + string(b"{}")
HELLO = frame("HELLO", u32(1), u32(1), string(b"job"), string(b"node"), string(b""))
PROVEN = frame("HELLO", u32(1), u32(1), string(b"job"), string(b"node"), string(b"p" * 32))
GRANT = frame("GRANT", u64(9), u32(5000), u32(1), SECRET)
LOAD = frame("LOAD", u32(1), string(b"n"))
TXN = frame("TXN", u32(1), u32(0) + u64(0) + string(b"n/1"), u32(1), put(b"n/1", b"v", 9), u32(1),
            u32(2) + u64(0) + string(b"n") + string(b""))
FRAMES = {
    "hello": HELLO, "grant": GRANT, "load": LOAD, "txn": TXN,
    "attach": frame("ATTACH", u64(9)), "keep": frame("KEEP", u64(0)), "revoke": frame("REVOKE", u64(9), SECRET, NO_MARK),
    "unwatch": frame("UNWATCH", u32(1)), "range": frame("RANGE", u32(1), u32(0), string(b"")),
    "welcome": frame("WELCOME", u32(1), u64(2), u64(3), string(b"job"), string(b"host"), string(b"10.0.0.1")),
    "done": frame("DONE", u32(5), u32(0), u64(3), u32(0), string(b"no such lease")),
    "kvs": frame("KVS", u32(0), u64(3), u32(2), kv(b"a", b"1"), kv(b"b", b"", 9)),
    "events": frame("EVENTS", u32(1), u64(3), u32(2), u32(0) + u64(0) + kv(b"a", b"1"), u32(4) + u64(5000) + kv(b"b", b"")),
    "stale": frame("STALE", u32(1)),
    "challenge": frame("CHALLENGE", string(b"0123456789abcdef" * 2)),
    "program-proof": frame_step(0, 3, HELLO) + frame_step(0, 3, PROVEN) + frame_step(0, 3, GRANT) + frame_step(1, 3, PROVEN),
    "program-silent": frame_step(0, 3, HELLO) + frame_step(0, 3, GRANT) + frame_step(1, 3, HELLO) + frame_step(1, 3, LOAD)
    + frame_step(0, 3, TXN) + frame_step(0, 2, b"") + frame_step(0, 1, b"." * 50) + frame_step(0, 2, b""),
    "program-reset": frame_step(0, 3, HELLO) + frame_step(0, 3, GRANT) + frame_step(0, 3, TXN) + frame_step(0, 0, b"")
    + frame_step(1, 3, HELLO) + frame_step(1, 3, frame("ATTACH", u64(9))) + frame_step(1, 0, b"") + frame_step(1, 1, b"." * 15)
    + frame_step(1, 2, b""),
    "program-will": frame_step(0, 3, HELLO) + frame_step(0, 3, GRANT) + frame_step(0, 3, TXN)
    + frame_step(2, 3, frame("REVOKE", u64(9), SECRET, MARK)) + frame_step(2, 2, b""),
    "program-limit": frame_step(0, 3, HELLO) + frame_step(0, 3, GRANT) + frame_step(0, 3, TXN)
    + frame_step(0, 3, frame("TXN", u32(0), u32(2), put(b"n/0", b""), put(b"n/2", b""), u32(0)))
    + b"".join(frame_step(0, 3, frame("RANGE", u32(1), u32(limit), string(b"n/"))) for limit in (1, 2, 3, 1024, 1025))
    + frame_step(0, 2, b""),
    "program-halves": frame_step(0, 3, HELLO[:9]) + frame_step(0, 3, HELLO[9:] + GRANT[:20]) + frame_step(0, 3, GRANT[20:]),
}

EFFECTS = "LOAD UNWATCH RANGE TAKE_LEASE DROP_LEASE GRANT_JOB KEEP_JOB LOOK_AROUND UNMARK WRITE".split()
PASS, LINK, LOSE, THERE, END, BYTES, ASK, ANSWER = 0, 1, 2, 3, 4, 5, 8, 12


def client(*steps):
    """See fuzz_engine_store.c."""
    return b"".join(bytes([what, len(data)]) + data for what, data in steps)


def asks(effect, scope=0, repeatable=0):
    return ASK, bytes([EFFECTS.index(effect), scope, repeatable])


def answers(kind, how=16):
    return ANSWER, bytes([FRAME_TYPES.index(kind), how])


UP = [(LINK, b""), (THERE, b"")]
BEGIN = [asks("TAKE_LEASE"), asks("LOAD"), *UP, answers("HELLO"), answers("GRANT"), answers("LOAD", 20), asks("WRITE")]
AGAIN = [(LOSE, b""), (PASS, b"..."), *UP]
ENGINE_STORE = {
    "first": client(*BEGIN, answers("TXN", 18), answers("UNWATCH", 2), asks("KEEP_JOB"), answers("KEEP"), asks("RANGE"),
                    answers("RANGE", 21), answers("RANGE", 20), asks("GRANT_JOB"), answers("GRANT"), asks("LOOK_AROUND", 0, 2),
                    answers("TXN", 18), answers("RANGE", 21), answers("RANGE", 20), answers("RANGE", 20), asks("UNMARK"),
                    answers("TXN"), asks("DROP_LEASE"), answers("REVOKE"), asks("UNWATCH"), (END, b"")),
    "refused": client(*BEGIN, answers("TXN", 203), asks("WRITE"), answers("TXN", 206), asks("LOAD", 1), answers("LOAD", 206),
                      asks("GRANT_JOB"), answers("GRANT", 206), asks("KEEP_JOB"), answers("KEEP", 203)),
    "reset": client(*BEGIN, *AGAIN, answers("HELLO"), answers("ATTACH", 18), asks("WRITE"), asks("WRITE"), *AGAIN,
                    answers("HELLO"), answers("ATTACH", 19), (PASS, b"." * 12), answers("KEEP")),
    "lease-gone": client(*BEGIN, *AGAIN, answers("HELLO"), answers("ATTACH", 203), asks("TAKE_LEASE"), answers("GRANT", 206),
                         asks("TAKE_LEASE"), answers("GRANT")),
    "epoch": client(*BEGIN, *AGAIN, answers("HELLO", 64), answers("ATTACH", 203)),
    "silent": client(*BEGIN, (PASS, b"." * 40), *UP, (PASS, b"." * 60), (LINK, b""), (PASS, b"." * 60)),
    "no-engine": client(asks("TAKE_LEASE"), asks("LOAD"), (LINK, b""), (BYTES, b"\1")),
    "hello-refused": client(asks("TAKE_LEASE"), asks("LOAD"), *UP, answers("HELLO", 207), asks("LOAD"), (PASS, b"..."), *UP,
                            answers("HELLO", 206)),
    "dropped-meanwhile": client(*BEGIN, *AGAIN, answers("HELLO"), asks("DROP_LEASE"), answers("ATTACH"), (END, b"")),
    "ending": client(*BEGIN, (END, b""), answers("TXN"), answers("LOAD"), answers("REVOKE")),
}

for name, data in SESSION.items():
    (HERE / "corpus" / "session" / name).write_bytes(data)
for name, data in FRAMES.items():
    (HERE / "corpus" / "frames" / name).write_bytes(data)
for name, data in ENGINE_STORE.items():
    (HERE / "corpus" / "engine_store" / name).write_bytes(data)
for name, data in NET.items():
    (HERE / "corpus" / "net" / name).write_text(data)

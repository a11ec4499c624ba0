"""Every operation Python can see gives on our server what it gives on a stock one."""

import ast
import json

import pytest

import harness
import scenario
from harness import NEW, need_program

# The stock servers, each with the PyTorch it belongs to.
STOCK = {
    "1.13.1": ("1.13.1", {}),
    f"{NEW} libuv": (NEW, {"use_libuv": True}),
    f"{NEW} legacy": (NEW, {"use_libuv": False}),
}

# Which recordings tell what a conversation must have given, besides the stock server itself.
RECORDINGS = [
    ("1.13.1", "tcpstore-1.13.1.jsonl"),
    (f"{NEW} libuv", "tcpstore-2.11.0-libuv.jsonl"),
    (f"{NEW} libuv", "tcpstore-2.13.0-libuv.jsonl"),
    (f"{NEW} legacy", "tcpstore-2.13.0-legacy.jsonl"),
]


class Run:
    """One conversation: what the calls gave, and what passed for each of them."""

    def __init__(self, driver, port, modern, queues):
        pulse = harness.Pulse(port, modern)
        proxy = harness.Proxy(port)
        try:
            talk = scenario.Conversation(driver, proxy, pulse, queues)
            self.results = scenario.everything(talk)
            self.traffic = {}
            for chunk in proxy.chunks:
                key = (chunk.op, chunk.connection, chunk.direction)
                self.traffic[key] = self.traffic.get(key, b"") + chunk.data
        finally:
            proxy.stop()
            pulse.close()


@pytest.fixture(scope="module")
def runs(pool):
    """runs(stock, whose) is that conversation on a stock server or on ours, held once."""
    held = {}

    def hold(stock, whose):
        if (stock, whose) in held:
            return held[stock, whose]
        which, options = STOCK[stock]
        modern, queues = which != "1.13.1", options.get("use_libuv", False)
        client = pool.take(which)
        if whose == "muster":
            need_program()
            server = harness.MusterServer()
            try:
                held[stock, whose] = Run(client, server.port, modern, queues)
            finally:
                server.stop()
        else:
            host = pool.take(which)
            port = host.host(**options)
            held[stock, whose] = Run(client, port, modern, queues)
            pool.give_back(which, host)
        pool.give_back(which, client)
        return held[stock, whose]

    return hold


def unordered(label, result):
    """Names of keys come in no order."""
    if "list_keys" in label:
        return sorted(ast.literal_eval(result))
    return result


@pytest.mark.parametrize("stock", STOCK)
def test_every_call_returns_or_raises_what_it_does_on_the_stock_server(runs, stock):
    theirs, ours = runs(stock, "stock").results, runs(stock, "muster").results
    assert list(ours) == list(theirs)
    differences = {
        label: (theirs[label], ours[label]) for label in theirs
        if unordered(label, theirs[label]) != unordered(label, ours[label])
    }
    if stock == f"{NEW} legacy":
        # The only thing its server refuses: ours has queues for every client.
        assert ours["queue_len q"] == "1"
        del differences["queue_len q"]
    assert not differences


@pytest.mark.parametrize("stock", STOCK)
def test_the_bytes_of_every_call_are_those_of_the_stock_server(runs, stock):
    """Equal results could hide a reply too many; equal bytes cannot."""
    theirs, ours = runs(stock, "stock").traffic, runs(stock, "muster").traffic

    def comparable(traffic):
        kept = {}
        for (label, connection, direction), data in traffic.items():
            if label.startswith(("connect", "clone", "prefix clone")):
                # The process number of the client, there and back.
                data = len(data)
            elif "list_keys" in label and direction == "<":
                data = (len(data), bytes(sorted(data)))
            elif label == "queue_len q" and stock == f"{NEW} legacy":
                continue  # refused there, answered here
            kept[label, connection, direction] = data
        return kept

    assert comparable(ours) == comparable(theirs)


@pytest.mark.parametrize("stock, recording", RECORDINGS)
def test_every_call_gives_what_was_recorded(runs, stock, recording):
    """The recordings outlive the releases they were made with."""
    with open(harness.FIXTURES / recording, encoding="utf-8") as lines:
        recorded = json.loads(lines.readline())["results"]
    ours = runs(stock, "muster").results
    compared = 0
    for label, result in recorded.items():
        if result == "absent in this version":
            assert label not in ours
            continue
        if stock == f"{NEW} legacy" and label.startswith("queue"):
            continue  # refused there, answered here
        assert unordered(label, ours[label]) == unordered(label, result), label
        compared += 1
    assert compared > 15


REFUSALS = {
    "add to text": ("abc", "add", ("refused", 1)),
    "add to nothing": ("", "add", ("refused", 1)),
    "add to a number too long": ("99999999999999999999", "add", ("refused", 1)),
    "barrier at text": ("abc", "barrier", ("refused", 2)),
    "barrier at nothing": ("", "barrier", ("refused", 2)),
}


@pytest.mark.parametrize("stock", STOCK)
def test_a_refused_call_raises_what_it_does_on_the_stock_server(torch, muster, stock):
    """There are no error replies: the connection ends, and only that one."""
    which, options = STOCK[stock]
    host, client = torch(which), torch(which)
    given = {}
    for whose, port in (("stock", host.host(**options)), ("muster", muster.port)):
        client.open("witness", port)
        for number, (what, (value, name, args)) in enumerate(REFUSALS.items()):
            if which == "1.13.1" and name == "barrier":
                continue
            victim = f"victim {number}"
            client.open(victim, port)
            client.call("witness", "set", "refused", value)
            client.call("witness", "get", "refused")
            given[whose, what] = (
                client.call(victim, name, *args),
                client.call("witness", "get", "refused"),
            )
    for what in REFUSALS:
        if ("stock", what) in given:
            assert given["muster", what] == given["stock", what], what
            assert "Error" in given["muster", what][0]


SIZES = [1, 1430, 1439, 1440, 1441, 4096, 65535, 65536, 1 << 20, 8 << 20]


@pytest.mark.parametrize("which", ["1.13.1", NEW])
def test_values_of_any_size_come_back_whole(torch, muster, which):
    """Newer clients flush every 1440 bytes and older ones send the code byte alone."""
    client = torch(which)
    client.open("a", muster.port)
    for size in SIZES:
        value = ("0123456789abcde" * (size // 15 + 1))[:size]
        assert client.call("a", "set", "big", value) == "None"
        assert client.call("a", "get", "big") == repr(value.encode()), size
    key = "k" * 8191
    assert client.call("a", "set", key, "long name") == "None"
    assert client.call("a", "get", key) == "b'long name'"

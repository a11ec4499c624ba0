"""Every store operation Python can see, as one fixed conversation.

The recorder runs it against stock servers to write the recordings; the tests run it
against a stock server and against ours and compare.  The first part keeps the order and
the labels of the older recordings, so that their results can be compared as well.
"""

from harness import seconds

SHORT = seconds(0.5)

# Calls that may return before their request has arrived anywhere, for nothing answers it.
UNANSWERED = ("set", "append", "multi_set", "multi_get", "queue_push")


class Conversation:
    """Runs labelled steps of one driver through a proxy and keeps what each one gave."""

    def __init__(self, driver, proxy, pulse, queues=True):
        self.driver = driver
        self.proxy = proxy
        self.pulse = pulse
        self.queues = queues
        self.modern = not driver.version.startswith("1.")
        self.results = {}

    def label(self, text):
        """What follows on the wire belongs to this step."""
        self.proxy.settle()
        self.proxy.label = text

    def step(self, text, store, name, *args, **kwargs):
        self.label(text)
        before = len(self.proxy.requests)
        answer = self.driver.begin(store, name, *args, **kwargs)
        self.results[text] = answer.result()
        if answer.ok and name in UNANSWERED:
            self.proxy.await_request(lambda requests: len(requests) > before)

    def park(self, text, store, name, *args, **kwargs):
        """Starts a call that is to block and returns once the server has its request."""
        self.label(text)
        before = len(self.proxy.requests)
        answer = self.driver.begin(store, name, *args, **kwargs)
        self.proxy.await_request(lambda requests: len(requests) > before)
        self.pulse.beat()
        self.results[text] = "parked"
        return answer

    def open(self, text, store, *args, **kwargs):
        self.label(text)
        self.driver.open(store, self.proxy.port, *args, **kwargs)


def values(talk):
    """Single keys: the order and labels of the older recordings."""
    talk.open("connect wait_for_workers=False", "a")
    talk.step("set k=v1", "a", "set", "k", "v1")
    talk.step("get k", "a", "get", "k")
    talk.step("add c 5", "a", "add", "c", 5)
    talk.step("add c -7", "a", "add", "c", -7)
    talk.step("get c", "a", "get", "c")
    talk.step("compare_set missing empty-expected", "a", "compare_set", "m", "", "new")
    talk.step("compare_set missing nonempty-expected", "a", "compare_set", "m2", "x", "new")
    talk.step("compare_set match", "a", "compare_set", "k", "v1", "v2")
    talk.step("compare_set mismatch", "a", "compare_set", "k", "v1", "v3")
    talk.step("check [k,zz]", "a", "check", ["k", "zz"])
    talk.step("check [k]", "a", "check", ["k"])
    talk.step("wait [k]", "a", "wait", ["k"])
    talk.step("wait [zz] timeout 0.5", "a", "wait", ["zz"], SHORT)
    talk.step("get after cancel", "a", "get", "k")
    talk.step("num_keys", "a", "num_keys")
    talk.step("delete k", "a", "delete_key", "k")
    talk.step("delete k again", "a", "delete_key", "k")


def many(talk):
    """APPEND and the requests for several keys, which 1.13 does not have."""
    talk.step("append a 1", "a", "append", "a", "one")
    talk.step("append a 2", "a", "append", "a", "two")
    talk.step("multi_set", "a", "multi_set", ["x", "y"], ["1", "2"])
    talk.step("multi_get", "a", "multi_get", ["x", "y"])


def queues(talk, store):
    talk.step("queue_push q a", store, "queue_push", "q", "a")
    talk.step("queue_len q", store, "queue_len", "q")
    if not talk.queues:
        return  # that request has cost the connection
    talk.step("queue_pop q", store, "queue_pop", "q")
    talk.step("queue_pop q nonblock", store, "queue_pop", "q", False)
    talk.step("queue set_timeout 0.5", store, "set_timeout", SHORT)
    talk.step("queue_pop q timeout", store, "queue_pop", "q")
    talk.step("queue set_timeout 60", store, "set_timeout", seconds(60))


def more_queues(talk):
    """Order, and what the other operations think of a queue's name."""
    for item in ("1", "2", ""):
        talk.step(f"queue_push fifo {item}", "a", "queue_push", "fifo", item)
    talk.step("queue_len fifo", "a", "queue_len", "fifo")
    talk.step("queue_len of no queue", "a", "queue_len", "nothing")
    talk.step("check of a queue", "a", "check", ["fifo"])
    talk.step("wait for a queue", "a", "wait", ["fifo"], SHORT)
    talk.step("num_keys without queues", "a", "num_keys")
    talk.step("delete of a queue", "a", "delete_key", "fifo")
    for turn in ("first", "second", "third"):
        talk.step(f"queue_pop fifo {turn}", "a", "queue_pop", "fifo")
    talk.step("check of an emptied queue", "a", "check", ["fifo"])
    blocked = talk.park("queue_pop blocks", "b", "queue_pop", "later")
    talk.step("queue_push wakes the pop", "a", "queue_push", "later", "now")
    talk.results["queue_pop woken"] = blocked.result()


def edges(talk):
    """Odd values and names that are nevertheless legal."""
    talk.step("set empty", "a", "set", "empty", "")
    talk.step("get empty", "a", "get", "empty")
    talk.step("compare_set of an empty value", "a", "compare_set", "empty", "", "full")
    talk.step("set bytes", "a", "set", "bytes", {"bytes": "00ff0a0080"})
    talk.step("get bytes", "a", "get", "bytes")
    talk.step("set named in UTF-8", "a", "set", "gr\u00fc\u00dfe/\u4e16", "w")
    talk.step("get named in UTF-8", "a", "get", "gr\u00fc\u00dfe/\u4e16")
    talk.step("set empty name", "a", "set", "", "nameless")
    talk.step("get empty name", "a", "get", "")
    talk.step("add zero creates", "a", "add", "zero", 0)
    talk.step("get of an added zero", "a", "get", "zero")
    for text in ("12abc", " 7", "+5", "0x10", "7.9", "-3", "9223372036854775807"):
        talk.step(f"set number {text}", "a", "set", "number", text)
        talk.step(f"add 1 to {text}", "a", "add", "number", 1)
        talk.step(f"get {text} plus 1", "a", "get", "number")
    talk.step("add the smallest", "a", "add", "low", -2**63)
    talk.step("add wraps below", "a", "add", "low", -1)
    talk.step("wait for no key", "a", "wait", [])
    talk.step("wait names a key twice", "a", "wait", ["zero", "zero"])
    talk.step("wait partly missing", "a", "wait", ["zero", "nope", "never"], SHORT)
    if talk.modern:
        talk.step("check no key", "a", "check", [])
        talk.step("multi_get one missing", "a", "set_timeout", SHORT)
        talk.step("multi_get times out", "a", "multi_get", ["x", "gone"])
        talk.step("multi_get of nothing", "a", "multi_get", [])
        talk.step("multi_set of nothing", "a", "multi_set", [], [])
        talk.step("multi_set uneven", "a", "multi_set", ["p"], [])
        talk.step("multi_set repeats a key", "a", "multi_set", ["p", "p"], ["1", "2"])
        talk.step("get repeated key", "a", "get", "p")
    talk.step("set_timeout", "a", "set_timeout", seconds(60))
    talk.step("default timeout", "a", "set_timeout", seconds(0.25))
    talk.step("wait with the default timeout", "a", "wait", ["nope"])
    talk.step("default timeout restored", "a", "set_timeout", seconds(60))


def waking(talk):
    """A wait is released by another connection's write, once every key has been written."""
    parked = talk.park("wait parks", "b", "wait", ["w1", "w2"])
    talk.step("set wakes half", "a", "set", "w1", "x")
    talk.step("delete does not undo it", "a", "delete_key", "w1")
    talk.step("add wakes the rest", "a", "add", "w2", 1)
    talk.results["wait woken"] = parked.result()
    parked = talk.park("get parks", "b", "get", "w3")
    talk.step("set feeds the get", "a", "set", "w3", "y")
    talk.results["get woken"] = parked.result()
    if talk.modern:
        parked = talk.park("wait parks for append", "b", "wait", ["w4"])
        talk.step("append wakes", "a", "append", "w4", "z")
        talk.results["append woken"] = parked.result()
        parked = talk.park("wait parks for multi_set", "b", "wait", ["w5", "w6"])
        talk.step("multi_set wakes", "a", "multi_set", ["w5", "w6"], ["1", "2"])
        talk.results["multi_set woken"] = parked.result()


def barriers(talk):
    """BARRIER: complete, reused, odd sizes, timed out, seen by WAIT, released by a write."""
    talk.step("barrier of 1", "a", "barrier", "b1", 1)
    talk.step("get barrier of 1", "a", "get", "b1")
    talk.step("barrier of 1 reused", "a", "barrier", "b1", 1)
    talk.step("get barrier of 1 reused", "a", "get", "b1")
    for size in (0, -1):
        talk.step(f"barrier of {size}", "a", "barrier", f"size{size}", size)
        talk.step(f"get barrier of {size}", "a", "get", f"size{size}")

    first = talk.park("barrier of 3, first", "a", "barrier", "b3", 3)
    second = talk.park("barrier of 3, second", "b", "barrier", "b3", 3)
    talk.step("get barrier under way", "c", "get", "b3")
    talk.step("barrier of 3, last", "c", "barrier", "b3", 3)
    talk.results["barrier of 3 woken"] = [first.result(), second.result()]
    talk.step("get barrier of 3", "c", "get", "b3")
    talk.step("barrier of 3 reused", "a", "barrier", "b3", 3)
    talk.step("get barrier of 3 reused", "a", "get", "b3")

    talk.step("barrier times out", "a", "barrier", "bt", 2, timeout=SHORT)
    talk.step("get barrier that timed out", "a", "get", "bt")
    talk.step("barrier counts the one that gave up", "a", "barrier", "bt", 2, timeout=SHORT)
    talk.step("barrier timeout of 0", "a", "barrier", "bt0", 2, timeout=seconds(0))
    talk.step("barrier default timeout", "a", "set_timeout", seconds(0.25))
    talk.step("barrier with the default timeout", "a", "barrier", "btd", 2)
    talk.step("barrier default restored", "a", "set_timeout", seconds(60))

    early = talk.park("wait before the first arrival", "c", "wait", ["bw"])
    arrived = talk.park("barrier arrives after the wait", "a", "barrier", "bw", 2)
    talk.step("wait after the first arrival", "b", "wait", ["bw"])
    talk.results["wait before still waits"] = not early.done()
    talk.step("barrier completes after the wait", "b", "barrier", "bw", 2)
    talk.results["barrier and wait woken"] = [arrived.result(), early.result()]

    for name, args in (("set", ["9"]), ("set", ["x"]), ("add", [0]), ("append", ["7"])):
        key = f"br-{name}-{args[0]}"
        parked = talk.park(f"barrier parks for {name} {args[0]}", "a", "barrier", key, 5)
        talk.step(f"{name} {args[0]} releases a barrier", "b", name, key, *args)
        talk.results[f"barrier released by {name} {args[0]}"] = parked.result()
        talk.step(f"get after {name} {args[0]}", "b", "get", key)

    parked = talk.park("barrier of 3 parks", "a", "barrier", "mix", 3)
    talk.step("barrier of 2 releases it", "b", "barrier", "mix", 2)
    talk.results["barrier of 3 released"] = parked.result()

    parked = talk.park("barrier parks before delete", "a", "barrier", "bd", 2, timeout=SHORT)
    talk.step("delete of a barrier", "b", "delete_key", "bd")
    talk.results["barrier deleted times out"] = parked.result()
    talk.step("barrier begins anew", "b", "barrier", "bd", 2, timeout=SHORT)
    talk.step("set text at a barrier", "b", "set", "btext", "12abc")
    talk.step("barrier parses what it finds", "b", "barrier", "btext", 13)
    talk.step("get barrier with text", "b", "get", "btext")


def prefixes(talk):
    """Prefix stores only change names, except that a barrier becomes other requests."""
    talk.driver.prefix("p", "pre", "a")
    talk.driver.prefix("pp", "in", "p")
    talk.driver.prefix("slash", "", "a")
    talk.step("prefix store", "p", "set", "pk", "pv")
    talk.step("prefix get", "p", "get", "pk")
    talk.step("prefix seen plainly", "a", "get", "pre/pk")
    talk.step("prefix nested set", "pp", "set", "x", "deep")
    talk.step("prefix nested seen plainly", "a", "get", "pre/in/x")
    talk.step("prefix empty set", "slash", "set", "x", "slashed")
    talk.step("prefix empty seen plainly", "a", "get", "/x")
    talk.step("prefix add", "pp", "add", "n", 2)
    talk.step("prefix compare_set", "pp", "compare_set", "x", "deep", "deeper")
    talk.step("prefix wait", "pp", "wait", ["x", "n"])
    talk.step("prefix wait timeout", "pp", "wait", ["x", "nope"], SHORT)
    talk.step("prefix num_keys", "pp", "num_keys")
    talk.step("prefix delete", "pp", "delete_key", "n")
    if not talk.modern:
        return
    talk.step("prefix check", "pp", "check", ["x"])
    talk.step("prefix append", "pp", "append", "x", "!")
    talk.step("prefix multi_set", "pp", "multi_set", ["m1", "m2"], ["1", "2"])
    talk.step("prefix multi_get", "pp", "multi_get", ["m1", "m2"])
    talk.step("prefix list_keys", "p", "list_keys")
    talk.step("prefix nested list_keys", "pp", "list_keys")
    talk.step("prefix has_extended_api", "pp", "has_extended_api")
    talk.step("prefix barrier of 1", "pp", "barrier", "pb", 1)
    talk.step("prefix barrier of 1 reused", "pp", "barrier", "pb", 1)
    talk.step("prefix barrier of 0", "pp", "barrier", "pb0", 0, timeout=SHORT)
    talk.step("prefix barrier times out", "pp", "barrier", "pb2", 2, timeout=SHORT)
    if talk.queues:
        talk.step("prefix queue_push", "pp", "queue_push", "q", "e")
        talk.step("prefix queue_len", "pp", "queue_len", "q")
        talk.step("prefix queue_pop", "pp", "queue_pop", "q")
    talk.label("prefix clone")
    talk.results["prefix clone"] = talk.driver.clone("ppc", "pp")
    talk.step("prefix clone get", "ppc", "get", "x")


def everything(talk):
    """The whole conversation; the results are in talk.results."""
    values(talk)
    if talk.modern:
        many(talk)
        if talk.queues:
            queues(talk, "a")
        talk.step("list_keys", "a", "list_keys")
    talk.step("get missing set_timeout", "a", "set_timeout", SHORT)
    talk.step("get missing timeout", "a", "get", "never")
    talk.step("get missing restored", "a", "set_timeout", seconds(60))
    talk.open("connect wait_for_workers=True world=1", "b", 1, wait_for_workers=True)
    talk.open("connect third", "c")
    if talk.modern:
        talk.step("has_extended_api", "a", "has_extended_api")
        talk.label("clone")
        talk.results["clone"] = talk.driver.clone("d", "a")
        talk.step("set by a clone", "d", "set", "cloned", "yes")
        talk.step("get from a clone", "d", "get", "cloned")
    edges(talk)
    if not talk.modern:
        # A wait that timed out leaves this client with a reply too many to come.
        talk.open("connect afresh", "a")
        talk.open("connect afresh as well", "b")
    waking(talk)
    if talk.modern:
        if talk.queues:
            more_queues(talk)
        barriers(talk)
    prefixes(talk)
    if talk.modern and not talk.queues:
        talk.open("connect for queues", "e")
        queues(talk, "e")
    talk.label("end")
    return talk.results

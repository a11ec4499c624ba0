"""An old and a new PyTorch on one port at once, sharing keys."""

import pytest

from harness import NEW, seconds

PAIRS = [("1.13.1", NEW), (NEW, "1.13.1")]


@pytest.fixture
def two(torch, muster, proxies, pulses):
    """two(a, b) are the stores "a" and "b" of these versions, and a way to park a call."""
    pulse = pulses(muster.port)

    def make(first, second):
        one, other = torch(first), torch(second)
        proxy = proxies(muster.port)
        one.open("a", proxy.port)
        other.open("b", muster.port)

        def park(name, *args, **kwargs):
            proxy.settle()
            before = len(proxy.requests)
            answer = one.begin("a", name, *args, **kwargs)
            proxy.await_request(lambda requests: len(requests) > before)
            pulse.beat()
            return answer

        return one, other, park

    return make


@pytest.mark.parametrize("first, second", PAIRS)
def test_what_one_version_writes_the_other_reads(two, first, second):
    one, other, _ = two(first, second)
    one.call("a", "set", "text", "hello")
    assert one.call("a", "num_keys") == "1"  # the set has been carried out
    assert other.call("b", "get", "text") == "b'hello'"
    assert one.call("a", "add", "count", 40) == "40"
    assert other.call("b", "add", "count", 2) == "42"
    assert one.call("a", "get", "count") == "b'42'"
    assert other.call("b", "compare_set", "text", "hello", "bye") == "b'bye'"
    assert one.call("a", "compare_set", "text", "hello", "lost") == "b'bye'"
    assert one.call("a", "delete_key", "text") == "True"
    assert other.call("b", "delete_key", "text") == "False"
    assert other.call("b", "num_keys") == "1"


@pytest.mark.parametrize("first, second", PAIRS)
@pytest.mark.parametrize("name, args", [
    ("set", ["woken", "x"]), ("add", ["woken", 0]), ("compare_set", ["woken", "", "x"]),
])
def test_a_write_in_one_version_wakes_a_wait_in_the_other(two, first, second, name, args):
    """Creating by compare_set too, which a stock 1.13.1 server forgets to do."""
    one, other, park = two(first, second)
    waiting = park("wait", ["woken"], seconds(60))
    assert not waiting.done()
    other.call("b", name, *args)
    assert waiting.result() == "None"


@pytest.mark.parametrize("first, second", PAIRS)
def test_a_get_in_one_version_blocks_until_the_other_writes(two, first, second):
    one, other, park = two(first, second)
    getting = park("get", "soon")
    assert not getting.done()
    other.call("b", "set", "soon", "now")
    assert getting.result() == "b'now'"


def test_requests_only_the_new_version_has_wake_the_old_one(two):
    _, new, park = two("1.13.1", NEW)
    waiting = park("wait", ["appended"], seconds(60))
    new.call("b", "append", "appended", "x")
    assert waiting.result() == "None"
    waiting = park("wait", ["one", "two"], seconds(60))
    new.call("b", "multi_set", ["one", "two"], ["1", "2"])
    assert waiting.result() == "None"
    waiting = park("wait", ["gate"], seconds(60))
    assert new.call("b", "barrier", "gate", 1) == "None"
    assert waiting.result() == "None"


def test_a_write_of_the_old_version_releases_a_barrier_of_the_new_one(two):
    """What a barrier stores is an ordinary decimal key, so an old client can take part."""
    _, old, park = two(NEW, "1.13.1")
    arrived = park("barrier", "gate", 2)
    assert old.call("b", "get", "gate") == "b'1'"
    assert old.call("b", "add", "gate", 1) == "2"
    assert arrived.result() == "None"


def test_both_versions_count_on_one_key_without_losing_any(torch, muster):
    old, new = torch("1.13.1"), torch(NEW)
    stores = []
    for driver in (old, new):
        for name in ("a", "b"):
            driver.open(name, muster.port)
            stores.append((driver, name))
    answers = [driver.begin(name, "add", "sum", 1) for _ in range(100) for driver, name in stores]
    assert sorted(int(answer.result()) for answer in answers) == list(range(1, 401))
    assert old.call("a", "get", "sum") == new.call("a", "get", "sum") == "b'400'"


def test_both_versions_are_counted_as_workers(torch, muster):
    """A client told a world size adds itself to the same key whatever its version."""
    old, new = torch("1.13.1"), torch(NEW)
    old.open("a", muster.port, 2, wait_for_workers=True)
    new.open("b", muster.port, 2, wait_for_workers=True)
    assert new.call("b", "num_keys") == "1"
    assert new.call("b", "list_keys") == "[]"  # the counter is no key of the users'

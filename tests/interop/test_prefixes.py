"""Prefix stores put text in front of names and nothing else, however deep."""

import ast

import pytest

from harness import NEW

BOTH = ["1.13.1", NEW]


def nest(driver, prefixes):
    """Stacks prefix stores on "a" and gives the name of the innermost."""
    over = "a"
    for depth, prefix in enumerate(prefixes):
        name = f"p{depth}"
        driver.prefix(name, prefix, over)
        over = name
    return over


@pytest.mark.parametrize("which", BOTH)
@pytest.mark.parametrize("prefixes, plain", [
    (["one"], "one/k"),
    (["one", "two", "three"], "one/two/three/k"),
    ([""], "/k"),
    (["", ""], "//k"),
    (["/worker/attempt_0"], "/worker/attempt_0/k"),
    (["default_pg", "0//cpu//"], "default_pg/0//cpu///k"),
])
def test_a_prefixed_key_is_a_plain_key_with_a_longer_name(torch, muster, which, prefixes, plain):
    driver = torch(which)
    driver.open("a", muster.port)
    inner = nest(driver, prefixes)
    driver.call(inner, "set", "k", "v")
    assert driver.call("a", "get", plain) == "b'v'"
    assert driver.call(inner, "add", "n", 3) == "3"
    assert driver.call("a", "add", plain[:-1] + "n", 4) == "7"
    assert driver.call(inner, "wait", ["k", "n"]) == "None"
    assert driver.call(inner, "num_keys") == driver.call("a", "num_keys") == "2"
    assert driver.call(inner, "delete_key", "k") == "True"
    assert driver.call("a", "num_keys") == "1"


@pytest.mark.parametrize("writer, reader", [("1.13.1", NEW), (NEW, "1.13.1")])
def test_equal_prefixes_of_both_versions_meet(torch, muster, writer, reader):
    one, other = torch(writer), torch(reader)
    inner = {}
    for driver in (one, other):
        driver.open("a", muster.port)
        inner[driver] = nest(driver, ["job", "round"])
    one.call(inner[one], "set", "addr", "here")
    assert other.call(inner[other], "get", "addr") == "b'here'"
    assert other.call(inner[other], "compare_set", "addr", "here", "there") == "b'there'"
    assert one.call(inner[one], "get", "addr") == "b'there'"


def test_list_keys_of_a_prefix_shows_its_own_keys_only(torch, muster):
    driver = torch(NEW)
    driver.open("a", muster.port)
    driver.prefix("p", "pre", "a")
    driver.prefix("q", "other", "a")
    for store, key in (("a", "plain"), ("p", "x"), ("p", "y"), ("q", "z")):
        driver.call(store, "set", key, "1")

    def names(store):
        return sorted(ast.literal_eval(driver.call(store, "list_keys")))

    assert names("p") == ["x", "y"]
    assert names("q") == ["z"]
    assert names("a") == ["other/z", "plain", "pre/x", "pre/y"]


def test_a_barrier_behind_a_prefix_completes(torch, muster, proxies):
    """There it is made of other requests: a counter, and a key the last one writes."""
    driver = torch(NEW)
    proxy = proxies(muster.port)
    for number in range(3):
        driver.open(f"a{number}", proxy.port)
        driver.prefix(f"p{number}", "pre", f"a{number}")
    arrivals = [driver.begin(f"p{number}", "barrier", "gate", 3) for number in range(3)]
    assert [arrival.result() for arrival in arrivals] == ["None"] * 3
    counted = proxy.count()
    assert "BARRIER" not in counted
    assert (counted["ADD"], counted["SET"], counted["WAIT"]) == (3, 1, 3)

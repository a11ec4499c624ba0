"""A timeout is the client's own; the connection must be as good afterwards as before."""

import pytest

from harness import NEW, seconds

BOTH = ["1.13.1", NEW]


@pytest.mark.parametrize("which", BOTH)
def test_a_connection_is_usable_after_a_wait_that_timed_out(torch, muster, pulses, which):
    """The key is written after the client has moved on: no late reply may reach it.

    1.13 sends nothing when it gives up, so the server learns of it from the next request;
    on a stock 1.13.1 server the late reply makes every later answer a wrong one.
    """
    client, pulse = torch(which), pulses(muster.port)
    client.open("a", muster.port)
    client.open("b", muster.port)
    timeout = client.call("a", "wait", ["late"], seconds(0.3))
    expected = {"1.13.1": "RuntimeError: Socket Timeout",
                NEW: "DistStoreError: wait timeout after 300ms, keys: /late"}
    assert timeout == expected[which]
    assert client.call("a", "num_keys") == "0"
    client.call("b", "set", "late", "x")
    pulse.beat()
    for _ in range(3):
        assert client.call("a", "num_keys") == "1"
    assert client.call("a", "get", "late") == "b'x'"


@pytest.mark.parametrize("which", BOTH)
def test_a_connection_is_usable_after_a_get_that_timed_out(torch, muster, pulses, which):
    client, pulse = torch(which), pulses(muster.port)
    client.open("a", muster.port)
    client.open("b", muster.port)
    client.call("a", "set_timeout", seconds(0.3))
    assert "imeout" in client.call("a", "get", "late")
    client.call("a", "set_timeout", seconds(60))
    assert client.call("a", "add", "count", 1) == "1"
    client.call("b", "set", "late", "x")
    pulse.beat()
    assert client.call("a", "num_keys") == "2"
    assert client.call("a", "get", "late") == "b'x'"


def test_a_key_written_before_the_client_has_moved_on_disturbs_no_new_client(
        torch, muster, pulses):
    """From 2.1 on a client takes its wait back, so the order does not matter to it."""
    client, pulse = torch(NEW), pulses(muster.port)
    client.open("a", muster.port)
    client.open("b", muster.port)
    assert "timeout" in client.call("a", "wait", ["late"], seconds(0.3))
    client.call("b", "set", "late", "x")
    pulse.beat()
    for _ in range(3):
        assert client.call("a", "num_keys") == "1"


def test_waits_that_race_with_the_write_leave_the_connection_in_step(torch, muster):
    """The cancellation may cross the wake-up on its way: two replies, then order again."""
    client = torch(NEW)
    client.open("a", muster.port)
    client.open("b", muster.port)
    for turn in range(200):
        waiting = client.begin("a", "wait", [f"k{turn}"], seconds(0.001))
        writing = client.begin("b", "set", f"k{turn}", "x")
        assert writing.result() == "None"
        assert waiting.result() in (
            "None", f"DistStoreError: wait timeout after 1ms, keys: /k{turn}")
        assert client.call("a", "num_keys") == str(turn + 1)


def test_barriers_that_race_with_the_last_arrival_leave_the_connection_in_step(torch, muster):
    client = torch(NEW)
    client.open("a", muster.port)
    client.open("b", muster.port)
    for turn in range(200):
        waiting = client.begin("a", "barrier", f"k{turn}", 2, timeout=seconds(0.001))
        last = client.begin("b", "barrier", f"k{turn}", 2)
        if "timeout" in waiting.result():
            # Whoever gave up is still counted, so the other gets through all the same.
            assert waiting.result() == f"DistStoreError: barrier timeout after 1ms, key: k{turn}"
        assert last.result() == "None"
        assert client.call("a", "get", f"k{turn}") == "b'2'"


@pytest.mark.parametrize("which", BOTH)
def test_a_blocked_call_fails_as_on_the_stock_server_when_the_server_ends(
        torch, muster, proxies, pool, which):
    """Nothing hangs: the end of the server ends every wait on it, with the same words."""
    client = torch(which)
    host = pool.take(which)
    said = {}
    try:
        for whose, port, end in (("stock", host.host(), host.process.kill),
                                 ("muster", muster.port, muster.process.terminate)):
            proxy = proxies(port)
            client.open(whose, proxy.port)
            waiting = client.begin(whose, "wait", ["never"])
            proxy.await_request(lambda requests: any(r[1] == "WAIT" for r in requests))
            proxy.settle()
            assert not waiting.done()
            end()
            said[whose] = waiting.result()
    finally:
        host.stop()
    assert said["muster"] == said["stock"]
    assert "Error" in said["muster"]

"""Unmodified gloo groups come up through our store, with the traffic they have on stock's."""

import json
import os
import signal
import subprocess

import pytest

import harness
from harness import NEW

LIMIT = 150


def run_group(python, port, world):
    """Runs a group to its end; its processes are one process group, so none is left over."""
    environment = harness.quiet_environment({
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
        # The store is someone else's: no rank shall host one.
        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
    })
    group = subprocess.Popen(
        [python, str(harness.HERE / "pg_worker.py"), str(world)], env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output, errors = group.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(group.pid, signal.SIGKILL)
        output, errors = group.communicate(timeout=20)
        pytest.fail(f"the group did not end within {LIMIT} s:\n{output}{errors}")
    assert group.returncode == 0, output + errors
    assert output.splitlines()[-1] == "done"


def totals(proxy):
    """Requests by name, with the polling of 1.13's barrier apart."""
    counted = {}
    for _, name, fields in proxy.requests:
        if name == "ADD" and fields[1] == 0:
            name = "poll"
        counted[name] = counted.get(name, 0) + 1
    return counted


def bring_up(torch, muster, proxies, which, world):
    torch(which)  # skips where this version is absent
    proxy = proxies(muster.port)
    run_group(harness.interpreter(which), proxy.port, world)
    proxy.await_end()
    return proxy


@pytest.mark.parametrize("world", [2, 4, 8])
def test_a_group_of_1_13_comes_up_with_its_usual_requests(torch, muster, proxies, world):
    """Four requests a pair of ranks and a few each; nothing is asked twice."""
    proxy = bring_up(torch, muster, proxies, "1.13.1", world)
    counted = totals(proxy)
    polls = counted.pop("poll")
    assert polls >= world
    pairs = world * (world - 1)
    assert counted == {
        "ADD": 2 * world,
        "SET": 2 * world + 1,
        "GET": 3 * pairs // 2 + world - 1,
        "WAIT": 5 * pairs // 2 + 2 * (world - 1),
    }
    assert sum(counted.values()) == 4 * world * world + 3 * world - 2
    assert proxy.connections == 2 * world


@pytest.mark.parametrize("world", [2, 4, 8])
def test_a_group_of_2_13_comes_up_with_the_recorded_requests(torch, muster, proxies, world):
    proxy = bring_up(torch, muster, proxies, NEW, world)
    with open(harness.FIXTURES / "pg-init-gloo-2.11.0.json", encoding="utf-8") as recording:
        recorded = next(one for one in json.load(recording) if one["world"] == world)
    assert totals(proxy) == recorded["by_op"]
    assert proxy.connections == recorded["connections"]
    counts = {}
    for connection, _, _ in proxy.requests:
        counts[connection] = counts.get(connection, 0) + 1
    assert sorted(counts.values()) == sorted(recorded["ops_per_conn"])


def test_groups_of_both_versions_follow_each_other_on_one_server(torch, muster, proxies):
    """The old one prefixes its keys, so the two do not meet each other's addresses.

    They do share the count of workers, which only a hosting rank would read.
    """
    for which in ("1.13.1", NEW):
        bring_up(torch, muster, proxies, which, 2)

"""`muster run --numa-binding` on this machine's own CPUs. The GPUs, and where that matters the NUMA nodes, are files that
only the launcher sees, in a mount namespace of its own."""

import os
import pathlib
import subprocess

import pytest

from serving import MUSTER

ALLOWED = sorted(os.sched_getaffinity(0))
NODES = pathlib.Path("/sys/devices/system/node")
CPUS = pathlib.Path("/sys/devices/system/cpu")
SHOW = 'grep -h Cpus_allowed_list: /proc/self/status | cut -f2 > $STAGE/cpus.$RANK.$TORCHELASTIC_RESTART_COUNT'


def numbers(text):
    found = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def node_of_ours():
    """A NUMA node that has a CPU for us, and its CPUs."""
    for path in sorted(NODES.glob("node[0-9]*")):
        cpus = sorted(set(numbers((path / "cpulist").read_text())) & set(ALLOWED))
        if cpus:
            return int(path.name.removeprefix("node")), cpus
    return None, None


@pytest.fixture
def machine(scene, absent):
    """machine(nodes of the GPUs, CPUs of the NUMA nodes): the words that start the launcher on it."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "--propagation", "private", "mount", "--bind", "/etc", "/etc"],
                                           capture_output=True, check=False).returncode != 0:
        absent("cannot mount")
    if not pathlib.Path("/sys/bus/pci/devices").is_dir() or not pathlib.Path("/proc/driver").is_dir():
        absent("no place for GPUs")

    def make(gpus, nodes=None):
        driver, pci, sets = scene.path / "driver", scene.path / "pci", scene.path / "nodes"
        (driver / "nvidia/gpus").mkdir(parents=True)
        pci.mkdir()
        mounts = [(driver, "/proc/driver"), (pci, "/sys/bus/pci/devices")]
        for number, node in enumerate(gpus):
            (driver / f"nvidia/gpus/0000:0{number + 1}:00.0").mkdir()
            (pci / f"0000:0{number + 1}:00.0").mkdir()
            (pci / f"0000:0{number + 1}:00.0/numa_node").write_text(f"{node}\n")
        for number, cpus in enumerate(nodes or []):
            (sets / f"node{number}").mkdir(parents=True)
            (sets / f"node{number}/cpulist").write_text(",".join(map(str, cpus)) + "\n")
            (sets / "online").write_text(f"0-{number}\n")
            (sets / "has_memory").write_text("\n")
        if nodes:
            mounts.append((sets, str(NODES)))
        script = " && ".join(f"mount --bind {source} {target}" for source, target in mounts)
        return ("unshare", "-m", "--propagation", "private", "sh", "-c", f'{script} && exec "$0" "$@"', MUSTER, "run")
    return make


def cpus(scene, rank, count=0):
    return numbers((scene.stage / f"cpus.{rank}.{count}").read_text())


def test_workers_run_on_the_cpus_of_their_gpu_s_node(scene, machine, absent):
    node, expected = node_of_ours()
    if node is None:
        absent("the kernel lists no NUMA nodes")
    script = SHOW + "; grep -h Cpus_allowed_list: /proc/$PPID/status | cut -f2 > $STAGE/agent; cat /proc/self/numa_maps > $STAGE/maps"
    agent = scene.shell(script, "-v", "--nproc-per-node=2", "--numa-binding=node", program=machine([node, node]))
    assert agent.end() == 0, agent.err
    assert cpus(scene, 0) == cpus(scene, 1) == expected
    assert numbers((scene.stage / "agent").read_text()) == ALLOWED  # the launcher itself stays where it was
    assert "local rank 0 is bound to CPUs " in agent.err and "(GPU 0000:02:00.0)" in agent.err
    if "memory policy of the launcher" not in agent.err and node in numbers((NODES / "has_memory").read_text()):
        assert f"memory of NUMA node {node} (GPU 0000:01:00.0)" in agent.err
        assert f" prefer:{node} " in (scene.stage / "maps").read_text()


def test_a_share_of_the_cores_is_each_worker_s_own(scene, machine, absent):
    node, there = node_of_ours()
    cores = {(CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text() for cpu in there or []}
    if len(cores) < 2:
        absent("fewer than two cores")
    agent = scene.shell(SHOW, "--nproc-per-node=2", "--numa-binding=exclusive", program=machine([node, node]))
    assert agent.end() == 0, agent.err
    first, second = cpus(scene, 0), cpus(scene, 1)
    assert first and second and sorted(first + second) == there


@pytest.mark.parametrize("mode", ["socket", "core-complex"])
def test_other_modes_stay_on_the_machine_s_own_cpus(scene, machine, absent, mode):
    node, there = node_of_ours()
    if node is None or not list(CPUS.glob(f"cpu{there[0]}/cache/index*")):
        absent("the kernel does not list nodes and caches")
    agent = scene.shell(SHOW, f"--numa-binding={mode}", program=machine([node]))
    assert agent.end() == 0, agent.err
    assert cpus(scene, 0) and set(cpus(scene, 0)) <= set(ALLOWED)
    if mode == "core-complex":
        assert set(cpus(scene, 0)) <= set(there)


@pytest.mark.skipif(len(ALLOWED) < 2, reason="takes two CPUs")
def test_each_worker_keeps_its_node_over_a_restart(scene, machine):
    half = len(ALLOWED) // 2
    nodes = [ALLOWED[:half], ALLOWED[half:]]
    agent = scene.shell(SHOW + "; [ $TORCHELASTIC_RESTART_COUNT = 1 ]", "--nproc-per-node=2", "--max-restarts=1",
                        "--numa-binding=node", env={"CUDA_VISIBLE_DEVICES": "1,0"}, program=machine([0, 1], nodes))
    assert agent.end() == 0, agent.err
    assert cpus(scene, 0, 1) == nodes[1] and cpus(scene, 1, 1) == nodes[0]


@pytest.mark.skipif(len(ALLOWED) < 2, reason="takes two CPUs")
def test_a_gpu_next_to_cpus_that_are_not_ours_is_an_error(scene, machine):
    words = machine([1], [ALLOWED[:1], ALLOWED[1:]])
    agent = scene.shell(SHOW, "--numa-binding=node", program=("taskset", "-c", str(ALLOWED[0]), *words))
    assert agent.end() == 1
    assert agent.err == ("muster run: RuntimeError: --numa-binding=node: local rank 0: its GPU is on NUMA node 1, none of "
                         f"whose CPUs this process may run on (it may use {ALLOWED[0]})\n")
    assert not list(scene.stage.iterdir())


def test_more_workers_than_gpus_are_an_error(scene, machine):
    agent = scene.shell(SHOW, "--numa-binding=socket", "--nproc-per-node=3", program=machine([0, 0]))
    assert agent.end() == 1
    assert agent.err.splitlines()[-1].endswith("muster run: RuntimeError: --numa-binding=socket: local rank 2 has no GPU "
                                               "(visible GPUs: 2, workers: 3)")
    assert not list(scene.stage.iterdir())


def test_the_binding_is_shown_beforehand(scene, machine, absent):
    node, _ = node_of_ours()
    if node is None:
        absent("the kernel lists no NUMA nodes")
    agent = scene.shell(SHOW, "--numa-binding=node", "--dry-run", program=machine([node]))
    assert agent.end() == 0, agent.err
    assert b"\n  numa_binding            node\n    local rank 0          CPUs " in agent.out
    assert b"(GPU 0000:01:00.0)\n" in agent.out

"""--numa-binding gives out the CPUs that PyTorch's launcher does, on machines of all forms: both read the same trees of files."""

import json
import pathlib
import random
import subprocess

import pytest

import harness
from harness import NEW

MODES = ["node", "socket", "exclusive", "core-complex"]
MACHINES = 20
CPUS, NODES = "sys/devices/system/cpu", "sys/devices/system/node"


def ranges(numbers):
    """As the kernel writes them."""
    text, numbers = [], sorted(numbers)
    while numbers:
        first = last = numbers.pop(0)
        while numbers and numbers[0] == last + 1:
            last = numbers.pop(0)
        text.append(f"{first}-{last}" if last > first else f"{first}")
    return ",".join(text)


class Machine:
    """Sockets of nodes of caches of cores of threads. CPUs are numbered in any order; some are offline, some not allowed."""

    def __init__(self, root, rng):
        self.root = root
        shape = [rng.randint(1, most) for most in (2, 3, 3, 4, 2)]
        sockets, nodes, caches, cores, threads = shape
        places = [(s, s * nodes + n, (s, n, l), (s, n, l, c)) for s in range(sockets) for n in range(nodes)
                  for l in range(caches) for c in range(cores) for _ in range(threads)]
        if rng.random() < 0.5:
            rng.shuffle(places)
        online = {cpu: place for cpu, place in enumerate(places) if cpu == 0 or rng.random() < 0.95}
        self.allowed = [cpu for cpu in online if rng.random() < rng.choice([1, 1, 0.7, 0.3])] or [0]
        for cpu, place in online.items():
            self.put_cpu(cpu, place, online)
        every = range(sockets * nodes)
        for node in every:
            self.put(f"{NODES}/node{node}/cpulist", ranges(cpu for cpu, place in online.items() if place[1] == node))
        for name in ("online", "possible", "has_memory"):
            self.put(f"{NODES}/{name}", ranges(every))
        self.gpus = [f"0000:{number + 1:02x}:00.0" for number in range(rng.randint(1, 6))]
        said = rng.random() < 0.8
        for address in self.gpus:
            self.put(f"proc/driver/nvidia/gpus/{address}/information", "Model: NVIDIA")
            self.put(f"sys/bus/pci/devices/{address}/numa_node", str(rng.choice(every)) if said else "-1")

    def put(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="ascii")

    def put_cpu(self, cpu, place, online):
        top = f"{CPUS}/cpu{cpu}"
        siblings, sharing = (ranges(other for other, where in online.items() if where[at] == place[at]) for at in (3, 2))
        self.put(f"{top}/topology/physical_package_id", str(place[0]))
        self.put(f"{top}/topology/thread_siblings_list", siblings)
        for index, (kind, level, shared) in enumerate((("Data", 1, siblings), ("Instruction", 4, siblings), ("Unified", 3, sharing),
                                                       ("Unified", 2, siblings))):
            self.put(f"{top}/cache/index{index}/type", kind)
            self.put(f"{top}/cache/index{index}/level", str(level))
            self.put(f"{top}/cache/index{index}/shared_cpu_list", shared)


def of_stock(cases):
    worker = pathlib.Path(__file__).parent / "workers" / "numa.py"
    done = subprocess.run([harness.interpreter(NEW), worker], input=json.dumps(cases), capture_output=True, text=True,
                          check=False, env=harness.quiet_environment(), timeout=harness.START_LIMIT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def of_ours(cases):
    program = harness.program().parent / "tests" / "interop_numa"
    lines = "".join(f"{case['root']} {case['mode']} {ranges(case['allowed'])}\n" for case in cases)
    done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True, timeout=harness.CALL_LIMIT)
    return [line.split("|") for line in done.stdout.splitlines()]


def test_workers_get_the_cpus_that_stock_gives_them(tmp_path):
    if not pathlib.Path(harness.interpreter(NEW)).exists():
        harness.absent("no PyTorch 2")
    if harness.is_older(NEW, "2.9"):
        pytest.skip("PyTorch binds workers since 2.9")
    seed = random.randrange(2 ** 32)
    rng = random.Random(seed)
    machines = [Machine(tmp_path / str(number), rng) for number in range(MACHINES)]
    cases = [{"root": f"{machine.root}/", "mode": mode, "allowed": machine.allowed, "gpus": machine.gpus}
             for machine in machines for mode in MODES]
    bound = 0
    for case, stock, ours in zip(cases, of_stock(cases), of_ours(cases), strict=True):
        for gpu, (theirs, mine) in enumerate(zip(stock, ours, strict=True)):
            about = f"seed {seed}, GPU {gpu} of {case}: {theirs}, but ours {mine}"
            if isinstance(theirs, list):
                assert mine == ranges(theirs), about
                bound += 1
            elif case["mode"] == "socket" and "empty" in theirs and mine != "error":
                pass  # stock stops at any node of the machine that has no CPU for us, ours at the GPU's alone
            else:
                assert mine == "error", about
    assert bound > MACHINES

"""The CPUs that PyTorch binds a worker to, on machines that are trees of files. Reads a list of cases as JSON, and writes for each
the CPUs of every GPU, or the error's text."""

import inspect
import json
import os
import sys
import types

import torch
from torch.numa import binding


class Machine:
    """Stands for this machine in PyTorch's module: its files, the CPUs it may use, its GPUs."""

    def __init__(self, root, allowed, gpus):
        self.root, self.allowed, self.gpus = root, set(allowed), gpus
        binding.open = lambda path: open(self.root + path, encoding="ascii")
        binding.os = types.SimpleNamespace(listdir=lambda path: os.listdir(self.root + path), path=os.path,
                                           sched_getaffinity=lambda _: set(self.allowed))
        binding.shutil = types.SimpleNamespace(which=lambda name: name)
        torch.cuda.device_count = lambda: len(self.gpus)
        torch.cuda.get_device_properties = self.properties
        if hasattr(torch, "accelerator"):  # newer versions ask this
            torch.accelerator.device_count = lambda: len(self.gpus)
            torch.accelerator.is_available = lambda: True
            torch.accelerator.current_accelerator = lambda *_: torch.device("cuda")

    def properties(self, index):
        domain, bus, rest = self.gpus[index].split(":")
        return types.SimpleNamespace(pci_domain_id=int(domain, 16), pci_bus_id=int(bus, 16),
                                     pci_device_id=int(rest.split(".")[0], 16))


NAMES = inspect.signature(binding._get_validated_logical_cpus_to_bind_to).parameters
INDEX = "device_index" if "device_index" in NAMES else "gpu_index"  # the name before 2.15


def cpus(mode, index):
    options = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
    return binding._get_validated_logical_cpus_to_bind_to(numa_options=options, **{INDEX: index})


def answer(case):
    Machine(case["root"], case["allowed"], case["gpus"])
    found = []
    for index in range(len(case["gpus"])):
        try:
            found.append(sorted(cpus(case["mode"], index)))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


print(json.dumps([answer(case) for case in json.load(sys.stdin)]))

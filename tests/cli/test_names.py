"""The table of names in docs/NAMES.md: every name on the right is in muster.h, and none is missing on the left."""

import os
import re
import shlex
import subprocess

import pytest

from serving import ROOT

PAGE = ROOT / "docs" / "NAMES.md"
HEADING = "# Names in PyTorch, and in muster.h"
CODE = re.compile(r"`([^`]+)`")

# The public names of PyTorch's modules: what they export, and what users call, fill in or read of it.
PUBLIC = {
    "rendezvous.api": """
        RendezvousClosedError RendezvousConnectionError RendezvousError RendezvousGracefulExitError RendezvousStateError
        RendezvousTimeoutError
        RendezvousStoreInfo: MASTER_ADDR_KEY MASTER_PORT_KEY master_addr master_port build
        RendezvousInfo: store rank world_size bootstrap_store_info
        RendezvousHandler: get_backend use_agent_store next_rendezvous is_closed set_closed num_nodes_waiting get_run_id shutdown
        RendezvousParameters: backend endpoint run_id min_nodes max_nodes local_addr config get get_as_bool get_as_int
        RendezvousHandlerCreator
        RendezvousHandlerRegistry: register create_handler
        rendezvous_handler_registry""",
    "rendezvous.dynamic_rendezvous": """
        Token
        RendezvousBackend: name get_state set_state
        RendezvousTimeout: join last_call close heartbeat
        RendezvousSettings: run_id min_nodes max_nodes timeout keep_alive_interval keep_alive_max_attempt
        DynamicRendezvousHandler: from_backend settings
        dynamic_rendezvous: create_handler
        NodeState construct_and_record_rdzv_event""",
    "rendezvous.etcd_rendezvous": """
        EtcdRendezvousRetryableFailure EtcdRendezvousRetryImmediately CONST_ETCD_SETUP_TTL CONST_ETCD_FROZEN_TTL
        CONST_ETCD_JOINABLE_EPHEMERAL_TTL CONST_WORKER_KEEPALIVE_TTL CONST_RUNID_SUBROOT_TTL EtcdRendezvousHandler
        EtcdRendezvous: rendezvous_barrier get_rdzv_state set_closed store_extra_data load_extra_data setup_kv_store
        EtcdStore
        etcd_rendezvous: create_rdzv_handler""",
    "rendezvous.static_tcp_rendezvous": """
        StaticTCPRendezvous
        static_tcp_rendezvous: create_rdzv_handler""",
    "agent.server.api": """
        DEFAULT_ROLE
        WorkerSpec: role local_world_size rdzv_handler fn entrypoint args max_restarts monitor_interval master_addr master_port
            local_addr redirects tee get_entrypoint_name
        Worker: id local_rank global_rank role_rank world_size role_world_size
        WorkerState: UNKNOWN INIT HEALTHY UNHEALTHY STOPPED SUCCEEDED FAILED is_running
        WorkerGroup: spec workers store state group_rank group_world_size master_addr master_port
        RunResult: state return_values failures is_failed
        ElasticAgent: run get_worker_group
        SimpleElasticAgent: _start_workers _stop_workers _monitor_workers _shutdown get_event_failed get_event_succeeded
        ProcessFailure SignalException Event EventSource record put_metric prof""",
}


def rows():
    """(line number, left, right) of the table; a right side that is empty is a heading's."""
    text = PAGE.read_text()
    before, _, table = text.partition(HEADING)
    assert table, f"{PAGE} has no '{HEADING}'"
    for number, line in enumerate(table.splitlines(), before.count("\n") + 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("| ") and cells != ["PyTorch", "muster.h"] and not line.startswith("| ---"):
            assert len(cells) == 2 or cells[0].endswith("|"), f"line {number}: not two cells"
            yield number, cells[0], cells[1] if len(cells) == 2 else ""


def use_of(name):
    """A statement that compiles if there is such a name."""
    if re.fullmatch(r"(struct|enum) muster_\w+", name):
        return f"{{ {name} *p = 0; (void)p; }}" if name.startswith("struct") else f"(void)sizeof({name});"
    if match := re.fullmatch(r"(muster_\w+)\(\)", name):
        return f"{{ void (*p)(void) = (void (*)(void)){match[1]}; (void)p; }}"
    if match := re.fullmatch(r"(muster_\w+)\.(\w+)", name):
        return f"(void)offsetof(struct {match[1]}, {match[2]});"
    if re.fullmatch(r"MUSTER_\w+", name):
        return f"(void)({name});"
    if re.fullmatch(r"muster_\w+", name):
        return f"{{ {name} *p = 0; (void)p; }}"
    raise AssertionError(f"`{name}` is none of: struct x, enum x, x(), x.member, MUSTER_X, x")


def declared_structs():
    return set(re.findall(r"\bstruct (muster_\w+)\b", (ROOT / "include" / "muster.h").read_text()))


def compile_rows(table, tmp_path):
    """What the compiler says about these rows."""
    source = tmp_path / "names.c"
    with source.open("w") as out:
        out.write("#include <muster.h>\n#include <stddef.h>\nint main(void)\n{\n")
        for number, _, right in table:
            for name in CODE.findall(right):
                out.write(f'#line {number} "{PAGE.name}"\n    {use_of(name)}\n')
        out.write("    return 0;\n}\n")
    return subprocess.run([*shlex.split(os.environ.get("CC", "cc")), "-std=c11", "-Wall", "-Werror", "-fsyntax-only",
                           "-I", str(ROOT / "include"), str(source)], capture_output=True, text=True, check=False)


def test_every_row_compiles(tmp_path):
    table = list(rows())
    assert len(table) > 90
    ended = compile_rows(table, tmp_path)
    assert ended.returncode == 0, ended.stderr
    structs = declared_structs()
    for number, _, right in table:
        for name in CODE.findall(right):
            assert not name.startswith("struct ") or name.split()[1] in structs, f"line {number}: there is no {name}"


@pytest.mark.parametrize("name", ["muster_nonsuch()", "MUSTER_NONSUCH", "muster_worker.nonsuch", "enum muster_nonsuch",
                                  "muster_nonsuch"])
def test_a_name_that_is_not_there_is_found(name, tmp_path):
    assert compile_rows([(1, "", f"`{name}`")], tmp_path).returncode != 0


def test_every_row_has_a_counterpart():
    for number, left, right in rows():
        assert right == "" or CODE.findall(right), f"line {number}: {left} has no counterpart"


def names_on_the_left():
    """Where each name stands: ("WorkerSpec", "role"); a later word of a row belongs to the class of its first."""
    found = set()
    for _, left, right in rows():
        owner = None
        for word in CODE.findall(left) if right else []:
            head, dot, name = re.sub(r"\(.*\)", "", word).rpartition(".")
            owner = head if dot else owner
            found |= {(owner, name), (None, name)}
    return found


def public_names():
    for module, text in PUBLIC.items():
        owner = None
        for line in text.strip().splitlines():
            words = line.split()
            if words[0].endswith(":"):
                owner = words.pop(0)[:-1]
                if owner[0].isupper():
                    yield module, None, owner
            elif not line.startswith(" " * 12):
                owner = None
            for word in words:
                yield module, owner, word


@pytest.mark.parametrize("module, owner, name", list(public_names()))
def test_every_public_name_is_in_the_table(module, owner, name):
    assert (owner, name) in names_on_the_left(), f"{module}: {owner or ''}.{name}"

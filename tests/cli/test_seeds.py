"""docs/SEEDS.md: every file, function and test that it names is there, and it has a line for every section of the originals."""

import functools
import pathlib
import re

import pytest

from serving import ROOT

PAGE = ROOT / "docs" / "SEEDS.md"
CODE = re.compile(r"`([^`]+)`")

# The classes, methods, functions and constants of the five modules; a class stands for itself and, after a colon, its methods.
SECTIONS = {
    "rendezvous.dynamic_rendezvous": """
        get_method_name
        Token
        RendezvousBackend: name get_state set_state
        RendezvousTimeout
        RendezvousSettings
        _NodeDesc
        _NodeDescGenerator
        _RendezvousState
        _remove_participant_epilogue
        _RendezvousStateHolder
        _BackendRendezvousStateHolder: _record state sync _sanitize mark_dirty
        _Action
        _RendezvousContext
        _RendezvousOpExecutor
        _DistributedRendezvousOpExecutor: _record run _keep_alive _add_to_participants _add_to_wait_list _add_to_redundancy_list _remove_from_participants _remove_from_wait_list _remove_from_redundancy_list _mark_rendezvous_complete _mark_rendezvous_closed
        _should_keep_alive
        _RendezvousExitOp
        _RendezvousJoinOp
        _RendezvousCloseOp
        _RendezvousKeepAliveOp
        DynamicRendezvousHandler: from_backend __init__ _record _create_tcp_store_server settings get_backend use_agent_store is_closed set_closed num_nodes_waiting get_run_id shutdown _close _keep_alive_weak _keep_alive _start_heartbeats _stop_heartbeats _get_world _wrap_store _get_store _get_deadline
        _get_timeout
        create_handler""",
    "rendezvous.api": """
        RendezvousError
        RendezvousClosedError
        RendezvousTimeoutError
        RendezvousConnectionError
        RendezvousStateError
        RendezvousGracefulExitError
        RendezvousStoreInfo: build
        RendezvousInfo
        RendezvousHandler: get_backend use_agent_store next_rendezvous is_closed set_closed num_nodes_waiting get_run_id shutdown
        RendezvousParameters: get get_as_bool get_as_int
        RendezvousHandlerCreator
        RendezvousHandlerRegistry: register create_handler
        rendezvous_handler_registry""",
    "rendezvous.etcd_rendezvous": """
        EtcdRendezvousRetryableFailure
        EtcdRendezvousRetryImmediately
        _DEFAULT_TIMEOUT
        _DEFAULT_LAST_CALL_TIMEOUT
        CONST_ETCD_SETUP_TTL
        CONST_ETCD_FROZEN_TTL
        CONST_ETCD_JOINABLE_EPHEMERAL_TTL
        CONST_WORKER_KEEPALIVE_TTL
        CONST_RUNID_SUBROOT_TTL
        EtcdRendezvousHandler: __init__ __del__ get_backend next_rendezvous is_closed set_closed num_nodes_waiting get_run_id shutdown
        EtcdRendezvous: __init__ __del__ rendezvous_barrier init_phase join_phase confirm_phase handle_existing_rendezvous try_create_rendezvous join_rendezvous handle_join_last_call wait_for_peers confirm_membership wait_for_final announce_self_waiting wait_for_rendezvous_to_free set_closed get_rdzv_state try_wait_for_state_change get_path create_path_if_not_exists setup_lease_renewal store_extra_data load_extra_data setup_kv_store
        _create_etcd_client
        create_rdzv_handler""",
    "rendezvous.static_tcp_rendezvous": """
        _default_timeout_seconds
        StaticTCPRendezvous: get_backend use_agent_store next_rendezvous is_closed set_closed num_nodes_waiting get_run_id shutdown
        create_rdzv_handler""",
    "agent.server.api": """
        @prof
        _TERMINAL_STATE_SYNC_ID
        DEFAULT_ROLE
        WorkerSpec: __post_init__ get_entrypoint_name
        Worker: __str__
        WorkerState: is_running
        WorkerGroup
        _RoleInstanceInfo: serialize deserialize compare find_role_boundaries
        RunResult: is_failed
        ElasticAgent: run get_worker_group
        SimpleElasticAgent: __init__ get_worker_group _start_workers _stop_workers _monitor_workers _shutdown _rendezvous _assign_worker_ranks _initialize_workers _restart_workers run get_event_failed get_event_succeeded _record_worker_events _get_worker_state record_duration _construct_event _record_metrics _record_metric_with_condition _record_flakiness_metric _invoke_run _exit_barrier""",
}
ONLY_METHODS = {"EtcdRendezvous"}  # what the class itself says is in the line of its __init__


def rows():
    """(module, line number, section, where, tests, difference)"""
    module = None
    for number, line in enumerate(PAGE.read_text().splitlines(), 1):
        if line.startswith("## "):
            module = line.strip("# `")
        elif module and line.startswith("| ") and not line.startswith(("| section |", "| --- |")):
            cells = [cell.strip() for cell in line.strip()[1:-1].split(" | ")]
            assert len(cells) == 4, f"line {number} has {len(cells)} cells instead of 4"
            yield module, number, *cells


def sections():
    for module, text in SECTIONS.items():
        for line in text.strip().splitlines():
            owner, _, methods = line.strip().partition(":")
            if owner not in ONLY_METHODS:
                yield module, owner
            for method in methods.split():
                yield module, f"{owner}.{method}"


@functools.cache
def text_of(path):
    return path.read_text(errors="replace")


def has_function(path, name):
    """Is it defined there? Its line begins with its type, or with the macro of base/texts.h."""
    return re.search(rf"^([a-z][\w \*]*[ \*]{name}\(|MU_DEFINE_TEXTS\({name},)", text_of(path), re.MULTILINE) is not None


def has_test(path, name):
    return re.search(rf"^(static void|def) {name}\(", text_of(path), re.MULTILINE) is not None


def problems_of(cell, root, is_there, shape):
    """What of a cell is not there: files below root, and names that belong to the file before them."""
    path = None
    for word in CODE.findall(cell):
        if "/" in word or word == "muster.h":
            path = root / word if "/" in word else ROOT / "include" / word
            if not path.is_file():
                yield f"there is no {path.relative_to(ROOT)}"
                path = None
        elif not shape.fullmatch(word):
            yield f"`{word}` is neither a file nor a name"
        elif path is not None and not is_there(path, word.removesuffix("()")):
            yield f"there is no {word} in {path.relative_to(ROOT)}"
    if not CODE.findall(cell):
        yield "nothing is named"


def problems(where, tests):
    yield from problems_of(where, ROOT / "src", has_function, re.compile(r"\w+\(\)"))
    yield from problems_of(tests, ROOT / "tests", has_test, re.compile(r"\w+"))


def test_everything_that_is_named_is_there():
    found = [f"line {number}: {problem}" for _, number, _, where, tests, _ in rows() for problem in problems(where, tests)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("where, tests, problem", [
    ("`rdzv/nonsuch.c` `f()`", "`unit/test_api.c`", "there is no src/rdzv/nonsuch.c"),
    ("`rdzv/doc.c` `nonsuch()`", "`unit/test_api.c`", "there is no nonsuch() in src/rdzv/doc.c"),
    ("`rdzv/doc.c` `mu_doc_enter()`", "`unit/test_doc.c` `nonsuch`", "there is no nonsuch in tests/unit/test_doc.c"),
    ("`rdzv/doc.c` `mu_doc_enter()`", "none", "nothing is named"),
])
def test_what_is_not_there_is_found(where, tests, problem):
    assert list(problems(where, tests)) == [problem]


def test_every_section_has_one_line_and_every_line_is_a_section():
    named = [(module, name) for module, _, section, *_ in rows() for name in CODE.findall(section)]
    assert sorted(named) == sorted(set(named)), "a section stands there twice"
    assert set(sections()) - set(named) == set()
    assert set(named) - set(sections()) == set()


def test_the_page_stands_alone():
    """A reader has this tree, and nothing beside it."""
    text = PAGE.read_text()
    assert re.findall(r"\bD\d+\b|\.\./shared|\bseed \d", text) == []
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (PAGE.parent / pathlib.PurePosixPath(target)).exists(), target

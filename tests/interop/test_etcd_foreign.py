"""A stranger writes to the keys of a job, or deletes them, with each back end that meets in etcd: the job goes on.

The same on c10d is in tests/cli/test_run_foreign.py and test_run_causes.py. Keys by the names of docs/PROTOCOL.md.
"""

import os
import signal

import pytest

import etcd_actors
import etcd_servers
from etcd_actors import BACKENDS, LIMIT, Raw, restarts
from rdzv_nodes import until

GARBAGE = "garbage"
FORGED = '{"verdict": "failed", "node": "node7", "rank": 0, "cause": "forged by a stranger"}'
OTHER_ROUND = ('{"verdict": "failed", "round": 999999, "tag": "0000000000000000", "node": "n7", "rank": 0,'
               ' "cause": "forged by a stranger"}')
DELETED = None
BY_KEYS = [backend for backend in BACKENDS if backend != "etcd-v3"]  # agents agree by keys of their own
ROUND_KEYS = ["done/0", "done/1", "done_count", "last", "left/0", "left/1", "heard/0", "failed"]


@pytest.fixture(scope="module")
def shared_etcd(tmp_path_factory):
    yield from etcd_servers.kept(tmp_path_factory.mktemp("etcd"), 1)


@pytest.fixture
def jobs(shared_etcd, tmp_path):
    yield from etcd_actors.kept(shared_etcd, tmp_path)


def no_fact(job):
    """What a stranger has made up is never told as a fact."""
    assert "forged by a stranger;" not in job.said() and "the job has failed" not in job.said(), job.said()


# ---- Keys of the job ----


@pytest.mark.parametrize("key", ["budget", "verdict"])
@pytest.mark.parametrize("backend", BY_KEYS)
def test_a_foreign_value_in_a_key_of_the_job_is_not_the_end(jobs, backend, key):
    """It is there when a worker fails, and again when the job ends."""
    values = [GARBAGE, Raw(GARBAGE), FORGED, OTHER_ROUND, "", DELETED]
    made = [jobs(backend) for _ in values]
    for job in made:
        for _ in range(2):
            job.node("--nnodes=2", "--max-restarts=2")
    for job, value in zip(made, values):
        first = job.world(2)
        job.keys.round()  # has begun
        job.keys.change(key, value)
        first[0].fail()
        second = job.world(2, without=first)
        assert restarts(second) == 1, f"{value}\n{job.said()}"
        job.keys.change(key, value)
        job.succeed(second)
        no_fact(job)
        assert '"succeeded"' in job.keys.agents()["verdict"], f"{value}\n{job.said()}"
        if value in (GARBAGE, FORGED):
            what = "the restart budget" if key == "budget" else "the verdict"
            assert f"somebody has overwritten {what} in 'muster.{job.run_id}/{key}' ({len(value)} bytes: " in job.said()


def test_a_verdict_that_is_deleted_before_a_node_reads_it(jobs):
    """The job has succeeded, and a node was paused when that was said."""
    for backend in BACKENDS:
        job = jobs(backend)
        workers = job.start(2, "--nnodes=2", "--max-restarts=0")
        last, slow = [job.node_of(worker) for worker in workers]
        workers[1].succeed()
        job.until_marked(1)
        pid = slow.agent()
        os.kill(pid, signal.SIGSTOP)
        workers[0].succeed()
        assert last.end(LIMIT) == 0, job.said()
        if backend == "etcd-v3":
            job.keys.write("job/closed", DELETED)
        else:
            job.keys.delete("verdict")
        os.kill(pid, signal.SIGCONT)
        assert slow.end(LIMIT) == 0, job.said()


# ---- Keys of the round ----

# What a stranger does to which key. (Without the counter a job ends as well, but up to a minute later: by the marks.)
CHANGES = [(key, Raw(GARBAGE)) for key in ROUND_KEYS] + \
    [(key, DELETED) for key in ROUND_KEYS if key != "done_count"] + \
    [(key, value) for key in ("done/0", "last", "failed") for value in (FORGED, "")]


@pytest.mark.parametrize("backend", BY_KEYS)
def test_a_foreign_value_in_a_key_of_the_round_is_not_the_end(jobs, backend):
    """One node is done, and waits for the other, which is not. A job for each key and value, all beside each other."""
    made = [(jobs(backend), key, value) for key, value in CHANGES]
    for job, *_ in made:
        for _ in range(2):
            job.node("--nnodes=2", "--max-restarts=0")
    workers = {}
    for job, key, value in made:
        workers[job] = job.world(2)
        job.keys.change(f"{job.keys.round()}/{key}", value)
        workers[job][0].succeed()
    for job, key, value in made:
        job.until_marked(0)
        job.keys.change(f"{job.keys.round()}/{key}", value)
        assert workers[job][1].alive and not any(node.ended() for node in job.nodes), f"{key}, {value}\n{job.said()}"
        workers[job][1].succeed()
    for job, key, value in made:
        assert [node.end(LIMIT) for node in job.nodes] == [0, 0], f"{key}, {value}\n{job.said()}"
        no_fact(job)


@pytest.mark.parametrize("backend", BY_KEYS)
def test_a_foreign_failure_does_not_hide_the_next_one(jobs, backend):
    """A stranger's failure of a worker, then a real one, which a stranger deletes; the job restarts once."""
    job = jobs(backend)
    first = job.start(2, "--nnodes=2", "--max-restarts=2")
    key = f"{job.keys.round()}/failed"
    job.keys.put(key, GARBAGE)
    until(lambda: "somebody has overwritten the failure of a worker" in job.said(), LIMIT, job.said())  # and deletes it
    first[0].fail()
    second = job.world(2, without=first)
    assert restarts(second) == 1
    job.keys.delete(key)
    job.succeed(second)


# ---- Keys of the rendezvous ----


def settled(job, workers):
    """The same workers run, and after a failure of one of them all meet again."""
    assert all(worker.alive for worker in workers), job.said()
    workers[0].fail()
    after = job.world(2, without=workers)
    assert restarts(after) == 1, job.said()
    job.succeed(after)
    assert "lost " not in job.said(), job.said()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_document_that_is_overwritten_or_deleted_is_put_back_and_workers_run_on(jobs, backend):
    job = jobs(backend)
    workers = job.start(2, "--nnodes=2", "--max-restarts=1")
    document = "job/doc" if backend == "etcd-v3" else job.keys.document
    before = job.keys.value(document)

    def is_back():
        value = job.keys.value(document)
        return value == before if backend != "etcd-v2" else len(value or "") > 100 and value[0] == before[0]

    for value in (GARBAGE, "", "{}", DELETED) if backend != "etcd" else (GARBAGE, "", "{}"):
        job.keys.write(document, value)
        until(is_back, LIMIT, f"the document is back after {value!r}")
        assert all(worker.alive for worker in workers), f"{value}\n{job.said()}"
    assert "restarting the group" not in job.said()
    settled(job, workers)
    assert "somebody has overwritten the document" in job.said() or "somebody wrote 7 bytes ('garbage')" in job.said()


def test_etcd_v2_counters_that_are_overwritten_change_nothing(jobs):
    made = {value: jobs("etcd-v2") for value in ("", "hello", "-7", "9223372036854775807", DELETED)}
    for value, job in made.items():
        workers = job.start(2, "--nnodes=2", "--max-restarts=1")
        for path in job.keys.counters():
            job.keys.write(path, value)
        settled(job, workers)


@pytest.mark.parametrize("value", [GARBAGE, ""])
def test_classic_keys_that_are_overwritten_change_nothing(jobs, value):
    """The version counter, keep-alives, and the names of members and of nodes."""
    job = jobs("etcd")
    workers = job.start(2, "--nnodes=2", "--max-restarts=1")
    root = job.keys.root
    paths = [path for path in job.keys.paths(root) if "/kv/" not in path and not path.endswith("active_version")]
    kinds = ["/rdzv/version_counter", "/rdzv/v_1/rank_0", "/rdzv/v_1/rank_1", "/muster/v_1/rank_0"]
    assert {root + kind for kind in kinds} <= set(paths) and any("/muster/nodes/" in path for path in paths), paths
    for path in paths:
        job.keys.write(path, value)
    settled(job, workers)


def test_classic_keys_that_are_deleted_change_nothing(jobs):
    for key in ("version_counter", "muster/v_1/rank_0", "muster/nodes"):
        job = jobs("etcd")
        workers = job.start(2, "--nnodes=2", "--max-restarts=1")
        paths = [path for path in job.keys.paths(job.keys.root) if f"/{key}" in path]
        assert paths
        for path in paths:
            job.keys.write(path, DELETED)
        settled(job, workers)


# A stranger's values of etcd-v3: they are under no lease.
V3_VALUES = pytest.mark.parametrize("value", [GARBAGE, "", DELETED, '{"v": 3}'],
                                    ids=["garbage", "empty", "deleted", "newer"])
V3_KEYS = ["job/doc", "job/folder", "job/news", "job/closed", "job/master", "seat/", "member/"]


def v3_jobs(jobs, keys, max_restarts):
    """A job for each key, all beside each other: the key, the job, and its workers."""
    made = [(key, jobs("etcd-v3")) for key in keys]
    for _, job in made:
        for _ in range(2):
            job.node("--nnodes=2", f"--max-restarts={max_restarts}")
    return [(key, job, job.world(2)) for key, job in made]


def overwrite(job, key, value):
    """Where the key ends in a slash, all that begin like it."""
    job.keys.round()  # has begun
    paths = [path for path in job.keys.paths() if path.startswith(key)] if key.endswith("/") else [key]
    assert paths
    for path in paths:
        job.keys.write(path, value)


@V3_VALUES
def test_etcd_v3_keys_that_are_overwritten_change_nothing(jobs, value):
    """A node that has no record is gone: records are not deleted."""
    made = v3_jobs(jobs, V3_KEYS if value is DELETED else [*V3_KEYS, "nodes/"], 1)
    for key, job, _ in made:
        overwrite(job, key, value)
    for _, job, workers in made:
        settled(job, workers)
        assert job.keys.json("job/closed")["verdict"] == "succeeded", job.said()


@V3_VALUES
def test_etcd_v3_keys_that_are_overwritten_when_a_node_is_done_change_nothing(jobs, value):
    """Also its mark, which outlives it. The other is not done yet; then all have succeeded."""
    made = v3_jobs(jobs, [*V3_KEYS, "done"], 0)
    for _, job, workers in made:
        workers[0].succeed()
    for key, job, _ in made:
        job.until_marked(0)
        mark, = [path for path in job.keys.paths() if path.endswith("/done")]
        overwrite(job, mark if key == "done" else key, value)
    for key, job, workers in made:
        assert workers[1].alive and not any(node.ended() for node in job.nodes), f"{key}\n{job.said()}"
        workers[1].succeed()
    for key, job, _ in made:
        assert [node.end(LIMIT) for node in job.nodes] == [0, 0], f"{key}\n{job.said()}"
        assert job.keys.json("job/closed")["verdict"] == "succeeded", f"{key}\n{job.said()}"
        no_fact(job)


@V3_VALUES
def test_etcd_v3_keys_that_are_overwritten_do_not_hide_a_failure(jobs, value):
    """No restart is left: the job has failed, on every node."""
    made = v3_jobs(jobs, V3_KEYS if value is DELETED else [*V3_KEYS, "nodes/"], 0)
    for key, job, workers in made:
        overwrite(job, key, value)
        workers[1].fail()
    for key, job, _ in made:
        assert [node.end(LIMIT) for node in job.nodes] == [1, 1], f"{key}\n{job.said()}"
        assert job.keys.json("job/closed")["verdict"] == "failed", f"{key}\n{job.said()}"


def test_a_strangers_etcd_v3_done_mark_is_none(jobs):
    """It looks like one, but for the lease: nobody has succeeded, and the next failure is the job's."""
    job = jobs("etcd-v3")
    workers = job.start(2, "--nnodes=2", "--max-restarts=0")
    for node in {path.split("/")[1] for path in job.keys.paths() if path.startswith("nodes/")}:
        job.keys.write(f"nodes/{node}/done", f'{{"v": 2, "node": "{node}"}}')
    workers[1].fail()
    assert [node.end(LIMIT) for node in job.nodes] == [1, 1], job.said()
    assert job.keys.json("job/closed")["verdict"] == "failed", job.said()


def test_an_etcd_v3_document_of_another_version_is_refused_by_name(jobs):
    """By the members, and by a node that comes."""
    job = jobs("etcd-v3")
    job.start(2, "--nnodes=2", "--max-restarts=1")
    job.keys.write("job/doc", '{"v": 1}', keeps_lease=True)
    job.node("--nnodes=2", "--max-restarts=1")
    for node in job.nodes:
        assert node.end(LIMIT) == 1, job.said()
        assert "another version of muster wrote it (its values are of version 1, ours of version 2)" in node.err, job.said()
    assert job.keys.value("job/doc") == '{"v": 1}'

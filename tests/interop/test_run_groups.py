"""torch.distributed and torch.distributed.elastic inside workers of `muster run`."""

import json
import pathlib

import pytest

from harness import NEW
from rdzv_nodes import side_by_side
from run_nodes import WORKERS, report_of


# ---- Process groups ----

@pytest.mark.parametrize("shared", (True, False), ids=("agent-store", "own-store"))
@pytest.mark.parametrize("method", ("env://", "tcp://"))
@side_by_side
def test_a_group_over_two_nodes_comes_up(jobs, which, method, shared):
    job = jobs(which)
    environment = None if shared else {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    for number in (1, 2):
        job.muster(*job.meeting(2, number), WORKERS / "group.py", method, job.directory, environment=environment)
    for node in job.nodes:
        node.good()
    told = [json.loads((job.directory / rank).read_text()) for rank in "01"]
    assert [t["sum"] for t in told] == [3.0, 3.0]
    assert {t["TORCHELASTIC_USE_AGENT_STORE"] for t in told} == {str(shared)}
    assert {t["MASTER_ADDR"] for t in told} == {"127.0.0.1"}  # of rank 0's node
    assert len({t["MASTER_PORT"] for t in told}) == 1


# ---- The record decorator ----

def test_the_report_of_a_recorded_error_is_what_stock_prints(jobs):
    reports, files = {}, {}
    jobs_of = {kind: jobs(NEW, kind) for kind in ("stock", "muster")}
    for kind, job in jobs_of.items():
        job.launch(kind, "--nproc-per-node", 2, "--log-dir", job.directory / "logs", WORKERS / "recorded.py",
                   environment={"TORCHELASTIC_ERROR_FILE": str(job.directory / "error.json")})
    for kind, job in jobs_of.items():
        assert job.nodes[0].end() == 1, job.nodes[0].err
        reports[kind] = report_of(job.nodes[0])
        files[kind] = json.loads((job.directory / "error.json").read_text())["message"]
        assert not job.left()
    assert "ValueError: broken on purpose: \u00e9 \n   second line" in reports["muster"]
    assert reports["muster"] == reports["stock"]
    # The copy that the launcher leaves for whoever started it.
    for file in files.values():
        assert file["extraInfo"].pop("timestamp").isdigit()
    assert files["muster"] == files["stock"]
    assert files["muster"]["errorCode"] == 1


def test_the_error_of_an_older_worker_is_reported_too(jobs):
    job = jobs("1.13.1")
    node = job.muster("--nproc-per-node", 2, "--log-dir", job.directory / "logs", WORKERS / "recorded.py")
    assert node.end() == 1
    assert "ValueError: broken on purpose: \u00e9 \n   second line" in report_of(node)
    written, = pathlib.Path(job.directory / "logs").glob("*/attempt_0/1/error.json")
    assert f"error_file: {written}" in node.err


# ---- The file timer ----

@side_by_side
def test_a_worker_whose_timer_expires_is_killed_and_the_group_restarts(jobs, which):
    job = jobs(which)
    node = job.muster("--nproc-per-node", 2, "--max-restarts", 1, WORKERS / "timed.py", job.directory,
                      environment={"TORCHELASTIC_ENABLE_FILE_TIMER": "1"})
    node.good()
    assert sorted(p.name for p in job.directory.glob("[01].[01]"))[-2:] == ["1.0", "1.1"]
    assert (job.directory / "0.1").exists()
    assert not job.left()


@side_by_side
def test_an_expired_timer_without_restarts_left_is_a_failure_by_its_signal(jobs, which):
    job = jobs(which)
    node = job.muster("--nproc-per-node", 2, WORKERS / "timed.py", job.directory,
                      environment={"TORCHELASTIC_ENABLE_FILE_TIMER": "1"})
    assert node.end() == 1
    root = report_of(node).split("Root Cause")[1]
    assert "rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: <pid>)  (SIGKILL)\n" in root
    assert not job.left()

"""`muster run` beside stock torchrun, the same words to both: environment, output, files, errors."""

import concurrent.futures
import itertools
import json
import re
import socket
import stat

import pytest

import harness
from harness import NEW
from ports import free_port
from run_nodes import MARK, WORKERS, report_of

WHICH = NEW
KINDS = ("stock", "muster")


@pytest.fixture
def both(jobs):
    """both(words) launches them under either and waits: (stock's job, ours)."""
    numbers = itertools.count()

    def launch(words, code=None, environment=None, older=False):
        number = next(numbers)
        pair = [jobs(WHICH, f"-{kind}{number}") for kind in KINDS]
        for kind, job in zip(KINDS, pair):
            job.launch(kind, *(words(job) if callable(words) else words), environment=environment, older=older)
        for job in pair:
            rc = job.nodes[0].end()
            assert code is None or rc == code, f"rc {rc}:\n{job.nodes[0].err}"
        return pair
    return launch


# ---- The environment of a worker ----

# What both set, to other values.
DIFFERENT = {
    "MASTER_ADDR",  # stock: what the host calls itself; ours: localhost, or an address that was tried
    "MASTER_PORT",  # a free one
    "TORCHELASTIC_ERROR_FILE",  # in a directory of a new name
    "TORCHELASTIC_RUN_ID",  # random where nobody gave one
    MARK,
}
SHELL = {"PWD", "OLDPWD", "SHLVL", "_"}


def environments(job, count):
    found = []
    for rank in range(count):
        text = (job.directory / f"environment.{rank}").read_bytes().decode()
        pairs = dict(line.split("=", 1) for line in text.split("\0") if line)
        found.append({k: v.replace(str(job.directory), "<dir>") for k, v in pairs.items() if k not in SHELL})
    return found


ENVIRONMENTS = {
    "standalone": (["--standalone"], {}),
    "implicit standalone": ([], {}),
    "threads given": ([], {"OMP_NUM_THREADS": "3"}),
    "no threads given": ([], {"OMP_NUM_THREADS": None}),
    "role and restarts": (["--role=trainer", "--max-restarts=5"], {}),
    "signals": (["--signals-to-handle=SIGTERM,SIGUSR2"], {}),
    "nccl": ([], {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}),
    "own store": ([], {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
    "timer": ([], {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}),
    "timer file": ([], {"TORCHELASTIC_TIMER_FILE": "/nowhere/timer"}),
    "by variables": ([], {"PET_MAX_RESTARTS": "2", "PET_ROLE": "r", "PET_RDZV_ID": "kept"}),
    "devices": ([], {"CUDA_VISIBLE_DEVICES": "4,5,6"}),
    "one device each": (["--virtual-local-rank"], {"CUDA_VISIBLE_DEVICES": "4, 5,6"}),
    **({} if harness.is_older(NEW, "2.15") else {
        "one HIP device each": (["--virtual-local-rank"], {"CUDA_VISIBLE_DEVICES": "7", "HIP_VISIBLE_DEVICES": "4, 5,6"}),
        "no HIP devices": (["--virtual-local-rank"], {"CUDA_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": ""}),
    }),
    "one device each of any": (["--virtual-local-rank"], {"CUDA_VISIBLE_DEVICES": None}),
    "no files": (["--log-dir=/dev/null"], {}),
    "identical": ([], {"TORCH_ELASTIC_WORKER_IDENTICAL": "1"}),
}


@pytest.mark.parametrize("words, variables", ENVIRONMENTS.values(), ids=[k.replace(" ", "-") for k in ENVIRONMENTS])
def test_workers_see_what_stock_shows_them(both, words, variables):
    pair = both(lambda job: [*words, "--nproc-per-node=2", "--no-python", WORKERS / "environment.sh", job.directory,
                             "$local_rank", "${local_rank}x", "$$", "$other"], 0, variables)
    stock, ours = (environments(job, 2) for job in pair)
    for rank in range(2):
        theirs, mine = ((job.directory / f"arguments.{rank}").read_text().splitlines() for job in pair)
        assert mine == theirs == [str(WORKERS / "environment.sh"), str(rank), f"{rank}x", "$", "$other"]
    for theirs, mine in zip(stock, ours):
        assert mine.keys() == theirs.keys()
        assert mine["MASTER_ADDR"] == "localhost"
        changed = {name for name in theirs if theirs[name] != mine[name]}
        if "TORCHELASTIC_ENABLE_FILE_TIMER" in variables:
            form = r"<dir>/watchdog_timer_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
            assert re.fullmatch(form, mine["TORCHELASTIC_TIMER_FILE"]) and \
                re.fullmatch(form, theirs["TORCHELASTIC_TIMER_FILE"])
            changed.discard("TORCHELASTIC_TIMER_FILE")
        assert changed <= DIFFERENT, {name: (theirs[name], mine[name]) for name in changed}
        file = r"<dir>/torchelastic_[a-z0-9_]{8}/[0-9a-f-]{36}_[a-z0-9_]{8}/attempt_0/[01]/error\.json"
        for one in (theirs, mine):
            assert re.fullmatch(file if "--log-dir=/dev/null" not in words else "", one["TORCHELASTIC_ERROR_FILE"])


def test_workers_of_a_named_job_see_its_name_and_address(both):
    ports = iter((free_port(), free_port()))
    pair = both(lambda job: ["--nnodes=1", "--nproc-per-node=2", "--rdzv-backend=static", "--rdzv-id=job7",
                             "--master-addr=127.0.0.1", f"--master-port={next(ports)}", "--no-python",
                             WORKERS / "environment.sh", job.directory], 0)
    stock, ours = (environments(job, 2) for job in pair)
    for theirs, mine in zip(stock, ours):
        assert mine.keys() == theirs.keys()
        changed = {name for name in theirs if theirs[name] != mine[name]}
        assert changed <= {"MASTER_PORT", "TORCHELASTIC_ERROR_FILE", MARK}, changed


def test_ranks_of_unlike_nodes_are_stock_s(jobs):
    """Three nodes with 2, 3 and 1 workers of two roles."""
    found = []
    for kind in KINDS:
        job = jobs(WHICH, f"-{kind}")
        for number, (role, count) in enumerate((("ps", 2), ("trainer", 3), ("ps", 1)), start=1):
            job.launch(kind, *job.meeting(3, number), f"--role={role}", f"--nproc-per-node={count}", "--no-python",
                       WORKERS / "environment.sh", job.directory)
        for node in job.nodes:
            node.good()
        found.append(environments(job, 6))
    for theirs, mine in zip(*found):
        assert mine.keys() == theirs.keys()
        changed = {name for name in theirs if theirs[name] != mine[name]}
        assert changed <= DIFFERENT - {"MASTER_ADDR"}, changed
    assert [e["ROLE_RANK"] for e in found[1]] == ["0", "1", "0", "1", "2", "2"]


# ---- The worker's command ----

TOUCHED = str(WORKERS / "touched.py")
WAYS = {
    "script": (["--nproc-per-node=2", TOUCHED], {}),
    "one worker": ([TOUCHED], {}),
    "module": (["--nproc-per-node=2", "-m", "touched"], {}),
    "run path": (["--nproc-per-node=2", "--run-path", TOUCHED], {}),
    "run path wins": (["--run-path", "--no-python", TOUCHED], {}),
    "program": (["--nproc-per-node=2", "--no-python", "python3", TOUCHED], {}),
    "separator": (["--nproc-per-node=2", "--", TOUCHED], {}),
    "all CPUs": (["--nproc-per-node=cpu", TOUCHED], {}),
    "what there is": (["--nproc-per-node=auto", TOUCHED], {}),
    "variables": ([TOUCHED], {"PET_NPROC_PER_NODE": "3", "PET_STANDALONE": "1"}),
    "variables overruled": (["--nproc-per-node=2", TOUCHED], {"PET_NPROC_PER_NODE": "3"}),
    "nothing but variables": ([TOUCHED], {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2", "PET_RDZV_ID": "of-variables",
                                          "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "127.0.0.1:0",
                                          "PET_MONITOR_INTERVAL": "0.1", "PET_START_METHOD": "fork", "PET_TEE": "3"}),
    "program by variables": (["python3", TOUCHED], {"PET_NO_PYTHON": "1"}),
    "module by variables": (["touched"], {"PET_MODULE": "1"}),
    "master": (["--nnodes=1", "--nproc-per-node=2", "--master-addr=localhost", "--master-port={port}", "--node-rank=0",
                TOUCHED], {}),
    "cut short": (["--nproc_per=2", "--stand", TOUCHED], {}),
}


@pytest.mark.parametrize("words, variables", WAYS.values(), ids=[k.replace(" ", "-") for k in WAYS])
def test_a_script_is_started_as_stock_starts_it(both, words, variables):
    variables = {"PYTHONPATH": str(WORKERS), "OMP_NUM_THREADS": None, **variables}
    stock, ours = both(lambda job: [*(word.format(port=job.port) for word in words), job.directory, "--nnodes=7",
                                    "$local_rank", "--", "-x", "", "a b"], 0, variables)
    assert told_by_workers(ours) == told_by_workers(stock) != {}


def told_by_workers(job):
    return {path.name: json.loads(path.read_text()) for path in job.directory.glob("[0-9]*") if path.is_file()}


OLD = str(WORKERS / "older.py")
OLDER = {
    "script": [OLD],
    "environment": ["--use-env", OLD],
    "environment with an underscore": ["--use_env", OLD],
    "module": ["-m", "older"],
    "run path": ["--run-path", OLD],
    "program": ["--no-python", "--use-env", "python3", OLD],
}


@pytest.mark.parametrize("words", OLDER.values(), ids=[k.replace(" ", "-") for k in OLDER])
def test_the_older_command_starts_a_script_as_stock_s_does(both, words):
    stock, ours = both(lambda job: ["--nproc_per_node=2", *words, job.directory, "--use-env", "-x"], 0,
                       {"PYTHONPATH": str(WORKERS)}, older=True)
    assert told_by_workers(ours) == told_by_workers(stock) != {}
    for job in (stock, ours):
        assert "deprecated" in job.nodes[0].err


def test_the_older_command_gives_a_program_no_argument(both):
    stock, ours = both(["--no-python", "--nnodes=x", "true"], 1, older=True)
    assert ending(ours) == ending(stock) == (1, "ValueError")
    assert "--use-env" in ours.nodes[0].err


# ---- Output ----

def tree(directory):
    """Files, directories and their modes, without what is random in names."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = re.sub(r"(^|/)[0-9a-f-]{36}_[a-z0-9_]{8}", r"\1<run>", str(path.relative_to(directory)))
        name = re.sub(r"^torchelastic_[a-z0-9_]{8}", "<base>", name)
        found[name] = oct(stat.S_IMODE(path.stat().st_mode)), path.read_text() if path.is_file() else None
    return found


def lines(text):
    """Whole lines, in any order: workers talk at once.  What has no end is ended where the next one begins."""
    return sorted(re.sub(r"(?<=at end [01])(?=\S)", "\n", text).splitlines())


def said_by_workers(node):
    return lines(node.out), sorted(line for line in node.err.splitlines() if "err-" in line)


OUTPUTS = {
    "nothing": [],
    "redirect all": ["-r", "3"],
    "redirect stdout": ["--redirects=1"],
    "redirect by rank": ["-r", "0:1,1:2"],
    "tee all": ["-t", "3"],
    "tee stderr": ["--tee", "2"],
    "tee by rank": ["-t", "1:3"],
    "both": ["-r", "1", "-t", "2"],
    "prefix matched": ["--redirect=3", "--te=3"],
    "one shown": ["-t", "3", "--local-ranks-filter", "1"],
    "one shown of none": ["--local-ranks-filter", "0"],
    "role": ["-t", "3", "--role", "tr"],
}


@pytest.mark.parametrize("words", OUTPUTS.values(), ids=[k.replace(" ", "-") for k in OUTPUTS])
def test_output_goes_where_stock_sends_it(both, words):
    stock, ours = both(lambda job: [*words, "--nproc-per-node=2", f"--log-dir={job.directory}/logs", "--no-python",
                                    WORKERS / "talk.sh"], 0)
    assert tree(ours.directory / "logs") == tree(stock.directory / "logs")
    assert said_by_workers(ours.nodes[0]) == said_by_workers(stock.nodes[0])


def test_the_prefix_is_made_from_the_template(both):
    template = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "{${role_name}|${rank}|$local_rank|${who}}"}
    stock, ours = both(["-t", "3", "--role=tr", "--nproc-per-node=2", "--no-python", WORKERS / "talk.sh"], 0, template)
    assert said_by_workers(ours.nodes[0]) == said_by_workers(stock.nodes[0])
    assert "{tr|1|1|${who}}out-1" in ours.nodes[0].out


@pytest.mark.skipif(harness.is_older(NEW, "2.14"), reason=f"PyTorch {NEW} has no option for the prefix")
def test_the_option_for_the_prefix_wins_as_in_stock(both):
    words = ["-t", "3", "--nproc-per-node=2", "--log-line-prefix-template=${hostname}|${rank}|${who}: ", "--no-python",
             WORKERS / "talk.sh"]
    stock, ours = both(words, 0, {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "other"})
    assert said_by_workers(ours.nodes[0]) == said_by_workers(stock.nodes[0])
    assert f"{socket.gethostname()}|1|${{who}}: out-1" in ours.nodes[0].out


def test_lines_with_a_word_are_written_once_more(both):
    stock, ours = both(lambda job: ["-t", "3", "--nproc-per-node=2", f"--log-dir={job.directory}/logs",
                                    "--duplicate-stdout-filters=out-1", "--duplicate-stderr-filters=nope,err-0",
                                    "--no-python", WORKERS / "talk.sh"], 0)
    assert tree(ours.directory / "logs") == tree(stock.directory / "logs")


def test_the_default_log_tree_is_stock_s(both):
    stock, ours = both(["-r", "3", "--nproc-per-node=2", "--no-python", WORKERS / "talk.sh"], 0)

    def base(job):
        directory, = job.directory.glob("torchelastic_*")
        assert re.fullmatch(r"torchelastic_[a-z0-9_]{8}", directory.name)
        return oct(stat.S_IMODE(directory.stat().st_mode)), tree(directory)
    assert base(ours) == base(stock)


# ---- Failures ----

# In an argument $$ stands for a dollar.
FAILURES = {
    "code": 'test "$RANK" = 1 && exit 3; exec sleep 100',
    "signal": 'test "$RANK" = 1 && kill -SEGV $$$$; exec sleep 100',
    "unknown signal": 'test "$RANK" = 1 && kill -35 $$$$; exec sleep 100',
    "stubborn": 'if test "$RANK" = 1; then until test -e "$TMPDIR/set"; do sleep 0.05; done; exit 255; fi; '
                'trap "exit 9" TERM; touch "$TMPDIR/set"; while :; do sleep 0.1; done',
}


def test_error_files_of_every_form_are_reported_as_stock_does(both):
    words = ["--nproc-per-node=7", "--no-python", "python3", "-S", "-E", WORKERS / "errors.py"]
    stock, ours = both(lambda job: [*words, job.directory], 1)
    for job in (stock, ours):
        assert "only a message" in report_of(job.nodes[0]).split("Root Cause")[1]
    assert report_of(ours.nodes[0]) == report_of(stock.nodes[0])


@pytest.mark.parametrize("script", FAILURES.values(), ids=[k.replace(" ", "-") for k in FAILURES])
def test_a_failed_job_is_reported_as_stock_does(both, script):
    stock, ours = both(["--nproc-per-node=2", "--max-restarts=1", "--no-python", "/bin/sh", "-c", script], 1)
    assert report_of(ours.nodes[0]) == report_of(stock.nodes[0])


# ---- Wrong command lines ----

KIND = re.compile(r"^(?:\S+Z \S+ muster\[\d+\] error: )?(?:torchrun: |muster launch: )?"
                  r"(?:[\w.]+\.)?(\w+(?:Error|Exception))\b", re.MULTILINE)
TALK = str(WORKERS / "talk.sh")
WRONG = [
    [],
    ["--nope", TALK],
    ["--nproc-per-node", TALK],
    ["--max-restarts=x", TALK],
    ["--max-restarts=-1", TALK],
    ["--max-restarts=1.5", TALK],
    ["--monitor-interval=x", TALK],
    ["--monitor-interval=0", "--no-python", TALK],
    ["--node-rank=x", TALK],
    ["--master-port=x", TALK],
    ["--no", TALK],
    ["--start-method=nope", TALK],
    ["--standalone=1", TALK],
    ["--nnodes=1:2:3", TALK],
    ["--nnodes=2:20:30", TALK],
    ["--nnodes=x", TALK],
    ["--nnodes=0", TALK],
    ["--nnodes=3:2", TALK],
    ["--nnodes=", TALK],
    ["--nproc-per-node=many", TALK],
    ["--nproc-per-node=", TALK],
    ["--nproc-per-node=0", "--no-python", TALK],
    ["--nproc-per-node=-2", "--no-python", TALK],
    ["--nproc-per-node=1.5", TALK],
    ["--rdzv-conf=a", TALK],
    ["--rdzv-conf==b", TALK],
    ["--rdzv-conf=a=", TALK],
    ["--local-ranks-filter=x", TALK],
    ["--logs-specs=nope", TALK],
    ["--shutdown-timeout=-1", TALK],
    ["--shutdown-timeout=1.5", TALK],
    ["--redirects=4", TALK],
    ["--redirects=0:9", TALK],
    ["-t", "10:1", TALK],
    ["-t", "", TALK],
    ["-m", "--no-python", TALK],
    ["--rdzv-backend=nope", TALK],
    ["--rdzv-backend=", TALK],
    ["--rdzv-backend=static", "--rdzv-endpoint=localhost", TALK],
    ["--rdzv-backend=static", "--rdzv-endpoint=localhost:99999", TALK],
    ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:x", TALK],
    ["--rdzv-backend=c10d", "--rdzv-endpoint=:29400", TALK],
    ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:1", "--rdzv-conf=is_host=0,read_timeout=1", TALK],
    ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-conf=join_timeout=x", TALK],
    ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-conf=join_timeout=-1", TALK],
    ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-conf=store_type=nope", TALK],
    ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-conf=join_timeout=1,last_call_timeout=1",
     "--nnodes=2", TALK],
    ["--no-python", "/nowhere/program"],
    ["--no-python", "/etc/passwd"],
    ["--no-python", "no-program-of-this-name"],
    [f"--log-dir={TALK}", "--no-python", TALK],
    [f"--log-dir={TALK}/logs", "--no-python", TALK],
    ["--event-log-handler=nope", "--no-python", TALK],
    ["--numa-binding=nope", TALK],
    ["-m", "no_module_of_this_name"],
]
WRONG_VARIABLES = [
    {"PET_MAX_RESTARTS": "zz"},
    {"PET_NPROC_PER_NODE": ""},
    {"PET_STANDALONE": "abc"},
    {"PET_NNODES": "2:1"},
    {"PET_TEE": "5"},
    {"PET_SHUTDOWN_TIMEOUT": "-1"},
    {"PET_VIRTUAL_LOCAL_RANK": "1", "PET_NPROC_PER_NODE": "2", "CUDA_VISIBLE_DEVICES": "3"},
    {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "x"},
    {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1.5"},
    {"PET_RDZV_BACKEND": "nope"},
]


def ending(job):
    """How it ended: code and kind, which is the last error's name; of a usage error what was wrong with which."""
    node = job.nodes[0]
    if node.code == 2:
        found = re.search(r"^torchrun: error: .*?(?=could match|\(choose|$)", node.err, re.MULTILINE)
        return 2, found.group() if found and node.err.startswith("usage: torchrun ") else node.err
    kinds = KIND.findall(node.err)
    return node.code, kinds[-1] if kinds else ""


def compare_all(both, table):
    """Every row at once; gives those that end otherwise than stock's."""
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        pairs = list(threads.map(lambda row: both(row[0], environment=row[1]), table))
    endings = [(row, ending(stock), ending(ours), ours.nodes[0].err) for row, (stock, ours) in zip(table, pairs)]
    return [entry for entry in endings if entry[1] != entry[2]]


def test_wrong_command_lines_end_as_stock_s_do(both):
    different = compare_all(both, [(words, None) for words in WRONG])
    assert not different, "\n".join(f"{row[0]}: stock {theirs}, ours {mine}: {said[-300:]}"
                                    for row, theirs, mine, said in different)


def test_wrong_variables_end_as_stock_s_do(both):
    different = compare_all(both, [(["--no-python", TALK], variables) for variables in WRONG_VARIABLES])
    assert not different, "\n".join(f"{row[1]}: stock {theirs}, ours {mine}: {said[-300:]}"
                                    for row, theirs, mine, said in different)


def test_a_missing_script_ends_with_1_as_stock_s_does_and_no_worker_is_started(both):
    stock, ours = both(["--max-restarts=2", "/nowhere/script.py"], code=1)
    assert "ChildFailedError" in stock.nodes[0].err
    assert ours.nodes[0].err.splitlines()[-1].endswith(
        "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/script.py'")

"""Jobs and rendezvous on real etcds: over TLS, by URL, on a cluster that has lost everything; and what of a job goes
through etcd, and what does not."""

import json
import subprocess

import pytest

import etcd_servers
import harness
from ports import free_port
from rdzv_nodes import Join, until
from test_etcd_ill import FILES, LIMIT, Job, b64, call, fleets, has_come  # one is a fixture
from test_etcd_v3 import keys

JOIN = {"etcd": {"timeout": 60, "last_call_timeout": 1}, "etcd-v2": {"join_timeout": 60, "last_call_timeout": 1}}


@pytest.fixture
def joins():
    """joins(endpoint, "job", (2, 2), "127.0.0.1", options, backend="etcd") is one more `muster join`."""
    harness.need_program()
    made = []

    def make(*what, **how):
        made.append(Join(*what, **how))
        return made[-1]

    yield make
    for node in made:
        node.stop()


@pytest.fixture
def jobs(tmp_path):
    """jobs("etcd", cluster, "2") is a job without nodes."""
    made = []

    def make(backend, cluster, nnodes):
        made.append(Job(backend, cluster, tmp_path / f"job{len(made)}", nnodes))
        return made[-1]

    yield make
    for job in made:
        job.end()


def one_world(nodes):
    told = [node.joined(LIMIT) for node in nodes]
    assert sorted(one["rank"] for one in told) == list(range(len(nodes))), told
    assert {one["world_size"] for one in told} == {len(nodes)}, told
    assert len({(one["master_addr"], one["master_port"]) for one in told}) == 1, told


# ---- MASTER_ADDR and MASTER_PORT that the user names ----

@pytest.mark.parametrize("backend", ["etcd", "etcd-v2", "etcd-v3"])
def test_workers_meet_where_the_user_says(etcds, tmp_path, backend):
    harness.need_program()
    cluster, port = etcds(1), free_port()
    words = [harness.program(), "run", "--nnodes=2", "--rdzv-id=job", f"--rdzv-backend={backend}",
             f"--rdzv-endpoint={cluster.endpoint}", f"--rdzv-conf=master_addr=localhost,master_port={port},last_call_timeout=1",
             "--no-python", "sh", "-c", 'echo "$MASTER_ADDR $MASTER_PORT"']
    nodes = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) for _ in range(2)]
    said = [node.communicate(timeout=LIMIT) for node in nodes]
    assert [out for out, _ in said] == [f"localhost {port}\n"] * 2, said


# ---- TLS ----

@pytest.fixture
def guarded(etcds, tmp_path):
    """An etcd that speaks to those only whose certificate it knows, and for each back end the options of one."""
    tls = etcd_servers.Tls(tmp_path, client_auth=True)
    return etcds(1, tls=tls), {backend: dict(zip(names, (tls.ca, tls.client_cert, tls.client_key)))
                               for backend, names in FILES.items()}


@pytest.mark.parametrize("backend, protocol", [("etcd", "https"), ("etcd-v2", "https"), ("etcd-v2", "HTTPS")])
def test_nodes_meet_over_tls(guarded, joins, backend, protocol):
    cluster, files = guarded
    options = {**JOIN[backend], **files[backend], "protocol": protocol}
    nodes = [joins(cluster.endpoint, "job", (2, 2), f"127.0.0.{i + 1}", options, backend=backend) for i in range(2)]
    one_world(nodes)
    assert [node.end(LIMIT) for node in nodes] == [0, 0]


def test_jobs_run_over_tls(guarded, fleets):
    cluster, files = guarded
    fleet = fleets(cluster, nnodes="2", nodes=0)
    for job in fleet:
        for _ in range(2):
            job.node(conf="".join(f",{name}={value}" for name, value in files[job.backend].items()))
    worlds = fleet.settled(2)
    fleet.fail()
    fleet.settled(2, worlds)
    fleet.had(2)
    fleet.finish()


# ---- URLs ----

URL_OPTIONS = "last_call_timeout=1&timeout=120"


def test_nodes_meet_by_url(etcds, joins):
    """Some say more than is needed."""
    cluster = etcds(1)
    url = f"etcd://{cluster.endpoint}/a%20job?min_workers=3&max_workers=3&{URL_OPTIONS}"
    short = f"etcd://{cluster.endpoint}/a%20job"
    command = [harness.program(), "join", "--json", "--hold", "1", "--rdzv-backend", "etcd"]
    asked = [["--rdzv-endpoint", url], ["--rdzv-endpoint", url, "--rdzv-id", "a job", "--nnodes", "1"],
             ["--rdzv-endpoint", short, "--nnodes", "3", "--rdzv-conf", "last_call_timeout=1,timeout=120"]]
    nodes = [subprocess.Popen([*command, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                              env=harness.quiet_environment()) for words in asked]
    try:
        told = [json.loads(node.communicate(timeout=LIMIT)[0].splitlines()[0]) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
            node.communicate()
    assert sorted(one["rank"] for one in told) == [0, 1, 2], told
    assert {(one["run_id"], one["world_size"]) for one in told} == {("a job", 3)}, told


def variables(start):
    with open(f"/proc/{start.pid}/environ", "rb") as file:
        return dict(entry.split(b"=", 1) for entry in file.read().split(b"\0") if b"=" in entry)


def test_a_job_runs_by_url(etcds, jobs):
    cluster = etcds(1)
    job = jobs("etcd", cluster, "2")
    url = f"etcd://{cluster.endpoint}/{job.run_id}"
    worker = ["--max-restarts", 3, "--no-python", "sh", job.directory / "worker", job.directory]
    job.muster("--rdzv-backend", "etcd", "--rdzv-endpoint", f"{url}?min_workers=2&max_workers=2&{URL_OPTIONS}", *worker)
    job.muster("--rdzv-backend", "etcd", "--rdzv-endpoint", f"{url}?timeout=120", "--nnodes", "2", "--rdzv-id",
               job.run_id, "--rdzv-conf", "last_call_timeout=1", *worker)
    world = job.settled(2)
    assert has_come(job, cluster[0])
    for start in job.worlds()[world]:
        assert variables(start)[b"TORCHELASTIC_RUN_ID"] == job.run_id.encode()
    job.fail()
    job.settled(2, world)
    job.had(2)
    job.finish()


@pytest.mark.parametrize("command", ["join", "run"])
def test_two_names_of_one_job_are_one_too_many(command):
    harness.need_program()
    tail = ["--no-python", "true"] if command == "run" else []
    done = subprocess.run([harness.program(), command, "--rdzv-backend", "etcd", "--rdzv-endpoint",
                           "etcd://127.0.0.1:1/job?min_workers=1&max_workers=1", "--rdzv-id", "none", *tail],
                          capture_output=True, text=True, timeout=LIMIT, env=harness.quiet_environment())
    assert done.returncode != 0
    assert "the run id is 'none', but the URL says 'job'" in done.stderr, done.stderr


@pytest.mark.parametrize("command", ["join", "run"])
def test_a_url_that_names_no_job_is_said(command):
    harness.need_program()
    tail = ["--no-python", "true"] if command == "run" else []
    done = subprocess.run([harness.program(), command, "--rdzv-backend", "etcd", "--rdzv-endpoint",
                           "etcd://127.0.0.1:1?min_workers=1&max_workers=1", *tail],
                          capture_output=True, text=True, timeout=LIMIT, env=harness.quiet_environment())
    assert done.returncode != 0
    assert "it names no run id" in done.stderr, done.stderr


# ---- A cluster that comes back empty ----

def test_a_cluster_that_comes_back_empty_disturbs_no_worker(etcds, fleets):
    cluster = etcds(3)
    fleet = fleets(cluster)
    worlds = fleet.settled(2)
    cluster.kill_all()
    for member in cluster.members:
        member.wipe()
    cluster.start_all()
    for job in fleet:
        job.until(lambda job=job: has_come(job, cluster.leader()), "the job is in etcd again")
    fleet.undisturbed(worlds)
    fleet.fail()
    worlds = fleet.settled(2, worlds)
    for job in fleet:
        job.node()
    fleet.settled(3, worlds)
    fleet.finish()


# ---- What stays in etcd ----

def test_a_job_that_has_ended_leaves_nothing_behind(etcds, jobs):
    job_lease = 20
    cluster = etcds(1)
    job = jobs("etcd-v3", cluster, "2")
    for _ in range(2):
        job.node(conf=f",job_lease={job_lease}")
    world = job.settled(2)
    job.fail()
    job.settled(2, world)
    root = f"/muster/{job.run_id}/job/"
    assert root + "doc" in keys(cluster[0])
    job.let_end()
    job.until(lambda: root + "closed" in keys(cluster[0]), "it is closed")
    job.finish()
    job.had(2)
    assert not [key for key in keys(cluster[0]) if "/nodes/" in key and not key.endswith("/done")]
    until(lambda: not keys(cluster[0]) and not call(cluster[0], "/v3/lease/leases").get("leases"), job_lease + 30,
          "an empty etcd")  # which itself takes a moment; and a loaded machine


# ---- What goes through etcd ----

NODES, WORKERS_EACH, BARRIERS = 2, 4, 5
BARRIER_WORKER = """
echo up >> "$1/up"
while [ ! -e "$1/go" ]; do sleep 0.1; done
for turn in $(seq $3); do
    "$2" store barrier --endpoint $MASTER_ADDR:$MASTER_PORT test/$turn $WORLD_SIZE || exit 1
done
echo met >> "$1/met"
while [ ! -e "$1/end" ]; do sleep 0.1; done
"""


def revision(member):
    """How many writes there have been, and one."""
    return int(call(member, "/v3/kv/range", key=b64("x"))["header"]["revision"])


def quiet(member):
    """The revision, once it has been the same for a second."""
    seen = []

    def same():
        seen.append(revision(member))
        return len(seen) > 20 and len(set(seen[-20:])) == 1
    until(same, LIMIT, "nobody writes")
    return seen[-1]


def kinds(member, run_id):
    """What there is of a job, but for which node and which world, and for what nodes tell those who come later."""
    names = {key.removeprefix(f"/muster/{run_id}/") for key in keys(member, f"/muster/{run_id}/")}
    return {name if name.startswith("job/") else name.split("/")[0] for name in names} - {"job/news"}


def test_ranks_and_barriers_do_not_go_through_etcd(etcds, jobs, joins):
    """A job writes what nodes that just meet do."""
    conf = {"lease": 60, "join_timeout": 120}
    cluster = etcds(1)
    member = cluster[0]
    began = quiet(member)
    one_world([joins(member.endpoint, "bare", (NODES, NODES), f"127.0.0.{i + 1}", conf, "--hold", "600",
                     backend="etcd-v3") for i in range(NODES)])
    met = quiet(member)
    assert NODES < met - began <= 3 * NODES

    job = jobs("etcd-v3", cluster, f"{NODES}")
    (job.directory / "worker").write_text(BARRIER_WORKER)
    for _ in range(NODES):
        job.muster("--rdzv-backend", "etcd-v3", "--rdzv-endpoint", member.endpoint, "--rdzv-id", job.run_id, "--nnodes",
                   NODES, "--nproc-per-node", WORKERS_EACH, "--rdzv-conf", ",".join(f"{k}={v}" for k, v in conf.items()),
                   "--no-python", "sh", job.directory / "worker", job.directory, harness.program(), BARRIERS)

    def all_are(what):
        path = job.directory / what
        job.until(lambda: path.exists() and len(path.read_text().split()) == NODES * WORKERS_EACH, f"all are {what}")
    all_are("up")
    runs = quiet(member)
    assert runs - met <= 3 * NODES
    assert kinds(member, job.run_id) == kinds(member, "bare")
    (job.directory / "go").touch()
    all_are("met")
    assert quiet(member) == runs
    assert kinds(member, job.run_id) == kinds(member, "bare")
    job.finish()

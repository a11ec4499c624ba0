"""Options of the back ends: the manual, the page about etcd and the program have the same ones, and what is wrong is named."""

import re

import pytest

from serving import ROOT, run

BACKENDS = ["etcd", "etcd-v2", "etcd-v3"]
ALL_BACKENDS = [*BACKENDS, "c10d", "static"]
SOURCES = {"etcd": "etcd_params.c", "etcd-v2": "etcd_v2_uv.c", "etcd-v3": "etcd_v3_params.c", "c10d": "c10d_uv.c",
           "static": "static_uv.c"}
# Known to every back end: the commands set some of them, and the manual has the others in front of its sections.
BY_ALL = {"timeout", "use_agent_store", "bind", "allow", "master_addr", "master_port"}
COMMANDS = {"join": (["join"], [], 2), "run": (["run", "--no-python"], ["false"], 1)}  # and the code of a wrong value
HANDLER = ROOT / "src" / "handler"
NOBODY = "127.0.0.1:1"
ENDS = "protocol=ftp"  # what is wrong for all of them, so that nobody tries to reach anybody
REFUSED = "is unknown to the"


# ---- What there is ----


def manual():
    """Of each back end the options, and what is said about them."""
    page = (ROOT / "docs" / "man" / "muster-join.1.scd").read_text()
    configuration = re.search(r"^# CONFIGURATION$(.*?)^# ", page, re.MULTILINE | re.DOTALL)[1]
    sections = {}
    for name, text in re.findall(r"^## ([a-z0-9-]+)\n\n(.*?)(?=^## |\Z)", configuration, re.MULTILINE | re.DOTALL):
        shared = re.match(r"(\*.*?)as for \*c10d\*, and:\n\n", text, re.DOTALL)
        as_others = {option: "" for option in re.findall(r"\*([a-z_]+)\*", shared[1])} if shared else {}
        terms = {option: said for line, said in re.findall(r"^(\*.*\*)\n((?:\t.*\n)+)", text, re.MULTILINE)
                 for option in re.findall(r"\*([a-z_]+)\*", line)}
        sections[name] = {**as_others, **terms}
    return sections


def table(backend):
    """The options that the program knows."""
    text = (HANDLER / "option_table.c").read_text()
    groups = {name: value for name, value in re.findall(r"^    ([A-Z0-9_]+) = ([A-Z0-9_ |]+),$", text, re.MULTILINE)}
    mine = re.search(rf'{{ "{backend}", ([A-Z0-9_]+) }}', text)[1]

    def has(bits):
        return any(name == mine or has(groups.get(name, "")) for name in re.findall(r"[A-Z][A-Z0-9_]*", bits))
    return {key for key, bits in re.findall(r'^    \{ "([a-z_]+)", (.*?) \},', text, re.MULTILINE) if has(bits)}


def read_in(name):
    """The options that a source file reads."""
    text = (HANDLER / name).read_text()
    return set(re.findall(r'params, "([a-z_]+)"', text)) | set(re.findall(r'\{ "([a-z_]+)", &settings', text))


def attempt(command, backend, *conf, endpoint=NOBODY, env=None):
    words, tail, _ = COMMANDS[command]
    options = ["--rdzv-conf", ",".join(conf)] if conf else []
    ended = run(*words, "--rdzv-backend", backend, "--rdzv-endpoint", endpoint, "--rdzv-id", "job", "--nnodes", "1",
                *options, *tail, env=env)
    assert ended.out == b"" and "ChildFailedError" not in ended.err  # no worker has run
    return ended


def assert_refused(ended, command, said):
    assert ended.code == COMMANDS[command][2], ended
    last = ended.err.splitlines()[-1]
    if command == "run":
        assert " error: muster run: ValueError: " in last
    else:
        assert last.startswith("muster join: ")
    assert said in last, last


# ---- The same everywhere ----


@pytest.mark.parametrize("backend", ALL_BACKENDS)
def test_the_manual_has_the_options_that_the_program_knows(backend):
    assert set(manual()[backend]) - BY_ALL == table(backend) - BY_ALL


@pytest.mark.parametrize("backend", ALL_BACKENDS)
def test_the_program_knows_the_options_that_it_reads(backend):
    shared = set() if backend in ("etcd", "static") else read_in("settings.c")
    assert read_in(SOURCES[backend]) | shared <= table(backend) | BY_ALL


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_program_takes_every_option_of_the_manual(backend, command):
    fine = {"dialect": "1.13", "use_agent_store": "true", "store_type": "tcp", "is_host": "false",
            **dict.fromkeys(FILES[backend], ROOT / "LICENSE")}  # which is looked for, not read
    conf = [f"{option}={fine.get(option, 10)}" for option in manual()[backend] if option != "protocol"]
    ended = attempt(command, backend, *conf, ENDS)
    assert REFUSED not in ended.err
    assert_refused(ended, command, "'ftp' is neither http nor https")


def test_the_page_has_the_options_of_the_manual_and_their_defaults():
    page = (ROOT / "docs" / "ETCD.md").read_text()
    rows = re.findall(r"^\| (`[a-z_]+=.*?) \|", page, re.MULTILINE)
    there = dict(re.findall(r"`([a-z_]+)=([^`]+)`", "".join(rows)))
    sections = manual()
    without_effect = {option for option, said in sections["etcd-v3"].items() if said.startswith("\tAccepted")}
    assert set(there) == set(sections["etcd-v3"]) - without_effect - BY_ALL
    for option, value in there.items():
        if value.isdigit():
            said = (sections["etcd-v3"][option] or sections["c10d"][option])
            assert re.search(rf"Default: (\d+ and )*{value}\b", " ".join(said.split())), (option, value, said)


def test_nothing_but_the_commands_reads_the_environment():
    """And they read two variables for the rendezvous, which both manuals have."""
    for layer in ("base", "rdzv", "store", "kv", "handler"):
        for path in (ROOT / "src" / layer).glob("*.c"):
            assert "getenv" not in path.read_text(), path
    for name in ("muster-join", "muster-run"):
        page = (ROOT / "docs" / "man" / f"{name}.1.scd").read_text()
        assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" in page and "MUSTER_TOKEN_FILE" in page


# ---- What is wrong ----


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("backend, option, near", [
    ("c10d", "jion_timeout", "join_timeout"), ("c10d", "rank", None), ("c10d", "lease", None),
    ("etcd", "last_calltimeout", "last_call_timeout"), ("etcd", "join_timeout", "timeout"), ("etcd", "ca_cert", "cacert"),
    ("etcd-v2", "lesae", None), ("etcd-v2", "cacert", "ca_cert"), ("etcd-v2", "etcd_prefix", None),
    ("etcd-v3", "lesae", "lease"), ("etcd-v3", "Lease", "lease"), ("etcd-v3", "ca_cert", "cacert"), ("etcd-v3", "rank", None),
    ("static", "timout", "timeout"), ("static", "join_timeout", "timeout"), ("static", "colour", None)])
def test_an_unknown_option_is_an_error_that_suggests_the_nearest(backend, option, near, command):
    ended = attempt(command, backend, "timeout=5", f"{option}=3")
    assert_refused(ended, command, f"option '{option}' {REFUSED} {backend} back end")
    assert ("did you mean" in ended.err) == (near is not None), ended
    assert near is None or f"; did you mean '{near}'?" in ended.err, ended


def test_an_unknown_option_by_the_environment_is_an_error():
    assert_refused(attempt("run", "etcd-v3", env={"PET_RDZV_CONF": "lesae=3"}), "run", f"option 'lesae' {REFUSED} etcd-v3")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_part_of_a_password_is_not_named(command):
    ended = attempt(command, "etcd-v3", "user=ann", "password=hunter", "2=x")
    assert_refused(ended, command, f"what follows option 'password' {REFUSED} etcd-v3")


TIMES = ["join_timeout", "last_call_timeout", "close_timeout"]
DYNAMIC = [*TIMES, "heartbeat_timeout", "keep_alive_interval", "keep_alive_max_attempt", "lost_node_wait", "read_timeout",
           "store_lost_timeout"]
BACK_OFF = [("cas_backoff_max_seconds", value, f"'{value}' must be a finite number of seconds") for value in ("-1", "inf", "soon")]
FILES = {"etcd": ["cacert", "cert"], "etcd-v2": ["ca_cert", "ssl_cert"], "etcd-v3": ["cacert", "cert", "key"]}
WRONG = {  # of each back end: options, a wrong value, and what else is said beside the option's name
    "etcd": [*((option, "-1", "-1 s is not in") for option in ("timeout", "last_call_timeout", "close_timeout")),
             ("timeout", "soon", "not a whole number"), ("dialect", "3", "none of 2.x, 2.5, "),
             ("protocol", "ftp", "neither http nor https")],
    "etcd-v2": [*((option, "-1", "") for option in DYNAMIC), *((option, "soon", "not a whole number") for option in DYNAMIC),
                *BACK_OFF,
                ("dialect", "3", "none of 2.x, 2.5, "), ("protocol", "ftp", "neither http nor https"),
                ("use_agent_store", "perhaps", "no truth value"), ("ssl_cert_key", "/k", "needs 'ssl_cert'")],
    "etcd-v3": [*((option, "-1", "") for option in DYNAMIC), *((option, "soon", "not a whole number") for option in DYNAMIC),
                *BACK_OFF,
                ("lease", "1", "1 s is not in 2..3600"), ("lease", "3601", "not in 2..3600"), ("job_lease", "9", "not in 10..3600"),
                ("fence", "0", "0 s is not in 1..86400"), ("restart_window", "0", "0 s is not in 1.."),
                ("protocol", "ftp", "neither http nor https"), ("use_agent_store", "perhaps", "no truth value"),
                ("user", "ann", "given together"), ("password", "x", "given together")],
}
ANY_TEXT = {"etcd_prefix", "token", "key"}  # nothing is wrong with any text; a key counts with its certificate


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_option_of_the_manual_is_given_wrong_here(backend):
    idle = {"dialect", "store_type", "is_host", "engine"} if backend == "etcd-v3" else set()
    given = {option for option, _, _ in WRONG[backend]} | set(FILES[backend])
    assert given | ANY_TEXT | idle >= set(manual()[backend])


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_wrong_value_is_an_error_that_names_its_option(backend, command):
    for option, value, said in WRONG[backend]:
        ended = attempt(command, backend, f"{option}={value}")
        assert_refused(ended, command, said)
        assert re.search(rf"\b{option}\b", ended.err), (option, ended)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_file_that_is_not_there_is_named(backend, command):
    for option in FILES[backend]:
        ended = attempt(command, backend, f"{option}=/nowhere/{option}.pem", "protocol=https")
        assert ended.code == 1 and f"'/nowhere/{option}.pem': No such file or directory" in ended.err, ended


# ---- URLs ----


URL = f"etcd://{NOBODY}/job?"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_url_has_the_options_of_the_manual(command):
    page = (ROOT / "docs" / "man" / "muster-join.1.scd").read_text()
    own = re.findall(r"\*([a-z_]+)\*=_N_", page[page.index("*etcd://*"):])
    assert own == ["min_workers", "max_workers"]
    fine = {"dialect": "1.13", "protocol": "ftp"}
    keys = "&".join(f"{key}={fine.get(key, 1)}" for key in [*own, *manual()["etcd"]])
    assert_refused(attempt(command, "etcd", endpoint=URL + keys), command, "'ftp' is neither http nor https")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("url, said", [
    (URL + "lesae=3", f"'lesae' {REFUSED} etcd back end"),
    (URL + "join_timeout=3", f"'join_timeout' {REFUSED} etcd back end"),
    (URL + "min_workers=0", "'min_workers' must be a number above 0"),
    (URL + "max_workers=few", "'max_workers' must be a number above 0"),
    (URL + "timeout=1&timeout=2", "'timeout' is given twice"),
    (URL + "timeout", "is not KEY=VALUE"),
    (f"etcd://{NOBODY}", "names no run id"),
    (f"etcd://{NOBODY}/other", "the run id is 'job', but the URL says 'other'"),
    ("etcd:///job", "names no host"),
])
def test_what_is_wrong_with_a_url_is_said(url, said, command):
    assert_refused(attempt(command, "etcd", endpoint=url), command, said)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("backend", ["etcd-v2", "etcd-v3"])
def test_the_others_take_no_url(backend, command):
    assert_refused(attempt(command, backend, endpoint=URL + "min_workers=1"), command, "is not [http[s]://]HOST[:PORT]")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_endpoint_that_is_none_is_named(backend, command):
    for endpoint in ("ftp://a:1", "b:99999", "c:x"):
        ended = attempt(command, backend, endpoint=f"{NOBODY},{endpoint}")
        assert_refused(ended, command, f"endpoint '{endpoint}' is not [http[s]://]HOST[:PORT]")

"""The words that `muster` understands before anything is started."""

import re

import pytest

from serving import ROOT, run

STORE_COMMANDS = ["get", "set", "add", "wait", "delete", "list", "num-keys", "barrier"]
AT_NOBODY = ["--endpoint", "127.0.0.1:1"]  # usage errors come before any connection


def assert_help_reads_well(text):
    assert all(len(line) <= 80 for line in text.splitlines()), "wider than 80 columns"
    assert "usage: muster" in text and "--help" in text


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"]])
def test_help_lists_the_commands(words):
    ended = run(*words)
    assert (ended.code, ended.err) == (0, "")
    assert_help_reads_well(ended.out.decode())
    assert "store" in ended.out.decode()


def test_version_is_one_line():
    ended = run("--version")
    assert ended.code == 0 and ended.out.startswith(b"muster ") and ended.out.count(b"\n") == 1


def test_no_command_shows_the_help_on_stderr():
    ended = run()
    assert ended.code == 2 and ended.out == b""
    assert_help_reads_well(ended.err)


def test_launch_is_run_in_its_older_form(tmp_path):
    (tmp_path / "x.py").touch()
    helped = run("launch", "--help").out.decode()
    assert "--no-python --use-env ./worker.sh" in helped, "launch refuses --no-python alone"
    assert "--use-env" not in run("run", "--help").out.decode()
    for words, said in ((["x.py", "a"], b"-u x.py --local-rank=0 a\n"), (["--use_env", "x.py", "a"], b"-u x.py a\n")):
        ended = run("launch", *words, env={"PYTHON_EXEC": "/bin/echo"}, cwd=tmp_path)
        assert (ended.code, ended.out) == (0, said) and "deprecated" in ended.err


@pytest.mark.parametrize("words, said", [
    (["start"], "muster: unknown command 'start' (see 'muster --help')"),
    (["--start"], "muster: unknown option '--start' (see 'muster --help')"),
    (["store", "fetch"], "muster store: unknown command 'fetch' (see 'muster store --help')"),
])
def test_unknown_commands_are_usage_errors(words, said):
    ended = run(*words)
    assert (ended.code, ended.out, ended.line) == (2, b"", said)


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"], ["--port", "0", "--help"]])
def test_store_help_tells_what_it_is_and_how_workers_use_it(words):
    ended = run("store", *words)
    text = ended.out.decode()
    assert (ended.code, ended.err) == (0, "")
    assert_help_reads_well(text)
    for option in ("--host", "--port", "--listen-fd", "--allow", "--token-file", "--dialect", "--key-bytes", "--value-bytes", "--keys",
                   "--request-bytes", "--unsent-bytes", "--connections", "--total-bytes", "--log-level"):
        assert f"\n  {option} " in text
    for word in ("29500", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE=True",
                 "TORCHELASTIC_RESTART_COUNT=0", "Examples:"):
        assert word in text
    for command in STORE_COMMANDS:
        assert f"\n  {command} " in text


@pytest.mark.parametrize("command", STORE_COMMANDS)
def test_every_store_command_has_a_help(command):
    ended = run("store", command, "--help")
    text = ended.out.decode()
    assert (ended.code, ended.err) == (0, "")
    assert_help_reads_well(text)
    assert f"usage: muster store {command}" in text
    assert ("\n  --wait " in text) == (command == "get")
    for option in ("--endpoint", "--timeout", "--prefix", "--raw", "--dialect"):
        assert f"\n  {option} " in text


def test_the_manual_has_the_same_options_and_commands_as_the_help():
    manual = (ROOT / "docs" / "man" / "muster-store.1.scd").read_text()
    helps = "".join(run("store", *words, "--help").out.decode() for words in [[], *[[name] for name in STORE_COMMANDS]])
    documented = set(re.findall(r"^\*(--[a-z-]+)\*", manual, re.MULTILINE))
    assert documented == set(re.findall(r"^  (--[a-z-]+) ", helps, re.MULTILINE))
    assert set(re.findall(r"^\*muster store\* \*([a-z-]+)\*", manual, re.MULTILINE)) == set(STORE_COMMANDS)


@pytest.mark.parametrize("words, said", [
    (["--prot", "1"], "unknown option '--prot'"),
    (["-p", "1"], "unknown option '-p'"),
    (["--port"], "option '--port' needs a value"),
    (["--help=yes"], "option '--help' takes no value"),
    (["--port", "65536"], "option '--port': '65536' must be a port from 0 to 65535"),
    (["--port", "http"], "option '--port': 'http' must be a port"),
    (["--port=-1"], "option '--port': '-1' must be a port"),
    (["--port", "0", "extra"], "unexpected 'extra'; usage: muster store [OPTIONS]"),
    (["--port", "0", "--", "extra"], "unexpected 'extra'; usage: muster store [OPTIONS]"),
    (["--listen-fd", "x"], "option '--listen-fd': 'x' must be a number, 0 or above"),
    (["--listen-fd", "3", "--host", "::1"], "options '--host' and '--listen-fd' exclude each other"),
    (["--dialect", "2.x"], "option '--dialect': '2.x' must be auto, 1.13 or 2.1"),
    (["--dialect", "3"], "option '--dialect': '3' must be auto, 1.13 or 2.1"),
    (["--allow", "10.0.0.0/33"], "option '--allow': '10.0.0.0/33': the prefix length must be 0 to 32"),
    (["--allow", "10.0.0.1/8"], "option '--allow': '10.0.0.1/8' has address bits set beyond its prefix length"),
    (["--allow", "somewhere"], "option '--allow': 'somewhere' is not a network like 10.0.0.0/8"),
    (["--key-bytes", "0"], "option '--key-bytes': '0' must be a number of bytes above 0"),
    (["--value-bytes", "1T"], "option '--value-bytes': '1T' must be a number of bytes"),
    (["--value-bytes", "64KB"], "option '--value-bytes': '64KB' must be a number of bytes"),
    (["--total-bytes", "99999999999G"], "option '--total-bytes': '99999999999G' must be a number of bytes"),
    (["--keys", "many"], "option '--keys': 'many' must be a number above 0"),
    (["--connections", "-3"], "option '--connections': '-3' must be a number above 0"),
    (["--key-bytes", "2M"], "a limit of 2097152 bytes (key) is over 1048576"),
    (["--value-bytes", "2G"], "a limit of 2147483648 bytes (value) is over 1073741824"),
    (["--request-bytes", "1K"], "a request limit of 1024 bytes is below the key limit of 8192"),
    (["--log-level", "loud"], "option '--log-level': 'loud' must be debug, info, notice, warning or error"),
])
def test_bad_server_options_are_usage_errors(words, said):
    ended = run("store", *words)
    assert (ended.code, ended.out) == (2, b"")
    assert ended.line.startswith(f"muster store: {said}") and ended.line.endswith(" (see 'muster store --help')")


def test_an_option_may_be_given_only_so_often():
    ended = run("store", *["--allow", "10.0.0.0/8"] * 65)
    assert ended.code == 2 and "'--allow'" in ended.line


@pytest.mark.parametrize("command, words, said", [
    ("get", ["--nope", "k"], "unknown option '--nope'"),
    ("set", ["--wait", "k", "v"], "unknown option '--wait'"),
    ("get", [], "KEY is missing; usage: muster store get [OPTIONS] KEY"),
    ("get", ["a", "b"], "unexpected 'b'; usage: muster store get [OPTIONS] KEY"),
    ("set", ["k"], "VALUE is missing; usage: muster store set [OPTIONS] KEY VALUE"),
    ("set", ["k", "v", "w"], "unexpected 'w'; usage: muster store set [OPTIONS] KEY VALUE"),
    ("set", ["k", "-v"], "unknown option '-v'"),
    ("add", ["k"], "N is missing; usage: muster store add [OPTIONS] KEY N"),
    ("add", ["k", "one"], "'one' must be a whole number that fits in 64 bits"),
    ("add", ["k", "1.5"], "'1.5' must be a whole number that fits in 64 bits"),
    ("add", ["k", ""], "'' must be a whole number that fits in 64 bits"),
    ("add", ["k", "9223372036854775808"], "'9223372036854775808' must be a whole number that fits in 64 bits"),
    ("wait", [], "KEY is missing; usage: muster store wait [OPTIONS] KEY..."),
    ("delete", [], "KEY is missing; usage: muster store delete [OPTIONS] KEY"),
    ("list", ["k"], "unexpected 'k'; usage: muster store list [OPTIONS]"),
    ("num-keys", ["k"], "unexpected 'k'; usage: muster store num-keys [OPTIONS]"),
    ("barrier", ["k"], "WORLD_SIZE is missing; usage: muster store barrier [OPTIONS] KEY WORLD_SIZE"),
    ("barrier", ["k", "0"], "'0' must be a number of callers above 0"),
    ("barrier", ["k", "-2"], "'-2' must be a number of callers above 0"),
    ("get", ["k", "--timeout"], "option '--timeout' needs a value"),
    ("get", ["k", "--timeout", "0"], "option '--timeout': '0' must be a number of seconds above 0"),
    ("get", ["k", "--timeout", "-1"], "option '--timeout': '-1' must be a number of seconds above 0"),
    ("get", ["k", "--timeout", "soon"], "option '--timeout': 'soon' must be a number of seconds above 0"),
    ("get", ["k", "--timeout", "inf"], "option '--timeout': 'inf' must be a number of seconds above 0"),
    ("get", ["k", "--timeout", "1.2.3"], "option '--timeout': '1.2.3' must be a number of seconds above 0"),
    ("get", ["k", "--dialect", "3"], "option '--dialect': '3' must be auto, 1.13, 2.1 or 2.x"),
])
def test_bad_words_of_a_command_are_usage_errors(command, words, said):
    ended = run("store", command, *AT_NOBODY, *words)
    assert (ended.code, ended.out) == (2, b"")
    assert ended.line == f"muster store {command}: {said} (see 'muster store {command} --help')" or \
        ended.line.startswith(f"muster store {command}: {said},")


@pytest.mark.parametrize("endpoint, said", [
    ("", "the host must be 1 to 255 bytes long"),
    ("localhost", "a port is needed (HOST:PORT)"),
    ("::1", "a port is needed (HOST:PORT)"),
    (":29500", "the host must be 1 to 255 bytes long"),
    ("localhost:", "the port must be a number"),
    ("localhost:0", "a port is needed (HOST:PORT)"),
    ("localhost:65536", "the port must be a number"),
    ("localhost:http", "the port must be a number"),
    ("[::1:29500", "is not of the form HOST:PORT"),
    ("[::1]29500", "is not of the form HOST:PORT"),
    ("[]:29500", "the host must be 1 to 255 bytes long"),
    ("x" * 256 + ":1", "the host must be 1 to 255 bytes long"),
])
def test_bad_endpoints_are_usage_errors(endpoint, said):
    ended = run("store", "get", "--endpoint", endpoint, "k")
    assert ended.code == 2
    assert ended.line.startswith("muster store get: option '--endpoint': ") and said in ended.line


@pytest.mark.parametrize("env", [{}, {"MASTER_ADDR": "127.0.0.1"}, {"MASTER_PORT": "29500"},
                                 {"MASTER_ADDR": "", "MASTER_PORT": "29500"}])
def test_without_an_endpoint_both_variables_are_needed(env):
    ended = run("store", "get", "k", env=env)
    assert ended.code == 2 and "--endpoint HOST:PORT" in ended.line and "MASTER_ADDR" in ended.line


@pytest.mark.parametrize("port", ["x", "0", "70000"])
def test_a_bad_master_port_is_a_usage_error(port):
    ended = run("store", "get", "k", env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
    assert ended.code == 2 and f"MASTER_PORT: '{port}' must be a port from 1 to 65535" in ended.line


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["store", "--help"], ["store", "get", "--help"]])
def test_output_that_cannot_be_written_is_an_error(words):
    with open("/dev/full", "wb") as full:
        ended = run(*words, stdout=full)
    assert ended.code == 1 and ended.line.endswith("cannot write to standard output: No space left on device")

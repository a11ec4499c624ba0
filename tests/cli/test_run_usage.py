"""`muster run`, and a link to it named torchrun, up to the point where anything would be started."""

import json
import os
import subprocess

import pytest

from serving import MUSTER, environment, run

CLEAN = {"PATH": os.environ["PATH"]}


@pytest.fixture
def torchrun(tmp_path):
    """Runs the program under its other name."""
    link = tmp_path / "torchrun"
    link.symlink_to(MUSTER)

    def start(*words, env=None, **how):
        return subprocess.run([link, *words], env={**CLEAN, **(env or {})}, capture_output=True, text=True, check=False,
                              timeout=30, **how)
    return start


def dry_run(*words, env=None, program="run"):
    done = run(program, "--dry-run", *words, env=env)
    assert done.code == 0, done
    return done.out.decode()


def command_of(text):
    """The first worker's command as a shell reads it."""
    lines = text.split("\n")
    return lines[lines.index("command of the first worker:") + 1]


@pytest.mark.parametrize("words, error", [
    ([], "the following arguments are required: training_script, training_script_args"),
    (["--nope", "x.py"], "unrecognized arguments: --nope"),
    (["--max-restarts=x", "x.py"], "argument --max-restarts/--max_restarts: invalid int value: 'x'"),
    (["--no", "x.py"], "ambiguous option: --no could match --no-python, --node-rank"),
])
def test_a_wrong_command_line_shows_usage_and_one_error(torchrun, words, error):
    done = torchrun(*words)
    assert done.returncode == 2 and done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0].startswith("usage: torchrun [-h] [--nnodes NNODES]")
    assert lines[-2] == "                training_script ..."
    assert lines[-1] == f"torchrun: error: {error}"


def test_the_program_is_called_as_it_was_called():
    done = run("run", "--nope", "x.py")
    assert done.code == 2
    assert done.err.startswith("usage: muster run [-h]") and "\nmuster run: error: unrecognized" in done.err


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--nnodes=2", "--he"]])
def test_help_is_short_and_begins_with_examples(torchrun, words):
    done = torchrun(*words)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.index("Examples:") < done.stdout.index("--nproc-per-node N ") < done.stdout.index("Exit status")
    assert len(done.stdout.splitlines()) < 100


@pytest.mark.parametrize("words, env, kind", [
    (["--nnodes=1:2:3"], {}, "RuntimeError"),
    (["--nnodes=x"], {}, "ValueError"),
    (["--nnodes=3:2"], {}, "AssertionError"),
    (["--max-restarts=-1"], {}, "AssertionError"),
    (["--nproc-per-node=abc"], {}, "ValueError"),
    ([], {"PET_NPROC_PER_NODE": ""}, "ValueError"),
    ([], {"PET_STANDALONE": "abc"}, "ValueError"),
    (["--rdzv-conf=a", "--rdzv-backend=c10d"], {}, "ValueError"),
    (["--logs-specs=x"], {}, "ValueError"),
    (["-m", "--no-python"], {}, "ValueError"),
    (["--rdzv-endpoint=h"], {}, "ValueError"),
    (["--nproc-per-node=0"], {}, "AssertionError"),
    (["--event-log-handler=foo"], {}, "KeyError"),
    (["--metrics=foo"], {}, "ValueError"),
    (["--numa-binding=node", "--nproc-per-node=2000"], {}, "RuntimeError"),
    ([], {"LOGLEVEL": "17"}, "ValueError"),
    (["--no-python"], {}, "FileNotFoundError"),
    ([], {"PYTHON_EXEC": "/etc/passwd"}, "PermissionError"),
])
def test_what_cannot_work_is_one_line_with_its_kind(torchrun, words, env, kind):
    done = torchrun(*words, "x.py", env=env)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith(f"torchrun: {kind}: ") or f"\ntorchrun: {kind}: " in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"torchrun: {kind}: ")


@pytest.mark.parametrize("words", [[], ["--run-path"]])
def test_a_missing_script_is_an_error_before_anything_is_started(torchrun, tmp_path, words):
    done = torchrun(*words, "--max-restarts=3", f"--log-dir={tmp_path / 'logs'}", "nowhere.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (f"torchrun: FileNotFoundError: [Errno 2] No such file or directory: 'nowhere.py' (in '{tmp_path}')\n")
    assert not (tmp_path / "logs").exists()


def test_a_missing_script_of_an_absolute_path_is_named(torchrun):
    done = torchrun("/nowhere/script.py")
    assert done.returncode == 1
    assert done.stderr == "torchrun: FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/script.py'\n"


def test_a_script_below_a_file_is_named(torchrun, tmp_path):
    (tmp_path / "file").touch()
    done = torchrun(f"{tmp_path}/file/script.py")
    assert done.returncode == 1 and "[Errno 20] Not a directory: " in done.stderr


def test_a_script_named_after_its_local_rank_is_found(torchrun, tmp_path):
    (tmp_path / "train_0.py").write_text("print('ran')\n")
    done = torchrun(f"--log-dir={tmp_path / 'logs'}", "train_${local_rank}.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done
    done = torchrun(f"--log-dir={tmp_path / 'logs'}", "test_${local_rank}.py", cwd=tmp_path)
    assert done.returncode == 1 and "'test_0.py'" in done.stderr


def test_a_missing_program_is_an_error_before_anything_is_started(torchrun, tmp_path):
    done = torchrun("--no-python", f"--log-dir={tmp_path / 'logs'}", "no-program-of-this-name")
    assert done.returncode == 1
    assert done.stderr == "torchrun: FileNotFoundError: [Errno 2] No such file or directory: 'no-program-of-this-name'\n"
    assert not (tmp_path / "logs").exists()


def test_variables_stand_below_options():
    text = dry_run("--nnodes", "3", "--no-python", "sh", env={"PET_NNODES": "2", "PET_ROLE": "trainer"})
    assert "  max_nodes               3\n" in text and "  role                    trainer\n" in text


def test_a_dry_run_shows_what_a_worker_would_get(torchrun):
    done = torchrun("--dry-run", "--nproc-per-node=2", "--nnodes=2", "--node-rank=1", "--master-addr=node1",
                    "--no-python", "sh", "-c", "echo $local_rank '$$'", "it's")
    assert done.returncode == 0
    assert command_of(done.stdout) == "  sh -c 'echo 0 '\\''$'\\''' 'it'\\''s'"
    for line in ("WORLD_SIZE=4", "MASTER_ADDR=node1", "MASTER_PORT=29500", "OMP_NUM_THREADS=1",
                 "TORCHELASTIC_RUN_ID=none", "TORCHELASTIC_USE_AGENT_STORE=True"):
        assert f"\n  {line}\n" in done.stdout
    assert "Setting OMP_NUM_THREADS environment variable for each process to be 1" in done.stderr


def test_quiet_says_nothing_of_threads(torchrun):
    done = torchrun("-q", "--dry-run", "--nproc-per-node=2", "--no-python", "sh")
    assert (done.returncode, done.stderr) == (0, "")


def test_what_others_chose_does_not_reach_the_terminal_raw(torchrun):
    done = torchrun("--nproc-per-node=\x1b[2J\n", "x.py")
    assert done.returncode == 1 and "\x1b" not in done.stderr and "\\x1b[2J\\x0a" in done.stderr
    done = torchrun("--\x1b[2J", "x.py")
    assert done.returncode == 2 and "\x1b" not in done.stderr


def test_an_environment_of_a_megabyte_is_fine(torchrun):
    many = {f"V{number}": "x" * 1000 for number in range(1000)}
    done = torchrun("--dry-run", "--no-python", "sh", env=many)
    assert done.returncode == 0 and "V1=" not in done.stdout


def test_ten_thousand_arguments_are_fine(torchrun):
    done = torchrun("--dry-run", "--no-python", "sh", *["--nope"] * 10000)
    assert done.returncode == 0 and command_of(done.stdout).count("--nope") == 10000


def test_it_does_without_stdin_and_home(torchrun):
    done = torchrun("--dry-run", "--no-python", "sh", preexec_fn=lambda: os.close(0))
    assert done.returncode == 0


def test_output_that_nobody_takes_is_an_error():
    with open("/dev/full", "wb") as full:
        for words in (["--help"], ["--dry-run", "--no-python", "sh"]):
            done = subprocess.run([MUSTER, "run", *words], stdout=full, stderr=subprocess.PIPE, env=environment(),
                                  check=False, timeout=30)
            assert done.returncode == 1 and b"cannot write to standard output" in done.stderr


@pytest.fixture
def run_path(tmp_path):
    """Runs a script as a worker of --run-path would be: by the command that a dry run shows."""
    def start(code, *args):
        script, error_file = tmp_path / "script.py", tmp_path / "error.json"
        script.write_text(code)
        command = command_of(dry_run("--run-path", str(script), *args))
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60,
                              env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(error_file)})
        return done, json.loads(error_file.read_text()) if error_file.exists() else None
    return start


def test_run_path_runs_the_file_as_the_main_module(run_path):
    done, error = run_path("import sys\nprint(__name__, sys.argv[0].endswith('script.py'), sys.argv[1:])\n",
                           "a", "$local_rank", "--b")
    assert (done.returncode, error) == (0, None)
    assert done.stdout == "__main__ True ['a', '0', '--b']\n"


@pytest.mark.parametrize("code, returned", [("sys.exit(0)", 0), ("sys.exit()", 0), ("sys.exit(3)", 3), ("pass", 0)])
def test_run_path_takes_an_exit_at_its_word(run_path, code, returned):
    done, error = run_path(f"import sys\n{code}\n")
    assert (done.returncode, error) == (returned, None)


def test_run_path_tells_of_every_exception(run_path):
    done, error = run_path("raise ValueError('no \"luck\"\\ntoday')\n")
    assert done.returncode == 1 and "ValueError: no \"luck\"" in done.stderr
    assert error["message"]["message"] == 'ValueError: no "luck"\ntoday'
    told = error["message"]["extraInfo"]
    assert told["py_callstack"].startswith("Traceback (most recent call last):\n") and "script.py" in told["py_callstack"]
    assert told["timestamp"].isdigit()


def test_run_path_of_a_missing_file_is_an_exception_too(run_path, tmp_path):
    command = command_of(dry_run("--run-path", "/nowhere/x.py"))
    error_file = tmp_path / "error.json"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60,
                          env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(error_file)})
    assert done.returncode == 1
    assert json.loads(error_file.read_text())["message"]["message"].startswith("FileNotFoundError: ")

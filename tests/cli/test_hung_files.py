"""Files on a file system that stops answering: workers are stopped, restarted and ended all the same."""

import json
import pathlib
import signal
import subprocess
import sys

import pytest

from serving import LIMIT, until

HUNG_FS = pathlib.Path(__file__).with_name("hung_fs.py")
PATIENCE = 4 * LIMIT  # the file system has 10 s to answer, at several places
WAIT = 'until [ -e "$STAGE/go" ]; do sleep 0.01; done; '
SILENT = "does not answer"


class HungFileSystem:
    """A directory that answers until it is told not to."""

    def __init__(self, path, *options):
        self.path = path
        path.mkdir()
        self.process = subprocess.Popen([sys.executable, HUNG_FS, path, *options], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.mounted = self.process.stdout.readline() == "mounted\n"

    def tell(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == command + "\n"

    def end(self):
        """What went wrong, as far as it said so."""
        error = self.process.communicate(timeout=LIMIT)[1]
        return error


@pytest.fixture
def hung_fs(tmp_path, absent):
    """Makes one; skips where there is no /dev/fuse for us."""
    started = []

    def start(*options):
        started.append(HungFileSystem(tmp_path / "hung", *options))
        if not started[-1].mounted:
            absent(f"no file system of our own: {started[-1].end()}")
        return started[-1]

    yield start
    for one in started:
        if one.process.returncode is None:
            one.end()


def go(scene):
    (scene.stage / "go").touch()


def there(scene, name):
    until(lambda: (scene.stage / name).exists(), what=name)


LINES = 200000  # more than waits for a file before its writer has to


def test_a_worker_that_writes_goes_on_and_is_shown_to_the_end(scene, hung_fs):
    files = hung_fs()
    agent = scene.shell(f'touch "$STAGE/up"; {WAIT} seq {LINES}', "-t", "3", "--log-dir", files.path)
    there(scene, "up")
    files.tell("hang")
    go(scene)
    assert agent.end(PATIENCE) == 0
    assert agent.out.startswith(b"[default0]:1\n[default0]:2\n") and agent.out.endswith(b"[default0]:%d\n" % LINES)
    assert SILENT in agent.err and "stdout.log' lacks " in agent.err, agent.err


def test_a_file_system_that_answers_in_the_end_has_lost_nothing(scene, hung_fs):
    files = hung_fs()
    agent = scene.shell(f'touch "$STAGE/up"; {WAIT} seq {LINES}', "-t", "3", "--log-dir", files.path)
    there(scene, "up")
    files.tell("hang")
    go(scene)
    until(lambda: len(agent.out) > 100000, what="output")
    files.tell("answer")
    assert agent.end() == 0
    assert SILENT not in agent.err and " lacks " not in agent.err, agent.err
    log, = files.path.glob("*/attempt_0/0/stdout.log")
    assert log.read_bytes() == b"".join(b"%d\n" % i for i in range(1, LINES + 1))
    assert agent.out.count(b"\n") == LINES


@pytest.mark.parametrize("options", [[], ["-t", "3"]], ids=["plain", "tee"])
@pytest.mark.parametrize("flush", [[], ["--hold-flush"]], ids=["closes", "cannot-close"])
def test_a_worker_that_dies_is_restarted_without_files(scene, hung_fs, options, flush):
    files = hung_fs(*flush)
    agent = scene.shell(f'if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then echo first; touch "$STAGE/up"; {WAIT} exit 3; fi; '
                        'echo again, error file ${TORCHELASTIC_ERROR_FILE:-none}',
                        "--max-restarts=1", *options, "--log-dir", files.path)
    there(scene, "up")
    until(lambda: b"first" in agent.out)
    files.tell("hang")
    go(scene)
    agent.said("restarts used: 1 of 1", PATIENCE)
    if flush:
        until(lambda: b"again" in agent.out)
        files.tell("answer")
    assert agent.end(PATIENCE) == 0, agent.err
    assert agent.out.endswith(b"again, error file none\n")
    assert "workers go on without log files and error files" in agent.err


def test_a_log_directory_that_does_not_answer_at_the_start_is_done_without(scene, hung_fs):
    files = hung_fs()
    files.tell("hang")
    agent = scene.shell("echo there", "-t", "3", "--log-dir", files.path)
    assert agent.end(PATIENCE) == 0, agent.err
    assert agent.out.endswith(b"there\n")
    assert f"log directory '{files.path}' does not answer; workers go on without log files and error files" in agent.err


def test_a_signal_ends_it_all_the_same(scene, hung_fs):
    files = hung_fs()
    agent = scene.shell('touch "$STAGE/up"; seq 10; exec sleep 1000', "-t", "3", "--log-dir", files.path)
    there(scene, "up")
    files.tell("hang")
    agent.signal(signal.SIGTERM)
    assert agent.end(PATIENCE) == 1
    assert not scene.left()


def test_a_signal_is_heard_while_an_attempt_is_opened(scene, hung_fs):
    files = hung_fs()
    agent = scene.shell(f'echo started; touch "$STAGE/up"; {WAIT} exit 3', "--max-restarts=1", "--log-dir", files.path)
    there(scene, "up")
    files.tell("hang")
    go(scene)
    agent.said("round 1")
    agent.signal(signal.SIGTERM)
    assert agent.end(PATIENCE) == 1
    assert agent.out == b"started\n"


def test_a_worker_that_hangs_in_its_own_file_can_be_stopped(scene, hung_fs):
    files = hung_fs()
    agent = scene.shell(f'touch "$STAGE/up"; {WAIT} echo into the void', "-r", "3", "--log-dir", files.path)
    there(scene, "up")
    files.tell("hang")
    go(scene)
    agent.signal(signal.SIGTERM)
    assert agent.end(PATIENCE) == 1
    assert not scene.left()


def test_events_that_cannot_be_written_are_counted(scene, hung_fs):
    files = hung_fs()
    events = files.path / "events"
    agent = scene.shell(f'touch "$STAGE/up"; {WAIT} exit 0', "--event-log-handler", f"file:{events}")
    there(scene, "up")
    until(lambda: events.read_text().count("\n") >= 1, what="an event")
    files.tell("hang")
    go(scene)
    assert agent.end(PATIENCE) == 0
    assert f"write event to {events}: the file system does not answer; events are lost" in agent.err
    assert f"{events} lacks " in agent.err


def test_our_own_error_file_is_given_up(scene, hung_fs):
    files = hung_fs()
    ours = files.path / "error.json"
    agent = scene.shell(
        f'echo \'{{"message": "broken", "timestamp": 1}}\' > $TORCHELASTIC_ERROR_FILE; touch "$STAGE/up"; {WAIT} exit 3',
        env={"TORCHELASTIC_ERROR_FILE": str(ours)})
    there(scene, "up")
    files.tell("hang")
    go(scene)
    assert agent.end(PATIENCE) == 1
    assert f"error file '{ours}' could not be written within 3 s: the file system does not answer" in agent.err
    assert "broken" in agent.err


def test_a_workers_error_file_that_cannot_be_read_is_not_waited_for(scene, hung_fs):
    files = hung_fs()
    agent = scene.shell(
        f'echo \'{{"message": "broken", "timestamp": 1}}\' > $TORCHELASTIC_ERROR_FILE; touch "$STAGE/up"; {WAIT} exit 3',
        "--log-dir", files.path)
    there(scene, "up")
    files.tell("hang")
    go(scene)
    assert agent.end(PATIENCE) == 1
    assert "exitcode  : 3" in agent.err and "broken" not in agent.err


def test_on_a_file_system_that_answers_all_is_as_ever(scene, hung_fs):
    """The file system of these tests is one."""
    files = hung_fs()
    ours = files.path / "error.json"
    agent = scene.shell(
        'echo out; echo err >&2; echo \'{"message": "broken", "timestamp": 1}\' > $TORCHELASTIC_ERROR_FILE; exit 3',
        "-r", "2", "-t", "1", "--log-dir", files.path / "logs", "--event-log-handler", f"file:{files.path}/events",
        env={"TORCHELASTIC_ERROR_FILE": str(ours)})
    assert (agent.end(), agent.out) == (1, b"[default0]:out\n")
    assert SILENT not in agent.err
    attempt, = (files.path / "logs").glob("*/attempt_0/0")
    assert (attempt / "stdout.log").read_text() == "out\n"
    assert (attempt / "stderr.log").read_text() == "err\n"
    assert json.loads(ours.read_text())["message"] == "broken"
    assert all(json.loads(line)["name"] for line in (files.path / "events").read_text().splitlines())

"""Completion in real shells: what is typed at a terminal, with TABs in it, becomes the command that was meant."""

import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess
import time

import pytest

from serving import MUSTER

LIMIT = 60  # seconds for a shell to show what it should
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], ["PS1='ready> '", "source {script}"]),
    "zsh": (["zsh", "-f", "-i"], ["PS1='ready> '", "autoload -U compinit; compinit -u -D", "source {script}"]),
    "tcsh": (["tcsh", "-f"], ["set prompt='ready> '", "set edit", "source {script}"]),
    "fish": (["fish", "--no-config", "-i"], ["function fish_prompt; printf 'ready> '; end", "source {script}"]),
}


class Shell:
    """An interactive shell on a terminal of its own."""

    def __init__(self, command, directory):
        self.text = ""
        environment = {"PATH": f"{directory}/bin:/usr/bin:/bin", "HOME": str(directory), "TERM": "dumb", "LC_ALL": "C",
                       "TMPDIR": str(directory), "XDG_DATA_DIRS": str(directory)}
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(directory)
            os.execvpe(command[0], command, environment)

    def type(self, text):
        os.write(self.terminal, text.encode())

    def until(self, pattern):
        """Waits until something is shown, and forgets all up to its end."""
        end = time.monotonic() + LIMIT
        while (found := re.search(pattern, self.text)) is None:
            ready = select.select([self.terminal], [], [], max(0, end - time.monotonic()))[0]
            assert ready, f"'{pattern}' was not shown, but {self.text!r}"
            try:
                self.text += os.read(self.terminal, 65536).decode(errors="replace")
            except OSError:
                raise AssertionError(f"the shell is gone; it has shown {self.text!r}") from None
        self.text = self.text[found.end():]
        return found

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.terminal)


def script_of(shell, program="muster"):
    return subprocess.run([program, "--print-completion", shell], capture_output=True, text=True, check=True,
                          executable=MUSTER).stdout


@pytest.fixture(params=SHELLS)
def shell(request, tmp_path, absent):
    """A shell that has our completion, in a directory with some files."""
    name = request.param
    if shutil.which(name) is None:
        absent(f"there is no {name}")
    command, lines = SHELLS[name]
    (tmp_path / "bin").mkdir()
    for program in ("muster", "torchrun"):
        (tmp_path / "bin" / program).symlink_to(MUSTER)
        (tmp_path / program).write_text(script_of(name, program))
    (tmp_path / "logs-of-mine").mkdir()
    (tmp_path / "logs-of-mine.txt").touch()
    (tmp_path / "train-it.py").touch()
    shell = Shell(command, tmp_path)
    for number, line in enumerate(line for line in lines for line in
                                  ([line.format(script=tmp_path / program) for program in ("muster", "torchrun")]
                                   if "{script}" in line else [line])):
        shell.type(f"{line}\n")
        shell.type(f"echo done-$?-{number}\n" if name not in ("fish", "tcsh") else f"echo done-$status-{number}\n")
        shell.until(rf"done-0-{number}\r?\n")
    yield shell
    shell.end()


# Typed, and what the line has got when it was completed.
LINES = {
    "names": [("muster run --dry-r\t", r"un "), ("--no-pyth\t", r"on "), ("--rol\t", r"e "), ("trainer true\n", ""),
              ("", r"role +trainer")],
    "values": [("torchrun --dry-run --no-python --start-method sp\t", "awn "), ("--rdzv-backend=c1\t", "0d "),
               ("true\n", ""), ("", r"rdzv_backend +c10d")],
    "a directory": [("torchrun --dry-run --no-python -r3 --log-dir logs-o\t", "f-mine"), (" true\n", ""),
                    ("", r"log_dir +logs-of-mine")],
    "a directory behind its option": [("torchrun --dry-run --no-python -r3 --log-dir=logs-o\t", "f-mine"), (" true\n", ""),
                                      ("", r"log_dir +logs-of-mine")],
    "the script": [("torchrun --dry-run trai\t", "n-it.py "), ("logs-of-mine.t\t", "xt "), ("\n", ""),
                   ("", r"train-it\.py logs-of-mine\.txt")],
    "commands": [("muster sto\t", "re "), ("num-\t", "keys "), ("--hel\t", "p "), ("\n", ""), ("", r"how many keys there are")],
}


@pytest.mark.parametrize("steps", LINES.values(), ids=[name.replace(" ", "-") for name in LINES])
def test_a_line_is_completed(shell, steps):
    for typed, shown in steps:
        shell.type(typed)
        if shown:
            shell.until(shown)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"], indirect=True)  # tcsh puts a blank behind every word of a list
def test_a_file_s_name_follows_its_kind(shell):
    for typed, shown in [("torchrun --dry-run --no-python --metrics=fi\t", "le:"), ("train-i\t", r"t\.py"), ("true\n", ""),
                         ("", r"metrics +file:train-it\.py")]:
        shell.type(typed)
        shell.until(shown)


@pytest.mark.parametrize("shell", ["bash"], indirect=True)
@pytest.mark.parametrize("option", ["--metrics ", "--metrics="])
def test_bash_completes_in_quotes(shell, option):
    shell.type(f'torchrun --dry-run --no-python {option}"con\t')
    shell.until('sole" ')
    shell.type("true\n")
    shell.until(r"metrics +console")


# ---- What is offered ----


def offered(*words):
    return subprocess.run([MUSTER, "--complete", *words], capture_output=True, text=True, check=True).stdout.split()


def names_in_help(*words):
    """The options that a command's help has a line for."""
    said = subprocess.run([MUSTER, *words, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"--[a-z][a-z-]+", " ".join(re.findall(r"^  (-.*?)(?:  |$)", said, re.MULTILINE))))


@pytest.mark.parametrize("command", [["run"], ["launch"], ["join"], ["store"], ["store", "get"], ["store", "set"],
                                     ["rdzv", "close"], []], ids=" ".join)
def test_every_option_that_help_tells_of_is_offered(command):
    given = offered("muster", *command, "--")
    assert len(given) == len(set(given))
    assert set(given) == names_in_help(*command)


def test_commands_that_help_tells_of_are_offered():
    told = subprocess.run([MUSTER, "--help"], capture_output=True, text=True, check=True).stdout
    assert offered("muster", "") == re.findall(r"^  ([a-z]+) ", told, re.MULTILINE)
    told = subprocess.run([MUSTER, "store", "--help"], capture_output=True, text=True, check=True).stdout
    assert offered("muster", "store", "") == re.findall(r"^  ([a-z][a-z-]+) ", told, re.MULTILINE)[:8]


def test_a_shell_that_nobody_knows_is_a_wrong_command_line():
    for words in (["--print-completion", "csh"], ["--print-completion"], ["run", "--print-completion", "csh"]):
        ended = subprocess.run([MUSTER, *words], capture_output=True, text=True, check=False)
        assert ended.returncode == 2 and "--print-completion" in ended.stderr and ended.stdout == ""


@pytest.mark.parametrize("words", [["--print-completion", "bash"], ["--print-completion=bash"],
                                   ["run", "--print-completion", "bash", "--nope"], ["launch", "--print_completion=bash"]])
def test_the_script_is_the_same_whichever_way_it_is_asked_for(words):
    said = subprocess.run([MUSTER, *words], capture_output=True, text=True, check=True)
    assert said.stdout == script_of("bash") and "complete -F _muster muster\n" in said.stdout


def test_a_link_named_torchrun_prints_its_own():
    assert "complete -F _torchrun torchrun\n" in script_of("bash", "torchrun")
    assert pathlib.Path(MUSTER).name not in re.findall(r"^complete .* (\S+)$", script_of("bash", "torchrun"), re.MULTILINE)

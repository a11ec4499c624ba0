"""Building it: what a newcomer sees where something is missing, without root, with the libraries of subprojects/, and what
`make install` leaves."""
import hashlib
import os
import pathlib
import pwd
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SOURCES = ROOT / "build" / "sources"  # scripts/setup puts Debian's source packages there
WRAPS = {"libuv": "libuv1", "jansson": "jansson"}
SCREEN = 24
SHELL_TOOLS = ("bash", "sh", "env", "dirname", "cat", "sort", "id", "grep", "sed", "head", "mkdir", "touch", "rm", "ln", "readlink")
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="becomes another user, which takes root")


def run(command, cwd=ROOT, environ=None, **more):
    more.setdefault("timeout", 300)
    return subprocess.run(command, cwd=cwd, env={**os.environ, "CC": "cc", **(environ or {})}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)


def tools(directory, *names):
    """A PATH of these programs alone."""
    directory.mkdir()
    for name in names:
        (directory / name).symlink_to(shutil.which(name))
    directory.chmod(0o755)
    return str(directory)


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def copy_of_the_tree(directory):
    names = run(["git", "-c", f"safe.directory={ROOT}", "ls-files", "-co", "--exclude-standard"], check=True).stdout.split()
    for name in names:
        if (ROOT / name).is_file():
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    return directory


def open_to_others(path):
    """Whoever is not root may come down to here."""
    for parent in path.parents:
        if parent.owner() == pwd.getpwuid(os.getuid()).pw_name and parent != pathlib.Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)


def test_what_is_missing_is_told_in_one_screen_with_a_way_that_needs_no_root(tmp_path):
    path = tools(tmp_path / "bin", *SHELL_TOOLS)
    said = run(["scripts/setup", "build"], environ={"PATH": path})

    assert said.returncode == 1
    assert len(said.stdout.splitlines()) <= SCREEN
    assert re.search(r"^setup: missing: .*cc.*jansson.*libuv.*meson.*ninja", said.stdout, re.M), said.stdout
    for line in ("apt-get install", "dnf install", "pip install meson ninja", "make SUBPROJECTS=1", "PKG_CONFIG_PATH=",
                 "PREFIX=~/.local"):
        assert line in said.stdout
    assert "cmocka" not in said.stdout and "scdoc" not in said.stdout, "these are for tests and man pages"


def test_with_subprojects_only_a_compiler_meson_and_ninja_are_needed(tmp_path):
    path = tools(tmp_path / "bin", *SHELL_TOOLS, "gcc", "cc", "meson", "ninja", "as")
    said = run(["scripts/setup", "build"], environ={"PATH": path, "SUBPROJECTS": "1"})

    assert said.returncode == 0, said.stdout
    assert "missing" not in said.stdout


@needs_root
def test_root_hears_what_will_be_installed_before_anything_is(tmp_path):
    path = tools(tmp_path / "bin", *SHELL_TOOLS, "gcc", "cc", "as", "pkg-config", "ninja")
    log = tmp_path / "log"
    script(tmp_path / "bin" / "dpkg", "true")
    script(tmp_path / "bin" / "apt-get", f'echo "apt-get $*" >>{log}; echo "apt-get $*"; exit 1')
    said = run(["scripts/setup", "build"], environ={"PATH": path})

    assert said.returncode == 1
    assert said.stdout.index("installing with apt-get: meson") < said.stdout.index("update")
    assert log.read_text().splitlines()[-1].endswith("install meson")


def test_headers_and_libraries_of_a_private_prefix_are_found(tmp_path):
    include, pc = tmp_path / "include", tmp_path / "pkgconfig"
    include.mkdir()
    pc.mkdir()
    (include / "header_of_mine.h").write_text("")
    for name in ("libuv", "jansson"):
        (pc / f"{name}.pc").write_text(f"Name: {name}\nDescription: -\nVersion: 9.9\n")
    probe = """
        source <(sed -n '/^has_header()/,/^}/p; /^is_there()/,/^}/p' scripts/setup)
        is_there header:header_of_mine.h && is_there pc:libuv && is_there pc:jansson && ! is_there pc:cmocka"""
    environ = {"PKG_CONFIG_LIBDIR": str(pc)}

    assert run(["bash", "-c", probe], environ={**environ, "CPATH": str(include)}).returncode == 0
    assert run(["bash", "-c", probe], environ={**environ, "CFLAGS": f"-I{include}"}).returncode == 0
    assert run(["bash", "-c", probe], environ=environ).returncode != 0


def test_without_cmocka_and_scdoc_there_is_a_note_and_no_tests(tmp_path):
    tree = copy_of_the_tree(tmp_path / "tree")
    pc = tmp_path / "pkgconfig"
    pc.mkdir()
    for name in ("libuv", "jansson"):
        where = run(["pkg-config", "--variable=pcfiledir", name], check=True).stdout.strip()
        (pc / f"{name}.pc").symlink_to(f"{where}/{name}.pc")
    kept = [name for name in ("gcc", "cc", "as", "ld", "ar", "pkg-config", "meson", "ninja", "make", "python3", "uname")
            if shutil.which(name)]
    environ = {"PATH": tools(tmp_path / "bin", *SHELL_TOOLS, *kept), "PKG_CONFIG_LIBDIR": str(pc), "CC": "cc"}

    said = run(["scripts/setup", "build"], tree, environ)
    assert said.returncode == 0, said.stdout
    assert "note: no cmocka, so no tests will be built" in said.stdout
    assert "note: no scdoc, so no man pages will be built" in said.stdout
    said = run(["meson", "setup", "build"], tree, environ)
    assert said.returncode == 0, said.stdout
    ninja = (tree / "build" / "build.ninja").read_text()
    assert "cmd_run_uv.c" in ninja
    assert "test_table" not in ninja and "muster-run.1" not in ninja


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    """The tree, built by a user who has no root and none of the libraries, from the tarballs of Debian's source packages."""
    if not (SOURCES / "complete").exists():
        if os.environ.get("CI") == "true":
            pytest.fail("no Debian source packages in build/sources")
        pytest.skip("no Debian source packages in build/sources")
    tree = copy_of_the_tree(tmp_path_factory.mktemp("bundled") / "tree")
    cache = tree / "subprojects" / "packagecache"
    cache.mkdir()
    for wrap, package in WRAPS.items():
        tarball, = SOURCES.glob(f"{package}_*.orig.tar.gz")
        place(tree / "subprojects" / f"{wrap}.wrap", tarball, cache)
    open_to_others(tree / "Makefile")
    owner = pwd.getpwnam("nobody") if os.getuid() == 0 else None
    if owner is not None:
        for path in (tree, *tree.rglob("*")):
            os.chown(path, owner.pw_uid, owner.pw_gid)
    said = make(tree)
    assert said.returncode == 0, said.stdout
    return tree


def place(wrap, tarball, cache):
    """Gives meson the tarball instead of a download. Debian packs some anew: then its hash and its folder are others."""
    text = wrap.read_text()
    digest = hashlib.sha256(tarball.read_bytes()).hexdigest()
    folder = run(["tar", "tzf", tarball], check=True).stdout.split("/", 1)[0]
    text = re.sub(r"^source_hash = .*$", f"source_hash = {digest}", text, flags=re.M)
    text = re.sub(r"^directory = .*$", f"directory = {folder}", text, flags=re.M)
    wrap.write_text(text)
    shutil.copy2(tarball, cache / re.search(r"^source_filename = (.*)$", text, re.M)[1])


def make(tree, *arguments):
    as_nobody = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}
    # Not even pkg-config finds a library.
    environ = {"PKG_CONFIG_LIBDIR": "/nonexistent", "HOME": str(tree), "CC": "cc", "MAKEFLAGS": ""}
    return run(["make", "SUBPROJECTS=1", *arguments], tree, environ, timeout=900, **as_nobody)


def test_the_libraries_of_subprojects_are_inside_of_the_program(bundled):
    linked = run(["ldd", bundled / "build" / "muster"], check=True).stdout
    assert "libuv" not in linked and "jansson" not in linked
    job = run([bundled / "build" / "muster", "run", "--nproc-per-node", "2", "--no-python", "true"])
    assert job.returncode == 0, job.stdout
    symbols = run([ROOT / "scripts" / "check-symbols", bundled / "build" / "libmuster.so"])
    assert symbols.returncode == 0, symbols.stdout


# Where shells look for what completes a program, and a line of it.
COMPLETIONS = {
    "bash-completion/completions/{}.bash": "complete -F _{0} {0}",
    "zsh/site-functions/_{}": "#compdef {}",
    "fish/vendor_completions.d/{}.fish": "complete -c {} ",
}


def test_what_install_brings_uninstall_takes_away(bundled):
    prefix = bundled / "prefix"  # where that user may write
    said = make(bundled, "install", f"PREFIX={prefix}")
    assert said.returncode == 0, said.stdout
    assert (prefix / "bin" / "muster").exists()
    assert not (prefix / "bin" / "torchrun").exists()
    for place, text in COMPLETIONS.items():
        assert text.format("muster") in (prefix / "share" / place.format("muster")).read_text()
        assert not (prefix / "share" / place.format("torchrun")).exists()
    version = run([prefix / "bin" / "muster", "--version"], check=True).stdout
    assert version.startswith("muster ")
    said = make(bundled, "uninstall", f"PREFIX={prefix}")
    assert said.returncode == 0, said.stdout
    assert [path for path in prefix.rglob("*") if not path.is_dir()] == []


def test_a_torchrun_link_only_if_asked_for_and_never_in_place_of_another(bundled):
    stage = bundled / "stage"
    link = stage / "opt" / "x" / "bin" / "torchrun"

    said = make(bundled, "install", "TORCHRUN=1", f"DESTDIR={stage}", "PREFIX=/opt/x")
    assert said.returncode == 0, said.stdout
    assert os.readlink(link) == "muster"
    for place, text in COMPLETIONS.items():
        assert text.format("torchrun") in (stage / "opt" / "x" / "share" / place.format("torchrun")).read_text()
    said = make(bundled, "uninstall", f"DESTDIR={stage}", "PREFIX=/opt/x")
    assert said.returncode == 0, said.stdout
    assert [path for path in stage.rglob("*") if not path.is_dir()] == []
    link.write_text("PyTorch's own")
    said = make(bundled, "install", "TORCHRUN=1", f"DESTDIR={stage}", "PREFIX=/opt/x")
    assert said.returncode != 0
    assert "is there already and not ours" in said.stdout
    said = make(bundled, "uninstall", f"DESTDIR={stage}", "PREFIX=/opt/x")
    assert link.read_text() == "PyTorch's own"

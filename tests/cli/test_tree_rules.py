"""scripts/check-tree finds what it is there to find."""

import subprocess

from serving import ROOT


def complaints(tree, files):
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    done = subprocess.run([ROOT / "scripts" / "check-tree", tree], capture_output=True, text=True, check=False)
    assert done.returncode == (1 if done.stdout else 0)
    return done.stdout.splitlines()


def test_a_tidy_tree_passes(tmp_path):
    assert complaints(tmp_path, {"src/kv/a.c": "x" * 120 + "\n", "src/kv/a.h": "\n" * 900}) == []


def test_a_long_line_is_found_in_every_folder(tmp_path):
    files = ["include/muster.h", "src/kv/a.h", "tests/unit/test_a.c", "bench/a.c"]
    assert complaints(tmp_path, {name: "\n" + "é" * 121 + "\n" for name in files}) == [
        f"{name}:2: 121 columns, more than 120" for name in files]


def test_a_long_file_is_found_in_src_only(tmp_path):
    assert complaints(tmp_path, {"src/kv/a.c": "\n" * 901, "tests/unit/test_a.c": "\n" * 901}) == [
        "src/kv/a.c: 901 lines, more than 900: one file for one question"]


def test_a_name_that_is_there_twice_is_found(tmp_path):
    assert complaints(tmp_path, {"src/kv/a.c": "", "src/kv/a.h": "", "src/base/a.h": "", "src/base/b.c": ""}) == [
        "a: this name is in src/base and src/kv: say what each one holds"]

"""scripts/check-includes finds what it is there to find."""

import subprocess

import pytest
from serving import ROOT


def check(tree):
    done = subprocess.run([ROOT / "scripts" / "check-includes", tree], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def write(tree, name, text):
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("name, text, complaint", [
    ("src/base/a.c", '#include "store/b.h"\n', "src/base/a.c:1"),
    ("src/store/a.c", '#include "cli/b.h"\n', "src/store/a.c:1"),
    ("src/store/a.c", '#include "proc/b.h"\n', "src/store/a.c:1"),
    ("src/store/a.c", "#include <uv.h>\n", "uv.h"),
    ("src/handler/a.c", "#include <curl/curl.h>\n", "curl/curl.h"),
    ("src/base/a.c", "#include <jansson.h>\n", "jansson.h"),
    ("src/store/a.c", '#include <stdio.h>\nvoid f(void) { printf("x"); }\n', "src/store/a.c:2"),
    ("src/agent/a.c", "#include <stdlib.h>\nconst char *f(void) { return getenv(\"X\"); }\n", "src/agent/a.c:2"),
    ("include/muster.h", "#include <uv.h>\n", "include/muster.h:1"),
])
def test_a_broken_rule_is_named_with_its_place(tmp_path, name, text, complaint):
    write(tmp_path, "include/muster.h", "")
    for header in ("src/store/b.h", "src/cli/b.h", "src/proc/b.h"):
        write(tmp_path, header, "")
    write(tmp_path, name, text)
    code, said = check(tmp_path)
    assert code != 0 and complaint in said


def test_what_keeps_the_rules_passes(tmp_path):
    write(tmp_path, "include/muster.h", "#include <stdint.h>\n")
    write(tmp_path, "src/base/b.h", "#include <stddef.h>\n")
    write(tmp_path, "src/store/a_uv.c", '#include "base/b.h"\n#include <uv.h>\n')
    write(tmp_path, "src/cli/main.c", '#include "base/b.h"\n#include <stdio.h>\nint main(void) { return printf("x"); }\n')
    assert check(tmp_path) == (0, "")

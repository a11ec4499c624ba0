"""`make interop TORCH=VERSION`: which tests are run then."""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def collected(torch):
    said = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", "tests/interop"],
                          cwd=ROOT, env={**os.environ, "TORCH": torch, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True,
                          text=True, timeout=300, check=False)
    return said.returncode, re.findall(r"^tests/interop/.*::.*", said.stdout, re.MULTILINE), said.stdout + said.stderr


def test_with_another_pytorch_the_tests_that_use_it_are_run():
    code, usual, said = collected("")
    assert code == 0, said
    code, tests, said = collected("9.8.7")
    assert code == 0, said
    assert 100 < len(tests) < len(usual)
    assert any(test.endswith("[9.8.7]") for test in tests)
    assert not [test for test in tests if "[2.13.0" in test or test.endswith("[1.13.1]")]
    assert {"test_run_stock.py", "test_rdzv_worlds.py", "test_operations.py"} <= {re.search(r"test_\w+\.py", t)[0] for t in tests}
    assert not [test for test in tests if "test_etcd_client.py" in test]


def chosen(*words):
    """What the tests of `make interop WORDS` find in TORCH."""
    environment = {name: value for name, value in os.environ.items() if name not in ("TORCH", "NEWEST", "MAKEFLAGS")}
    said = subprocess.run(["make", "-s", "--eval", "show: ; @echo $$TORCH", "show", *words], cwd=ROOT, env=environment,
                          capture_output=True, text=True, timeout=60, check=True)
    return said.stdout.strip()


def test_the_newest_is_a_choice_and_a_version_comes_before_it():
    assert chosen() == ""
    assert chosen("NEWEST=1") == "newest"
    assert chosen("TORCH=2.9.1") == "2.9.1"
    assert chosen("NEWEST=1", "TORCH=2.9.1") == "2.9.1"

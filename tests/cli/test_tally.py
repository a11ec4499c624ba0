"""scripts/run-tests counts a case once, whatever the number of builds it ran in."""

import importlib.machinery
import importlib.util

import pytest
from serving import ROOT


@pytest.fixture
def tally():
    loader = importlib.machinery.SourceFileLoader("run_tests", str(ROOT / "scripts" / "run-tests"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("run_tests", loader))
    loader.exec_module(module)
    return module.Tally()


def last_lines(tally, capsys):
    code = tally.report()
    return code, capsys.readouterr().out.splitlines()


def test_a_case_of_both_builds_is_one(tally, capsys):
    for build in ("build", "build-asan"):
        tally.succeed(build, "table", "a")
        tally.succeed(build, "table", "b")
    tally.succeed("build", "tests.build", "alone")
    code, said = last_lines(tally, capsys)
    assert code == 0 and said[-2:] == [
        "ran in build (3 cases, 0 failed) and in build-asan (2 cases, 0 failed)", "3 passed, 0 failed, 0 skipped"]


def test_a_failure_in_either_build_counts_and_the_build_is_named(tally, capsys):
    tally.succeed("build", "table", "a")
    tally.fail("build-asan", "table", "a", "what it said")
    tally.succeed("build", "table", "b")
    tally.succeed("build-asan", "table", "b")
    code, said = last_lines(tally, capsys)
    assert code == 1 and said[-1] == "1 passed, 1 failed, 0 skipped"
    assert "--- FAILED build-asan: table: a" in said and "what it said" in said


def test_a_case_is_skipped_if_no_build_ran_it(tally, capsys):
    for build in ("build", "build-asan"):
        tally.skip(build, "table", "a", "no namespaces")
    tally.skip("build-asan", "table", "b", "too slow here")
    tally.succeed("build", "table", "b")
    code, said = last_lines(tally, capsys)
    assert code == 0 and said[-1] == "1 passed, 0 failed, 1 skipped"
    assert "skipped 1: no namespaces" in said


def test_two_cases_of_one_name_are_two(tally, capsys):
    tally.succeed("build", "table", "a")
    tally.succeed("build", "table", "a")
    assert last_lines(tally, capsys)[1][-1] == "2 passed, 0 failed, 0 skipped"


def test_nothing_at_all_is_no_success(tally, capsys):
    assert last_lines(tally, capsys)[0] == 1

"""What all tests in Python have in common: several runs of pytest can share a folder (`--share 0/4` takes every fourth test,
from the first on), and a test's directory goes with the test unless that has failed."""

import shutil

import pytest


def pytest_addoption(parser):
    parser.addoption("--share", default="0/1", help="INDEX/COUNT: only every COUNTth test, from the INDEXth on")


def pytest_collection_modifyitems(config, items):
    index, count = (int(number) for number in config.getoption("--share").split("/"))
    items[:], others = items[index::count], [item for at, item in enumerate(items) if at % count != index]
    config.hook.pytest_deselected(items=others)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    outcome = yield
    item.has_failed = getattr(item, "has_failed", False) or outcome.get_result().failed


@pytest.fixture
def tmp_path(request, tmp_path):
    yield tmp_path
    if not getattr(request.node, "has_failed", True):
        shutil.rmtree(tmp_path, ignore_errors=True)

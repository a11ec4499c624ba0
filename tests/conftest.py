"""Lets several runs of pytest share the tests of a folder: `--share 0/4` takes every fourth, from the first on."""


def pytest_addoption(parser):
    parser.addoption("--share", default="0/1", help="INDEX/COUNT: only every COUNTth test, from the INDEXth on")


def pytest_collection_modifyitems(config, items):
    index, count = (int(number) for number in config.getoption("--share").split("/"))
    items[:], others = items[index::count], [item for at, item in enumerate(items) if at % count != index]
    config.hook.pytest_deselected(items=others)

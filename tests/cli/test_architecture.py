"""docs/ARCHITECTURE.md: every file that it names is there, and has the functions that the page puts behind it."""

import re

import pytest

from serving import ROOT

PAGE = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
NAMED = sorted(set(re.findall(r"`((?:[a-z0-9]+/)?[a-z0-9_*]+\.[ch])`", PAGE)) - {"muster.h", "x.h", "x_parts.h"})
INSIDE = sorted(set(re.findall(r"`([a-z0-9]+/[a-z0-9_]+\.[ch])` \((`[a-z0-9_]+`(?:, `[a-z0-9_]+`)*)\)", PAGE)))


@pytest.mark.parametrize("name", NAMED)
def test_every_file_is_there(name):
    assert list((ROOT / "src").glob(name if "/" in name else f"*/{name}"))


@pytest.mark.parametrize("name, functions", INSIDE)
def test_every_function_is_in_its_file(name, functions):
    text = (ROOT / "src" / name).read_text()
    for function in re.findall(r"[a-z0-9_]+", functions):
        assert re.search(rf"^[a-z].*\b{function}\(", text, re.MULTILINE)


def test_the_page_leads_to_the_functions_of_its_table():
    assert len(NAMED) > 60 and len(INSIDE) >= 10

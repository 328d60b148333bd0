"""Mark tests that start processes with `processes`.

These are all tests in tests/deploy, and the tests of each module whose source names a way to start a process.
"""

import functools
import re
from pathlib import Path

import pytest

STARTS_PROCESSES = re.compile(r"\b(subprocess|multiprocessing|os\.fork|local_federation|child_processes|pool_of|ray)\b")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Add the mark."""
    if "deploy" in item.path.parts or _names_a_way(item.path):
        item.add_marker("processes")


@functools.cache
def _names_a_way(path: Path) -> bool:
    return STARTS_PROCESSES.search(path.read_text("utf-8")) is not None

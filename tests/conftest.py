"""Shared fixtures."""

import gc
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# The same examples every time: a red build must be red again when it is looked into. Machines may be slow.
settings.register_profile("winnow", deadline=None, derandomize=True)
settings.load_profile("winnow")

# A compiler that is a Python package keeps its libraries in a cache: tests that empty the user's cache keep this one.
os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(Path("~/.cache/zig").expanduser()))

pytest_plugins = [
    "support.leaks",
    "support.needs",
    "support.processes",
    "support.shuffle",
    "support.time_limits",
    "support.waiting_time",
]

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # bench/ is tested, but not installed
# A shell starts commands in the background with interrupts ignored, which processes of tests would inherit.
HANDLERS = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}
PARTS = re.findall(r"^PARTS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()


def pytest_itemcollected(item: pytest.Item) -> None:
    """A slow test that belongs to no part would never run."""
    for mark in item.iter_markers("slow"):
        if mark.kwargs.get("part") not in PARTS:
            raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.slow(part=…) names one of {', '.join(PARTS)}")


def pytest_configure() -> None:
    """What is loaded from here on stays: the collector need not go through it again and again."""
    gc.disable()
    for number, handler in HANDLERS.items():
        signal.signal(number, handler)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Extensions that count what they have left at the end would complain of it."""
    gc.unfreeze()


def _as_in_a_new_process() -> Iterator[None]:
    """Give torch the same random numbers and number of threads, and Ctrl-C its meaning, whichever tests ran before."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    yield
    for number, handler in HANDLERS.items():
        signal.signal(number, handler)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


for_a_test = pytest.fixture(autouse=True)(_as_in_a_new_process)
for_a_module = pytest.fixture(autouse=True, scope="module")(_as_in_a_new_process)


@pytest.fixture(scope="session")
def data_directory() -> Path:
    """Real data: $WINNOW_DATA, or shared/data beside the checkout or beside a folder that has it. Tests that need a set
    skip where it is missing.
    """
    beside = [above / "shared" / "data" for above in ROOT.parents]
    found = next((folder for folder in beside if folder.is_dir()), beside[0])
    return Path(os.environ.get("WINNOW_DATA", found))

"""Shared fixtures."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples every time: a red build must be red again when it is looked into. Machines may be slow.
settings.register_profile("winnow", deadline=None, derandomize=True)
settings.load_profile("winnow")

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # bench/ is tested, but not installed


@pytest.fixture(scope="session")
def data_directory() -> Path:
    """Real data: $WINNOW_DATA, or a folder beside the checkout. Tests that need a set skip where it is missing."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("WINNOW_DATA", beside))

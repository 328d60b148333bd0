"""Shared fixtures."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_directory() -> Path:
    """Real data: $WINNOW_DATA, or a folder beside the checkout. Tests that need a set skip where it is missing."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("WINNOW_DATA", beside))

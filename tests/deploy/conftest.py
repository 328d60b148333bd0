"""Shared fixtures of the deployment's tests."""

from collections.abc import Iterator

import pytest
from postgres import cluster


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A running PostgreSQL; `fresh_database` gives each test an empty database in it."""
    with cluster() as folder:
        yield folder

"""Shared fixtures of the deployment's tests."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from postgres import cluster

if TYPE_CHECKING:
    from siting import Script


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A running PostgreSQL; `fresh_database` gives each test an empty database in it."""
    with cluster() as folder:
        yield folder


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a process that has loaded torch, which takes longer than most jobs run."""
    from winnow.deploy.client.local_federation import running_fork_server

    with running_fork_server(tmp_path_factory.mktemp("fork-server")) as path:
        yield path


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of a federation whose server is reached in memory."""
    from serving import federation

    return federation(tmp_path_factory.mktemp("kits"))


@pytest.fixture
def script(tmp_path: Path) -> "Script":
    """What a scripted server says to a site's agent, and hears from it."""
    from siting import Script

    return Script(tmp_path / "server")

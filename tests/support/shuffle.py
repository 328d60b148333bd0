"""Shuffle the tests: `--shuffle=new` draws a seed and prints it, and `--shuffle=SEED` repeats that order.

Modules change places, and so do the tests within each module. Tests that share a parametrised fixture stay together,
because pytest groups them afterwards.
"""

import random
from collections.abc import Iterable
from typing import Any

import pytest

SEED: pytest.StashKey[int] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--shuffle`."""
    parser.addoption("--shuffle", metavar="SEED", help="run the tests in the random order of a seed, or 'new'")


def pytest_configure(config: pytest.Config) -> None:
    """Draw the seed, or take the one that the controller has drawn."""
    option = getattr(config, "workerinput", {}).get("shuffle", config.option.shuffle)
    if option is not None:
        config.stash[SEED] = random.SystemRandom().randrange(1_000_000) if option == "new" else int(option)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give the seed to a worker."""
    node.workerinput["shuffle"] = node.config.stash.get(SEED, None)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Print the seed."""
    return f"order: --shuffle={config.stash[SEED]}" if SEED in config.stash else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the tests in the order of the seed."""
    if SEED in config.stash:
        items[:] = shuffled(items, config.stash[SEED])


def shuffled(items: Iterable[pytest.Item], seed: int) -> list[pytest.Item]:
    """Shuffle modules, and the tests of each."""
    rng = random.Random(seed)
    modules: dict[str, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.location[0], []).append(item)
    order = list(modules.values())
    rng.shuffle(order)
    for tests in order:
        rng.shuffle(tests)
    return [item for tests in order for item in tests]

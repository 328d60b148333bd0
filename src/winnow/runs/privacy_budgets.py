"""What a run's settings promise of its privacy: at which δ, and up to which ε. Told from the configuration alone."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

GUARANTEES = {
    "central-dp": "epsilon",
    "discrete-gaussian": "epsilon",
    "local-dp": "local_epsilon",
    "dp-sgd": "record_epsilon",
    "noisy": "profile_epsilon",
}
"""What each part that adds noise promises, by the part's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivacyBudget:
    """With which δ an ε is meant, and the budget that it stays within (None: there is none)."""

    delta: float
    budget: float | None = None


def read_privacy_budgets(config: Mapping[str, Any]) -> dict[str, PrivacyBudget]:
    """By the guarantee's name, as in a run's log: {"epsilon": …}."""
    return {
        GUARANTEES[part["name"]]: PrivacyBudget(delta=part["delta"], budget=part.get("epsilon"))
        for part in _parts(config)
        if part.get("name") in GUARANTEES and "delta" in part
    }


def _parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Where parts that promise something stand in a configuration."""
    collect, select = config.get("collect", {}), config.get("select", {})
    found = (
        collect,
        collect.get("encoding"),
        *config.get("filters", ()),
        config.get("client"),
        select.get("profile_comparison"),
    )
    return (part for part in found if isinstance(part, Mapping))

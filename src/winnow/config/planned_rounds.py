"""How many rounds a configuration asks for."""

from collections.abc import Mapping
from typing import Any


def planned_rounds(config: Mapping[str, Any]) -> int | None:
    """The rounds of a configuration, with those of an ensemble's over-arch; None where it names none."""
    rounds, ensemble = config.get("rounds"), config.get("ensemble")
    combine = ensemble.get("combine") if isinstance(ensemble, Mapping) else None
    further = combine.get("rounds") if isinstance(combine, Mapping) else None
    if not isinstance(rounds, int):
        return None
    return rounds + (further if isinstance(further, int) else 0)

"""The seeds of leaves: each starts from a model of its own, and draws its clients by itself."""

from winnow.core import derive


def leaf_seed(seed: int, place: int) -> int:
    """The first leaf has the experiment's own, so that an ensemble of one is the plain training."""
    return seed if place == 0 else derive(seed, "leaf", place) % 2**31

"""What the parts of an algorithm may say about one another."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from winnow.learn.algorithm import Algorithm


class AlgorithmPart:
    """A part of an algorithm. Most go with any other; those that do not say so here."""

    needs: ClassVar[Mapping[str, str]] = {}
    """Other parts, by name, without which this one cannot work: {"server": "scaffold"}."""

    def says(self) -> str:
        """Who learns what because of this part, under which assumptions, and what it costs; empty if nothing is to be
        said.
        """
        return ""

    def objection(self, whole: "Algorithm") -> str | None:
        """What else is wrong with the algorithm in this part's eyes, as one line for a user; None if nothing is."""
        return None

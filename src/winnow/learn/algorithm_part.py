"""What every part of an algorithm, and every filter around it, can state: what it needs, what it conflicts with, and
who learns what because of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from winnow.core import Arrays

if TYPE_CHECKING:
    from winnow.learn.algorithm import Algorithm

EvidenceKind: TypeAlias = Literal["inputs", "columns", "labels", "updates", "contribution"]
"""What may be looked at to judge clients' data."""
UPDATES: EvidenceKind = "updates"
CONTRIBUTION: EvidenceKind = "contribution"
TOLD_BY_CLIENTS: tuple[EvidenceKind, ...] = ("inputs", "columns", "labels")
"""Evidence that clients are asked for; the server has the other kinds from updates."""
ALL_EVIDENCE: frozenset[EvidenceKind] = frozenset((*TOLD_BY_CLIENTS, UPDATES, CONTRIBUTION))


@dataclass(frozen=True, kw_only=True)
class DataSummary:
    """What is known of clients and model before a run begins."""

    clients: int
    largest_cohort: int
    """The most clients whose updates one round can have."""
    shared_model: Arrays
    """What clients send of the model."""
    reference_clients: Sequence[int]
    """The clients that hold the reference set; none if the server does."""
    profile_length: int
    """The number of profiled elements; 0 without profiles."""


class AlgorithmPart:
    """A part of an algorithm. Most parts work with any other; those that do not, declare it here."""

    needs: ClassVar[Mapping[str, str]] = {}
    """Other parts, by name, without which this one cannot work: {"server": "scaffold"}."""
    forbidden_evidence: ClassVar[frozenset[EvidenceKind]] = frozenset()
    """Evidence on clients' data (`quality.evidence`) that would tell what this part hides."""

    def privacy_text(self) -> str:
        """Who learns what because of this part, under which assumptions, and what it costs; empty if nothing."""
        return ""

    def conflict(self, whole: "Algorithm") -> str | None:
        """Why this part cannot work with the algorithm's other settings, as one line for a user; None if it can."""
        return None

    def check_data(self, data: DataSummary) -> None:
        """Raise a `ConfigError` if this part cannot work with these clients or this model."""

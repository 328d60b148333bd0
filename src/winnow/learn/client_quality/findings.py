"""What is found in a client's data, in words that its owner understands."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

FindingKind: TypeAlias = Literal["inputs", "column", "image", "labels", "copies", "updates", "contribution"]
"""inputs: many of them, or what the model makes of them; column, image: which inputs, and how."""

MAX_STRENGTH = 100.0
"""Beyond this nothing is stronger."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong with a client's data, or unlike the reference's.

    A `strength` of 1 is just worth saying: a difference that chance does not explain and that is large enough to
    matter, whichever is weaker. Strengths of different kinds can be compared.
    """

    kind: FindingKind
    strength: float
    text: str


def finding_strength(z: float, needed_z: float, effect: float, needed_effect: float) -> float:
    """How many times what is needed: in standard errors or in size, whichever is less."""
    return float(min(abs(z) / needed_z, abs(effect) / needed_effect, MAX_STRENGTH))


def strongest_first(findings: Iterable[Finding]) -> list[Finding]:
    """Those worth saying, in the order in which they are said; equal ones as they were given."""
    return sorted((each for each in findings if each.strength >= 1), key=lambda each: -each.strength)


def percent_text(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")

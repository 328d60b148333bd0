"""Settings that several mechanisms have in common."""

from typing import Annotated

from pydantic import AfterValidator, Field


def _protects(noise: float) -> float:
    if noise <= 0:
        raise ValueError(f"a noise multiplier of {noise:g} protects nothing and cannot be called private; write more")
    return noise


NoiseMultiplier = Annotated[
    float,
    AfterValidator(_protects),
    Field(
        description="the noise's standard deviation over the bound of what it hides, such as 1.0 (winnow explain "
        "says how much it takes for a budget, epsilon)"
    ),
]
"""The noise's standard deviation over the bound of what it hides."""

ClipNorm = Annotated[float, Field(gt=0, description="the largest norm that is let through, such as 1.0")]
Delta = Annotated[float, Field(gt=0, lt=1)]
EpsilonBudget = Annotated[float, Field(gt=0)]

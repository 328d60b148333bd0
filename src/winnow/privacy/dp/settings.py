"""Settings that several mechanisms have in common."""

from typing import Annotated

from pydantic import AfterValidator, Field


def _protects(noise: float) -> float:
    if noise <= 0:
        raise ValueError(f"a noise multiplier of {noise:g} protects nothing and cannot be called private; write more")
    return noise


NoiseMultiplier = Annotated[float, AfterValidator(_protects)]
"""The noise's standard deviation over the bound of what it hides."""

Bound = Annotated[float, Field(gt=0)]
Delta = Annotated[float, Field(gt=0, lt=1)]
Budget = Annotated[float, Field(gt=0)]

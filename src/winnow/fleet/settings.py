"""What the clients of a simulated world are like, as a configuration says it: a family of worlds."""

from abc import abstractmethod
from typing import Annotated, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from winnow.core import Choice
from winnow.fleet.fleet import Fleet

Positive: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]

MNIST_SAMPLE_BITS = 28 * 28 * 8


class FleetSettings(Choice):
    """How long clients take, and how often they vanish while they train: a share `dropout` of all training tasks."""

    unnamed: ClassVar[str | None] = "devices"

    dropout: float = Field(default=0.0, ge=0, lt=1)

    @abstractmethod
    def draw(
        self,
        clients: int,
        seed: int,
        *,
        sample_bits: float = MNIST_SAMPLE_BITS,
        corrupted: NDArray[np.bool_] | None = None,
    ) -> Fleet:
        """A fleet for this many clients that depends on these settings and the seed alone.

        `sample_bits` is the real size of a sample; `corrupted` says whose data were spoiled, for worlds in which that
        goes together with speed.
        """

    def message_bytes(self, model_bytes: int) -> int:
        """The size of a message that carries a model: its real size, unless the settings say otherwise."""
        return model_bytes

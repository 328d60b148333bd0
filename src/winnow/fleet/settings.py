"""What the devices of a fleet are like, as a configuration says it: the lower half of table 5 of the FedProf paper."""

from typing import Annotated, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from winnow.core import Settings

Positive: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]

SLOWEST = 0.1
"""No device is slower than this share of the mean: a normal draw may be negative, a device may not."""

MEGABYTE = 10**6


class Normal(Settings):
    """A positive quantity that differs between devices: N(mean, sd²), clipped below at a tenth of the mean."""

    mean: Positive
    sd: NotNegative = 0.0

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        return np.maximum(rng.normal(self.mean, self.sd, count), SLOWEST * self.mean)


class FleetSettings(Settings):
    """Speeds, links and power of the devices. The defaults are those of task 2 (EMNIST digits) in table 5.

    `bits_per_sample` and `message_mb` are the real sizes of a sample and of the model unless set.
    """

    speed_ghz: Normal = Normal(mean=1.0, sd=0.2)
    bandwidth_mhz: Normal = Normal(mean=1.0, sd=0.3)
    snr_db: Annotated[float, Field(allow_inf_nan=False)] = 10.0
    bits_per_sample: Positive | None = None
    cycles_per_bit: Positive = 400.0
    transmit_watts: NotNegative = 0.75
    compute_watts: NotNegative = 0.7
    message_mb: Positive | None = None

    def message_bytes(self, model_bytes: int) -> int:
        """The size of a message that carries a model: its real size, unless the settings say otherwise."""
        return model_bytes if self.message_mb is None else round(self.message_mb * MEGABYTE)

"""Devices, their links and what work costs them: equations 27 to 34 of the FedProf paper (appendix B.3)."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from winnow.core import Settings, Work, stream
from winnow.fleet.fleet import DeviceCosts, Fleet
from winnow.fleet.settings import MNIST_SAMPLE_BITS, FleetSettings, NonNegative, Positive

UPLINK_SHARE = 0.5
"""The uplink has half of the downlink's bandwidth, so an upload takes twice as long as a download (equation 29)."""

MIN_SHARE_OF_MEAN = 0.1
"""No device is slower than this share of the mean: a normal draw may be negative, a device may not."""

BITS_PER_BYTE = 8
MEGABYTE = 10**6


class NormalDistribution(Settings):
    """A positive quantity that differs between devices: N(mean, sd²), clipped below at a tenth of the mean."""

    mean: Positive
    sd: NonNegative = 0.0

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        return np.maximum(rng.normal(self.mean, self.sd, count), MIN_SHARE_OF_MEAN * self.mean)


class Devices(FleetSettings):
    """Speeds, links and power of the devices (the lower half of table 5). The defaults are those of task 2 (EMNIST
    digits).

    `bits_per_sample` and `message_mb` are the real sizes of a sample and of the model unless set.
    """

    name: Literal["devices"] = "devices"
    speed_ghz: NormalDistribution = NormalDistribution(mean=1.0, sd=0.2)
    bandwidth_mhz: NormalDistribution = NormalDistribution(mean=1.0, sd=0.3)
    snr_db: Annotated[float, Field(allow_inf_nan=False)] = 10.0
    bits_per_sample: Positive | None = None
    cycles_per_bit: Positive = 400.0
    transmit_watts: NonNegative = 0.75
    compute_watts: NonNegative = 0.7
    message_mb: Positive | None = None

    def draw(
        self,
        clients: int,
        seed: int,
        *,
        sample_bits: float = MNIST_SAMPLE_BITS,
        corrupted: NDArray[np.bool_] | None = None,
    ) -> "DeviceFleet":
        return DeviceFleet(
            seed=seed,
            dropout=self.dropout,
            settings=self,
            sample_bits=sample_bits,
            speed_ghz=self.speed_ghz.draw(clients, stream(seed, "fleet", "speed")),
            bandwidth_mhz=self.bandwidth_mhz.draw(clients, stream(seed, "fleet", "bandwidth")),
        )

    def message_bytes(self, model_bytes: int) -> int:
        return model_bytes if self.message_mb is None else round(self.message_mb * MEGABYTE)


@dataclass(frozen=True, kw_only=True)
class DeviceFleet(Fleet):
    """One speed and one bandwidth a device, the same in every round; everything else in common."""

    settings: Devices
    speed_ghz: NDArray[np.float64]
    bandwidth_mhz: NDArray[np.float64]
    sample_bits: float = MNIST_SAMPLE_BITS
    """The real size of a sample, which counts where the settings say nothing else."""

    def __len__(self) -> int:
        return len(self.speed_ghz)

    def costs(self, clients: NDArray[np.int64], sizes: NDArray[np.int64], work: Work, round: int = 1) -> DeviceCosts:
        downlink = self._downlink_bits_per_second(clients)
        uplink = UPLINK_SHARE * downlink
        transfer = BITS_PER_BYTE * (work.download_bytes / downlink + work.upload_bytes / uplink)  # equation 29
        one_pass = self._seconds_per_pass(clients, sizes)
        training = work.training_passes * one_pass  # equation 30
        generating = work.profiling_passes * one_pass  # equation 31, first term
        reporting = BITS_PER_BYTE * work.profile_bytes / uplink  # equation 31, second term
        transmit_watts = self.settings.transmit_watts
        compute_watts = self.settings.compute_watts * self.speed_ghz[clients] ** 3
        return DeviceCosts(
            transfer_seconds=transfer,
            training_seconds=training,
            profiling_seconds=generating + reporting,
            transfer_joules=transmit_watts * transfer,  # equation 32
            training_joules=compute_watts * training,  # equation 33
            profiling_joules=transmit_watts * reporting + compute_watts * generating,  # equation 34
        )

    def _downlink_bits_per_second(self, clients: NDArray[np.int64]) -> NDArray[np.float64]:
        """Shannon's capacity, the denominator of equation 29; decibels become a ratio first."""
        snr = 10 ** (self.settings.snr_db / 10)
        return self.bandwidth_mhz[clients] * 1e6 * math.log2(1 + snr)

    def _seconds_per_pass(self, clients: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """One epoch over a client's samples: equation 30 with E = 1."""
        bits = self.settings.bits_per_sample or self.sample_bits
        cycles = sizes * (bits * self.settings.cycles_per_bit)
        return cycles / (self.speed_ghz[clients] * 1e9)

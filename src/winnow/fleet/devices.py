"""Devices, their links and what work costs them: equations 27 to 34 of the FedProf paper (appendix B.3).

A fleet is a few arrays with one entry a device, never an object a device, so a million devices are a few megabytes.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from winnow.core import Cost, Work, stream
from winnow.fleet.settings import FleetSettings

UPLINK_SHARE = 0.5
"""The uplink has half of the downlink's bandwidth, so an upload takes twice as long as a download (equation 29)."""

BITS = 8
MNIST_SAMPLE_BITS = 28 * 28 * BITS


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """What the same work costs each of K devices, by what it is spent on; every array has K entries."""

    transfer_seconds: NDArray[np.float64]
    training_seconds: NDArray[np.float64]
    profiling_seconds: NDArray[np.float64]
    transfer_joules: NDArray[np.float64]
    training_joules: NDArray[np.float64]
    profiling_joules: NDArray[np.float64]

    @property
    def seconds(self) -> NDArray[np.float64]:
        """How long each device is busy: what equation 27 takes the maximum of."""
        return self.transfer_seconds + self.training_seconds + self.profiling_seconds

    @property
    def joules(self) -> NDArray[np.float64]:
        """The energy each device uses (equation 28)."""
        return self.transfer_joules + self.training_joules + self.profiling_joules

    def rows(self) -> list[Cost]:
        """The cost to each device by itself."""
        columns = [getattr(self, name).tolist() for name in Cost._fields]
        return [Cost(*values) for values in zip(*columns, strict=True)]

    def __len__(self) -> int:
        return len(self.transfer_seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """The devices of a simulated world: one speed and one bandwidth a device, everything else in common."""

    settings: FleetSettings
    speed_ghz: NDArray[np.float64]
    bandwidth_mhz: NDArray[np.float64]
    sample_bits: float = MNIST_SAMPLE_BITS
    """The real size of a sample, which counts where the settings say nothing else."""

    @classmethod
    def draw(cls, settings: FleetSettings, clients: int, seed: int, sample_bits: float = MNIST_SAMPLE_BITS) -> Self:
        """A fleet for this many clients that depends on the settings and the seed alone."""
        return cls(
            sample_bits=sample_bits,
            settings=settings,
            speed_ghz=settings.speed_ghz.draw(clients, stream(seed, "fleet", "speed")),
            bandwidth_mhz=settings.bandwidth_mhz.draw(clients, stream(seed, "fleet", "bandwidth")),
        )

    def __len__(self) -> int:
        return len(self.speed_ghz)

    def costs(self, clients: NDArray[np.int64], sizes: NDArray[np.int64], work: Work) -> Costs:
        """What `work` costs these clients, which hold `sizes` samples each."""
        downlink = self._downlink_bits_per_second(clients)
        uplink = UPLINK_SHARE * downlink
        transfer = BITS * (work.download_bytes / downlink + work.upload_bytes / uplink)  # equation 29
        one_pass = self._seconds_per_pass(clients, sizes)
        training = work.training_passes * one_pass  # equation 30
        generating = work.profiling_passes * one_pass  # equation 31, first term
        reporting = BITS * work.profile_bytes / uplink  # equation 31, second term
        transmit_watts = self.settings.transmit_watts
        compute_watts = self.settings.compute_watts * self.speed_ghz[clients] ** 3
        return Costs(
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

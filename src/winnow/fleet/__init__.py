"""What work costs the clients of a simulated world, in seconds and joules, and which of them vanish."""

from winnow.fleet.devices import DeviceFleet, Devices, NormalDistribution
from winnow.fleet.fleet import DeviceCosts, Fleet
from winnow.fleet.measured_times import TimeTrace
from winnow.fleet.response_time_model import ExponentialTimes
from winnow.fleet.settings import FleetSettings

__all__ = [
    "DeviceCosts",
    "DeviceFleet",
    "Devices",
    "ExponentialTimes",
    "Fleet",
    "FleetSettings",
    "NormalDistribution",
    "TimeTrace",
]

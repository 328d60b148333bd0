"""What work costs the clients of a simulated world, in seconds and joules, and which of them vanish."""

from winnow.fleet.devices import DeviceFleet, Devices, Normal
from winnow.fleet.fleet import Costs, Fleet
from winnow.fleet.settings import FleetSettings
from winnow.fleet.timed import Exponential
from winnow.fleet.trace import Trace

__all__ = ["Costs", "DeviceFleet", "Devices", "Exponential", "Fleet", "FleetSettings", "Normal", "Trace"]

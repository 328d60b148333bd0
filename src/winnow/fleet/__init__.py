"""Devices, links and energy: what work costs in device seconds and joules."""

from winnow.fleet.devices import Costs, Fleet
from winnow.fleet.settings import FleetSettings, Normal

__all__ = ["Costs", "Fleet", "FleetSettings", "Normal"]

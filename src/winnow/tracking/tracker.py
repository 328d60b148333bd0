"""What a tracker is: a place that takes a run's settings once and a row of numbers after each round."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

from winnow.core import Choice, ConfigError
from winnow.core.installed_package import install_command

Row = Mapping[str, float]
"""A round as in metrics.csv: `round`, `seconds`, `joules`, `loss`, `test.accuracy`, …"""


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A run as a tracker knows it. A run that is tracked again, after a kill or by hand, has the same `identity`."""

    name: str
    identity: str
    settings: Mapping[str, Any]
    """By their dotted names."""
    algorithm: str
    seed: int


class TrackWriter(ABC):
    """Takes the rows of one run, in order, and every one of them: those that it has already are its own business."""

    @abstractmethod
    def write(self, row: Row) -> None: ...

    def flush(self) -> None:  # noqa: B027 - most need none
        """Let others see what was written."""

    @abstractmethod
    def close(self, *, finished: bool) -> None:
        """After the last row, or where tracking ends early."""


class Tracker(Choice):
    """Where runs are shown; a family of settings. A tracker writes every row once, however often it is started anew."""

    package: ClassVar[str]
    """What has to be installed, which is the name of the extra, too."""
    extra: ClassVar[str]

    def open(self, run: TrackedRun) -> TrackWriter:
        """Begin to write a run, or go on; ConfigError where that is impossible."""
        if find_spec(self.package) is None:
            raise ConfigError(f"{self.package} is not installed: {install_command(self.extra)}")
        return self._open(run)

    @abstractmethod
    def _open(self, run: TrackedRun) -> TrackWriter: ...


def measured(row: Row) -> dict[str, float]:
    """The numbers of a row that were measured, without its round."""
    return {name: float(value) for name, value in row.items() if name != "round" and not math.isnan(value)}


def flat_settings(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names; lists as they would be written."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= flat_settings(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value if isinstance(value, int | float | str | bool) else str(value)
    return flat

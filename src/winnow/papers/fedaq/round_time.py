"""The paper's estimate of time (section 6.1), what it published, and the computing times that its seconds imply.

    T_round = S_down/B_down + S_up/B_up + R·T_sim + C

S is what all devices together receive and send in a round, R the factor by which a device is slower than the
simulation, and C an overhead. The paper states no T_sim; two a setting fit its seconds, one plain, one accelerated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

MEGABYTE = 1e6
DOWNLINK, UPLINK = 0.75 * MEGABYTE, 0.25 * MEGABYTE
"""Bytes a second. The paper prints B/s; its seconds are those of MB/s."""
SLOWDOWN, OVERHEAD = 7.0, 10.0


@dataclass(frozen=True, kw_only=True)
class Published:
    """A row of the paper: rounds, bits that a client sends, and seconds to the accuracy of the setting."""

    rounds: int
    bits: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class TimedSetting:
    """A setting as the paper's seconds count it."""

    parameters: int
    devices: int
    published: Mapping[str, Published]
    """By the name of a method."""

    def compute_seconds(self, *, accelerated: bool) -> float:
        """R·T_sim: the mean of what is left of the published seconds a round."""
        return fmean(
            row.seconds / row.rounds - self._transfer(name, row) - OVERHEAD
            for name, row in self.published.items()
            if is_accelerated(name) == accelerated
        )

    def predicted(self, name: str) -> float:
        """A row's seconds by the fit."""
        row = self.published[name]
        own = self._transfer(name, row) + self.compute_seconds(accelerated=is_accelerated(name)) + OVERHEAD
        return row.rounds * own

    def _transfer(self, name: str, row: Published) -> float:
        """In the paper what goes down is quantised like what goes up."""
        sent = self.devices * models(name) * self.parameters * quantised_bits(name) / 8
        return transfer_seconds(down=sent, up=sent)


def transfer_seconds(*, down: float, up: float) -> float:
    """Of the bytes of all devices."""
    return down / DOWNLINK + up / UPLINK


def is_accelerated(name: str) -> bool:
    return name.startswith(("fedac", "fedaq"))


def models(name: str) -> int:
    """How many lists of parameters travel each way."""
    return 2 if is_accelerated(name) else 1


def quantised_bits(name: str) -> int:
    """The bits a number, by the end of a method's name."""
    last = name.rpartition("-")[2]
    return int(last) if last in ("4", "8") else 32


def _rows(*rows: tuple[str, int, float, float]) -> Mapping[str, Published]:
    return {name: Published(rounds=rounds, bits=bits, seconds=seconds) for name, rounds, bits, seconds in rows}


LOGISTIC = TimedSetting(
    parameters=7_850,
    devices=16,
    published=_rows(
        ("fedavg", 217, 5.4e7, 3220),
        ("fedpaq-8", 216, 1.4e7, 2760),
        ("fedcomgate-8", 260, 1.6e7, 3336),
        ("fedac-1", 28, 1.4e7, 484),
        ("fedaq-1-8", 26, 3.3e6, 344),
        ("fedaq-2-8", 99, 1.2e7, 1323),
    ),
)
MLP = TimedSetting(
    parameters=199_210,
    devices=18,
    published=_rows(
        ("fedavg", 23, 1.5e8, 2424),
        ("fedpaq-8", 48, 7.6e7, 2311),
        ("fedcomgate-8", 38, 6.1e7, 1834),
        ("fedac-1", 18, 2.3e8, 3327),
        ("fedaq-1-8", 18, 5.7e7, 1248),
        ("fedaq-1-4", 16, 2.5e7, 805),
    ),
)
CNN = TimedSetting(
    parameters=672_212,
    devices=18,  # the paper has 8 clients here, but its seconds fit 18: then the computing share is alike for all rows
    published=_rows(
        ("fedavg", 98, 2.1e9, 31798),
        ("fedpaq-8", 89, 4.8e8, 11526),
        ("fedcomgate-8", 95, 5.1e8, 12240),
        ("fedac-1", 49, 2.1e9, 28720),
        ("fedaq-1-8", 50, 5.4e8, 9902),
        ("fedaq-1-4", 48, 2.6e8, 6464),
    ),
)

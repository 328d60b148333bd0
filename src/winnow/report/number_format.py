"""Numbers as people read them, the same in the terminal and in the report."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, stdev

MISSING = "–"


@dataclass(frozen=True, kw_only=True, slots=True)
class MeanAndSd:
    """The mean of some runs and their standard deviation (n − 1 in the denominator; None for a single run)."""

    mean: float
    sd: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "MeanAndSd | None":
        """The spread of the values that there are; None if there are none."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        return cls(mean=fmean(known), sd=stdev(known) if len(known) > 1 else None, count=len(known))

    def scaled(self, factor: float) -> "MeanAndSd":
        return MeanAndSd(mean=self.mean * factor, sd=None if self.sd is None else self.sd * factor, count=self.count)


def mean_sd_text(spread: MeanAndSd | None, decimals: int | None = None) -> str:
    """`0.838 ± 0.002`. Without `decimals` the mean has three significant digits, and the deviation as many places."""
    if spread is None:
        return MISSING
    if decimals is None and spread.sd is None:
        return number_text(spread.mean)
    places = _places(spread.mean) if decimals is None else decimals
    mean = f"{spread.mean:,.{places}f}"
    return mean if spread.sd is None else f"{mean} ± {spread.sd:,.{places}f}"


def number_text(value: float | None) -> str:
    """Whole numbers as they are, others with about three significant digits."""
    if value is None or math.isnan(value):
        return MISSING
    return f"{value:,.0f}" if value.is_integer() else f"{value:,.{_places(value)}f}"


def score_text(value: float | None) -> str:
    """A metric's value with four decimals; a dash where it is undefined."""
    return MISSING if value is None or math.isnan(value) else f"{value:,.4f}"


def size_text(count: float) -> str:
    """Bytes with three significant digits in the unit that fits: 640 B, 7.88 kB, 2.00 MB."""
    unit, *larger = ("B", "kB", "MB", "GB", "TB")
    while count >= 999.5 and larger:
        count, unit = count / 1000, larger.pop(0)
    return f"{count:,.{0 if unit == 'B' else _places(count)}f} {unit}"


def _places(value: float) -> int:
    """How many decimal places show three significant digits."""
    if value == 0 or not math.isfinite(value):
        return 0
    return min(max(2 - math.floor(math.log10(abs(value))), 0), 6)

"""How a column of numbers differs from the reference's, in words and in its own units."""

import math

import numpy as np

from winnow.learn.client_quality.column_differences import NEEDED_SPREAD, ColumnDifferences
from winnow.learn.client_quality.input_names import InputNames
from winnow.learn.client_quality.unit_names import CLOSE, likely_units

CONSTANT = 1e-3
"""A deviation below this share of the expected one is none."""
_DEGREES = ((1.8, 32.0, "°F against °C"), (1 / 1.8, -32 / 1.8, "°C against °F"))
_CERTAIN = 0.03
"""The relative error of a factor that may be one of degrees, whatever the column is called."""


class ColumnWords:
    """The words for each number column: raw value = feature × width + shift."""

    def __init__(self, differences: ColumnDifferences, names: InputNames) -> None:
        self._d, self._features = differences, names.features

    def constant(self, place: int) -> str:
        value, unit = self._raw(self._d.mean, place), self._d.expected_total[place] * self._features[place].width
        return f"is {'0' if abs(value) < CONSTANT * unit else number_text(value, 4)} in every row"

    def difference(self, place: int) -> str:
        wider, moved = self._d.spread_strength[place] >= 1, self._d.place_strength[place] >= 1
        if wider or (moved and abs(self._d.spread[place]) >= NEEDED_SPREAD):
            scaled = self._degrees(place) or self._times(place)
            if wider or scaled:
                return scaled or self._varies(place)
        if moved or abs(self._d.shift_z[place]) >= self._d.needed_z:
            return self._shifted(place)
        return "goes with the labels in another way than expected"

    def _raw(self, means: np.ndarray[tuple[int, ...], np.dtype[np.float64]], place: int) -> float:
        return float(means[place] * self._features[place].width + self._features[place].shift)

    def _means(self, place: int) -> tuple[float, float, float, float]:
        """The client's mean and the expected one, in raw units, each with its standard error."""
        d, width = self._d, self._features[place].width
        error = d.deviation[place] * width / math.sqrt(d.rows)
        expected_error = d.expected_deviation[place] * width / math.sqrt(d.reference_rows)
        return self._raw(d.mean, place), self._raw(d.expected_mean, place), float(error), float(expected_error)

    def _degrees(self, place: int) -> str | None:
        mean, expected, error, _ = self._means(place)
        ratio, ratio_error = math.exp(self._d.spread[place]), float(self._d.spread_error[place])
        if "temp" not in self._features[place].column.lower() and ratio_error > _CERTAIN:
            return None
        for factor, offset, units in _DEGREES:
            near = abs(ratio / factor - 1) <= 3 * ratio_error + 0.02
            if near and abs(mean - factor * expected - offset) <= 4 * error:
                return f"mean {number_text(mean)}; {number_text(expected)} expected ({units}?)"
        return None

    def _times(self, place: int) -> str | None:
        """So many times larger, if mean and deviation agree on it."""
        mean, expected, error, expected_error = self._means(place)
        ratio, ratio_error = float(self._d.spread[place]), float(self._d.spread_error[place])
        if mean * expected <= 0 or abs(expected) < 4 * expected_error:
            return None
        by_mean, mean_error = math.log(mean / expected), math.hypot(error / mean, expected_error / expected)
        if abs(by_mean - ratio) > 3 * math.hypot(ratio_error, mean_error) + 0.05:
            return None
        combined = 1 / (ratio_error**-2 + mean_error**-2)
        factor = math.exp(combined * (ratio / ratio_error**2 + by_mean / mean_error**2))
        larger, size = ("larger", factor) if factor > 1 else ("smaller", 1 / factor)
        units = likely_units(self._features[place].column, size, math.sqrt(combined))
        if units is None:
            return f"{number_text(size, 2)} times {larger} than expected"
        about = "" if abs(size / units.factor - 1) <= CLOSE else "about "
        return f"{about}{number_text(units.factor)} times {larger} than expected ({units.units}?)"

    def _varies(self, place: int) -> str:
        ratio = math.exp(self._d.spread[place])
        return f"varies {'' if ratio > 1 else 'only '}{number_text(ratio, 2)} times as much as expected"

    def _shifted(self, place: int) -> str:
        mean, expected, *_ = self._means(place)
        both = f"mean {number_text(mean)}; {number_text(expected)} expected"
        if mean * expected < 0 and abs(mean + expected) < 0.1 * abs(mean - expected):
            return f"{both} (another sign?)"
        return f"{'higher' if mean > expected else 'lower'} by {number_text(abs(mean - expected), 2)} ({both})"


def number_text(value: float, digits: int = 3) -> str:
    """With so many digits, but never with a power of ten for a large number."""
    return f"{value:,.0f}" if abs(value) >= 10**digits - 0.5 else f"{value:.{digits}g}"

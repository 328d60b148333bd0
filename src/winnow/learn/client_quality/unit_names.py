"""Factors between units that people mix up, to suggest why a column is so many times larger."""

import math
from dataclasses import dataclass

CLOSE = 0.05
"""Honest clients' means and deviations are this far apart, relative to them."""
MAX_ERROR = 0.15
"""A factor that is farther from a known one, or less certain, is not said to be it."""


@dataclass(frozen=True)
class UnitFactor:
    """One unit against a `factor` times larger one. `words` are parts of the names of columns for which it is meant."""

    factor: float
    units: str
    words: tuple[str, ...] = ()


UNIT_FACTORS = (
    UnitFactor(18.0, "mg/dL against mmol/L", ("gluc", "sugar")),
    UnitFactor(38.67, "mg/dL against mmol/L", ("chol", "hdl", "ldl")),
    UnitFactor(88.57, "mg/dL against mmol/L", ("triglyc",)),
    UnitFactor(88.42, "µmol/L against mg/dL", ("creat",)),
    UnitFactor(7.5006, "mmHg against kPa", ("press", "bp", "systol", "diastol")),
    UnitFactor(2.2046, "pounds against kilograms", ("weight", "mass")),
    UnitFactor(2.54, "centimetres against inches", ("height", "length", "width", "size", "waist")),
    UnitFactor(30.48, "centimetres against feet", ("height", "length")),
    UnitFactor(3.2808, "feet against metres", ("height", "length", "distance", "altitude")),
    UnitFactor(1.6093, "kilometres against miles", ("distance", "speed", "mile")),
    UnitFactor(4.184, "kilojoules against kilocalories", ("energy", "calor", "kcal")),
    UnitFactor(12.0, "months against years", ("age", "year", "month", "tenure", "duration")),
    UnitFactor(365.25, "days against years", ("age", "year", "day", "duration")),
    UnitFactor(7.0, "days against weeks", ("week", "day", "duration", "gestation")),
    UnitFactor(24.0, "hours against days", ("hour", "day", "time", "duration", "stay")),
    UnitFactor(
        60.0, "minutes against hours, or seconds against minutes", ("hour", "minute", "second", "time", "duration")
    ),
    UnitFactor(100.0, "centimetres against metres", ("height", "length", "width", "size", "waist")),
    UnitFactor(
        100.0, "cents against euros, a decimal point", ("price", "pay", "cost", "spen", "amount", "income", "fee")
    ),
    UnitFactor(10.0, "a decimal point"),
    UnitFactor(100.0, "per cent against shares, a decimal point"),
    UnitFactor(1000.0, "thousandths, as grams against kilograms"),
    UnitFactor(1e6, "millionths"),
)


def likely_units(column: str, factor: float, error: float) -> UnitFactor | None:
    """What a factor (> 1, with a relative error) may come from; None if nothing is known of it.

    Units that are meant for a column of this name come first.
    """
    if error > MAX_ERROR:
        return None
    near = min(MAX_ERROR, 2.5 * math.hypot(error, CLOSE))
    meant = [each for each in UNIT_FACTORS if any(word in column.lower() for word in each.words)]
    general = [each for each in UNIT_FACTORS if not each.words]
    for candidates in (meant, general):
        nearest = min(candidates, key=lambda each: abs(math.log(factor / each.factor)), default=None)
        if nearest and abs(factor / nearest.factor - 1) <= near:
            return nearest
    return None

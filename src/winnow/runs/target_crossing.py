"""When a metric reaches its target: for the first time, and to stay there."""

from collections.abc import Sequence
from statistics import fmean

SUSTAINED_OVER = 5
"""So many evaluations after a crossing must reach the target on average for it to be sustained."""


def first_crossing(values: Sequence[float], target: float, *, lower_is_better: bool = False) -> int | None:
    """The place of the first value that reaches the target; NaN does not."""
    return next((place for place, value in enumerate(values) if _reaches(value, target, lower_is_better)), None)


def sustained_crossing(values: Sequence[float], target: float, *, lower_is_better: bool = False) -> int | None:
    """The place of the first value that reaches the target and is followed by five whose mean does, too.

    One lucky round crosses a target that the next rounds miss. Of the last five values nothing is known yet.
    """
    for place in range(len(values) - SUSTAINED_OVER):
        following = fmean(values[place + 1 : place + 1 + SUSTAINED_OVER])
        if _reaches(values[place], target, lower_is_better) and _reaches(following, target, lower_is_better):
            return place
    return None


def _reaches(value: float, target: float, lower_is_better: bool) -> bool:
    return value <= target if lower_is_better else value >= target

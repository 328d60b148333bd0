"""Numbers that other parties tell about themselves, which end up in sums with everybody else's."""

from typing import Any

import numpy as np

from winnow.core.task import Cost, Reply
from winnow.core.untrusted_text import one_line

MAX_METRIC = 1e30
"""Whatever exceeds it counts as no number: squares and sums of what is left do not overflow."""

MAX_COST = 1e15
"""Seconds, joules and bytes beyond it are a lie."""


def is_plausible_cost(cost: Cost) -> bool:
    return all(0 <= each <= MAX_COST for each in cost)


def numbers_fault(reply: Reply) -> str | None:
    """What is wrong with a reply's metrics or its cost; None if nothing is. A metric may be infinite, or NaN."""
    for name, value in reply.metrics.items():
        if not _is_number(value):
            return one_line(f"the reply's metric {str(name)[:80]!r} is not a number")
    return None if is_plausible_cost(reply.cost) else "the reply states an impossible cost"


def _is_number(value: Any) -> bool:
    """NumPy's are numbers too: handlers in this process hand over what they computed."""
    return type(value) in (float, int) or isinstance(value, np.floating | np.integer)

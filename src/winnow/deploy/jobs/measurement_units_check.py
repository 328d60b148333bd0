"""Whether a site's columns are in the units that a job states: one in mg/dL beside one in mmol/L spoils a model.

A job's preprocessing states where the values of each column lie. A site compares its own with that, and tells the
server the columns that are at least four times larger or smaller, as a power of two. It keeps that to itself where the
job claims differential privacy, or where it forces filters on jobs.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from winnow.data import ClientData, Preprocessing
from winnow.data.preprocessing import Column
from winnow.deploy.jobs.ipc_messages import JobSite
from winnow.deploy.jobs.party_data import SiteData

UNLIKE = 4.0
"""A column is unlike what was stated if it is at least so many times as large, or as small."""
NOTHING = 1e-6
"""A column that is smaller than this share of what was stated is empty, not in other units: a flag that nobody has."""
MAX_POWER = 100
MAX_LISTED = 5
"""Columns of one site that a job's log names."""


def unlike_columns(data: SiteData) -> dict[int, int]:
    """By its place among the stated columns: the power of two by which a column is larger, or smaller (negative)."""
    clients, found, place = data.clients, {}, 0
    for number, column in enumerate(data.preprocessing.columns):
        scaled = (column.shift, column.width) != (0.0, 1.0)
        if isinstance(clients, ClientData) and column.kind == "number" and scaled:
            features = clients.x[clients.rows, place].astype(np.float64)
            observed = clients.x[clients.rows, place + 1] == 0 if column.marks_missing else slice(None)
            power = _power_between(features[observed], column)
            if power:
                found[number] = max(-MAX_POWER, min(MAX_POWER, power))
        place += len(column.features)
    return found


def _power_between(features: NDArray[np.float64], column: Column) -> int:
    """0 where the values may be in the stated units.

    Values that were scaled by mean and deviation have a root mean square of hypot(shift, width); those scaled by their
    range have at most √2 times that, and none is below the shift. So what is larger than 4 times the one, or smaller
    than a quarter of the shift, is neither.
    """
    if not len(features):
        return 0
    size = float(np.sqrt(np.mean(np.square(features * column.width + column.shift))))
    stated = math.hypot(column.shift, column.width)
    if size < UNLIKE * stated and (size > abs(column.shift) / UNLIKE or size < NOTHING * stated):
        return 0
    return round(math.log2(size / stated))


def unit_lines(members: Sequence[JobSite], stated: Preprocessing | None) -> Iterator[str]:
    """What a job's log says before the first round; a site may tell anything, so only stated columns are named."""
    if stated is None:
        if any(member.data.columns for member in members):
            yield (
                "the job states no preprocessing: sites use their tables as they are, or as their own site.toml scales "
                "them, and nobody can tell whether their units agree (data.preprocessing)"
            )
        return
    for member in members:
        known = {number: power for number, power in member.data.unlike_columns.items() if number < len(stated.columns)}
        for number, power in list(known.items())[:MAX_LISTED]:
            yield f"site {member.site}: {_line(stated, number, power)}"
        if len(known) > MAX_LISTED:
            yield f"site {member.site}: {len(known) - MAX_LISTED} more columns are not like those stated"


def site_lines(stated: Preprocessing, unlike: Mapping[int, int]) -> list[str]:
    """The same for the site's own log."""
    return [_line(stated, number, power) for number, power in unlike.items()]


def _line(stated: Preprocessing, number: int, power: int) -> str:
    name, times = stated.columns[number].name, f"{2.0 ** abs(power):.3g} times"
    return f"column {name!r} is about {times} {'larger' if power > 0 else 'smaller'} than the job states: other units?"

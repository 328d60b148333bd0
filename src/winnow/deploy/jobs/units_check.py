"""Whether a site's columns are in the units that a job states: one in mg/dL beside one in mmol/L spoils a model.

A job's preprocessing states the mean and the spread of each column. A site compares its own with them, and tells the
server the columns that are several times larger or smaller, as a power of two. It keeps that to itself where the job
claims differential privacy, or where it forces filters on jobs.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from winnow.data import ClientData, Preprocessing
from winnow.deploy.jobs.ipc import JobSite
from winnow.deploy.jobs.local_data import SiteData

LEAST_POWER = 2
"""A column is unlike what was stated if it is at least 2² times as large, or as small."""
MAX_POWER = 100
MAX_LISTED = 5
"""Columns of one site that a job's log names."""


def unlike_columns(data: SiteData) -> dict[int, int]:
    """By its place among the stated columns: the power of two by which a column is larger, or smaller (negative)."""
    clients, found, place = data.clients, {}, 0
    for number, column in enumerate(data.preprocessing.columns):
        stated = math.hypot(column.shift, column.width)
        scaled = (column.shift, column.width) != (0.0, 1.0)
        if isinstance(clients, ClientData) and column.kind == "number" and scaled:
            raw = clients.x[clients.rows, place].astype(np.float64) * column.width + column.shift
            size = float(np.sqrt(np.mean(np.square(raw)))) if len(raw) else stated
            power = round(math.log2(size / stated)) if size else -MAX_POWER
            if abs(power) >= LEAST_POWER:
                found[number] = max(-MAX_POWER, min(MAX_POWER, power))
        place += len(column.features)
    return found


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

"""The run folder: what a run was, what happened, what came of it, and how to take it up again."""

from winnow.runs.folder import RunFolder
from winnow.runs.label import RunLabel
from winnow.runs.promises import Promise, promises
from winnow.runs.reclock import reclocked, with_communication
from winnow.runs.summary import Reading, Summary, result_record, summarise
from winnow.runs.track import Point, points
from winnow.runs.view import RunView

__all__ = [
    "Point",
    "Promise",
    "Reading",
    "RunFolder",
    "RunLabel",
    "RunView",
    "Summary",
    "points",
    "promises",
    "reclocked",
    "result_record",
    "summarise",
    "with_communication",
]

"""Task, reply, handler, filter, federation, workflow: the words that everything else is said in."""

from winnow.core.clock import Clock, VirtualClock
from winnow.core.errors import ConfigError, DataError, ModelError, RunError, SiteError, WinnowError
from winnow.core.events import AnyEvent, Assessed, Event, Invited, Metrics, Refused, RoundFinished, Scored
from winnow.core.federation import EVERYONE, Exchange, Federation, Population, Until
from winnow.core.handler import Filter, Handler, wrap
from winnow.core.random import derive, stream
from winnow.core.settings import Choice, Settings
from winnow.core.suggest import suggest
from winnow.core.task import (
    FREE,
    NO_WORK,
    Arrays,
    Cost,
    Failure,
    Outcome,
    Payload,
    Reply,
    Task,
    Work,
)
from winnow.core.workflow import Snapshot, Workflow

__all__ = [
    "EVERYONE",
    "FREE",
    "NO_WORK",
    "AnyEvent",
    "Arrays",
    "Assessed",
    "Choice",
    "Clock",
    "ConfigError",
    "Cost",
    "DataError",
    "Event",
    "Exchange",
    "Failure",
    "Federation",
    "Filter",
    "Handler",
    "Invited",
    "Metrics",
    "ModelError",
    "Outcome",
    "Payload",
    "Population",
    "Refused",
    "Reply",
    "RoundFinished",
    "RunError",
    "Scored",
    "Settings",
    "SiteError",
    "Snapshot",
    "Task",
    "Until",
    "VirtualClock",
    "WinnowError",
    "Work",
    "Workflow",
    "derive",
    "stream",
    "suggest",
    "wrap",
]

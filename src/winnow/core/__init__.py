"""Task, reply, handler, filter, federation, workflow: the words that everything else is said in.

Errors are here at once, the rest on first use: the agent of an idle site needs no NumPy and no pydantic.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from winnow.core.errors import (
    ConfigError,
    DataError,
    ModelError,
    OwnCodeError,
    RunError,
    SiteError,
    WinnowError,
    WinnowWarning,
)
from winnow.core.suggest import suggest

if TYPE_CHECKING:
    from winnow.core.clock import Clock, VirtualClock
    from winnow.core.events import (
        Answered,
        AnyEvent,
        Assessed,
        Evaluated,
        Event,
        Metrics,
        PolicyApplied,
        Rejected,
        Released,
        RoundFinished,
        Scored,
        Selected,
        Stopped,
    )
    from winnow.core.federation import UNTIL_ALL, Exchange, Federation, Population, Until
    from winnow.core.handler import Filter, Handler, wrap
    from winnow.core.random_streams import Randomness, derive, stream
    from winnow.core.settings import Choice, Settings
    from winnow.core.task import NO_COST, NO_WORK, Arrays, Cost, Failure, Outcome, Payload, Reply, Task, Work
    from winnow.core.workflow import Snapshot, Workflow

__all__ = [
    "NO_COST",
    "NO_WORK",
    "UNTIL_ALL",
    "Answered",
    "AnyEvent",
    "Arrays",
    "Assessed",
    "Choice",
    "Clock",
    "ConfigError",
    "Cost",
    "DataError",
    "Evaluated",
    "Event",
    "Exchange",
    "Failure",
    "Federation",
    "Filter",
    "Handler",
    "Metrics",
    "ModelError",
    "Outcome",
    "OwnCodeError",
    "Payload",
    "PolicyApplied",
    "Population",
    "Randomness",
    "Rejected",
    "Released",
    "Reply",
    "RoundFinished",
    "RunError",
    "Scored",
    "Selected",
    "Settings",
    "SiteError",
    "Snapshot",
    "Stopped",
    "Task",
    "Until",
    "VirtualClock",
    "WinnowError",
    "WinnowWarning",
    "Work",
    "Workflow",
    "derive",
    "stream",
    "suggest",
    "wrap",
]

_HOMES = {
    "clock": ("Clock", "VirtualClock"),
    "events": (
        "Answered",
        "AnyEvent",
        "Assessed",
        "Evaluated",
        "Event",
        "Selected",
        "Metrics",
        "PolicyApplied",
        "Rejected",
        "Released",
        "RoundFinished",
        "Scored",
        "Stopped",
    ),
    "federation": ("UNTIL_ALL", "Exchange", "Federation", "Population", "Until"),
    "handler": ("Filter", "Handler", "wrap"),
    "random_streams": ("Randomness", "derive", "stream"),
    "settings": ("Choice", "Settings"),
    "task": ("NO_COST", "NO_WORK", "Arrays", "Cost", "Failure", "Outcome", "Payload", "Reply", "Task", "Work"),
    "workflow": ("Snapshot", "Workflow"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'winnow.core' has no attribute {name!r}")
    found = getattr(import_module(f"winnow.core.{_HOME_OF[name]}"), name)
    globals()[name] = found
    return found

"""Events of a job as a server tells of them, who may send anything in their place."""

from winnow.core import AnyEvent, RunError
from winnow.deploy.wire.messages import LogLine
from winnow.runs.event_log import decode_event


def told_event(line: LogLine) -> AnyEvent:
    """The event in a line of a job's log; RunError if it is none."""
    try:
        return decode_event(line.text.encode())
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise RunError("a line of the job's log is not an event: no job writes what the server sent") from error

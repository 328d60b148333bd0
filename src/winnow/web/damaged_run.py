"""Run folders whose files make no sense: they may come from anybody."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from winnow.core import RunError, WinnowError
from winnow.core.untrusted_text import error_line, one_line

log = logging.getLogger(__name__)

NOT_FORESEEN = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


@contextmanager
def damage_in_one_line(shown: str) -> Iterator[None]:
    """A RunError in the place of whatever values raise that no reader of a file foresaw: numbers in the place of
    lists, clients that are not there, tables in tables in tables. One such folder must not hide the others.
    """
    try:
        yield
    except WinnowError:
        raise
    except NOT_FORESEEN as error:
        log.debug("run %s", one_line(shown), exc_info=error)
        told = f"{one_line(shown)} cannot be shown: its files are damaged ({error_line(error)})"
        raise RunError(told) from error

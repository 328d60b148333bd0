"""What others may read of an error at a site."""

import sys
from collections.abc import Callable

from winnow.core import DataError, ModelError, OwnCodeError, WinnowError
from winnow.core.errors import first_line

SEE_SITE_LOG = "see the site's log"

_private_log: list[Callable[[str], object]] = []


def set_private_log(write: Callable[[str], object]) -> None:
    """Where errors go that nobody outside the site may read."""
    _private_log[:] = [write]


def redacted_error(error: Exception) -> str:
    """What others may read of an error at a site: nothing that may quote its data. The private log gets all of it."""
    text = f"{type(error).__name__}: {error}"
    for write in _private_log or [lambda line: print(line, file=sys.stderr)]:
        write(text)
    if isinstance(error, OwnCodeError):
        return f"{error.place}; {SEE_SITE_LOG}"
    if isinstance(error, ModelError) and (cause := _own_cause(error)) is not None:
        kind, quoted = type(cause).__name__, first_line(cause)
        return f"{str(error).replace(quoted, kind) if quoted in str(error) else kind}; {SEE_SITE_LOG}"
    if isinstance(error, WinnowError) and not isinstance(error, DataError):
        return str(error)
    what = "the site's data do not match its configuration" if isinstance(error, DataError) else type(error).__name__
    return f"{what}; {SEE_SITE_LOG}"


def _own_cause(error: BaseException) -> BaseException | None:
    """The error in a model or a loss of the job's own that this one quotes: it was given samples, and may tell them."""
    cause = error.__cause__
    return _own_cause(cause) if isinstance(cause, WinnowError) else cause

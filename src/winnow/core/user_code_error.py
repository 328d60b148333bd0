"""An error that a user's own code raised, in one line: its last place in that code, and what it says."""

import traceback
from collections.abc import Callable


def place_of_error(error: BaseException, is_own: Callable[[str], bool]) -> tuple[str, int] | None:
    """The last file and line of the user's own that an error went through; None where there is none."""
    if isinstance(error, SyntaxError) and error.filename and is_own(error.filename):
        return error.filename, error.lineno or 1
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame.filename)]
    return (own[-1].filename, own[-1].lineno or 1) if own else None


def text_of_error(error: BaseException) -> str:
    """The kind of error, and the first line of what it says."""
    told = error.msg if isinstance(error, SyntaxError) else str(error)
    return ": ".join(filter(None, (type(error).__name__, *told.splitlines()[:1])))

"""Text of other parties, made fit to be shown."""

from winnow.core.number_text import is_number

MAX_LINE = 500
FORMULA_STARTS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""A cell that begins with one of these, in either width, is a formula to a spreadsheet, which runs it."""


def one_line(text: object) -> str:
    """Whatever a stranger wrote, fit for one line of a log: printable, and not too long."""
    line = " ".join(str(text)[: 4 * MAX_LINE].split())
    line = "".join(letter if letter.isprintable() else "?" for letter in line)
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 1] + "…"


def printable(text: object) -> str:
    """The same for text that may have several lines: nothing in it moves a terminal's cursor or changes its colours."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in str(text))


def no_formula(text: str) -> str:
    """A cell of a CSV file that a spreadsheet shows and does not run. A number is no formula."""
    return f"'{text}" if text.lstrip().startswith(FORMULA_STARTS) and not is_number(text) else text


def error_line(error: BaseException) -> str:
    """An error with its type, which alone tells where a bug is ours."""
    return one_line(f"{type(error).__name__}: {error}")

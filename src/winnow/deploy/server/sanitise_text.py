"""Text of strangers on its way into the database and to people's screens."""

from winnow.deploy.wire.messages import MAX_TEXT

ELLIPSIS = "…"


def without_nul(text: str) -> str:
    """The same text without NUL, which PostgreSQL's text cannot hold."""
    return text.replace("\0", "?")


def printable_line(text: str) -> str:
    """A line for a log: no letter moves a cursor or ends it, and it is not too long. Columns stay where they were."""
    line = "".join(letter if letter.isprintable() or letter == "\t" else "?" for letter in text[:MAX_TEXT])
    return line if len(text) <= MAX_TEXT else line[:-1] + ELLIPSIS

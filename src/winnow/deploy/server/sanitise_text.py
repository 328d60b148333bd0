"""Makes untrusted text safe for the database and for terminals."""

from winnow.deploy.wire.messages import MAX_TEXT

ELLIPSIS = "…"


def without_nul(text: str) -> str:
    """The same text without NUL, which PostgreSQL's text cannot hold."""
    return text.replace("\0", "?")


def printable_line(text: str) -> str:
    """A line for a log, without control characters and not too long. Columns stay where they were."""
    line = "".join(char if char.isprintable() or char == "\t" else "?" for char in text[:MAX_TEXT])
    return line if len(text) <= MAX_TEXT else line[:-1] + ELLIPSIS

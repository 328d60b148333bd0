"""Where output goes: answers to standard output, everything else to standard error. Both respect NO_COLOR."""

import sys

from rich.console import Console


def stdout_console() -> Console:
    return Console(highlight=False, soft_wrap=False)


def stderr_console() -> Console:
    return Console(stderr=True, highlight=False)


def say(line: str, console: Console | None = None) -> None:
    """One line to standard error, never broken; above what a given console shows there."""
    from winnow.core.untrusted_text import printable

    (console or stderr_console()).print(printable(line), soft_wrap=True, markup=False)


def answer(line: str) -> None:
    """One line of a server's to standard output."""
    from winnow.core.untrusted_text import printable

    sys.stdout.write(printable(line) + "\n")


def write_json(record: object) -> None:
    """One record on one line. Numbers that JSON cannot hold become null."""
    import msgspec

    from winnow.runs.event_log import json_default

    sys.stdout.write(msgspec.json.encode(record, enc_hook=json_default).decode() + "\n")

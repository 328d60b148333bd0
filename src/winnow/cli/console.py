"""Where output goes: answers to standard output, everything else to standard error. Both respect NO_COLOR."""

import sys

from rich.console import Console


def answers() -> Console:
    return Console(highlight=False, soft_wrap=False)


def messages() -> Console:
    return Console(stderr=True, highlight=False)


def say(line: str) -> None:
    """One line to standard error, never broken."""
    messages().print(line, soft_wrap=True, markup=False)


def write_json(record: object) -> None:
    """One record on one line. Numbers that JSON cannot hold become null."""
    import msgspec

    from winnow.runs.codec import plain

    sys.stdout.write(msgspec.json.encode(record, enc_hook=plain).decode() + "\n")

"""Where output goes: answers to standard output, everything else to standard error. Both respect NO_COLOR."""

import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table


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


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True) -> Table:
    """A plain table; all columns but the first are numbers, unless told otherwise."""
    result = Table(box=box.SIMPLE_HEAD, show_edge=False, collapse_padding=True, header_style="bold")
    for index, title in enumerate(header):
        result.add_column(title, justify="right" if numbers and index else "left")
    for row in rows:
        result.add_row(*row)
    return result

"""Tables as a terminal shows them."""

from collections.abc import Collection, Iterable, Sequence

from rich import box
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from winnow.core.untrusted_text import printable


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool | Collection[str] = True) -> Table:
    """A plain table; all columns but the first are numbers, unless told otherwise: none, or those of these titles."""
    result = Table(box=box.SIMPLE_HEAD, show_edge=False, collapse_padding=True, header_style="bold")
    for index, title in enumerate(header):
        is_number = bool(index) and numbers if isinstance(numbers, bool) else title in numbers
        justify: JustifyMethod = "right" if is_number else "left"
        result.add_column(plain_text(title), justify=justify, overflow="fold")  # a name that is cut off cannot be typed
    for row in rows:
        result.add_row(*map(plain_text, row))
    return result


def plain_text(text: str) -> Text:
    """As it is: brackets in it are no markup. What a terminal would obey in it is gone, for it may be a stranger's."""
    return Text(printable(text))

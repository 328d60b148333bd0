"""Opens the pages in the user's browser."""

import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path

REFERRAL = """<!doctype html>
<title>Winnow</title>
<meta http-equiv="refresh" content="0; url={address}">
<a href="{address}">Winnow</a>
"""


@contextmanager
def open_browser(address: str) -> Iterator[None]:
    """Lead the browser to an address that holds a token. Every user of the machine sees the command lines of the
    others, so the browser is given a file, in a folder that its owner alone may enter, which leads there.
    """
    with tempfile.TemporaryDirectory(prefix="winnow-ui-") as folder:
        file = Path(folder) / "open.html"
        file.write_text(REFERRAL.format(address=escape(address)), encoding="utf-8")
        webbrowser.open(file.as_uri())
        yield

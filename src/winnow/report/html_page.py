"""The page around the sections of a report: one file, no network, in the reader's colour scheme."""

from html import escape
from importlib.resources import files

from plotly.offline import get_plotlyjs

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
"""The browser itself refuses anything from outside the file."""


def page_script() -> str:
    """What makes tables searchable and draws figures; it needs Plotly before it."""
    return files("winnow.report").joinpath("page.js").read_text(encoding="utf-8")


def page_style() -> str:
    return files("winnow.report").joinpath("style.css").read_text(encoding="utf-8")


def page(title: str, lead: str, body: str) -> str:
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<style>{page_style()}</style>
<script>{get_plotlyjs()}</script>
</head>
<body>
<main>
<header><h1>{escape(title)}</h1><p>{escape(lead)}</p></header>
{body}
</main>
<script>{page_script()}</script>
</body>
</html>
"""

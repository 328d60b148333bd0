"""Figures that the list of results quotes stand on the pages, which are made from records."""

import re
from pathlib import Path

import pytest

RESULTS = Path(__file__).parent.parent / "docs" / "results"
SECTIONS = {
    "FedProf in short": "fedprof.md",
    "SRPFL in short": "srpfl.md",
    "Compression under secure aggregation in short": "secagg.md",
}
NUMBER = re.compile(r"(?<![\w.])[-−+]?\d[\d,]*(?:\.\d+)?")
SETTINGS = re.compile(r"`[^`]*`|\([^()]*(?:Adam|batches|widths)[^()]*\)|=\s*[\d.]+")
"""What a sentence says of a setting, which no table has."""


def numbers(text: str) -> list[str]:
    return [found.replace(",", "").replace("−", "-") for found in NUMBER.findall(text)]


def stands_on(page: list[float], quoted: str) -> bool:
    """As it is, as points where the page has a share, or rounded; a difference may be told without its sign."""
    places, value = len(quoted.partition(".")[2]), abs(float(quoted))
    return any(
        abs(abs(found) * scale - value) <= 0.5 * 10**-places + 1e-9 and round(abs(found) * scale, places) == value
        for found in page
        for scale in (1, 100)
    )


@pytest.mark.parametrize(("title", "page"), SECTIONS.items())
def test_every_quoted_figure_stands_on_the_page(title: str, page: str) -> None:
    section = (RESULTS / "README.md").read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    quoted = [number for number in numbers(SETTINGS.sub("", section)) if "." in number]
    known = [float(number) for number in numbers((RESULTS / page).read_text())]
    assert quoted
    assert not [number for number in quoted if not stands_on(known, number)]

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
WITH_SPREAD = re.compile(rf"({NUMBER.pattern})\s?±\s?({NUMBER.pattern})")
SETTINGS = re.compile(r"`[^`]*`|\([^()]*(?:Adam|batches|widths)[^()]*\)|=\s*[\d.]+")
"""What a sentence says of a setting, which no table has."""
SCALES = (1, 100)
"""A figure is told as it is, or as points where the page has a share."""


def value_of(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def is_rounded(found: float, quoted: str) -> bool:
    """A difference may be told without its sign."""
    places = len(quoted.partition(".")[2])
    return abs(abs(found) - abs(value_of(quoted))) <= 0.5 * 10**-places + 1e-9


@pytest.mark.parametrize(("title", "page"), SECTIONS.items())
def test_every_quoted_figure_stands_on_the_page(title: str, page: str) -> None:
    quoted = [number for number in NUMBER.findall(section(title)) if "." in number]
    known = [value_of(number) for number in NUMBER.findall((RESULTS / page).read_text())]
    assert quoted
    assert not [
        number for number in quoted if not any(is_rounded(found * scale, number) for found in known for scale in SCALES)
    ]


@pytest.mark.parametrize(("title", "page"), SECTIONS.items())
def test_every_quoted_mean_has_the_spread_that_the_page_gives_it(title: str, page: str) -> None:
    quoted = WITH_SPREAD.findall(section(title))
    known = [tuple(map(value_of, pair)) for pair in WITH_SPREAD.findall((RESULTS / page).read_text())]
    assert quoted
    assert not [
        pair
        for pair in quoted
        if not any(
            all(is_rounded(found * scale, told) for found, told in zip(both, pair, strict=True))
            for both in known
            for scale in SCALES
        )
    ]


def section(title: str) -> str:
    text = (RESULTS / "README.md").read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    return SETTINGS.sub("", text)

"""Compare the figures that README.md and the list of results quote with the pages made from records."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
SECTIONS = {
    (RESULTS / "README.md", "FedProf in short"): ["fedprof.md"],
    (RESULTS / "README.md", "SRPFL in short"): ["srpfl.md"],
    (RESULTS / "README.md", "Compression under secure aggregation in short"): ["secagg.md"],
    (ROOT / "README.md", "Results"): ["fedprof.md", "clients.md"],
}
"""Pages with the figures that a section of a file quotes."""
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


@pytest.mark.parametrize(("file", "title"), SECTIONS)
def test_every_quoted_figure_stands_on_the_page(file: Path, title: str) -> None:
    quoted = [number for number in NUMBER.findall(section(file, title)) if "." in number]
    known = [value_of(number) for number in NUMBER.findall(pages_of(file, title))]
    assert quoted
    assert not [
        number for number in quoted if not any(is_rounded(found * scale, number) for found in known for scale in SCALES)
    ]


@pytest.mark.parametrize(("file", "title"), SECTIONS)
def test_every_quoted_mean_has_the_spread_that_the_page_gives_it(file: Path, title: str) -> None:
    quoted = WITH_SPREAD.findall(section(file, title))
    known = [tuple(map(value_of, pair)) for pair in WITH_SPREAD.findall(pages_of(file, title))]
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


def section(file: Path, title: str) -> str:
    text = file.read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    return SETTINGS.sub("", text)


def pages_of(file: Path, title: str) -> str:
    """The text of the pages that the section's figures come from."""
    return "\n".join((RESULTS / page).read_text() for page in SECTIONS[file, title])

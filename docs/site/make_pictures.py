"""Capture the pictures of a demo run's report for the documentation.

Run `make demo`, then `.venv/bin/python docs/site/make_pictures.py runs/compare-demo docs/images`. Copy the table that
`make demo` prints to README.md, so that it agrees with the pictures.
"""

import sys
from pathlib import Path

from playwright.sync_api import Browser, Locator, Page, sync_playwright

CHROMIUM = "/usr/bin/chromium"
PAGE_WIDTH = 1100
MARGIN = 12
"""Pixels around what a picture shows."""
ALL_PLOTS_ARE_DRAWN = "[...document.querySelectorAll('.plot')].every(plot => plot.querySelector('.main-svg'))"


def main(run_folder: Path, images: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = _open_report(browser, run_folder / "report.html")
        progress = _section(page, "Progress")
        selection = _section(page, "Client selection")
        first_plot = progress.locator("figure").first
        _capture(page, first_plot, first_plot, images / "progress.png")
        _capture(page, page.locator("header"), progress, images / "report.png")
        _capture(page, selection.locator("h3").first, selection.locator("figure").last, images / "invited.png")
        browser.close()


def _open_report(browser: Browser, report: Path) -> Page:
    page = browser.new_page(viewport={"width": PAGE_WIDTH, "height": 900}, color_scheme="light")
    page.goto(report.resolve().as_uri())
    page.wait_for_function(ALL_PLOTS_ARE_DRAWN)
    page.add_style_tag(content=".modebar { display: none }")
    return page


def _section(page: Page, title: str) -> Locator:
    return page.locator(f"section:has(> h2:text-is('{title}'))")


def _capture(page: Page, first: Locator, last: Locator, path: Path) -> None:
    """Save the part of the page from one element to another."""
    top = first.bounding_box()
    bottom = last.bounding_box()
    if top is None or bottom is None:
        sys.exit(f"{path.name}: the report does not show what this picture needs")
    page.screenshot(
        path=path,
        full_page=True,
        clip={
            "x": top["x"] - MARGIN,
            "y": top["y"] - MARGIN,
            "width": top["width"] + 2 * MARGIN,
            "height": bottom["y"] + bottom["height"] - top["y"] + 2 * MARGIN,
        },
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

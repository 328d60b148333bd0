"""The pages of a federation in a real browser: nothing comes from elsewhere, hostile texts do nothing."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import uvicorn
from playwright.sync_api import sync_playwright
from test_ui_federation import HOSTILE, PAGES, HostileServer, World

from support.needs import BROWSER
from waiting import PATIENCE, eventually
from winnow.web.serve import federation_page_sets, serve_pages

CHROMIUM = Path("/usr/bin/chromium")
WIDTHS = {1440: "light", 375: "dark"}

pytestmark = [
    pytest.mark.slow(part="deploy"),
    BROWSER.unless(CHROMIUM.exists()),
]


class KeptServer(uvicorn.Server):
    """A server that a test can stop."""

    made: ClassVar[list["KeptServer"]] = []

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.made.append(self)


@pytest.fixture
def address(kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where the pages are served, with the login."""
    monkeypatch.setattr(uvicorn, "Server", KeptServer)
    monkeypatch.setattr(KeptServer, "made", [])
    ready, told = threading.Event(), list[str]()
    pages = federation_page_sets(HostileServer(World(tmp_path, kits, "")), control=True)  # type: ignore[arg-type]

    def tell(address: str) -> None:
        told.append(address)
        ready.set()

    def serve() -> None:
        serve_pages(pages, host="127.0.0.1", port=0, on_ready=tell)

    thread = threading.Thread(target=serve)
    thread.start()
    [server] = eventually(lambda: KeptServer.made)
    try:
        assert ready.wait(PATIENCE)
        yield told[0]
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_hostile_servers_pages_are_quiet_and_fit_every_screen(address: str) -> None:
    base, wrong = address.partition("/?")[0], list[str]()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width, scheme in WIDTHS.items():
            page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
            page.set_default_timeout(1000 * PATIENCE)
            page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on("request", lambda sent: None if sent.url.startswith(base) else wrong.append(sent.url))
            page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
            page.goto(address)
            for path in PAGES:
                page.goto(base + path)
                assert page.evaluate("document.documentElement.scrollWidth") <= width, path
                assert path == "/budgets" or HOSTILE in page.inner_text("main"), path
        browser.close()
    assert not wrong

"""The pages of `winnow ui` in a real browser: Debian's Chromium, driven by Playwright."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from bench.ui import finished_round, write_run
from playwright.sync_api import Browser, Page, expect, sync_playwright

from support.needs import BROWSER
from waiting import eventually
from winnow.core import Selected
from winnow.deploy.client.free_port import free_port
from winnow.runs.event_log import encode_event

CHROMIUM = Path("/usr/bin/chromium")
pytestmark = BROWSER.unless(CHROMIUM.exists())

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage

SCRIPT = "<script>alert(1)</script>"
ROUNDS = 5


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser") / "runs"
    write_run(folder / "calm", "fedavg", 0, rounds=ROUNDS)
    write_run(folder / "live", "fedavg", 1, rounds=ROUNDS, finished=False)
    evil = folder / f"evil{SCRIPT.replace('/', '')}"
    write_run(evil, SCRIPT, 2, rounds=ROUNDS)
    conditions = json.loads((evil / "conditions.json").read_text())
    names = [f"<img src=x onerror=alert({number})>" for number in range(len(conditions["of_client"]))]
    (evil / "conditions.json").write_text(json.dumps(conditions | {"labels": [SCRIPT], "names": names}))
    (evil / "run.json").write_text((evil / "run.json").read_text().replace('"made"', json.dumps(SCRIPT)))
    (folder / "damaged").mkdir()
    (folder / "damaged" / "run.json").write_text("{")
    return folder


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    with started(runs) as address:
        yield address


@contextmanager
def started(runs: Path, port: int = 0, state: Path | None = None) -> Iterator[str]:
    command = [sys.executable, "-m", "winnow.cli", "ui", str(runs), "--no-browser", "--port", str(port)]
    environment = os.environ | ({} if state is None else {"XDG_STATE_HOME": str(state)})
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield browser
        browser.close()


class Watched:
    """A page, and whatever it should not do: complain, ask elsewhere, open a dialogue."""

    def __init__(self, browser: Browser, address: str, width: int, scheme: str) -> None:
        self.home = address.partition("/?")[0]
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        context.set_default_timeout(120_000)
        self.page: Page = context.new_page()
        self.wrong: list[str] = []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self._request(request.url))
        self.page.goto(address)

    def open(self, path: str) -> None:
        self.page.goto(self.home + path)
        if self.page.locator(".plot").count():
            self.page.wait_for_function(
                "document.querySelectorAll('.plot').length === "
                "document.querySelectorAll('.plot .main-svg:first-child').length"
            )

    def _console(self, message: "ConsoleMessage") -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"{self.page.url}: {message.text}")

    def _request(self, url: str) -> None:
        if not url.startswith((self.home, "data:", "blob:")):
            self.wrong.append(f"asked elsewhere: {url}")


def keys(watched: Watched) -> dict[str, str]:
    links = watched.page.locator("tbody th a")
    return {link.inner_text(): str(link.get_attribute("href")) for link in links.all()}


@pytest.mark.slow(part="docs")
@pytest.mark.parametrize(("width", "scheme"), [(375, "dark"), (1440, "light")])
def test_every_page_is_quiet_and_fits(browser: Browser, address: str, width: int, scheme: str) -> None:
    watched = Watched(browser, address, width, scheme)
    assert "token" not in watched.page.url
    found = keys(watched)
    assert len(found) == 4
    cut_off = watched.page.evaluate(
        "(table => table.scrollWidth - table.clientWidth)(document.querySelector('.scroll'))"
    )
    assert width < 1440 or cut_off == 0  # though a name and a reason for damage are long
    evil = next(name for name in found if name.startswith("evil"))
    assert evil == "evil<script>alert(1)<script>"
    three = "&".join(f"run={found[name].removeprefix('/runs/')}" for name in ("calm", evil, "live"))
    for path in ("/", "/questions", *found.values(), f"/compare?{three}"):
        watched.open(path)
        assert watched.page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert watched.page.locator("script:not([src]):not([type='application/json'])").count() == 0
    assert not watched.wrong


def test_names_are_shown_as_text(browser: Browser, address: str) -> None:
    watched = Watched(browser, address, 1440, "dark")
    found = keys(watched)
    watched.open(next(path for name, path in found.items() if name.startswith("evil")))
    expect(watched.page.locator("h1")).to_contain_text(SCRIPT)
    assert watched.page.locator("img").count() == 0
    assert not watched.wrong


def test_runs_are_ticked_and_compared_by_keyboard(browser: Browser, address: str) -> None:
    watched = Watched(browser, address, 1440, "light")
    for name in ("calm", "live"):
        watched.page.get_by_label(f"Compare {name}").focus()
        watched.page.keyboard.press("Space")
    watched.page.get_by_role("button", name="Compare").focus()
    watched.page.keyboard.press("Enter")
    expect(watched.page.locator("h2").first).to_have_text("Settings that differ")
    assert not watched.wrong


@pytest.mark.slow(part="docs")
def test_a_new_round_and_a_new_run_appear_by_themselves(browser: Browser, address: str, runs: Path) -> None:
    watched, listed = Watched(browser, address, 1440, "light"), Watched(browser, address, 1440, "light")
    watched.open(keys(watched)["live"])
    expect(watched.page.locator("[data-fact=Rounds]")).to_have_text(f"{ROUNDS} of {ROUNDS}")
    points = "document.querySelector('.plot').data[0].x.length"
    before = watched.page.evaluate(points)
    heat_map = "[...document.querySelectorAll('.plot')].find(plot => plot.data?.[0]?.type === 'heatmap')"
    columns = f"{heat_map}?._fullData[0].x.length"
    selected = watched.page.evaluate(columns)
    chosen, once = np.arange(3), np.ones(3, np.int64)
    with (runs / "live" / "events.jsonl").open("ab") as log:
        log.write(encode_event(Selected(round=ROUNDS + 1, at=200.0, version=ROUNDS, clients=chosen, counts=once)))
        log.write(encode_event(finished_round(ROUNDS + 1, 1)))
    expect(watched.page.locator("[data-fact=Rounds]")).to_have_text(f"{ROUNDS + 1} of {ROUNDS}", timeout=120_000)
    eventually(lambda: watched.page.evaluate(points) == before + 1)
    eventually(lambda: watched.page.evaluate(columns) == selected + 1, "who was selected is not drawn anew")
    write_run(runs / "new", "fedavg", 3, rounds=1)
    expect(listed.page.get_by_role("link", name="new")).to_be_visible(timeout=120_000)
    assert not watched.wrong + listed.wrong


@pytest.mark.slow(part="docs")
def test_a_page_comes_back_with_its_server(browser: Browser, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    write_run(runs / "live", "fedavg", 1, rounds=ROUNDS, finished=False)
    port = free_port()
    with started(runs, port, tmp_path) as address:
        run, listed = Watched(browser, address, 1440, "light"), Watched(browser, address, 1440, "light")
        run.open(keys(run)["live"])
    expect(run.page.locator("#notice")).to_contain_text("connection is lost")
    write_run(runs / "meanwhile", "fedavg", 2, rounds=1)
    with (runs / "live" / "events.jsonl").open("ab") as log:
        log.write(encode_event(finished_round(ROUNDS + 1, 1)))
    with started(runs, port, tmp_path):  # whose new address nobody opens
        expect(run.page.locator("[data-fact=Rounds]")).to_have_text(f"{ROUNDS + 1} of {ROUNDS}", timeout=120_000)
        expect(run.page.locator("#notice")).to_be_hidden()
        expect(listed.page.get_by_role("link", name="meanwhile")).to_be_visible(timeout=120_000)

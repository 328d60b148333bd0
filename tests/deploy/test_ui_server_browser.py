"""The server's own pages in a real browser, on a phone and a desk: a kit is applied for and had by keyboard alone."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import sync_playwright
from serving import a_world, eventually, federation, job_config, project_of
from test_ui_applications import Project, apply, written

from support.needs import BROWSER
from winnow.deploy.client.free_port import free_port

sys.path.insert(0, str(Path(__file__).parents[1]))

from waiting import PATIENCE
from winnow.deploy.trust.application import read_application
from winnow.deploy.trust.pending_kit import complete_kit
from winnow.deploy.trust.project_file import read_project
from winnow.web.app import create_app
from winnow.web.request_guard import Access
from winnow.web.serve import MAX_CONNECTIONS, federation_page_sets, pages_config
from winnow.web.server_pages import serve_server_pages

CHROMIUM = Path("/usr/bin/chromium")
SCREENS = [(375, "dark"), (1440, "light")]
PAGES = ("/", "/jobs/job", "/sites", "/audit", "/budgets", "/applications", "/apply")

pytestmark = [
    pytest.mark.slow(part="deploy"),
    BROWSER.unless(CHROMIUM.exists()),
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    kits, port = federation(tmp_path_factory.mktemp("kits")), free_port()
    (kits / "project.toml").write_text(written(project_of((8443,))))
    settings = f"[ui]\nlisten = '127.0.0.1:{port}'\napplications = true\ncontrol = true\n"
    folder = tmp_path_factory.mktemp("server")
    with a_world(kits, folder, settings, join=600.0, serve_pages=serve_server_pages) as world:
        world.site("plant-a")
        world.submit(job_config(3, "sites = ['plant-a', 'plant-c']"))
        made = Project(world, f"https://127.0.0.1:{port}")
        eventually(lambda: made.stranger().get("/apply").status == 200)
        yield made


class Tab:
    """A page, and what it should not do: complain, ask elsewhere, be wider than its screen."""

    def __init__(self, chromium: Any, home: str, screen: tuple[int, str]) -> None:
        self.home, (self.width, scheme), self.wrong = home, screen, list[str]()
        viewport = {"width": self.width, "height": 900}
        self.context = context = chromium.new_context(viewport=viewport, color_scheme=scheme, ignore_https_errors=True)
        context.set_default_timeout(1000 * PATIENCE)
        self.page = context.new_page()
        self.page.on(
            "console", lambda told: self.wrong.append(told.text) if told.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on(
            "request", lambda sent: None if sent.url.startswith((home, "blob:")) else self.wrong.append(sent.url)
        )
        self.page.on("dialog", lambda dialog: dialog.accept())

    def open(self, path: str) -> None:
        self.page.goto(self.home + path)
        assert self.page.evaluate("document.documentElement.scrollWidth") <= self.width, path

    def tab_to(self, selector: str) -> None:
        """By the keyboard, as somebody without a mouse does; what has the focus is shown."""
        for _ in range(60):
            self.page.keyboard.press("Tab")
            if self.page.evaluate("wanted => document.activeElement.matches(wanted)", selector):
                assert self.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
                return
        raise AssertionError(f"the keyboard does not reach {selector}")

    def told(self, words: str) -> str:
        self.page.wait_for_function("words => document.getElementById('notice').textContent.includes(words)", arg=words)
        return str(self.page.inner_text("#notice"))


@pytest.fixture
def new_tab(chromium: Any) -> Iterator[Callable[[str, tuple[int, str]], Tab]]:
    """Tabs are closed before the servers end whose live pages they follow."""
    opened = list[Tab]()

    def new(home: str, screen: tuple[int, str]) -> Tab:
        opened.append(Tab(chromium, home, screen))
        return opened[-1]

    yield new
    for tab in opened:
        tab.context.close()


@pytest.mark.parametrize("screen", SCREENS, ids=str)
def test_every_page_of_the_server_is_quiet_and_fits(new_tab: Any, project: Project, screen: tuple[int, str]) -> None:
    tab = new_tab(project.address, screen)
    with project.connection("the-admin") as admin:
        tab.open(admin.login_link().removeprefix(project.address))
    assert "As the-admin (admin, Institute)" in tab.page.inner_text("header")
    for path in PAGES:
        tab.open(path)
        assert tab.page.locator("nav a[aria-current]").count() == (path != "/jobs/job"), path
    assert not tab.wrong


@pytest.fixture
def owners_pages(project: Project) -> Iterator[str]:
    """`winnow ui --kit KIT --control --project FILE`, with the login."""
    port = free_port()
    access = Access.loopback(port)
    with project.connection("the-admin") as admin:
        app = create_app(access, federation_page_sets(admin, control=True, owner=project.owner))
        config = pages_config(app, MAX_CONNECTIONS)
        config.port = port
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        eventually(lambda: server.started)
        yield f"http://127.0.0.1:{port}/?token={access.token}"
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize("screen", SCREENS, ids=str)
def test_a_kit_is_had_by_keyboard(
    project: Project, owners_pages: str, new_tab: Any, tmp_path: Path, screen: tuple[int, str]
) -> None:
    name = f"keys-{screen[0]}"
    folder = apply(tmp_path, name, role="member")
    applicant, owner = new_tab(project.address, screen), new_tab(owners_pages.partition("/?")[0], screen)
    applicant.open("/apply")
    applicant.tab_to("textarea")
    applicant.page.keyboard.insert_text((folder / "application.json").read_text())
    applicant.tab_to("button[type=submit]")
    applicant.page.keyboard.press("Enter")
    code = applicant.told("Your code").rpartition(" ")[2]

    owner.page.goto(owners_pages)
    owner.open("/applications")
    shown = owner.page.inner_text("main")
    assert read_application((folder / "application.json").read_bytes()).fingerprint in " ".join(shown.split())
    owner.tab_to("button[data-post$=approve]")
    owner.page.keyboard.press("Enter")
    owner.told("can collect the kit")
    assert name in {party.name for party in read_project(project.file).parties}

    applicant.tab_to("input[name=code]")
    applicant.page.keyboard.insert_text(code)
    with applicant.page.expect_download() as download:
        applicant.page.keyboard.press("Enter")
    download.value.save_as(tmp_path / "collected.json")
    applicant.told("Handed out")
    assert complete_kit(folder, tmp_path / "collected.json", None)[0].name == name
    assert not applicant.wrong + owner.wrong


def test_a_file_is_chosen_and_a_mistake_is_one_line(new_tab: Any, project: Project, tmp_path: Path) -> None:
    tab = new_tab(project.address, SCREENS[1])
    folder = apply(tmp_path, "chooser", role="member")
    tab.open("/apply")
    assert tab.page.locator("nav").count() == 0
    tab.page.set_input_files("input[type=file]", folder / "application.json")
    tab.page.wait_for_function("document.querySelector('textarea').value !== ''")
    assert json.loads(tab.page.input_value("textarea"))["body"]["name"] == "chooser"
    tab.page.fill("textarea", "<img src=x onerror=alert(1)>")
    tab.page.click("text=Hand in")
    assert "make it with winnow apply" in tab.told("not an application")
    assert tab.wrong == ["Failed to load resource: the server responded with a status of 400 (Bad Request)"]

"""`winnow ui --kit`: a federation in a browser, as one person may see it. Strangers' texts stay texts."""

import itertools
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, cast, get_args

import msgspec
import pytest
from papers import kit_of
from serving import PATIENCE, World, a_world, eventually, job_config

sys.path.insert(0, str(Path(__file__).parents[1]))

from command_line import call
from web_client import Answer, WebClient
from winnow.core import RunError
from winnow.deploy.client.connection import Connection
from winnow.deploy.client.fetched_audit import FetchedAudit
from winnow.deploy.server import audit_reading
from winnow.deploy.trust.audit_chain import AuditEntry
from winnow.deploy.trust.peer_identity import Role
from winnow.deploy.trust.policy_rules import POLICY_FILE, read_policy
from winnow.deploy.trust.server_policy import (
    DEFAULT_SERVER_POLICY,
    NO_TARGET,
    Command,
    CommandTarget,
    ServerPolicy,
    allows,
)
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.messages import AbsentSite, AuditPage, JobInfo, LogLine, Resources, ServerStatus, SiteInfo
from winnow.web import federation_view
from winnow.web.app import create_app
from winnow.web.federation_view import FederationView, Viewer
from winnow.web.request_guard import Access
from winnow.web.serve import federation_page_sets

HOSTILE = "<img src=x onerror=alert(1)></script>"
HERE = "http://127.0.0.1:8765"


@pytest.fixture(scope="module")
def world(kits: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server with a site and a job that waits for another site, submitted by the lead."""
    with a_world(kits, tmp_path_factory.mktemp("world"), join=60.0) as world:
        world.site("plant-a")
        world.submit(job_config(3, "sites = ['plant-a', 'plant-c']"))
        person = world.person()
        eventually(lambda: "plant-c" in person.state("job").reason)
        yield world


class Browser(WebClient):
    """Logged in to the pages of one person."""

    def __init__(self, connection: Any, *, control: bool) -> None:
        access = Access.loopback(8765)
        super().__init__(create_app(access, federation_page_sets(connection, control=control)))
        assert self.get("/", params={"token": access.token}).status == 303

    def press(self, address: str, **headers: str) -> Answer:
        token = re.search(r'name="csrf-token" content="([^"]+)"', self.get("/budgets").text)
        assert token is not None
        usual = {"origin": HERE, "content-type": "application/json", "x-csrf-token": token[1]}
        return self.post(address, headers={**usual, **headers}, content=b"{}")


def connection_of(world: World, name: str) -> Connection:
    return Connection(replace(kit_of(world.kits, name), endpoints=(world.url,)), retry_seconds=PATIENCE)


@pytest.fixture
def browser(world: World) -> Iterator[Any]:
    opened: list[Connection] = []

    def browse(name: str, *, control: bool = False) -> Browser:
        opened.append(connection_of(world, name))
        return Browser(opened[-1], control=control)

    yield browse
    for connection in opened:
        connection.close()


def test_a_job_is_shown_with_what_it_waits_for_and_its_log(browser: Any) -> None:
    ana = browser("the-member")
    jobs, job = ana.get("/"), ana.get("/jobs/job")
    assert (jobs.status, job.status) == (200, 200)
    assert 'href="/jobs/job"' in jobs.text
    assert "plant-c" in jobs.text
    assert "server-1" in jobs.text
    assert re.search(r"<pre>\d\d:\d\d:\d\d server: ", job.text)
    assert "plant-a" in ana.get("/sites").text
    pages = jobs.text + job.text + ana.get("/sites").text
    assert set(re.findall('data-post="([^"]+)"', pages)) == {"/logout"}


def test_the_audit_log_is_checked_by_the_readers_machine(browser: Any) -> None:
    shown = browser("the-admin").get("/audit")
    assert "none was changed, signed by server server-1" in shown.text
    assert "submit" in shown.text


PAGES: dict[str, tuple[Command, ...]] = {
    "/": ("jobs",),
    "/jobs/job": ("jobs", "logs"),
    "/sites": ("sites",),
    "/audit": ("audit",),
    "/budgets": (),
}
"""What each page shows, as commands of the policy."""
ACTIONS: dict[str, Command] = {
    "/sites/plant-a/restart": "control",
    "/sites/plant-a/stop": "control",
    "/jobs/job/clone": "download",
    "/jobs/job/abort": "abort",
}
"""What each button does; to clone is to download first, and to submit."""
ROLES = [pytest.param(r, marks=pytest.mark.slow(part="deploy")) if r == "admin" else r for r in get_args(Role)]
"""An admin restarts sites, and waits for them."""
TARGETS = {
    "job": CommandTarget(name="job", organisation="Institute", owner="the-lead"),
    "plant-a": CommandTarget(name="plant-a", organisation="Plant-A"),
}


OTHER_POLICY = """
[[allow]]
roles = ["member"]
commands = ["status", "jobs", "audit", "download", "submit"]

[[allow]]
people = ["the-lead"]
commands = ["sites", "jobs", "logs"]

[[allow]]
roles = ["lead", "org-admin"]
commands = ["control", "abort"]
scope = "own"
"""
"""Unlike the usual one in every role: an admin may do nothing, a member reads the audit log, a lead aborts own jobs."""


@contextmanager
def with_policy(world: World, text: str) -> Iterator[ServerPolicy]:
    """The server's policy is another one meanwhile; it is read anew as its file changes."""
    file = world.kits / "kits" / "server-1" / POLICY_FILE
    file.write_text(text)
    try:
        yield read_policy(text.encode(), ServerPolicy)
    finally:
        file.unlink()


@pytest.mark.parametrize("role", ROLES)
def test_each_role_sees_and_does_what_the_policy_says(world: World, browser: Any, role: str) -> None:
    check_role(world, browser, role, read_policy(DEFAULT_SERVER_POLICY.encode(), ServerPolicy))


@pytest.mark.parametrize("role", get_args(Role))
def test_each_role_sees_and_does_what_another_policy_says(world: World, browser: Any, role: str) -> None:
    with with_policy(world, OTHER_POLICY) as policy:
        check_role(world, browser, role, policy)


def check_role(world: World, browser: Any, role: str, policy: ServerPolicy) -> None:
    peer = world.kit(f"the-{role}").peer
    me = browser(f"the-{role}", control=True)

    def allowed(*commands: Command, target: CommandTarget = NO_TARGET) -> bool:
        return all(allows(policy, peer, command, target).allowed for command in commands)

    for page, commands in PAGES.items():
        assert me.get(page).status == (200 if allowed(*commands) else 403), page
    for address, command in ACTIONS.items():
        may = allowed(command, target=TARGETS[address.split("/")[2]])
        if may and command == "abort":
            continue  # tested on jobs of their own below
        done = me.press(address)
        refused_by_policy = done.status == 403 and "may not" in done.text
        assert refused_by_policy is not may, (address, done.text)


def test_jobs_are_aborted_with_control_alone_and_by_those_who_may(world: World, browser: Any) -> None:
    lead = world.person()
    lead.submit("mine", world.folder, job_config(3, "sites = ['plant-c']"))
    told = browser("the-lead").press("/jobs/mine/abort")
    assert told.status == 403
    assert "without --control" in told.text
    assert lead.state("mine").status == "queued"
    assert "aborted" in browser("the-lead", control=True).press("/jobs/mine/abort").text
    lead.wait("mine", "aborted")


@pytest.mark.parametrize(
    "changed",
    [{"x-csrf-token": "guessed"}, {"origin": "http://evil.example"}, {"content-type": "text/plain"}],
    ids=["csrf", "origin", "form"],
)
@pytest.mark.parametrize("address", [*ACTIONS, "/budgets"])
def test_another_sites_page_presses_no_button(
    world: World, browser: Any, address: str, changed: dict[str, str]
) -> None:
    before = [state.status for state in connection_of(world, "the-admin").jobs()]
    assert browser("the-admin", control=True).press(address, **changed).status in (403, 415)
    assert [state.status for state in connection_of(world, "the-admin").jobs()] == before


@pytest.mark.parametrize("name", ["..%2f..%2fetc", "a%20b", "%3Cimg%3E", "x" * 200, ".hidden"])
def test_names_in_addresses_are_names(browser: Any, name: str) -> None:
    me = browser("the-admin", control=True)
    assert me.get(f"/jobs/{name}").status in (400, 404)
    assert me.press(f"/jobs/{name}/abort").status in (400, 404)


def test_a_job_that_does_not_exist_is_named(browser: Any) -> None:
    shown = browser("the-member").get("/jobs/nothing")
    assert shown.status == 403
    assert "there is no job called nothing" in shown.text


class HostileServer:
    """A connection whose server writes markup, and numbers that are none, wherever it may."""

    def __init__(self, world: World) -> None:
        self.kit = world.kit("the-admin")
        self._job = JobInfo(
            job="job",
            title=HOSTILE,
            status=HOSTILE,
            reason=HOSTILE,
            submitter="ana",
            organisation=HOSTILE,
            priority=0,
            round=1,
            rounds=2,
            sites=["plant-a"],
            submitted=1e300,
            metrics={HOSTILE: {HOSTILE: float("nan")}},
            absent_sites=[AbsentSite(site="plant-a", since=float("nan"), reason=HOSTILE)],
            rejections={"plant-b": HOSTILE},
        )

    def jobs(self) -> list[JobInfo]:
        return [self._job]

    def job(self, name: str) -> Any:
        return self

    def state(self) -> JobInfo:
        return self._job

    def lines(self, first: int, *, follow: bool) -> Iterator[LogLine]:
        for number, (kind, text) in enumerate([("log", HOSTILE), ("event", "{"), ("event", '{"kind": 1}')]):
            yield LogLine(number=number, at=0.0, source="plant-a", kind=kind, text=text)

    def sites(self) -> list[SiteInfo]:
        free = Resources(cpus=float("inf"))
        told = {"organisation": HOSTILE, "winnow_version": HOSTILE, "data": ["t"], "jobs": [], "free": free}
        return [SiteInfo(site="plant-a", connected=True, revoked=False, last_seen=-1e300, **told)]

    def status(self) -> ServerStatus:
        return ServerStatus(
            server="s", leader="s", lease_token=1, since=float("inf"), winnow_version=HOSTILE, sites=1,
            jobs={HOSTILE: 1}, notices=[HOSTILE],
        )  # fmt: skip

    def ask(self, question: Any) -> Any:
        raise RunError(HOSTILE)

    def audit_page(self, after: int) -> AuditPage:
        entry = AuditEntry(
            seq=1, time=HOSTILE, who=HOSTILE, organisation=HOSTILE, what=HOSTILE, target=HOSTILE, outcome=HOSTILE,
            previous=HOSTILE, hash=HOSTILE,
        )  # fmt: skip
        return AuditPage(lines=[] if after else [entry.line()])


def test_nothing_that_a_server_says_becomes_markup(world: World) -> None:
    me = Browser(HostileServer(world), control=True)
    me.press("/budgets")
    for page in PAGES:
        shown = me.get(page)
        assert shown.status == 200, page
        assert "<img" not in shown.text
        assert page == "/budgets" or "&lt;img" in shown.text
    assert "Do not trust this log" in me.get("/audit").text


class EndlessServer(HostileServer):
    """Its logs have no end and no times, its sites thousands of tables, its answers no shape, its audit no entry."""

    answer: Any = None

    def lines(self, first: int, *, follow: bool) -> Iterator[LogLine]:
        for number in itertools.count():
            yield LogLine(number=number % 7, at=(1e300, float("nan"))[number % 2], source="x", kind="log", text=HOSTILE)

    def sites(self) -> list[SiteInfo]:
        return [msgspec.structs.replace(super().sites()[0], data=[f"t{number}" for number in range(5_000)])]

    def ask(self, question: Any) -> Any:
        self.asked = getattr(self, "asked", 0) + 1
        return SimpleNamespace(values=self.answer)

    def audit_page(self, after: int) -> AuditPage:
        return AuditPage(lines=[])


def test_a_log_without_an_end_is_left_after_a_while(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federation_view, "LOG_SECONDS", 0.2)
    me = Browser(EndlessServer(world), control=False)
    shown = me.get("/jobs/job")
    assert shown.status == 200
    assert shown.text.count("&lt;img") > federation_view.LOG_LINES


def test_a_log_is_shown_while_others_read_on(world: World) -> None:
    view = FederationView(cast(Connection, HostileServer(world)), Viewer.of(world.kit("the-admin")))
    first = view.log("job")
    kept = list(first.lines)
    view.log("job")
    assert list(first.lines) == kept


@pytest.mark.parametrize("answer", [None, {}, {"budgets": 1}, {"budgets": [1]}, {"budgets": [["table"]]}, []])
def test_budgets_of_no_shape_are_notes(world: World, answer: Any) -> None:
    server = EndlessServer(world)
    server.answer = answer
    me = Browser(server, control=False)
    assert me.press("/budgets").status == 200
    assert server.asked == federation_view.MAX_TABLES
    shown = me.get("/budgets").text
    assert "has not the shape" in shown
    assert "4,800 more tables were not asked" in shown


def test_an_owner_names_no_other_table(world: World) -> None:
    server = EndlessServer(world)
    server.answer = {"budgets": [{"owner": "plant-a", "table": "somebody-elses"}]}
    me = Browser(server, control=False)
    me.press("/budgets")
    assert "somebody-elses" not in me.get("/budgets").text


def test_a_log_that_is_not_shown_is_not_called_unchanged(world: World) -> None:
    text = Browser(EndlessServer(world), control=False).get("/audit").text
    assert "0 entries, which no server has signed" in text
    assert "none was changed" not in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--control"], "--control needs --kit"),
        (["runs", "--kit", "kits/ana"], "not both"),
        (["--kit", "kits/ana"], "kits/ana"),
    ],
)
def test_the_command_says_what_is_wrong(capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    done = call(capsys, "ui", *words, "--no-browser", "--port", "0")
    assert done.code == 2
    assert told in done.err
    assert len(done.err.splitlines()) == 1


# The audit log over the wire ----------------------------------------------------------------------------------------


def fetched(connection: Connection, change: Any = lambda page: page) -> FetchedAudit:
    return FetchedAudit(lambda after: change(connection.audit_page(after)), connection.kit.authority)


def test_a_log_is_fetched_page_by_page(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_reading, "PAGE_BYTES", 700)
    with connection_of(world, "the-admin") as connection:
        assert len(connection.audit_page(0).lines) < 5
        log = fetched(connection)
        first = log.refresh()
        assert [entry.seq for entry in first.entries] == [*range(1, len(first.entries) + 1)]
        assert not first.problems
        connection.status()
        assert len(log.refresh().entries) > len(first.entries)


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        (lambda page: msgspec.structs.replace(page, lines=page.lines[:1] + page.lines[2:]), "expected entry 2"),
        (lambda page: msgspec.structs.replace(page, lines=page.lines[:3] if page.lines else []), "entries are missing"),
        (
            lambda page: msgspec.structs.replace(page, lines=[each.replace(b"job", b"jib") for each in page.lines]),
            "was changed",
        ),
        (lambda page: msgspec.structs.replace(page, head=b""), "no signed head"),
    ],
)
def test_a_log_that_was_tampered_with_is_not_trusted(world: World, lie: Any, told: str) -> None:
    seen: list[int] = []

    def once(page: AuditPage) -> AuditPage:
        seen.append(1)
        return lie(page) if len(seen) == 1 else msgspec.structs.replace(page, lines=[], head=lie(page).head)

    with connection_of(world, "the-admin") as connection:
        checked = fetched(connection, once).refresh()
    assert any(told in problem for problem in checked.problems)
    assert checked.signer is None


def test_an_endless_log_is_cut_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("winnow.deploy.client.fetched_audit.MAX_ENTRIES", 100)
    with connection_of(world, "the-admin") as connection:
        page = connection.audit_page(0)
        endless = FetchedAudit(
            lambda after: msgspec.structs.replace(page, head=page.head.replace(b'"seq":', b'"seq":9')),
            connection.kit.authority,
        )
        with pytest.raises(RunError, match="longer than 100 entries"):
            endless.refresh()
        unreadable = FetchedAudit(lambda after: AuditPage(lines=[], head=b"{"), connection.kit.authority)
        with pytest.raises(RunError, match="head cannot be read"):
            unreadable.refresh()


def test_the_audit_is_for_those_whom_the_policy_lets_read_it(world: World) -> None:
    with connection_of(world, "the-lead") as connection, pytest.raises(RequestRefusedError, match="may not audit here"):
        connection.audit_page(0)


def test_several_tabs_ask_the_server_once(world: World) -> None:
    with connection_of(world, "the-member") as connection:
        view, asked = FederationView(connection, Viewer.of(connection.kit)), []
        ask = connection.jobs
        connection.jobs = lambda: asked.append(1) or ask()  # type: ignore[method-assign,func-returns-value]
        for _ in range(5):
            view.jobs()
        assert len(asked) == 1


def test_a_slow_answer_holds_up_no_other_page(world: World) -> None:
    view, asked, go_on = FederationView(HostileServer(world), Viewer.of(world.kit("the-admin"))), Event(), Event()

    def slow_sites() -> list[SiteInfo]:
        asked.set()
        assert go_on.wait(PATIENCE)
        return []

    view.requests.sites = slow_sites  # type: ignore[method-assign]
    waiting = Thread(target=view.sites)
    waiting.start()
    assert asked.wait(PATIENCE)
    assert view.jobs()  # while the list of sites is still on its way
    assert view.log("job").lines
    go_on.set()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()

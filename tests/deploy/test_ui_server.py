"""`[ui] listen`: a server serves its federation's pages over TLS to the people of its project, and to nobody else."""

import itertools
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

import pytest
from https_browser import HttpsBrowser
from papers import kit_of, provision
from serving import PATIENCE, World, a_world, eventually, federation, job_config, project_of, server_here
from test_ui_federation import ACTIONS, OTHER_POLICY, PAGES, TARGETS, with_policy

from winnow.deploy.client.free_port import free_port

sys.path.insert(0, str(Path(__file__).parents[1]))

from winnow.core import ConfigError
from winnow.deploy.client.connection import Connection
from winnow.deploy.server import login_links
from winnow.deploy.server.login_links import LINKS_EACH, LoginLinks
from winnow.deploy.trust.peer_identity import Role, utc_now
from winnow.deploy.trust.policy_rules import read_policy
from winnow.deploy.trust.provisioning import open_provisioner
from winnow.deploy.trust.server_policy import (
    DEFAULT_SERVER_POLICY,
    NO_TARGET,
    Command,
    CommandTarget,
    ServerPolicy,
    allows,
)
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.messages import OpenLogin
from winnow.web import peer_certificate
from winnow.web.server_pages import serve_server_pages
from winnow.web.sessions import Sessions


class Pages:
    """A world whose server has pages."""

    def __init__(self, world: World, address: str) -> None:
        self.world, self.address = world, address

    def browser(self, certificate_of: str | None = None) -> HttpsBrowser:
        kits = self.world.kits / "kits"
        return HttpsBrowser(
            self.address, kits / "server-1" / "ca.pem", None if certificate_of is None else kits / certificate_of
        )

    def connection(self, name: str) -> Connection:
        return Connection(replace(self.world.kit(name), endpoints=(self.world.url,)), retry_seconds=PATIENCE)

    def link(self, name: str) -> str:
        with self.connection(name) as connection:
            return connection.login_link().removeprefix(self.address)

    def logged_in(self, name: str) -> HttpsBrowser:
        browser = self.browser()
        assert browser.get(self.link(name)).status == 303
        return browser

    def audit(self) -> str:
        return self.logged_in("the-admin").get("/audit").text


def serve(kits: Path, folder: Path, more: str = "") -> Any:
    port = free_port()
    settings = f"[ui]\nlisten = '127.0.0.1:{port}'\n{more}"
    return a_world(kits, folder, settings, join=60.0, serve_pages=serve_server_pages), f"https://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def pages(kits: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    made, address = serve(kits, tmp_path_factory.mktemp("ui"), "control = true\n")
    with made as world:
        world.site("plant-a")
        world.submit(job_config(3, "sites = ['plant-a', 'plant-c']"))
        person = world.person()
        eventually(lambda: "plant-c" in person.state("job").reason)
        yield Pages(world, address)


def test_a_link_logs_in_once(pages: Pages) -> None:
    link, first, second = pages.link("the-member"), pages.browser(), pages.browser()
    entered = first.get(link)
    assert entered.status == 303
    cookie = entered.headers["set-cookie"].lower()
    assert all(word in cookie for word in ("__host-winnow=", "httponly", "samesite=strict", "secure"))
    shown = first.get("/")
    assert "As the-member (member, Institute)" in shown.text
    assert "plant-c" in shown.text
    replayed = second.get(link)
    assert replayed.status == 403
    assert "was used already" in replayed.text
    assert not second.cookies
    assert second.get("/").status == 403
    told = pages.audit()
    assert "login link" in told
    assert "accepted: by link" in told


def test_nothing_of_a_login_is_on_the_servers_disk(pages: Pages) -> None:
    """So that no copy of its folders logs anybody in, and a restart ends all logins by link."""
    browser = pages.logged_in("the-member")
    (secret,) = browser.cookies.values()
    assert browser.get("/").status == 200
    traces = [secret.encode(), sha256(secret.encode()).digest(), sha256(secret.encode()).hexdigest().encode()]
    files = [file for top in (pages.world.folder, pages.world.kits) for file in top.rglob("*") if file.is_file()]
    assert len(files) > 10
    assert not [file for file in files if any(trace in file.read_bytes() for trace in traces)]
    assert Sessions().find(secret) is None


def test_a_certificate_logs_in(pages: Pages) -> None:
    browser = pages.browser("the-lead")
    assert browser.get("/").status == 303
    assert "As the-lead (lead, Institute)" in browser.get("/").text
    assert "accepted: by certificate" in pages.audit()


def test_only_people_of_the_project_log_in_by_certificate(pages: Pages, tmp_path: Path) -> None:
    refused = pages.browser("plant-a").get("/")
    assert refused.status == 403
    assert "no person" in refused.text
    provision(tmp_path)  # another project, with a CA of its own
    stranger = HttpsBrowser(
        pages.address, pages.world.kits / "kits" / "server-1" / "ca.pem", tmp_path / "kits" / "the-admin"
    )
    with pytest.raises((ssl.SSLError, ConnectionError)):
        stranger.get("/")


def test_a_link_is_for_the_person_who_asks_for_it(pages: Pages) -> None:
    admin, site = pages.world.kit("the-admin"), pages.world.kit("plant-a")
    with pages.connection("the-member") as member, pytest.raises(RequestRefusedError, match="that person's own"):
        member._ask(OpenLogin(certificate=admin.certificate_pem), OpenLogin)
    link = Connection(replace(site, endpoints=(pages.world.url,)), retry_seconds=PATIENCE)
    with link, pytest.raises(RequestRefusedError):
        link.login_link()


def test_links_grow_old_and_are_few() -> None:
    now = itertools.count().__next__
    links = LoginLinks("https://fl.example", clock=lambda: 0.0)
    opened = [links.open(b"ana").partition("token=")[2] for _ in range(LINKS_EACH + 1)]
    assert links.redeem(opened[0]) is None  # the oldest made room
    assert links.redeem(opened[1]) == b"ana"
    assert links.redeem(opened[1]) is None
    assert links.redeem("") is None
    late = LoginLinks("https://fl.example", clock=lambda: float(now() * login_links.LINK_SECONDS))
    assert late.redeem(late.open(b"ana").partition("token=")[2]) is None


ROLES = [pytest.param(r, marks=pytest.mark.slow(part="deploy")) if r == "admin" else r for r in get_args(Role)]


@pytest.mark.parametrize("role", ROLES)
def test_each_role_sees_and_does_what_the_policy_says(pages: Pages, role: str) -> None:
    check_role(pages, role, read_policy(DEFAULT_SERVER_POLICY.encode(), ServerPolicy))


@pytest.mark.parametrize("role", get_args(Role))
def test_each_role_sees_and_does_what_another_policy_says(pages: Pages, role: str) -> None:
    with with_policy(pages.world, OTHER_POLICY) as policy:
        check_role(pages, role, policy)


def check_role(pages: Pages, role: str, policy: ServerPolicy) -> None:
    peer, me = pages.world.kit(f"the-{role}").peer, pages.logged_in(f"the-{role}")

    def allowed(*commands: Command, target: CommandTarget = NO_TARGET) -> bool:
        return all(allows(policy, peer, command, target).allowed for command in commands)

    for page, commands in PAGES.items():
        status = 200 if allowed(*commands) else 403
        eventually(lambda page=page, status=status: me.get(page).status == status, page)  # answers are kept a moment
    for address, command in ACTIONS.items():
        if command == "abort" and allowed(command, target=TARGETS["job"]):
            continue  # the others' tests need the job
        done = me.press(address)
        if address.endswith("clone"):
            assert "your key is not here" in done.text  # whatever the role: it would need a signature
            continue
        refused_by_policy = done.status == 403 and "may not" in done.text
        assert refused_by_policy is not allowed(command, target=TARGETS[address.split("/")[2]]), (address, done.text)


@pytest.mark.parametrize(
    "changed",
    [{"x-csrf-token": "guessed"}, {"origin": "https://evil.example"}, {"content-type": "text/plain"}],
    ids=["csrf", "origin", "form"],
)
def test_another_sites_page_presses_no_button(pages: Pages, changed: dict[str, str]) -> None:
    me = pages.browser("the-admin")  # whose browser shows the certificate to whoever asks
    me.get("/")
    assert me.press("/jobs/job/abort", **changed).status in (403, 415)
    assert pages.browser("the-admin").request("POST", "/jobs/job/abort", {}, b"{}").status == 403


def test_other_names_and_strangers_are_refused(pages: Pages) -> None:
    browser = pages.browser()
    assert browser.get("/", host="evil.example").status == 421
    assert browser.get("/jobs/job").status == 403
    assert browser.get("/static/style.css").status == 200
    assert browser.get("/static/plotly.js").status == 403  # megabytes for each who asks, and no page needs it
    assert browser.get("/?token=guessed").status == 403


def test_a_planted_cookie_is_not_logged_in(pages: Pages) -> None:
    browser = pages.browser()
    browser.cookies["__Host-winnow"] = "planted"
    assert browser.get(pages.link("the-member")).status == 303
    assert browser.cookies["__Host-winnow"] != "planted"
    stranger = pages.browser()
    stranger.cookies["__Host-winnow"] = "planted"
    assert stranger.get("/").status == 403


REQUEST = b"POST /apply HTTP/1.1\r\nhost: x\r\n"
SLOW = {
    "nothing": b"",
    "half a header": REQUEST,
    "half a body": REQUEST + b"content-length: 60000\r\n\r\n{",
    "chunks without an end": REQUEST + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n",
}


@pytest.mark.parametrize("sent", SLOW.values(), ids=SLOW)
def test_a_request_that_never_ends_is_cut_off(pages: Pages, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_certificate, "REQUEST_SECONDS", 0.2)
    live = pages.logged_in("the-member")
    tls = ssl.create_default_context(cafile=str(pages.world.kits / "kits" / "server-1" / "ca.pem"))
    place = urlsplit(pages.address)
    with live.stream("/live") as stream, socket.create_connection((place.hostname, place.port), timeout=60) as raw:
        assert stream.readline()
        with tls.wrap_socket(raw, server_hostname=place.hostname) as slow:
            slow.sendall(sent)
            with suppress(ConnectionError):
                while slow.recv(65_536):  # an answer, at most: and then the end
                    pass
        pages.world.submit(job_config(1, "sites = ['plant-c']"), f"after-{len(sent)}")
        assert any(line.startswith(b"data") for line in stream)  # a page that only listens is left in peace


def test_nothing_is_answered_without_tls(pages: Pages) -> None:
    place = urlsplit(pages.address)
    with socket.create_connection((place.hostname, place.port), timeout=60) as plain:
        plain.sendall(b"GET /apply HTTP/1.1\r\nhost: " + place.netloc.encode() + b"\r\n\r\n")
        with suppress(ConnectionError):
            assert not plain.recv(100).startswith(b"HTTP")


def test_a_revoked_certificate_ends_running_logins_and_nothing_is_changed_unasked(tmp_path: Path) -> None:
    kits = federation(tmp_path / "project")
    made, address = serve(kits, tmp_path)
    with made as world:
        pages = Pages(world, address)
        by_link, by_certificate = pages.logged_in("the-member"), pages.browser("the-member")
        other = pages.logged_in("the-lead")
        by_certificate.get("/")
        assert by_certificate.get("/").status == 200
        told = pages.logged_in("the-admin").press("/sites/plant-a/stop")
        assert (told.status, "[ui] control" in told.text) == (403, True)
        with by_link.stream("/live") as stream:
            assert stream.readline()
            with open_provisioner(kits, project_of((8443,)), None, utc_now()) as workshop:
                list(workshop.revoke("the-member"))
            eventually(lambda: by_link.get("/").status == 403)
            assert by_certificate.get("/").status == 403
            assert b"data" not in stream.read()  # which ends
        assert other.get("/").status == 200


def test_a_standby_names_the_leaders_pages(tmp_path: Path) -> None:
    kits = federation(tmp_path / "project", (8443, 8444))
    ports = [free_port(), free_port()]
    with ExitStack() as until_the_end:
        for number, port in enumerate(ports, start=1):
            folder = tmp_path / f"server-{number}"
            folder.mkdir()
            (folder / "server.toml").write_text(
                f"address = 'memory://standby-{number}'\ndatabase = 'sqlite:///{tmp_path / 'shared.db'}'\nlease = 2.0\n"
                f"[ui]\nlisten = '127.0.0.1:{port}'\n"
            )
            kit = kit_of(kits, f"server-{number}")
            until_the_end.enter_context(server_here(kit, folder / "server.toml", serve_pages=serve_server_pages))
            browser = HttpsBrowser(f"https://127.0.0.1:{port}", kits / "kits" / "server-1" / "ca.pem")
            expected = "Not logged in" if number == 1 else f'href="https://127.0.0.1:{ports[0]}"'
            eventually(lambda b=browser, e=expected: e in b.get("/").text)
        assert browser.get("/?token=anything").status == 503


def test_a_wrong_address_is_one_line(tmp_path: Path, kits: Path) -> None:
    kit = kit_of(kits, "server-1")
    for line in ("listen = '8444'", "listen = '0.0.0.0:http'", "listen = '0.0.0.0:8444'\naddress = 'http://a'"):
        (tmp_path / "server.toml").write_text(f"[ui]\n{line}\n")
        with pytest.raises(ConfigError, match="ui"), server_here(kit, tmp_path / "server.toml", serve_server_pages):
            pass

"""People and sites apply on a server's pages, the owner approves where the CA is, kits are handed out once."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from https_browser import HttpsBrowser
from serving import PATIENCE, World, a_world, eventually, federation, project_of
from test_ui_federation import Browser

from winnow.deploy.client.free_port import free_port

sys.path.insert(0, str(Path(__file__).parents[1]))

from command_line import call
from web_client import HERE, Answer, WebClient
from winnow.core import ConfigError, WinnowError
from winnow.deploy.client.connection import Connection
from winnow.deploy.server import application_store
from winnow.deploy.server.served_pages import PagesContext
from winnow.deploy.trust.application import applying_party, read_application, write_application
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.pending_kit import begin_kit, complete_kit, unpack_kit
from winnow.deploy.trust.project_file import Project as ProjectParties
from winnow.deploy.trust.project_file import read_project
from winnow.deploy.trust.project_owner import ProjectOwner
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.web import apply_page
from winnow.web.app import create_app
from winnow.web.apply_page import AddressLimit
from winnow.web.request_guard import Access
from winnow.web.serve import federation_page_sets
from winnow.web.server_pages import serve_server_pages

HOSTILE = "<img src=x onerror=alert(1)>"


class Project:
    """A server that takes applications, and the owner's machine."""

    def __init__(self, world: World, address: str) -> None:
        self.world, self.address = world, address
        self.file = world.kits / "project.toml"
        self.owner = ProjectOwner(path=self.file, folder=world.kits, passphrase=None)

    def stranger(self) -> HttpsBrowser:
        return HttpsBrowser(self.address, self.world.kits / "kits" / "server-1" / "ca.pem")

    def post(self, path: str, **content: str) -> Answer:
        headers = {"origin": self.address, "content-type": "application/json"}
        return self.stranger().request("POST", path, headers, json.dumps(content).encode())

    def connection(self, name: str) -> Connection:
        return Connection(replace(self.world.kit(name), endpoints=(self.world.url,)), retry_seconds=PATIENCE)

    def hand_in(self, folder: Path) -> str:
        answer = self.post("/apply", application=(folder / "application.json").read_text())
        assert answer.status == 200, answer.text
        return str(json.loads(answer.text)["note"].rpartition(" ")[2])

    def browser(self, name: str, *, owner: bool = False, control: bool = True) -> Browser:
        return OwnersBrowser(self.connection(name), self.owner if owner else None, control=control)


class OwnersBrowser(Browser):
    """`winnow ui --kit KIT --control --project FILE`."""

    def __init__(self, connection: Connection, owner: ProjectOwner | None, *, control: bool) -> None:
        access = Access.loopback(8765)
        sets = federation_page_sets(connection, control=control, owner=owner)
        super(Browser, self).__init__(create_app(access, sets))
        assert self.get("/", params={"token": access.token}).status == 303


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    kits = federation(tmp_path_factory.mktemp("kits"))
    (kits / "project.toml").write_text(written(project_of((8443,))))
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    settings = f"[ui]\nlisten = '127.0.0.1:{port}'\napplications = true\n"
    with (
        pytest.MonkeyPatch.context() as patch,
        a_world(kits, folder, settings, serve_pages=serve_server_pages) as world,
    ):
        patch.setattr(apply_page, "TRIES", 10_000)
        made = Project(world, f"https://127.0.0.1:{port}")
        eventually(lambda: made.stranger().get("/apply").status == 200)
        yield made


def written(project: ProjectParties) -> str:
    """As a project file."""
    tables = {"servers": project.servers, "sites": project.sites, "people": project.people}
    return f"name = '{project.name}'\n" + "".join(
        f"[[{table}]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in party.model_dump().items())
        for table, parties in tables.items()
        for party in parties
    )


def apply(folder: Path, name: str, *, role: str = "", organisation: str = "Plant B", contact: str = "") -> Path:
    begin_kit(folder / name, applying_party(name, organisation, role), contact)
    return folder / name


@pytest.mark.parametrize("role", ["member", ""], ids=["person", "site"])
def test_a_kit_is_applied_for_approved_collected_once_and_works(project: Project, tmp_path: Path, role: str) -> None:
    name = f"new-{role or 'site'}"
    folder = apply(tmp_path, name, role=role, organisation='Plant "B" & Söhne')
    code = project.hand_in(folder)
    assert "has not decided yet" in project.post("/collect", code=code).text
    owner = project.browser("the-admin", owner=True)
    shown = owner.get("/applications").text
    applied = read_application((folder / "application.json").read_bytes())
    assert applied.fingerprint in shown
    identifier = sha256((folder / "application.json").read_bytes().strip()).hexdigest()
    assert f"/applications/{identifier}/approve" in shown
    told = owner.press(f"/applications/{identifier}/approve")
    assert (told.status, "approved" in told.text) == (200, True), told.text
    assert name in {party.name for party in read_project(project.file).parties}
    collected = project.post("/collect", code=code)
    again = project.post("/collect", code=code)
    assert (again.status, "was handed out already" in again.text) == (400, True)
    content = json.loads(collected.text)
    (tmp_path / content["file"]).write_text(content["content"])
    assert "PRIVATE" not in str(unpack_kit(content["content"].encode()))
    kit, _ = complete_kit(folder, tmp_path / content["file"], None)
    assert (kit.name, kit.organisation, kit.role) == (name, 'Plant "B" & Söhne', role)
    assert Kit.load(folder, "person" if role else "site").key.public_key() == applied.key
    if role:
        with Connection(replace(kit, endpoints=(project.world.url,)), retry_seconds=PATIENCE) as connection:
            assert connection.jobs() == []
    said = list_audit(project)
    assert "handed out" in said
    assert "approved" in said
    assert owner.press(f"/applications/{identifier}/approve").status == 400


def list_audit(project: Project) -> str:
    with project.connection("the-admin") as connection:
        return str(connection.audit_page(0).lines)


def test_only_whom_the_policy_lets_sees_and_decides(project: Project, tmp_path: Path) -> None:
    folder = apply(tmp_path, "waits", role="lead")
    project.hand_in(folder)
    identifier = sha256((folder / "application.json").read_bytes().strip()).hexdigest()
    for role in ("lead", "member", "org-admin"):
        me = project.browser(f"the-{role}", owner=True)
        assert me.get("/applications").status == 403
        assert me.press(f"/applications/{identifier}/refuse").status == 403
        assert me.press(f"/applications/{identifier}/approve").status == 403
    assert "waits" not in {party.name for party in read_project(project.file).parties}
    without_ca = project.browser("the-admin").press(f"/applications/{identifier}/approve")
    assert "where the project's CA is" in without_ca.text
    assert project.browser("the-admin", owner=True, control=False).press(
        f"/applications/{identifier}/approve"
    ).status == 403  # fmt: skip
    assert "refused" in project.browser("the-admin").press(f"/applications/{identifier}/refuse").text
    assert project.stranger().get("/applications").status == 403


def test_an_approval_is_for_the_applicants_own_key(project: Project, tmp_path: Path) -> None:
    one, other = apply(tmp_path, "one", role="member"), apply(tmp_path, "other", role="member")
    project.hand_in(one)
    package = project.owner.approve(read_application((other / "application.json").read_bytes()))
    identifier = sha256((one / "application.json").read_bytes().strip()).hexdigest()
    with project.connection("the-admin") as admin:
        with pytest.raises(RequestRefusedError, match="not for the key"):
            admin.approve_application(identifier, package)
        for garbage in (b"{}", b"[]", b"\xff", package[:-20]):
            with pytest.raises(WinnowError):
                admin.approve_application(identifier, garbage)


def test_an_approval_that_did_not_arrive_is_repeated(project: Project, tmp_path: Path) -> None:
    folder = apply(tmp_path, "twice", role="member")
    applied = read_application((folder / "application.json").read_bytes())
    first, second = project.owner.approve(applied), project.owner.approve(applied)
    assert first == second
    namesake = apply(tmp_path / "b", "twice", role="member") if (tmp_path / "b").mkdir() is None else folder
    with pytest.raises(WinnowError, match="has a kit already"):
        project.owner.approve(read_application((namesake / "application.json").read_bytes()))
    squatter = apply(tmp_path / "b", "the-admin", role="admin", organisation="Elsewhere")
    with pytest.raises(ConfigError, match="needs another name"):
        project.owner.approve(read_application((squatter / "application.json").read_bytes()))


def test_what_is_approved_is_what_the_owner_was_shown(project: Project, tmp_path: Path) -> None:
    """A server that lists an honest application, and another under its identifier once the owner presses the button."""
    honest, eve = (apply(tmp_path, name, role="member") / "application.json" for name in ("honest", "eve-in-between"))
    project.hand_in(honest.parent)
    identifier = sha256(honest.read_bytes().strip()).hexdigest()
    with project.connection("the-admin") as connection:
        listed = connection.applications
        lying = [msgspec.structs.replace(each, content=eve.read_bytes().strip()) for each in listed()]
        owner = OwnersBrowser(connection, project.owner, control=True)
        assert read_application(honest.read_bytes()).fingerprint in owner.get("/applications").text
        connection.applications = lambda: lying  # type: ignore[method-assign]
        told = owner.press(f"/applications/{identifier}/approve")
        assert (told.status, "identifier of another" in told.text) == (400, True)
        assert "eve-in-between" not in owner.get("/applications").text
    assert not {"honest", "eve-in-between"} & {party.name for party in read_project(project.file).parties}


def test_of_those_who_collect_at_once_one_is_handed_the_kit(project: Project, tmp_path: Path) -> None:
    folder = apply(tmp_path, "raced", role="member")
    code = project.hand_in(folder)
    identifier = sha256((folder / "application.json").read_bytes().strip()).hexdigest()
    assert project.browser("the-admin", owner=True).press(f"/applications/{identifier}/approve").status == 200
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda _: project.post("/collect", code=code).status, range(8)))
    assert sorted(statuses) == [200] + [400] * 7


def test_hostile_names_are_text(project: Project, tmp_path: Path) -> None:
    project.hand_in(apply(tmp_path, "hostile", organisation=HOSTILE, contact=HOSTILE))
    shown = project.browser("the-admin", owner=True).get("/applications").text
    assert "<img" not in shown
    assert "&lt;img" in shown


def forged() -> list[bytes]:
    key, other = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP384R1())
    party = applying_party("eve", "Elsewhere", "member")
    good = write_application(party, "", key, None)
    body = json.loads(good)
    changed = {**body, "body": {**body["body"], "role": "admin"}}
    return [
        b"", b"{}", b"null", b"[" * 4000, b"\xff\xfe", good[:-30], json.dumps(changed).encode(),
        write_application(party, "", other, None),  # a key of another curve
        write_application(party, "x" * 300, key, None),
        write_application(party, "a\nb", key, None),
        msgspec.json.encode({"body": {"name": "eve"}, "signature": "AAAA"}),
        good + b" " * 10_000,
    ]  # fmt: skip


@pytest.mark.parametrize("content", forged())
def test_what_is_no_application_is_one_line(project: Project, content: bytes) -> None:
    with pytest.raises(ConfigError) as error:
        read_application(content)
    assert "\n" not in str(error.value)
    before = len(project.connection("the-admin").applications())
    assert project.post("/apply", application=content.decode("latin-1")).status == 400
    assert len(project.connection("the-admin").applications()) == before


@pytest.mark.parametrize("name", ["../evil", ".hidden", "a b", "x" * 65, ""])
def test_names_that_are_no_names_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="name"):
        applying_party(name, "Plant B", "member")
    told = call(capsys, "apply", name, "--organisation", "Plant B", "--role", "member")
    assert told.code != 0
    assert not list(tmp_path.iterdir())


def test_a_flood_of_applications_is_bounded(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_ones = [each for each in project.connection("the-admin").applications() if each.state == "waiting"]
    monkeypatch.setattr(application_store, "MAX_WAITING", len(open_ones) + 1)
    first, second = apply(tmp_path, "first", role="member"), apply(tmp_path, "second", role="member")
    project.hand_in(first)
    repeated = project.post("/apply", application=(first / "application.json").read_text())
    assert "handed in already" in repeated.text
    flooded = project.post("/apply", application=(second / "application.json").read_text())
    assert (flooded.status, "applications wait already" in flooded.text) == (400, True)


def test_one_address_tries_only_so_often() -> None:
    now = 0.0
    limit = AddressLimit(lambda: now)
    tries = apply_page.TRIES
    assert [limit.admit("a") for _ in range(tries + 1)] == [True] * tries + [False]
    assert limit.admit("b")
    now = apply_page.WINDOW_SECONDS + 1
    assert limit.admit("a")


def test_a_network_of_addresses_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has one address of version 6 has 2⁶⁴ of them."""
    monkeypatch.setattr(apply_page, "TRIES", 1)
    context = SimpleNamespace(
        store=lambda: SimpleNamespace(collect=lambda code: ("bo", b"")), audit=lambda *entry: None
    )
    access = Access(hosts=frozenset({"127.0.0.1:8765"}), public=lambda path: path == "/collect")
    client = WebClient(create_app(access, [apply_page.apply_pages(cast(PagesContext, context))]))
    sent = {"origin": HERE, "content-type": "application/json"}

    def status(address: str) -> int:
        client.comes_from = address
        return client.post("/collect", headers=sent, content=b'{"code": "x"}').status

    tried = ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "::ffff:192.0.2.1", "192.0.2.1", "192.0.2.2"]
    assert [status(address) for address in tried] == [200, 429, 200, 200, 429, 200]


def test_codes_are_not_guessed_and_other_pages_hand_nothing_in(project: Project, tmp_path: Path) -> None:
    for code in ("", "guessed", "%", "x" * 100, "\ud800"):
        assert project.post("/collect", code=code).status == 400
    content = json.dumps({"code": "x"}).encode()
    stranger = project.stranger()
    for headers in ({}, {"origin": "https://evil.example", "content-type": "application/json"}):
        assert stranger.request("POST", "/collect", headers, content).status in (403, 415)
    assert "Log out" not in stranger.get("/apply").text


def test_a_kit_of_another_ca_is_not_completed(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = apply(tmp_path, "careful", role="member")
    package = project.owner.approve(read_application((folder / "application.json").read_bytes()))
    (tmp_path / "kit.json").write_bytes(package)
    with pytest.raises(WinnowError, match="not the one that you were told"):
        complete_kit(folder, tmp_path / "kit.json", "00" * 32)
    other = apply(tmp_path, "mallory", role="member")
    with pytest.raises(WinnowError, match="does not match the certificate"):
        complete_kit(other, tmp_path / "kit.json", None)
    assert {path.name for path in other.iterdir()} == {"key.pem", "application.json"}
    files: dict[str, Any] = json.loads(package)
    for broken in ({}, files | {"../evil": "AAAA"}, {**files, "ca.pem": "AAAA"}):
        (tmp_path / "broken.json").write_text(json.dumps(broken))
        with pytest.raises(WinnowError):
            complete_kit(other, tmp_path / "broken.json", None)
    told = call(capsys, "apply", "careful", "--collected", "kit.json")
    assert told.code == 0, told
    assert "the kit of member careful of Plant B" in told.out

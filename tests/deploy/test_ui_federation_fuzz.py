"""Random requests to a federation's pages, at a kit's owner and at the server, logged in and not: none fails."""

import json
import random
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from serving import a_world, eventually, federation, job_config, project_of
from test_ui_applications import OwnersBrowser, Project, written

from winnow.deploy.client.free_port import free_port

sys.path.insert(0, str(Path(__file__).parents[1]))

from test_ui_fuzz import HEADERS, ODD, VALUES, check_answer, random_address
from web_client import HERE, WebClient
from winnow.deploy.server.served_pages import PagesContext
from winnow.deploy.trust.application import applying_party, write_application
from winnow.web import apply_page, sessions
from winnow.web.server_pages import server_app

HOST = "127.0.0.1"
PLACES = [
    "/", "/live", "/jobs/job", "/jobs/job/live", "/sites", "/sites/live", "/audit", "/budgets", "/applications",
    "/applications/live", "/apply", "/collect", "/static/style.css", "/static/plotly.js",
    "/jobs/job/abort", "/jobs/job/clone", "/sites/plant-a/stop", "/sites/nowhere/restart",
]  # fmt: skip


PARTS = [
    "jobs", "sites", "applications", "job", "plant-a", "live", "approve", "refuse", "abort", "0" * 64, "..", "%2e%2e",
    "%00", "",
]  # fmt: skip


def application(name: str, role: str) -> bytes:
    sealing = None if role else X25519PrivateKey.generate()
    return write_application(applying_party(name, "Plant B", role), "", generate_private_key(SECP256R1()), sealing)


APPLICATIONS = [application(name, role) for name, role in (("ann", "admin"), ("ben", "member"), ("plant-z", ""))]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One browser, and what its requests are made of."""

    client: WebClient
    origin: str
    csrf: str
    parts: list[str]
    bodies: list[bytes]

    def ask(self, rng: random.Random) -> int:
        is_known = rng.random() < 0.4
        places = [*PLACES, f"/applications/{rng.choice(self.parts)}/{rng.choice(['approve', 'refuse'])}"]
        address = rng.choice(places) if is_known else random_address(rng, self.parts)
        method = rng.choice(["GET", "GET", "POST", "POST", "HEAD", "PUT", "BREW"])
        headers = {"origin": self.origin, "content-type": "application/json", "x-csrf-token": self.csrf}
        for _ in range(rng.randint(0, 2) if rng.random() < 0.4 else 0):
            headers[rng.choice(HEADERS)] = rng.choice(VALUES)
        content = b"" if method == "GET" else self._body(rng)
        answer = self.client.request(method, address, headers=headers, content=content, stop_after=1)
        check_answer(answer, (method, address, headers, content))
        return answer.status

    def _body(self, rng: random.Random) -> bytes:
        kind = rng.randrange(4)
        if kind == 0:
            return rng.randbytes(rng.randint(0, 200))
        if kind == 1:
            value: Any = rng.choice([None, 1, [], {}, "x" * 9_000, "\ud800", *ODD])
            return json.dumps({rng.choice(["application", "code", "x"]): value}).encode()
        body = bytearray(rng.choice(self.bodies))
        for _ in range(rng.randint(0, 3)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        return bytes(body)


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Subject]]:
    """The owner's own pages; the server's, for an admin who is logged in, for a member, and for a stranger."""
    kits, apps = federation(tmp_path_factory.mktemp("kits")), list[Any]()
    (kits / "project.toml").write_text(written(project_of((8443,))))
    port = free_port()

    @contextmanager
    def serve(context: PagesContext) -> Iterator[None]:
        apps.append(server_app(context))
        yield

    settings = f"[ui]\nlisten = '{HOST}:{port}'\napplications = true\ncontrol = true\n"
    with (
        pytest.MonkeyPatch.context() as patch,
        a_world(kits, tmp_path_factory.mktemp("server"), settings, join=600.0, serve_pages=serve) as world,
    ):
        patch.setattr(apply_page, "TRIES", 10**9)
        patch.setattr(sessions, "REQUESTS_PER_MINUTE", 10**9)
        world.submit(job_config(3, "sites = ['plant-a', 'plant-c']"))
        project = Project(world, f"https://{HOST}:{port}")
        with project.connection("the-admin") as admin, project.connection("the-lead") as lead:
            eventually(lead.jobs)
            stranger = WebClient(apps[0], f"{HOST}:{port}")
            clients = [
                (OwnersBrowser(admin, project.owner, control=True), HERE),
                (OwnersBrowser(lead, None, control=False), HERE),
                *((logged_in(apps[0], project, name), project.address) for name in ("the-admin", "the-member")),
                (stranger, project.address),
            ]
            yield [subject(client, origin) for client, origin in clients]


def logged_in(app: Any, project: Project, name: str) -> WebClient:
    client = WebClient(app, project.address.removeprefix("https://"))
    with project.connection(name) as connection:
        assert client.get(connection.login_link().removeprefix(project.address)).status == 303
    return client


def subject(client: WebClient, origin: str) -> Subject:
    found = re.search(r'name="csrf-token" content="([^"]+)"', client.get("/budgets").text)
    bodies = [json.dumps({"application": each.decode()}).encode() for each in APPLICATIONS]
    return Subject(
        client=client,
        origin=origin,
        csrf=found[1] if found else "",
        parts=[*PARTS, *(sha256(each.strip()).hexdigest() for each in APPLICATIONS)],
        bodies=[b"{}", b'{"code": "guessed"}', *bodies],
    )


def check(subjects: list[Subject], count: int, seed: int) -> None:
    rng = random.Random(seed)
    statuses = {subject.ask(rng) for subject in rng.choices(subjects, k=count)}
    assert {200, 400, 403, 404, 405, 421} <= statuses


def test_no_request_fails(subjects: list[Subject]) -> None:
    check(subjects, 300, seed=1)


@pytest.mark.slow(part="attacks")
def test_no_request_of_many_fails(subjects: list[Subject]) -> None:
    check(subjects, 100_000, seed=2)

"""Random requests to the pages of `winnow ui`: none may fail."""

import random
from collections.abc import Sequence

import pytest
from bench.ui import write_run

from web_client import HERE, Answer, WebClient
from winnow.web.app import create_app
from winnow.web.request_guard import Access
from winnow.web.run_index import RunIndex
from winnow.web.serve import run_page_sets
from winnow.web.sessions import Sessions

PARTS = [
    "runs",
    "compare",
    "questions",
    "live",
    "files",
    "static",
    "config.toml",
    "script.js",
    "..",
    "%2e%2e",
    "%00",
    "",
]
ODD = [
    "\x00",
    "\n",
    "<script>",
    "é",
    "%",
    "%ff",
    "%c0%ae",
    "'",
    '"',
    "\\",
    "&",
    "=",
    "#",
    "+",
    "😀",
    "a" * 300,
    "-1",
    "1e9",
]
HEADERS = [
    "origin",
    "host",
    "cookie",
    "content-type",
    "x-csrf-token",
    "last-event-id",
    "sec-fetch-site",
    "range",
    "accept",
]
VALUES = [
    "",
    "null",
    HERE,
    "http://example.org",
    "application/json",
    "bytes=0-",
    "-5",
    "9" * 40,
    "é",
    ";;;=",
    "cross-site",
]
MAX_STATUS = 500


class Ticking:
    """Every look at the clock is a second later, so that the limits of a minute let requests through."""

    seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 1.0
        return self.seconds % 30_000


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> WebClient:
    runs = tmp_path_factory.mktemp("fuzz") / "runs"
    write_run(runs / "done", "fedavg", 0, rounds=2)
    write_run(runs / "killed", "fedavg", 1, rounds=2, finished=False)
    (runs / "damaged").mkdir()
    (runs / "damaged" / "run.json").write_text("{}")
    access = Access(hosts=frozenset({"127.0.0.1:8765"}), sessions=Sessions(Ticking()))
    client = WebClient(create_app(access, run_page_sets([runs])))
    client.cookies[access.cookie] = access.sessions.open()
    PARTS.extend(run.key for run in RunIndex([runs]).runs())
    return client


def random_address(rng: random.Random, known: Sequence[str] = PARTS) -> str:
    parts = [rng.choice(ODD) if rng.random() < 0.2 else rng.choice(known) for _ in range(rng.randint(0, 5))]
    address = "/" + "/".join(parts)
    if rng.random() < 0.5:
        pairs = [
            f"{rng.choice(['run', 'after', 'token', 'q'])}={rng.choice([*ODD, *known])}"
            for _ in range(rng.randint(1, 4))
        ]
        address += "?" + "&".join(pairs)
    return address


def check_answer(answer: Answer, asked: object) -> None:
    assert 200 <= answer.status < MAX_STATUS, (asked, answer.status, answer.text)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "<script>" not in answer.text.replace('<script type="application/json">', "") or "javascript" in str(
        answer.headers
    )


def check_requests(client: WebClient, count: int, seed: int) -> None:
    rng = random.Random(seed)
    statuses = set()
    for _ in range(count):
        address, method = random_address(rng), rng.choice(["GET", "GET", "GET", "POST", "HEAD", "PUT", "BREW"])
        headers = {
            rng.choice(HEADERS): rng.choice(VALUES) for _ in range(rng.randint(0, 2) if rng.random() < 0.4 else 0)
        }
        content = rng.randbytes(rng.randint(0, 200)) if method != "GET" else b""
        answer = client.request(method, address, headers=headers, content=content, stop_after=1)
        check_answer(answer, (method, address, headers))
        statuses.add(answer.status)
    assert {200, 403, 404, 405, 421} <= statuses


def test_no_request_fails(client: WebClient) -> None:
    check_requests(client, 700, seed=1)


@pytest.mark.slow(part="attacks")
def test_no_request_of_many_fails(client: WebClient) -> None:
    check_requests(client, 100_000, seed=2)

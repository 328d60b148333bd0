"""The pages of `winnow ui` against whoever should not have them: other sites, other users, other machines."""

import hmac
import json
import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import anyio
import pytest
from fastapi import Request

from command_line import call
from waiting import eventually
from web_client import HERE, WebClient
from winnow.web.app import create_app
from winnow.web.live_stream import live_response
from winnow.web.login_key import LoginKey
from winnow.web.open_browser import open_browser
from winnow.web.request_guard import MAX_BODY, RESPONSE_HEADERS, Access
from winnow.web.run_index import RunIndex
from winnow.web.run_list_page import run_list_pages
from winnow.web.serve import serve_pages
from winnow.web.sessions import MAX_SESSIONS, MAX_STREAMS, REQUESTS_PER_MINUTE, SESSION_SECONDS, Sessions, TooMany


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def access() -> Access:
    return Access.loopback(8765)


@pytest.fixture
def stranger(access: Access, tmp_path: Path) -> WebClient:
    """A browser on this machine that has not logged in."""
    return WebClient(create_app(access, [run_list_pages(RunIndex([tmp_path]))]))


@pytest.fixture
def user(stranger: WebClient, access: Access) -> WebClient:
    assert stranger.get("/", params={"token": access.token}).status == 303
    return stranger


def csrf(client: WebClient) -> str:
    return client.get("/").text.partition('name="csrf-token" content="')[2].partition('"')[0]


def test_the_token_moves_from_the_address_into_a_cookie(stranger: WebClient, access: Access) -> None:
    answer = stranger.get("/", params={"token": access.token})
    assert answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"].lower()
    assert {"httponly", "samesite=strict", "path=/"} <= {part.strip() for part in cookie.split(";")}
    assert access.token not in answer.headers["set-cookie"]
    assert stranger.get("/").status == 200
    assert len(access.token) >= 22  # 128 bits in base 64


@pytest.mark.parametrize("address", ["/", "/?token=", "/?token=guess", "/live", "/static/script.js", "/nothing"])
def test_without_a_login_there_is_nothing(stranger: WebClient, address: str) -> None:
    answer = stranger.get(address)
    assert answer.status == 403
    assert "winnow ui" in answer.text
    assert "set-cookie" not in answer.headers


def test_the_token_is_good_for_the_front_page_alone(stranger: WebClient, access: Access) -> None:
    """Elsewhere it would lead a browser to an address that a stranger chose."""
    assert stranger.get("//example.org/", params={"token": access.token}).status == 403


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1", "127.0.0.1:80", "127.0.0.1:8765.example.org", ""])
def test_a_foreign_host_is_refused(user: WebClient, host: str) -> None:
    assert user.get("/", headers={"host": host}).status == 421


def test_names_of_this_machine_are_served(user: WebClient, access: Access) -> None:
    for host in ("localhost:8765", "LOCALHOST:8765", "[::1]:8765"):
        assert (
            user.get("/", headers={"host": host, "cookie": f"{access.cookie}={access.sessions.open()}"}).status == 200
        )


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://example.org"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:8766"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
    ],
)
def test_other_sites_are_refused(user: WebClient, headers: dict[str, str]) -> None:
    assert user.get("/", headers=headers).status == 403


def test_a_changing_request_needs_origin_json_and_secret(user: WebClient) -> None:
    whole = {"origin": HERE, "content-type": "application/json", "x-csrf-token": csrf(user)}
    lacking = [{name: value for name, value in whole.items() if name != left} for left in whole]
    wrong = [whole | {"x-csrf-token": "guess"}, whole | {"content-type": "text/plain"}]
    for headers in [*lacking, *wrong, whole | {"origin": "https://example.org"}]:
        assert user.post("/logout", content=b"{}", headers=headers).status in (403, 415), headers
    assert user.get("/").status == 200
    assert user.post("/logout", content=b"{}", headers=whole).status == 204
    assert user.get("/").status == 403


def test_reading_changes_nothing(user: WebClient) -> None:
    assert user.get("/logout").status == 405
    assert user.get("/").status == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "BREW"])
def test_other_methods_are_refused(user: WebClient, method: str) -> None:
    assert user.request(method, "/").status == 405


def test_every_answer_carries_the_policy(user: WebClient, access: Access) -> None:
    foreign = user.get("/", headers={"host": "example.org"})
    for answer in (user.get("/"), user.get("/nothing"), user.get("/static/style.css"), foreign):
        assert RESPONSE_HEADERS.items() <= answer.headers.items()
        assert "access-control-allow-origin" not in answer.headers
    policy = dict(part.split(" ", 1) for part in RESPONSE_HEADERS["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"


def test_what_is_too_large_is_refused(user: WebClient) -> None:
    assert user.get("/", params={"q": "x" * 20_000}).status == 414
    headers = {"origin": HERE, "content-type": "application/json", "x-csrf-token": csrf(user)}
    assert user.post("/logout", content=b" " * (MAX_BODY + 1), headers=headers).status == 413


def test_a_login_asks_only_so_much(user: WebClient, access: Access) -> None:
    session = next(iter(access.sessions._sessions.values()))
    for _ in range(REQUESTS_PER_MINUTE):
        try:
            session.count_request(access.sessions.now())
        except TooMany:
            break
    assert user.get("/").status == 429


def test_logins_end() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    secret = sessions.open()
    assert sessions.find(secret)
    clock.now = SESSION_SECONDS + 1
    assert sessions.find(secret) is None
    several = [sessions.open() for _ in range(MAX_SESSIONS + 1)]
    assert sessions.find(several[0]) is None
    assert sessions.find(several[-1])


def test_a_minute_is_a_new_chance_and_streams_are_counted() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    session = sessions.find(sessions.open())
    assert session
    for _ in range(REQUESTS_PER_MINUTE):
        session.count_request(clock())
    with pytest.raises(TooMany, match="wait a minute"):
        session.count_request(clock())
    session.count_request(60.0)
    held = [session.stream() for _ in range(MAX_STREAMS)]
    for each in held:
        each.__enter__()
    with pytest.raises(TooMany, match="close some"):
        session.check_streams()
    held[0].__exit__(None, None, None)
    session.check_streams()


def test_the_eleventh_stream_is_refused(user: WebClient, access: Access) -> None:
    session = next(iter(access.sessions._sessions.values()))
    held = [session.stream() for _ in range(MAX_STREAMS)]
    for each in held:
        each.__enter__()
    answer = user.get("/live", stop_after=1)
    assert answer.status == 429
    assert "close some" in answer.text


def test_logging_out_ends_live_streams(user: WebClient, access: Access) -> None:
    session = next(iter(access.sessions._sessions.values()))
    access.sessions.close(user.cookies[access.cookie])
    assert session.ended
    request = Request({"type": "http", "winnow.session": session})

    async def pieces() -> list[object]:
        return [piece async for piece in live_response(request, lambda: {"news": 1}, 0.0).body_iterator]

    assert len(anyio.run(pieces)) == 1


def test_a_login_by_a_link_elsewhere_is_not_a_redirect(stranger: WebClient, access: Access) -> None:
    """A browser that another page sent on would not send the new cookie after a redirect."""
    elsewhere = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert stranger.get("/", params={"token": "guess"}, headers=elsewhere).status == 403
    answer = stranger.get("/", params={"token": access.token}, headers=elsewhere)
    assert answer.status == 200
    assert 'content="0; url=/"' in answer.text
    assert access.token not in answer.text
    assert "SameSite=strict" in answer.headers["set-cookie"]
    assert stranger.get("/").status == 200


def test_the_browsers_command_line_does_not_hold_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """All users of a machine see it."""
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with open_browser(f"{HERE}/?token=secret"):
        file = Path(unquote(urlsplit(opened[0]).path))
        assert opened[0].startswith("file:")
        assert "secret" not in opened[0]
        assert f"url={HERE}/?token=secret" in file.read_text()
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert not file.parent.exists()


def test_the_printed_address_is_in_numbers() -> None:
    """Browsers try localhost at ::1 first, where another user may wait for the token. And it is open already."""

    class Seen(Exception):  # noqa: N818
        pass

    def ready(address: str) -> None:
        socket.create_connection(("127.0.0.1", urlsplit(address).port), timeout=10).close()
        raise Seen(address)

    with pytest.raises(Seen, match=r"http://127\.0\.0\.1:\d+/\?token="):
        serve_pages([], host="localhost", port=0, on_ready=ready)


def test_another_address_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for host in ("0.0.0.0", "::", "192.168.1.4", "example.org"):
        done = call(capsys, "ui", tmp_path, "--host", host, "--no-browser")
        assert done.code == 2
        assert "TLS and a login" in done.err


def test_a_port_that_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = call(capsys, "ui", tmp_path, "--port", other.getsockname()[1], "--no-browser")
    assert done.code == 2
    assert "try another --port" in done.err
    assert call(capsys, "ui", tmp_path, "--port", 70_000, "--no-browser").code == 2


def test_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = call(capsys, "ui", tmp_path / "none", "--no-browser")
    assert done.code == 2
    assert "no such folder" in done.err


def test_the_list_names_runs_and_what_is_wrong_with_them(user: WebClient, tmp_path: Path) -> None:
    evil = tmp_path / "<script>alert(1)<" / "run"
    evil.mkdir(parents=True)
    (evil / "run.json").write_text(json.dumps({"schema": 2, "name": "x"}))
    text = user.get("/").text
    assert "&lt;script&gt;alert(1)&lt;/run" in text
    assert "<script>alert" not in text
    assert "damaged" in text


def test_a_login_outlives_the_process_until_a_logout(tmp_path: Path) -> None:
    path = tmp_path / "state" / "ui.key"
    secret = Sessions(key=LoginKey(path)).open()
    assert path.stat().st_mode & 0o777 == 0o600
    again = Sessions(key=LoginKey(path))
    assert again.find(secret) is not None
    head, _, signature = secret.rpartition(".")
    later = f"{int(head.partition('.')[0]) + 5}.{head.partition('.')[2]}"
    for forged in (f"{head}.{'0' * 64}", f"{later}.{signature}", "1.x", "..", "", "9" * 400, "é.é.é"):
        assert again.find(forged) is None
    assert Sessions(lambda: time.time() + SESSION_SECONDS + 60, LoginKey(path)).find(secret) is None
    again.close(secret)
    assert Sessions(key=LoginKey(path)).find(secret) is None


def test_a_key_that_others_could_read_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "ui.key"
    secret = Sessions(key=LoginKey(path)).open()
    path.chmod(0o644)
    assert Sessions(key=LoginKey(path)).find(secret) is None
    elsewhere = tmp_path / "theirs.key"
    elsewhere.write_bytes(b"k" * 32)
    elsewhere.chmod(0o600)
    path.unlink()
    path.symlink_to(elsewhere)
    assert LoginKey(path).sign("x") != hmac.new(b"k" * 32, b"x", "sha256").hexdigest()


def test_pages_give_way_to_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "winnow.cli", "ui", str(tmp_path), "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("http://127.0.0.1:")
            own = os.getpriority(os.PRIO_PROCESS, 0)
            eventually(lambda: os.getpriority(os.PRIO_PROCESS, process.pid) > own, "it competes with runs")
        finally:
            process.terminate()

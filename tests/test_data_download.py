"""Downloads, against a server on this machine: whole and checked, or not at all."""

import hashlib
import io
import tarfile
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from winnow.core import DataError
from winnow.data import DataSettings, fetch, load
from winnow.data.directories import fetch_set
from winnow.data.download import Download, RemoteFile
from winnow.data.known_sets import BOSTON, CIFAR10, KNOWN_SETS

CONTENT = b"numbers " * 100_000


class Shelf(BaseHTTPRequestHandler):
    """Serves what the test puts into `served`; a path that starts with /short breaks off half-way."""

    served: dict[str, bytes]

    def do_GET(self):
        content = self.served.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if self.path.startswith("/short") else content)

    def log_message(self, *_):
        """Tests need no access log."""


@pytest.fixture
def shelf():
    handler = type("Handler", (Shelf,), {"served": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    handler.url = f"http://127.0.0.1:{server.server_port}"
    yield handler
    server.shutdown()
    thread.join()
    server.server_close()


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def single(*urls, checksum=None):
    """A set of one file."""
    item = Download(file=RemoteFile(name="boston.txt", checksum=checksum or sha256(CONTENT)), urls=urls)
    return replace(BOSTON, downloads=(item,))


def archive(url, *names, checksum=None):
    members = tuple(RemoteFile(name=name) for name in names)
    item = Download(file=RemoteFile(name="packed", checksum=checksum), urls=(url,), members=members)
    return replace(CIFAR10, layouts=(names,), downloads=(item,))


def zipped(**members: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as target:
        for name, content in members.items():
            target.writestr(name, content)
    return packed.getvalue()


def tarred(members: dict[str, bytes], link: tuple[str, str] | None = None) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as target:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            target.addfile(entry, io.BytesIO(content))
        if link:
            entry = tarfile.TarInfo(link[0])
            entry.type, entry.linkname = tarfile.SYMTYPE, link[1]
            target.addfile(entry)
    return packed.getvalue()


def refusal(wanted, directory) -> str:
    with pytest.raises(DataError) as caught:
        fetch_set(wanted, directory)
    assert "\n" not in str(caught.value)
    assert [path for path in directory.rglob("*") if path.is_file()] == []
    return str(caught.value)


def test_a_file_is_fetched_checked_and_put_in_place_with_progress(shelf, tmp_path):
    shelf.served["/boston"] = CONTENT
    seen = []
    folder = fetch_set(single(f"{shelf.url}/boston"), tmp_path, lambda done, total: seen.append((done, total)))
    assert folder == tmp_path / "boston"
    assert [path.name for path in folder.iterdir()] == ["boston.txt"]
    assert (folder / "boston.txt").read_bytes() == CONTENT
    assert seen == sorted(seen)
    assert len(seen) > 1
    assert seen[-1] == (len(CONTENT), len(CONTENT))


def test_what_is_already_here_is_not_fetched_again(shelf, tmp_path):
    (tmp_path / "boston").mkdir()
    (tmp_path / "boston" / "boston.txt").write_text("mine")
    assert fetch_set(single(f"{shelf.url}/gone"), tmp_path) == tmp_path / "boston"
    assert (tmp_path / "boston" / "boston.txt").read_text() == "mine"


def test_of_a_set_that_is_complete_only_extras_are_fetched(shelf, tmp_path):
    shelf.served["/writers"] = CONTENT
    extra = Download(file=RemoteFile(name="writers.gz", checksum=sha256(CONTENT)), urls=(f"{shelf.url}/writers",))
    wanted = single(f"{shelf.url}/gone")
    wanted = replace(wanted, downloads=(*wanted.downloads, extra))
    (tmp_path / "boston").mkdir()
    (tmp_path / "boston" / "boston_house_prices.csv.gz").write_text("mine")
    folder = fetch_set(wanted, tmp_path)
    assert {path.name for path in folder.iterdir()} == {"boston_house_prices.csv.gz", "writers.gz"}


def test_the_next_mirror_is_asked_where_the_first_fails(shelf, tmp_path):
    shelf.served["/boston"] = CONTENT
    folder = fetch_set(single(f"{shelf.url}/gone", f"{shelf.url}/boston"), tmp_path)
    assert (folder / "boston.txt").read_bytes() == CONTENT


def test_failures_say_what_went_wrong_and_which_files_to_put_where(shelf, tmp_path):
    shelf.served["/boston"] = CONTENT + b"!"
    shelf.served["/short"] = CONTENT
    assert "404" in (missing := refusal(single(f"{shelf.url}/gone"), tmp_path))
    assert f"get boston_house_prices.csv from {BOSTON.home} and put them into {tmp_path / 'boston'}" in missing
    assert f"searched: {tmp_path}" in missing
    assert "instead of" in refusal(single(f"{shelf.url}/boston"), tmp_path)
    assert "connection closed" in refusal(single(f"{shelf.url}/short"), tmp_path)
    assert "refused" in refusal(single("http://127.0.0.1:9/boston"), tmp_path)


def test_a_checksum_of_numbers_does_not_mind_the_layout(shelf, tmp_path):
    import numpy as np

    shelf.served["/a"] = b"Prose of 1978.\n 1.5 2\n 3\n"
    digest = hashlib.sha256(np.array([1.5, 2, 3]).tobytes()).hexdigest()
    fetch_set(single(f"{shelf.url}/a", checksum=f"numbers:{digest}"), tmp_path)
    assert (tmp_path / "boston" / "boston.txt").is_file()
    shelf.served["/b"] = b"1.5 2 3.5"
    assert "instead of" in refusal(single(f"{shelf.url}/b", checksum=f"numbers:{digest}"), tmp_path / "other")


def test_the_members_of_archives_are_unpacked_under_their_own_names(shelf, tmp_path):
    shelf.served["/zip"] = zipped(**{"deep/one.bin": b"1", "two.bin": b"2", "notes.txt": b"-"})
    shelf.served["/tar"] = tarred({"deep/one.bin": b"1", "two.bin": b"2", "notes.txt": b"-"})
    for kind in ("zip", "tar"):
        checksum = sha256(shelf.served[f"/{kind}"])
        folder = fetch_set(archive(f"{shelf.url}/{kind}", "one.bin", "two.bin", checksum=checksum), tmp_path / kind)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"one.bin": b"1", "two.bin": b"2"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (zipped(**{"../one.bin": b"evil"}), "unsafe path"),
        (zipped(**{"/etc/one.bin": b"evil"}), "unsafe path"),
        (tarred({"a/../../one.bin": b"evil"}), "unsafe path"),
        (tarred({}, link=("one.bin", "/etc/passwd")), "does not contain one.bin"),
        (zipped(**{"other.bin": b"1"}), "does not contain one.bin"),
        (tarred({"one.bin": b"1" * 100_000})[:60], "truncated or damaged archive"),
        (b"neither", "truncated or damaged archive"),
    ],
    ids=["zip above", "zip absolute", "tar above", "tar link", "zip lacks it", "tar cut short", "no archive"],
)
def test_archives_that_are_unsafe_or_incomplete_leave_nothing_behind(shelf, tmp_path, content, expected):
    shelf.served["/packed"] = content
    assert expected in refusal(archive(f"{shelf.url}/packed", "one.bin"), tmp_path)
    assert not (tmp_path.parent / "one.bin").exists()


def test_a_member_with_a_wrong_checksum_is_refused(shelf, tmp_path):
    shelf.served["/zip"] = zipped(**{"one.bin": b"1", "two.bin": b"2"})
    wanted = archive(f"{shelf.url}/zip", "one.bin", "two.bin")
    members = (RemoteFile(name="one.bin"), RemoteFile(name="two.bin", checksum=sha256(b"other")))
    wanted = replace(wanted, downloads=(replace(wanted.downloads[0], members=members),))
    assert "two.bin has the sha256" in refusal(wanted, tmp_path)


def test_load_fetches_what_is_missing_into_the_directory_given(shelf, tmp_path, monkeypatch):
    monkeypatch.delenv("WINNOW_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shelf.served["/boston"] = "\n".join(
        " ".join(str(row + column) for column in range(14)) for row in range(506)
    ).encode()
    monkeypatch.setitem(KNOWN_SETS, "boston", single(f"{shelf.url}/boston", checksum=sha256(shelf.served["/boston"])))
    assert len(load(DataSettings(name="boston"), tmp_path / "given")) == 506
    assert (tmp_path / "given" / "boston" / "boston.txt").is_file()
    assert len(load(DataSettings(name="boston"))) == 506
    assert (tmp_path / "cache" / "winnow" / "boston" / "boston.txt").is_file()


def test_a_directory_that_cannot_be_written_is_one_line(shelf, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"boston could not be downloaded .*Not a directory"):
        fetch_set(single(f"{shelf.url}/boston"), tmp_path / "file")


def test_digits_need_no_download(tmp_path):
    with pytest.raises(DataError, match="digits needs no download"):
        fetch("digits", tmp_path)


def test_every_known_set_can_be_verified_after_a_download():
    for wanted in KNOWN_SETS.values():
        for item in wanted.downloads:
            assert item.file.checksum or all(member.checksum for member in item.members), wanted.name
            assert all(url.startswith("https://") for url in item.urls[:1])

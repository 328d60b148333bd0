"""A leader that was replaced and has yet to notice: what it does to blobs does its successor no harm."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from postgres import fresh_database
from serving import eventually

from winnow.deploy.server import blob_store as blobs_module
from winnow.deploy.server.blob_store import BlobStore, open_blob_store
from winnow.deploy.server.database import Database
from winnow.deploy.server.lease import FencedDatabase, Lease
from winnow.deploy.wire.atomic_files import CHUNK, read_chunks

LEASE = 0.5

STALE = """
from winnow.core import WinnowError
import sys
from pathlib import Path
from winnow.deploy.server import blob_store
from winnow.deploy.server.blob_store import open_blob_store
from winnow.deploy.server.database import Database
from winnow.deploy.server.lease import FencedDatabase, Lease
from winnow.deploy.server.database_reads import Queries
from winnow.deploy.wire.atomic_files import read_chunks

url, folder, file, act = sys.argv[1:]
database = Database(url)
lease = Lease(database, server="a", address="grpc://a", seconds=0.5)
assert lease.acquire_or_renew()
blobs = open_blob_store(FencedDatabase(database=database, token=lease.token), Path(folder))

def pausing(path, offset=0):
    for number, chunk in enumerate(read_chunks(path, offset)):
        yield chunk
        if number == 0:
            pause()

def pause():
    print("leading", flush=True)
    sys.stdin.readline()

try:
    if act == "remove":
        pause()
        blobs.remove("job", blobs.digests("job") - Queries(database=database).referenced_blobs("job"))
    else:
        blob_store.read_chunks = pausing
        blobs.put("job", Path(file))
    print("done", flush=True)
except WinnowError:
    print("lost", flush=True)
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'server.db'}"
    else:
        url = fresh_database(request.getfixturevalue("postgres"))
    database = Database(url)
    database.migrate()
    yield database
    database.close()


@contextmanager
def stale(database: Database, folder: Path, act: str) -> Iterator["subprocess.Popen[str]"]:
    """A leader of another process that stands still in the middle of something until a line is written to it."""
    url = database.url.render_as_string(hide_password=False)
    command = [sys.executable, "-c", STALE, url, str(folder / "blobs"), str(folder / "file"), act]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "leading\n"
        yield process
        process.kill()


def goes_on(process: "subprocess.Popen[str]") -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def successor(database: Database, folder: Path) -> BlobStore:
    lease = Lease(database, server="b", address="grpc://b", seconds=60.0)
    eventually(lease.acquire_or_renew)
    assert lease.token is not None
    return open_blob_store(FencedDatabase(database=database, token=lease.token), folder / "blobs")


def test_it_removes_nothing_that_its_successor_is_putting(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(3 * CHUNK)
    (tmp_path / "file").write_bytes(content)
    halfway, go_on = threading.Event(), threading.Event()

    def pausing(path: Path, offset: int = 0) -> Iterator[bytes]:
        for number, chunk in enumerate(read_chunks(path, offset)):
            if number == 1:
                halfway.set()
                go_on.wait(60)
            yield chunk

    with stale(database, tmp_path, "remove") as process:
        blobs = successor(database, tmp_path)
        monkeypatch.setattr(blobs_module, "read_chunks", pausing)
        putting = threading.Thread(target=blobs.put, args=("job", tmp_path / "file"))
        putting.start()
        assert halfway.wait(60)
        assert blobs.digests("job"), "half of it is there to be seen"
        assert goes_on(process) == "lost"
        go_on.set()
        putting.join(60)
    monkeypatch.undo()
    blob = blobs.put("job", tmp_path / "file")
    assert b"".join(blobs.read("job", blob)) == content


def test_it_adds_nothing_to_what_its_successor_cleared_away(database: Database, tmp_path: Path) -> None:
    """Else half a blob would count as a whole one, and the successor would commit a round that cannot be read."""
    content = os.urandom(3 * CHUNK)
    (tmp_path / "file").write_bytes(content)
    with stale(database, tmp_path, "put") as process:
        blobs = successor(database, tmp_path)
        blobs.remove("job", blobs.digests("job"))
        assert goes_on(process) == "lost"
    blob = blobs.put("job", tmp_path / "file")
    assert b"".join(blobs.read("job", blob)) == content

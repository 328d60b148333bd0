"""A spool folder shows whole and right blobs only, whatever happens on the way."""

import subprocess
import sys
import threading
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winnow.deploy.wire.atomic_files import blob_of
from winnow.deploy.wire.errors import StorageFullError, WireError
from winnow.deploy.wire.messages import Blob
from winnow.deploy.wire.resumable_blob_files import BlobFolder


def named(data: bytes) -> Blob:
    return Blob(digest=sha256(data).hexdigest(), size=len(data))


def put(spool: BlobFolder, data: bytes, *, owner: str = "") -> Blob:
    with spool.open_writer(named(data), 0, owner) as writer:
        writer.write(data)
        writer.finish()
    return named(data)


@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=4))
def test_a_blob_arrives_in_any_number_of_attempts(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, cuts: list[int]
) -> None:
    folder, blob = tmp_path_factory.mktemp("spool"), named(data)
    for cut in sorted(cuts):
        spool = BlobFolder(folder)
        held = spool.stored_size(blob)
        with spool.open_writer(blob, held) as writer:
            writer.write(data[held:cut])
        assert not data or not spool.has(blob)
        assert spool.stored_size(blob) == max(held, min(cut, len(data) - 1), 0)
    spool = BlobFolder(folder)
    with spool.open_writer(blob, spool.stored_size(blob)) as writer:
        writer.write(data[spool.stored_size(blob) :])
        assert writer.finish() == spool.path(blob)
    assert spool.path(blob).read_bytes() == data
    assert b"".join(spool.read(blob, len(data) // 2)) == data[len(data) // 2 :]
    assert spool.blobs() == [blob]


def test_an_earlier_offset_overwrites(tmp_path: Path) -> None:
    spool, blob = BlobFolder(tmp_path), named(b"0123456789")
    with spool.open_writer(blob, 0) as writer:
        writer.write(b"012345XX")
    with spool.open_writer(blob, 6) as writer:
        writer.write(b"6789")
        writer.finish()
    assert spool.path(blob).read_bytes() == b"0123456789"


def test_a_wrong_digest_deletes_what_arrived(tmp_path: Path) -> None:
    spool, blob = BlobFolder(tmp_path), named(b"right")
    with spool.open_writer(blob, 0) as writer:
        writer.write(b"wrong")
        with pytest.raises(WireError, match="damaged"):
            writer.finish()
    assert list(tmp_path.iterdir()) == []


def test_a_partial_blob_is_not_there(tmp_path: Path) -> None:
    spool, blob = BlobFolder(tmp_path), named(b"content")
    with spool.open_writer(blob, 0) as writer:
        writer.write(b"cont")
        with pytest.raises(WireError, match="received 4 of 7"):
            writer.finish()
    with pytest.raises(WireError, match="is not stored here"):
        spool.path(blob)
    assert spool.stored_size(blob) == 4
    assert spool.blobs() == []
    spool.remove(blob)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_blob_is_there_only_once_it_was_received(tmp_path: Path) -> None:
    spool = BlobFolder(tmp_path)
    assert not spool.has(named(b""))
    put(spool, b"")
    assert spool.path(named(b"")).read_bytes() == b""


def test_a_sender_who_comes_back_takes_over(tmp_path: Path) -> None:
    spool, blob = BlobFolder(tmp_path), named(b"content")
    older = spool.open_writer(blob, 0)
    older.write(b"con")
    newer = spool.open_writer(blob, 3)
    with pytest.raises(WireError, match="another connection"):
        older.write(b"SPOIL")
    older.suspend()
    newer.write(b"tent")
    newer.finish()
    assert spool.path(blob).read_bytes() == b"content"


def test_nobody_writes_into_the_file_of_another(tmp_path: Path) -> None:
    spool, blob = BlobFolder(tmp_path), named(b"content")
    with spool.open_writer(blob, 0, "alpha") as one, spool.open_writer(blob, 0, "beta") as other:
        one.write(b"cont")
        other.write(b"SPOILED")
        with pytest.raises(WireError, match="damaged"):
            other.finish()
        one.write(b"ent")
        one.finish()
    assert spool.path(blob).read_bytes() == b"content"


def test_a_quota_counts_what_is_there_and_what_is_promised(tmp_path: Path) -> None:
    spool = BlobFolder(tmp_path, quota=100)
    put(spool, b"a" * 40)
    with spool.open_writer(named(b"b" * 50), 0):
        with pytest.raises(StorageFullError, match="cannot store a blob of 20 bytes: 90 of 100"):
            spool.open_writer(named(b"c" * 20), 0)
        put(spool, b"d" * 10)
    spool.remove(named(b"a" * 40))
    put(spool, b"c" * 20)


FULL = """
import resource, sys
from pathlib import Path
from winnow.deploy.wire.resumable_blob_files import BlobFolder
from winnow.deploy.wire.errors import StorageFullError
from winnow.deploy.wire.messages import Blob
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
spool = BlobFolder(Path(sys.argv[1]))
try:
    with spool.open_writer(Blob(digest="0" * 64, size=300_000), 0) as writer:
        for _ in range(30):
            writer.write(bytes(10_000))
except StorageFullError as error:
    print(error)
"""


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files fails as a full disk does: in the middle of a write."""
    ran = subprocess.run([sys.executable, "-c", FULL, tmp_path], capture_output=True, text=True, check=True)
    assert "File too large" in ran.stdout
    assert len(ran.stdout.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_adopted(tmp_path: Path) -> None:
    spool = BlobFolder(tmp_path / "spool")
    (tmp_path / "made").write_bytes(b"content")
    blob = blob_of(tmp_path / "made")
    assert spool.adopt(tmp_path / "made") == blob == named(b"content")
    assert spool.path(blob).read_bytes() == b"content"
    assert not (tmp_path / "made").exists()


def test_many_threads_store_at_once_and_close_their_files(tmp_path: Path) -> None:
    spool = BlobFolder(tmp_path, quota=10**6)
    blobs: list[Blob] = []

    def store(number: int) -> None:
        blobs.extend(put(spool, f"{number}.{i}".encode(), owner=str(number)) for i in range(20))

    threads = [threading.Thread(target=store, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(blobs) == 160
    assert all(spool.has(blob) for blob in blobs)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
